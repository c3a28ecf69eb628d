from __future__ import annotations

import numpy as np
import pytest

from embedkit.errors import InputError
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.pairs import Thresholds, separation
from embedkit.evaluation.results import Evaluation, Resampler, Result, Samples, confidence_intervals
from embedkit.evaluation.sts import correlation
from embedkit.evaluation.tasks import evaluate


def interval(resampler, **options):
    return Samples.of(resampler, **options).interval()


def compare(first, second, **options):
    return Samples.of(second, **options).less(Samples.of(first, **options))


RIGHT = np.array([1.0, 1.0, 1.0, 0.0] * 10)


def evaluation(model, scores):
    value = float(scores.mean())
    result = Result(
        name="mine",
        measure="accuracy",
        value=value,
        measures={"accuracy": value},
        rows=len(scores),
        unit="texts",
        source="mine.csv",
        resampler=Resampler.of_rows(scores),
    )
    about = {"dimension": 8, "max_length": 12, "task": "mine", "texts": 3, "seconds": 1.0}
    return Evaluation(model=model, fingerprint=model, results=[result], **about)


def test_an_interval_holds_the_figure_and_a_seed_repeats_it():
    found = interval(Resampler.of_rows(RIGHT), samples=200)
    assert 0.5 < found.low < 0.75 < found.high < 0.95
    assert interval(Resampler.of_rows(RIGHT), samples=200) == found
    assert interval(Resampler.of_rows(RIGHT), samples=200, seed=1) != found


def test_a_clear_difference_is_distinguished_from_a_doubtful_one():
    clear = compare(Resampler.of_rows(1 - RIGHT), Resampler.of_rows(RIGHT), samples=200)
    assert clear.value == pytest.approx(0.5)
    assert clear.p_value == pytest.approx(2 / 201)
    other = RIGHT.copy()
    other[:2] = 0, 0
    other[3] = 1
    doubtful = compare(Resampler.of_rows(other), Resampler.of_rows(RIGHT), samples=200)
    assert doubtful.interval.low < 0 < doubtful.interval.high
    assert doubtful.p_value > 0.1
    assert compare(Resampler.of_rows(RIGHT), Resampler.of_rows(RIGHT), samples=50).p_value == 1.0


def test_different_rows_cannot_be_compared():
    with pytest.raises(InputError, match=r"sets of \[40\] and of \[39\] rows"):
        compare(Resampler.of_rows(RIGHT), Resampler.of_rows(RIGHT[1:]))


def test_undefined_samples_are_left_out():
    flat = correlation(np.zeros(5, dtype=np.float32), np.arange(5.0))
    assert interval(flat, samples=20).low is None
    assert compare(flat, flat, samples=20).p_value is None
    rare = separation(np.arange(4, dtype=np.float32), np.array([True, False, False, False]), Thresholds.roc_auc)
    assert interval(rare, samples=50).high is not None
    assert np.isnan(rare.figure([np.array([1, 1, 2, 3])]))


def test_an_average_is_undefined_where_a_part_is():
    both = Resampler.of_sets(
        [Resampler.of_rows(RIGHT), correlation(np.zeros(2, dtype=np.float32), np.arange(2.0))]
    )
    assert both.sizes == [40, 2]
    assert np.isnan(both.figure([np.arange(40), np.arange(2)]))


def test_every_kind_of_task_has_evidence_that_gives_its_figure(words, write_json_lines):
    rows = {
        "sts": [{"sentence1": "a b", "sentence2": text, "score": i} for i, text in enumerate(["c", "a", "a b"])],
        "pairs": [{"sentence1": "a b", "sentence2": t, "label": i} for t, i in (("c", 0), ("a", 1), ("d b", 0))],
        "triplets": [{"anchor": "a b", "positive": "a", "negative": t} for t in ("c", "a b")],
        "lists": [{"query": q, "positive": ["a"], "negative": ["b", "a c"]} for q in ("a", "b")],
        "judged": [{"query": q, "document": d, "score": i} for q, d, i in (("a", "a b", 1), ("c", "a", 1))],
    }
    for name, each in rows.items():
        for result in evaluate(words, load_task(str(write_json_lines(f"{name}.jsonl", *each)))).results:
            assert result.resampler is not None, name
            whole = [np.arange(size) for size in result.resampler.sizes]
            assert result.resampler.figure(whole) == pytest.approx(result.value), name
            assert sum(result.resampler.sizes) == result.rows


def test_models_are_compared_with_the_first():
    first, second = confidence_intervals([evaluation("a", 1 - RIGHT), evaluation("b", RIGHT)], samples=100)
    assert first.difference is None
    assert second.difference.value == pytest.approx(0.5)
