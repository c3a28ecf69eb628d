"""Pages as sections: plain text, and Markdown with its front matter.

Markdown is read with markdown-it-py. Texts of sections are slices of the file, so they keep their markup.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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


def below(headings: list[str], level: int, title: str) -> list[str]:
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
        headings, level = below(headings, next_level, _plain(inline)), next_level
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
