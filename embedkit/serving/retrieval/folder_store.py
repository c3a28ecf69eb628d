"""A collection in a folder: segments that a manifest names, one writer, any number of readers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from embedkit.atomic import flush_folder
from embedkit.errors import CollectionBusyError
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.serving.retrieval import writer
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.generations import claim, claim_merge
from embedkit.serving.retrieval.index_kinds import checked_kind
from embedkit.serving.retrieval.manifest import Manifest, SegmentEntry
from embedkit.serving.retrieval.models import Models
from embedkit.serving.retrieval.segment import Segment, has_columns, words_module
from embedkit.serving.retrieval.snapshot import Snapshot
from embedkit.serving.retrieval.sources import Maker, Source
from embedkit.serving.retrieval.store import Plan, Upserted

__all__ = ["FolderStore"]


class FolderStore:
    """See :class:`~embedkit.serving.retrieval.store.Store`; safe to share between threads.

    Readers see the state before a write or the one after it, never one between. Threads that write through the
    same object wait for each other; any other second writer gets an error.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path, snapshot: Snapshot, models: Models) -> None:
        self.path = path
        self._snapshot, self._models = snapshot, models
        self._one_writer, self._one_refresh = threading.Lock(), threading.Lock()
        self._merged: Segment | None = None

    @classmethod
    def build(cls, address: str, source: Source, plan: Plan, *, show_progress_bar: bool | None) -> Self:
        """Write documents into a folder; a collection that stands there is replaced at the end, in one step.

        Raises:
            CollectionError: the folder holds something else, or somebody else is writing there.
            MissingExtraError: the index or the words need a package that is not installed.
        """
        _check_kinds(plan.index, lexical=plan.lexical)
        folder = Path(address)
        with claim(folder) as generations:
            writer.build(folder, next(generations), source, plan, show_progress_bar=show_progress_bar)
        return cls.open(address, Models(plan.encoder, plan.queries))

    @classmethod
    def open(cls, address: str, models: Models) -> Self:
        """Open what the folder's manifest names; the lengths of all files are compared with it."""
        folder = Path(address)
        return cls(folder, Snapshot.latest(folder, models), models)

    @classmethod
    def describe(cls, address: str) -> Manifest:
        """The manifest; nothing else is opened."""
        return Manifest.read(Path(address))

    @property
    def about(self) -> Manifest:
        """The manifest."""
        return self._snapshot.manifest

    def facts(self) -> dict[str, Any]:
        """Kinds of index that segments really have, and the bytes of all files."""
        manifest = self.about
        return {
            "index": ", ".join(manifest.kinds) or manifest.index,
            "bytes": sum(seal.bytes for seal in manifest.files(self.path).values()),
        }

    def view(self) -> Snapshot:
        """The latest snapshot."""
        return self._snapshot

    def get(self, ids: Sequence[str], /) -> list[Document | None]:
        """The documents with these ids, None where there is none."""
        snapshot = self._snapshot
        rows = [snapshot.find(id_) for id_ in ids]
        return [None if row is None else snapshot.read(row) for row in rows]

    def upsert(
        self, source: Source, encoder: TextEncoder, *, merge: bool, show_progress_bar: bool | None
    ) -> Upserted:
        """Add a segment of new documents, and merge small segments if asked to."""
        with self._writing() as generations:
            done = writer.upsert(
                self.path,
                next(generations),
                self._snapshot,
                source,
                encoder=encoder,
                show_progress_bar=show_progress_bar,
            )
            self.refresh()
            first = writer.tail(self.about.segments) if merge else None
            if first is not None:
                writer.merge(
                    self.path, next(generations), self._snapshot, first, show_progress_bar=show_progress_bar
                )
        return done

    def delete(self, ids: Sequence[str], /) -> int:
        """Mark documents as deleted."""
        with self._writing() as generations:
            found = (self._snapshot.find(id_) for id_ in ids)
            rows = {row for row in found if row is not None}
            if rows:
                writer.remove(self.path, next(generations), self._snapshot, rows)
        return len(rows)

    def merge(self) -> bool:
        """Merge small segments; only putting the new one in their place keeps other writers out."""
        first = writer.tail(self.about.segments)
        return first is not None and self._merge_from(first, show_progress_bar=False)

    def compact(self, *, index: str | None, lexical: bool | None, show_progress_bar: bool | None) -> None:
        """Write all documents into one segment; does nothing where nothing would change.

        Other writers go on meanwhile, unless the kind of index or the words change.
        """
        self.refresh()
        new = self._changed(index=index, lexical=lexical)
        _check_kinds(new.index, lexical=new.lexical)
        if new == self.about and _is_compact(new):
            return
        with contextlib.suppress(CollectionBusyError):  # of another merge, which gives way
            if new == self.about and self._merge_from(0, show_progress_bar=show_progress_bar):
                return
        with self._writing() as generations:
            new = self._changed(index=index, lexical=lexical)
            if new != self.about or not _is_compact(new):
                writer.merge(
                    self.path, next(generations), self._snapshot, 0, new, show_progress_bar=show_progress_bar
                )

    def _changed(self, *, index: str | None, lexical: bool | None) -> Manifest:
        old = self.about
        return dataclasses.replace(
            old, index=index or old.index, lexical=old.lexical if lexical is None else lexical
        )

    def _merge_from(self, first: int, *, show_progress_bar: bool | None) -> bool:
        """Merge the segments from number ``first`` on; False if other writes took them away meanwhile.

        The new files are flushed, checked and mapped before the lock is taken, under which they are only renamed.
        """
        before = self._snapshot
        with claim_merge(self.path) as files:
            if not any(segment.remaining for segment in before.manifest.segments[first:]):
                return False
            entry = writer.write_merged(files, before, first, show_progress_bar=show_progress_bar)
            flush_folder(files)
            self._merged = _open_ahead(files, entry, before)
            try:
                with self._writing() as generations:
                    return writer.adopt(self.path, next(generations), files, entry, before, first, self._snapshot)
            finally:
                self._merged = None

    def refresh(self) -> bool:
        """Open what other processes have written."""
        with self._one_refresh:  # or a slow one would put its older snapshot in the place of a newer
            before = self._snapshot
            if Manifest.read(self.path) == before.manifest:
                return False
            self._snapshot = Snapshot.latest(self.path, self._models, before, self._merged)
            return True

    def verify(self) -> None:
        """Compare the checksum of every file with the manifest."""
        for path, seal in self.about.files(self.path).items():
            seal.check_content(path)

    def sample(self, most: int, /) -> tuple[list[Document], FloatArray]:
        """Documents evenly spread over the collection, and their embeddings."""
        return self._snapshot.sample(most)

    def source(self) -> Source:
        """All documents and embeddings of the latest snapshot."""
        snapshot, about = self._snapshot, self.about
        maker = Maker(about.model, about.fingerprint, about.numerics)
        return Source(snapshot.documents(), snapshot.embeddings, maker)

    def close(self) -> None:
        """Nothing: files are unmapped when nobody reads them."""

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Iterator[str]]:
        """Be the only writer, on top of what others have written before."""
        with self._one_writer:
            Manifest.read(self.path)  # before the lock makes a folder where there is none
            with claim(self.path) as generations:
                self.refresh()
                yield generations
                self.refresh()


def _open_ahead(files: Path, entry: SegmentEntry, snapshot: Snapshot) -> Segment | None:
    """The segment whose files are going to be moved; None on Windows, where mapped files cannot be."""
    return None if os.name == "nt" else Segment(files, entry, snapshot.manifest.dimension)


def _is_compact(manifest: Manifest) -> bool:
    """Whether there is one segment at most, with its columns, and nothing deleted in it."""
    stale = any(segment.deleted or not has_columns(segment) for segment in manifest.segments)
    return len(manifest.segments) <= 1 and not stale


def _check_kinds(index: str, *, lexical: bool) -> None:
    checked_kind(index)
    if lexical:
        words_module()
