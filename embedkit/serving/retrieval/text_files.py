"""Files of text, Markdown and HTML: which of them a folder has, and how their bytes become text."""

from __future__ import annotations

import codecs
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from embedkit.errors import DataError
from embedkit.serving.retrieval.html_sections import read_html
from embedkit.serving.retrieval.sections import Page, read_markdown, read_text

logger = logging.getLogger("embedkit")

_NAMED: Final = 5  # kinds of other files, and links, in the log

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_DECLARED: Final = re.compile(
    rb"""<meta\b[^>]{0,512}?\bcharset\s*=\s*["']?\s*([\w:.-]+)|\A\s*<\?xml\b[^>]{0,512}?\bencoding\s*=\s*["']([\w:.-]+)""",
    re.IGNORECASE,
)
_DECLARATION_BYTES: Final = 4096
_AS_BROWSERS_READ: Final = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"} | {
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
_READERS: Final[Mapping[str, Callable[[str], Page]]] = {
    ".txt": read_text,
    ".md": read_markdown,
    ".markdown": read_markdown,
    ".html": read_html,
    ".htm": read_html,
}
SUFFIXES: Final = frozenset(_READERS)
"""Suffixes of the files that are read."""


def is_text_file(path: Path) -> bool:
    """Whether a file is read, by its suffix."""
    return path.suffix.lower() in SUFFIXES


def find_text_files(root: Path, *, follow_links: bool = False) -> Iterator[Path]:
    """Yield the files of text below a folder, sorted, except hidden ones; a file is itself.

    Files outside of the folder, which links in it lead to, are left out unless ``follow_links``; links to folders
    are not followed then. How many of them, and of files of other kinds, are left out is logged.
    """
    if not root.is_dir():
        yield root
        return
    others: Counter[str] = Counter()
    outside: list[str] = []
    for path in _files(root, outside, follow_links=follow_links):
        if is_text_file(path):
            yield path
        else:
            others[path.suffix or path.name] += 1
    if others:
        named = ", ".join(f"{count:,} {kind}" for kind, count in others.most_common(_NAMED))
        logger.info("%s: left out files that are not text, Markdown or HTML: %s", root, named)
    report_links(root, outside)


def report_links(root: Path, outside: list[str]) -> None:
    """Log which links to files outside of a folder were left out, if any."""
    if outside:
        more = f" and {len(outside) - _NAMED:,} more" if len(outside) > _NAMED else ""
        named = ", ".join(outside[:_NAMED])
        logger.warning(
            "%s: left out links that lead outside of the folder: %s%s; --follow-links (in Python, "
            "follow_links=True) reads them",
            root,
            named,
            more,
        )


def _files(root: Path, outside: list[str], *, follow_links: bool) -> Iterator[Path]:
    """Yield the files below a folder in the order of their paths, and collect the links that are left out."""
    real_root, visited, found = root.resolve(), set[tuple[int, int]](), list[Path]()
    for place, folders, names in os.walk(root, followlinks=follow_links):
        folder = Path(place)
        if follow_links:
            state = folder.stat()
            if (state.st_dev, state.st_ino) in visited:  # a link to a folder above
                folders.clear()
                continue
            visited.add((state.st_dev, state.st_ino))
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (folder / name for name in (*folders, *names) if not name.startswith(".")):
            if path.is_symlink() and not follow_links and not path.resolve().is_relative_to(real_root):
                outside.append(path.relative_to(root).as_posix())
            elif path.is_file():
                found.append(path)
    yield from sorted(found)


def read_page(path: Path) -> Page:
    """Read a file as sections.

    Raises:
        DataError: the file cannot be read, or not be decoded.
        MissingExtraError: it is Markdown, and markdown-it-py is not installed.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    suffix = path.suffix.lower()
    return _READERS[suffix](_decoded(content, path, is_html=suffix in (".html", ".htm")))


def _decoded(content: bytes, path: Path, *, is_html: bool) -> str:
    """Decode UTF-8, what begins with a byte order mark, and HTML as it declares; line ends remain as they are."""
    encoding = next((encoding for mark, encoding in _MARKS if content.startswith(mark)), "utf-8")
    declared = _declared_encoding(content) if is_html and encoding == "utf-8" else None
    if declared == "iso2022_jp":  # its bytes are ASCII, too
        encoding = declared
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        if declared is None or declared == encoding:
            raise _undecodable(path, error) from error
        try:
            text = content.decode(declared)
        except UnicodeDecodeError as other:
            raise _undecodable(path, other) from other
    if "\0" in text:
        raise DataError(f"{path} holds NUL characters: it is not text, or UTF-16 without a byte order mark")
    return text


def _undecodable(path: Path, error: UnicodeDecodeError) -> DataError:
    line = error.object[: error.start].count(b"\n") + 1
    name = error.encoding.upper()
    return DataError(f"{path}:{line} is not {name} text ({error.reason}); convert it, for example with iconv")


def _declared_encoding(content: bytes) -> str | None:
    match = _DECLARED.search(content[:_DECLARATION_BYTES])
    if match is None:
        return None
    try:
        codec = codecs.lookup((match[1] or match[2]).decode("ascii"))
    except (LookupError, UnicodeDecodeError):
        return None
    if codec.name.startswith(("utf-16", "utf-32", "utf-7")) or not getattr(codec, "_is_text_encoding", True):
        return None
    return _AS_BROWSERS_READ.get(codec.name, codec.name)
