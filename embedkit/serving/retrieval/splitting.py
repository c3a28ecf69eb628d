"""Long documents as sections and windows: folders of text, Markdown and HTML, and long texts in records.

A window is a part of one section that the model encodes without truncation. It keeps its document, the headings
above it, and its characters in the file, so a hit can be found there::

    {"id": "guide/install.md#3", "text": "...", "document": "guide/install.md", "section": "Install > GPUs",
     "start": 1204, "end": 1837}

Markdown is read with markdown-it-py, and HTML with Python's own parser. Texts of Markdown keep their markup, since
they are slices of the file; texts of HTML are those that a browser shows.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from embedkit.errors import DataError, InputError, shown
from embedkit.extras import require
from embedkit.records import not_utf8
from embedkit.runtime.arguments import check_path
from embedkit.runtime.windows import Span
from embedkit.serving.retrieval.documents import Columns, DocumentSource, named_records, to_documents

logger = logging.getLogger("embedkit")

DOCUMENT_SUFFIXES: Final = frozenset({".txt", ".md", ".markdown", ".html", ".htm"})

_SEPARATOR: Final = " > "
_NAMED: Final = 5  # kinds of other files in the log

FIELDS: Final = ("id", "document", "section", "start", "end")
"""What each window has besides its text."""


@runtime_checkable
class Splitter(Protocol):
    """The method of an encoder that divides texts: :meth:`embedkit.Encoder.windows`."""

    def windows(self, texts: list[str], /, *, max_tokens: int | None, overlap: int, role: Any) -> list[list[Span]]:
        """Divide texts into windows, as characters."""


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of a document, its text, below some headings, the outermost of which comes first.

    Attributes:
        places: pairs of a character of ``text`` and its character in the file, ascending; between two, both count
            on alike.
        ends: characters of ``text`` after what is longer in the file, as ``&amp;`` is, and their characters there.
    """

    headings: tuple[str, ...]
    text: str
    places: list[tuple[int, int]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)

    def place(self, character: int) -> int:
        """Return the character in the file of a character of the text."""
        before, start = self.places[bisect.bisect_right(self.places, (character, float("inf"))) - 1]
        return start + character - before

    def end(self, character: int) -> int:
        """Return the character in the file at which the text before a character ends."""
        return self.ends.get(character, self.place(character - 1) + 1)


def is_documents(source: DocumentSource) -> bool:
    """Whether a source is a file of Markdown, HTML or text, or a folder with such files."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    return any(map(_is_document, _files(Path(source))))


def document_names(source: str) -> list[str]:
    """Return the names of the documents in a folder or file, also of those without text; of records none."""
    path = Path(source)
    return [_name(file, path) for file in _files(path) if _is_document(file)]


def split_documents(
    source: DocumentSource,
    encoder: Splitter,
    *,
    max_tokens: int | None = None,
    overlap: int = 0,
    text_column: str = "text",
    id_column: str | None = None,
    skip_empty: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield the windows of documents, as mappings for :meth:`Collection.build`.

    A file of a folder, or a single ``.txt``, ``.md`` or ``.html`` file, is one document. Otherwise each record is
    one: its windows keep its other columns, and ``document`` is its id, or its number from 0. Columns with the
    name of a window's field are replaced, with a warning.

    Args:
        source: a folder or file of documents, or records as for
            :func:`~embedkit.serving.retrieval.documents.named_records`.
        encoder: determines what fits, with its prompt for documents.
        max_tokens: maximum number of tokens of a window; None for as many as fit.
        overlap: maximum number of tokens that consecutive windows of a section share.
        text_column: column of the text in records.
        id_column: column of the id in records; by default ``"id"`` if the first record has it.
        skip_empty: leave out records whose text is null or blank.

    Raises:
        DataError: a file cannot be read or is not UTF-8 text, or a record has no text.
        InputError: a number is out of range, or another argument is invalid.
        MissingExtraError: a file is Markdown, and markdown-it-py is not installed.
    """
    if not isinstance(encoder, Splitter) or isinstance(encoder, type):
        raise InputError(f"encoder must be an Encoder, not {shown(encoder)}")
    columns = Columns(text=text_column, id=id_column, skip_empty=skip_empty)
    if text_column in FIELDS:
        raise InputError(
            f"text_column: {text_column!r} is a field of windows; rename the column", parameters=["text_column"]
        )
    if isinstance(source, (str, os.PathLike)):
        check_path(source, "source")
    are_files = is_documents(source)
    if not are_files and isinstance(source, (str, os.PathLike)) and Path(source).is_dir():
        raise DataError(f"{source} has no text, Markdown or HTML: .txt, .md, .markdown, .html or .htm files")
    documents = _documents(Path(str(source))) if are_files else _records(source, columns)
    replaced: set[str] = set()
    for document, facts, sections in documents:
        if new := [name for name in FIELDS if name in facts and name not in replaced]:
            replaced.update(new)
            logger.warning(
                "windows replace the columns %s of documents; rename these to keep them", ", ".join(new)
            )
        number = 0
        windows = encoder.windows(
            [section.text for section in sections], max_tokens=max_tokens, overlap=overlap, role="document"
        )
        for section, spans in zip(sections, windows, strict=True):
            for start, stop in spans:
                yield {
                    **facts,
                    "id": f"{document}#{number}",
                    text_column: section.text[start:stop],
                    "document": document,
                    "section": _SEPARATOR.join(section.headings),
                    "start": section.place(start),
                    "end": section.end(stop),
                }
                number += 1
        if not number:
            logger.warning("%s has no text", document)


_Documents = Iterator[tuple[str, Mapping[str, Any], list[_Section]]]
"""Name, metadata and sections of each document."""


def _documents(path: Path) -> _Documents:
    others: Counter[str] = Counter()
    for file in _files(path):
        if _is_document(file):
            yield _name(file, path), {}, _READERS[file.suffix.lower()](_read(file))
        else:
            others[file.suffix or file.name] += 1
    if others:
        named = ", ".join(f"{count:,} {kind}" for kind, count in others.most_common(_NAMED))
        logger.info("%s: left out files that are not text, Markdown or HTML: %s", path, named)


def _files(path: Path) -> Iterable[Path]:
    return _visible_files(path) if path.is_dir() else [path]


def _name(file: Path, source: Path) -> str:
    return file.name if file == source else file.relative_to(source).as_posix()


def _is_document(path: Path) -> bool:
    return path.suffix.lower() in DOCUMENT_SUFFIXES


def _records(source: DocumentSource, columns: Columns) -> _Documents:
    for document in to_documents(named_records(source), columns):
        yield document.id, document.metadata or {}, _sections_of_text(document.text)


def _visible_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, sorted, except hidden ones."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and path.is_file():
            yield path


def _read(path: Path) -> str:
    """Return a file's text, with the line ends of the file, so that characters can be counted."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _sections_of_text(text: str) -> list[_Section]:
    return [_Section((), text, [(0, 0)])]


# Markdown

_LINE_END: Final = re.compile(r"\r\n|\n|\r")
_FRONT_MATTER: Final = re.compile(
    r"""---[ \t]*\r?\n(?=["'\w.-]+[ \t]*:).*?^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)""", re.DOTALL | re.MULTILINE
)  # begins with a key of YAML: a document may also begin with a rule


def _sections_of_markdown(text: str) -> list[_Section]:
    """Divide at the headings of the document itself; those inside of quotes and lists belong to their section.

    Front matter, which Markdown would read as a heading, is a section of its own.
    """
    markdown = require("markdown_it", extra="documents").MarkdownIt()
    front = _FRONT_MATTER.match(text)
    start = front.end() if front else 0
    lines = [start, *(match.end() for match in _LINE_END.finditer(text, start)), len(text)]
    tokens = markdown.parse(text[start:])
    headings: list[str] = []
    sections = [_slice(text, 0, start, headings)]
    for token, inline in itertools.pairwise(tokens):
        if token.type != "heading_open" or token.level or token.map is None:
            continue
        first, end = (lines[min(line, len(lines) - 1)] for line in token.map)
        sections.append(_slice(text, start, first, headings))
        headings = _below(headings, int(token.tag[1:]), _plain(inline))
        start = end
    sections.append(_slice(text, start, len(text), headings))
    return [section for section in sections if section.text.strip()]


def _slice(text: str, start: int, end: int, headings: Iterable[str]) -> _Section:
    return _Section(tuple(filter(None, headings)), text[start:end], [(0, start)])


def _below(headings: list[str], level: int, title: str) -> list[str]:
    """Return the headings above a section, "" for levels that are left out."""
    outer = headings[: level - 1]
    return [*outer, *[""] * (level - 1 - len(outer)), title]


_SPACES: Final = frozenset({"softbreak", "hardbreak"})


def _plain(inline: Any) -> str:
    """Return the text of a heading without markup."""
    parts = (
        " " if child.type in _SPACES else child.content
        for child in inline.children or ()
        if child.type != "html_inline"
    )
    return " ".join("".join(parts).split())


# HTML

_HEADINGS: Final = {f"h{level}": level for level in range(1, 7)}
_UNSEEN: Final = frozenset({"title", "script", "style", "template", "noscript", "svg", "math", "iframe", "object"})
_CELLS: Final = frozenset({"td", "th"})
_LINES: Final = frozenset({"br", "tr", "li", "dt", "dd", "option"})
_PARAGRAPHS: Final = frozenset(
    {"address", "article", "aside", "blockquote", "body", "caption", "details", "dialog", "div", "dl", "fieldset"}
    | {"figcaption", "figure", "footer", "form", "header", "hr", "legend", "main", "nav", "ol", "p", "pre"}
    | {"section", "summary", "table", "tbody", "tfoot", "thead", "ul"}
)


def _sections_of_html(text: str) -> list[_Section]:
    reader = _HtmlReader(text)
    reader.feed(f"{text}\n")  # Python's parser drops the & of a reference that ends the file
    reader.close()
    return reader.sections()


class _HtmlReader(HTMLParser):
    """Collects the text of a file that is seen, with its places there."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=False)
        self._source = source
        self._lines = [0, *(match.end() for match in re.finditer("\n", source))]
        self._headings: list[str] = []
        self._sections: list[_Section] = []
        self._parts: list[str] = []
        self._places: list[tuple[int, int]] = []
        self._ends: dict[int, int] = {}
        self._length = 0
        self._unseen: list[str] = []
        self._level = 0  # of the heading that is being read
        self._heading: list[str] = []
        self._preformatted = 0

    def sections(self) -> list[_Section]:
        """Return the sections with text."""
        self._end_heading()
        self._end_section()
        return self._sections

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _UNSEEN:
            self._unseen.append(tag)
        if self._unseen:
            return
        if tag in _HEADINGS or tag in _PARAGRAPHS:
            self._end_heading()
        if tag in _HEADINGS:
            self._end_section()
            self._level = _HEADINGS[tag]
            return
        self._preformatted += tag == "pre"
        self._break(tag)
        if tag == "img":
            alt = next((value or "" for name, value in attrs if name == "alt"), "")
            self._add(alt, self.get_starttag_text())

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _UNSEEN:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if self._unseen:
            if tag in self._unseen:
                del self._unseen[self._unseen.index(tag) :]
        elif tag in _HEADINGS:
            self._end_heading()
        else:
            self._preformatted -= tag == "pre" and self._preformatted > 0
            self._break(tag)

    def handle_data(self, data: str) -> None:
        self._add(data)

    def handle_entityref(self, name: str) -> None:
        self._add_reference(f"&{name}")

    def handle_charref(self, name: str) -> None:
        self._add_reference(f"&#{name}")

    def parse_marked_section(self, i: int, report: bool = True) -> int:  # noqa: FBT001, FBT002 - Python's
        """Take a marked section for a comment, as a browser does; Python's parser raises AssertionErrors."""
        return self.parse_bogus_comment(i, report)

    def _add_reference(self, written: str) -> None:
        """Add a character reference; many a ``&`` in a text or a link is none, and has no semicolon."""
        is_ended = self._source.startswith(";", self._place() + len(written))
        written += ";" * is_ended
        self._add(unescape(written), written)

    def _place(self) -> int:
        line, column = self.getpos()
        return self._lines[line - 1] + column

    def _add(self, data: str, written: str | None = None) -> None:
        """Add text as a browser shows it, in which white space is one space; the file may have it ``written``."""
        if self._unseen or not data:
            return
        if self._level:
            self._heading.append(data)
            return
        place = self._place()
        for match in re.finditer(r"\s+|\S+", data):
            part = match[0]
            if part.isspace() and not self._preformatted:
                if not self._parts or self._parts[-1][-1].isspace():
                    continue
                part = " "
            self._append(part, place + match.start())
        if written is not None:
            self._ends[self._length] = place + len(written)

    def _append(self, part: str, place: int) -> None:
        self._places.append((self._length, place))
        self._parts.append(part)
        self._length += len(part)

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
            self._ends.pop(self._length, None)
            self._length -= len(self._parts.pop())
            self._places.pop()
        self._append(mark, self._place())

    def _end_heading(self) -> None:
        if self._level:
            title = " ".join("".join(self._heading).split())
            self._headings = _below(self._headings, self._level, title)
            self._level, self._heading = 0, []

    def _end_section(self) -> None:
        text = "".join(self._parts)
        if text.strip():
            self._sections.append(_Section(tuple(filter(None, self._headings)), text, self._places, self._ends))
        self._parts, self._places, self._ends, self._length = [], [], {}, 0


_READERS: Final[Mapping[str, Callable[[str], list[_Section]]]] = {
    ".txt": _sections_of_text,
    ".md": _sections_of_markdown,
    ".markdown": _sections_of_markdown,
    ".html": _sections_of_html,
    ".htm": _sections_of_html,
}
