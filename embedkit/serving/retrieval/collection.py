"""A collection: documents and their embeddings, searched by meaning, wherever they are kept."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

from embedkit.errors import InputError
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.runtime.numerics import warn_of_mixture
from embedkit.serving.retrieval.cascade import Cascade, Steps, search_embeddings
from embedkit.serving.retrieval.documents import Document, DocumentSource
from embedkit.serving.retrieval.embedding import embed_queries
from embedkit.serving.retrieval.filters import Filter, parse_filter
from embedkit.serving.retrieval.fusion import Fusion, fusion_of
from embedkit.serving.retrieval.hits import Hits
from embedkit.serving.retrieval.index_kinds import AUTO
from embedkit.serving.retrieval.manifest import MANIFEST
from embedkit.serving.retrieval.models import SAMPLE, Models, agreement, check_descent
from embedkit.serving.retrieval.rerank import Reranker, checked_reranker
from embedkit.serving.retrieval.sources import EmbeddingSource, Source, read_source
from embedkit.serving.retrieval.store import About, Plan, Store, Upserted, store_class

__all__ = ["Collection", "read_documents_and_embeddings"]


class Collection:
    """Documents found by the meaning of their texts; safe to share between threads.

    Made by :meth:`build` and :meth:`open`::

        Collection.build("docs.jsonl", encoder=encoder, path="idx/")
        collection = Collection.open("idx/", encoder=encoder)
        hits = collection.search("how do bees find home?", k=5)
        collection.upsert([("doc-17", "Bees dance.")])

    ``path`` is a folder, or ``"milvus:URI#NAME"`` for a collection on Milvus. In a folder readers see the state
    before a write or the one after it, never one between; threads that write through the same object wait for
    each other, and any other second writer gets an error.

    With ``queries=`` a second, smaller model of the same space embeds the queries, which makes them cheap.

    Attributes:
        path: where it is kept: the folder's path, or the address.
        store: what keeps it.
    """

    def __init__(self, path: Path | str, store: Store, models: Models) -> None:
        self.path, self.store = path, store
        self._models = models

    @classmethod
    def build(
        cls,
        documents: DocumentSource | Collection,
        *,
        encoder: TextEncoder,
        path: str | os.PathLike[str],
        queries: TextEncoder | None = None,
        embeddings: EmbeddingSource | None = None,
        index: str = AUTO,
        lexical: bool = False,
        text_column: str = "text",
        id_column: str | None = None,
        source: str | None = None,
        queries_source: str | None = None,
        show_progress_bar: bool | None = None,
    ) -> Collection:
        """Embed documents and write them as a collection.

        All documents are read and checked before the first is embedded. Memory does not grow with them but for
        some 30 bytes each. A collection that stands at ``path`` is replaced at the very end, in one step; on
        any error it stays as it was.

        Args:
            documents: path of a ``.jsonl``, ``.csv``, ``.tsv``, ``.txt`` or ``.parquet`` file or of a folder of
                Parquet, an iterable of texts, mappings or ``(id, text)`` pairs, or another collection. Embeddings
                in shards of `embedkit encode` and in collections are taken over.
            encoder: embeds the documents, with ``encode_document`` if it has that.
            path: the collection's folder: new, empty, or a collection to replace.
            queries: another encoder for queries, in the same space: a student of ``encoder``, or of the same
                teacher. None embeds queries with ``encoder``.
            embeddings: of the documents, where they exist: ``(N, D)`` floats or a ``.npy`` file of them, aligned
                by row, or the name of the documents' column. ``encoder`` embeds a sample again to check them.
            index: kind of index: ``"exact"``, ``"flat"``, ``"sq8"``, ``"binary"``, ``"hnsw"``, ``"ivf-pq"``, or
                ``"auto"``, which chooses by size (see :func:`embedkit.serving.retrieval.index_kinds.kind_for`).
            lexical: index words too, for ``search(..., hybrid=True)``; needs bm25s.
            text_column: where records have their text.
            id_column: where records have their id; by default ``"id"`` if the first record has that, else the
                row number from 0 is the id.
            source: where the encoder can be loaded from again, recorded for `embedkit search`.
            queries_source: the same for ``queries``.
            show_progress_bar: None shows progress on a terminal only.

        Raises:
            DataError: a document is malformed or empty, an id is given twice, or there are no documents.
            FingerprintError: ``queries`` and ``encoder`` were not made for each other, or the embeddings that
                exist are another model's.
            InputError: there is no such index, or an item of an iterable is no document.
            CollectionError: ``path`` holds something else, or somebody else is writing there.
            ModelError: the encoder does not give unit rows of its dimension.
            MissingExtraError: the index needs FAISS, or ``lexical`` bm25s, which is not installed.
            StorageError: the disk is full or the folder cannot be written.
        """
        if queries is not None:
            check_descent(queries, encoder.name, encoder.fingerprint, encoder)
        found = read_documents_and_embeddings(documents, embeddings, text_column=text_column, id_column=id_column)
        found.check_maker(encoder)
        plan = Plan(
            encoder=encoder,
            queries=queries,
            index=index,
            lexical=lexical,
            source=source,
            queries_source=queries_source,
        )
        store = store_class(path).build(os.fspath(path), found, plan, show_progress_bar=show_progress_bar)
        models = Models(encoder, queries)
        warn_of_mixture(path, store.about.numerics, models.numerics(store.about))
        return cls(_place(path), store, models)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        encoder: TextEncoder | None = None,
        queries: TextEncoder | None = None,
    ) -> Collection:
        """Open a collection that :meth:`build` made.

        The lengths of all files are compared with the manifest; the checksum too of a file that FAISS is going
        to read. :meth:`verify` compares the checksums of all. A model that computes by another arithmetic than
        the one that the embeddings were made with (:attr:`embedkit.Encoder.numerics`) is logged as a warning.

        Args:
            path: the collection's folder.
            encoder: the model that embedded its documents. It embeds queries too unless ``queries`` is given.
            queries: the model that embeds queries: the one that the collection was built with, the documents'
                own, or a student of it, which first embeds a sample of the documents if the collection does not
                know it. Without either model, search only with :meth:`search_embeddings`.

        Raises:
            CollectionError: there is no collection, or a file of it is missing or damaged; says which.
            FingerprintError: another model embedded the documents, or ``queries`` was not made for them.
            MissingExtraError: its index needs FAISS, which is not installed.
        """
        models = Models(encoder, queries)
        store = store_class(path).open(os.fspath(path), models)
        if queries is not None and store.about.count and not models.is_recorded(store.about):
            documents, embeddings = store.sample(SAMPLE)
            agreement(queries, [document.text for document in documents], embeddings, store.about.model)
        warn_of_mixture(path, store.about.numerics, models.numerics(store.about))
        return cls(_place(path), store, models)

    @classmethod
    def describe(cls, path: str | os.PathLike[str]) -> About:
        """What a collection holds and which models belong to it, without opening it.

        Raises:
            CollectionError: there is no collection.
        """
        return store_class(path).describe(os.fspath(path))

    @property
    def query_encoder(self) -> TextEncoder | None:
        """The model that embeds queries, if the collection was opened with one."""
        return self._models.for_queries()

    @property
    def manifest(self) -> About:
        """What the collection holds and which models belong to it."""
        return self.store.about

    def __len__(self) -> int:
        """The number of documents."""
        return self.store.about.count

    @overload
    def get(self, ids: str, /) -> Document | None: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, ids: Sequence[str], /) -> list[Document | None]: ...
    def get(self, ids: str | Sequence[str], /) -> Document | list[Document | None] | None:
        """The document with this id, or None; for several ids a list of that.

        Raises:
            InputError: an id is not a string.
            CollectionError: a file is damaged.
        """
        wanted = _checked_ids([ids] if isinstance(ids, str) else ids)
        found = self.store.get(wanted)
        return found[0] if isinstance(ids, str) else found

    def upsert(
        self,
        documents: DocumentSource | Collection,
        *,
        embeddings: EmbeddingSource | None = None,
        text_column: str = "text",
        id_column: str | None = None,
        merge: bool = True,
        show_progress_bar: bool | None = None,
    ) -> Upserted:
        """Add documents; one whose id is there already takes the place of the old one, behind all others.

        They come as a segment of their own. Small segments are merged in the same call, now and then, so on
        average an upsert costs what its documents cost. Deleted and replaced ones take up space until they are
        merged or :meth:`compact` is called.

        Args:
            documents: as for :meth:`build`, but with ids.
            embeddings: as for :meth:`build`.
            text_column: where records have their text.
            id_column: where records have their id; by default ``"id"``.
            merge: False leaves merging to :meth:`merge`, so that no upsert takes longer than its documents.
            show_progress_bar: None shows progress on a terminal only.

        Returns:
            how many documents were added and how many replaced.

        Raises:
            InputError: the collection was opened without an encoder, or an item of an iterable is no document.
            DataError: a document is malformed, empty or without an id, an id is given twice, or there are none.
            FingerprintError: somebody has built the collection again with another model, or the embeddings that
                exist are another model's.
            CollectionError: somebody else is writing there, or a file is damaged.
            ModelError: the encoder does not give unit rows of its dimension.
            StorageError: the disk is full or the folder cannot be written.
        """
        encoder = self._documents_encoder()
        found = read_documents_and_embeddings(
            documents, embeddings, text_column=text_column, id_column=id_column, number_rows=False
        )
        found.check_maker(encoder)
        warn_of_mixture(self.path, self.manifest.numerics, found.numerics(encoder))
        return self.store.upsert(found, encoder, merge=merge, show_progress_bar=show_progress_bar)

    def delete(self, ids: str | Iterable[str]) -> int:
        """Delete documents by their ids; ids that are not there are passed over.

        Returns:
            how many documents were deleted.

        Raises:
            InputError: an id is not a string.
            CollectionError: somebody else is writing there, or a file is damaged.
            StorageError: the disk is full or the folder cannot be written.
        """
        wanted = _checked_ids([ids] if isinstance(ids, str) else ids)
        return self.store.delete(wanted)

    def merge(self) -> bool:
        """Merge small segments that upserts have left, if there are any, while others read and write.

        The new segment is written first. Only putting it in the place of the old ones keeps other writers out.

        Returns:
            whether segments were merged; if so, there may be more. A write that took the same segments away
            meanwhile makes it False.

        Raises:
            CollectionError: somebody else is merging or writing there, or a file is damaged.
            StorageError: the disk is full or the folder cannot be written.
        """
        return self.store.merge()

    def compact(
        self, *, index: str | None = None, lexical: bool | None = None, show_progress_bar: bool | None = None
    ) -> None:
        """Write all documents into one segment, without deleted ones, and build its index anew.

        Nothing is embedded again. Does nothing where there is one segment, nothing deleted and nothing to change.

        Args:
            index: another kind of index from now on; None leaves it as it is.
            lexical: whether words are indexed from now on; None leaves it as it is.
            show_progress_bar: None shows progress on a terminal only.

        Raises:
            InputError: there is no such index.
            CollectionError: somebody else is writing there, or a file is damaged.
            MissingExtraError: what is asked for needs a package that is not installed.
            StorageError: the disk is full or the folder cannot be written.
        """
        self.store.compact(index=index, lexical=lexical, show_progress_bar=show_progress_bar)

    def refresh(self) -> bool:
        """See what other processes have written since the collection was opened.

        Returns:
            True if there was something.

        Raises:
            CollectionError: a file is missing or damaged.
            FingerprintError: somebody has built the collection again with another model.
        """
        return self.store.refresh()

    @overload
    def search(  # type: ignore[overload-overlap]
        self,
        query: str,
        k: int = 10,
        *,
        filter: Filter | None = None,
        hybrid: bool | str | Fusion | None = None,
        rerank: Reranker | None = None,
        candidates: int | None = None,
        effort: float = 1.0,
    ) -> Hits: ...
    @overload
    def search(
        self,
        query: Sequence[str],
        k: int = 10,
        *,
        filter: Filter | None = None,
        hybrid: bool | str | Fusion | None = None,
        rerank: Reranker | None = None,
        candidates: int | None = None,
        effort: float = 1.0,
    ) -> list[Hits]: ...
    def search(
        self,
        query: str | Sequence[str],
        k: int = 10,
        *,
        filter: Filter | None = None,
        hybrid: bool | str | Fusion | None = None,
        rerank: Reranker | None = None,
        candidates: int | None = None,
        effort: float = 1.0,
    ) -> Hits | list[Hits]:
        """Find the documents nearest in meaning.

        Args:
            query: a text, or several that are searched for together.
            k: results wanted for each.
            filter: what has to hold for the metadata of documents found, for instance ``{"lang": "en", "year":
                {"gte": 2020}}`` (see `embedkit.serving.retrieval.filters`). The search among the others is exact.
            hybrid: search by words too, and fuse both rankings: True or ``"rrf"`` by their ranks, ``"weighted"``
                by their scores, or a :class:`Fusion`. The collection needs ``lexical=True``.
            rerank: a :class:`CrossEncoder`, which reads query and document together, or another encoder; puts the
                candidates into its own order.
            candidates: documents that a stage hands on to the next; by default 50, but not less than ``k``.
            effort: how many times as much as by itself an index looks at that may miss a neighbour: 2 finds more
                of the true neighbours and takes about twice as long, 0.5 the other way round. Changes nothing
                with ``"exact"`` and ``"flat"`` or a filter, where the search is exact.

        Returns:
            at most ``k`` hits, best first, equal scores in the order of the documents, with the scores and the
            milliseconds of each stage; for several queries one such list each.

        Raises:
            InputError: a query is not a string, ``k`` is below 1, there are fewer candidates than that, the effort
                is not above 0, the filter is malformed or compares a field with a kind of value that it never
                has, or the collection has no words or was opened without an encoder.
            CollectionError: a file is damaged.
        """
        cascade = Cascade(
            fusion=fusion_of(hybrid), reranker=checked_reranker(rerank), candidates=candidates, effort=effort
        )
        found = cascade.search(
            self.store.view(),
            [query] if isinstance(query, str) else query,
            k,
            encoder=self._queries_encoder(),
            conditions=parse_filter(filter or {}),
        )
        return found[0] if isinstance(query, str) else found

    def search_steps(
        self,
        query: str,
        k: int = 10,
        *,
        filter: Filter | None = None,
        hybrid: bool | str | Fusion | None = None,
        rerank: bool = False,
        candidates: int | None = None,
        effort: float = 1.0,
    ) -> Steps:
        """A search for one query whose caller runs the models, so that other work can share their batches.

        Args:
            query: a text.
            k: results wanted.
            filter: as for :meth:`search`.
            hybrid: as for :meth:`search`.
            rerank: whether a re-ranker has the last word.
            candidates: as for :meth:`search`.
            effort: as for :meth:`search`.

        Returns:
            a generator, which yields what the models have to do, is sent the results, and returns a list of one
            :class:`Hits` (see :mod:`embedkit.serving.retrieval.cascade`).

        Raises:
            InputError: the filter is malformed; further errors come out of the generator, as from :meth:`search`.
        """
        cascade = Cascade(fusion=fusion_of(hybrid), candidates=candidates, effort=effort)
        return cascade.steps(self.store.view(), [query], k, parse_filter(filter or {}), rerank=rerank)

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        """Embed queries with the collection's model for queries, with ``encode_query`` if it has that.

        Returns:
            ``(Q, D) float32, unit rows``.

        Raises:
            InputError: a query is not a string, or the collection was opened without an encoder.
        """
        return embed_queries(queries, self._queries_encoder())

    def search_embeddings(
        self, embeddings: FloatArray, k: int = 10, *, filter: Filter | None = None, effort: float = 1.0
    ) -> list[Hits]:
        """Find the documents nearest to embeddings made elsewhere by the same model.

        Args:
            embeddings: ``(Q, D) float32, unit rows``.
            k: results wanted for each.
            filter: as for :meth:`search`.
            effort: as for :meth:`search`.

        Raises:
            InputError: the embeddings have another width or are not finite, ``k`` is below 1, or filter or effort
                is wrong.
            CollectionError: a file is damaged.
        """
        return search_embeddings(self.store.view(), embeddings, k, parse_filter(filter or {}), effort=effort)

    def sample(self, most: int) -> tuple[list[Document], FloatArray]:
        """Documents and their embeddings, evenly spread over the collection.

        Args:
            most: documents wanted, at least 1; all where there are fewer.

        Returns:
            N documents in their order and ``(N, D) float32, unit rows``.

        Raises:
            CollectionError: a file is damaged.
        """
        return self.store.sample(most)

    def verify(self) -> None:
        """Read every file of the collection and compare its checksum with the manifest.

        Raises:
            CollectionError: a file is missing or was changed; says which.
        """
        self.store.verify()

    def close(self) -> None:
        """Let go of connections; a collection in a folder has none."""
        self.store.close()

    def _documents_encoder(self) -> TextEncoder:
        encoder, model = self._models.for_documents(self.manifest), self.manifest.model
        if encoder is None:
            raise InputError(
                f"{self.path} was opened without an encoder for its documents; give "
                f"Collection.open(..., encoder=...) the model that it was built with, {model}"
            )
        return encoder

    def _queries_encoder(self) -> TextEncoder:
        encoder = self._models.for_queries()
        if encoder is None:
            raise InputError(f"{self.path} was opened without an encoder; give Collection.open(..., encoder=...)")
        return encoder


def read_documents_and_embeddings(
    documents: DocumentSource | Collection,
    embeddings: EmbeddingSource | None = None,
    *,
    text_column: str = "text",
    id_column: str | None = None,
    number_rows: bool = True,
) -> Source:
    """Find documents and their embeddings, as :meth:`Collection.build` takes them."""
    if isinstance(documents, (str, os.PathLike)) and _is_collection(documents):
        documents = Collection.open(documents)
    if isinstance(documents, Collection):
        if embeddings is not None:
            raise InputError("embeddings: a collection brings its own; leave them out")
        return documents.store.source()
    return read_source(
        documents, embeddings, text_column=text_column, id_column=id_column, number_rows=number_rows
    )


def _is_collection(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a collection to take documents from; a store has nothing else at its addresses."""
    return isinstance(_place(path), str) or (Path(path) / MANIFEST).is_file()


def _place(path: str | os.PathLike[str]) -> Path | str:
    is_folder = store_class(path) is store_class("")
    return Path(path) if is_folder else os.fspath(path)


def _checked_ids(ids: Iterable[str]) -> list[str]:
    checked = list(ids)
    for id_ in checked:
        if not isinstance(id_, str):
            raise InputError(f"expected strings as ids, got {type(id_).__name__} {id_!r:.80}")
    return checked
