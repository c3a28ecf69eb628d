"""Retrieval sets in BEIR's form, from a folder or from the hub."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from embedkit.evaluation.hub import HubDataset
from embedkit.evaluation.retrieval import Judged, RetrievalSet
from embedkit.evaluation.rows import Row
from embedkit.evaluation.tables import Tables

__all__ = ["collect_judgements", "load_retrieval"]

_NO_RELEVANT = "without a relevant document"
_NO_TEXT = "that are judged but have no text"


def load_retrieval(source: Path | HubDataset, *, name: str, split: str = "test") -> RetrievalSet:
    """Load a corpus, its queries and the judgements of one split.

    Only judged queries are scored. As in trec_eval, a relevant document that is missing in the corpus counts as
    not retrieved.

    Args:
        source: a folder of ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/SPLIT.tsv``, also as Parquet and
            in the layout of the hub; one of the files in ``qrels``, whose name is then the split; or a
            hub data set.
        name: name of the set.
        split: split of the judgements.

    Raises:
        DataError: a table is missing, empty or malformed.
    """
    if isinstance(source, Path) and source.is_file():
        source, split = source.parent.parent, source.name.partition(".")[0]
    tables = Tables(source, split)
    return _collect(name, tables.documents(), tables.queries(), tables.judgements())


def collect_judgements(name: str, rows: Iterable[Row]) -> RetrievalSet:
    """Collect a set from rows of ``query, document, score``; the corpus consists of all documents in them."""
    judgements: dict[str, dict[str, float]] = {}
    documents: dict[str, str] = {}
    for row in rows:
        document = row.text("document")
        documents[document] = document
        judgements.setdefault(row.text("query"), {})[document] = row.number("score")
    return _collect(name, documents, {query: query for query in judgements}, judgements)


def _collect(
    name: str,
    documents: dict[str, str],
    texts: Mapping[str, str],
    judgements: Mapping[str, dict[str, float]],
) -> RetrievalSet:
    queries, skipped = [], Counter[str]()
    for query, relevance in judgements.items():
        if query not in texts:
            skipped[_NO_TEXT] += 1
        elif not any(grade > 0 for grade in relevance.values()):
            skipped[_NO_RELEVANT] += 1
        else:
            hidden = _is_source(query, texts[query], relevance, documents)
            queries.append(Judged(texts[query], relevance, query if hidden else None))
    return RetrievalSet(name, documents, queries, dict(skipped))


def _is_source(query: str, text: str, relevance: Mapping[str, float], documents: Mapping[str, str]) -> bool:
    """Whether the query was taken from the document with the same id, which contains it and is not relevant.

    BEIR excludes every document with the query's id, MTEB does so for some sets. Where the ids of queries and
    documents are unrelated, none should be excluded.
    """
    return relevance.get(query, 0.0) <= 0 and bool(text.strip()) and text.strip() in documents.get(query, "")
