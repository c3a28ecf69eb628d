from __future__ import annotations

import pytest

from embedkit.errors import DataError
from embedkit.evaluation.sts import STS_YEARS, load_sick, load_stsb, load_year
from embedkit.records import HubDataset


def test_published_sizes():
    totals = {year: sum(subsets.values()) for year, subsets in STS_YEARS.items()}
    assert totals == {"sts12": 3108, "sts13": 1500, "sts14": 3750, "sts15": 3000, "sts16": 1186}


@pytest.fixture
def sts16(write_lines):
    """Write two subsets of STS16 as released: further fields with sources, empty gold lines."""
    write_lines("STS16-en-test/STS.input.headlines.txt", "a\tb\turl\turl", "c\td\turl\turl", "e\tf\turl\turl")
    write_lines("STS16-en-test/STS.gs.headlines.txt", "5", "", "1")
    write_lines("STS16-en-test/STS.input.plagiarism.txt", "g\th")
    return write_lines("STS16-en-test/STS.gs.plagiarism.txt", "3").parent


def test_unscored_rows_are_dropped(sts16):
    found = load_year("sts16", sts16)
    headlines, plagiarism = found.subsets
    assert (headlines.name, headlines.first, headlines.second) == ("headlines", ["a", "e"], ["b", "f"])
    assert headlines.scores.tolist() == [5, 1]
    assert plagiarism.name == "plagiarism"
    assert found.rows == 3


def test_subsets_that_differ_from_the_published_ones_are_named(sts16):
    assert load_year("sts16", sts16).differences() == [
        "answer-answer: 0 scored pairs; the published set has 254",
        "headlines: 2 scored pairs; the published set has 249",
        "plagiarism: 1 scored pairs; the published set has 230",
        "postediting: 0 scored pairs; the published set has 244",
        "question-question: 0 scored pairs; the published set has 209",
    ]


def test_other_subsets_are_not_read(write_lines):
    for kind, line in (("input", "a\tb"), ("gs", "1")):
        write_lines(f"STS13-en-test/STS.{kind}.SMT.txt", line)
        folder = write_lines(f"STS13-en-test/STS.{kind}.FNWN.txt", line).parent
    assert [pairs.name for pairs in load_year("sts13", folder).subsets] == ["FNWN"]


def test_broken_files_are_named(sts16, write_lines):
    write_lines("STS16-en-test/STS.gs.plagiarism.txt", "3", "4")
    with pytest.raises(DataError, match=r"plagiarism\.txt has 1 lines but .*plagiarism\.txt has 2"):
        load_year("sts16", sts16)
    write_lines("STS16-en-test/STS.gs.plagiarism.txt", "three")
    with pytest.raises(DataError, match=r"STS\.gs\.plagiarism\.txt:1: expected a finite number"):
        load_year("sts16", sts16)
    write_lines("STS16-en-test/STS.gs.plagiarism.txt", "3")
    write_lines("STS16-en-test/STS.input.plagiarism.txt", "g h")
    with pytest.raises(DataError, match=r"STS\.input\.plagiarism\.txt:1: expected two sentences"):
        load_year("sts16", sts16)


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(DataError, match="found none"):
        load_year("sts12", tmp_path)


def test_benchmark_and_sick_splits(write_lines):
    stsb = write_lines("STSBenchmark/sts-dev.csv", "g\tf\ty\t1\t2.5\tone\ttwo").parent
    sick = write_lines("SICK/SICK_trial.txt", "sentence_A\tsentence_B\trelatedness_score", "one\ttwo\t3").parent
    assert load_stsb(stsb, "dev").differences() == ["1 scored pairs; the published set has 1500"]
    assert load_sick(sick, "trial").differences() == ["1 scored pairs; the published set has 500"]
    with pytest.raises(DataError, match=r"there is no file or folder .*sts-test\.csv"):
        load_stsb(stsb, "test")


def test_sts17_is_the_mean_of_eight_pairs_of_languages(words, write_lines, tmp_path):
    from embedkit.evaluation.catalogue import load_task
    from embedkit.evaluation.tasks import evaluate

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
    from embedkit.evaluation.catalogue import load_task
    from embedkit.records import Row

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
    from embedkit.evaluation.catalogue import load_task

    write_lines("sts/stsb-multi-mt/stsb-de-test.csv", 'Ein Mann.,"Ein Mann, ja.",5.0')
    (sts,) = load_task("stsb-de", data=tmp_path).sets
    assert sts.subsets[0].second == ["Ein Mann, ja."]
    assert sts.differences() == ["1 scored pairs; the published set has 1379"]


def test_lower_cased_copies_are_named(words, write_lines, tmp_path):
    from embedkit.evaluation.catalogue import load_task
    from embedkit.evaluation.tasks import evaluate

    note = "the text is lower-cased, as in SentEval's copy"
    for text, there in (("a girl , yes .", True), ("A girl, yes.", False)):
        write_lines("STSBenchmark/sts-test.csv", *(f"g\tf\ty\t1\t{score}\t{text}\t{score}" for score in (1, 2)))
        (result,) = evaluate(words, load_task("stsb", data=tmp_path)).results
        assert (note in result.notes) is there
