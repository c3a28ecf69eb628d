"""HTML as sections: the text that a browser shows.

One regular expression divides the file into tags, comments and text without reading any part of it twice, so the
time is proportional to the length of the file, whatever it holds.
"""

from __future__ import annotations

import re
from collections import Counter
from html import unescape
from typing import Final

from embedkit.serving.retrieval.sections import Page, Section, below

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
    """Collects the text of a file that is seen."""

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
            self._headings = below(self._headings, self._level, title)
            self._level, self._heading = 0, []

    def _end_section(self, next_level: int) -> None:
        """Keep the text since the last heading; without any, the heading, unless the next one is below it."""
        text, headings = "".join(self._parts), tuple(filter(None, self._headings))
        if text.strip():
            self.sections.append(Section(headings, text))
        elif self._last_level >= max(next_level, 1) and self._headings[-1]:
            self.sections.append(Section(headings, self._headings[-1]))
        self._parts = []
