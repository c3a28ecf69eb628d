"""`embedkit evaluate`: which loader reads a model, and what is written where."""

from __future__ import annotations

import json

import pytest

from embedkit.cli.main import main
from embedkit.cli.options import load_model
from embedkit.errors import ModelError


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("a good dog\ta good dog\t5\na good dog\ta bad dog\t3\nthe cat is asleep\ta red ship\t0\n")
    return path


@pytest.fixture
def lists(tmp_path):
    path = tmp_path / "lists.jsonl"
    rows = [
        {"query": "a good dog", "positive": ["a good old dog"], "negative": ["rain in summer", "my red car"]},
        {"query": "a red ship", "positive": [], "negative": ["a dog"]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_only_a_table_on_stdout(toy_bundle, pairs, lists, capsys):
    assert main(["evaluate", str(toy_bundle), "--task", str(pairs), "--task", str(lists)]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["set", "measure", "rows", "toy"]
    assert rows[0].split() == ["pairs", "all", "3", "pairs", "100.00"]
    assert rows[1].split() == ["lists", "(mteb)", "map", "1", "queries", "100.00"]
    assert "lists (mteb): queries without a positive, skipped: 1" in rows
    assert "toy: texts are truncated to 12 tokens" in rows


@pytest.mark.parametrize("form", ["pairs", "lists"])
def test_standard_input_is_a_task(toy_bundle, pairs, lists, form, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = {"pairs": pairs, "lists": lists}[form]
    assert main(["evaluate", str(toy_bundle), "--task", str(path)]) == 0
    expected = capsys.readouterr().out
    with path.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert main(["evaluate", str(toy_bundle), "--task", "-"]) == 0
    assert capsys.readouterr().out.split() == expected.replace(f"\n{path.stem} ", "\nstdin ").split()


@pytest.mark.parametrize(("text", "told"), [("a good ꙮ", True), ("a good dog", False)])
def test_unknown_tokens_are_reported(toy_bundle, tmp_path, capsys, text, told):
    path = tmp_path / "pairs.tsv"
    path.write_text(
        "".join(f"{text}\t{other}\t{score}\n" for score, other in enumerate(["a dog", "a cat", "good"]))
    )
    assert main(["evaluate", str(toy_bundle), "--task", str(path)]) == 0
    # One of the eight tokens of the four distinct texts.
    assert ("toy does not cover 12.5 % of the tokens of these texts" in capsys.readouterr().err) is told


def test_json_names_the_model_by_its_fingerprint(toy_bundle, pairs, capsys):
    from embedkit.runtime.encoder import Encoder

    assert main(["evaluate", str(toy_bundle), "--task", str(pairs), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (evaluation,) = report["evaluations"]
    assert evaluation["fingerprint"] == Encoder.load(toy_bundle).fingerprint
    assert evaluation["results"][0]["value"] == pytest.approx(1)
    assert "onnxruntime" in report["versions"]


def test_a_cross_encoder_scores_the_pairs(toy_bundle, write_toy_cross_bundle, pairs, lists, tmp_path, capsys):
    from embedkit.evaluation.sts import evaluate_cross_encoder, load_scored_pairs
    from embedkit.runtime.cross_encoder import CrossEncoder

    cross = write_toy_cross_bundle(tmp_path / "cross.onnx")
    tasks = ["--task", str(pairs), "--task", str(lists)]
    assert main(["evaluate", str(toy_bundle), str(cross), *tasks, "--json"]) == 0
    *_, sts, ranking = json.loads(capsys.readouterr().out)["evaluations"]
    scored = load_scored_pairs(str(pairs))
    assert sts["results"][0]["value"] == pytest.approx(evaluate_cross_encoder(CrossEncoder.load(cross), scored))
    assert (sts["dimension"], sts["texts"], ranking["texts"]) == (None, 3, 3)


def test_a_cross_encoder_is_refused_first_where_embeddings_are_needed(
    toy_bundle, toy_cross_bundle, tmp_path, pairs, capsys, monkeypatch
):
    (tmp_path / "corpus.jsonl").write_text('{"_id": "1", "text": "a dog"}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "dog"}\n')
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t1\t1\n")
    monkeypatch.setattr("embedkit.evaluation.tasks.evaluate", None)
    command = ["evaluate", str(toy_bundle), str(toy_cross_bundle), "--task", str(pairs), "--task", str(tmp_path)]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert f"{toy_cross_bundle} is a cross-encoder: it scores pairs and has no embeddings" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("error", "code"), [(ModelError("the disk is gone"), 1), (KeyboardInterrupt(), 130)])
def test_finished_figures_are_kept_if_a_later_model_fails(
    toy_bundle, write_toy_bundle, pairs, tmp_path, capsys, monkeypatch, error, code
):
    other = str(write_toy_bundle(tmp_path / "other.onnx", name="other"))

    def load(source, backend):
        if source == other:
            raise error
        return load_model(source, backend)

    monkeypatch.setattr("embedkit.cli.evaluate.load_model", load)
    command = ["evaluate", str(toy_bundle), other, "--task", str(pairs), "-o", str(tmp_path / "report.json")]
    assert main([*command, "--significance"]) == code
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].split() == ["set", "measure", "rows", "toy"]
    assert "stopped early; these results are complete" in captured.err
    assert len(json.loads((tmp_path / "report.json").read_text())["evaluations"]) == 1


def test_models_are_compared_on_request(toy_bundle, write_toy_bundle, pairs, tmp_path, capsys):
    other = write_toy_bundle(tmp_path / "other.onnx", name="other")
    command = ["evaluate", str(toy_bundle), str(other), "--task", str(pairs), "--significance", "20"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "95% intervals over 20 samples of the rows, seed 0" in out
    assert "p = 1.000" in out
    assert "pairs, 3 rows: too few to be meaningful" in out
    assert main([*command, "--json", "-o", str(tmp_path / "report.md")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [each["model"] for each in report["comparison"]["confidence_intervals"]] == ["toy", "other"]
    assert "## Difference from toy" in (tmp_path / "report.md").read_text()
    assert main(["evaluate", str(toy_bundle), "--task", str(pairs), "--significance", "1"]) == 1
    assert "expected at least 2 samples" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "start"), [("report.md", "# Evaluation"), ("report.json", "{")])
def test_reports_are_written(toy_bundle, pairs, tmp_path, name, start):
    target = tmp_path / "new" / name
    assert main(["evaluate", str(toy_bundle), "--task", str(pairs), "-o", str(target)]) == 0
    assert target.read_text().startswith(start)
    assert [path.name for path in target.parent.iterdir()] == [name]


def test_a_report_of_unknown_form_is_refused_first(pairs, capsys):
    assert main(["evaluate", "gone.onnx", "--task", str(pairs), "-o", "report.html"]) == 1
    assert "ends in .json, .md" in capsys.readouterr().err


def test_data_is_checked_before_models_are_loaded(tmp_path, capsys):
    broken = tmp_path / "broken.tsv"
    broken.write_text("a\tb\t1\na\tb\n")
    assert main(["evaluate", "gone.onnx", "--task", str(broken)]) == 1
    expected = f"error: {broken}:2: expected 3 cells, found 2; quote a cell with a separator\n"
    assert capsys.readouterr().err == expected
