"""A collection in a folder: segments named by a manifest, one writer, any number of readers."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import numpy as np

from embedkit.child import Child
from embedkit.errors import CollectionBusyError, CollectionError, EmbedkitError
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.runtime.numerics import joined
from embedkit.serving.retrieval.documents import Document, DocumentList
from embedkit.serving.retrieval.filters import Condition
from embedkit.serving.retrieval.models import Models, Root
from embedkit.serving.retrieval.sources import ModelIdentity, Source, embeddings_of
from embedkit.serving.retrieval.store import merge as merging
from embedkit.serving.retrieval.store import tail, writer
from embedkit.serving.retrieval.store.index_kinds import checked_kind
from embedkit.serving.retrieval.store.manifest import Manifest
from embedkit.serving.retrieval.store.protocol import MANIFEST, BuildOptions, DocumentsChangedError, Upserted
from embedkit.serving.retrieval.store.segment import Segment
from embedkit.serving.retrieval.store.snapshot import Snapshot
from embedkit.serving.retrieval.store.tail import Record
from embedkit.serving.retrieval.store.writer import Claim, claim, sweeping

_RETRY_S: Final = 0.02
_PATIENCE_S: Final = 10.0

Result = TypeVar("Result")

_MOST_FULL: Final = 4
"""Times as many rows as a full tail has, from which also a small write makes a segment."""


class FolderStore:
    """See :class:`~embedkit.serving.retrieval.store.protocol.Store`; thread-safe.

    Readers see the state before or after a write, never one in between. Threads that write through the same object
    wait for each other; any other concurrent writer gets an error.
    """

    def __init__(self, path: Path, snapshot: Snapshot, models: Models) -> None:
        self.path = path
        self._snapshot, self._models = snapshot, models
        self._one_writer, self._one_refresh = threading.Lock(), threading.Lock()
        self._merged: Segment | None = None
        self._children: set[Child] = set()

    @classmethod
    def build(cls, address: str, source: Source, options: BuildOptions, *, show_progress_bar: bool | None) -> Self:
        """Write documents into a folder; an existing collection is replaced at the end if the options say so."""
        checked_kind(options.index)
        folder = Path(address)
        if not options.replace and (folder / MANIFEST).is_file():
            raise CollectionError(
                f"there is a collection at {folder} already: add to it with `embedkit index add` or "
                "Collection.upsert, or build with --replace (in Python, replace=True)"
            )
        writer.build(folder, source, options, show_progress_bar=show_progress_bar)
        return cls.open(address, Models(options.encoder, options.queries))

    @classmethod
    def open(cls, address: str, models: Models) -> Self:
        """Open the files named by the folder's manifest, comparing their lengths with it."""
        folder = Path(address)
        return cls(folder, Snapshot.latest(folder, models), models)

    @classmethod
    def describe(cls, address: str) -> Manifest:
        """Return the manifest without opening segments."""
        folder = Path(address)
        while True:
            manifest = Manifest.read(folder)
            try:
                return tail.counted(folder, manifest)
            except CollectionError:
                if Manifest.read(folder) == manifest:  # otherwise a write has replaced the tail
                    raise

    @property
    def info(self) -> Manifest:
        return self._snapshot.manifest

    def stats(self) -> dict[str, Any]:
        """Return the actual kinds of index of the segments, and the size of all files."""
        manifest = self.info
        return {
            "index": ", ".join(manifest.kinds) or manifest.index,
            "bytes": sum(checksum.bytes for checksum in manifest.files(self.path).values())
            + (manifest.tail.bytes if manifest.tail else 0),
        }

    def view(self) -> Snapshot:
        return self._snapshot

    def get(self, ids: Sequence[str], /) -> list[Document | None]:
        snapshot = self._snapshot
        rows = snapshot.rows(ids)
        return [snapshot.read(rows[id_]) if id_ in rows else None for id_ in ids]

    def find(self, conditions: Sequence[Condition], /) -> Iterator[Document]:
        return self._snapshot.matching(conditions)

    def embedded(self, ids: Sequence[str], /) -> list[tuple[Document, FloatArray] | None]:
        snapshot = self._snapshot
        rows = snapshot.rows(ids)
        vectors = snapshot.vectors(np.fromiter(rows.values(), np.int64))
        found = {
            id_: (snapshot.read(row), vector) for (id_, row), vector in zip(rows.items(), vectors, strict=True)
        }
        return [found.get(id_) for id_ in ids]

    def keep_roots(self, roots: Sequence[Root], /) -> None:
        with self._writing() as claimed:
            old = self._snapshot.on_disk
            new = dataclasses.replace(old, generation=next(old.next_generations()), roots=tuple(roots))
            claimed.commit(new)

    def upsert(
        self,
        source: Source,
        encoder: TextEncoder,
        *,
        merge: bool,
        show_progress_bar: bool | None,
        delete: Sequence[str] = (),
    ) -> Upserted:
        """Add documents, and delete others, in one write; and optionally merge small segments.

        Documents are read and embedded before the lock is taken. A small write is appended to the tail.
        """
        self.refresh()  # also raises an error for a collection that is gone, before anything is embedded
        first = list(itertools.islice(source.documents, tail.LARGEST_WRITE + 1))
        source = dataclasses.replace(
            source, documents=itertools.chain(first, source.documents), stored=self.embedded
        )
        numerics = source.numerics(encoder)
        is_small = (
            0 < len(first) <= tail.LARGEST_WRITE
            and sum(len(document.text) for document in first) <= tail.LARGEST_BYTES
            and len(delete) <= tail.FULL
            and joined(self.info.numerics, numerics) == self.info.numerics
            and not self._snapshot.has_full_tail(_MOST_FULL)
        )
        if is_small:
            done = self._append(source, encoder, delete, show_progress_bar=show_progress_bar)
        else:
            done = self._add_segment(source, encoder, numerics, delete, show_progress_bar=show_progress_bar)
        if merge and merging.choose_parts(self._snapshot) is not None:
            try:
                self._merge(patience_s=0, show_progress_bar=show_progress_bar)
            except CollectionBusyError:
                pass  # the next write merges
            except EmbedkitError as error:
                raise writer.committed_error(error) from error
        return done

    def _append(
        self, source: Source, encoder: TextEncoder, deleted: Sequence[str], *, show_progress_bar: bool | None
    ) -> Upserted:
        """Append a record to the tail."""
        documents = DocumentList(source.documents)
        lines = tail.lines_of(documents.all)  # an error now and not after they are embedded
        with Progress("encode", len(documents), unit="documents", enabled=show_progress_bar) as progress:
            embeddings = np.concatenate(list(embeddings_of(documents, source, encoder, progress)))
        record = Record(documents.all, lines, embeddings, list(dict.fromkeys(deleted)))
        with self._writing(sweep=False) as claimed:
            self._require(source.replaced)
            replaced = len(self._snapshot.rows([document.id for document in documents.all]))
            with self._one_refresh:
                self._snapshot = writer.append(claimed, self._snapshot, record)
        return Upserted(len(documents) - replaced, replaced)

    def _require(self, replaced: Mapping[str, Document]) -> None:
        """Refuse to replace other documents than those that were read; the collection's lock is needed."""
        if self.get(list(replaced)) != list(replaced.values()):
            raise DocumentsChangedError(f"{self.path}: others changed the same documents; repeat the write")

    def _add_segment(
        self,
        source: Source,
        encoder: TextEncoder,
        numerics: tuple[str, ...],
        deleted: Sequence[str],
        *,
        show_progress_bar: bool | None,
    ) -> Upserted:
        """Add a segment."""
        old = self._snapshot.on_disk
        with (
            writer.staged_upsert(self.path, old, source, encoder, show_progress_bar=show_progress_bar) as (
                files,
                store,
                staged,
            ),
            self._writing() as claimed,
        ):
            self._require(source.replaced)
            return writer.add_segment(
                claimed, self._snapshot, files, store, staged, numerics=numerics, deleted=deleted
            )

    def delete(self, ids: Sequence[str], /) -> int:
        is_large = len(ids) > tail.FULL or self._snapshot.has_full_tail(_MOST_FULL)
        with self._writing(sweep=is_large) as claimed:
            found = sorted(self._snapshot.rows(ids))
            if is_large:
                if found:
                    writer.delete(claimed, self._snapshot, found)
            elif found:
                nothing = np.empty((0, self.info.dimension), np.float32)
                with self._one_refresh:
                    self._snapshot = writer.append(claimed, self._snapshot, Record([], [], nothing, found))
        return len(found)

    def merge(self) -> bool:
        """Merge small segments and a full tail; other writers are excluded only while they are replaced."""
        is_needed = merging.choose_parts(self._snapshot) is not None
        return is_needed and self._merge(patience_s=_PATIENCE_S, show_progress_bar=False)

    def compact(self, *, index: str | None, lexical: bool | None, show_progress_bar: bool | None) -> None:
        """Write all documents into one segment; does nothing if nothing would change.

        Other writers are not blocked, unless the kind of index or lexical indexing changes.
        """
        self.refresh()
        new = self._changed(index=index, lexical=lexical)
        checked_kind(new.index)
        if new == self._snapshot.on_disk:
            options: dict[str, Any] = {"patience_s": math.inf, "show_progress_bar": show_progress_bar}
            while not self._snapshot.is_compact() and not self._merge(everything=True, **options):
                time.sleep(_RETRY_S)  # until another merge has finished
            return
        with self._writing() as claimed, writer.stage(claimed.folder) as files:
            new = self._changed(index=index, lexical=lexical)
            segments = []
            if self.info.count:
                segments.append(
                    writer.stage_parts(
                        files / "all", self._snapshot, slice(None), new, show_progress_bar=show_progress_bar
                    )
                )
            writer.commit(claimed, files, new, segments)

    def _changed(self, *, index: str | None, lexical: bool | None) -> Manifest:
        old = self._snapshot.on_disk
        return dataclasses.replace(
            old, index=old.index if index is None else index, lexical=old.lexical if lexical is None else lexical
        )

    def _merge(self, *, patience_s: float, show_progress_bar: bool | None, everything: bool = False) -> bool:
        """Merge small parts, or everything; concurrent writes wait only while the new files are renamed.

        Returns False if there is nothing to merge, or concurrent writes removed the parts.
        """
        with contextlib.ExitStack() as held:
            with self._retry_writing(patience_s) as claimed:
                before = self._snapshot
                free = merging.first_free(claimed.folder, before.on_disk.segments)
                which = merging.choose_parts(before, free, everything=everything)
                if which is None:
                    return False
                if not sum(before.remaining(which)):
                    writer.delete(claimed, before, [])
                    return True
                taken = dataclasses.replace(before.manifest, segments=before.manifest.segments[which])
                files = held.enter_context(writer.stage(claimed.folder, taken))
            path = files / writer.SEGMENT
            staged = merging.run_merge(
                self.path, path, before, which, self._children, show_progress_bar=show_progress_bar
            )
            if os.name != "nt":  # where mapped files cannot be moved
                self._merged = Segment.open(path, staged.entry, before.manifest.dimension)
            try:
                with self._retry_writing(max(patience_s, _PATIENCE_S)) as claimed:
                    return merging.commit_merge(claimed, files, staged, before, which, self._snapshot)
            finally:
                self._merged = None
                del before  # unmaps the old files, before they are removed

    def refresh(self, claimed: Claim | None = None) -> bool:
        """Open what other processes have written."""
        with self._one_refresh:  # otherwise a slow refresh could replace a newer snapshot
            before = self._snapshot
            self._snapshot = Snapshot.latest(
                self.path, self._models, before, self._merged, claimed.folder if claimed else None
            )
            return self._snapshot is not before

    def verify(self) -> None:
        """Compare the checksum of every file with the manifest, and of every record of the tail with its own."""
        manifest = Manifest.read(self.path)
        for path, checksum in manifest.files(self.path).items():
            checksum.check(path)
        tail.check(self.path, manifest)

    def copy(self, path: Path, /) -> None:
        """Copy the latest state on disk; other writers are excluded only while its files are reserved."""
        with contextlib.ExitStack() as held:
            with self._retry_writing(_PATIENCE_S) as claimed:
                manifest = self._snapshot.manifest
                held.enter_context(writer.stage(claimed.folder, manifest, name=writer.COPYING))
            writer.copy(self.path, manifest, path)

    def sample(self, most: int, /) -> tuple[list[Document], FloatArray]:
        return self._snapshot.sample(most)

    def source(self) -> Source:
        snapshot, info = self._snapshot, self.info
        model = ModelIdentity(info.model, info.fingerprint, info.numerics)
        return Source(snapshot.documents(), snapshot.embeddings, model)

    def close(self) -> None:
        """Kill the processes of merges, which fail; files are unmapped when they are no longer used."""
        for child in list(self._children):
            child.process.kill()

    @contextlib.contextmanager
    def _writing(self, *, sweep: bool = True) -> Iterator[Claim]:
        """Become the only writer, on top of the latest state."""
        with self._one_writer:
            Manifest.read(self.path)  # before acquiring the lock, which would create the folder
            with claim(self.path) as claimed, sweeping(claimed) if sweep else contextlib.nullcontext():
                self.refresh(claimed)
                yield claimed
                if sweep:
                    self.refresh(claimed)

    @contextlib.contextmanager
    def _retry_writing(self, patience_s: float) -> Iterator[Claim]:
        """Become the only writer, after any other one that finishes in time."""
        with contextlib.ExitStack() as held:
            yield retry_while_busy(lambda: held.enter_context(self._writing()), patience_s)


def retry_while_busy(write: Callable[[], Result], patience_s: float) -> Result:
    """Write, waiting for a limited time while another process is writing to the same collection."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return write()
        except CollectionBusyError:
            if time.monotonic() > until:
                raise
            time.sleep(_RETRY_S)
