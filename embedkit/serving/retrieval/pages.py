"""Pages: files of text, Markdown and HTML, divided at their headings into sections.

Markdown is read with markdown-it-py; texts of its sections are slices of the file, so they keep their markup. HTML
is the text that a browser shows: one regular expression divides the file into tags, comments and text without
reading any part of it twice, so the time is proportional to the length of the file, whatever it holds.
"""

from __future__ import annotations

import codecs
import itertools
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any, Final

from embedkit.errors import DataError
from embedkit.extras import require
from embedkit.serving.retrieval.documents import plain_value

logger = logging.getLogger("embedkit")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page, its text, below some headings, the outermost of which comes first.

    Attributes:
        start: the character of the file where the text begins, if the file holds it as it is.
    """

    headings: tuple[str, ...]
    text: str
    start: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """The sections of a page that have text, and its fields, such as its ``title``, if it has one."""

    sections: list[Section]
    fields: Mapping[str, Any] = field(default_factory=dict)


def read_text(text: str) -> Page:
    """Read plain text as one section."""
    return Page([Section((), text, 0)])


def _below(headings: list[str], level: int, title: str) -> list[str]:
    """Return the headings above a section, "" for levels that are left out."""
    outer = headings[: level - 1]
    return [*outer, *[""] * (level - 1 - len(outer)), title]


# Markdown

_LINE_END: Final = re.compile(r"\r\n|\n|\r")
_SPACES: Final = frozenset({"softbreak", "hardbreak"})


def read_markdown(text: str) -> Page:
    """Divide at the headings of the page itself; those inside of quotes and lists belong to their section.

    Front matter, which Markdown would read as a heading, is a section of its own. A heading without text of its
    own and without headings below it is the text of its section.
    """
    markdown = require("markdown_it", extra="documents").MarkdownIt()
    start, fields = _front_matter(text)
    lines = [start, *(match.end() for match in _LINE_END.finditer(text, start)), len(text)]
    headings: list[str] = []
    sections = [_slice(text, 0, start, headings)]
    level, heading_start = 0, start
    for token, inline in itertools.pairwise(markdown.parse(text[start:])):
        if token.type != "heading_open" or token.level or token.map is None:
            continue
        first, end = (lines[min(line, len(lines) - 1)] for line in token.map)
        next_level = int(token.tag[1:])
        begin = heading_start if next_level <= level and not text[start:first].strip() else start
        sections.append(_slice(text, begin, first, headings))
        headings, level = _below(headings, next_level, _plain(inline)), next_level
        heading_start, start = first, end
    sections.append(_slice(text, start if text[start:].strip() else heading_start, len(text), headings))
    return Page([section for section in sections if section.text.strip()], fields)


def _slice(text: str, start: int, end: int, headings: Iterable[str]) -> Section:
    return Section(tuple(filter(None, headings)), text[start:end], start)


def _plain(inline: Any) -> str:
    """Return the text of a heading without markup."""
    parts = (
        " " if child.type in _SPACES else child.content
        for child in inline.children or ()
        if child.type != "html_inline"
    )
    return " ".join("".join(parts).split())


# Front matter

_FRONT_MATTER: Final = re.compile(
    r"\s*---[ \t]*\r?\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
_YAML_LINE: Final = re.compile(r"[ \t]|#|-[ \t]|[\w\"'][^:]*:|\s*$")
_TITLE: Final = re.compile(r"^title[ \t]*:[ \t]*(.*\S)", re.MULTILINE)
_LONGEST_FRONT_MATTER: Final = 2**15  # characters


def _front_matter(text: str) -> tuple[int, dict[str, Any]]:
    """Return where the front matter ends, 0 if there is none, and its fields as JSON.

    Text between two rules is front matter if it is a mapping in YAML, or if its lines look like one.
    """
    match = _FRONT_MATTER.match(text)
    if match is None or len(match[1]) > _LONGEST_FRONT_MATTER:
        return 0, {}
    yaml = require("yaml", extra="documents")
    try:
        fields = yaml.load(match[1], Loader=_loader(yaml))
    except (yaml.YAMLError, ValueError, RecursionError):
        if not all(map(_YAML_LINE.match, match[1].splitlines())):
            return 0, {}
        title = _TITLE.search(match[1])
        fields = {"title": title[1].strip("\"'")} if title else {}
    if not isinstance(fields, dict):
        return 0, {}
    return match.end(), {str(name): value for name, value in _plain_fields(fields) if name != "text"}


def _plain_fields(fields: Mapping[Any, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in fields.items():
        try:
            plain = plain_value(value, str(name), "front matter")
        except DataError as error:
            logger.warning("%s; the field was left out", error)
            continue
        yield str(name), str(plain) if name == "title" and plain is not None else plain


def _loader(yaml: Any) -> Any:
    """Return a safe loader that refuses aliases, by which a short text becomes a large value."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # of an untyped package; the one in C composes by itself
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.composer.ComposerError(None, None, "front matter may not hold aliases", None)
            return super().compose_node(parent, index)

    return Loader


# HTML

_HEADINGS: Final = {f"h{level}": level for level in range(1, 7)}
_UNSEEN: Final = frozenset({"title", "script", "style", "template", "noscript", "svg", "math", "iframe", "object"})
_RAW: Final = frozenset({"title", "script", "style", "textarea", "iframe", "xmp", "noembed", "noframes"})
_CELLS: Final = frozenset({"td", "th"})
_LINES: Final = frozenset({"br", "tr", "li", "dt", "dd", "option"})
_PARAGRAPHS: Final = frozenset(
    {"address", "article", "aside", "blockquote", "body", "caption", "details", "dialog", "div", "dl", "fieldset"}
    | {"figcaption", "figure", "footer", "form", "header", "hr", "legend", "main", "nav", "ol", "p", "pre"}
    | {"section", "summary", "table", "tbody", "tfoot", "thead", "ul"}
)

_VALUE: Final = r"""(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z)|[^\s>]*+)"""
_TOKEN: Final = re.compile(
    rf"""
    <!--(?:-?>|.*?(?:--!?>|\Z))
    | </(?P<end>[a-zA-Z][^\s/>]*+)[^>]*+>?
    | <[!?/][^>]*+>?
    | <(?P<start>[a-zA-Z][^\s/>]*+)
      (?P<attributes>(?:[\s/]++|(?:=[^\s/>=]*+|[^\s/>=]++)(?:\s*+=\s*+{_VALUE})?+)*+)>?
    | (?P<text>[^<]++|<)
    """,
    re.DOTALL | re.VERBOSE,
)
_ATTRIBUTE: Final = re.compile(rf"([^\s/>=]++)\s*+=\s*+({_VALUE})")
_SPACES_AND_WORDS: Final = re.compile(r"\s+|\S+")
_RAW_ENDS: Final = {name: re.compile(rf"</{name}(?=[\s/>])|\Z", re.IGNORECASE) for name in _RAW}


def read_html(text: str) -> Page:
    """Read a page; a heading without text and without headings below it is the text of its section."""
    reader = _Reader(text)
    reader.read()
    return Page(reader.sections, {"title": reader.title} if reader.title else {})


class _Reader:
    """Collects the visible text of a file."""

    def __init__(self, source: str) -> None:
        self.sections: list[Section] = []
        self.title = ""
        self._source = source
        self._at = 0  # the place of the current token
        self._headings: list[str] = []
        self._parts: list[str] = []  # of the section; white space is a part of its own
        self._unseen: list[str] = []
        self._counts: Counter[str] = Counter()  # of `_unseen`
        self._level = 0  # of the heading that is being read
        self._heading: list[str] = []
        self._last_level = 0  # of the last heading
        self._preformatted = 0

    def read(self) -> None:
        """Read the whole file."""
        while match := _TOKEN.match(self._source, self._at):
            if match["text"]:
                self._add_text(match["text"])
            elif match["end"]:
                self._end_tag(match["end"].lower())
            elif match["start"]:
                name = match["start"].lower()
                is_closed = match["attributes"].endswith("/")
                if not (is_closed and name in _UNSEEN):
                    self._start_tag(name, match)
                    if name in _RAW:
                        self._raw_text(name, match.end())
                        continue
            self._at = match.end()
        self._end_heading()
        self._end_section(0)

    def _raw_text(self, name: str, start: int) -> None:
        """Take all text up to the end tag, in which other tags are text."""
        end = _RAW_ENDS[name].search(self._source, start)
        assert end is not None
        text, self._at = self._source[start : end.start()], end.start()
        if name == "title" and len(self._unseen) == 1 and not self.title:
            self.title = " ".join(unescape(text).split())
        self._add_text(text)

    def _start_tag(self, tag: str, match: re.Match[str]) -> None:
        if tag in _UNSEEN:
            self._unseen.append(tag)
            self._counts[tag] += 1
        if self._unseen:
            return
        if tag in _HEADINGS or tag in _PARAGRAPHS:
            self._end_heading()
        if tag in _HEADINGS:
            self._end_section(_HEADINGS[tag])
            self._level = self._last_level = _HEADINGS[tag]
            return
        self._preformatted += tag == "pre"
        self._break(tag)
        if tag == "img":
            values = {name.lower(): value for name, value in reversed(_ATTRIBUTE.findall(match["attributes"]))}
            alt = values.get("alt", "")
            self._add_text(alt[1:-1] if alt[:1] in ("'", '"') else alt)

    def _end_tag(self, tag: str) -> None:
        if self._unseen:
            if self._counts[tag]:
                while (ended := self._unseen.pop()) != tag:
                    self._counts[ended] -= 1
                self._counts[tag] -= 1
        elif tag in _HEADINGS:
            self._end_heading()
        else:
            self._preformatted -= tag == "pre" and self._preformatted > 0
            self._break(tag)

    def _add_text(self, text: str) -> None:
        """Add text as a browser shows it, in which white space is one space."""
        if self._unseen:
            return
        shown = unescape(text)
        if self._level:
            self._heading.append(shown)
            return
        for part in _SPACES_AND_WORDS.findall(shown):
            if not part.isspace() or self._preformatted:
                self._parts.append(part)
            elif self._parts and not self._parts[-1].isspace():
                self._parts.append(" ")

    def _break(self, tag: str) -> None:
        """End a cell, a line or a paragraph."""
        mark = "\n\n" if tag in _PARAGRAPHS else "\n" if tag in _LINES else " " if tag in _CELLS else ""
        if self._level:
            self._heading.append(mark)
            return
        if not mark or not self._parts:
            return
        if self._parts[-1].isspace():
            if self._parts[-1].count("\n") >= mark.count("\n"):
                return
            self._parts.pop()
        self._parts.append(mark)

    def _end_heading(self) -> None:
        if self._level:
            title = " ".join("".join(self._heading).split())
            self._headings = _below(self._headings, self._level, title)
            self._level, self._heading = 0, []

    def _end_section(self, next_level: int) -> None:
        """Keep the text since the last heading; without any, the heading, unless the next one is below it."""
        text, headings = "".join(self._parts), tuple(filter(None, self._headings))
        if text.strip():
            self.sections.append(Section(headings, text))
        elif self._last_level >= max(next_level, 1) and self._headings[-1]:
            self.sections.append(Section(headings, self._headings[-1]))
        self._parts = []


# Files

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
    """Decode UTF-8, files with a byte order mark, and HTML by its declaration; line ends remain."""
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
