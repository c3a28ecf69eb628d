"""`embedkit inspect`: all facts about a bundle, as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import numpy as np
import pytest

from embedkit.cli.main import main
from embedkit.runtime.bundle import read_bundle, write_bundle
from embedkit.runtime.options import Ranges


@pytest.fixture
def full_bundle(write_toy_bundle, tmp_path):
    return write_toy_bundle(
        tmp_path / "full.onnx",
        prompts={"query": "query: "},
        method="sct",
        base="random",
        teacher={"name": "big-teacher", "fingerprint": "abc"},
        corpus=[{"name": "books", "rows": 1000, "sha256": "f00", "licence": "CC0-1.0"}],
        metrics={"sts": {"spearman": 0.81234567}},
        gates={
            "parity": {"largest_difference": 0.004, "largest_difference_allowed": 0.01},
            "batch_invariance": {"largest_difference": 0.006, "largest_difference_allowed": None},
        },
        config={
            "optim": {"lr": 0.0005},
            "corpus": [{"path": "a", "view_columns": []}, {"path": "b"}],
            "device": None,
        },
        licence="Apache-2.0",
    )


def test_a_summary_is_short_and_says_how_to_see_the_rest(full_bundle, capsys):
    assert main(["inspect", str(full_bundle)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for expected in (
        "teacher big-teacher",
        "corpus 1 sources, 1,000 rows",
        "sts.spearman 0.8123",
        "gates passed batch_invariance, parity",
        "licence Apache-2.0",
        "integrity complete and unchanged since export, by its fingerprint; --verify also runs it",
        f"use embedkit encode TEXTS.txt -o embeddings.npy -m {full_bundle}",
        "prompts query 'query: '",
    ):
        assert expected in lines
    assert "--verbose" in lines[-1]
    assert main(["inspect", "tiny"]) == 0
    assert len(capsys.readouterr().out.splitlines()) < 20


@pytest.mark.parametrize("flags", [[], ["--verbose"]])
def test_ranges_are_named_and_not_written_out(write_toy_bundle, tmp_path, capsys, flags):
    ranges = Ranges(np.zeros(16, dtype=np.float32), np.ones(16, dtype=np.float32)).to_text()
    bundle = write_toy_bundle(tmp_path / "ranges.onnx", ranges=ranges)

    assert main(["inspect", str(bundle), *flags]) == 0
    out = capsys.readouterr().out
    assert "measured, for embeddings of a byte per dimension" in out
    assert ranges not in out


def test_json_holds_everything(full_bundle, capsys):
    assert main(["inspect", str(full_bundle), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    bundle = read_bundle(full_bundle)
    assert report["fingerprint"] == bundle.fingerprint
    assert report["manifest"] == dataclasses.asdict(bundle.manifest)
    assert report["bytes"] == full_bundle.stat().st_size == sum(report["parts"].values())
    assert report["parts"]["tokenizer"] > report["parts"]["manifest"] > 0
    assert report["largest_weights"][0]["name"] == "weights"
    assert report["card"] is None
    assert report["verification"] is None


def test_the_card_beside_the_bundle_is_shown(full_bundle, capsys):
    full_bundle.with_suffix(".md").write_text("# Full\n\nMade for a test.\n", encoding="utf-8")
    main(["inspect", str(full_bundle), "--verbose"])
    assert "Made for a test." in capsys.readouterr().out


def test_a_good_bundle_is_verified(toy_bundle, capsys):
    assert main(["inspect", str(toy_bundle), "--verify"]) == 0
    assert "verified: 3 golden texts gave the same tokens" in capsys.readouterr().out


def test_different_embeddings_exit_with_1(toy_bundle, toy_model_bytes, tmp_path, capsys):
    good = read_bundle(toy_bundle)
    golden = replace(good.golden, values=-good.golden.values)
    write_bundle(tmp_path / "b.onnx", toy_model_bytes, good.manifest, good.tokenizer_json, golden)
    assert main(["inspect", str(tmp_path / "b.onnx"), "--verify"]) == 1
    assert "NOT VERIFIED" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "b.onnx"), "--verify", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verification"]["passed"] is False


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xd8\xff\xe0JFIF", "this is not an ONNX file"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "this is a pointer of Git LFS, not the file itself; fetch it with `git lfs pull`",
        ),
    ],
)
def test_a_file_that_is_no_bundle_is_reported_in_one_line(tmp_path, capsys, content, words):
    (tmp_path / "photo.onnx").write_bytes(content)
    assert main(["inspect", str(tmp_path / "photo.onnx")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [f"error: {tmp_path / 'photo.onnx'}: {words}"]


def test_a_cross_encoder_is_reported_and_verified(toy_cross_bundle, capsys):
    assert main(["inspect", str(toy_cross_bundle), "--verify"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("toy-cross: a cross-encoder: it scores pairs of a query and a passage, ")
    assert "licence              not recorded; ask the author" in out
    assert "embedkit search IDX QUERY --rerank " in out
    assert "verified: 3 golden pairs gave the same tokens" in out
