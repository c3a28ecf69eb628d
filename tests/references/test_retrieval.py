"""Search and its measures against slow implementations of trec_eval's manual, and against trec_eval itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.evaluation import retrieval
from embedkit.evaluation.retrieval import (
    JudgedQuery,
    RetrievalSet,
    average_precision,
    ndcg,
    rank_documents,
    recall,
    reciprocal_rank,
)


def slow_ranking(query, documents, ids):
    """Rank every document by cosine, computed one by one; ties by descending id."""
    scores = {}
    for name, document in zip(ids, documents, strict=True):
        product = math.fsum(float(a) * float(b) for a, b in zip(query, document, strict=True))
        norms = math.sqrt(math.fsum(float(a) ** 2 for a in query) * math.fsum(float(b) ** 2 for b in document))
        scores[name] = round(product / norms, 6) if norms else 0.0
    return sorted(scores, key=lambda name: (scores[name], name), reverse=True), scores


def slow_dcg(grades):
    return sum(grade / math.log2(rank + 1) for rank, grade in enumerate(grades, start=1))


def slow_measures(ranking, relevance, cutoffs):
    """Walk down the ranking once for each measure."""
    at_ndcg, at_recall, at_mrr, at_map = cutoffs
    wanted = {name: grade for name, grade in relevance.items() if grade > 0}
    best = sorted(wanted.values(), reverse=True)
    gained = [wanted.get(name, 0) for name in ranking[:at_ndcg]]
    first = next((rank for rank, name in enumerate(ranking[:at_mrr], start=1) if name in wanted), None)
    precisions = [
        sum(name in wanted for name in ranking[:rank]) / rank
        for rank in range(1, min(at_map, len(ranking)) + 1)
        if ranking[rank - 1] in wanted
    ]
    return {
        "ndcg": slow_dcg(gained) / slow_dcg(best[:at_ndcg]),
        "recall": sum(name in wanted for name in ranking[:at_recall]) / len(wanted),
        "mrr": 1 / first if first else 0.0,
        "map": sum(precisions) / len(wanted),
    }


@st.composite
def searches(draw):
    """Return embeddings of few values, so that many scores tie, and ids whose string order is not their order."""
    size, queries = draw(st.integers(1, 14)), draw(st.integers(1, 3))
    values = st.sampled_from([-1.0, 0.0, 0.5, 1.0])
    rows = st.lists(st.lists(values, min_size=3, max_size=3).filter(any), min_size=size, max_size=size)
    ids = draw(st.lists(st.integers(0, 300).map(str), min_size=size, max_size=size, unique=True))
    asked = draw(
        st.lists(st.lists(values, min_size=3, max_size=3).filter(any), min_size=queries, max_size=queries)
    )
    names = st.sampled_from([*ids, "elsewhere"])
    grades = st.dictionaries(names, st.sampled_from([-1, 0, 1, 2, 3]), min_size=1)
    judged = [draw(grades.filter(lambda each: any(mark > 0 for mark in each.values()))) for _ in range(queries)]
    documents = np.array(draw(rows), dtype=np.float32)
    return ids, documents, np.array(asked, dtype=np.float32), judged


def rankings_of(ids, documents, queries, judged, **options):
    found = RetrievalSet("set", dict.fromkeys(ids, ""), [JudgedQuery("", dict(relevance)) for relevance in judged])
    return list(rank_documents(queries, documents, found, **options))


def measures_of(ranking, cutoffs):
    rules = {"ndcg": ndcg, "recall": recall, "mrr": reciprocal_rank, "map": average_precision}
    return {
        name: rule(ranking, cutoff=cutoff) for (name, rule), cutoff in zip(rules.items(), cutoffs, strict=True)
    }


@given(searches(), st.tuples(*[st.integers(1, 15)] * 4))
def test_search_and_measures(case, cutoffs):
    ids, documents, queries, judged = case
    found = rankings_of(ids, documents, queries, judged)
    for ranking, query, relevance in zip(found, queries, judged, strict=True):
        order, _ = slow_ranking(query, documents, ids)
        expected = slow_measures(order, relevance, cutoffs)
        assert measures_of(ranking, cutoffs) == pytest.approx(expected, abs=1e-12)


@given(searches(), st.integers(1, 5))
def test_the_best_are_found_for_any_depth_and_blocks(case, depth):
    ids, documents, queries, judged = case
    whole = rankings_of(ids, documents, queries, judged)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "_BLOCK_BYTES", 1)
        shallow = rankings_of(ids, documents, queries, judged, depth=depth)
    for deep, cut in zip(whole, shallow, strict=True):
        assert cut.gains.tolist() == deep.gains[:depth].tolist()


@given(searches())
def test_trec_eval_prints_the_same(case):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    ids, documents, queries, judged = case
    names = [f"q{row}" for row in range(len(queries))]
    run = {name: slow_ranking(query, documents, ids)[1] for name, query in zip(names, queries, strict=True)}
    wanted = {"ndcg_cut.3,10", "recall.3,100", "map_cut.3,1000"}
    evaluator = pytrec_eval.RelevanceEvaluator(dict(zip(names, judged, strict=True)), wanted)
    printed = evaluator.evaluate(run)
    for name, ranking in zip(names, rankings_of(ids, documents, queries, judged), strict=True):
        ours = {
            "ndcg_cut_3": ndcg(ranking, cutoff=3),
            "ndcg_cut_10": ndcg(ranking),
            "recall_3": recall(ranking, cutoff=3),
            "recall_100": recall(ranking),
            "map_cut_3": average_precision(ranking, cutoff=3),
            "map_cut_1000": average_precision(ranking),
        }
        assert ours == pytest.approx({key: printed[name][key] for key in ours}, abs=1e-6)
