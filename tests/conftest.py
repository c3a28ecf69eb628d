"""Fixtures of all tests: no network, and a toy encoder small enough to follow by hand."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from toys import edit_json, graph_bytes

# Toys gain nothing from more threads, and threads that wait for each other slow down a busy machine. torch and
# BLAS read this when they are imported, also in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The duration of an example depends on the machine and its load.
# A run of the suite tries the same examples each time; `pytest --hypothesis-profile new` tries others.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("new", deadline=None)
settings.load_profile("same")

TOY_DIMENSION = 16
TOY_MAX_LENGTH = 12

_WORDS = """
    a about after again air all also always an and animal another answer any apple are around art as
    ask at away baby back bad ball bank bear beautiful because bed before big bike bird black blue
    board boat body book both box boy bread bridge bring brown build bus but buy by cake call can
    car cat change child children city clean close cloud coat cold color come cook could country cup
    cut dance dark day deep did different do doctor dog door down draw dress drink drive dry each
    ear early earth east eat egg end every eye face fall family far farm fast father feel few field
    find fire first fish five floor flower fly food foot for forest four friend from fruit full game
    garden get girl give glass go gold good grass great green ground grow guitar hair half hand
    happy hard hat have he head hear heart help her high hill his home horse hot house how hundred i
    ice idea if in is island it job jump just keep key kind king kitchen know lake land large last
    laugh learn leave left leg letter life light like line lion listen little live long look love
    machine make man many map market may me mean men milk mind minute money month moon more morning
    most mother mountain mouse move much music my name near need new next night no north not now
    number ocean of off old on one open or orange order other our out over own page paint paper park
    part party pen people phone piano picture place plane plant play please point poor put queen
    query question quick quiet rain read red rest rice rich ride right river road rock room rose
    round run sad salt same sand say school science sea search second see seed sell send seven she
    ship shoe shop short show sing sister sit six sky sleep slow small smile snow so soft some song
    soon sound south space speak spring stand star start station stone stop store story street
    strong student study summer sun sweet swim table take talk tall tea teach team tell ten text
    that the their them there they thing think this three time to today together tomorrow too town
    train travel tree true two under up use very visit voice wait walk wall want warm was wash watch
    water way we wear week well west wet what wheel when where which white who why wild will wind
    window winter with woman wood word work world write year yellow yes you young your zoo ##s ##es
    ##ed ##ing ##er ##est ##ly ##ness . , ! ? : ; ' " - ( )
"""
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"

ToyBundleWriter = Callable[..., Path]


class NetworkBlockedError(RuntimeError):
    """A test tried to connect to another machine."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed torch, as pytest-randomly seeds other generators, so that no test depends on those before it."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def no_flush() -> Iterator[None]:
    """Do not flush files: no test cuts the power, and every flush waits for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block all connections and name look-ups except those to this machine."""
    connect, resolve = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(address[0]):
            raise NetworkBlockedError(f"tests run without a network; this one connects to {address[0]!r}")
        connect(self, address)

    def guarded_resolve(host: Any, *arguments: Any, **options: Any) -> Any:
        if not _is_loopback(host):
            raise NetworkBlockedError(f"tests run without a network; this one looks up {host!r}")
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket.socket, "connect_ex", guarded_connect)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_resolve)


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What embedkit logs: other packages log what depends on their versions and on what ran before."""

    def is_own(record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] == "embedkit"

    caplog.handler.addFilter(is_own)
    yield caplog
    caplog.handler.removeFilter(is_own)


def _is_loopback(host: str | bytes | None) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    return name in (None, "", "localhost", "::1") or str(name).startswith("127.")


@pytest.fixture(scope="session")
def toy_tokenizer_json() -> str:
    """A lower-casing WordPiece ``tokenizer.json`` of about 550 entries.

    Its first ids are ``[PAD] [UNK] [CLS] [SEP] [MASK]``. It specifies padding to 40 tokens and truncation to 5,
    like many published files, so that code that forgets to override them fails.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    entries = [*special, *_LETTERS, *(f"##{letter}" for letter in _LETTERS), *_WORDS.split()]
    vocabulary = {entry: number for number, entry in enumerate(dict.fromkeys(entries))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    tokenizer.add_special_tokens(special)
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]", length=40)
    tokenizer.enable_truncation(max_length=5)
    return str(tokenizer.to_str())


@pytest.fixture(scope="session")
def toy_weights(toy_tokenizer_json: str) -> npt.NDArray[np.float32]:
    """The toy model's only weights: one row per token, ``(V, 16) float32``."""
    from tokenizers import Tokenizer

    size = Tokenizer.from_str(toy_tokenizer_json).get_vocab_size()
    return np.random.default_rng(7).standard_normal((size, TOY_DIMENSION), dtype=np.float32)


@pytest.fixture(scope="session")
def toy_model_bytes(toy_weights: npt.NDArray[np.float32]) -> bytes:
    """A serialised ONNX graph: token embeddings, mean over the mask, unit rows."""
    return build_toy_model(toy_weights)


def build_toy_model(weights: npt.NDArray[np.float32], *, normalize: bool = True) -> bytes:
    """Build the toy graph; with ``normalize=False`` it stops at the mean."""
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    constants = {
        "weights": weights,
        "last": np.array([2], dtype=np.int64),
        "tokens": np.array([1], dtype=np.int64),
        "one": np.array(1.0, dtype=np.float32),
        "tiny": np.array(1e-12, dtype=np.float32),
    }
    mean = "mean" if normalize else "sentence_embedding"
    nodes = [
        helper.make_node("Gather", ["weights", "input_ids"], ["embedded"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide_mask"]),
        helper.make_node("Mul", ["embedded", "wide_mask"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "tokens"], ["summed"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "tokens"], ["counted"], keepdims=1),
        helper.make_node("Max", ["counted", "one"], ["count"]),
        helper.make_node("Div", ["summed", "count"], [mean]),
    ]
    if normalize:
        nodes += [
            helper.make_node("ReduceL2", ["mean"], ["length"], axes=[1], keepdims=1),
            helper.make_node("Max", ["length", "tiny"], ["safe_length"]),
            helper.make_node("Div", ["mean", "safe_length"], ["sentence_embedding"]),
        ]
    inputs = [(name, onnx.TensorProto.INT64, ["batch", "tokens"]) for name in ("input_ids", "attention_mask")]
    outputs = [("sentence_embedding", onnx.TensorProto.FLOAT, ["batch", weights.shape[1]])]
    return graph_bytes(nodes, inputs, outputs, constants)


@pytest.fixture(scope="session")
def toy_reference(
    toy_tokenizer_json: str, toy_weights: npt.NDArray[np.float32]
) -> Callable[..., npt.NDArray[np.float32]]:
    """The expected embeddings of the toy bundle, computed text by text: ``reference(texts, max_length=12)``."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(toy_tokenizer_json)
    tokenizer.no_padding()

    def reference(texts: Sequence[str], max_length: int = TOY_MAX_LENGTH) -> npt.NDArray[np.float32]:
        tokenizer.enable_truncation(max_length)
        rows = [toy_weights[tokenizer.encode(text).ids].astype(np.float64).mean(axis=0) for text in texts]
        return np.array([row / np.linalg.norm(row) for row in rows], dtype=np.float32)

    return reference


@pytest.fixture(scope="session")
def write_toy_bundle(
    toy_tokenizer_json: str,
    toy_model_bytes: bytes,
    toy_reference: Callable[..., npt.NDArray[np.float32]],
) -> ToyBundleWriter:
    """Write a toy bundle: ``write_toy_bundle(path, prompts={...}, **manifest_fields) -> path``."""
    from embedkit.runtime.bundle import write_bundle
    from embedkit.runtime.manifest import Golden, Manifest
    from embedkit.runtime.tokenization import Tokenizer

    def write(path: Path, *, prompts: Mapping[str, str] | None = None, **about: Any) -> Path:
        texts = ["a good dog", "the cat is asleep", ""]
        manifest = Manifest(
            **{"name": "toy", "dimension": TOY_DIMENSION, "max_length": TOY_MAX_LENGTH, **about},
            prompts=dict(prompts or {}),
        )
        tokens = Tokenizer(toy_tokenizer_json, manifest.max_length).tokenize(texts)
        golden = Golden(texts, tokens.ids, toy_reference(texts, manifest.max_length), tolerance=1e-4)
        write_bundle(path, toy_model_bytes, manifest, toy_tokenizer_json, golden)
        return path

    return write


@pytest.fixture(scope="session")
def toy_bundle(write_toy_bundle: ToyBundleWriter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Path of a valid bundle of 16 dimensions and at most 12 tokens; shared, so do not change the file."""
    path = write_toy_bundle(tmp_path_factory.mktemp("bundle") / "toy.onnx")
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before, "a test changed the shared toy bundle"


def build_toy_cross_model(weights: npt.NDArray[np.float32], *, activate: bool = True) -> bytes:
    """Build a graph that scores a pair: sigmoid of the mean weight of its tokens, the second text's times three.

    With ``activate=False`` it returns logits ``(B, 1)``, like the graphs of sentence-transformers.
    """
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    constants = {
        "weights": weights,
        "tokens": np.array([1], dtype=np.int64),
        "one": np.array(1.0, dtype=np.float32),
        "two": np.array(2.0, dtype=np.float32),
    }
    logits = "mean" if activate else "logits"
    nodes = [
        helper.make_node("Gather", ["weights", "input_ids"], ["embedded"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Cast", ["token_type_ids"], ["second"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["second", "two"], ["twice_second"]),
        helper.make_node("Add", ["twice_second", "one"], ["factor"]),
        helper.make_node("Mul", ["embedded", "factor"], ["scaled"]),
        helper.make_node("Mul", ["scaled", "mask"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "tokens"], ["summed"], keepdims=0 if activate else 1),
        helper.make_node("ReduceSum", ["mask", "tokens"], ["counted"], keepdims=0 if activate else 1),
        helper.make_node("Div", ["summed", "counted"], [logits]),
    ]
    if activate:
        nodes.append(helper.make_node("Sigmoid", ["mean"], ["score"]))
    output, axes = ("score", ["batch"]) if activate else ("logits", ["batch", 1])
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [(name, onnx.TensorProto.INT64, ["batch", "tokens"]) for name in names]
    return graph_bytes(nodes, inputs, [(output, onnx.TensorProto.FLOAT, axes)], constants)


@pytest.fixture(scope="session")
def toy_cross_reference(
    toy_tokenizer_json: str, toy_weights: npt.NDArray[np.float32]
) -> Callable[..., npt.NDArray[np.float32]]:
    """The expected scores of the toy cross-encoder, computed pair by pair: ``reference(pairs, max_length=12)``."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(toy_tokenizer_json)
    tokenizer.no_padding()

    def reference(pairs: Sequence[tuple[str, str]], max_length: int = TOY_MAX_LENGTH) -> npt.NDArray[np.float32]:
        tokenizer.enable_truncation(max_length, strategy="longest_first")
        scores = []
        for first, second in pairs:
            encoding = tokenizer.encode(first, second)
            weights = toy_weights[encoding.ids, 0].astype(np.float64)
            mean = (weights * (1 + 2 * np.array(encoding.type_ids))).mean()
            scores.append(1 / (1 + np.exp(-mean)))
        return np.array(scores, dtype=np.float32)

    return reference


@pytest.fixture(scope="session")
def write_toy_cross_bundle(
    toy_tokenizer_json: str,
    toy_weights: npt.NDArray[np.float32],
    toy_cross_reference: Callable[..., npt.NDArray[np.float32]],
) -> ToyBundleWriter:
    """Write the bundle of a toy cross-encoder: ``write_toy_cross_bundle(path, **manifest_fields) -> path``."""
    from embedkit.runtime.bundle import write_bundle
    from embedkit.runtime.manifest import Golden, Manifest
    from embedkit.runtime.tokenization import PairTokenizer

    def write(path: Path, **about: Any) -> Path:
        pairs = [("a good dog", "the cat is asleep"), ("", "the sea"), ("music", "")]
        fields = {"name": "toy-cross", "kind": "cross-encoder", "dimension": 1, "max_length": TOY_MAX_LENGTH}
        manifest = Manifest(**{**fields, "pooling": "cls", "normalize": False, **about})
        tokens = PairTokenizer(toy_tokenizer_json, manifest.max_length).tokenize(pairs)
        scores = toy_cross_reference(pairs, manifest.max_length)
        golden = Golden(pairs, tokens.ids, scores, 1e-4, tokens.type_ids)
        write_bundle(path, build_toy_cross_model(toy_weights[:, 0]), manifest, toy_tokenizer_json, golden)
        return path

    return write


@pytest.fixture(scope="session")
def toy_cross_bundle(write_toy_cross_bundle: ToyBundleWriter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of a valid cross-encoder bundle with at most 12 tokens per pair; do not change the file."""
    return write_toy_cross_bundle(tmp_path_factory.mktemp("bundle") / "toy-cross.onnx")


@pytest.fixture
def bundled_cross(toy_cross_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of the toy cross-encoder, which is the only bundled model during the test."""
    from embedkit.runtime import find

    folder = tmp_path / "bundled"
    folder.mkdir()
    shutil.copy(toy_cross_bundle, folder / "toy-cross.onnx")
    monkeypatch.setattr(find, "BUNDLED", folder)
    return "toy-cross"


@pytest.fixture
def toy_cross_folder(toy_tokenizer_json: str, toy_weights: npt.NDArray[np.float32], tmp_path: Path) -> Path:
    """The folder of a cross-encoder as sentence-transformers writes it, with a graph that returns logits."""
    folder = tmp_path / "cross-folder"
    (folder / "onnx").mkdir(parents=True)
    (folder / "tokenizer.json").write_text(toy_tokenizer_json, encoding="utf-8")
    config = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": TOY_MAX_LENGTH}))
    (folder / "onnx" / "model.onnx").write_bytes(build_toy_cross_model(toy_weights[:, 0], activate=False))
    return folder


@dataclass
class StaticFolder:
    """A table of word vectors in a folder, with its contents.

    Attributes:
        path: the folder.
        rows: ``(V, 64) float32``, as stored.
        weights: ``(V,) float32``, a factor of each word, stored in the form ``"mapped"``.
        mapping: ``(V,) int64``, the row of each word in that form.
    """

    path: Path
    rows: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32]
    mapping: npt.NDArray[np.int64]


@pytest.fixture
def make_static_folder(toy_tokenizer_json: str, tmp_path: Path) -> Callable[..., StaticFolder]:
    """``make_static_folder(library, form="plain")``: model2vec also has the forms "modules" and "mapped"."""

    def make(library: str, form: str = "plain") -> StaticFolder:
        from safetensors.numpy import save_file

        tokenizer = json.loads(toy_tokenizer_json) | {"truncation": None}
        count = len(tokenizer["model"]["vocab"])
        generator = np.random.default_rng(7)
        made = StaticFolder(
            tmp_path / "static",
            generator.standard_normal((count, 64), dtype=np.float32),
            generator.uniform(0.2, 2.0, count).astype(np.float32),
            generator.integers(0, count, count),
        )
        made.path.mkdir()
        edit_json(made.path / "tokenizer.json", **tokenizer)
        weights: dict[str, Any] = {"embeddings": made.rows}
        modules = [{"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"}]
        if library == "sentence-transformers":
            weights = {"embedding.weight": made.rows}
        else:
            edit_json(made.path / "config.json", model_type="model2vec", normalize=True, embedding_dtype="float32")
        if form == "mapped":
            weights |= {"weights": made.weights, "mapping": made.mapping}
        if library == "sentence-transformers" or form != "plain":
            (made.path / "modules.json").write_text(json.dumps(modules))
        save_file(weights, made.path / "model.safetensors")
        return made

    return make
