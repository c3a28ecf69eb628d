"""`embedkit encode`: the file holds the encoder's embeddings, in every format."""

from __future__ import annotations

import json

import numpy as np
import pytest

from embedkit import Encoder
from embedkit.cli.main import main
from embedkit.runtime import batching

TEXTS = ["a dog in the garden", "a", "music and the sea", 'naïve, "quoted" 北京', "the end"]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(batching, "_CHUNK_ITEMS", 2)


@pytest.fixture
def expected(toy_bundle):
    return Encoder.load(toy_bundle).encode(TEXTS)


@pytest.fixture
def texts_file(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS), encoding="utf-8")
    return path


def test_a_text_file_becomes_an_array(toy_bundle, texts_file, tmp_path, expected, capsys):
    output = tmp_path / "out.npy"
    assert main(["encode", "-m", str(toy_bundle), str(texts_file), "-o", str(output)]) == 0
    rows = np.load(output)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, expected)
    assert f"{output}: 5 x 16 float32 with toy" in capsys.readouterr().out
    np.testing.assert_array_equal(np.load(output, mmap_mode="r"), expected)


@pytest.mark.parametrize("form", [".npy", ".jsonl"])
def test_several_processes_write_the_same_file(toy_bundle, texts_file, tmp_path, form):
    one, two = tmp_path / f"one{form}", tmp_path / f"two{form}"
    command = ["encode", "-m", str(toy_bundle), str(texts_file)]
    assert main([*command, "-o", str(one)]) == 0
    assert main([*command, "-o", str(two), "--processes", "2", "--threads", "1"]) == 0
    assert one.read_bytes() == two.read_bytes()


def test_a_column_of_a_table_is_embedded(toy_bundle, tmp_path, expected):
    rows = ('{},"{}"\n'.format(n, text.replace('"', '""')) for n, text in enumerate(TEXTS))
    (tmp_path / "in.csv").write_text("id,body\n" + "".join(rows), encoding="utf-8")
    command = ["encode", "-m", str(toy_bundle), str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.npy")]
    assert main([*command, "--text-column", "body"]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)


def test_json_lines_hold_texts_and_exact_numbers(toy_bundle, texts_file, tmp_path, expected):
    output = tmp_path / "out.jsonl"
    assert main(["encode", "-m", str(toy_bundle), str(texts_file), "-o", str(output)]) == 0
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [record["text"] for record in records] == TEXTS
    np.testing.assert_array_equal(np.array([r["embedding"] for r in records], dtype=np.float32), expected)


@pytest.mark.parametrize("precision", ["float32", "ubinary"])
def test_parquet_holds_texts_and_rows(toy_bundle, texts_file, tmp_path, precision):
    parquet = pytest.importorskip("pyarrow.parquet")
    output = tmp_path / "out.parquet"
    command = ["encode", "-m", str(toy_bundle), str(texts_file), "-o", str(output), "--precision", precision]
    assert main(command) == 0
    table = parquet.read_table(output)
    assert table["text"].to_pylist() == TEXTS
    rows = Encoder.load(toy_bundle).encode(TEXTS, precision=precision)
    assert table.schema.field("embedding").type.list_size == rows.shape[1]
    np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), dtype=rows.dtype), rows)


@pytest.mark.parametrize("form", [".npy", ".jsonl", ".parquet"])
def test_no_texts_write_no_rows(toy_bundle, tmp_path, form):
    (tmp_path / "empty.txt").touch()
    output = tmp_path / f"out{form}"
    command = ["encode", "-m", str(toy_bundle), str(tmp_path / "empty.txt"), "-o", str(output)]
    assert main([*command, "--truncate-dim", "8"]) == 0
    assert output.exists()
    if form == ".npy":
        assert np.load(output).shape == (0, 8)


def test_options_reach_the_encoder(toy_bundle, texts_file, tmp_path, capsys):
    output = tmp_path / "out.npy"
    command = ["encode", "-m", str(toy_bundle), str(texts_file), "-o", str(output), "--threads", "1"]
    assert main([*command, "--truncate-dim", "8", "--precision", "binary", "--json"]) == 0
    rows = Encoder.load(toy_bundle).encode(TEXTS, truncate_dim=8, precision="binary")
    np.testing.assert_array_equal(np.load(output), rows)
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["width"], report["dtype"], report["model"]) == (5, 1, "int8", "toy")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--text-column", "body"], "texts.txt:1: there is no column 'body' among text; name it with --text-c"),
        (["--precision", "float32", "--truncate-dim", "99"], "--truncate-dim must be"),
        (["--prompt-name", "nope"], "has no prompt 'nope'"),
        (["--provider", "NoneSuch"], "NoneSuch is not among"),
        (["--threads", "0"], "threads must be"),
        (["-o", "out.csv"], "expected an output that ends in .npy, .parquet, .jsonl"),
        (["-m", "none.onnx"], "no file or folder none.onnx"),
    ],
)
def test_mistakes_are_reported_in_one_line_and_write_nothing(
    toy_bundle, texts_file, tmp_path, capsys, options, words
):
    command = ["encode", "-m", str(toy_bundle), str(texts_file), "-o", str(tmp_path / "out.npy"), *options]
    assert main(command) == 1
    captured = capsys.readouterr()
    assert words in captured.err
    assert len(captured.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]


def test_the_error_for_a_value_that_is_no_text_names_its_line(toy_bundle, tmp_path, capsys):
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n\n{"text": null}\n')
    (tmp_path / "out.npy").write_bytes(b"old")
    command = ["encode", "-m", str(toy_bundle), str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.npy")]
    assert main(command) == 1
    assert "in.jsonl:3: 'text' should be a text, not NoneType" in capsys.readouterr().err
    assert (tmp_path / "out.npy").read_bytes() == b"old"


def test_an_empty_text_of_a_record_is_embedded(toy_bundle, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "a dog"}\n{"text": ""}\n')
    assert (
        main(["encode", "-m", str(toy_bundle), str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.npy")]) == 0
    )
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), Encoder.load(toy_bundle).encode(["a dog", ""]))


def test_overflow_is_reported_or_refused(toy_bundle, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("a\nb\nc\n" + "dog " * 30)
    command = ["encode", "-m", str(toy_bundle), str(tmp_path / "in.txt"), "-o", str(tmp_path / "out.npy")]
    assert main(command) == 0
    assert capsys.readouterr().err == "warning: 1 of 4 texts were cut to 12 tokens\n"
    assert main([*command, "--on-overflow", "error"]) == 1
    assert "texts[3]" in capsys.readouterr().err
