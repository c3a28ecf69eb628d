"""A collection: documents and their embeddings in a folder, searched by meaning."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, overload, runtime_checkable

import numpy as np

from embedkit import __version__
from embedkit.atomic import atomic_folder
from embedkit.errors import CollectionError, FingerprintError, InputError, ModelError
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.serving.retrieval.array_file import map_array, write_array
from embedkit.serving.retrieval.document_store import DocumentStore, write_documents
from embedkit.serving.retrieval.documents import Document, DocumentSource, read_documents
from embedkit.serving.retrieval.generations import claim
from embedkit.serving.retrieval.index_kinds import StoredIndex, index_class
from embedkit.serving.retrieval.manifest import FileSeal, Manifest

__all__ = ["Collection", "Hit"]

_CHUNK = 4096
_VECTORS = "vectors.npy"
_LENGTH_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found.

    Attributes:
        id: the document's id.
        score: cosine of query and document.
        text: the document's text.
        metadata: the other columns of its record, if there are any.
    """

    id: str
    score: float
    text: str
    metadata: dict[str, Any] | None = None


class Collection:
    """Documents in a folder, found by the meaning of their texts; safe to share between threads.

    Made by :meth:`build` and :meth:`open`::

        Collection.build("docs.jsonl", encoder=encoder, path="idx/")
        hits = Collection.open("idx/", encoder=encoder).search("how do bees find home?", k=5)

    Attributes:
        path: the folder.
        manifest: what it holds and which model made it.
    """

    def __init__(self, path: Path, manifest: Manifest, encoder: TextEncoder | None) -> None:
        self.path = path
        self.manifest = manifest
        self._encoder = encoder
        self._index = _load_index(path / manifest.generation, manifest)
        self._documents = DocumentStore(path / manifest.generation, manifest.count)

    @classmethod
    def build(
        cls,
        documents: DocumentSource,
        *,
        encoder: TextEncoder,
        path: str | os.PathLike[str],
        index: str = "exact",
        text_column: str = "text",
        id_column: str | None = None,
        source: str | None = None,
        show_progress_bar: bool | None = None,
    ) -> Collection:
        """Embed documents and write them as a collection.

        All documents are read and checked before the first is embedded. Memory does not grow with them but for
        some 30 bytes each; the index ``"flat"`` holds the embeddings in memory besides. A collection
        that stands at ``path`` is replaced at the very end, in one step; on any error it stays as it was.

        Args:
            documents: path of a ``.jsonl``, ``.csv``, ``.tsv``, ``.txt`` or ``.parquet`` file, or an iterable of
                texts, mappings or ``(id, text)`` pairs.
            encoder: embeds the documents, with ``encode_document`` if it has that.
            path: the collection's folder: new, empty, or a collection to replace.
            index: ``"exact"`` (numpy on a mapped file) or ``"flat"`` (FAISS, in memory); same results.
            text_column: where records have their text.
            id_column: where records have their id; by default ``"id"`` if the first record has that, else the
                row number from 0 is the id.
            source: where the encoder can be loaded from again, recorded for `embedkit search`.
            show_progress_bar: None shows progress on a terminal only.

        Raises:
            DataError: a document is malformed or empty, an id is given twice, or there are no documents.
            InputError: there is no such index, or an item of an iterable is no document.
            CollectionError: ``path`` holds something else, or another process is building there.
            ModelError: the encoder does not give unit rows of its dimension.
            MissingExtraError: the index needs FAISS, which is not installed.
            StorageError: the disk is full or the folder cannot be written.
        """
        kind = index_class(index)
        folder = Path(path)
        records = read_documents(documents, text_column=text_column, id_column=id_column)
        with claim(folder) as generation:
            with atomic_folder(folder / generation) as files:
                count = _write_generation(files, records, encoder, kind, show_progress_bar=show_progress_bar)
                seals = {file.name: FileSeal.of(file) for file in sorted(files.iterdir())}
            Manifest(
                model=encoder.name,
                source=source,
                fingerprint=encoder.fingerprint,
                dimension=encoder.dimension,
                count=count,
                index=index,
                generation=generation,
                files=seals,
                prompts=_prompts(encoder),
                created_by=f"embedkit {__version__}",
            ).write(folder)
        return cls.open(folder, encoder=encoder)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, encoder: TextEncoder | None = None) -> Collection:
        """Open a collection that :meth:`build` made.

        The lengths of all files are compared with the manifest; the checksum too of a file that FAISS is going
        to read. :meth:`verify` compares the checksums of all.

        Args:
            path: the collection's folder.
            encoder: the model that made it; without one, search only with :meth:`search_embeddings`.

        Raises:
            CollectionError: there is no collection, or a file of it is missing or damaged; says which.
            FingerprintError: another model made it.
            MissingExtraError: its index needs FAISS, which is not installed.
        """
        folder = Path(path)
        manifest = Manifest.read(folder)
        while True:
            _check_fingerprint(folder, manifest, encoder)
            try:
                return cls(folder, manifest, encoder)
            except CollectionError:
                # Between the manifest and its files, another process may have put a new generation in place.
                current = Manifest.read(folder)
                if current == manifest:
                    raise
                manifest = current

    def __len__(self) -> int:
        """The number of documents."""
        return self.manifest.count

    def get(self, id_: str, /) -> Document | None:
        """The document with this id, or None.

        Raises:
            CollectionError: a file is damaged.
        """
        row = self._documents.find(id_)
        return None if row is None else self._documents.read(row)

    @overload
    def search(self, query: str, k: int = 10) -> list[Hit]: ...  # type: ignore[overload-overlap]
    @overload
    def search(self, query: Sequence[str], k: int = 10) -> list[list[Hit]]: ...
    def search(self, query: str | Sequence[str], k: int = 10) -> list[Hit] | list[list[Hit]]:
        """Find the documents nearest in meaning.

        Args:
            query: a text, or several that are searched for together.
            k: results wanted for each.

        Returns:
            at most ``k`` hits, best first, equal scores in the order of the documents; for several queries one
            such list each.

        Raises:
            InputError: a query is not a string, ``k`` is below 1, or the collection was opened without an encoder.
            CollectionError: a file is damaged.
        """
        if isinstance(query, str):
            return self.search_embeddings(self.encode_queries([query]), k)[0]
        return self.search_embeddings(self.encode_queries(query), k)

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        """Embed queries with the collection's encoder, with ``encode_query`` if it has that.

        Returns:
            ``(Q, D) float32, unit rows``.

        Raises:
            InputError: a query is not a string, or the collection was opened without an encoder.
        """
        if self._encoder is None:
            raise InputError(f"{self.path} was opened without an encoder; give Collection.open(..., encoder=...)")
        for position, query in enumerate(queries):
            if not isinstance(query, str):
                raise InputError(f"expected strings as queries, got {type(query).__name__} at position {position}")
        if not queries:
            return np.empty((0, self.manifest.dimension), dtype=np.float32)
        if isinstance(self._encoder, PromptingEncoder):
            return self._encoder.encode_query(list(queries), show_progress_bar=False)
        return self._encoder.encode(list(queries))

    def search_embeddings(self, embeddings: FloatArray, k: int = 10) -> list[list[Hit]]:
        """Find the documents nearest to embeddings made elsewhere by the same model.

        Args:
            embeddings: ``(Q, D) float32, unit rows``.
            k: results wanted for each.

        Raises:
            InputError: the embeddings have another width or are not finite, or ``k`` is below 1.
            CollectionError: a file is damaged.
        """
        scores, rows = self._index.search(embeddings, k)
        if not np.isfinite(scores).all():
            raise CollectionError(
                f"{self.path} holds embeddings that are not finite; verify it and build it again"
            )
        return [
            [self._hit(row, score) for row, score in zip(*pair, strict=True)]
            for pair in zip(rows, scores, strict=True)
        ]

    def verify(self) -> None:
        """Read every file of the collection and compare its checksum with the manifest.

        Raises:
            CollectionError: a file is missing or was changed; says which.
        """
        for name, seal in self.manifest.files.items():
            seal.check_content(self.path / self.manifest.generation / name)

    def _hit(self, row: np.int64, score: np.float32) -> Hit:
        document = self._documents.read(int(row))
        return Hit(document.id, float(score), document.text, document.metadata)


@runtime_checkable
class PromptingEncoder(Protocol):
    """An encoder that tells queries from documents, in the words of sentence-transformers."""

    def encode_query(self, texts: Sequence[str], /, *, show_progress_bar: bool | None = None) -> FloatArray:
        """Embed queries: ``(Q, D) float32, unit rows``."""

    def encode_document(self, texts: Sequence[str], /, *, show_progress_bar: bool | None = None) -> FloatArray:
        """Embed documents: ``(N, D) float32, unit rows``."""


def _check_fingerprint(folder: Path, manifest: Manifest, encoder: TextEncoder | None) -> None:
    if encoder is not None and encoder.fingerprint != manifest.fingerprint:
        raise FingerprintError(
            f"{folder} was built with {manifest.model} (fingerprint {manifest.fingerprint[:12]}), not with "
            f"{encoder.name} ({encoder.fingerprint[:12]}): open it with the one, or build it again with the other"
        )


def _load_index(files: Path, manifest: Manifest) -> StoredIndex:
    kind = index_class(manifest.index)
    if manifest.files.keys() != DocumentStore.FILES | {kind.FILE}:
        raise CollectionError(f"{files.parent} is damaged: its manifest names other files than its index has")
    for name, seal in manifest.files.items():
        seal.check_length(files / name)
    if not kind.MAPPED:
        manifest.files[kind.FILE].check_content(files / kind.FILE)
    return kind.load(files / kind.FILE, manifest.count, manifest.dimension)


def _write_generation(
    files: Path,
    documents: Iterable[Document],
    encoder: TextEncoder,
    kind: type[StoredIndex],
    *,
    show_progress_bar: bool | None,
) -> int:
    """Write all files of a generation and return the number of documents."""
    with Progress("read", unit="documents", enabled=show_progress_bar) as progress:
        store = write_documents(files, _counted(documents, progress))
    shape = (len(store), encoder.dimension)
    vectors = files / _VECTORS
    with Progress("encode", len(store), unit="documents", enabled=show_progress_bar) as progress:
        write_array(vectors, shape, "<f4", _embed(store, encoder, progress))
    if vectors.name != kind.FILE:
        kind.build(map_array(vectors, shape, "<f4")).save(files / kind.FILE)
        vectors.unlink()
    return len(store)


def _counted(documents: Iterable[Document], progress: Progress) -> Iterator[Document]:
    for document in documents:
        yield document
        progress.advance()


def _embed(store: DocumentStore, encoder: TextEncoder, progress: Progress) -> Iterator[FloatArray]:
    for start in range(0, len(store), _CHUNK):
        texts = [store.read(row).text for row in range(start, min(start + _CHUNK, len(store)))]
        if isinstance(encoder, PromptingEncoder):
            embeddings = encoder.encode_document(texts, show_progress_bar=False)
        else:
            embeddings = encoder.encode(texts)
        yield _checked(embeddings, (len(texts), encoder.dimension), encoder.name)
        progress.advance(len(texts))


def _checked(embeddings: FloatArray, shape: tuple[int, int], model: str) -> FloatArray:
    if embeddings.shape != shape:
        raise ModelError(f"expected embeddings of shape {shape} from {model}, got {embeddings.shape}")
    lengths = np.linalg.norm(embeddings, axis=1)
    worst = lengths[np.abs(lengths - 1).argmax()]  # NaN counts as the largest
    if not abs(worst - 1) < _LENGTH_TOLERANCE:
        raise ModelError(f"expected unit rows from {model}, got a row of length {worst:.6g}")
    return embeddings


def _prompts(encoder: TextEncoder) -> dict[str, str]:
    prompts = getattr(getattr(encoder, "manifest", None), "prompts", None)
    return dict(prompts) if isinstance(prompts, Mapping) else {}
