"""A collection on Milvus, under ``milvus:URI#NAME``, or in a Milvus Lite file, ``milvus:FILE.db#NAME``.

Milvus searches documents, filters them and ranks them by BM25. Consistency, visibility and durability are
Milvus's: there are no snapshots, and an interrupted write leaves the part that was sent. Needs ``pip install
"embedkit-onnx[milvus]"``. The only module that imports pymilvus.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import orjson
from pymilvus import DataType, Function, FunctionType, MilvusClient
from pymilvus.exceptions import MilvusException

from embedkit.errors import CollectionError, DataError, InputError
from embedkit.protocols import FloatArray
from embedkit.runtime.arguments import is_unicode
from embedkit.serving.remote import RemoteCollectionInfo, RemoteFilter, RemoteStore, ScoredDocuments
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.filters import (
    Combination,
    Comparison,
    Condition,
    comparisons,
)
from embedkit.serving.retrieval.store.analyzer import Analyzer
from embedkit.serving.retrieval.store.files import text_hash
from embedkit.serving.retrieval.store.index_kinds import AUTO

TOKEN_VARIABLE: Final = "EMBEDKIT_MILVUS_TOKEN"  # noqa: S105 - its name, not its value
MOST_RESULTS: Final = 16_384
"""Milvus's limit for one search."""

_MOST_ID_BYTES, _MOST_TEXT_BYTES = 512, 65_535  # the latter is the maximum length of Milvus's VARCHAR
_IDS_PER_REQUEST = 500  # the answer, with the longest texts, stays below the 64 MB of a message
_ROWS_PER_REQUEST = 10_000
_BYTES_PER_REQUEST = 2**24
_ROWS_PER_READ = 1000
_LONG = 10  # values in a list
_WITHOUT_WORDS: Final = re.compile(r"v?2\.[0-4]\b")  # versions without full text search
_METRIC = "IP"
_CONSISTENCY = "Session"  # a client sees its own writes at once
_FIELDS = ("id", "text", "metadata")
_ABOUT = "embedkit"
_BM25: Final = {"bm25_k1": 1.5, "bm25_b": 0.75}  # as in folders
_LONGEST_TOKEN = 32  # characters; longer ones may be left out
_HASH_LETTERS: Final = str.maketrans("0123456789", "ghijklmnop")
# The parameter that effort multiplies, by prefix of the index's name: name, value at effort 1, whether at least k.
_BREADTHS: Final = {"HNSW": ("ef", 96, True), "IVF": ("nprobe", 16, False), "DISKANN": ("search_list", 100, True)}

_Row = dict[str, Any]


class MilvusDocuments(RemoteStore):
    """See :class:`~embedkit.serving.retrieval.store.protocol.Store`.

    Other clients see the fields ``id``, ``text``, ``metadata`` (JSON), ``embedding``, ``terms`` (of text, title
    and sections, as :class:`Analyzer` cuts them) and ``words`` (BM25 over the terms).
    """

    _ERRORS: ClassVar[tuple[type[Exception], ...]] = (MilvusException,)

    _client: MilvusClient

    def _load(self) -> None:
        self._client.load_collection(self._name)
        super()._load()

    def find(self, conditions: Sequence[Condition], /) -> Iterator[Document]:
        """Yield the documents for which all conditions hold.

        Long lists of values are compared here: Milvus would compare every document with one value after another.
        """
        long = [
            one
            for one in conditions
            if isinstance(one, Comparison) and isinstance(one.value, list) and len(one.value) > _LONG
        ]
        where = self._filter_of([one for one in conditions if one not in long])
        return self._matching(dataclasses.replace(where, recheck=[*where.recheck, *long]))

    def compact(
        self,
        *,
        index: str | None,
        lexical: bool | None,
        show_progress_bar: bool | None,  # noqa: ARG002 - Milvus reports no progress
    ) -> None:
        """Ask Milvus to compact, and optionally change the index, during which searches are not possible.

        The keyword index is built with the collection: changing ``lexical`` is an InputError.
        """
        info = self.info
        if lexical not in (None, info.lexical):
            raise InputError(
                f"lexical: Milvus builds this index with the collection; rebuild {self._address} from itself"
            )
        with self._asking():
            if index not in (None, info.index):
                kind = self._kind(index)
                self._client.release_collection(self._name)
                self._client.drop_index(self._name, "embedding")
                self._client.create_index(self._name, _index(self._client, kind))
                self._client.load_collection(self._name)
                self._keep_facts(dataclasses.replace(info, index=kind).facts())
            self._client.compact(self._name)

    def sample(self, most: int, /) -> tuple[list[Document], FloatArray]:
        with self._asking():
            rows = self._client.query(self._name, filter="", limit=most, output_fields=[*_FIELDS, "embedding"])
        embeddings = np.array([row["embedding"] for row in rows], dtype=np.float32)
        return [_document(row) for row in rows], embeddings.reshape(len(rows), self.info.dimension)

    def drop(self) -> None:
        with self._asking():
            self._client.drop_collection(self._name)

    def nearest(self, queries: FloatArray, k: int, where: RemoteFilter, effort: float) -> list[ScoredDocuments]:
        """Return the documents nearest to each query; at most 16,384 of them."""
        if k > MOST_RESULTS:
            raise InputError(f"k must be at most {MOST_RESULTS:,}, the most that Milvus gives, not {k}")
        parameters = {"metric_type": _METRIC, "params": _breadth(self.info.index, k, effort)}
        return self._hit_lists(list(queries), "embedding", k, where, parameters)

    def matching(self, query: str, k: int, where: RemoteFilter) -> ScoredDocuments:
        weights = Analyzer.named(self.info.analyzer).query_terms(query)
        terms = [_token(term) for term, weight in weights.items() for _ in range(round(2 * weight))]
        if not terms:
            return []
        (ranking,) = self._hit_lists([" ".join(terms)], "words", k, where, {"metric_type": "BM25"})
        return [(abs(score), document) for score, document in ranking]  # Lite's scores are negative

    def _hit_lists(
        self, queries: Sequence[Any], field: str, k: int, where: RemoteFilter, parameters: _Row
    ) -> list[ScoredDocuments]:
        """Return the best ``k`` documents for each query; asks again for more while some fail the recheck."""
        limit = k
        while True:
            with self._asking():
                answers = self._client.search(
                    self._name,
                    data=list(queries),
                    anns_field=field,
                    limit=limit,
                    filter=where.expression,
                    output_fields=list(_FIELDS),
                    search_params=parameters,
                )
            hit_lists = [[(float(hit["distance"]), _document(hit["entity"])) for hit in hits] for hits in answers]
            kept = [where.kept(hits)[:k] for hits in hit_lists]
            is_short = any(len(few) < k and len(hits) == limit for few, hits in zip(kept, hit_lists, strict=True))
            if not is_short or limit == MOST_RESULTS:
                return kept
            limit = min(4 * limit, MOST_RESULTS)

    @staticmethod
    def _checked(document: Document) -> Document:
        for what, text, most in (
            ("id", document.id, _MOST_ID_BYTES),
            ("text", document.text, _MOST_TEXT_BYTES),
        ):
            size = len(text.encode(errors="surrogatepass"))
            if size > most:
                raise DataError(
                    f"the {what} of document {document.id:.40} has {size:,} bytes; Milvus takes {most:,}"
                )
        try:
            orjson.dumps(document.metadata)  # as pymilvus will
        except TypeError as error:
            raise DataError(f"Milvus cannot hold the metadata of document {document.id:.40}: {error}") from None
        return document

    @staticmethod
    def _connect(place: str) -> MilvusClient:
        if "://" not in place and not place.endswith(".db"):
            raise InputError(
                f"expected milvus:http://HOST:PORT#NAME, or milvus:FILE.db#NAME for Milvus Lite, got {place!r}"
            )
        return MilvusClient(place, token=os.environ.get(TOKEN_VARIABLE, ""))

    def _exists(self) -> bool:
        return bool(self._client.has_collection(self._name))

    def _names(self) -> list[str]:
        return list(self._client.list_collections())

    def _read_facts(self) -> Mapping[str, Any]:
        """Return the value of a property or of the description: some versions of Milvus store only one of them."""
        described = self._client.describe_collection(self._name)
        for text in ((described.get("properties") or {}).get(_ABOUT), described.get("description")):
            with contextlib.suppress(ValueError):
                facts = json.loads(text or "")
                if isinstance(facts, dict):
                    return facts
        return {}

    @staticmethod
    def _kind(index: str) -> str:
        return "AUTOINDEX" if index == AUTO else index

    def _create(self, info: RemoteCollectionInfo) -> None:
        """Create an empty collection; CollectionError if words are wanted and the server has no keyword search."""
        client = self._client
        if info.lexical and _WITHOUT_WORDS.match(version := client.get_server_version()):
            raise CollectionError(
                f"lexical: {self._address} has version {version}, which has no keyword search, as 2.5 has; "
                "build with lexical=False"
            )
        facts = json.dumps(info.facts(), ensure_ascii=False)
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False, description=facts)
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=_MOST_ID_BYTES)
        schema.add_field("text", DataType.VARCHAR, max_length=_MOST_TEXT_BYTES)
        schema.add_field("metadata", DataType.JSON, nullable=True)
        schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=info.dimension)
        parameters = _index(client, info.index)
        if info.lexical:
            schema.add_field("terms", DataType.VARCHAR, max_length=_MOST_TEXT_BYTES, enable_analyzer=True)
            schema.add_field("words", DataType.SPARSE_FLOAT_VECTOR)
            fields = {"input_field_names": ["terms"], "output_field_names": ["words"]}
            schema.add_function(Function(name="words", function_type=FunctionType.BM25, **fields))
            parameters.add_index("words", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25", params=_BM25)
        client.create_collection(
            self._name,
            schema=schema,
            index_params=parameters,
            properties={_ABOUT: facts},
            consistency_level=_CONSISTENCY,
        )

    def _keep_facts(self, facts: Mapping[str, Any]) -> None:
        with self._asking():
            self._client.alter_collection_properties(self._name, {_ABOUT: json.dumps(facts, ensure_ascii=False)})
        self._facts = facts

    def _count_documents(self) -> int:
        """Count after all writes; servers of version 2.3 would otherwise show deletions milliseconds later."""
        with self._asking():
            rows = self._client.query(
                self._name, filter="", output_fields=["count(*)"], consistency_level="Strong"
            )
        return int(rows[0]["count(*)"])

    def _read(self, ids: Sequence[str]) -> Iterator[Document]:
        return map(_document, self._rows(ids, _FIELDS))

    def _read_embedded(self, ids: Sequence[str]) -> Iterator[tuple[Document, FloatArray]]:
        rows = self._rows(ids, (*_FIELDS, "embedding"))
        return ((_document(row), np.array(row["embedding"], dtype=np.float32)) for row in rows)

    def _present(self, ids: Sequence[str]) -> list[str]:
        return [row["id"] for row in self._rows(ids, ("id",))]

    def _delete(self, keys: Sequence[str]) -> None:
        with self._asking():
            for some in _blocks(keys):
                self._client.delete(self._name, filter=_among(some))

    def _matching(self, where: RemoteFilter) -> Iterator[Document]:
        for rows in self._all(_FIELDS, where.expression):
            yield from (document for _, document in where.kept([(0.0, _document(row)) for row in rows]))

    def _all_embeddings(self) -> Iterator[FloatArray]:
        for rows in self._all(("id", "embedding")):
            yield np.array([row["embedding"] for row in rows], dtype=np.float32)

    def _write(self, documents: Sequence[Document], embeddings: FloatArray) -> None:
        rows: list[_Row] = [
            {"id": document.id, "text": document.text, "metadata": document.metadata or {}, "embedding": embedding}
            for document, embedding in zip(documents, embeddings, strict=True)
        ]
        if self.info.lexical:
            analyzer = Analyzer.named(self.info.analyzer)
            for row, document in zip(rows, documents, strict=True):
                row["terms"] = _terms(analyzer.terms(document.content))
        with self._asking():
            for some in _requests(rows):
                self._client.upsert(self._name, some)

    def _has_field(self, field: str) -> bool:
        with self._asking():
            return bool(
                self._client.query(
                    self._name, filter=_expression(Comparison(field, "exists", value=True)), limit=1
                )
            )

    def _filter_of(self, conditions: Sequence[Condition]) -> RemoteFilter:
        where = super()._filter_of(conditions)
        if "://" in self._address:
            return where
        rest = [condition for condition in conditions if condition not in where.recheck]
        doubtful = [condition for condition in rest if any(map(_is_doubtful, comparisons([condition])))]
        sure = [condition for condition in rest if condition not in doubtful or not _may_lose(condition)]
        return RemoteFilter(filter_expression(sure), [*where.recheck, *doubtful])

    def _expression_of(self, conditions: Sequence[Condition]) -> str:
        return filter_expression(conditions)

    def _rows(self, ids: Sequence[str], fields: Sequence[str]) -> list[_Row]:
        with self._asking():
            return [
                row
                for some in _blocks(ids)
                for row in self._client.query(self._name, filter=_among(some), output_fields=list(fields))
            ]

    def _all(self, fields: Sequence[str], expression: str = "") -> Iterator[list[_Row]]:
        """Yield the rows of an expression in chunks, ordered by id; ``fields`` include the id."""
        where, is_complete = expression, False
        while not is_complete:
            with self._asking():
                rows = self._client.query_iterator(
                    self._name, batch_size=_ROWS_PER_READ, filter=where, output_fields=list(fields)
                )
            is_complete = True
            with self._asking(), contextlib.closing(rows):
                while some := rows.next():
                    yield some
                    last = _literal(some[-1]["id"])
                    if last != f'"{some[-1]["id"]}"':  # the iterator would put it into its filter as it is
                        where = " and ".join(filter(None, [f"id > {last}", expression and f"({expression})"]))
                        is_complete = False
                        break


def _terms(terms: Sequence[str]) -> str:
    """Return terms as a text from which Milvus cuts them again, as many as it takes."""
    text = " ".join(map(_token, terms))
    return text if len(text) <= _MOST_TEXT_BYTES else text[:_MOST_TEXT_BYTES].rpartition(" ")[0]


def _token(term: str) -> str:
    """Return a word that Milvus's standard analyzer keeps whole: the term, or letters that stand for it."""
    is_plain = term.isascii() and term.isalnum() and len(term) <= _LONGEST_TOKEN
    return term if is_plain else f"{text_hash(term):016x}".translate(_HASH_LETTERS)


def _index(client: MilvusClient, kind: str) -> Any:
    parameters = client.prepare_index_params()
    parameters.add_index("embedding", index_type=kind, metric_type=_METRIC, params={})
    return parameters


def _breadth(index: str, k: int, effort: float) -> _Row:
    """Return search parameters for an effort; flat and automatic indexes have none."""
    for beginning, (name, usual, is_least) in _BREADTHS.items():
        if index.startswith(beginning):
            return {name: max(round(usual * effort), k if is_least else 1)}
    return {}


def _requests(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    """Yield rows in as few requests as messages of Milvus allow."""
    some: list[_Row] = []
    size = 0
    for row in rows:
        row_bytes = 4 * (len(row["embedding"]) + len(row["text"]) + len(str(row["metadata"])))
        if some and (size + row_bytes > _BYTES_PER_REQUEST or len(some) == _ROWS_PER_REQUEST):
            yield some
            some, size = [], 0
        some.append(row)
        size += row_bytes
    if some:
        yield some


def _blocks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + _IDS_PER_REQUEST] for start in range(0, len(ids), _IDS_PER_REQUEST))


def _document(row: _Row) -> Document:
    return Document(row["id"], row["text"], row["metadata"] or None)


def filter_expression(conditions: Sequence[Condition]) -> str:
    """Return the expression that holds if all conditions hold for the JSON field ``metadata``.

    Milvus takes a null for an absent field, so a condition on null is an InputError. It does not compare items of
    a list by their order, and has no record of the kinds of value in a field: comparing it with another kind
    matches no document.
    """
    return " and ".join(f"({_expression(condition)})" for condition in conditions)


def _expression(condition: Condition) -> str:
    if isinstance(condition, Combination):
        joint = " or " if condition.operator == "or" else " and "
        parts = joint.join(f"({_expression(part)})" for part in condition.parts)
        return f"not ({parts})" if condition.operator == "not" else parts
    field, operator, value = condition.field, condition.operator, condition.value
    places = [_place(field)] if "." not in field else [_place(field), _nested_place(field)]
    is_negative = operator in ("ne", "not_in") or (operator == "exists" and not value)
    forms = [_EXPRESSIONS[operator](place, value) for place in places]
    if len(forms) == 1:
        return forms[0]
    return (" and " if is_negative else " or ").join(f"({part})" for part in forms)


def _may_lose(condition: Condition) -> bool:
    """Whether Milvus Lite may leave out documents for which a doubtful condition holds."""
    return isinstance(condition, Combination) or condition.operator in ("ne", "not_in")


def _is_doubtful(condition: Comparison) -> bool:
    """Whether Milvus Lite, for which true equals 1 and false 0, may select other documents."""
    values = condition.value if isinstance(condition.value, list) else [condition.value]
    if condition.operator in ("eq", "ne", "in", "not_in"):
        return any(value in (0, 1) for value in values)
    return condition.operator != "exists" and not isinstance(condition.value, str)


def _among(ids: Sequence[str]) -> str:
    """Return the expression for documents with these ids; pymilvus would quote them without escaping."""
    return f"id in [{', '.join(map(_literal, filter(is_unicode, ids)))}]"


def _place(field: str) -> str:
    return f"metadata[{_literal(field)}]"


def _nested_place(field: str) -> str:
    return "metadata" + "".join(f"[{_literal(name)}]" for name in field.split("."))


def _literal(value: Any) -> str:
    """Return the literal of a value in expressions; strings from outside enter them here and nowhere else.

    Only these escapes exist in Milvus and in Milvus Lite; other control characters stand for themselves.
    """
    if value is None:
        raise InputError('filter: Milvus does not distinguish null from absent; use {"exists": false}')
    return f'"{value.translate(_ESCAPES)}"' if isinstance(value, str) else json.dumps(value)


_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


def _equal(place: str, value: Any) -> str:
    """Return the expression for a value or a list with it; not every Milvus supports `in` for JSON."""
    literal = _literal(value)
    item = f"({literal})" if literal.startswith("-") else literal  # Milvus Lite takes no minus there
    return f"{place} == {literal} or json_contains({place}, {item})"


def _any_of(place: str, values: list[Any]) -> str:
    return " or ".join(_equal(place, value) for value in values) or 'id in [""]'


def _none_of(place: str, values: list[Any]) -> str:
    """Return the negation in two parts, because comparing an absent value is neither true nor false."""
    if not values:
        return 'id != ""'
    # In parentheses, because Milvus 2.3 takes the whole rest as the operand of `exists`.
    return f"not (exists {place}) or not ({_any_of(place, values)})"


def _exists(place: str, *, wanted: bool) -> str:
    return f"exists {place}" if wanted else f"not exists {place}"


_EXPRESSIONS: Final[dict[str, Callable[[str, Any], str]]] = {
    "eq": _equal,
    "ne": lambda place, value: _none_of(place, [value]),
    "in": _any_of,
    "not_in": _none_of,
    "gt": lambda place, value: f"{place} > {_literal(value)}",
    "gte": lambda place, value: f"{place} >= {_literal(value)}",
    "lt": lambda place, value: f"{place} < {_literal(value)}",
    "lte": lambda place, value: f"{place} <= {_literal(value)}",
    "exists": lambda place, value: _exists(place, wanted=value),
}
