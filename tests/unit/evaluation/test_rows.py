from __future__ import annotations

import pytest
from toys import write_parquet

from embedkit.errors import DataError
from embedkit.evaluation.sources import read_rows
from embedkit.records import Row, read_table


def texts(rows):
    return [fields for _, fields in rows]


def test_tab_separated_quotes_are_text(write_lines):
    path = write_lines("a.csv", 'he said "no\tb', "", '"x" y\tz')
    assert texts(read_table(path)) == [['he said "no', "b"], ['"x" y', "z"]]


def test_csv_quotes_are_quotes(write_lines):
    path = write_lines("a.csv", '"one, two",b', "", '"three', 'lines",d')
    assert list(read_table(path)) == [(f"{path}:1", ["one, two", "b"]), (f"{path}:3", ["three\nlines", "d"])]


def test_a_table_with_a_header_gives_rows(write_lines):
    rows = list(read_rows(write_lines("a.tsv", "id\tscore", "x\t1.5")))
    assert [row.fields for row in rows] == [{"id": "x", "score": "1.5"}]
    with pytest.raises(DataError, match=r"b\.tsv:2: expected 2 cells, found 1"):
        list(read_rows(write_lines("b.tsv", "id\tscore", "x")))


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
