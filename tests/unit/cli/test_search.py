from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("onnx")  # writes the toy bundle

from embedkit.cli import search as command
from embedkit.cli.main import main
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.serving.retrieval import Collection, Hit

TEXTS = ["a good dog", "the cat\nis \x1b[31masleep", "snow and ice"]


@pytest.fixture
def bundle(tmp_path, toy_bundle):
    return shutil.copy(toy_bundle, tmp_path / "toy.onnx")


@pytest.fixture
def index(tmp_path, bundle):
    Collection.build(TEXTS, encoder=Encoder.load(bundle), path=tmp_path / "idx", source=str(bundle))
    return str(tmp_path / "idx")


def test_finds_the_model_again_and_prints_a_list(index, capsys):
    assert main(["search", index, "the cat is asleep", "-k", "2"]) == 0
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("1  ")
    assert lines[0].endswith("  1  the cat is [31masleep")
    assert "encode" in output.err
    assert "ms" in output.err


def test_json(index, capsys):
    assert main(["search", index, "a good dog", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["query"] == "a good dog"
    assert [hit["rank"] for hit in result["hits"]] == [1, 2, 3]
    best = result["hits"][0]
    assert (best["id"], best["text"], best["metadata"]) == ("0", "a good dog", None)
    assert list(best["scores"]) == ["dense", "lexical", "fused"]
    assert (best["scores"]["dense"], best["score"]) == (pytest.approx(1.0, abs=1e-5), best["scores"]["fused"])
    assert list(result["latency_ms"]) == ["encode", "dense", "lexical", "fuse", "read"]
    assert min(result["latency_ms"].values()) > 0


def test_a_bundled_cross_encoder_reranks_by_name(index, bundled_cross, capsys):
    assert main(["search", index, "a good dog", "--rerank", bundled_cross, "--rerank-weight", "1", "--json"]) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    expected = CrossEncoder.load(bundled_cross).rank("a good dog", TEXTS)
    assert [(hit["text"], hit["score"]) for hit in hits] == [
        (found["text"], pytest.approx(found["score"])) for found in expected
    ]


def test_the_re_ranker_s_weight_is_passed_on(index, bundled_cross, capsys):
    options = ["--rerank", bundled_cross, "--rerank-weight", "0.4", "--json"]
    assert main(["search", index, "a good dog", *options]) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    assert all(hit["score"] == hit["scores"]["blended"] for hit in hits)
    assert main(["search", index, "a good dog", "--rerank-weight", "0.4"]) == 1
    assert "error: --rerank-weight: there is no re-ranker; give one with --rerank\n" in capsys.readouterr().err


def test_a_model_that_moved_is_asked_for(index, bundle, tmp_path, capsys):
    bundle.rename(tmp_path / "moved.onnx")
    assert main(["search", index, "a good dog"]) == 1
    assert "-m MODEL" in capsys.readouterr().err
    assert main(["search", index, "a good dog", "-m", str(tmp_path / "moved.onnx")]) == 0


def test_another_model_is_refused(index, capsys):
    assert main(["search", index, "a good dog", "-m", "tiny"]) == 1
    assert "tiny gives 384 dimensions, the documents' model toy 16" in capsys.readouterr().err


def test_a_filter_is_json_or_conditions(index, bundle, capsys):
    Collection.build(
        [{"text": "a good dog", "year": 1999}, {"text": "snow", "year": 2024}],
        encoder=Encoder.load(bundle), path=index, replace=True, source=str(bundle),
    )  # fmt: skip
    assert main(["search", index, "a good dog", "--filter", '{"year": {"gte": 2020}}']) == 0
    assert capsys.readouterr().out.split()[-1] == "snow"
    assert main(["search", index, "a good dog", "--filter", "year < 2020, year != 1990"]) == 0
    assert capsys.readouterr().out.split()[-1] == "dog"
    for wrong, reason in (
        ("year", "'year' is not a condition; expected for example lang = en"),
        ("[" * 100_000, "is not a condition"),
        ('{"a":' * 100_000, "not JSON"),
    ):
        assert main(["search", index, "a good dog", "--filter", wrong]) == 1
        assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["-k", "0"], ["--effort", "0"], ["-m", "nothing.onnx"], ["--filter", '{"year": {"is": 3}}']]
)
def test_mistakes_are_reported_in_one_line(index, capsys, options):
    assert main(["search", index, "a good dog", *options]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_passage_that_matches_is_shown_and_not_the_whole_text():
    text = "We open at nine. " * 30 + "Refunds are possible within 30 days. " + "We close at five. " * 30
    (line,) = command._table([Hit("a", 0.5, text)], "when is a refund possible?", None)
    assert "… We open at nine." in line
    assert "Refunds are possible within 30 days." in line
    assert line.endswith("five. …")
    assert len(line) < 270


def test_a_misspelt_field_is_reported_in_one_line(bundle, tmp_path, capsys):
    documents = [{"text": "a good dog", "year": 1999}, {"text": "snow", "year": 2024}]
    index = str(tmp_path / "years")
    Collection.build(documents, encoder=Encoder.load(bundle), path=index, source=str(bundle))
    search = ["search", index, "a good dog", "--filter", '{"yaer": 1999}']
    assert main(search) == 0
    error = capsys.readouterr().err
    assert "warning: filter: no document has the field 'yaer'; did you mean 'year'?\n" in error
    assert "warning: no hits: no document meets the filter\n" in error
    assert main([*search, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["warnings"]) == 2


@pytest.mark.parametrize("source", ["stranger/model", "s3://stranger/model.onnx"])
def test_a_collection_cannot_cause_calls_to_a_network(tmp_path, bundle, capsys, monkeypatch, source):
    index = tmp_path / "idx"
    Collection.build(["bees"], encoder=Encoder.load(bundle), path=index, source=source)

    def load(name, *_, **__):
        pytest.fail(f"{name} would be fetched")

    monkeypatch.setattr(Encoder, "load", load)
    (tmp_path / "new.jsonl").write_text('{"id": "a", "text": "ants"}\n')
    for line in (["search", str(index), "bees"], ["index", "add", str(tmp_path / "new.jsonl"), str(index)]):
        assert main(line) == 1
        assert "with -m MODEL" in capsys.readouterr().err
