from __future__ import annotations

import datetime as dt
import decimal
import uuid

import numpy as np
import pytest

from embedkit.errors import DataError, InputError
from embedkit.serving.retrieval.documents import Columns, Document, named_records, to_documents


def read_documents(source, **columns):
    return to_documents(named_records(source), Columns(**columns))


def write(path, content):
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "content", "columns", "documents"),
    [
        (
            "d.jsonl",
            '{"id": 7, "text": "a\\nb", "n": {"x": [1]}}\n\n{"id": "ü", "text": "c"}\n',
            {},
            [Document("7", "a\nb", {"n": {"x": [1]}}), Document("ü", "c")],
        ),
        ("d.jsonl", '{"body": "a"}\n{"body": "b"}\n', {"text": "body"}, [Document("0", "a"), Document("1", "b")]),
        (
            "d.jsonl",
            '{"_id": "q", "id": 3, "title": "t", "text": "a"}\n',
            {"text": "title", "id": "_id"},
            [Document("q", "t", {"id": 3, "text": "a"})],
        ),
        ("d.csv", 'id,text,lang\n1,"a ""b""\nc",en\n', {}, [Document("1", 'a "b"\nc', {"lang": "en"})]),
        (
            "d.tsv",
            'd1\ta "quoted text\nd2\tb\n',
            {"text": "text2", "id": "text1"},
            [Document("d1", 'a "quoted text'), Document("d2", "b")],
        ),
        ("d.txt", "a\nb\u2028c\n", {}, [Document("0", "a"), Document("1", "b\u2028c")]),
    ],
)
def test_files_are_read(tmp_path, name, content, columns, documents):
    assert list(read_documents(write(tmp_path / name, content), **columns)) == documents


def test_iterables():
    assert list(read_documents(iter(["a", "b"]))) == [Document("0", "a"), Document("1", "b")]
    assert list(read_documents({"x": "a", "y": "b"}.items())) == [Document("x", "a"), Document("y", "b")]
    assert list(read_documents([{"id": 1, "text": "a", "n": 2}])) == [Document("1", "a", {"n": 2})]
    assert list(read_documents(zip(np.arange(2), "ab", strict=True))) == [Document("0", "a"), Document("1", "b")]


@pytest.mark.parametrize("records", [["a", ("x", "b")], [{"text": "a"}, {"text": "b", "id": "x"}]])
def test_all_documents_have_ids_or_none(records):
    with pytest.raises(DataError, match="the first document has none"):
        list(read_documents(records))


def test_a_table_is_not_an_iterable_of_documents():
    frame = pytest.importorskip("pandas").DataFrame({"text": ["a dog"], "year": [2020]})
    with pytest.raises(InputError, match="got DataFrame, a table"):
        list(read_documents(frame))
    assert [document.metadata for document in read_documents(frame.to_dict("records"))] == [{"year": 2020}]


def test_missing_values_of_pandas_are_no_text_and_no_json():
    pandas = pytest.importorskip("pandas")
    for missing in (pandas.NA, pandas.NaT, float("nan"), None):
        records = [{"id": 1, "text": missing}, {"id": 2, "text": "a dog"}]
        assert [document.id for document in read_documents(records, skip_empty=True)] == ["2"]
    with pytest.raises(DataError, match="document 1: n is <NA>"):
        list(read_documents([{"text": "a", "n": pandas.NA}]))
    with pytest.raises(DataError, match="expected a string as text"):
        list(read_documents([{"text": np.arange(2)}], skip_empty=True))


def test_metadata_nested_too_deeply_name_their_line(tmp_path):
    path = write(tmp_path / "d.jsonl", '{"text": "a", "n": ' + "[" * 900 + "]" * 900 + "}\n")
    with pytest.raises(DataError, match=r"d\.jsonl:1"):
        list(read_documents(path))


def test_one_mapping_is_not_an_iterable_of_documents():
    with pytest.raises(InputError, match="items"):
        list(read_documents({"x": "a"}))


@pytest.mark.parametrize("item", [3, None, ["a", "b"], ("a", "b", "c"), b"a"])
def test_other_items_are_refused_by_position(item):
    with pytest.raises(InputError, match="document 2: .*" + type(item).__name__):
        list(read_documents(["a", item]))


@pytest.mark.parametrize(
    ("name", "content", "place", "message"),
    [
        ("d.jsonl", '{"text": "a"}\n\n{"body": "b"}\n', "d.jsonl:3", "no column 'text' among body"),
        ("d.jsonl", '{"text": "a", "id": 1}\n{"text": "b"}\n', "d.jsonl:2", "no column 'id'"),
        ("d.jsonl", '{"text": "a"}\n{"text": ["b"]}\n', "d.jsonl:2", "expected a string"),
        ("d.jsonl", '{"text": "a"}\n{"text": " \\n"}\n', "d.jsonl:2", "empty"),
        ("d.jsonl", '{"text": "a", "id": true}\n', "d.jsonl:1", "as id"),
        ("d.jsonl", '{"text": "a", "id": ""}\n', "d.jsonl:1", "as id"),
        ("d.jsonl", '{"text": "a", "id": 1.5}\n', "d.jsonl:1", "as id"),
        ("d.jsonl", '{"text": "a", "n": ' + "9" * 5000 + "}\n", "d.jsonl:1", "JSON"),
    ],
)
def test_errors_name_the_file_and_the_line(tmp_path, name, content, place, message):
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=message) as caught:
        list(read_documents(path))
    assert str(path.parent / place) in str(caught.value)


def test_an_error_of_the_iterator_is_not_a_write_error():
    def texts():
        yield "a"
        raise ConnectionError("the line is down")

    with pytest.raises(DataError, match="the line is down"):
        list(read_documents(texts()))


NUMPY = {"n": np.int64(3), "x": np.float32(0.5), "yes": np.bool_(True), "rows": np.arange(2), "s": np.str_("a")}


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (dt.datetime(2024, 5, 1, 12, 30, tzinfo=dt.UTC), "2024-05-01T12:30:00+00:00"),
        (dt.date(2024, 5, 1), "2024-05-01"),
        (dt.time(12, 30), "12:30:00"),
        (np.datetime64("2024-05-01T12:30"), "2024-05-01T12:30"),
        (decimal.Decimal("12.50"), 12.5),
        (decimal.Decimal(7), 7),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (NUMPY, {"n": 3, "x": 0.5, "yes": True, "rows": [0, 1], "s": "a"}),
        ((1, None, [2.5]), [1, None, [2.5]]),
    ],
)
def test_metadata_become_json(value, stored):
    assert list(read_documents([{"text": "a", "v": value}])) == [Document("0", "a", {"v": stored})]


@pytest.mark.parametrize(
    "value",
    [
        b"x",
        float("nan"),
        np.float32("inf"),
        np.datetime64("NaT"),
        decimal.Decimal("0.1234567890123456789"),
        object(),
        {1},
    ],
)
def test_values_without_json_name_their_field_and_the_way_out(value):
    with pytest.raises(DataError, match=r"document 2: price is .*, which JSON does not have; .* or leave it out$"):
        list(read_documents([{"text": "a"}, {"text": "b", "price": value}]))
    with pytest.raises(DataError, match=r"document 1: price\.net is"):
        list(read_documents([{"text": "a", "price": {"net": value}}]))
    kept = {"text": "b", "price": value, "n": 1}
    assert list(read_documents([kept], metadata=["n"])) == [Document("0", "b", {"n": 1})]


def test_columns_of_metadata_must_exist():
    with pytest.raises(DataError, match="there is no column 'm' among text, n; name it with metadata_columns"):
        list(read_documents([{"text": "a", "n": 1}], metadata=["m"]))


@pytest.mark.parametrize("empty", ["", " \n", None, float("nan")])
def test_documents_without_text_are_refused_or_left_out(empty, caplog):
    records = [{"text": "a"}, {"text": empty}, {"text": "b"}]
    with pytest.raises(DataError, match="document 2: "):
        list(read_documents(records))
    assert list(read_documents(records, skip_empty=True)) == [Document("0", "a"), Document("2", "b")]
    assert caplog.messages == ["left out 1 document without text"]
