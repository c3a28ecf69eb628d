"""A collection: documents and their embeddings, searched by meaning, in any store."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from embedkit.errors import CollectionBusyError, FingerprintError, InputError, shown
from embedkit.protocols import FloatArray, PairScorer, TextEncoder
from embedkit.runtime.arguments import (
    check_choice,
    check_flag,
    check_path,
    check_progress,
    check_text,
    check_texts,
    check_whole,
)
from embedkit.runtime.numerics import warn_of_mixture
from embedkit.serving.retrieval.documents import Columns, Document, DocumentSource
from embedkit.serving.retrieval.embedding import embed_texts
from embedkit.serving.retrieval.filters import Condition, Filter, parse_filter
from embedkit.serving.retrieval.fusion import ANSWER, answer_weight
from embedkit.serving.retrieval.models import (
    SAMPLE,
    CollectionInfo,
    Models,
    agreement,
    loaded,
    source_of,
)
from embedkit.serving.retrieval.search import (
    Encode,
    Hits,
    Reranker,
    Score,
    SearchKeywords,
    SearchOptions,
    Steps,
    rerank_scores,
    search_embeddings,
    search_steps,
)
from embedkit.serving.retrieval.sources import EmbeddingSource, Source
from embedkit.serving.retrieval.splitting import Splitter
from embedkit.serving.retrieval.store.analyzer import LANGUAGES
from embedkit.serving.retrieval.store.exact import checked_queries
from embedkit.serving.retrieval.store.index_kinds import AUTO
from embedkit.serving.retrieval.store.protocol import (
    BuildOptions,
    DocumentsChangedError,
    Store,
    Upserted,
    find_source,
    place_of,
    store_class,
)
from embedkit.serving.retrieval.sync import (
    NamedPage,
    Synced,
    absolute_paths,
    apart_from_windows,
    stored_windows,
    sync_folders,
    write_pages,
)

if TYPE_CHECKING:
    from embedkit.runtime.cross_encoder import CrossEncoder

logger = logging.getLogger(__name__)

_ATTEMPTS = 16  # of an update whose documents others change


class Collection:
    """Documents that are searched by the meaning of their texts; thread-safe.

    Created by :meth:`build` and :meth:`open`::

        Collection.build("docs.jsonl", encoder=encoder, path="idx/")
        collection = Collection.open("idx/", encoder=encoder)
        hits = collection.search("how do bees find home?", k=5)
        collection.upsert([("doc-17", "Bees dance.")])

    ``path`` is a folder, or the address of a database, such as ``"milvus:URI#NAME"``. In a folder, readers see the
    state before or after a write, never one in between; threads that write through the same object wait for each
    other, and any other concurrent writer gets an error.

    With ``queries=``, a smaller model of the same embedding space embeds the queries, which makes them cheap.

    All methods raise a CollectionError if a file is missing or damaged. Those that write also raise one if another
    process is writing there, and a StorageError if the disk is full or the folder cannot be written.

    Attributes:
        path: the folder's path, or the address.
        store: the underlying store.
    """

    def __init__(self, path: Path | str, store: Store, models: Models) -> None:
        self.path, self.store = path, store
        self._models = models
        self._rerankers: dict[str, CrossEncoder] = {}
        self._agreed = ""  # fingerprint of the documents' model with which that of the queries was compared

    @classmethod
    def build(
        cls,
        documents: DocumentSource | Collection,
        *,
        encoder: TextEncoder | str | os.PathLike[str],
        path: str | os.PathLike[str],
        queries: TextEncoder | str | os.PathLike[str] | None = None,
        embeddings: EmbeddingSource | None = None,
        index: str = AUTO,
        lexical: bool = True,
        language: str = AUTO,
        text_column: str = "text",
        id_column: str | None = None,
        metadata_columns: Sequence[str] | None = None,
        skip_empty: bool = False,
        source: str | None = None,
        queries_source: str | None = None,
        replace: bool = False,
        show_progress_bar: bool | None = None,
    ) -> Collection:
        """Embed documents and write them as a collection.

        All documents are read and checked before the first is embedded. Memory use grows by about 30 bytes per
        document, 20 for each distinct word of it, and at the end by the values of the metadata. An existing
        collection at ``path`` is an error unless ``replace``; it is replaced at the very end, atomically.

        Args:
            documents: path of a ``.jsonl``, ``.csv``, ``.tsv``, ``.txt`` or ``.parquet`` file or of a folder of
                Parquet files, an iterable of texts, mappings or ``(id, text)`` pairs, or another collection.
                Embeddings in shards of `embedkit encode` and in collections are reused.
            encoder: embeds the documents, with ``encode_document`` if it has that method; or the name or path of
                an encoder.
            path: the collection's folder: new, empty, or with ``replace`` a collection.
            queries: another encoder for queries, in the same embedding space: a student of ``encoder``, or of the
                same teacher. If None, ``encoder`` embeds queries.
            embeddings: existing embeddings of the documents: ``(N, D)`` floats or a ``.npy`` file, aligned by row,
                or the name of a column. ``encoder`` embeds a sample to verify them.
            index: kind of index: ``"exact"``, ``"sq8"``, ``"hnsw"``, ``"ivf-pq"``, or
                ``"auto"``, which chooses by cost.
            lexical: whether to keep a keyword index, for hybrid search.
            language: the language whose words are stemmed in the keyword index (PyStemmer's names, such as
                ``"german"``), ``"none"``, or ``"auto"``: the languages of the texts, by script and
                frequent words.
            text_column: column of the text in records.
            id_column: column of the id in records; by default ``"id"`` if the first record has it, else ids are
                row numbers from 0.
            metadata_columns: columns of records to keep as metadata; None keeps all others.
            skip_empty: leave out records whose text is null or blank, with their embeddings, and log their number,
                instead of an error.
            source: where the encoder can be loaded from, recorded for :meth:`open` and `embedkit search`; by
                default the place from which it was loaded.
            queries_source: the same for ``queries``.
            replace: whether to replace a collection in this folder; in a database, choose an unused name.
            show_progress_bar: None shows progress only on a terminal.

        Raises:
            DataError: a document is malformed or empty, an id is not unique, or there are no documents.
            FingerprintError: ``queries`` and ``encoder`` do not belong together, or the existing embeddings belong
                to another model.
            InputError: the index does not exist, an item of an iterable is not a document, or another argument is
                invalid.
            ModelNotFoundError: there is no model of this name.
            CollectionError: ``path`` contains a collection or something else, or another process is writing there.
            ModelError: the encoder does not return unit rows of its dimension.
            MissingExtraError: the index needs FAISS, or ``language`` PyStemmer, which is not installed.
        """
        address, shows = check_path(path, "path"), check_progress(show_progress_bar)
        model = loaded(encoder, "encoder")
        models = Models(model, None if queries is None else loaded(queries, "queries"))
        options = BuildOptions(
            encoder=model,
            queries=models.queries,
            index=check_text(index, "index"),
            lexical=check_flag(lexical, "lexical"),
            language=check_choice(language, (AUTO, *LANGUAGES), "language"),
            source=source_of(encoder) if source is None else check_text(source, "source"),
            queries_source=(
                source_of(queries) if queries_source is None else check_text(queries_source, "queries_source")
            ),
            replace=check_flag(replace, "replace"),
        )
        columns = Columns(text=text_column, id=id_column, metadata=metadata_columns, skip_empty=skip_empty)
        contents = find_source(documents, embeddings, columns)
        contents.check_model(model)
        store = store_class(address).build(address, contents, options, show_progress_bar=shows)
        warn_of_mixture(path, store.info.numerics, models.numerics(store.info))
        return cls(place_of(path), store, models)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        encoder: TextEncoder | str | os.PathLike[str] | None = None,
        queries: TextEncoder | str | os.PathLike[str] | None = None,
    ) -> Collection:
        """Open a collection created by :meth:`build`.

        The lengths of all files are compared with the manifest, and the checksums of files that FAISS reads.
        :meth:`verify` compares all checksums. A warning is logged if a model uses another arithmetic than the one
        that created the embeddings (:attr:`embedkit.Encoder.numerics`).

        Args:
            path: the collection's folder.
            encoder: the model that embedded its documents. It also embeds queries unless ``queries`` is given.
            queries: the model that embeds queries: the one that the collection was built with, the documents'
                own, or a student of it. A student that the collection does not name first embeds a sample of the
                documents. Without either model, both are loaded on first use from their recorded place, or by
                their bundled name, never from a network.

        Raises:
            InputError: an argument is invalid.
            CollectionError: there is no collection, or a file is missing or damaged.
            FingerprintError: another model embedded the documents, or ``queries`` does not match them.
            ModelNotFoundError: there is no model of this name.
            MissingExtraError: its index needs FAISS, which is not installed.
        """
        address = check_path(path, "path")
        models = Models(
            None if encoder is None else loaded(encoder, "encoder"),
            None if queries is None else loaded(queries, "queries"),
        )
        store = store_class(address).open(address, models)
        warn_of_mixture(path, store.info.numerics, models.numerics(store.info))
        opened = cls(place_of(path), store, models)
        opened._check_queries()
        return opened

    @classmethod
    def describe(cls, path: str | os.PathLike[str]) -> CollectionInfo:
        """Return the content and the models of a collection, without opening it.

        Raises:
            CollectionError: there is no collection.
        """
        address = check_path(path, "path")
        return store_class(address).describe(address)

    @property
    def query_encoder(self) -> TextEncoder | None:
        """The model that embeds queries, if the collection was opened with one."""
        return self._models.given_for_queries

    @property
    def document_encoder(self) -> TextEncoder | None:
        """The model that embeds documents, if the collection was opened with it or it is on this machine."""
        try:
            return self._models.of_documents(self.path, self.manifest)
        except (InputError, FingerprintError):
            return None

    @property
    def max_length(self) -> int:
        """Number of tokens to which the model of queries cuts texts; raises as :meth:`encode_queries`."""
        return self._models.of_queries(self.path, self.manifest).max_length

    @property
    def manifest(self) -> CollectionInfo:
        """The content and the models of the collection."""
        return self.store.info

    def __repr__(self) -> str:
        info = self.manifest
        facts = f"documents={info.count}, model={info.model!r}, index={info.index!r}"
        return f"Collection({str(self.path)!r}, {facts})"

    def __len__(self) -> int:
        return self.store.info.count

    @overload
    def get(self, ids: str, /) -> Document | None: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, ids: Sequence[str], /) -> list[Document | None]: ...
    def get(self, ids: str | Sequence[str], /) -> Document | list[Document | None] | None:
        """Return the document with this id, or None; for several ids, a list.

        Raises:
            InputError: an id is not a string.
        """
        documents = self.store.get(check_texts(ids, "ids"))
        return documents[0] if isinstance(ids, str) else documents

    def upsert(
        self,
        documents: DocumentSource | Collection | Source,
        *,
        embeddings: EmbeddingSource | None = None,
        text_column: str = "text",
        id_column: str | None = None,
        metadata_columns: Sequence[str] | None = None,
        skip_empty: bool = False,
        merge: bool = True,
        show_progress_bar: bool | None = None,
    ) -> Upserted:
        """Add documents; a document with an existing id replaces the old one, and moves to the end.

        They are embedded before the collection is locked. In a folder, up to 64 documents are appended to one file
        and flushed once; more form a segment. The same call occasionally merges small segments, so that the mean
        cost of an upsert is proportional to its documents; ``merge=False`` leaves that to :meth:`merge`. Deleted
        and replaced documents use space until they are merged or :meth:`compact` is called.

        The other arguments are those of :meth:`build`, but documents need ids.

        Returns:
            the numbers of added and replaced documents, both 0 if there are no documents.

        Raises:
            InputError: there is no encoder of the documents, or an item of an iterable is not a document.
            DataError: a document is malformed, empty or without an id, or an id is not unique.
            FingerprintError: the collection was rebuilt with another model, or the existing embeddings belong to
                another model.
            ModelError: the encoder does not return unit rows of its dimension.
        """
        columns = Columns(
            text=text_column, id=id_column, metadata=metadata_columns, number_rows=False, skip_empty=skip_empty
        )
        merges, shows = check_flag(merge, "merge"), check_progress(show_progress_bar)
        encoder = self._models.of_documents(self.path, self.manifest)
        source = find_source(documents, embeddings, columns)
        source.check_model(encoder)
        first = next(source.documents, None)
        if first is None:
            logger.warning("there are no documents to add to %s; nothing was changed", self.path)
            return Upserted(0, 0)
        kept = apart_from_windows(self.store, itertools.chain([first], source.documents))
        warn_of_mixture(self.path, self.manifest.numerics, source.numerics(encoder))
        source = dataclasses.replace(source, documents=kept)
        return self.store.upsert(source, encoder, merge=merges, show_progress_bar=shows)

    def sync(
        self,
        folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        max_tokens: int | None = None,
        overlap: int | None = None,
        remove: bool = True,
        strict: bool = False,
        follow_links: bool = False,
        show_progress_bar: bool | None = None,
    ) -> Synced:
        """Bring the collection in step with folders of text, Markdown and HTML, in one write.

        Windows of new files are added, those of changed files replaced, and those of files that are gone removed;
        only new texts are embedded. Equal files are recognised by their content. The folders are recorded, so
        files keep their names whichever folder or file is given (see :mod:`embedkit.serving.retrieval.sync`).
        Other documents of the collection are not touched.

        Args:
            folders: a folder, or several; a file stands for itself.
            max_tokens: maximum number of tokens of a window, recorded for these folders; None for the recorded
                value, at first as many as fit.
            overlap: maximum number of tokens that consecutive windows share, in the same way; at first 0.
            remove: whether to remove documents whose files in these folders are gone.
            strict: whether a file that cannot be read is an error; otherwise it is left out, logged and counted.
            follow_links: whether to read files outside of a folder to which links in it lead.
            show_progress_bar: None shows progress only on a terminal.

        Returns:
            the numbers of added, updated, removed, unchanged and unreadable documents.

        Raises:
            InputError: there is no encoder of the documents, it cannot divide texts, or an argument is invalid.
            DataError: a folder does not exist or has no text, or another document has the id of a new window.
            FingerprintError, ModelError: as for :meth:`upsert`.
        """
        return sync_folders(
            self.store,
            self._models.of_documents(self.path, self.manifest),
            absolute_paths(folders),
            max_tokens=None if max_tokens is None else check_whole(max_tokens, "max_tokens"),
            overlap=None if overlap is None else check_whole(overlap, "overlap", least=0),
            remove=check_flag(remove, "remove"),
            strict=check_flag(strict, "strict"),
            follow_links=check_flag(follow_links, "follow_links"),
            show_progress_bar=check_progress(show_progress_bar),
        )

    def write_pages(self, pages: Iterable[NamedPage], splitter: Splitter) -> Synced:
        """Write the windows of new and changed pages, divided by ``splitter``; raises as :meth:`upsert`."""
        encoder = self._models.of_documents(self.path, self.manifest)
        return write_pages(self.store, encoder, splitter, pages, stored_windows(self.store))

    def delete(self, ids: str | Iterable[str] | None = None, *, filter: Filter | None = None) -> int:
        """Delete documents by their ids, of which unknown ones are ignored, or all that a filter selects.

        Returns:
            the number of deleted documents.

        Raises:
            InputError: an id is not a string, not one of both arguments is given, or the filter is malformed or
                names a field that no document has.
        """
        if (ids is None) == (filter is None):
            raise InputError("delete takes either ids or a filter")
        if filter is None:
            return self.store.delete(check_texts(ids, "ids"))
        conditions = parse_filter(filter)
        if not conditions:
            raise InputError("filter: it has no conditions, and would delete all documents")
        self.refresh()
        for warning in self.store.view().select(conditions).warnings:
            raise InputError(warning)
        return self.store.delete([document.id for document in self.store.find(conditions)])

    def find(self, filter: Filter | None = None, *, limit: int | None = None) -> list[Document]:
        """Return the documents that a filter selects, at most ``limit``, in their order.

        Raises:
            InputError: the filter is malformed, or ``limit`` is below 1.
        """
        found = self.store.find(self._warned(parse_filter(filter)))
        return list(
            itertools.islice(found, None if limit is None else min(check_whole(limit, "limit"), sys.maxsize))
        )

    def count(self, filter: Filter | None = None) -> int:
        """Return the number of documents that a filter selects.

        Raises:
            InputError: the filter is malformed.
        """
        conditions = self._warned(parse_filter(filter))
        return sum(1 for _ in self.store.find(conditions)) if conditions else len(self)

    def update(self, metadata: Mapping[str, Mapping[str, Any]], *, merge: bool = True) -> int:
        """Change metadata of documents, which keep their other metadata; nothing is embedded again but titles.

        Args:
            metadata: id of a document -> its new values by field. Unknown ids are ignored.
            merge: as for :meth:`upsert`.

        Returns:
            the number of changed documents.

        Raises:
            InputError: this is no mapping of mappings, or there is no encoder of the documents.
            DataError: a value has no JSON.
        """
        if not isinstance(metadata, Mapping) or not all(isinstance(one, Mapping) for one in metadata.values()):
            raise InputError(f"metadata: expected a mapping from ids to mappings, got {shown(metadata)}")
        ids = check_texts(list(metadata), "metadata")
        for _ in range(_ATTEMPTS):
            self.refresh()
            replaced = {old.id: old for old in self.store.get(ids) if old is not None}
            if not replaced:
                break
            records = [
                {"id": old.id, "text": old.text, **(old.metadata or {}), **metadata[old.id]}
                for old in replaced.values()
            ]
            source = dataclasses.replace(find_source(records), replaced=replaced)
            with contextlib.suppress(DocumentsChangedError):
                return self.upsert(source, merge=merge).replaced
        else:
            raise CollectionBusyError(
                f"{self.path}: others change the same documents all the time; repeat the update"
            )
        return 0

    def _warned(self, conditions: list[Condition]) -> list[Condition]:
        """Return conditions, and log which fields no document has."""
        for warning in self.store.view().select(conditions).warnings:
            logger.warning("%s", warning)
        return conditions

    def merge(self) -> bool:
        """Merge small segments left by upserts, if any, concurrently with readers and writers.

        The new segment is written first. Other writers are excluded only while it replaces the old ones.

        Returns:
            whether segments were merged; if so, there may be more. False if a concurrent write removed the
            segments.
        """
        return self.store.merge()

    def compact(
        self, *, index: str | None = None, lexical: bool | None = None, show_progress_bar: bool | None = None
    ) -> None:
        """Write all documents into one segment, without deleted ones, and rebuild its index.

        Nothing is embedded again. Does nothing if there is a single segment without deletions and nothing changes.
        Other writers are excluded while ``index`` or ``lexical`` change, and otherwise only for a moment.

        Args:
            index: new kind of index; None keeps it.
            lexical: whether to index words from now on; None keeps the setting.
            show_progress_bar: None shows progress only on a terminal.

        Raises:
            InputError: the index does not exist.
            MissingExtraError: the request needs a package that is not installed.
        """
        self.store.compact(
            index=None if index is None else check_text(index, "index"),
            lexical=None if lexical is None else check_flag(lexical, "lexical"),
            show_progress_bar=check_progress(show_progress_bar),
        )

    def refresh(self) -> bool:
        """Make writes of other processes visible.

        Returns:
            True if there were any.

        Raises:
            FingerprintError: the collection was rebuilt with another model.
        """
        changed = self.store.refresh()
        self._check_queries()
        return changed

    def _check_queries(self) -> None:
        """Compare the model of queries with that of the documents, unless the collection names it."""
        info = self.manifest
        if info.fingerprint == self._agreed or not info.count:
            return
        if self._models.queries is not None and not self._models.is_recorded(info):
            documents, embeddings = self.store.sample(SAMPLE)
            texts = [document.content for document in documents]
            agreement(self._models.queries, texts, embeddings, info.model)
        self._agreed = info.fingerprint

    @overload
    def search(self, query: str, k: int = 10, **options: Unpack[SearchKeywords]) -> Hits: ...  # type: ignore[overload-overlap]
    @overload
    def search(self, query: Sequence[str], k: int = 10, **options: Unpack[SearchKeywords]) -> list[Hits]: ...
    def search(
        self, query: str | Sequence[str], k: int = 10, **options: Unpack[SearchKeywords]
    ) -> Hits | list[Hits]:
        """Find the documents that answer a query best.

        Args:
            query: a text, or several that are searched together.
            k: number of results for each.
            options: fields of :class:`~embedkit.serving.retrieval.search.SearchOptions`:

                - ``mode``: ``"dense"`` ranks by meaning, ``"lexical"`` by keywords, and ``"hybrid"``, the default
                  where the collection has a keyword index, fuses both rankings.
                - ``filter``: conditions on the metadata, for example ``{"lang": "en", "year": {"gte": 2020}}``
                  (see `embedkit.serving.retrieval.filters`). A search among few matching documents is exact.
                - ``rerank``: reorders the candidates: a :class:`CrossEncoder`, which reads query and document
                  together; its bundled name or path, loaded by the first search that names it; or another encoder.
                - ``rerank_weight``: weight of the re-ranker's scores in the final order, 0 to 1; the stage before
                  has the rest. By default, a document rises by the probability that a cross-encoder gives it.
                - ``candidates``: number of documents that a stage passes to the next; by default 50, and 30 to
                  the re-ranker, but at least ``k``.
                - ``effort``: factor of the search breadth of an approximate index: 2 finds more of the true
                  neighbours and takes about twice as long, 0.5 the opposite. Has no effect with ``"exact"``.

        Returns:
            at most ``k`` hits, best first, ties ordered by document, with the scores and the milliseconds of each
            stage; for several queries, one such list each.

        Raises:
            InputError: a query is not a string, an option is invalid, the filter compares a field with a kind of
                value that it never has, the mode needs a keyword index that the collection lacks, or the
                collection was opened without an encoder, which is not where the collection recorded it.
            ModelNotFoundError, BundleError, ModelError: the named re-ranker cannot be loaded.
            ModelError: a model does not return a unit row for each query, or a finite score for each candidate.
        """
        reranker = None if options.get("rerank") is None else self._reranker(options["rerank"])
        steps = self.search_steps(query, SearchOptions(k=k, **options | {"rerank": reranker}))
        step = next(steps)
        while isinstance(step, (Encode, Score)):
            if isinstance(step, Encode):
                model = self._models.of_queries(self.path, self.manifest)
                step = steps.send(embed_texts(step.queries, model, queries=True))
            else:
                assert reranker is not None
                step = steps.send(rerank_scores(reranker, step.queries, step.texts))
        return step[0] if isinstance(query, str) else step

    def search_steps(self, query: str | Sequence[str], options: SearchOptions) -> Steps:
        """Search while the caller runs the models, so that other work can share their batches.

        Returns:
            a generator that yields steps for the models, is sent their results, and at last yields the
            :class:`Hits` of each query (see :mod:`embedkit.serving.retrieval.search`); it raises the errors of
            :meth:`search`.
        """
        answer = ANSWER
        if options.reranks and options.mode != "lexical":
            answer = answer_weight(self._models.of_queries(self.path, self.manifest), options.rerank)
        return search_steps(self.store.view(), check_texts(query, "query"), options, answer)

    def evaluate(
        self,
        task: str | os.PathLike[str],
        *,
        data: str | os.PathLike[str] | None = None,
        split: str = "test",
        **options: Unpack[SearchKeywords],
    ) -> dict[str, float]:
        """Measure this search, with windows, rankings, filter and re-ranker, on queries with relevant documents.

        Args:
            task: a retrieval task by name, or the path of a set in BEIR's form, whose ids the documents have.
            data: folder with the published data sets.
            split: which judgements of the set.
            options: those of :meth:`search`.

        Returns:
            ndcg_at_10, recall_at_1, recall_at_10, recall_at_100 and mrr_at_10, each the mean over the queries.

        Raises:
            DataError: the data are missing or malformed.
            InputError: the task is not retrieval, or none of its relevant documents is found.
        """
        from embedkit.evaluation.catalogue import load_task  # noqa: PLC0415 - searches need none of it
        from embedkit.evaluation.retrieval import evaluate_search  # noqa: PLC0415

        judged = load_task(check_path(task, "task"), data=data, split=split)
        (result, *_) = evaluate_search(self, judged, dict(options)).results
        return {name: float(value) for name, value in result.measures.items() if value is not None}

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        """Embed queries with the collection's query model, with ``encode_query`` if it has that method.

        Returns:
            ``(Q, D) float32, unit rows``.

        Raises:
            InputError: a query is not a string, or there is no encoder, as for :meth:`search`.
        """
        encoder = self._models.of_queries(self.path, self.manifest)
        return embed_texts(check_texts(queries, "queries"), encoder, queries=True)

    def search_embeddings(
        self, embeddings: FloatArray, k: int = 10, *, filter: Filter | None = None, effort: float = 1.0
    ) -> list[Hits]:
        """Find the ``k`` documents nearest to each embedding, computed elsewhere by the same model.

        ``embeddings`` are ``(Q, D) float32, unit rows``; the other arguments are those of :meth:`search`.

        Raises:
            InputError: the embeddings have another width or are not finite, ``k`` is below 1, or filter or effort
                is invalid.
        """
        options = SearchOptions(k=k, filter=filter, effort=effort)
        shape = len(self), self.manifest.dimension
        return search_embeddings(self.store.view(), checked_queries(embeddings, k, shape)[0], options)

    def sample(self, most: int) -> tuple[list[Document], FloatArray]:
        """Return documents and their embeddings, evenly spaced over the collection.

        Args:
            most: maximum number of documents, at least 1.

        Returns:
            N documents in their order and ``(N, D) float32, unit rows``.
        """
        return self.store.sample(check_whole(most, "most"))

    def verify(self) -> None:
        """Read every file of the collection and compare its checksum with the manifest."""
        self.store.verify()

    def copy(self, path: str | os.PathLike[str]) -> None:
        """Copy the collection, as it is on disk, to a new or empty folder, without blocking readers and writers.

        A copy by other tools while somebody writes may lack files. Every file is compared with its checksum.

        Raises:
            InputError: the collection is in a database.
            CollectionError: there is something at ``path``, or another process writes for more than ten seconds.
            StorageError: the disk is full or one of the folders cannot be written.
        """
        self.store.copy(Path(check_path(path, "path")))

    def close(self) -> None:
        """Close connections, if any. In a folder, a large merge that is running in another thread fails."""
        self.store.close()

    def _reranker(self, reranker: Any) -> Reranker:
        """Return a re-ranker, loaded once if it is named; it must score pairs or embed texts."""
        if isinstance(reranker, (PairScorer, TextEncoder)) and not isinstance(reranker, type):
            return reranker
        if not isinstance(reranker, (str, os.PathLike)):
            raise InputError(f"rerank: expected a CrossEncoder or its name, or an Encoder, got {shown(reranker)}")
        name = os.fspath(reranker)
        if name not in self._rerankers:
            from embedkit.runtime.cross_encoder import CrossEncoder  # noqa: PLC0415 - imports stay quick

            self._rerankers[name] = CrossEncoder.load(name)
        return self._rerankers[name]
