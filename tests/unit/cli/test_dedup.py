"""`embedkit dedup` and `embedkit cluster`: rows, groups and pairs in every form of input and output."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys

import pytest
from toys import write_parquet

from embedkit import Collection, Encoder
from embedkit.cli.cluster import name_groups
from embedkit.cli.main import main

TEXTS = ["a dog in the garden", "the sea", "", "a dog in the garden", "music", "the sea", "bread"]
UNIQUE = ["a dog in the garden", "the sea", "music", "bread"]


@pytest.fixture
def model(toy_bundle):
    return ["-m", str(toy_bundle), "--threshold", "0.9999"]


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


def read_json_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _read_only(texts, **_):
    for _document in texts.documents:
        pass
    raise AssertionError("the comparison began")


class TestDedup:
    def test_lines_that_remain(self, lines, model, tmp_path, capsys, caplog):
        output = tmp_path / "unique.txt"
        assert main(["dedup", str(lines), *model, "-o", str(output)]) == 0
        assert output.read_text(encoding="utf-8").splitlines() == UNIQUE
        assert "4 of 6 rows; removed 2 exact duplicates and 0 with a cosine" in capsys.readouterr().out
        assert "left out 1 blank line" in caplog.text

    def test_removed_rows_name_what_they_duplicate(self, lines, model, tmp_path):
        removed = tmp_path / "removed.jsonl"
        assert main(["dedup", str(lines), *model, "-o", str(tmp_path / "out.txt"), "--removed", str(removed)]) == 0
        assert read_json_lines(removed) == [
            {
                "row": 2,
                "text": "a dog in the garden",
                "duplicate_of": {"row": 0, "text": "a dog in the garden"},
                "score": 1.0,
                "exact": True,
            },
            {
                "row": 4,
                "text": "the sea",
                "duplicate_of": {"row": 1, "text": "the sea"},
                "score": 1.0,
                "exact": True,
            },
        ]

    @pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
    def test_rows_keep_their_columns(self, suffix, model, tmp_path):
        path, output = tmp_path / "texts.jsonl", tmp_path / f"unique{suffix}"
        rows = [{"body": text, "page": str(page)} for page, text in enumerate(TEXTS)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        assert main(["dedup", str(path), *model, "--text-column", "body", "-o", str(output)]) == 0
        kept = [row for row in rows if row["page"] in {"0", "1", "4", "6"}]
        if suffix == ".jsonl":
            assert read_json_lines(output) == kept
        else:
            assert output.read_text(encoding="utf-8").splitlines() == [
                "body,page",
                *(f"{row['body']},{row['page']}" for row in kept),
            ]

    @pytest.mark.parametrize("folder", [False, True])
    def test_parquet_keeps_its_types(self, folder, model, tmp_path):
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        days = [dt.date(2024, 1, day + 1) for day in range(len(TEXTS))]
        table = pa.table({"text": TEXTS, "day": days, "n": pa.array(range(len(TEXTS)), pa.int16())})
        path = tmp_path / "pages" / "0.parquet"
        path.parent.mkdir()
        write_parquet(path, table)
        output = tmp_path / "unique.parquet"
        place = path.parent if folder else path
        assert main(["dedup", str(place), *model, "-o", str(output)]) == 0
        found = parquet.read_table(output)
        assert found.schema.equals(table.schema)
        assert found["n"].to_pylist() == [0, 1, 4, 6]
        assert found["day"].to_pylist() == [days[0], days[1], days[4], days[6]]

    def test_a_collection_needs_no_model(self, toy_bundle, tmp_path, capsys):
        pytest.importorskip("faiss")
        texts = list(filter(None, TEXTS))
        Collection.build(texts, encoder=Encoder.load(toy_bundle), path=tmp_path / "idx")
        output = tmp_path / "unique.jsonl"
        arguments = ["dedup", str(tmp_path / "idx"), "--threshold", "0.9999", "-o", str(output), "--json"]
        assert main(arguments) == 0
        assert [row["text"] for row in read_json_lines(output)] == UNIQUE
        assert [row["id"] for row in read_json_lines(output)] == ["0", "1", "3", "5"]
        found = json.loads(capsys.readouterr().out)
        assert (found["rows"], found["kept"], found["exact_duplicates"], found["near_duplicates"]) == (6, 4, 2, 0)

    def test_metadata_replace_neither_id_nor_text(self, toy_bundle, tmp_path, capsys):
        rows = [
            {"key": "a", "body": "a dog", "id": 1, "text": "title"},
            {"key": "b", "body": "the sea", "id": 1, "text": "title"},
        ]
        path = tmp_path / "idx"
        Collection.build(rows, encoder=toy_bundle, path=path, text_column="body", id_column="key")
        assert main(["dedup", str(path)]) == 1
        assert "'text' is also in its metadata; name the texts with --text-column" in capsys.readouterr().err
        output = tmp_path / "unique.jsonl"
        assert main(["dedup", str(path), "--text-column", "body", "-o", str(output)]) == 0
        kept = [{"id": row["key"], "body": row["body"], "text": "title"} for row in rows]
        assert read_json_lines(output) == kept

    @pytest.mark.parametrize("as_json", [False, True])
    def test_standard_input_and_output(self, lines, model, as_json):
        command = [sys.executable, "-m", "embedkit", "dedup", "-", *model, *(["--json"] if as_json else [])]
        done = subprocess.run(command, input=lines.read_bytes(), capture_output=True, check=True)
        written = done.stdout.decode().splitlines()
        assert written == [json.dumps({"text": text}) for text in UNIQUE] if as_json else written == UNIQUE
        assert b"4 of 6 rows" in done.stderr

    @pytest.mark.parametrize(
        ("row", "suffix", "message"),
        [
            ('{"text": "two\\nlines", "n": 2}', ".txt", "jsonl:2: the text has several lines; write .jsonl"),
            (
                '{"text": "b", "n": NaN}',
                ".jsonl",
                "jsonl:2: n is nan (float), which JSON does not have; convert it, or leave it out\n",
            ),
            ('{"text": "b"}', ".csv", "jsonl:2: other columns than in the first row; write .jsonl instead"),
            ('{"text": "b", "n": ["c"]}', ".csv", "jsonl:2: 'n' is ['c'], no text; write .jsonl instead"),
        ],
    )
    def test_a_row_that_cannot_be_written_is_an_error_before_the_comparison(
        self, row, suffix, message, model, tmp_path, capsys, monkeypatch
    ):
        monkeypatch.setattr("embedkit.serving.retrieval.similar.deduplicate", _read_only)
        path, output = tmp_path / "texts.jsonl", tmp_path / f"unique{suffix}"
        path.write_text(f'{{"text": "a", "n": 1}}\n{row}\n', encoding="utf-8")
        output.write_text("before", encoding="utf-8")
        assert main(["dedup", str(path), *model, "-o", str(output)]) == 1
        assert message in capsys.readouterr().err
        assert output.read_text(encoding="utf-8") == "before"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.jsonl", output.name]

    def test_a_text_of_several_lines_needs_json_on_standard_output(self, model, tmp_path, capsys):
        path = tmp_path / "texts.jsonl"
        path.write_text('{"text": "two\\nlines"}\n', encoding="utf-8")
        assert main(["dedup", str(path), *model]) == 1
        assert "jsonl:1: the text has several lines; add --json\n" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (["-o", "unique.docx"], "expected an output that ends in .txt, .csv, .jsonl, .parquet"),
            (["-o", "unique.parquet"], "a .parquet output needs Parquet as input"),
            (["-o", "a.jsonl", "--removed", "a.jsonl"], "--removed: a.jsonl is the output, too"),
            (["-o", "a.jsonl", "--removed", "./a.jsonl"], "--removed: a.jsonl is the output, too"),
            (["--removed", "removed.csv"], "expected an output that ends in .jsonl"),
            (["--threshold", "2"], "expected a threshold from -1 to 1, got 2.0"),
            (["--kind", "fast"], "there is no index 'fast'"),
            (["--text-column", "body"], "no column 'body' among text; name it with --text-column"),
        ],
    )
    def test_errors_are_in_the_words_of_the_command(self, lines, model, more, message, capsys, monkeypatch):
        monkeypatch.chdir(lines.parent)
        assert main(["dedup", "texts.txt", *model, *more]) == 1
        assert message in capsys.readouterr().err

    def test_texts_need_a_model(self, lines, capsys):
        assert main(["dedup", str(lines)]) == 1
        assert "has no embeddings yet; name a model, such as -m tiny" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "flag"),
    [(["dedup", "--removed"], "--removed"), (["cluster", "-o"], "--output"), (["encode", "-o"], "--output")],
)
def test_results_of_another_form_do_not_replace_the_input(tmp_path, model, command, flag, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = '{"text": "a", "n": 1}\n{"text": "a", "n": 2}\n'
    (tmp_path / "rows.jsonl").write_text(rows, encoding="utf-8")
    assert main([*command, str(tmp_path / "rows.jsonl"), "rows.jsonl", *model[:2]]) == 1
    assert "rows.jsonl is the input, too" in capsys.readouterr().err
    assert (tmp_path / "rows.jsonl").read_text(encoding="utf-8") == rows


class TestCluster:
    def test_groups(self, lines, model, tmp_path, capsys):
        output = tmp_path / "groups.jsonl"
        assert main(["cluster", str(lines), *model, "-o", str(output)]) == 0
        assert read_json_lines(output) == [
            {
                "name": "dog, garden, in",
                "rows": [0, 2],
                "scores": [1.0, 1.0],
                "texts": ["a dog in the garden"] * 2,
            },
            {"name": "sea, the", "rows": [1, 4], "scores": [1.0, 1.0], "texts": ["the sea"] * 2},
        ]
        assert "2 groups in 6 rows" in capsys.readouterr().out

    def test_groups_keep_all_columns(self, model, tmp_path, capsys):
        tickets, output = tmp_path / "tickets.csv", tmp_path / "groups.csv"
        tickets.write_text("id,text\n7,the sea\n8,music\n9,the sea\n", encoding="utf-8")
        assert main(["cluster", str(tickets), *model, "-o", str(output)]) == 0
        assert output.read_text(encoding="utf-8").splitlines() == [
            "group,name,row,score,id,text",
            '1,"sea, the",0,1.0,7,the sea',
            '1,"sea, the",2,1.0,9,the sea',
        ]
        lines = tmp_path / "groups.jsonl"
        assert main(["cluster", str(tickets), *model, "-o", str(lines)]) == 0
        (group,) = read_json_lines(lines)
        assert group["records"] == [{"id": "7", "text": "the sea"}, {"id": "9", "text": "the sea"}]
        assert main(["cluster", str(tickets), *model, "--pairs", "-o", str(output)]) == 0
        assert output.read_text(encoding="utf-8").splitlines()[1:] == ["1.0,0,2,the sea,the sea"]
        tickets.write_text("name,text\n7,the sea\n9,the sea\n", encoding="utf-8")
        assert main(["cluster", str(tickets), *model, "-o", str(output)]) == 1
        assert "are added; rename name" in capsys.readouterr().err

    def test_names_are_the_words_that_tell_a_group_from_others(self):
        texts = ["where is my refund", "the refund is late", "refund of my order", "where is my key", "the door"]
        assert name_groups([[0, 1, 2], [3]], 5, texts.__getitem__) == ["refund, late, of", "key, where, is"]

    def test_pairs(self, lines, model, tmp_path, capsys):
        output = tmp_path / "pairs.jsonl"
        assert main(["cluster", str(lines), *model, "--pairs", "--max-pairs", "1", "-o", str(output)]) == 0
        assert read_json_lines(output) == [{"score": 1.0, "rows": [0, 2], "texts": ["a dog in the garden"] * 2}]
        assert "1 pair in 6 rows" in capsys.readouterr().out
