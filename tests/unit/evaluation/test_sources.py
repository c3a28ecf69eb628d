from __future__ import annotations

from pathlib import Path

import pytest

from embedkit.errors import DataError
from embedkit.evaluation.sources import locate
from embedkit.evaluation.sts import load_scored_pairs
from embedkit.records import HubDataset

STSB = 'main-captions\tMSRvid\t2012test\t0024\t2.500\tA girl\tA "woman"{}'


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("sts-test.csv", [STSB.format(""), STSB.format("\tsource\tanother")]),
        ("sick.txt", ["pair_ID\tsentence_A\tsentence_B\trelatedness_score", *['6\tA girl\tA "woman"\t2.5'] * 2]),
        ("plain.tsv", ['A girl\tA "woman"\t2.5'] * 2),
        ("plain.csv", ['A girl,"A ""woman""",2.5'] * 2),
        ("header.csv", ["score,sentence2,sentence1", *['2.5,"A ""woman""",A girl'] * 2]),
        ("rows.jsonl.gz", ['{"sentence1": "A girl", "sentence2": "A \\"woman\\"", "score": 2.5}'] * 2),
    ],
)
def test_every_form_gives_the_same_pairs(write_lines, name, lines):
    pairs = load_scored_pairs(write_lines(name, *lines))
    assert pairs.name == name.partition(".")[0]
    assert pairs.first == ["A girl"] * 2
    assert pairs.second == ['A "woman"'] * 2
    assert pairs.scores.tolist() == [2.5, 2.5]


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("a.tsv", ["one\ttwo\t1", "one\ttwo\tmuch"], r"a\.tsv:2: expected a finite number as score, got 'much'"),
        ("a.tsv", ["one\ttwo\t1", "one\ttwo"], r"a\.tsv:2: expected 3 cells, found 2"),
        ("a.tsv", ["s1\ts2\tlabel", "one\ttwo\t1"], r"a\.tsv:2: expected a column sentence1 or sentence_A"),
        ("a.jsonl", ['{"sentence1": "x", "score": 1}'], r"a\.jsonl:1: expected a column sentence2"),
        ("a.jsonl", ['{"sentence1": ', ""], r"a\.jsonl:1"),
        (
            "a.jsonl",
            ['{"sentence1": "x", "sentence2": "y", "score": NaN}'],
            r"a\.jsonl:1: expected a finite number",
        ),
        ("a.tsv", [], "a: expected scored pairs, found none"),
        ("a.csv", ["sentence1,sentence2,score"], "a: expected scored pairs, found none"),
    ],
)
def test_malformed_files_name_their_line(write_lines, name, lines, message):
    with pytest.raises(DataError, match=message):
        load_scored_pairs(write_lines(name, *lines))


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(DataError, match="is a folder"):
        load_scored_pairs(tmp_path)


def test_an_existing_path_is_never_a_hub_id(tmp_path, monkeypatch):
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").write_text("")
    monkeypatch.chdir(tmp_path)
    assert locate("org/name") == Path("org/name")
    assert locate("org/other") == HubDataset("org/other")
    assert locate("hf://org/name") == HubDataset("org/name")


@pytest.mark.parametrize("source", ["gone.jsonl", "org/gone.tsv", Path("gone"), "a/b/c", "gone"])
def test_a_name_like_a_file_never_uses_the_network(source):
    with pytest.raises(DataError, match=r"there is no file|neither a file or folder"):
        locate(source)


def test_a_name_on_the_hub_may_have_a_revision_and_a_split():
    assert locate("hf://org/name@r2:dev") == HubDataset("org/name", "r2", "dev")
