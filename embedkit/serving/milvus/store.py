"""A collection of a Milvus server or of a Milvus Lite file. The only module that imports pymilvus."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from pymilvus import DataType, Function, FunctionType, MilvusClient
from pymilvus.exceptions import MilvusException

from embedkit.errors import CollectionError
from embedkit.protocols import FloatArray

__all__ = ["MOST_ID_BYTES", "MOST_RESULTS", "MOST_TEXT_BYTES", "MilvusStore", "Row"]

MOST_ID_BYTES = 512
MOST_TEXT_BYTES = 65_535  # maximum length of Milvus's VARCHAR
MOST_RESULTS = 16_384  # Milvus's limit for one search

_ABOUT = "embedkit"
_KEYS_PER_REQUEST = 500  # the answer, with the longest texts, stays below the 64 MB of a message
_ROWS_PER_REQUEST = 10_000
_BYTES_PER_REQUEST = 2**24
_WITHOUT_WORDS = re.compile(r"v?2\.[0-4]\b")  # versions without full text search
_ROWS_PER_READ = 1000
_METRIC = "IP"
_CONSISTENCY = "Session"  # a client sees its own writes at once

Row = dict[str, Any]


class MilvusStore:
    """Rows with a key and an embedding, and metadata of the collection.

    Created by :meth:`create` and :meth:`open`.

    Attributes:
        uri: URI of the server, or path of a Milvus Lite file.
        name: name of the collection.
        about: metadata of the collection.
    """

    def __init__(self, client: MilvusClient, uri: str, name: str, about: dict[str, Any]) -> None:
        self.uri, self.name, self.about = uri, name, about
        self._client = client

    @classmethod
    def create(
        cls,
        uri: str,
        name: str,
        *,
        token: str,
        key: type[str | int],
        dimension: int,
        index: str,
        about: Row,
        words: bool = False,
    ) -> Self:
        """Create a new collection.

        Args:
            uri: ``"http://host:19530"``, or a path ending in ``.db`` for Milvus Lite.
            name: name of the collection; letters, digits and underscores.
            token: ``"user:password"`` or an API key; empty if not needed.
            key: int for rows of a number and an embedding; str for those with text and metadata, too.
            dimension: D, the width of an embedding.
            index: Milvus's kind of index.
            about: metadata, serialisable as JSON; ``kind`` describes the content.
            words: whether Milvus also indexes the words of texts, for BM25.

        Raises:
            CollectionError: it exists, or Milvus rejects the request.
        """
        client = _connect(uri, token)
        with _errors_converted(uri):
            if client.has_collection(name):
                raise CollectionError(
                    f"there is a collection {name} at {uri} already: add to it, delete it, or choose another name"
                )
            if words and _WITHOUT_WORDS.match(version := client.get_server_version()):
                raise CollectionError(
                    f"lexical: Milvus at {uri} has version {version}, which has no keyword search; 2.5 has"
                )
            metadata = json.dumps(about, ensure_ascii=False)
            parameters = client.prepare_index_params()
            parameters.add_index("embedding", index_type=index, metric_type=_METRIC, params={})
            if words:
                parameters.add_index("words", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25")
            client.create_collection(
                name,
                schema=_schema(key, dimension, metadata, words=words),
                index_params=parameters,
                properties={_ABOUT: metadata},
                consistency_level=_CONSISTENCY,
            )
        return cls(client, uri, name, about)

    @classmethod
    def open(cls, uri: str, name: str, *, token: str, kind: str) -> Self:
        """Open a collection created by :meth:`create`.

        Raises:
            CollectionError: it does not exist, or its metadata describes another kind.
        """
        client = _connect(uri, token)
        with _errors_converted(uri):
            if not client.has_collection(name):
                raise CollectionError(f"there is no collection {name} at {uri}; there are {_names(client)}")
            about = _about(client.describe_collection(name))
            if about.get("kind") != kind:
                raise CollectionError(
                    f"the collection {name} at {uri} holds no {kind} that embedkit has put there"
                )
            client.load_collection(name)
        return cls(client, uri, name, about)

    def count(self) -> int:
        """Return the number of rows, after all writes; later reads see these writes, too.

        Deletions on servers of version 2.3 would otherwise become visible only after some milliseconds.
        """
        with _errors_converted(self.uri):
            found = self._client.query(
                self.name, filter="", output_fields=["count(*)"], consistency_level="Strong"
            )
        return int(found[0]["count(*)"])

    def upsert(self, rows: Sequence[Row]) -> None:
        """Add rows, replacing those with the same keys; keys must be distinct."""
        with _errors_converted(self.uri):
            for some in _requests(rows):
                self._client.upsert(self.name, some)

    def get(self, keys: Sequence[str] | Sequence[int], fields: Sequence[str]) -> dict[str | int, Row]:
        """Return the existing rows with these keys, by key."""
        found: list[Row] = []
        with _errors_converted(self.uri):
            for start in range(0, len(keys), _KEYS_PER_REQUEST):
                wanted = list(keys[start : start + _KEYS_PER_REQUEST])
                found += self._client.get(self.name, ids=wanted, output_fields=["id", *fields])
        return {row["id"]: row for row in found}

    def delete(self, keys: Sequence[str]) -> None:
        """Delete the rows with these keys."""
        with _errors_converted(self.uri):
            for start in range(0, len(keys), _KEYS_PER_REQUEST):
                self._client.delete(self.name, ids=list(keys[start : start + _KEYS_PER_REQUEST]))

    def search(
        self,
        embeddings: FloatArray,
        k: int,
        *,
        where: str = "",
        fields: Sequence[str] = (),
        parameters: Row | None = None,
    ) -> list[list[tuple[float, Row]]]:
        """Return the rows nearest to each embedding.

        Args:
            embeddings: ``(Q, D) float32``.
            k: number of results for each, at most :data:`MOST_RESULTS`.
            where: a filter expression of Milvus.
            fields: fields to return besides the key.
            parameters: Milvus's search parameters of the index.

        Returns:
            for each embedding at most ``k`` pairs of inner product and row, best first.
        """
        with _errors_converted(self.uri):
            found = self._client.search(
                self.name,
                data=list(embeddings),
                anns_field="embedding",
                limit=k,
                filter=where,
                output_fields=["id", *fields],
                search_params={"metric_type": _METRIC, "params": parameters or {}},
            )
        return [[(float(hit["distance"]), dict(hit["entity"])) for hit in hits] for hits in found]

    def search_words(
        self, query: str, k: int, *, where: str = "", fields: Sequence[str] = ()
    ) -> list[tuple[float, Row]]:
        """Return the rows that best match a query's words, by Milvus's BM25.

        Args:
            query: a text.
            k: number of results, at most :data:`MOST_RESULTS`.
            where: a filter expression of Milvus.
            fields: fields to return besides the key.

        Returns:
            at most ``k`` pairs of score and row, best first.
        """
        with _errors_converted(self.uri):
            found = self._client.search(
                self.name,
                data=[query],
                anns_field="words",
                limit=k,
                filter=where,
                output_fields=["id", *fields],
                search_params={"metric_type": "BM25"},
            )
        return [(abs(float(hit["distance"])), dict(hit["entity"])) for hit in found[0]]  # Lite's are negative

    def some(self, count: int, fields: Sequence[str], *, where: str = "") -> list[Row]:
        """Return at most ``count`` rows, in no particular order."""
        with _errors_converted(self.uri):
            return [
                dict(row)
                for row in self._client.query(self.name, filter=where, limit=count, output_fields=["id", *fields])
            ]

    def all(self, fields: Sequence[str]) -> Iterator[list[Row]]:
        """Yield all rows in chunks, in an order that is stable while nothing is written."""
        with _errors_converted(self.uri):
            rows = self._client.query_iterator(self.name, batch_size=_ROWS_PER_READ, output_fields=["id", *fields])
            try:
                while some := rows.next():
                    yield [dict(row) for row in some]
            finally:
                rows.close()

    def reindex(self, index: str, about: Row) -> None:
        """Change the index of the embeddings; searches are not possible meanwhile."""
        parameters = self._client.prepare_index_params()
        parameters.add_index("embedding", index_type=index, metric_type=_METRIC, params={})
        with _errors_converted(self.uri):
            self._client.release_collection(self.name)
            self._client.drop_index(self.name, "embedding")
            self._client.create_index(self.name, parameters)
            self._client.load_collection(self.name)
        self.keep(about)

    def keep(self, about: Row) -> None:
        """Replace the collection's metadata."""
        with _errors_converted(self.uri):
            self._client.alter_collection_properties(self.name, {_ABOUT: json.dumps(about, ensure_ascii=False)})
        self.about = about

    def compact(self) -> None:
        """Ask Milvus to reclaim the space of deleted rows, which also happens automatically."""
        with _errors_converted(self.uri):
            self._client.compact(self.name)

    def drop(self) -> None:
        """Delete the collection with all its content."""
        with _errors_converted(self.uri):
            self._client.drop_collection(self.name)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _requests(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows in as few requests as messages of Milvus allow."""
    some: list[Row] = []
    size = 0
    for row in rows:
        row_bytes = 4 * (len(row["embedding"]) + len(row.get("text", "")) + len(str(row.get("metadata", ""))))
        if some and (size + row_bytes > _BYTES_PER_REQUEST or len(some) == _ROWS_PER_REQUEST):
            yield some
            some, size = [], 0
        some.append(row)
        size += row_bytes
    if some:
        yield some


def _connect(uri: str, token: str) -> MilvusClient:
    with _errors_converted(uri):
        return MilvusClient(uri, token=token)


def _schema(key: type[str | int], dimension: int, description: str, *, words: bool) -> Any:
    """Return the fields of a collection; some Milvus versions store no properties, others no description."""
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False, description=description)
    if key is int:
        schema.add_field("id", DataType.INT64, is_primary=True)
    else:
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=MOST_ID_BYTES)
        schema.add_field("text", DataType.VARCHAR, max_length=MOST_TEXT_BYTES, enable_analyzer=words)
        schema.add_field("metadata", DataType.JSON, nullable=True)
    schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=dimension)
    if words:
        schema.add_field("words", DataType.SPARSE_FLOAT_VECTOR)
        bm25 = {"input_field_names": ["text"], "output_field_names": ["words"]}
        schema.add_function(Function(name="words", function_type=FunctionType.BM25, **bm25))
    return schema


def _about(described: Mapping[str, Any]) -> Row:
    for text in ((described.get("properties") or {}).get(_ABOUT), described.get("description")):
        with contextlib.suppress(ValueError):
            found = json.loads(text or "")
            if isinstance(found, dict):
                return found
    return {}


def _names(client: MilvusClient) -> str:
    return ", ".join(sorted(client.list_collections())) or "none"


@contextlib.contextmanager
def _errors_converted(uri: str) -> Iterator[None]:
    try:
        yield
    except MilvusException as error:
        raise CollectionError(f"Milvus at {uri}: {error.message}") from error
