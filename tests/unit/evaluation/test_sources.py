from __future__ import annotations

from pathlib import Path

import pytest
from toys import write_parquet

from embedkit.errors import DataError
from embedkit.evaluation.sources import locate, read_rows
from embedkit.evaluation.sts import load_scored_pairs
from embedkit.records import HubDataset, Row, read_table

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
        (
            "a.jsonl",
            ['{"sentence1": "x", "sentence2": "y", "score": NaN}'],
            r"a\.jsonl:1: expected a finite number",
        ),
        ("a.tsv", [], "a: expected scored pairs, found none"),
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


def texts(rows):
    return [fields for _, fields in rows]


def test_tab_separated_quotes_are_text(write_lines):
    path = write_lines("a.csv", 'he said "no\tb', "", '"x" y\tz')
    assert texts(read_table(path)) == [['he said "no', "b"], ['"x" y', "z"]]


def test_csv_quotes_are_quotes(write_lines):
    path = write_lines("a.csv", '"one, two",b', "", '"three', 'lines",d')
    assert list(read_table(path)) == [(f"{path}:1", ["one, two", "b"]), (f"{path}:3", ["three\nlines", "d"])]


def test_json_lines_and_parquet_give_the_same_rows(write_json_lines, tmp_path):
    objects = [{"query": "a", "positive": ["b"]}, {"query": "c", "positive": ["d", "e"]}]
    write_parquet(tmp_path / "a.parquet", objects)
    for path in (write_json_lines("a.jsonl.gz", *objects), tmp_path / "a.parquet"):
        assert [row.fields for row in read_rows(path)] == objects


ROW = Row("a.jsonl:7", {"text": "x", "n": 3, "list": ["a"], "none": None, "digits": "2.5"})


def test_accessors_take_the_first_existing_column():
    assert ROW.text("title", "text") == "x"
    assert ROW.texts("list") == ["a"]
    assert ROW.identifier("n") == "3"
    assert ROW.number("digits") == 2.5


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (
            lambda: ROW.text("title", "name"),
            "a.jsonl:7: expected a column title or name; its columns are: text, n",
        ),
        (lambda: ROW.text("none"), "a.jsonl:7: expected a string as none, got None"),
        (lambda: ROW.texts("text"), "a.jsonl:7: expected a list of strings as text, got 'x'"),
        (lambda: ROW.identifier("none"), "a.jsonl:7: expected an id as none, got None"),
        (lambda: ROW.number("text"), "a.jsonl:7: expected a finite number as text, got 'x'"),
        (lambda: ROW.number("none"), "a.jsonl:7: expected a finite number as none, got None"),
    ],
)
def test_errors_of_accessors_name_what_was_expected_where(read, message):
    with pytest.raises(DataError) as caught:
        read()
    assert str(caught.value).startswith(message)
