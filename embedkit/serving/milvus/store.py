"""One collection of a Milvus server or of a Milvus Lite file. The only file that imports pymilvus."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from pymilvus import DataType, Function, FunctionType, MilvusClient
from pymilvus.exceptions import MilvusException

from embedkit.errors import CollectionError
from embedkit.protocols import FloatArray

__all__ = ["MOST_ID_BYTES", "MOST_RESULTS", "MOST_TEXT_BYTES", "MilvusStore", "Row"]

MOST_ID_BYTES = 512
MOST_TEXT_BYTES = 65_535  # the longest VARCHAR of Milvus
MOST_RESULTS = 16_384  # of one search, by Milvus

_ABOUT = "embedkit"
_ROWS_PER_REQUEST = 500  # with the longest texts still below the 64 MB of a message
_ROWS_PER_READ = 1000
_METRIC = "IP"
_CONSISTENCY = "Session"  # a client sees its own writes at once

Row = dict[str, Any]


class MilvusStore:
    """Rows with a key and an embedding, and facts about them that stay with the collection.

    Made by :meth:`create` and :meth:`open`.

    Attributes:
        uri: of the server, or path of a Milvus Lite file.
        name: of the collection there.
        about: the facts.
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
        """Make a collection that is not there yet.

        Args:
            uri: ``"http://host:19530"``, or a path that ends in ``.db`` for Milvus Lite.
            name: of the collection; letters, digits and underscores.
            token: ``"user:password"`` or an API key; empty where none is wanted.
            key: int for rows that are a number and an embedding; str for those with text and metadata too.
            dimension: D, the width of an embedding.
            index: kind of index, in Milvus's words.
            about: facts to keep, values of JSON; ``kind`` says what it holds.
            words: whether Milvus indexes the words of texts too, for BM25.

        Raises:
            CollectionError: it is there already, or Milvus refuses; says why.
        """
        client = _connect(uri, token)
        with _refusals_told(uri):
            if client.has_collection(name):
                raise CollectionError(
                    f"there is a collection {name} at {uri} already: add to it, delete it, or choose another name"
                )
            told = json.dumps(about, ensure_ascii=False)
            parameters = client.prepare_index_params()
            parameters.add_index("embedding", index_type=index, metric_type=_METRIC, params={})
            if words:
                parameters.add_index("words", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25")
            client.create_collection(
                name,
                schema=_schema(key, dimension, told, words=words),
                index_params=parameters,
                properties={_ABOUT: told},
                consistency_level=_CONSISTENCY,
            )
        return cls(client, uri, name, about)

    @classmethod
    def open(cls, uri: str, name: str, *, token: str, kind: str) -> Self:
        """Find a collection that :meth:`create` made.

        Raises:
            CollectionError: it is not there, or its facts do not say that it is of this kind.
        """
        client = _connect(uri, token)
        with _refusals_told(uri):
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
        """Rows there are."""
        with _refusals_told(self.uri):
            found = self._client.query(self.name, filter="", output_fields=["count(*)"])
        return int(found[0]["count(*)"])

    def upsert(self, rows: Sequence[Row]) -> None:
        """Add rows, or put them in the place of those with the same keys; keys differ among themselves."""
        with _refusals_told(self.uri):
            for start in range(0, len(rows), _ROWS_PER_REQUEST):
                self._client.upsert(self.name, list(rows[start : start + _ROWS_PER_REQUEST]))

    def get(self, keys: Sequence[str] | Sequence[int], fields: Sequence[str]) -> dict[str | int, Row]:
        """The rows with these keys that are there, by key."""
        found: list[Row] = []
        with _refusals_told(self.uri):
            for start in range(0, len(keys), _ROWS_PER_REQUEST):
                wanted = list(keys[start : start + _ROWS_PER_REQUEST])
                found += self._client.get(self.name, ids=wanted, output_fields=["id", *fields])
        return {row["id"]: row for row in found}

    def delete(self, keys: Sequence[str]) -> None:
        """Remove the rows with these keys."""
        with _refusals_told(self.uri):
            for start in range(0, len(keys), _ROWS_PER_REQUEST):
                self._client.delete(self.name, ids=list(keys[start : start + _ROWS_PER_REQUEST]))

    def search(
        self,
        embeddings: FloatArray,
        k: int,
        *,
        where: str = "",
        fields: Sequence[str] = (),
        parameters: Row | None = None,
    ) -> list[list[tuple[float, Row]]]:
        """The rows nearest to each embedding.

        Args:
            embeddings: ``(Q, D) float32``.
            k: results wanted for each, at most :data:`MOST_RESULTS`.
            where: an expression of Milvus that has to hold.
            fields: what is wanted of a row besides its key.
            parameters: of the index, in Milvus's words.

        Returns:
            for each embedding at most ``k`` pairs of inner product and row, best first.
        """
        with _refusals_told(self.uri):
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
        """The rows that share words with a query, by Milvus's BM25.

        Args:
            query: a text.
            k: results wanted, at most :data:`MOST_RESULTS`.
            where: an expression of Milvus that has to hold.
            fields: what is wanted of a row besides its key.

        Returns:
            at most ``k`` pairs of score and row, best first.
        """
        with _refusals_told(self.uri):
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
        """At most so many rows, in no particular order."""
        with _refusals_told(self.uri):
            return [
                dict(row)
                for row in self._client.query(self.name, filter=where, limit=count, output_fields=["id", *fields])
            ]

    def all(self, fields: Sequence[str]) -> Iterator[list[Row]]:
        """All rows, some at a time, in an order that stays the same while nobody writes."""
        with _refusals_told(self.uri):
            rows = self._client.query_iterator(self.name, batch_size=_ROWS_PER_READ, output_fields=["id", *fields])
            try:
                while some := rows.next():
                    yield [dict(row) for row in some]
            finally:
                rows.close()

    def reindex(self, index: str, about: Row) -> None:
        """Index embeddings in another way from now on; nobody can search meanwhile."""
        parameters = self._client.prepare_index_params()
        parameters.add_index("embedding", index_type=index, metric_type=_METRIC, params={})
        with _refusals_told(self.uri):
            self._client.release_collection(self.name)
            self._client.drop_index(self.name, "embedding")
            self._client.create_index(self.name, parameters)
            self._client.load_collection(self.name)
        self.keep(about)

    def keep(self, about: Row) -> None:
        """Keep facts in the place of the earlier ones."""
        with _refusals_told(self.uri):
            self._client.alter_collection_properties(self.name, {_ABOUT: json.dumps(about, ensure_ascii=False)})
        self.about = about

    def compact(self) -> None:
        """Ask Milvus to give back the space of deleted rows, which it does by itself."""
        with _refusals_told(self.uri):
            self._client.compact(self.name)

    def drop(self) -> None:
        """Delete the collection, with all that is in it."""
        with _refusals_told(self.uri):
            self._client.drop_collection(self.name)

    def close(self) -> None:
        """End the connection."""
        self._client.close()


def _connect(uri: str, token: str) -> MilvusClient:
    with _refusals_told(uri):
        return MilvusClient(uri, token=token)


def _schema(key: type[str | int], dimension: int, description: str, *, words: bool) -> Any:
    """Fields of a collection; not every Milvus keeps the properties, nor every one the description."""
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
    for told in ((described.get("properties") or {}).get(_ABOUT), described.get("description")):
        with contextlib.suppress(ValueError):
            found = json.loads(told or "")
            if isinstance(found, dict):
                return found
    return {}


def _names(client: MilvusClient) -> str:
    return ", ".join(sorted(client.list_collections())) or "none"


@contextlib.contextmanager
def _refusals_told(uri: str) -> Iterator[None]:
    try:
        yield
    except MilvusException as error:
        raise CollectionError(f"Milvus at {uri}: {error.message}") from error
