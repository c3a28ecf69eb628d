import dataclasses
import json

import pytest
from toy_networks import exact_levels

from embedkit.cli.main import main
from embedkit.export import variants as variants_module
from embedkit.export.gates import THRESHOLDS
from embedkit.export.probes import PROBE_TEXTS
from embedkit.export.quantize import TARGETS
from embedkit.export.variants import Variant, choose, export_all
from embedkit.runtime.bundle import read_bundle

CPU = ["fp32", "fp32, int4 words", "int8", "int8, int4 words"]


@pytest.fixture
def model(make_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(variants_module, "_ROUNDS", 2)
    make_encoder(head=16, initializer_range=0.1).save(tmp_path / "model")
    return str(tmp_path / "model")


def merits(name, size, speed, score):
    return Variant(name=name, size_bytes=size, speed=speed, texts_per_second=speed, score=score)


def test_every_variant_is_written_and_measured(model, tmp_path, monkeypatch):
    monkeypatch.setitem(TARGETS, "arm64", exact_levels())

    variants = export_all(model, tmp_path / "all", target="arm64", calibration=PROBE_TEXTS, vocabulary=PROBE_TEXTS)

    static = ["int8-static", "int8-static, int4 words"]
    assert [variant.name for variant in variants] == [*CPU, *static, "int8, int4 words, pruned"]
    written = {variant.name: variant for variant in variants if not variant.missed}
    assert {"fp32", "int8", "int8-static"} <= written.keys()
    assert {variant.path for variant in written.values()} == set((tmp_path / "all").iterdir())
    for variant in written.values():
        manifest = read_bundle(variant.path).manifest
        assert variant.size_bytes == variant.path.stat().st_size
        assert variant.largest_difference == manifest.gates["parity"]["largest_difference"]
        assert manifest.target == ("" if variant.name.startswith("fp32") else "arm64")
        assert min(variant.texts_per_second, variant.one_text_ms, variant.speed) > 0
        assert manifest.ranges
        assert manifest.gates["texts"]["differently_tokenized"] == 0
    assert written["fp32"].speed == 1.0
    assert written["int8"].invariance > 1e-4 > written["int8-static"].invariance
    assert any(variant.on_frontier for variant in variants)


def test_a_variant_that_misses_a_gate_is_reported_and_not_written(model, tmp_path, monkeypatch):
    strict = dataclasses.replace(THRESHOLDS["int8"], cosine=1.1)
    monkeypatch.setitem(THRESHOLDS, "int8", strict)

    variants = {variant.name: variant for variant in export_all(model, tmp_path / "all", rounds=1)}

    assert "failed 2 of 7 gates" in variants["int8"].missed
    assert (variants["int8"].path, variants["int8"].on_frontier) == (None, False)
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["fp32.onnx"]


def test_cross_encoders_have_variants_too(make_pair_encoder, tmp_path):
    make_pair_encoder().save(tmp_path / "model")

    variants = export_all(str(tmp_path / "model"), tmp_path / "all", calibration=PROBE_TEXTS[:8], rounds=1)

    assert len(variants) == 6
    assert variants[0].texts_per_second > 0
    assert variants[0].smallest_cosine is None


def test_a_variant_worse_in_everything_is_not_on_the_frontier():
    variants = variants_module._mark(
        [
            merits("large and exact", 100, 1.0, 1.0),
            merits("small", 10, 1.0, 0.99),
            merits("small but slow", 10, 0.5, 0.99),
            merits("hardly slower, hardly better", 10, 0.98, 0.9904),
            Variant(name="none", missed="gates"),
        ]
    )

    assert [variant.on_frontier for variant in variants] == [True, True, False, True, False]


def test_the_fastest_of_sufficient_quality_is_chosen():
    variants = variants_module._mark(
        [
            merits("exact", 100, 1.0, 1.0),
            merits("fast", 50, 2.0, 0.997),
            merits("fast and small", 20, 2.0, 0.996),
            merits("fastest", 10, 3.0, 0.99),
        ]
    )

    assert choose(variants).name == "fast and small"
    assert choose(variants[3:]) is None


def test_existing_variants_are_replaced_on_request_only(tmp_path, capsys):
    (tmp_path / "all").mkdir()
    mine = tmp_path / "all" / "int8-int4-words.onnx"
    mine.write_bytes(b"mine")
    command = ["export", "no model", "-o", str(tmp_path / "all"), "--all"]
    assert main(command) == 1
    assert f"there is a file {mine} already; set --replace, or choose" in capsys.readouterr().err
    assert main([*command, "--replace"]) == 1
    assert "no model" in capsys.readouterr().err
    assert mine.read_bytes() == b"mine"


def test_the_command_prints_the_frontier(model, tmp_path, capsys):
    assert main(["export", model, "-o", str(tmp_path / "all"), "--all"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert main(["export", model, "-o", str(tmp_path / "all"), "--all", "--json", "--replace"]) == 0
    report = json.loads(capsys.readouterr().out)

    assert [variant["name"] for variant in report["variants"]] == CPU
    assert shown[0].split()[0] == "variant"
    assert [line[2:28].strip() for line in shown[1:5]] == CPU
    assert shown[-1].startswith("chosen: ")
