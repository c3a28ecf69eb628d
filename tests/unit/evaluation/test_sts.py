from __future__ import annotations

import math

import numpy as np
import pytest

from embedkit.errors import DataError
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.sts import ScoredPairs, evaluate_pairs, spearman
from embedkit.evaluation.tasks import EmbeddingCache, evaluate
from embedkit.records import HubDataset, Row


def pairs(name, rows):
    first, second, scores = zip(*rows, strict=True)
    return ScoredPairs(name, list(first), list(second), np.array(scores, dtype=np.float64))


LIKE = pairs("like", [("a b", "a b", 5.0), ("a b", "a c", 3.0), ("a b", "c d", 0.0)])
MIXED = pairs("mixed", [("x y", "x y", 1.0), ("x y", "x z", 4.0)])


@pytest.mark.parametrize("values", [[2, 2, 2], [1, math.nan, 3], [1]])
def test_spearman_of_a_constant_of_nan_or_of_one_pair_is_undefined(values):
    others = [1, 2, 3][: len(values)]
    assert math.isnan(spearman(values, others))
    assert math.isnan(spearman(others, values))


def test_the_correlation_of_a_model(words):
    assert evaluate_pairs(words, LIKE) == pytest.approx(1)
    assert sorted(words.seen) == ["a b", "a c", "c d"]  # each distinct text once


def test_all_mean_and_wmean_differ(words):
    two = ScoredPairs(
        "two",
        [*LIKE.first, *MIXED.first],
        [*LIKE.second, *MIXED.second],
        np.concatenate([LIKE.scores, MIXED.scores]),
        subsets={"like": 3, "mixed": 2},
    )
    found = two.result(EmbeddingCache(words, two.texts(), label=""))
    assert {name: part.value for name, part in found.parts.items()} == {
        "like": pytest.approx(1),
        "mixed": pytest.approx(-1),
    }
    assert found.measures["mean"] == pytest.approx(0)
    assert found.measures["wmean"] == pytest.approx((3 * 1 + 2 * -1) / 5)
    # cosines 1, .5, 0, 1, .5 have the ranks 4.5, 2.5, 1, 4.5, 2.5; scores 5, 3, 0, 1, 4 the ranks 5, 3, 1, 2, 4
    assert found.value == pytest.approx(spearman([4.5, 2.5, 1, 4.5, 2.5], [5, 3, 1, 2, 4]))
    assert found.notes == []


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([("a", "a", 2.0), ("a", "b", 2.0)], "all scores of the set are equal"),
        ([("a", "a", 1.0), ("b", "b", 2.0)], "all similarities of the model are equal"),
        ([("a", "b", 1.0)], "there is only one pair"),
    ],
)
def test_an_undefined_correlation_says_why(words, rows, why):
    one = pairs("one", rows)
    found = one.result(EmbeddingCache(words, one.texts(), label=""))
    assert (found.value, found.notes) == (None, [f"Spearman's correlation is undefined: {why}"])


def test_scored_pairs_must_have_equal_lengths():
    with pytest.raises(DataError, match="got 2, 1 and 1"):
        ScoredPairs("uneven", ["a", "b"], ["c"], np.array([1.0]))
    with pytest.raises(DataError, match="nothing: expected scored pairs, found none"):
        ScoredPairs("nothing", [], [], np.array([]))
    with pytest.raises(DataError, match="not a finite number"):
        ScoredPairs("nan", ["a"], ["b"], np.array([math.nan]))


@pytest.fixture
def sts16(write_lines):
    """Write two subsets of STS16 as released: further fields with sources, empty gold lines."""
    write_lines("STS16-en-test/STS.input.headlines.txt", "a\tb\turl\turl", "c\td\turl\turl", "e\tf\turl\turl")
    write_lines("STS16-en-test/STS.gs.headlines.txt", "5", "", "1")
    write_lines("STS16-en-test/STS.input.plagiarism.txt", "g\th")
    return write_lines("STS16-en-test/STS.gs.plagiarism.txt", "3").parents[1]


def load(name, folder):
    (sts,) = load_task(name, data=folder).sets
    return sts


def test_unscored_rows_are_dropped(sts16):
    found = load("sts16", sts16)
    assert found.subsets == {"headlines": 2, "plagiarism": 1}
    assert (found.first, found.second) == (["a", "e", "g"], ["b", "f", "h"])
    assert found.scores.tolist() == [5, 1, 3]


def test_subsets_that_differ_from_the_published_ones_are_named(words, sts16):
    (result,) = evaluate(words, load_task("sts16", data=sts16)).results
    assert (result.expected, result.complete) == (1186, False)
    assert result.notes[-1] == (
        "3 pairs, 0 answer-answer, 2 headlines, 1 plagiarism, 0 postediting, 0 question-question; the published "
        "set has 1,186 pairs, 254 answer-answer, 249 headlines, 230 plagiarism, 244 postediting, "
        "209 question-question"
    )


def test_other_subsets_are_not_read(write_lines, tmp_path):
    for kind, line in (("input", "a\tb"), ("gs", "1")):
        write_lines(f"STS13-en-test/STS.{kind}.SMT.txt", line)
        write_lines(f"STS13-en-test/STS.{kind}.FNWN.txt", line)
    assert [*load("sts13", tmp_path).subsets] == ["FNWN"]


def test_broken_files_are_named(sts16, write_lines):
    write_lines("STS16-en-test/STS.gs.plagiarism.txt", "3", "4")
    with pytest.raises(DataError, match=r"plagiarism\.txt has 1 lines but .*plagiarism\.txt has 2"):
        load("sts16", sts16)
    write_lines("STS16-en-test/STS.gs.plagiarism.txt", "three")
    with pytest.raises(DataError, match=r"STS\.gs\.plagiarism\.txt:1: expected a finite number"):
        load("sts16", sts16)
    write_lines("STS16-en-test/STS.gs.plagiarism.txt", "3")
    write_lines("STS16-en-test/STS.input.plagiarism.txt", "g h")
    with pytest.raises(DataError, match=r"STS\.input\.plagiarism\.txt:1: expected two sentences"):
        load("sts16", sts16)


def test_an_empty_folder_is_named(tmp_path):
    (tmp_path / "STS12-en-test").mkdir()
    with pytest.raises(DataError, match="found none"):
        load("sts12", tmp_path)


def test_benchmark_and_sick_splits(write_lines, tmp_path):
    write_lines("STSBenchmark/sts-dev.csv", "g\tf\ty\t1\t2.5\tone\ttwo")
    write_lines("SICK/SICK_trial.txt", "sentence_A\tsentence_B\trelatedness_score", "one\ttwo\t3")
    assert (len(load("stsb-dev", tmp_path)), load("stsb-dev", tmp_path).expected) == (1, {"pairs": 1500})
    assert load("sick-trial", tmp_path).expected == {"pairs": 500}
    with pytest.raises(DataError, match=r"has no sts-test\.csv"):
        load("stsb", tmp_path)


def test_sts17_is_the_mean_of_eight_pairs_of_languages(words, write_lines, tmp_path):
    for languages in ("ar-ar", "es-es", "en-en", "en-ar", "es-en", "en-tr", "en-de", "en-fr"):  # en-fr as packed
        score = {"en-de": -1}.get(languages, 1)
        lines = [f"a b\ta {i % 3}\t{score}" if i else f"a b\ta b\t{2 * score}" for i in range(250)]
        write_lines(f"STS2017-extended/STS.{languages}.txt", *lines)
    *each, average = evaluate(words, load_task("sts17", data=tmp_path)).results
    assert [result.name for result in each][-2:] == ["sts17-en-de", "sts17-fr-en"]
    assert all(result.complete for result in each)
    assert each[0].value == -each[-2].value
    assert (average.measure, average.value) == ("average of 8", pytest.approx(each[0].value * 6 / 8))


def test_tables_of_the_hub_are_asked_for_their_language(monkeypatch):
    asked = []

    def rows(self, *, configuration, split="test"):
        asked.append((self.id, configuration, split))
        return iter([Row("", {"sentence1": "a", "sentence2": "b", "similarity_score": 1})])

    monkeypatch.setattr(HubDataset, "rows", rows)
    load_task("stsb-de-dev")
    load_task("sts17")
    assert asked[:2] == [("mteb/stsb_multi_mt", "de", "dev"), ("mteb/sts17-crosslingual-sts", "ar-ar", "test")]
    assert len(asked) == 9


def test_translated_stsb_from_files(write_lines, tmp_path):
    write_lines("sts/stsb-multi-mt/stsb-de-test.csv", 'Ein Mann.,"Ein Mann, ja.",5.0')
    (sts,) = load_task("stsb-de", data=tmp_path).sets
    assert (sts.second, sts.expected) == (["Ein Mann, ja."], {"pairs": 1379})


def test_lower_cased_copies_are_named(words, write_lines, tmp_path):
    note = "the text is lower-cased, as in SentEval's copy"
    for text, there in (("a girl , yes .", True), ("A girl, yes.", False)):
        write_lines("STSBenchmark/sts-test.csv", *(f"g\tf\ty\t1\t{score}\t{text}\t{score}" for score in (1, 2)))
        (result,) = evaluate(words, load_task("stsb", data=tmp_path)).results
        assert (note in result.notes) is there
