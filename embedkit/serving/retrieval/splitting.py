"""Long documents as sections and windows: folders of text, Markdown and HTML, and long texts in records.

A window is a part of one section that the model encodes without truncation. It keeps its document, the headings
above it, and, except in HTML, its characters in the file, so a hit can be found there::

    {"id": "guide/install.md#3", "text": "...", "document": "guide/install.md", "section": "Install > GPUs",
     "start": 1204, "end": 1837}

The title of a page and the fields of its front matter are further fields of its windows. The embedded text is the
window below its title and headings (see :attr:`~embedkit.serving.retrieval.documents.Document.content`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from embedkit.errors import DataError, InputError, shown
from embedkit.runtime.arguments import check_flag, check_path
from embedkit.runtime.token_ids import Span
from embedkit.serving.retrieval.documents import (
    Columns,
    DocumentSource,
    heading_of,
    named_records,
    to_documents,
)
from embedkit.serving.retrieval.pages import SUFFIXES, Page, find_text_files, is_text_file, read_page, read_text

logger = logging.getLogger("embedkit")

_SEPARATOR: Final = " > "

NAMES: Final = ("id", "document", "section")
"""Metadata of each window, by which `sync` finds it."""

FIELDS: Final = (*NAMES, "start", "end")
"""Metadata of windows of all files but HTML."""


@runtime_checkable
class Splitter(Protocol):
    """The method of an encoder that divides texts: :meth:`embedkit.Encoder.windows`."""

    def windows(
        self,
        texts: list[str],
        /,
        *,
        max_tokens: int | None,
        overlap: int,
        role: Any,
        headings: list[str] | None = None,
    ) -> list[list[Span]]:
        """Divide texts into windows, as characters."""


def split_documents(
    source: DocumentSource,
    encoder: Splitter,
    *,
    max_tokens: int | None = None,
    overlap: int = 0,
    text_column: str = "text",
    id_column: str | None = None,
    skip_empty: bool = False,
    strict: bool = False,
    follow_links: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield the windows of documents, as mappings for :meth:`Collection.build`.

    A file of a folder, or a single ``.txt``, ``.md`` or ``.html`` file, is one document. Otherwise each record is
    one: its windows keep its other columns, and ``document`` is its id, or its number from 0. Columns and fields
    of front matter with the name of a window's field are replaced, with a warning.

    Args:
        source: a folder or file of documents, or records as for
            :func:`~embedkit.serving.retrieval.documents.named_records`.
        encoder: determines what fits, with its prompt for documents.
        max_tokens: maximum number of tokens of a window; None for as many as fit.
        overlap: maximum number of tokens that consecutive windows of a section share.
        text_column: column of the text in records.
        id_column: column of the id in records; by default ``"id"`` if the first record has it.
        skip_empty: leave out records whose text is null or blank.
        strict: whether a file in a folder that cannot be read is an error; otherwise it is left out and logged.
        follow_links: whether to read files outside of the folder to which links in it lead.

    Raises:
        DataError: a file cannot be read or decoded, or a record has no text.
        InputError: a number is out of range, or another argument is invalid.
        MissingExtraError: a file is Markdown, and markdown-it-py is not installed.
    """
    if not isinstance(encoder, Splitter) or isinstance(encoder, type):
        raise InputError(f"encoder must be an Encoder, not {shown(encoder)}")
    columns = Columns(text=text_column, id=id_column, skip_empty=skip_empty)
    reading = {"strict": check_flag(strict, "strict"), "follow_links": check_flag(follow_links, "follow_links")}
    if text_column in FIELDS:
        raise InputError(
            f"text_column: {text_column!r} is a field of windows; rename the column", parameters=["text_column"]
        )
    pages = (
        _folder_pages(Path(str(source)), **reading) if is_text_source(source) else record_pages(source, columns)
    )
    replaced: set[str] = set()
    for name, page in pages:
        warn_of_replaced(page.fields, replaced)
        number = 0
        windows = page_windows(name, page, encoder, max_tokens=max_tokens, overlap=overlap)
        for number, (text, window) in enumerate(windows, 1):  # noqa: B007 - the number of the last
            yield {**window, text_column: text}
        if not number:
            logger.warning("%s has no text", name)


def is_text_source(source: DocumentSource) -> bool:
    """Whether a source is a file of Markdown, HTML or text, or a folder, which must have such files.

    Raises:
        DataError: it is a folder without them.
    """
    if not isinstance(source, (str, os.PathLike)):
        return False
    path = Path(check_path(source, "source"))
    if not path.is_dir():
        return is_text_file(path)
    if not any(map(is_text_file, path.rglob("*"))):
        raise DataError(f"{source} has no text, Markdown or HTML: {', '.join(sorted(SUFFIXES))} files")
    return True


def warn_of_replaced(fields: Mapping[str, Any], replaced: set[str]) -> None:
    """Warn of fields of documents that windows replace, once each."""
    if new := [name for name in FIELDS if name in fields and name not in replaced]:
        replaced.update(new)
        logger.warning("windows replace the columns %s of documents; rename these to keep them", ", ".join(new))


def page_windows(
    document: str, page: Page, encoder: Splitter, *, max_tokens: int | None, overlap: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the text and the fields of each window."""
    paths = [_SEPARATOR.join(section.headings) for section in page.sections]
    windows = encoder.windows(
        [section.text for section in page.sections],
        max_tokens=max_tokens,
        overlap=overlap,
        role="document",
        headings=[heading_of({**page.fields, "section": path}) for path in paths],
    )
    number = 0
    for section, path, spans in zip(page.sections, paths, windows, strict=True):
        for start, stop in spans:
            window: dict[str, Any] = {"id": f"{document}#{number}", "document": document, "section": path}
            if section.start is not None:
                window |= {"start": section.start + start, "end": section.start + stop}
            yield section.text[start:stop], {**page.fields, **window}
            number += 1


def read_pages(path: Path, *, strict: bool, follow_links: bool) -> Iterator[tuple[Path, Page | None]]:
    """Yield the files of text in a folder, or one file, as pages; None for those that cannot be read.

    A single file that cannot be read, and with ``strict`` any, is an error.
    """
    unreadable = 0
    for file in find_text_files(path, follow_links=follow_links):
        try:
            yield file, read_page(file)
        except DataError as error:
            if strict or file == path:
                raise
            logger.warning("left out %s", error)
            unreadable += 1
            yield file, None
    if unreadable:
        logger.warning("left out %s file%s that cannot be read", f"{unreadable:,}", "" if unreadable == 1 else "s")


def _folder_pages(path: Path, *, strict: bool, follow_links: bool) -> Iterator[tuple[str, Page]]:
    for file, page in read_pages(path, strict=strict, follow_links=follow_links):
        if page is not None:
            name = file.name if file == path else file.relative_to(path).as_posix()
            yield f"./{name}" if ":" in name else name, page  # as `sync` names it


def record_pages(source: DocumentSource, columns: Columns) -> Iterator[tuple[str, Page]]:
    """Yield records as pages, named by their ids."""
    for document in to_documents(named_records(source), columns):
        yield document.id, Page(read_text(document.text).sections, document.metadata or {})
