from __future__ import annotations

import pytest

from embedkit.errors import DataError
from embedkit.evaluation.sts_sources import STS_YEARS, load_sick, load_stsb, load_year


def test_published_sizes():
    totals = {year: sum(subsets.values()) for year, subsets in STS_YEARS.items()}
    assert totals == {"sts12": 3108, "sts13": 1500, "sts14": 3750, "sts15": 3000, "sts16": 1186}


@pytest.fixture
def sts16(write_lines):
    """Two subsets of STS16 as released: further fields with sources, empty gold lines."""
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
        "answer-answer: 0 scored pairs, published are 254",
        "headlines: 2 scored pairs, published are 249",
        "plagiarism: 1 scored pairs, published are 230",
        "postediting: 0 scored pairs, published are 244",
        "question-question: 0 scored pairs, published are 209",
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
    assert load_stsb(stsb, "dev").differences() == ["1 scored pairs, published are 1500"]
    assert load_sick(sick, "trial").differences() == ["1 scored pairs, published are 500"]
    with pytest.raises(DataError, match=r"there is no file or folder .*sts-test\.csv"):
        load_stsb(stsb, "test")
