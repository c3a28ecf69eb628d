"""Synchronisation of a collection with folders of documents.

A collection records the *roots* of its documents: folders, each with a label. A document is named by the path of
its file below its root, after the root's label and a colon, as ``handbook:guide/install.md``. The folder of a
collection that was built from a single one has no label. A file below two roots belongs to the inner one, so it is
the same document whether it is given alone, with its folder, or with a folder above.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from embedkit.errors import DataError, InputError, shown
from embedkit.protocols import TextEncoder
from embedkit.runtime.arguments import check_path
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.filters import Comparison
from embedkit.serving.retrieval.models import Root
from embedkit.serving.retrieval.pages import Page
from embedkit.serving.retrieval.sources import Source
from embedkit.serving.retrieval.splitting import (
    Splitter,
    is_text_source,
    page_windows,
    read_pages,
    warn_of_replaced,
)
from embedkit.serving.retrieval.store.protocol import Store

logger = logging.getLogger("embedkit")

_WINDOW_ID: Final = re.compile(r"#[0-9]+\Z")
_COLON: Final = ":"
_HERE: Final = "./"


class Synced(NamedTuple):
    """Result of a synchronisation, in documents: files, or records that were divided.

    Attributes:
        added: new ones.
        updated: changed ones.
        removed: those that are gone, or have no text any more.
        unchanged: those whose windows were equal.
        unreadable: files that were left out; windows that they had before remain.
    """

    added: int = 0
    updated: int = 0
    removed: int = 0
    unchanged: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class NamedPage:
    """A page and the name of its document; None for a file that cannot be read."""

    name: str
    page: Page | None
    max_tokens: int | None = None
    overlap: int = 0


def absolute_paths(folders: Any) -> list[Path]:
    """Check folders and files of text, and return their absolute paths.

    Raises:
        InputError: these are not paths, or there are none.
        DataError: one does not exist, or holds no text.
    """
    listed = [folders] if isinstance(folders, (str, os.PathLike)) else folders
    if not isinstance(listed, (list, tuple)) or not listed:
        raise InputError(f"folders: expected a path or a list of paths, got {shown(folders)}")
    paths = [Path(check_path(one, "folders")) for one in listed]
    for path in paths:
        if not path.exists():
            raise DataError(f"there is no file or folder {path}")
        if not is_text_source(path):
            raise DataError(f"{path} is neither a folder nor a file of text, Markdown or HTML")
    return [path.resolve() for path in paths]


class Roots:
    """The roots of a collection, and the names of files below them."""

    def __init__(self, roots: Sequence[Root]) -> None:
        self.all = tuple(roots)

    def of(self, path: Path) -> Root | None:
        """Return the innermost root that holds an absolute path, or is it."""
        holding = [root for root in self.all if path.is_relative_to(root.path)]
        return max(holding, key=lambda root: len(root.path), default=None)

    def pages(self, paths: Sequence[Path], *, strict: bool, follow_links: bool) -> Iterator[NamedPage]:
        """Yield the pages in folders, or of files, below a root."""
        for path in paths:
            for file, page in read_pages(path, strict=strict, follow_links=follow_links):
                root = self.of(file)
                assert root is not None
                yield NamedPage(self._name(file, root), page, root.max_tokens, root.overlap)

    @staticmethod
    def _name(file: Path, root: Root) -> str:
        path = file.relative_to(root.path).as_posix()
        if root.label:
            return f"{root.label}{_COLON}{path}"
        return _HERE + path if _COLON in path else path

    def path(self, document: str) -> Path | None:
        """Return the file of a document, or None if it is below no root."""
        label, colon, path = document.partition(_COLON)
        if document.startswith(_HERE) or not colon:
            label, path = "", document.removeprefix(_HERE)
        root = next((root for root in self.all if root.label == label), None)
        return None if root is None else Path(root.path, path)

    def below(self, paths: Sequence[Path], documents: Iterable[str]) -> list[str]:
        """Return the documents whose files are below some folders, or are they."""
        files = [(document, self.path(document)) for document in documents]
        return [name for name, file in files if file is not None and any(map(file.is_relative_to, paths))]

    def with_paths(
        self, paths: Sequence[Path], documents: Mapping[str, Any], *, max_tokens: int | None, overlap: int | None
    ) -> Roots:
        """Return the roots with those that hold some absolute paths, and the settings of windows below these.

        A folder becomes a root, and for a file its folder. A root that is gone has moved to a new folder of the
        same name. A root without label is a single one for a new collection, or holds some of its ``documents``.
        """
        roots = self
        for path in paths:
            if roots.of(path) is None:
                folder = path if path.is_dir() else path.parent
                roots = roots._with(folder, documents, is_single=len(paths) == 1)
            root = roots.of(path)
            assert root is not None
            new = dataclasses.replace(
                root,
                max_tokens=root.max_tokens if max_tokens is None else max_tokens,
                overlap=root.overlap if overlap is None else overlap,
            )
            roots = Roots([new if other is root else other for other in roots.all])
        return roots

    def _with(self, folder: Path, documents: Iterable[str], *, is_single: bool) -> Roots:
        for root in self.all:
            if Path(root.path).name == folder.name and not Path(root.path).exists():
                moved = dataclasses.replace(root, path=str(folder))
                return Roots([moved if other is root else other for other in self.all])
        alone = Roots([Root(label="", path=str(folder))])
        files = list(filter(None, map(alone.path, documents)))
        if not self.all and (any(map(Path.exists, files)) if files else is_single):
            return alone
        name, labels = folder.name.replace(_COLON, "-") or "root", {root.label for root in self.all}
        numbered = [name, *(f"{name}-{number}" for number in range(2, len(labels) + 2))]
        label = next(label for label in numbered if label not in labels)
        return Roots([*self.all, Root(label=label, path=str(folder))])


def new_windows(
    folders: Any,
    encoder: Splitter,
    *,
    max_tokens: int | None = None,
    overlap: int | None = None,
    strict: bool = False,
    follow_links: bool = False,
) -> tuple[Roots, Iterator[dict[str, Any]]]:
    """Return the roots of a new collection of folders, and its windows as mappings."""
    paths = absolute_paths(folders)
    roots = Roots(()).with_paths(paths, {}, max_tokens=max_tokens, overlap=overlap)
    changes = Changes(lambda ids: [None] * len(ids), {})
    pages = roots.pages(paths, strict=strict, follow_links=follow_links)
    documents = changes.windows(pages, encoder, ())
    return roots, ({**(one.metadata or {}), "id": one.id, "text": one.text} for one in documents)


@dataclass(slots=True)
class StoredWindows:
    """The windows of a document in a collection: the largest number, and the sum of their digests."""

    last: int = -1
    digest: int = 0

    def ids(self, document: str) -> list[str]:
        """Return the ids that the windows may have."""
        return [f"{document}#{number}" for number in range(self.last + 1)]


def stored_windows(store: Store) -> dict[str, StoredWindows]:
    """Return the windows of each divided document in a collection, by its name."""
    found: dict[str, StoredWindows] = {}
    for document in store.find([Comparison("document", "exists", value=True)]):
        if name := window_of(document):
            stored = found.setdefault(name, StoredWindows())
            stored.last = max(stored.last, int(document.id[len(name) + 1 :]))
            stored.digest += _digest(document)
    return found


def window_of(document: Document) -> str | None:
    """Return the name of the document of which this is a window, or None."""
    name, _, number = document.id.rpartition("#")
    is_number = number == "0" or (
        number.isascii() and number.isdecimal() and number[0] != "0" and len(number) < 18
    )
    return name if is_number and (document.metadata or {}).get("document") == name else None


def _digest(document: Document) -> int:
    content = json.dumps([document.id, document.text, document.metadata], sort_keys=True)
    return int.from_bytes(hashlib.blake2b(content.encode(), digest_size=16).digest(), "big")


@dataclass(slots=True)
class Changes:
    """Compares pages with the windows that a collection has.

    Attributes:
        get: returns documents of the collection by their ids.
        stored: the windows of each document in the collection.
        gone: ids of windows to delete, complete when all pages are read.
        reuse: id of a new window -> id of a stored one with the same content.
        counts: the fields of :class:`Synced`.
    """

    get: Callable[[Sequence[str]], Sequence[Document | None]]
    stored: Mapping[str, StoredWindows]
    gone: list[str] = field(default_factory=list)
    reuse: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Synced._fields, 0))

    def windows(
        self, pages: Iterable[NamedPage], encoder: Splitter, expected: Sequence[str]
    ) -> Iterator[Document]:
        """Yield the windows of new and changed documents; ``expected`` ones that have no page are gone."""
        seen, replaced = set[str](), set[str]()
        for one in pages:
            if one.name in seen:
                continue  # in two of the folders
            seen.add(one.name)
            if one.page is None:
                self.counts["unreadable"] += 1
                continue
            warn_of_replaced(one.page.fields, replaced)
            parts = page_windows(one.name, one.page, encoder, max_tokens=one.max_tokens, overlap=one.overlap)
            yield from self._changed(one.name, [_as_document(text, window) for text, window in parts])
        for name in expected:
            if name not in seen:
                self._remove(name)

    def _changed(self, name: str, windows: list[Document]) -> list[Document]:
        """Return the windows of a document if they are to be written."""
        stored = self.stored.get(name)
        if not windows:
            logger.warning("%s has no text", name)
            if stored is not None:
                self._remove(name)
            return []
        if stored is None:
            self._refuse_others(name, windows)
            self.counts["added"] += 1
            return windows
        if stored.last == len(windows) - 1 and stored.digest == sum(map(_digest, windows)):
            self.counts["unchanged"] += 1
            return []
        ids = stored.ids(name)
        by_content = {document.content: document.id for document in self.get(ids) if document is not None}
        self.reuse |= {one.id: by_content[one.content] for one in windows if one.content in by_content}
        self.gone += ids[len(windows) :]
        self.counts["updated"] += 1
        return windows

    def _remove(self, name: str) -> None:
        self.gone += self.stored[name].ids(name)
        self.counts["removed"] += 1

    def _refuse_others(self, name: str, windows: Sequence[Document]) -> None:
        for document in self.get([window.id for window in windows]):
            if document is not None:
                raise DataError(
                    f"the collection has a document {document.id!r} that is not a window of {name!r}; rename one"
                )


def sync_folders(
    store: Store,
    encoder: TextEncoder,
    paths: Sequence[Path],
    *,
    max_tokens: int | None,
    overlap: int | None,
    remove: bool,
    strict: bool,
    follow_links: bool,
    show_progress_bar: bool | None,
) -> Synced:
    """Bring a collection in step with folders, as :meth:`Collection.sync` says."""
    if not isinstance(encoder, Splitter):
        raise InputError(f"{encoder.name} does not divide texts; it has no method windows")
    encoder.windows(["a"], max_tokens=max_tokens, overlap=overlap or 0, role="document")  # or an InputError
    stored = stored_windows(store)
    roots = Roots(store.info.roots).with_paths(paths, stored, max_tokens=max_tokens, overlap=overlap)
    if roots.all != store.info.roots:
        store.keep_roots(roots.all)
    expected = roots.below(paths, stored) if remove else []
    pages = roots.pages(paths, strict=strict, follow_links=follow_links)
    return write_pages(store, encoder, encoder, pages, stored, expected, show_progress_bar=show_progress_bar)


def write_pages(
    store: Store,
    encoder: TextEncoder,
    splitter: Splitter,
    pages: Iterable[NamedPage],
    stored: Mapping[str, StoredWindows],
    expected: Sequence[str] = (),
    *,
    show_progress_bar: bool | None = None,
) -> Synced:
    """Write the windows of new and changed pages in one write, and remove ``expected`` documents without a page.

    ``splitter`` divides texts, and ``encoder`` embeds the windows; most encoders do both.
    """
    changes = Changes(store.get, stored)
    documents = changes.windows(pages, splitter, expected)
    first = next(documents, None)
    if first is not None:
        source = Source(itertools.chain([first], documents), reuse=changes.reuse)
        store.upsert(source, encoder, merge=True, show_progress_bar=show_progress_bar, delete=changes.gone)
    elif changes.gone:
        store.delete(changes.gone)
    return Synced(**changes.counts)


def apart_from_windows(store: Store, documents: Iterable[Document]) -> Iterator[Document]:
    """Yield documents to be written; DataError for one with the id of a window of another document."""
    for document in documents:
        if _WINDOW_ID.search(document.id):
            (old,) = store.get([document.id])
            if old is not None and window_of(old) not in (None, window_of(document)):
                raise DataError(
                    f"the id {document.id!r} is that of a window of {window_of(old)!r}; choose another"
                )
        yield document


def _as_document(text: str, window: dict[str, Any]) -> Document:
    return Document(window.pop("id"), text, window)
