import dataclasses
import json

import numpy as np
import pytest
from toy_networks import exact_levels

from embedkit import __version__
from embedkit.errors import ExportError, GateError, InputError, ModelError, ModelNotFoundError
from embedkit.evaluation.sts import ScoredPairs
from embedkit.export import pipeline
from embedkit.export.bias_correction import measure_inputs
from embedkit.export.card import Card
from embedkit.export.folder import export_folder
from embedkit.export.gates import PAIR_THRESHOLDS, THRESHOLDS
from embedkit.export.pipeline import export, export_source
from embedkit.export.probes import GOLDEN_PAIRS, GOLDEN_TEXTS, PROBE_PAIRS, PROBE_TEXTS
from embedkit.export.quantize import TARGETS
from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.options import Ranges


@pytest.fixture
def encoder(make_encoder):
    encoder = make_encoder(head=16, initializer_range=0.1)
    encoder.prompts = {"query": "find "}
    return encoder


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("int8", 0.1)])
def test_a_bundle_encodes_as_the_model_does(encoder, tmp_path, precision, tolerance):
    report = export(encoder, tmp_path / "toy.onnx", precision=precision)

    bundle = Encoder.load(tmp_path / "toy.onnx")
    np.testing.assert_allclose(
        bundle.encode(PROBE_TEXTS), TorchEncoder(encoder).encode(PROBE_TEXTS), atol=tolerance
    )
    assert bundle.verify()["passed"]
    assert report.fingerprint == bundle.fingerprint
    assert report.size_bytes == (tmp_path / "toy.onnx").stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["toy.onnx"]


def test_the_manifest_describes_the_model(encoder, tmp_path, monkeypatch):
    monkeypatch.setitem(TARGETS, "arm64", exact_levels())
    card = Card(base="random", method="none", metrics={"dev_spearman": 0.5}, licence="MIT")

    export(encoder, tmp_path / "toy.onnx", precision="int8", target="arm64", name="mine", card=card)

    manifest = read_bundle(tmp_path / "toy.onnx").manifest
    assert (manifest.name, manifest.base, manifest.method, manifest.licence) == ("mine", "random", "none", "MIT")
    assert (manifest.dimension, manifest.max_length, manifest.pooling) == (16, 20, "mean")
    assert (manifest.precision, manifest.target, manifest.normalize) == ("int8", "arm64", True)
    assert manifest.prompts == {"query": "find "}
    assert manifest.created_by == f"embedkit {__version__}"
    assert set(manifest.gates) == {"parity", "operators", "agreement", "batch_invariance", "size", "weights"}
    assert manifest.gates["parity"]["smallest_cosine"] > 0.95


def test_calibration_texts_are_read_with_each_prompt(encoder, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        pipeline, "measure_inputs", lambda model, texts: seen.extend(texts) or measure_inputs(model, texts)
    )

    export(encoder, tmp_path / "toy.onnx", precision="int8", calibration=PROBE_TEXTS)

    assert seen == [*PROBE_TEXTS, *("find " + text for text in PROBE_TEXTS)]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_calibration_texts_set_the_ranges_of_bytes(encoder, tmp_path, precision):
    export(encoder, tmp_path / "toy.onnx", precision=precision, calibration=PROBE_TEXTS)

    bundle = Encoder.load(tmp_path / "toy.onnx")
    rows = np.concatenate([bundle.encode(PROBE_TEXTS), bundle.encode_query(PROBE_TEXTS)])
    ranges = Ranges.from_text(bundle.manifest.ranges, 16)
    np.testing.assert_allclose(ranges.least, rows.min(axis=0), atol=1e-5 if precision == "fp32" else 0.02)
    np.testing.assert_allclose(ranges.most, rows.max(axis=0), atol=1e-5 if precision == "fp32" else 0.02)
    found = bundle.encode(PROBE_TEXTS, precision="uint8")
    np.testing.assert_array_equal(found, ranges.quantize(rows)[: len(PROBE_TEXTS)])
    np.testing.assert_array_equal(bundle.encode(PROBE_TEXTS, precision="int8"), found.astype(int) - 128)


def test_golden_texts_come_with_the_file(encoder, tmp_path):
    export(encoder, tmp_path / "toy.onnx", precision="fp32")

    golden = read_bundle(tmp_path / "toy.onnx").golden
    assert golden.texts == GOLDEN_TEXTS
    assert golden.tolerance == 1e-4
    assert max(map(len, golden.token_ids)) == encoder.max_length


def test_the_same_model_gives_the_same_file(encoder, tmp_path):
    first = export(encoder, tmp_path / "a.onnx", precision="int8").fingerprint
    second = export(encoder, tmp_path / "b.onnx", precision="int8").fingerprint

    assert first == second
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_a_missed_gate_writes_nothing_and_its_error_holds_the_figures(encoder, tmp_path):
    (tmp_path / "toy.onnx").write_text("older")
    strict = dataclasses.replace(THRESHOLDS["int8"], graph_bytes=10)

    with pytest.raises(GateError, match=r"failed 1 of 6 gates: size: graph bytes \d+ \(at most 10\)") as caught:
        export(encoder, tmp_path / "toy.onnx", precision="int8", thresholds=strict)

    assert caught.value.figures["size"]["passed"] is False
    assert caught.value.figures["parity"]["passed"] is True
    assert (tmp_path / "toy.onnx").read_text() == "older"
    assert [path.name for path in tmp_path.iterdir()] == ["toy.onnx"]


def test_scored_pairs_are_ranked(encoder, tmp_path):
    first, second = PROBE_TEXTS[0::2], PROBE_TEXTS[1::2]
    rows = TorchEncoder(encoder)
    scores = (rows.encode(first) * rows.encode(second)).sum(axis=1).astype(np.float64)

    report = export(
        encoder, tmp_path / "toy.onnx", precision="fp32", dev=ScoredPairs("own", first, second, scores)
    )

    assert report.manifest.gates["retention"]["torch"] == 1.0


def test_a_wrong_file_is_not_published(encoder, tmp_path, monkeypatch):
    make_golden = pipeline._make_golden

    def make_wrong(*arguments):
        golden = make_golden(*arguments)
        return dataclasses.replace(golden, values=-golden.values)

    monkeypatch.setattr(pipeline, "_make_golden", make_wrong)

    with pytest.raises(GateError, match="golden texts"):
        export(encoder, tmp_path / "toy.onnx", precision="fp32")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_kept_until_the_new_one_has_passed(encoder, tmp_path):
    path = tmp_path / "toy.onnx"
    path.write_bytes(b"the old bundle")
    strict = dataclasses.replace(THRESHOLDS["int8"], cosine=1.0)

    with pytest.raises(
        GateError, match="rounding costs this model more than int8 allows: export it with precision"
    ):
        export(encoder, path, precision="int8", thresholds=strict)

    assert path.read_bytes() == b"the old bundle"


def test_a_folder_is_not_overwritten(encoder, tmp_path):
    with pytest.raises(ExportError, match="is a folder"):
        export(encoder, tmp_path, precision="fp32")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp8"}, "must be one of"),
        ({"precision": "int8", "target": "abacus"}, "one of cpu-avx2, cpu-vnni, arm64, not 'abacus'"),
        ({"precision": "fp32", "target": "abacus"}, "must be one of"),
        ({"precision": "int8", "target": "gpu"}, "int8 is for CPUs"),
        ({"precision": "fp32", "word_table": "int2"}, "float32, int8, int4, not 'int2'"),
        ({"precision": "int8-static"}, "int8-static needs calibration texts"),
        ({"precision": "fp32", "calibration": []}, "at least one text"),
        ({"precision": "fp32", "vocabulary_size": 200}, "set vocabulary"),
        ({"precision": "fp32", "whitening_power": 0.4}, "whitening_power needs calibration texts"),
        *(
            (
                {"precision": "fp32", "calibration": PROBE_TEXTS, "whitening_power": power},
                "^whitening_power must be from 0 to 1, not",
            )
            for power in (-0.1, 1.1, float("nan"), "0.4")
        ),
    ],
)
def test_impossible_forms_are_refused_before_any_work(encoder, tmp_path, monkeypatch, options, message):
    monkeypatch.setattr(pipeline, "build_graph", None)

    with pytest.raises(ExportError, match=message):
        export(encoder, tmp_path / "toy.onnx", **options)
    for write in (export_source, export_folder):
        with pytest.raises(ExportError, match=message):
            write("no model", tmp_path / "toy", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": ["a"], "vocabulary_size": "200"}, "vocabulary_size must be a whole number"),
        ({"vocabulary": ["a", "b\ud800"]}, r"vocabulary\[1\] is not valid Unicode"),
        ({"calibration": ["a", None]}, r"calibration\[1\] is NoneType"),
        ({"calibration": "a text"}, "expected an iterable as calibration, got one str"),
    ],
)
def test_texts_and_sizes_of_other_types_are_refused_before_any_work(
    encoder, tmp_path, monkeypatch, options, message
):
    monkeypatch.setattr(pipeline, "build_graph", None)

    with pytest.raises(InputError, match=message):
        export(encoder, tmp_path / "toy.onnx", precision="fp32", **options)


def test_unknown_options_are_refused_before_any_work(tmp_path):
    for write in (export_source, export_folder):
        with pytest.raises(TypeError, match="no options word_tables"):
            write("no model", tmp_path / "toy", precision="fp32", word_tables="int4")


def test_a_vocabulary_that_is_too_small_is_refused_before_any_work(encoder, tmp_path, monkeypatch):
    for name in ("whiten_embeddings", "prune_vocabulary"):
        monkeypatch.setattr(pipeline, name, None)
    options = {"precision": "fp32", "calibration": PROBE_TEXTS, "whitening_power": 0.4, "vocabulary": PROBE_TEXTS}

    with pytest.raises(InputError, match="a vocabulary of 3 pieces is too small"):
        export(encoder, tmp_path / "toy.onnx", vocabulary_size=3, **options)


def test_a_cross_encoder_has_no_embeddings_to_calibrate(make_pair_encoder, tmp_path):
    with pytest.raises(ExportError, match="calibration of a cross-encoder requires int8-static"):
        export(make_pair_encoder(), tmp_path / "toy.onnx", precision="int8", calibration=PROBE_TEXTS)


def test_a_run_folder_is_exported_with_its_card(encoder, tmp_path):
    run = tmp_path / "runs" / "toy"
    encoder.save(run / "model")
    (run / "run.json").write_text(json.dumps({"name": "toy-sct", "method": "sct", "metrics": {"steps": 5}}))
    (run / "config.toml").write_text('method = "sct"\n')

    report = export_source(str(run), tmp_path / "toy.onnx", precision="fp32", licence="MIT")

    manifest = report.manifest
    assert (manifest.name, manifest.method, manifest.licence) == ("toy-sct", "sct", "MIT")
    assert (manifest.config, manifest.metrics) == ({"method": "sct"}, {"steps": 5})
    assert manifest.base == "toy"


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_bundle_is_exported_again_with_a_smaller_vocabulary(encoder, tmp_path, precision):
    card = Card(method="sct", teacher={"name": "large"}, config={"seed": 1}, licence="MIT")
    export(encoder, tmp_path / "toy.onnx", precision=precision, name="toy-sct", card=card)

    report = export_source(
        str(tmp_path / "toy.onnx"), tmp_path / "small.onnx", precision=precision, vocabulary=["a good dog"]
    )

    first, again = (read_bundle(tmp_path / name).manifest for name in ("toy.onnx", "small.onnx"))
    for field in ("name", "base", "method", "teacher", "config", "licence", "dimension", "max_length"):
        assert getattr(again, field) == getattr(first, field)
    figures = report.manifest.gates["vocabulary"]
    assert figures["pieces"] < figures["pieces_before"]
    whole, small = (Encoder.load(tmp_path / name) for name in ("toy.onnx", "small.onnx"))
    text = ["a good dog"]
    np.testing.assert_allclose(small.encode(text), whole.encode(text), atol=1e-5 if precision == "fp32" else 1e-2)


def test_a_bundle_s_length_and_licence_can_be_changed(encoder, tmp_path):
    export(encoder, tmp_path / "toy.onnx", precision="fp32")

    report = export_source(
        str(tmp_path / "toy.onnx"), tmp_path / "b.onnx", precision="fp32", max_length=8, licence="MIT"
    )

    assert (report.manifest.max_length, report.manifest.licence) == (8, "MIT")


def test_a_cross_encoder_s_bundle_is_exported_again(make_pair_encoder, tmp_path):
    export(make_pair_encoder(initializer_range=0.1), tmp_path / "a.onnx", precision="fp32")

    report = export_source(str(tmp_path / "a.onnx"), tmp_path / "b.onnx", precision="fp32")

    assert (report.manifest.kind, report.manifest.max_length) == ("cross-encoder", 20)
    first, again = (CrossEncoder.load(tmp_path / name) for name in ("a.onnx", "b.onnx"))
    np.testing.assert_allclose(again.predict(PROBE_PAIRS), first.predict(PROBE_PAIRS), atol=1e-5)


def test_a_bundle_of_another_network_is_not_exported_again(toy_bundle, tmp_path):
    with pytest.raises(ModelError, match=r"cannot be rebuilt.*use the model folder"):
        export_source(str(toy_bundle), tmp_path / "toy.onnx", precision="fp32")


def test_a_missing_source_is_one_sentence(tmp_path):
    with pytest.raises(ModelNotFoundError):
        export_source(str(tmp_path / "nothing"), tmp_path / "toy.onnx", precision="fp32")


# Cross-encoders


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("int8", 0.1)])
def test_a_cross_encoder_s_bundle_scores_as_the_model_does(make_pair_encoder, tmp_path, precision, tolerance):
    model = make_pair_encoder(initializer_range=0.1)
    limits = dataclasses.replace(PAIR_THRESHOLDS[precision], agreement=0.95)
    report = export(model, tmp_path / "toy.onnx", precision=precision, thresholds=limits)

    bundle = CrossEncoder.load(tmp_path / "toy.onnx")
    np.testing.assert_allclose(
        bundle.predict(PROBE_PAIRS), TorchCrossEncoder(model).predict(PROBE_PAIRS), atol=tolerance
    )
    assert bundle.verify()["passed"]
    assert (report.manifest.kind, report.manifest.dimension, report.manifest.normalize) == (
        "cross-encoder",
        1,
        False,
    )
    rounded = {"weights"} if precision == "int8" else set()
    gates = {"parity", "operators", "agreement", "batch_invariance", "size"}
    assert set(report.manifest.gates) == gates | rounded
    assert read_bundle(tmp_path / "toy.onnx").golden.texts == GOLDEN_PAIRS


def test_a_cross_encoder_s_folder_is_recognised(make_pair_encoder, tmp_path):
    model = make_pair_encoder()
    model.save(tmp_path / "tenc" / "cross-model")
    first, second = zip(*PROBE_PAIRS, strict=True)
    scores = TorchCrossEncoder(model).predict(PROBE_PAIRS).astype(np.float64)
    dev = ScoredPairs("own", list(first), list(second), scores)

    report = export_source(
        str(tmp_path / "tenc" / "cross-model"), tmp_path / "toy.onnx", precision="fp32", dev=dev
    )

    assert (report.manifest.kind, report.manifest.name) == ("cross-encoder", "tenc-cross")
    assert report.manifest.gates["retention"]["torch"] == 1.0


def test_a_cross_encoder_s_bundle_keeps_its_activation(make_pair_encoder, tmp_path):
    model = make_pair_encoder(initializer_range=0.1)
    model.config.sentence_transformers = {"activation_fn": "torch.nn.modules.linear.Identity"}

    report = export(model, tmp_path / "raw.onnx", precision="fp32")

    bundle = CrossEncoder.load(tmp_path / "raw.onnx")
    assert report.manifest.activation == bundle.activation_fn == "identity"
    expected = TorchCrossEncoder(model).logits(model.tokenizer.tokenize(GOLDEN_PAIRS))
    np.testing.assert_allclose(bundle.predict(GOLDEN_PAIRS), expected, atol=1e-5)
