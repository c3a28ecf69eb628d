"""A collection in a folder: segments named by a manifest, one writer, any number of readers."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from embedkit.errors import CollectionBusyError, CollectionError
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.runtime.child import Child
from embedkit.serving.retrieval import writer
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.filters import Condition
from embedkit.serving.retrieval.index_kinds import checked_kind
from embedkit.serving.retrieval.lexical import ANALYSIS
from embedkit.serving.retrieval.manifest import Manifest, SegmentEntry
from embedkit.serving.retrieval.models import Models, Root
from embedkit.serving.retrieval.snapshot import Segment, Snapshot, words_module
from embedkit.serving.retrieval.sources import ModelIdentity, Source
from embedkit.serving.retrieval.store import MANIFEST, Plan, Upserted
from embedkit.serving.retrieval.writer import claim, merged, reservations, reserve

_RETRY_S: Final = 0.02
_PATIENCE_S: Final = 10.0

Result = TypeVar("Result")

_Choice = Callable[[Sequence[SegmentEntry], Collection[str]], int | None]
"""Returns the number of the first segment to merge, given all segments and the generations being merged."""


class FolderStore:
    """See :class:`~embedkit.serving.retrieval.store.Store`; thread-safe.

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
    def build(cls, address: str, source: Source, plan: Plan, *, show_progress_bar: bool | None) -> Self:
        """Write documents into a folder; with ``plan.replace``, an existing collection is replaced at the end."""
        _check_kinds(plan.index, lexical=plan.lexical)
        folder = Path(address)
        if not plan.replace and (folder / MANIFEST).is_file():
            raise CollectionError(
                f"there is a collection at {folder} already: add to it with `embedkit index add` or "
                "Collection.upsert, or build with --replace (in Python, replace=True)"
            )
        with claim(folder) as generations:
            writer.build(folder, next(generations), source, plan, show_progress_bar=show_progress_bar)
        return cls.open(address, Models(plan.encoder, plan.queries))

    @classmethod
    def open(cls, address: str, models: Models) -> Self:
        """Open the files named by the folder's manifest, comparing their lengths with it."""
        folder = Path(address)
        return cls(folder, Snapshot.latest(folder, models), models)

    @classmethod
    def describe(cls, address: str) -> Manifest:
        """Return the manifest without opening other files."""
        return Manifest.read(Path(address))

    @property
    def info(self) -> Manifest:
        """The manifest."""
        return self._snapshot.manifest

    def facts(self) -> dict[str, Any]:
        """Return the actual kinds of index of the segments, and the size of all files."""
        manifest = self.info
        return {
            "index": ", ".join(manifest.kinds) or manifest.index,
            "bytes": sum(seal.bytes for seal in manifest.files(self.path).values()),
        }

    def view(self) -> Snapshot:
        """Return the latest snapshot."""
        return self._snapshot

    def get(self, ids: Sequence[str], /) -> list[Document | None]:
        """Return the documents with these ids, None for unknown ids."""
        snapshot = self._snapshot
        rows = [snapshot.find(id_) for id_ in ids]
        return [None if row is None else snapshot.read(row) for row in rows]

    def find(self, conditions: Sequence[Condition], /) -> Iterator[Document]:
        """Yield the documents of the latest snapshot for which all conditions hold."""
        return self._snapshot.matching(conditions)

    def embedded(self, ids: Sequence[str], /) -> list[tuple[Document, FloatArray] | None]:
        """Return the documents with these ids and their embeddings, None for unknown ids."""
        snapshot = self._snapshot
        rows = [snapshot.find(id_) for id_ in ids]
        return [None if row is None else (snapshot.read(row), snapshot.embedding(row)) for row in rows]

    def keep_roots(self, roots: Sequence[Root], /) -> None:
        """Record the folders of the documents."""
        with self._writing() as generations:
            writer.keep(self.path, next(generations), dataclasses.replace(self.info, roots=tuple(roots)))

    def upsert(
        self,
        source: Source,
        encoder: TextEncoder,
        *,
        merge: bool,
        show_progress_bar: bool | None,
        delete: Sequence[str] = (),
    ) -> Upserted:
        """Add a segment of new documents, and optionally merge small segments."""
        with self._writing() as generations:
            done = writer.upsert(
                self.path,
                next(generations),
                self._snapshot,
                source,
                encoder=encoder,
                show_progress_bar=show_progress_bar,
                delete=delete,
            )
            self.refresh()
            first = writer.tail(self.info.segments, self._taken()) if merge else None
            if first is not None:
                writer.merge(
                    self.path, next(generations), self._snapshot, first, show_progress_bar=show_progress_bar
                )
        return done

    def delete(self, ids: Sequence[str], /) -> int:
        """Mark documents as deleted."""
        with self._writing() as generations:
            located = (self._snapshot.find(id_) for id_ in ids)
            rows = {row for row in located if row is not None}
            if rows:
                writer.remove(self.path, next(generations), self._snapshot, rows)
        return len(rows)

    def merge(self) -> bool:
        """Merge small segments; other writers are excluded only while they are replaced."""
        return bool(self._merge(writer.tail, patience_s=_PATIENCE_S, show_progress_bar=False))

    def compact(self, *, index: str | None, lexical: bool | None, show_progress_bar: bool | None) -> None:
        """Write all documents into one segment; does nothing if nothing would change.

        Other writers continue meanwhile, unless the kind of index or lexical indexing changes.
        """
        self.refresh()
        new = self._changed(index=index, lexical=lexical)
        _check_kinds(new.index, lexical=new.lexical)
        if new == self.info:
            options: dict[str, Any] = {"patience_s": math.inf, "show_progress_bar": show_progress_bar}
            while not _is_compact(self.info) and not self._merge(_all, **options):
                time.sleep(_RETRY_S)  # until another merge has finished
            return
        with self._writing() as generations:
            new = self._changed(index=index, lexical=lexical)
            if new != self.info or not _is_compact(new):
                writer.merge(
                    self.path, next(generations), self._snapshot, 0, new, show_progress_bar=show_progress_bar
                )

    def _changed(self, *, index: str | None, lexical: bool | None) -> Manifest:
        old = self.info
        return dataclasses.replace(
            old, index=old.index if index is None else index, lexical=old.lexical if lexical is None else lexical
        )

    def _merge(self, choose: _Choice, *, patience_s: float, show_progress_bar: bool | None) -> bool | None:
        """Merge the segments chosen, beside other writes, which wait only while the new files are renamed.

        Returns None if there is nothing to merge, and False if concurrent writes removed the segments.
        """
        with contextlib.ExitStack() as held:
            with self._writing_patiently(patience_s):
                before = self._snapshot
                first = choose(before.manifest.segments, self._taken())
                if first is None:
                    return None
                taken = dataclasses.replace(before.manifest, segments=before.manifest.segments[first:])
                files = held.enter_context(reserve(self.path, taken))
            segment = files / writer.SEGMENT
            entry = merged(self.path, segment, before, first, self._children, show_progress_bar=show_progress_bar)
            if os.name != "nt":  # where mapped files cannot be moved
                self._merged = Segment(segment, entry, before.manifest.dimension)
            try:
                with self._writing_patiently(patience_s) as generations:
                    return writer.adopt(self.path, next(generations), files, entry, before, first, self._snapshot)
            finally:
                self._merged = None
                del before  # unmaps the old files, before they are removed

    def _taken(self) -> frozenset[str]:
        """Return the generations of segments that are being merged; the collection's lock is needed."""
        manifests = reservations(self.path).values()
        return frozenset(segment.generation for manifest in manifests for segment in manifest.segments)

    def refresh(self) -> bool:
        """Open what other processes have written."""
        with self._one_refresh:  # otherwise a slow refresh could replace a newer snapshot
            before = self._snapshot
            if Manifest.read(self.path) == before.manifest:
                return False
            self._snapshot = Snapshot.latest(self.path, self._models, before, self._merged)
            return True

    def verify(self) -> None:
        """Compare the checksum of every file with the manifest."""
        for path, seal in self.info.files(self.path).items():
            seal.check(path)

    def sample(self, most: int, /) -> tuple[list[Document], FloatArray]:
        """Return documents evenly spaced over the collection, and their embeddings."""
        return self._snapshot.sample(most)

    def source(self) -> Source:
        """Return all documents and embeddings of the latest snapshot."""
        snapshot, info = self._snapshot, self.info
        model = ModelIdentity(info.model, info.fingerprint, info.numerics)
        return Source(snapshot.documents(), snapshot.embeddings, model)

    def close(self) -> None:
        """Kill the processes of merges, which fail; files are unmapped when they are no longer used."""
        for child in list(self._children):
            child.process.kill()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Iterator[str]]:
        """Become the only writer, on top of the latest state."""
        with self._one_writer:
            Manifest.read(self.path)  # before acquiring the lock, which would create the folder
            with claim(self.path) as generations:
                self.refresh()
                yield generations
                self.refresh()

    @contextlib.contextmanager
    def _writing_patiently(self, patience_s: float) -> Iterator[Iterator[str]]:
        """Become the only writer, after any other one that finishes in time."""
        with contextlib.ExitStack() as held:
            yield patiently(lambda: held.enter_context(self._writing()), patience_s)


def patiently(write: Callable[[], Result], patience_s: float) -> Result:
    """Write, waiting for a limited time while another process is writing to the same collection."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return write()
        except CollectionBusyError:
            if time.monotonic() > until:
                raise
            time.sleep(_RETRY_S)


def _all(_: Sequence[SegmentEntry], taken: Collection[str]) -> int | None:
    """Choose all segments, unless some are being merged."""
    return None if taken else 0


def _is_compact(manifest: Manifest) -> bool:
    """Whether there is at most one segment, without deletions, and with words as they are cut now."""
    return len(manifest.segments) <= 1 and not any(
        segment.deleted or (segment.words and segment.words.analysis != ANALYSIS) for segment in manifest.segments
    )


def _check_kinds(index: str, *, lexical: bool) -> None:
    checked_kind(index)
    if lexical:
        words_module()
