"""Records of files in every format."""

from __future__ import annotations

import gzip
import json
import lzma

import pytest

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
        assert rows(write(f"a.txt{packing}", "one\n\ntwo")) == [{"text": "one"}, {"text": ""}, {"text": "two"}]

    def test_tsv_names_cells_by_position(self, write, packing):
        found = rows(write(f"a.tsv{packing}", "a\tb\nc\td\te\n"))
        assert found == [{"text1": "a", "text2": "b"}, {"text1": "c", "text2": "d", "text3": "e"}]

    def test_csv_is_named_by_its_header(self, write, packing):
        content = 'id,text\r\n1,"two\r\nlines, and ""quotes"""\r\n2,\r\n'
        found = rows(write(f"a.csv{packing}", content))
        assert found == [{"id": "1", "text": 'two\r\nlines, and "quotes"'}, {"id": "2", "text": ""}]

    def test_jsonl_has_one_object_per_line(self, write, packing):
        found = list(read_records(write(f"a.jsonl{packing}", '{"text": "a"}\n\n  \n{"text": "b", "n": [1]}\n')))
        assert found == [(1, {"text": "a"}), (4, {"text": "b", "n": [1]})]


def test_parquet_rows_are_its_columns(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"text": ["a", None], "n": [1, 2]}), path)
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
        ("a.jsonl", "[1]\n", "a.jsonl:1: expected a JSON object, found list"),
        ("a.jsonl", "[" * 100_000 + "\n", "a.jsonl:1: not JSON"),
        ("a.csv", "a,b\n1,2\n3\n", "a.csv:3: expected 2 cells"),
        ("a.csv", "a,b\n1,2,3\n", "a.csv:2: expected 2 cells"),
        ("a.csv", 'a,b\n"1,2\n', "a.csv:2"),
        ("a.txt", b"fine\n\xff\xfe\n", "is not UTF-8 text"),
        ("a.parquet", b"no parquet", "is not a readable Parquet file"),
        ("a.pdf", b"", r"expected one of \.txt, \.tsv"),
        ("a", b"", "expected one of"),
        ("a.gz", b"", "expected one of"),
    ],
)
def test_errors_are_named(write, name, content, message):
    with pytest.raises(DataError, match=message):
        rows(write(name, content))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        rows(tmp_path / "gone.txt")


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
