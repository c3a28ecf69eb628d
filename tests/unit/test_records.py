"""Records of files in every format."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import os
import threading
from pathlib import Path

import pytest
from toys import write_parquet

from embedkit import records
from embedkit.errors import DataError, MissingExtraError
from embedkit.records import read_records

PACKERS = {"": lambda data: data, ".gz": gzip.compress, ".xz": lzma.compress}


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        data = content.encode() if isinstance(content, str) else content
        packing = "." + name.rpartition(".")[2] if name.endswith((".gz", ".xz")) else ""
        path = tmp_path / name
        path.write_bytes(PACKERS[packing](data))
        return path

    return write


def rows(path):
    return [record for _, record in read_records(path)]


@pytest.mark.parametrize("packing", PACKERS)
class TestForms:
    def test_txt_has_one_text_per_line(self, write, packing):
        assert rows(write(f"a.txt{packing}", "one\n\n \t\ntwo")) == [{"text": "one"}, {"text": "two"}]

    def test_tsv_names_cells_by_position(self, write, packing):
        found = rows(write(f"a.tsv{packing}", "a\tb\n\nc\t\n"))
        assert found == [{"text1": "a", "text2": "b"}, {"text1": "c", "text2": ""}]

    def test_tsv_is_named_by_a_header_of_usual_names(self, write, packing):
        assert rows(write(f"a.tsv{packing}", "qid\tQuestion 1\n7\ta\n")) == [{"qid": "7", "Question 1": "a"}]
        assert rows(write(f"b.tsv{packing}", "query\tle cas\n")) == [{"text1": "query", "text2": "le cas"}]

    def test_csv_is_named_by_its_header(self, write, packing):
        content = 'id,text\r\n1,"two\r\nlines, and ""quotes"""\r\n2,\r\n'
        found = rows(write(f"a.csv{packing}", content))
        assert found == [{"id": "1", "text": 'two\r\nlines, and "quotes"'}, {"id": "2", "text": ""}]

    def test_jsonl_has_one_object_per_line(self, write, packing):
        found = list(read_records(write(f"a.jsonl{packing}", '{"text": "a"}\n\n  \n{"text": "b", "n": [1]}\n')))
        assert found == [(1, {"text": "a"}), (4, {"text": "b", "n": [1]})]


def test_blank_lines_are_counted_once_and_keep_the_numbers_of_lines(write, caplog):
    caplog.set_level("INFO", logger="embedkit")
    path = write("a.txt", "\none\n\n  \ntwo\n")
    assert list(read_records(path)) == [(2, {"text": "one"}), (5, {"text": "two"})]
    assert caplog.messages == [f"{path}: left out 3 blank lines"]


def test_parquet_rows_are_its_columns(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, {"text": ["a", None], "n": [1, 2]})
    assert list(read_records(path)) == [(1, {"text": "a", "n": 1}), (2, {"text": None, "n": 2})]


def test_parquet_needs_pyarrow(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match="pyarrow"):
        rows(tmp_path / "a.parquet")


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["a.txt", "a.tsv"])
def test_only_lf_and_crlf_end_a_line(write, name, ending):
    strange = "a\rb\x0bc\x1cd\x85e\u2028f\u2029g"
    found = rows(write(name, f"{strange}{ending}next{ending}"))
    assert [list(row.values()) for row in found] == [[strange], ["next"]]


def test_json_lines_may_hold_strange_line_ends(write):
    assert rows(write("a.jsonl", '{"text": "a\u2028b"}\r\n')) == [{"text": "a\u2028b"}]


def test_a_byte_order_mark_is_no_text(write):
    assert rows(write("a.txt", b"\xef\xbb\xbfone")) == [{"text": "one"}]


@pytest.mark.parametrize("name", ["A.TXT", "a.b.Txt", "a.TXT.GZ"])
def test_suffixes_in_any_case(write, name, tmp_path):
    path = write("plain.txt", "one") if not name.endswith("GZ") else write("plain.txt.gz", "one")
    assert rows(path.rename(tmp_path / name)) == [{"text": "one"}]


def test_rows_come_as_they_are_read(write):
    stream = read_records(write("a.jsonl", '{"text": "a"}\nnot json\n'))
    assert next(stream) == (1, {"text": "a"})
    with pytest.raises(DataError):
        next(stream)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": \n', "a.jsonl:2: not JSON"),
        ("a.jsonl", '{"a": 1}\n{"a": 1, "b": {"c": 1, "c": 1}}\n', "a.jsonl:2: 'c' occurs twice in a JSON object"),
        ("a.jsonl", "[1]\n", "a.jsonl:1: expected a JSON object, found list"),
        ("a.jsonl", "[" * 100_000 + "\n", "a.jsonl:1: not JSON"),
        (
            "a.jsonl",
            '[\n {"a": 1}\n]',
            r"a.jsonl:1: expected one JSON object per line, as `jq -c '\.\[\]'` prints",
        ),
        ("a.jsonl", '[{"a": 1}]', r"a.jsonl:1: expected one JSON object per line, as `jq -c '\.\[\]'` prints"),
        ("a.jsonl", '{\n "a": 1\n}', r"a.jsonl:1: expected one JSON object per line, as `jq -c '\.'` prints"),
        ("a.json", "[]", r"expected one of .*; `jq -c '\.\[\]' .*a\.json` prints an array as \.jsonl"),
        ("a.tsv", "a\tb\nc\n", "a.tsv:2: expected 2 cells, found 1"),
        ("a.tsv", "a\tb\nc\td\te\n", "a.tsv:2: expected 2 cells, found 3"),
        ("a.csv", "a,b,a\n1,2,3\n", "a.csv:1: two columns are called 'a'"),
        ("a.csv", "a,b\n1,2\n3\n", "a.csv:3: expected 2 cells"),
        ("a.csv", "a,b\n1,2,3\n", "a.csv:2: expected 2 cells"),
        ("a.csv", 'a,b\n"1,2\n', "a.csv:2"),
        ("a.csv", 'a,b\n1,2\n1,"2\n3\n4",5\n', "a.csv:3: expected 2 cells"),
        ("a.csv", 'a,b\n1,2\n1,"2\n3\n4"5"\n', "a.csv:3: cannot be read as CSV"),
        ("a.txt", b"fine\n\xff\xfe\n", "a.txt:2 is not UTF-8 text"),
        ("a.csv", b"a,b\r\n" + b'1,"2\r\n3"\r\n' * 3000 + b"caf\xe9,4\r\n5,6\r\n", "a.csv:6002 is not UTF-8 text"),
        ("a.csv", "a;b\n1;2\n", "a.csv:1: the cells of a .csv are separated by commas, those of this header by"),
        ("a.csv", "a\tb\n1,2\t3\n", r"a.csv:1: .* by '\\t'"),
        ("a.parquet", b"no parquet", "is not a readable Parquet file"),
        ("a.pdf", b"", r"expected one of \.txt, \.tsv"),
        ("a", b"", "expected one of"),
        ("a.gz", b"", "expected one of"),
    ],
)
def test_errors_are_named(write, name, content, message):
    with pytest.raises(DataError, match=message):
        rows(write(name, content))


@pytest.mark.parametrize("name", ["gone.txt", "gone", "gone.pdf"])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises(DataError, match="there is no file"):
        rows(tmp_path / name)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.tsv.xz", "a.csv.gz", "a.jsonl.gz"])
def test_a_line_that_would_fill_the_memory_is_refused(write, name, monkeypatch):
    monkeypatch.setattr(records, "_LONGEST_LINE", 1000)
    with pytest.raises(DataError, match=rf"{name}:2: the line has 1,000 characters or more"):
        rows(write(name, "{}\n" + "a" * 10_000))
    assert rows(write("b.txt.gz", "a" * 999)) == [{"text": "a" * 999}]


def test_a_cell_of_many_lines_that_would_fill_the_memory_is_refused(write, monkeypatch):
    monkeypatch.setattr(records, "_LONGEST_LINE", 1000)
    with pytest.raises(DataError, match="field larger than"):
        rows(write("a.csv", 'text\n"' + "line\n" * 1000 + '"\n'))


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("one\n\ntwo\n", [{"text": "one"}, {"text": "two"}]),
        ('{"text": "é"}\n{"text": "b"}\n', [{"text": "é"}, {"text": "b"}]),
        ("[1]\n{}\n", [{"text": "[1]"}, {"text": "{}"}]),
        ("", []),
    ],
)
def test_standard_input(tmp_path, monkeypatch, name, content, expected):
    (tmp_path / "input").write_text(content, encoding="utf-8")
    with (tmp_path / "input").open("rb") as file:
        monkeypatch.setattr("sys.stdin", file)
        assert rows(Path(name)) == expected


def test_an_array_on_standard_input_is_not_text(tmp_path, monkeypatch):
    (tmp_path / "input").write_text(json.dumps([{"text": "a"}], indent=1))
    with (tmp_path / "input").open("rb") as file:
        monkeypatch.setattr("sys.stdin", file)
        with pytest.raises(DataError, match="-:1: expected one JSON object per line"):
            rows(Path("-"))


def test_rows_of_many_lines_are_numbered_by_their_first(write):
    path = write("a.csv", 'text\n"one\ntwo"\nthree\n')
    assert [line for line, _ in read_records(path)] == [2, 4]


def test_a_pipe_is_read_by_its_suffix(tmp_path):
    os.mkfifo(tmp_path / "a.jsonl")
    writer = threading.Thread(target=(tmp_path / "a.jsonl").write_text, args=('{"text": "a"}\n',))
    writer.start()
    assert rows(tmp_path / "a.jsonl") == [{"text": "a"}]
    writer.join()


@pytest.mark.parametrize("packing", [".gz", ".xz"])
def test_any_damage_of_a_packed_file_is_reported(write, packing):
    whole = write(f"a.jsonl{packing}", "".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(2000)))
    data = whole.read_bytes()
    for place in range(0, len(data), len(data) // 40):
        whole.write_bytes(data[:place])  # truncated
        if place:
            with pytest.raises(DataError):
                rows(whole)
        whole.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        try:
            found = rows(whole)
        except DataError:
            continue
        assert found[-1] == {"text": "text 1999"}  # a byte of the header without effect, such as a time stamp


def test_repeated_values_of_a_small_parquet_file_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    from embedkit import parquet_files

    write_parquet(tmp_path / "a.parquet", {"text": ["a" * 100_000] * 1000}, compression="zstd")
    monkeypatch.setattr(parquet_files, "_BATCH_BYTES", 10**6)
    with parquet.ParquetFile(tmp_path / "a.parquet") as file:
        assert parquet_files.rows_per_batch(file.metadata) < 20
    assert sum(len(row["text"]) for row in rows(tmp_path / "a.parquet")) == 10**8


def test_a_text_of_a_small_parquet_file_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    from embedkit import parquet_files

    monkeypatch.setattr(parquet_files, "_LONGEST_TEXT", 1000)
    for kind in (arrow.string(), arrow.large_string()):
        table = arrow.table({"id": [1, 2], "text": arrow.array(["a" * 999, None], kind)})
        write_parquet(tmp_path / "a.parquet", table)
        assert [row["id"] for row in rows(tmp_path / "a.parquet")] == [1, 2]
        table = arrow.table({"id": [1, 2], "text": arrow.array(["a", "a" * 1000], kind)})
        write_parquet(tmp_path / "a.parquet", table)
        with pytest.raises(DataError, match=r"a\.parquet: a text in the column 'text' has 1,000 bytes; split it"):
            rows(tmp_path / "a.parquet")


def test_ordinary_parquet_is_read_in_large_batches(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    from embedkit import parquet_files

    write_parquet(tmp_path / "a.parquet", {"text": [f"text {n * n}" for n in range(10_000)]})
    with parquet.ParquetFile(tmp_path / "a.parquet") as file:
        assert parquet_files.rows_per_batch(file.metadata) >= 256


def test_a_column_of_parquet_named_twice_is_refused(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.Table.from_arrays([arrow.array(["a"])] * 2, names=["text", "text"])
    write_parquet(tmp_path / "a.parquet", table)
    with pytest.raises(DataError, match=r"a.parquet has two columns 'text'"):
        rows(tmp_path / "a.parquet")


def test_long_cells_are_read_without_a_lasting_change_to_the_process(tmp_path):
    before = csv.field_size_limit()
    path = tmp_path / "long.csv"
    path.write_text("text,n\n" + "x" * 200_000 + ",1\nshort,2\n", encoding="utf-8")
    some = read_records(path)
    assert len(next(some)[1]["text"]) == 200_000
    assert [len(record["text"]) for _, record in read_records(path)] == [200_000, 5]
    assert next(some)[1]["n"] == "2"
    some.close()
    assert csv.field_size_limit() == before
