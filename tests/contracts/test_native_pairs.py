"""embedkit's kernel scores pairs like ONNX Runtime, with the same bits in any batch."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_networks import exact_levels, toy_cross_encoder, toy_graph

from embedkit.errors import ModelError, ProviderError
from embedkit.export.pipeline import export
from embedkit.export.quantize import WORD_TABLES
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.kernel_backend import NATIVE, KernelBackend, native_instructions
from embedkit.runtime.network import Norm, read_network
from embedkit.runtime.onnx_backend import CPU, Session
from embedkit.runtime.tokenization import Tokenizer, Tokens

MAX_LENGTH = 300
# Largest difference of a score. int8-static rounds the same values in the same steps, but occasionally one in
# the other direction; int8 rounds each token with its own step.
DIFFERENCE = {"fp32": 2e-6, "int8-static": 2e-2, "int8": 5e-2}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"type_vocab_size": 1},
    "mpnet": {},
    "electra": {"embedding_size": 64},
    "modernbert": {
        "local_attention": 16,
        "global_attn_every_n_layers": 2,
        "classifier_bias": True,
        "norm_bias": True,
    },
}
PAIRS = [
    ("the cat is asleep", "a good dog"),
    ("where is the train to the city today", "my mother drives to the sea"),
    ("music", ""),
    ("", "the sea is blue and the sun is warm today"),
]

needs_kernel = pytest.mark.skipif(not native_instructions(), reason="no kernel")


@pytest.fixture(scope="module")
def make_model(toy_tokenizer_json: str) -> Any:
    """``make_model(family="bert", **config)``, with random weights and biases; its scores spread."""

    tokenizer = Tokenizer(toy_tokenizer_json, MAX_LENGTH)

    def make(family: str = "bert", **changes: Any) -> PairEncoder:
        settings = {
            "hidden_size": 64,
            "num_attention_heads": 2,
            "intermediate_size": 192,
            "max_position_embeddings": MAX_LENGTH + 2,
            "initializer_range": 0.15,
            "pad_token_id": 0,
        }
        return toy_cross_encoder(tokenizer, seed=5, family=family, **settings | FAMILIES[family] | changes)

    return make


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    """Return pairs of every length that fills vectors, tiles and blocks differently, split at any position."""
    generator = np.random.default_rng(0)
    lengths = [2, 1, 3, 15, 16, 17, 31, 32, 33, 64, 95, 96, 97, 130, 200, MAX_LENGTH, 5, 5, 8]
    ids = [generator.integers(5, 300, length).tolist() for length in lengths]
    types = [sorted(generator.integers(0, 2, length).tolist()) for length in lengths]
    return Tokens(ids, [], types)


def write(model: PairEncoder, products: str = "fp32", words: str = "float32") -> bytes:
    texts = [text for pair in PAIRS for text in pair]
    return toy_graph(model, products, words, levels=exact_levels(), texts=texts).SerializeToString()


def find(content: bytes, instructions: str | None = None) -> KernelBackend:
    graph = KernelBackend.find(content, pairs=True, instructions=instructions)
    assert graph is not None
    return graph


def take(tokens: Tokens, rows: Any) -> Tokens:
    assert tokens.type_ids is not None
    return Tokens([tokens.ids[row] for row in rows], [], [tokens.type_ids[row] for row in rows])


def run_alone(content: bytes, tokens: Tokens) -> Any:
    """Return ONNX Runtime's score of each pair alone."""
    session = Session(content, outputs=["score"], threads=1)
    return np.concatenate([session.run(tokens.batch([row], 0)) for row in range(len(tokens.ids))])


@needs_kernel
@pytest.mark.parametrize("words", WORD_TABLES)
@pytest.mark.parametrize("products", DIFFERENCE)
@pytest.mark.parametrize("family", FAMILIES)
def test_agrees_with_onnx_runtime(make_model: Any, tokens: Tokens, family: str, products: str, words: str) -> None:
    content = write(make_model(family), products, words)
    scores = find(content).run(tokens)
    expected = run_alone(content, tokens)
    assert expected.std() > 0.05
    assert (scores.shape, scores.dtype) == (expected.shape, np.float32)
    assert np.abs(scores - expected).max() <= DIFFERENCE[products]


@needs_kernel
@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
        {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 64},
        {"type_vocab_size": 4},
        {"type_vocab_size": 1},
        {"family": "modernbert", "classifier_pooling": "mean"},
        {"family": "modernbert", "classifier_activation": "gelu_new", "hidden_activation": "gelu_pytorch_tanh"},
        {"family": "modernbert", "norm_eps": 0.1, "classifier_bias": False, "norm_bias": False},
    ],
    ids=str,
)
def test_agrees_for_every_shape(make_model: Any, tokens: Tokens, changes: dict[str, Any]) -> None:
    content = write(make_model(**changes))
    assert np.abs(find(content).run(tokens) - run_alone(content, tokens)).max() <= DIFFERENCE["fp32"]


@needs_kernel
def test_token_types_change_scores(make_model: Any, tokens: Tokens) -> None:
    content = write(make_model())
    graph, untyped = find(content), Tokens(tokens.ids, [])
    assert np.abs(graph.run(untyped) - graph.run(tokens)).max() > 0.01
    assert np.abs(graph.run(untyped) - run_alone(content, untyped)).max() <= DIFFERENCE["fp32"]


@needs_kernel
@pytest.mark.parametrize("products", DIFFERENCE)
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_pair_has_the_same_bits_in_any_batch(
    make_model: Any, tokens: Tokens, products: str, family: str
) -> None:
    graph = find(write(make_model(family), products))
    together = graph.run(tokens)
    order = np.random.default_rng(1).permutation(len(tokens.ids))
    assert np.array_equal(together[order], graph.run(take(tokens, order)))
    alone = [graph.run(take(tokens, [row])) for row in range(len(tokens.ids))]
    assert np.array_equal(together, np.concatenate(alone))


@needs_kernel
@pytest.mark.parametrize("lengths", [[0, 0], [0] * 5 + [1] * 100 + [0] * 5, [2, 0, 1] * 70])
def test_many_short_pairs_and_pairs_without_tokens(make_model: Any, lengths: list[int]) -> None:
    graph = find(write(make_model(), "int8"))
    ids = [list(range(5 + row, 5 + row + length)) for row, length in enumerate(lengths)]
    tokens = Tokens(ids, [], [[1] * length for length in lengths])
    alone = [graph.run(take(tokens, [row])) for row in range(len(ids))]
    assert np.isfinite(alone).all()
    assert np.array_equal(graph.run(tokens), np.concatenate(alone))


@needs_kernel
@pytest.mark.parametrize("products", DIFFERENCE)
@pytest.mark.parametrize(
    "changes",
    [{"hidden_act": "gelu_new"}, {"family": "modernbert"}, {"family": "modernbert", "classifier_pooling": "mean"}],
    ids=str,
)
def test_every_instruction_set_gives_the_same_bits(
    make_model: Any, tokens: Tokens, products: str, changes: dict[str, Any]
) -> None:
    content = write(make_model(**changes), products)
    definition = find(content, "portable").run(tokens)
    for instructions in native_instructions():
        assert np.array_equal(find(content, instructions).run(tokens), definition), instructions


@needs_kernel
def test_scores_of_large_logits_do_not_overflow(make_model: Any, tokens: Tokens) -> None:
    graph = read_network(write(make_model()))
    assert graph is not None
    assert graph.score is not None
    great = dataclasses.replace(graph.score, bias=np.array([-2000], dtype=np.float32))
    assert not KernelBackend(dataclasses.replace(graph, score=great)).run(tokens).any()


@needs_kernel
@pytest.mark.parametrize("logits", [False, True])
def test_a_logit_that_overflows_is_an_error(make_model: Any, tokens: Tokens, *, logits: bool) -> None:
    graph = read_network(write(make_model()))
    assert graph is not None
    assert graph.score is not None
    weight = np.full_like(graph.score.weight, 3e38)
    weight[::2] *= -1  # the sum is infinite or NaN
    network = KernelBackend(dataclasses.replace(graph, score=dataclasses.replace(graph.score, weight=weight)))
    with pytest.raises(ModelError, match="NaN or infinite"):
        (network.with_logits() if logits else network).run(tokens)


@needs_kernel
@pytest.mark.parametrize(
    ("ids", "types"), [([-1], [0]), ([100_000], [0]), ([5], [-1]), ([5], [2]), ([5, 6], [0]), ([5], [0, 1])]
)
def test_ids_beyond_the_tables_are_refused(make_model: Any, ids: list[int], types: list[int]) -> None:
    with pytest.raises(ModelError, match="does not accept"):
        find(write(make_model())).run(Tokens([[5], ids], [], [[1], types]))


class TestSizes:
    """The kernel checks its arguments: a wrong size is an error and causes no read out of bounds."""

    @needs_kernel
    @pytest.mark.parametrize("types", [np.zeros((0, 64)), np.zeros((2, 63)), np.zeros(32)])
    def test_of_token_types(self, make_model: Any, types: Any) -> None:
        graph = read_network(write(make_model()))
        assert graph is not None
        with pytest.raises(ValueError, match="token types are no rows"):
            KernelBackend(dataclasses.replace(graph, types=types.astype(np.float32)))

    @needs_kernel
    def test_of_the_norm_after_the_head(self, make_model: Any) -> None:
        graph = read_network(write(make_model("modernbert")))
        assert graph is not None
        assert graph.head_norm is not None
        weight, bias = graph.head_norm.weight, graph.head_norm.bias
        for broken, message in (
            (Norm(weight[:-1], bias), "a norm's weight has 252 bytes"),
            (Norm(weight, np.append(bias, bias)), "a norm's bias has 512 bytes"),
            (Norm(weight * np.nan, bias), "NaN or infinite"),
        ):
            with pytest.raises(ValueError, match=message):
                KernelBackend(dataclasses.replace(graph, head_norm=broken))
        with pytest.raises(ValueError, match="a head, which does not exist"):
            KernelBackend(dataclasses.replace(graph, head=None))
        wrong: Any = "relu"
        with pytest.raises(ValueError, match="activation is relu, expected linear, tanh or gelu"):
            KernelBackend(dataclasses.replace(graph, activation=wrong))

    @needs_kernel
    @pytest.mark.parametrize("typed", [True, False])
    def test_of_a_run(self, make_model: Any, *, typed: bool) -> None:
        graph = find(write(make_model(type_vocab_size=2 if typed else 1)))
        ids, starts = np.array([5, 6, 7], dtype=np.int32), np.array([0, 1, 3], dtype=np.int32)
        rows = np.empty(2, dtype=np.float32)
        right, wrong = [ids // 5, None] if typed else [None, ids // 5]
        graph._network.run(ids, right, starts, rows)
        for types in (wrong, ids[:2], ids.astype(np.int64)):
            with pytest.raises(ValueError, match="do not fit"):
                graph._network.run(ids, types, starts, rows)


@needs_kernel
def test_the_other_kind_of_graph_is_not_run(make_model: Any) -> None:
    with pytest.raises(ProviderError, match="none of these"):
        KernelBackend.choose(read_network(write(make_model())), providers=[NATIVE])


@needs_kernel
@pytest.mark.parametrize(("family", "precision"), [("bert", "fp32"), ("mpnet", "int8"), ("modernbert", "int8")])
def test_bundles_run_on_it(make_model: Any, tmp_path: Path, precision: str, family: str) -> None:
    path = tmp_path / "toy.onnx"
    report = export(make_model(family, initializer_range=0.2), path, precision=precision)
    gate = report.manifest.gates["native"]
    assert gate["batch_invariance"]["largest_difference"] == 0.0
    model, reference = CrossEncoder.load(path), CrossEncoder.load(path, providers=[CPU])
    assert (model.provider, reference.provider) == (NATIVE, CPU)
    assert model.verify()["passed"]
    scores = model.predict(PAIRS * 50)
    # In ONNX Runtime, the products of ModernBERT's gates have one step for a whole batch. MPNet differs by up to
    # 2.1e-6 and 0.066 with weights of this range.
    most = DIFFERENCE[precision] * (2 if family in ("modernbert", "mpnet") else 1)
    assert np.abs(scores - reference.predict(PAIRS * 50)).max() <= most
    assert np.array_equal(scores[:1], model.predict(PAIRS[:1]))
    assert np.array_equal(scores, model.predict(PAIRS * 50, batch_size=3))
    for options in ({"threads": 1}, {"threads": 3}, {"max_tokens_per_batch": 20}):
        assert np.array_equal(scores, CrossEncoder.load(path, **options).predict(PAIRS * 50))  # type: ignore[arg-type]
    ranked = model.rank(PAIRS[0][0], [second for _, second in PAIRS])
    assert sorted((found["score"] for found in ranked), reverse=True) == [found["score"] for found in ranked]


@needs_kernel
def test_onnx_runtime_is_not_imported_for_it(make_model: Any, tmp_path: Path) -> None:
    path = tmp_path / "toy.onnx"
    export(make_model(), path, precision="fp32")
    script = f"""
import sys
from embedkit import CrossEncoder
CrossEncoder.load({str(path)!r}).predict([("a", "b")])
sys.exit("onnxruntime" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@needs_kernel
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_logits_are_those_of_onnx_runtime(make_model: Any, tmp_path: Path, precision: str) -> None:
    export(make_model(), tmp_path / "toy.onnx", precision=precision)
    own, other = (CrossEncoder.load(tmp_path / "toy.onnx", providers=[name]) for name in (NATIVE, CPU))

    logits = own.predict(PAIRS, activation_fn="identity")

    np.testing.assert_allclose(
        logits, other.predict(PAIRS, activation_fn="identity"), atol=5 * DIFFERENCE[precision]
    )
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), own.predict(PAIRS), atol=1e-6)
