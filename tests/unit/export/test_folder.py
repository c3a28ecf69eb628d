"""Folders for other libraries, and those libraries loading them if they are installed."""

import dataclasses
import json

import numpy as np
import onnx
import pytest
import torch
from toy_networks import exact_levels

from embedkit.errors import ExportError, GateError
from embedkit.export import folder as folder_module
from embedkit.export import writer
from embedkit.export.bias_correction import read_arrays
from embedkit.export.folder import export_folder
from embedkit.export.gates import THRESHOLDS
from embedkit.export.pipeline import export
from embedkit.export.probes import PROBE_TEXTS
from embedkit.export.quantize import TARGETS
from embedkit.export.source_parity import is_early
from embedkit.export.writer import read_head
from embedkit.modeling.encoder import DenseHead, SentenceEncoder, chain
from embedkit.modeling.layout import read_activation
from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.folder_layout import read_layout

PAIRS = [("the cat is asleep", "a good dog"), ("music", "the sea is blue")]
TEXTS = [*PROBE_TEXTS[:9], "", "a long text about the sea and the sun " * 5]


PARTS = [("mean", 16, "tanh"), ("mean", 16, "linear"), ("cls", None, "tanh")]  # pooling, head, activation


@pytest.fixture
def make(make_encoder):
    """``make(*parts)``: an encoder with a prompt."""

    def make(pooling, head, activation):
        encoder = make_encoder(pooling=pooling, head=head, activation=activation, initializer_range=0.1)
        encoder.prompts = {"query": "find "}
        return encoder

    return make


@pytest.fixture
def encoder(make):
    return make(*PARTS[0])


@pytest.fixture
def model(encoder, tmp_path):
    encoder.save(tmp_path / "model")
    return str(tmp_path / "model")


def cosines(rows, others):
    rows, others = (np.asarray(matrix, dtype=np.float64) for matrix in (rows, others))
    rows, others = (matrix / np.linalg.norm(matrix, axis=1, keepdims=True) for matrix in (rows, others))
    return (rows * others).sum(axis=1)


@pytest.mark.parametrize("parts", PARTS)
def test_a_model_s_folder_has_weights_and_graphs_that_embedkit_loads(make, tmp_path, parts):
    encoder = make(*parts)
    encoder.save(tmp_path / "model")

    report = export_folder(str(tmp_path / "model"), tmp_path / "st", precision="int8", licence="MIT")

    assert list(report.graphs) == ["onnx/model.onnx", "onnx/model_qint8_avx2.onnx"]
    assert report.graphs["onnx/model.onnx"].gates["parity"]["largest_difference"] <= 1e-5
    assert report.size_bytes == sum(file.stat().st_size for file in (tmp_path / "st").rglob("*") if file.is_file())
    loaded = SentenceEncoder.load(tmp_path / "st")
    assert loaded.fingerprint() == encoder.fingerprint()
    assert loaded.prompts == {"query": "find "}
    card = (tmp_path / "st" / "README.md").read_text()
    assert "license: mit" in card
    assert card.count("- parity: ") == 2
    for file, least in (("model.onnx", 0.99999), ("model_qint8_avx2.onnx", 0.99)):
        found = Encoder.load(tmp_path / "st", file=f"onnx/{file}")
        assert found.dimension == encoder.dimension
        assert cosines(found.encode(TEXTS), TorchEncoder(encoder).encode(TEXTS)).min() > least
    graph = onnx.load(tmp_path / "st" / "onnx" / "model.onnx")
    assert [output.name for output in graph.graph.output] == ["last_hidden_state", "sentence_embedding"]
    assert not graph.metadata_props


def test_a_graph_is_named_after_its_processor(make_encoder, tmp_path, monkeypatch):
    monkeypatch.setitem(TARGETS, "cpu-vnni", exact_levels())
    make_encoder(initializer_range=0.1).save(tmp_path / "model")

    report = export_folder(str(tmp_path / "model"), tmp_path / "st", precision="int8", target="cpu-vnni")

    assert list(report.graphs) == ["onnx/model.onnx", "onnx/model_qint8_avx512_vnni.onnx"]


@pytest.mark.parametrize(("precision", "parts"), [*zip(["fp32", "int8", "int8-static"], PARTS, strict=True)])
def test_a_bundle_becomes_a_folder(make, tmp_path, precision, parts):
    encoder = make(*parts)
    export(encoder, tmp_path / "toy.onnx", precision=precision, calibration=PROBE_TEXTS)

    export_folder(str(tmp_path / "toy.onnx"), tmp_path / "st")

    rows = Encoder.load(tmp_path / "toy.onnx").encode(TEXTS)
    np.testing.assert_allclose(Encoder.load(tmp_path / "st").encode(TEXTS), rows, atol=1e-6)
    described = json.loads((tmp_path / "st" / "config.json").read_text())
    assert described["hidden_size"] == 32
    assert not (tmp_path / "st" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("precision", "activation"),
    [("fp32", "tanh"), ("fp32", "linear"), ("int8", "linear"), ("int8-static", "tanh")],
)
def test_the_head_is_read_from_any_precision(make_encoder, tmp_path, precision, activation):
    encoder = make_encoder(head=6, activation=activation, initializer_range=0.1)
    with torch.no_grad():  # an outlying pooled value, so that int8 smooths the head's inputs
        encoder.get_parameter("backbone.encoder.layer.1.output.LayerNorm.weight")[3] *= 30
    any_cosine = dataclasses.replace(THRESHOLDS[precision], cosine=-1.0, agreement=-1.0, difference=None)
    export(encoder, tmp_path / "toy.onnx", precision=precision, calibration=PROBE_TEXTS, thresholds=any_cosine)

    head = read_head(read_bundle(tmp_path / "toy.onnx"))

    weight = encoder.head.linear.weight.detach().numpy()
    assert cosines(head.weight, weight).min() > {"fp32": 0.999, "int8": 0.998, "int8-static": 0.995}[precision]
    constants = read_arrays(onnx.load_from_string(read_bundle(tmp_path / "toy.onnx").model))
    np.testing.assert_array_equal(head.bias, constants["head.linear.bias"])
    assert ("head.linear.factors" in constants) == (precision != "fp32")
    if precision == "fp32":  # otherwise it compensates for rounded weights
        np.testing.assert_array_equal(head.bias, encoder.head.linear.bias.detach().numpy())
    assert head.activation == activation


def test_a_default_prompt_is_applied_by_model_bundle_and_folder_alike(make_encoder, tmp_path):
    encoder = make_encoder()
    encoder.prompts, encoder.default_prompt = {"query": "the ", "passage": "a "}, "query"
    encoder.save(tmp_path / "model")
    export(SentenceEncoder.load(tmp_path / "model"), tmp_path / "toy.onnx", precision="fp32")
    export_folder(str(tmp_path / "model"), tmp_path / "of-model", precision="fp32")
    export_folder(str(tmp_path / "toy.onnx"), tmp_path / "of-bundle")
    expected = TorchEncoder(encoder).encode(TEXTS)
    encoder.default_prompt = None
    np.testing.assert_allclose(TorchEncoder(encoder).encode([f"the {text}" for text in TEXTS]), expected)
    for place in ("toy.onnx", "of-model", "of-bundle"):
        loaded = Encoder.load(tmp_path / place)
        assert loaded.manifest.default_prompt == "query"
        np.testing.assert_allclose(loaded.encode(TEXTS), expected, atol=1e-5)
        np.testing.assert_allclose(loaded.encode(TEXTS, prompt=""), TorchEncoder(encoder).encode(TEXTS), atol=1e-5)
    assert Encoder.load(tmp_path / "toy.onnx").verify()["passed"]


@pytest.mark.parametrize(
    ("architecture", "pooling", "head", "activation"),
    [("mpnet", "mean", 6, "tanh"), ("modernbert", "cls", None, "tanh"), ("electra", "mean", 6, "linear")],
)
def test_folders_of_other_architectures(make_any, tmp_path, architecture, pooling, head, activation):
    model = make_any(architecture, pooling=pooling, head=head, activation=activation)
    model.save(tmp_path / "model")

    export_folder(str(tmp_path / "model"), tmp_path / "st", precision="fp32")

    rows = Encoder.load(tmp_path / "st").encode(TEXTS)
    np.testing.assert_allclose(rows, TorchEncoder(model).encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "pooling", "source"),
    [
        ("bert", "max", "model"),
        ("bert", "mean_sqrt_len_tokens", "bundle"),
        ("bert", "weightedmean", "model"),
        ("bert", "lasttoken", "bundle"),
        ("bert", "max+cls", "model"),
        ("modernbert", "cls+mean+max", "bundle"),
    ],
)
def test_folders_of_other_poolings(make_encoder, make_any, tmp_path, architecture, pooling, source):
    if pooling in ("max+cls", "cls+mean+max") and is_early():
        pytest.skip("before version 6, sentence-transformers has one order of poolings")
    make = make_encoder if architecture == "bert" else lambda **options: make_any(architecture, **options)
    model = make(pooling=pooling)
    tolerances = {"onnx/model.onnx": 1e-5}
    if source == "model":
        model.save(tmp_path / "model")
        export_folder(str(tmp_path / "model"), tmp_path / "st", precision="fp16", target="gpu")
        tolerances["onnx/model_fp16.onnx"] = 5e-3
    else:
        export(model, tmp_path / "toy.onnx", precision="fp32")
        export_folder(str(tmp_path / "toy.onnx"), tmp_path / "st")

    expected = TorchEncoder(model).encode(TEXTS)
    for file, tolerance in tolerances.items():
        rows = Encoder.load(tmp_path / "st", file=file).encode(TEXTS)
        np.testing.assert_allclose(rows, expected, atol=tolerance)


def test_a_cross_encoder_s_folder_gives_logits(make_pair_encoder, tmp_path):
    model = make_pair_encoder()
    model.save(tmp_path / "model")

    export_folder(str(tmp_path / "model"), tmp_path / "st", precision="fp32")

    scores = CrossEncoder.load(tmp_path / "st").predict(PAIRS)
    np.testing.assert_allclose(scores, TorchCrossEncoder(model).predict(PAIRS), atol=1e-5)


def test_a_head_that_does_not_fit_the_graph_misses_its_gate(make_encoder, tmp_path, monkeypatch):
    export(make_encoder(head=6), tmp_path / "toy.onnx", precision="fp32")

    def read_wrong(bundle):
        head = read_head(bundle)
        return dataclasses.replace(head, weight=-head.weight)

    monkeypatch.setattr(folder_module, "read_head", read_wrong)

    with pytest.raises(GateError, match="pooling the token states"):
        export_folder(str(tmp_path / "toy.onnx"), tmp_path / "st")
    assert not (tmp_path / "st").exists()


@pytest.mark.parametrize("activation", ["relu", "gelu", "sigmoid", "silu"])
def test_a_head_may_have_any_activation(make_encoder, tmp_path, activation):
    encoder = make_encoder(head=6, activation=activation, initializer_range=0.1)
    export(encoder, tmp_path / "toy.onnx", precision="fp32")

    export_folder(str(tmp_path / "toy.onnx"), tmp_path / "st")

    assert [read_activation(head) for head in read_layout(tmp_path / "st").heads] == [activation]
    np.testing.assert_allclose(
        Encoder.load(tmp_path / "st").encode(TEXTS), TorchEncoder(encoder).encode(TEXTS), atol=1e-5
    )


def test_a_bundle_with_several_dense_layers_is_refused(make_encoder, tmp_path):
    encoder = make_encoder(head=6, activation="relu", initializer_range=0.1)
    encoder.head = chain(encoder.head, DenseHead(6, 4, "tanh"))
    export(encoder, tmp_path / "toy.onnx", precision="fp32")

    with pytest.raises(ExportError, match="a dense head that cannot be read"):
        export_folder(str(tmp_path / "toy.onnx"), tmp_path / "st")


def test_a_word_memory_is_refused(make_encoder, make_any, tmp_path):
    for name, model in {"written": make_encoder(memory=8), "traced": make_any("electra", memory=8)}.items():
        model.save(tmp_path / name)
        export(model, tmp_path / f"{name}.onnx", precision="fp32")
        for source, options in ((tmp_path / name, {"precision": "fp32"}), (tmp_path / f"{name}.onnx", {})):
            with pytest.raises(ExportError, match=f"{source} has a word memory.*bundle instead"):
                export_folder(str(source), tmp_path / "st", **options)
    assert not (tmp_path / "st").exists()


def test_unsupported_models_are_refused(make_encoder, make_pair_encoder, tmp_path, monkeypatch):
    make_encoder().save(tmp_path / "model")
    export(make_encoder(), tmp_path / "toy.onnx", precision="fp32")
    export(make_pair_encoder(), tmp_path / "pairs.onnx", precision="fp32")

    for changed in ({"vocabulary": ["the"]}, {"whitening_power": 0.0, "calibration": ["the"]}):
        with pytest.raises(ExportError, match=f"torch weights, which {next(iter(changed))} would change"):
            export_folder(str(tmp_path / "model"), tmp_path / "st", precision="fp32", **changed)
    with pytest.raises(ExportError, match="cross-encoder; export the model"):
        export_folder(str(tmp_path / "pairs.onnx"), tmp_path / "st")
    monkeypatch.setattr(writer, "_POOLS", {"mean": {}})
    with pytest.raises(ExportError, match="token states"):
        export_folder(str(tmp_path / "toy.onnx"), tmp_path / "st")
    assert not (tmp_path / "st").exists()


# Other libraries


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_sentence_transformers_loads_a_model_s_folder(encoder, model, tmp_path, backend):
    library = pytest.importorskip("sentence_transformers")
    if backend == "onnx":
        pytest.importorskip("optimum.onnxruntime")
    export_folder(model, tmp_path / "st", precision="fp32")
    options = {"provider": "CPUExecutionProvider", "file_name": "model.onnx"} if backend == "onnx" else {}

    theirs = library.SentenceTransformer(
        str(tmp_path / "st"), backend=backend, device="cpu", model_kwargs=options, local_files_only=True
    )

    assert cosines(theirs.encode(TEXTS), TorchEncoder(encoder).encode(TEXTS)).min() > 0.9999
    assert theirs.prompts["query"] == "find "


@pytest.mark.filterwarnings("ignore")
def test_sentence_transformers_loads_a_bundle_s_folder(encoder, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    pytest.importorskip("optimum.onnxruntime")
    export(encoder, tmp_path / "toy.onnx", precision="fp32")
    export_folder(str(tmp_path / "toy.onnx"), tmp_path / "st")

    theirs = library.SentenceTransformer(
        str(tmp_path / "st"),
        backend="onnx",
        device="cpu",
        model_kwargs={"provider": "CPUExecutionProvider", "file_name": "model.onnx"},
        local_files_only=True,
    )

    assert cosines(theirs.encode(TEXTS), Encoder.load(tmp_path / "toy.onnx").encode(TEXTS)).min() > 0.9999


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stored", ["Identity", "Sigmoid", None])
def test_sentence_transformers_gives_a_cross_encoder_s_scores(make_pair_encoder, tmp_path, stored):
    library = pytest.importorskip("sentence_transformers")
    model = make_pair_encoder(initializer_range=0.3)
    if stored is not None:
        module = {"Identity": "linear", "Sigmoid": "activation"}[stored]
        model.config.sentence_transformers = {"activation_fn": f"torch.nn.modules.{module}.{stored}"}
    model.save(tmp_path / "model")
    export_folder(str(tmp_path / "model"), tmp_path / "st", precision="fp32")
    export(model, tmp_path / "pairs.onnx", precision="fp32")
    pairs = [(query, passage) for query in TEXTS for passage in TEXTS]
    ours = CrossEncoder.load(tmp_path / "pairs.onnx")
    logits = ours.predict(pairs, activation_fn="identity")
    assert logits.std() > 0.1
    network = TorchCrossEncoder(model)
    np.testing.assert_allclose(network.logits(model.tokenizer.tokenize(pairs)), logits, rtol=0, atol=1e-5)

    for folder in ("model", "st"):
        theirs = library.CrossEncoder(
            str(tmp_path / folder), max_length=ours.max_length, device="cpu", local_files_only=True
        )
        np.testing.assert_allclose(ours.predict(pairs), theirs.predict(pairs), rtol=0, atol=1e-5)
        np.testing.assert_allclose(
            logits, theirs.predict(pairs, activation_fn=torch.nn.Identity()), rtol=0, atol=1e-5
        )


@pytest.mark.filterwarnings("ignore")
def test_fastembed_loads_the_folder(encoder, model, tmp_path):
    library = pytest.importorskip("fastembed")
    export_folder(model, tmp_path / "st", precision="fp32")

    rows = encode_by_fastembed(library, tmp_path / "st", encoder.dimension)

    assert cosines(rows, TorchEncoder(encoder).encode(TEXTS)).min() > 0.9999


def encode_by_fastembed(library, folder, dimension):
    description = pytest.importorskip("fastembed.common.model_description")
    name = f"toy/{folder.parent.name}"
    library.TextEmbedding.add_custom_model(
        model=name,
        pooling=description.PoolingType.DISABLED,
        normalization=False,
        sources=description.ModelSource(hf=name),
        dim=dimension,
        model_file="onnx/model.onnx",
        output_name="sentence_embedding",
    )
    return list(library.TextEmbedding(name, specific_model_path=str(folder)).embed(TEXTS))
