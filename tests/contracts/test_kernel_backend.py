"""embedkit's kernel agrees with ONNX Runtime on every graph it runs, with the same bits in any batch."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_networks import TEXTS, exact_levels, toy_encoder, toy_graph
from toys import limit_threads

from embedkit.cli.main import main
from embedkit.errors import ModelError, ProviderError
from embedkit.export.pipeline import export
from embedkit.export.quantize import WORD_TABLES
from embedkit.kernels import bert
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime import kernel_backend
from embedkit.runtime.bundle import read_bundle, write_bundle
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.find import bundled_names, find_model, published_models
from embedkit.runtime.kernel_backend import NATIVE, NATIVE_NUMERICS, KernelBackend, native_instructions
from embedkit.runtime.network import Layer, Network, Norm, Product, read_network
from embedkit.runtime.numerics import digest_of
from embedkit.runtime.onnx_backend import CPU, Session
from embedkit.runtime.tokenization import Tokenizer, Tokens

MAX_LENGTH = 300
# Largest difference of a value. int8-static rounds the same values in the same steps, but occasionally one in
# the other direction; int8 rounds each token with its own step.
DIFFERENCE = {"fp32": 2e-6, "int8-static": 5e-3 * 127 / exact_levels(), "int8": 3e-2}

needs_kernel = pytest.mark.skipif(not native_instructions(), reason="no kernel")


@pytest.fixture(scope="module")
def make_encoder(toy_tokenizer_json: str) -> Any:
    """``make_encoder(pooling, head, activation, memory=None, outlier=1.0, ...)``, with random weights."""
    tokenizer = Tokenizer(toy_tokenizer_json, MAX_LENGTH)

    def make(pooling: Any = "mean", head: int | None = 128, activation: Any = "tanh", **changes: Any) -> Any:
        skips = changes.get("family") in ("mpnet", "roberta")
        settings = {
            "hidden_size": 64,
            "num_attention_heads": 2,
            "intermediate_size": 192,
            "max_position_embeddings": MAX_LENGTH + (2 if skips else 0),
            "initializer_range": 0.15,
        }
        if changes.get("family") == "modernbert":
            settings |= {"local_attention": 16, "global_attn_every_n_layers": 2, "pad_token_id": 0}
        parts = {"pooling": pooling, "head": head, "activation": activation}
        return toy_encoder(tokenizer, seed=5, **settings | parts | changes)

    return make


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    """Return texts of every length that fills vectors, tiles and blocks differently."""
    generator = np.random.default_rng(0)
    lengths = [2, 1, 3, 15, 16, 17, 31, 32, 33, 64, 95, 96, 97, 130, 200, MAX_LENGTH, 5, 5, 8]
    return Tokens([generator.integers(5, 300, length).tolist() for length in lengths], [])


def write(
    encoder: SentenceEncoder, products: str = "fp32", words: str = "float32", *, levels: int | None = None
) -> bytes:
    return toy_graph(encoder, products, words, levels=levels or exact_levels()).SerializeToString()


def run_alone(content: bytes, tokens: Tokens) -> Any:
    """Return ONNX Runtime's embedding of each text alone."""
    session = Session(content, outputs=["sentence_embedding"], threads=1)
    return np.concatenate([session.run(tokens.batch([row], 0)) for row in range(len(tokens.ids))])


def run(graph: KernelBackend | None, tokens: Tokens) -> Any:
    assert graph is not None
    return graph.run(tokens)


@needs_kernel
def test_padding_within_a_text_is_not_counted(make_encoder: Any) -> None:
    encoder = make_encoder("mean", None, family="roberta", pad_token_id=0)
    tokens = Tokens([[2, 50, 0, 60, 0, 0, 70, 3], [2, 50, 60, 3], [0, 2, *range(40, 57), 3]], [])

    found = run(KernelBackend.find(write(encoder)), tokens)

    np.testing.assert_allclose(found, run_alone(write(encoder), tokens), atol=2e-6)
    np.testing.assert_allclose(found, TorchEncoder(encoder).encode_ids(tokens.ids), atol=2e-6)


# Run with every table of words.
HEADS: list[dict[str, Any]] = [
    {},
    {"activation": "linear", "memory": 192},
    {"pooling": "cls", "head": 64, "memory": 64},
    {"head": None, "memory": 64},
]
SHAPES: list[dict[str, Any]] = [
    {"pooling": "cls", "head": None},
    {"head": None, "num_attention_heads": 4},
    {"pooling": "cls", "head": 64, "hidden_act": "gelu_new"},
    {"head": 256, "layer_norm_eps": 1e-3},
    {"head": None, "hidden_size": 192, "num_attention_heads": 2, "intermediate_size": 64},
    {"head": None, "hidden_size": 128, "num_attention_heads": 1},
    {"head": 64, "num_hidden_layers": 0},
    {"head": None, "family": "mpnet"},
    {"pooling": "cls", "head": None, "family": "mpnet", "num_attention_heads": 4},
    {"head": 64, "family": "modernbert", "num_hidden_layers": 3},
    {"pooling": "cls", "head": None, "family": "modernbert", "intermediate_size": 64, "attention_bias": True},
]


@needs_kernel
@pytest.mark.parametrize("products", DIFFERENCE)
@pytest.mark.parametrize(
    ("words", "parts"), [*itertools.product(WORD_TABLES, HEADS), *(("float32", shape) for shape in SHAPES)]
)
def test_agrees_with_onnx_runtime(
    make_encoder: Any, tokens: Tokens, products: str, words: str, parts: dict[str, Any]
) -> None:
    content = write(make_encoder(**parts), products, words)
    difference = np.abs(run(KernelBackend.find(content), tokens) - run_alone(content, tokens))
    assert difference.max() <= DIFFERENCE[products]


@needs_kernel
@pytest.mark.parametrize(("products", "apart"), [("int8-static", "int8-static"), ("int8-smoothed", "int8")])
def test_smoothed_inputs(make_encoder: Any, tokens: Tokens, products: str, apart: str) -> None:
    content = write(make_encoder(outlier=30.0), products)
    graph = read_network(content)
    assert graph is not None
    assert any(product.factors is not None for product in graph.products)
    difference = np.abs(run(KernelBackend.find(content), tokens) - run_alone(content, tokens))
    assert difference.max() <= DIFFERENCE[apart]


@needs_kernel
def test_int8_is_closer_to_float_than_one_scale_per_text(make_encoder: Any, tokens: Tokens) -> None:
    encoder = make_encoder()
    exact, content = run_alone(write(encoder), tokens), write(encoder, "int8", levels=127)
    native, session = run(KernelBackend.find(content), tokens), run_alone(content, tokens)
    assert np.square(native - exact).sum() < np.square(session - exact).sum()


@needs_kernel
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"memory": 64},
        {"family": "mpnet"},
        {"family": "modernbert"},
        {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 1},  # more rows per call
    ],
)
@pytest.mark.parametrize("products", DIFFERENCE)
def test_a_text_has_the_same_bits_in_any_batch(
    make_encoder: Any, tokens: Tokens, products: str, changes: dict[str, Any]
) -> None:
    graph = KernelBackend.find(write(make_encoder(**changes), products, "int8"))
    together = run(graph, tokens)
    order = np.random.default_rng(1).permutation(len(tokens.ids))
    shuffled = run(graph, Tokens([tokens.ids[row] for row in order], []))
    alone = np.concatenate([run(graph, Tokens([ids], [])) for ids in tokens.ids])
    assert np.array_equal(together[order], shuffled)
    assert np.array_equal(together, alone)


@needs_kernel
@pytest.mark.parametrize("words", WORD_TABLES)
@pytest.mark.parametrize("products", DIFFERENCE)
def test_every_instruction_set_gives_the_same_bits(
    make_encoder: Any, tokens: Tokens, products: str, words: str
) -> None:
    """Weights of which one, two or four products fit 16 bits, which AVX2 multiplies differently."""
    encoders = [(make_encoder(memory=192, outlier=30.0), 127), (make_encoder("cls", None), 63)]
    if words == "float32":  # words are looked up alike in all of these
        encoders += [(make_encoder("mean", None), 40), (make_encoder(family="mpnet"), 127)]
        encoders.append((make_encoder(family="modernbert"), 63))
    for encoder, levels in encoders:
        content = write(encoder, products, words, levels=levels)
        definition = run(KernelBackend.find(content, instructions="portable"), tokens)
        for instructions in native_instructions():
            found = run(KernelBackend.find(content, instructions=instructions), tokens)
            assert np.array_equal(found.view(np.uint32), definition.view(np.uint32)), instructions


@needs_kernel
def test_the_bundled_model_gives_the_same_bits_on_every_instruction_set() -> None:
    texts = [*TEXTS, "", "sea " * 200]
    rows = {name: Encoder.load("tiny", instructions=name).encode(texts) for name in native_instructions()}
    differences = {
        name: int((found.view(np.uint32) != rows["portable"].view(np.uint32)).sum())
        for name, found in rows.items()
    }
    assert differences == dict.fromkeys(rows, 0)


@needs_kernel
@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="sets the mode of one processor"
)
def test_the_arithmetic_mode_of_a_thread_changes_no_bit(make_encoder: Any, tokens: Tokens) -> None:
    """torch and other libraries make a thread treat numbers close to zero as zero."""
    graph = KernelBackend.find(write(make_encoder(), "int8"))
    expected = run(graph, tokens)
    assert torch.set_flush_denormal(True)
    try:
        found = run(graph, tokens)
        assert (torch.tensor([1e-40]) * 1).item() == 0.0  # unchanged
    finally:
        torch.set_flush_denormal(False)
    assert np.array_equal(found, expected)


@pytest.fixture
def teams(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let threads share any batch; return the sizes of the teams that do."""
    sizes = []
    make = kernel_backend.bert.make_team

    def make_team(instructions: str, threads: int) -> Any:
        sizes.append(threads)
        return make(instructions, threads)

    monkeypatch.setattr(kernel_backend, "_WORK_OF_A_THREAD", {True: 1, False: 1})
    monkeypatch.setattr(kernel_backend.bert, "make_team", make_team)
    return sizes


@needs_kernel
@pytest.mark.parametrize(("pooling", "family"), [("mean", "bert"), ("cls", "bert"), ("cls", "modernbert")])
@pytest.mark.parametrize("products", DIFFERENCE)
def test_threads_that_share_a_batch_change_no_bit(
    make_encoder: Any, tokens: Tokens, products: str, pooling: str, family: str, teams: list[int]
) -> None:
    weights = read_network(write(make_encoder(pooling, family=family), products))
    for instructions in native_instructions():
        alone = run(KernelBackend(weights, threads=1, instructions=instructions), tokens)
        shared = run(KernelBackend(weights, threads=4, instructions=instructions), tokens)
        assert np.array_equal(alone.view(np.uint32), shared.view(np.uint32)), instructions
    assert teams == [4] * len(native_instructions())


@needs_kernel
def test_threads_share_a_batch_only_where_it_is_the_only_one(teams: list[int]) -> None:
    encoder = Encoder.load("tiny", threads=3)
    encoder.encode(["sea " * 100] * 40)
    assert teams == []
    encoder.encode("sea " * 100)
    assert teams == [3]


@needs_kernel
def test_callers_at_the_same_time_form_one_team(make_encoder: Any, tokens: Tokens, teams: list[int]) -> None:
    network = KernelBackend(read_network(write(make_encoder())), threads=2)
    expected = run(network, tokens)
    with network._sharing:
        assert np.array_equal(run(network, tokens), expected)
    assert teams == [2]
    with ThreadPoolExecutor(4) as pool:
        assert all(np.array_equal(rows, expected) for rows in pool.map(lambda _: run(network, tokens), range(40)))


@needs_kernel
def test_a_team_is_no_larger_than_the_kernel_allows(
    make_encoder: Any, tokens: Tokens, teams: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    most = kernel_backend._MOST_OF_A_TEAM
    assert bert.make_team("portable", most) is not None
    with pytest.raises(ValueError, match=f"expected 1 to {most}"):
        bert.make_team("portable", most + 1)
    teams.clear()
    monkeypatch.setattr(kernel_backend, "_MOST_OF_A_TEAM", 3)
    run(KernelBackend(read_network(write(make_encoder())), threads=8), tokens)
    assert teams == [3]


@needs_kernel
@pytest.mark.parametrize("started", [0, 1])
def test_a_text_is_computed_where_fewer_threads_can_be_started(
    make_encoder: Any, tokens: Tokens, teams: list[int], monkeypatch: pytest.MonkeyPatch, started: int
) -> None:
    network = KernelBackend(read_network(write(make_encoder())), threads=3)
    expected = run(network, tokens)

    limit_threads(monkeypatch, started)
    assert np.array_equal(run(network, tokens), expected)
    assert teams == [3, 3]


@needs_kernel
def test_a_failed_run_dismisses_its_team(make_encoder: Any, teams: list[int]) -> None:
    network = KernelBackend(read_network(write(make_encoder())), threads=3)
    with pytest.raises(ModelError, match="token id 1000000"):
        run(network, Tokens([[1_000_000] * 9], []))
    assert teams == [3]
    assert not network._sharing.locked()


@needs_kernel
class TestTeams:
    def test_a_run_ends_without_helpers_and_a_helper_without_a_run(self) -> None:
        bert = kernel_backend.bert
        team = bert.make_team("portable", 2)
        bert.close_team(team)
        bert.help_team(team)

    def test_misuse_is_an_error(self) -> None:
        bert = kernel_backend.bert
        for threads in (0, -1, 1025):
            with pytest.raises(ValueError, match="expected 1 to 1024"):
                bert.make_team("portable", threads)
        with pytest.raises(ValueError, match="are not there"):
            bert.make_team("mmx", 2)
        for call in (bert.help_team, bert.close_team):
            with pytest.raises(ValueError, match="PyCapsule"):
                call(None)

    def test_a_team_has_one_run(self, make_encoder: Any) -> None:
        bert = kernel_backend.bert
        network = KernelBackend(read_network(write(make_encoder())), instructions="portable")
        ids, starts, rows = (
            np.array(numbers, dtype=np.int32) for numbers in ([1, 2], [0, 2], [0] * network.width)
        )
        team = bert.make_team("portable", 2)
        network._network.run(ids, None, starts, rows, team)
        bert.help_team(team)  # comes too late
        with pytest.raises(ValueError, match="was in a run before"):
            network._network.run(ids, None, starts, rows, team)
        with pytest.raises(ValueError, match="PyCapsule"):
            network._network.run(ids, None, starts, rows, 5)

    def test_a_team_of_other_instructions_is_refused(self, make_encoder: Any) -> None:
        fastest = native_instructions()[0]
        if fastest == "portable":
            pytest.skip("one instruction set")
        network = KernelBackend(read_network(write(make_encoder())), instructions="portable")
        empty = np.zeros(1, dtype=np.int32)
        team = kernel_backend.bert.make_team(fastest, 2)
        with pytest.raises(ValueError, match="other instructions"):
            network._network.run(empty[:0], None, empty, empty[:0], team)


def run_script(script: str) -> str:
    """Return what a process with the bundled encoder prints."""
    begin = (
        'import os, signal, threading\nfrom embedkit import Encoder\nTEXTS = ["a good dog", "tea " * 90] * 20\n'
    )
    command = [sys.executable, "-c", begin + textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_kernel
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_can_encode_while_threads_of_its_parent_do() -> None:
    script = """
        encoder = Encoder.load("tiny", threads=2, instructions="portable")
        expected, going = encoder.encode(TEXTS).tobytes(), True
        def encode():
            while going:
                encoder.encode(TEXTS)
        thread = threading.Thread(target=encode)
        thread.start()
        for _ in range(3):
            child = os.fork()
            if child == 0:
                signal.alarm(30)  # of a child that waits for a lock which nobody will release
                os._exit(encoder.encode(TEXTS).tobytes() != expected)
            print(os.waitpid(child, 0)[1])
        going = False
        thread.join()
    """
    assert run_script(script).split() == ["0"] * 3


@needs_kernel
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_an_interrupted_call_leaves_a_working_encoder() -> None:
    script = """
        encoder = Encoder.load("tiny", threads=2, instructions="portable")
        expected = encoder.encode(TEXTS).tobytes()
        for milliseconds in (1, 3, 9, 20):
            try:
                signal.signal(signal.SIGALRM, signal.default_int_handler)
                signal.setitimer(signal.ITIMER_REAL, milliseconds / 1e3)
                while True:
                    encoder.encode(TEXTS)
            except KeyboardInterrupt:
                print(encoder.encode(TEXTS).tobytes() == expected)
    """
    assert run_script(script).split() == ["True"] * 4


@needs_kernel
@pytest.mark.parametrize("graph", ["inner", "wide", "heads", "rotations"])
def test_a_graph_of_sizes_that_it_does_not_support_is_left_to_onnx_runtime(make_encoder: Any, graph: str) -> None:
    weights = read_network(write(make_encoder(family="modernbert" if graph == "rotations" else "bert"), "int8"))
    assert weights is not None
    first, *others = weights.layers
    wide = np.ones((65_856, 64), dtype=np.int8)
    changes: dict[str, Any] = {
        "inner": {"layers": (*others, resized(first, first.ffn_out.weight[:128]))},
        "wide": {"layers": (resized(first, wide),)},
        "heads": {"layers": (), "heads": 65},
        "rotations": {"rotations": weights.rotations * 2},
    }
    changed = dataclasses.replace(weights, **changes[graph])
    with pytest.raises(ModelError, match="do not fit"):
        KernelBackend(changed)
    assert KernelBackend.choose(changed) is None


def resized(layer: Layer, narrow: Any) -> Layer:
    """Return the layer with another matrix after its GELU."""
    inner, wide = len(narrow), layer.ffn_in
    assert wide.scales is not None
    opened = dataclasses.replace(
        wide,
        weight=np.resize(wide.weight, (len(wide.weight), inner)),
        scales=np.resize(wide.scales, inner),
        bias=np.resize(wide.bias, inner),
    )
    return dataclasses.replace(layer, ffn_in=opened, ffn_out=dataclasses.replace(layer.ffn_out, weight=narrow))


@needs_kernel
@pytest.mark.parametrize(("step", "value"), [(1e-39, 0.0), (None, 2e-38)])
def test_steps_too_small_for_their_inverse_give_the_same_bits_on_every_instruction_set(
    make_encoder: Any, step: float | None, value: float
) -> None:
    """The inverse is infinite, and 0 times it is NaN, which becomes byte 0."""
    graph = read_network(write(make_encoder("mean", None, num_hidden_layers=0), "int8"))
    assert graph is not None
    weight = np.random.default_rng(0).integers(-100, 100, (64, 64)).astype(np.int8)
    ones, zeros = np.ones(64, dtype=np.float32), np.zeros(64, dtype=np.float32)
    head = Product(weight, zeros, ones * np.float32(1e36), step, None if step is None else 0)
    norm = Norm(zeros, np.linspace(0, value, 64, dtype=np.float32))
    graph = dataclasses.replace(graph, norm=norm, head=head, activation="linear")
    rows = {
        name: KernelBackend(graph, instructions=name).run(Tokens([[5, 6]], [])).tobytes()
        for name in native_instructions()
    }
    assert rows == dict.fromkeys(rows, rows["portable"])


@needs_kernel
def test_a_row_too_long_for_its_length_is_an_error(make_encoder: Any) -> None:
    """All values are finite, but the sum of their squares is not: no unit row exists."""
    graph = read_network(write(make_encoder("mean", None), "fp32"))
    assert graph is not None
    last = graph.layers[-1]
    layers = (
        *graph.layers[:-1],
        dataclasses.replace(last, norm=Norm(last.norm.weight * np.float32(1e25), last.norm.bias)),
    )
    for instructions in native_instructions():
        network = KernelBackend(dataclasses.replace(graph, layers=layers), instructions=instructions)
        with pytest.raises(ModelError, match="NaN or infinite"):
            run(network, Tokens([[5, 6]], []))


@needs_kernel
@pytest.mark.parametrize("memory", [None, 64])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_rows_of_equal_values_and_texts_without_tokens(
    make_encoder: Any, pooling: str, memory: int | None
) -> None:
    graph = read_network(write(make_encoder(pooling, None, memory=memory), "int8"))
    assert graph is not None
    flat = dataclasses.replace(graph, norm=dataclasses.replace(graph.norm, weight=np.zeros(64, dtype=np.float32)))
    rows = run(KernelBackend(flat), Tokens([[5, 6], [], [7]], []))
    assert np.isfinite(rows).all()
    assert not rows[1].any()


@needs_kernel
@pytest.mark.parametrize("head", [None, 128])
def test_the_first_batch_may_hold_no_tokens(make_encoder: Any, head: int | None) -> None:
    assert np.isfinite(run(KernelBackend.find(write(make_encoder("mean", head))), Tokens([[], []], []))).all()


@needs_kernel
@pytest.mark.parametrize("ids", [[-1], [100_000], [5] * (MAX_LENGTH + 1)])
def test_ids_beyond_the_tables_are_refused(make_encoder: Any, ids: list[int]) -> None:
    graph = KernelBackend.find(write(make_encoder()))
    with pytest.raises(ModelError, match="does not accept"):
        run(graph, Tokens([[5], ids], []))


@needs_kernel
@pytest.mark.parametrize("budget", [1, 7, 50, 10_000])
@pytest.mark.parametrize("most_items", [None, 1, 3])
def test_batches_hold_every_text_once_within_their_bounds(
    make_encoder: Any, tokens: Tokens, budget: int, most_items: int | None
) -> None:
    graph = KernelBackend.find(write(make_encoder()))
    assert graph is not None
    batches = graph.batches(tokens.lengths, most_tokens=budget, most_items=most_items)
    texts = [np.arange(len(tokens.ids))[batch] for batch in batches]
    assert np.array_equal(np.concatenate(texts), np.arange(len(tokens.ids)))
    assert all(len(rows) == 1 or tokens.lengths[rows].sum() <= budget for rows in texts)
    assert most_items is None or max(map(len, texts)) <= most_items
    assert graph.batches(np.array([], dtype=np.int64), most_tokens=None, most_items=None) == []


@needs_kernel
def test_few_texts_use_one_thread_and_more_are_distributed(
    make_encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write(make_encoder())
    lengths = np.full(60, 10)

    def count(work: int) -> int:
        monkeypatch.setattr(kernel_backend, "_WORK_OF_A_THREAD", {True: work, False: work})
        graph = KernelBackend.find(content)
        assert graph is not None
        return len(graph.batches(lengths, most_tokens=None, most_items=None))

    assert [count(work) for work in (10**12, 1)] == [1, 9]  # 600 tokens, an eighth of which is 75


def layer(graph: Network, **changes: Any) -> Network:
    """Return the network with another first layer."""
    first, *others = graph.layers
    return dataclasses.replace(graph, layers=(dataclasses.replace(first, **changes), *others))


def broken_networks(make: Any) -> Iterator[tuple[Network, str]]:
    """Yield networks of which one array has another size, and what the error says of it."""

    def read(products: str = "fp32", words: str = "float32", **parts: Any) -> Network:
        graph = read_network(write(make(**parts), products, words))
        assert graph is not None
        return graph

    replace, static = dataclasses.replace, read("int8-static", outlier=30.0)
    for name in ("qkv", "attention_output", "ffn_in", "ffn_out"):
        product: Product = getattr(static.layers[0], name)
        for part in ("bias", "scales", "weight", "factors"):
            if (value := getattr(product, part)) is not None:
                yield (
                    layer(static, **{name: replace(product, **{part: value[:-1]})}),
                    "expected|bytes|intermediate",
                )
    for words in WORD_TABLES:
        graph = read(words=words, memory=128)
        table, memory = graph.words, graph.memory
        assert memory is not None
        width = memory.values.shape[1]
        yield replace(graph, words=replace(table, values=table.values[:, :-1].copy())), "no table"
        yield replace(graph, memory=replace(memory, values=memory.values[:-1])), "no table|multiple of 64|weight"
        for narrow in (width // 4, width // 2):  # 32 wide, and not of the head
            values = memory.values[:, :narrow].copy()
            yield replace(graph, memory=replace(memory, values=values)), "no table|multiple of 64|weight"
        if table.scales is not None and memory.scales is not None:
            for scales in (table.scales[:-1], None):
                yield replace(graph, words=replace(table, scales=scales)), "no table"
            for scales in (memory.scales[:-1], None):
                yield replace(graph, memory=replace(memory, scales=scales)), "no table|multiple of 64|weight"
    graph = read()
    yield replace(graph, norm=replace(graph.norm, bias=graph.norm.bias[1:])), "expected"
    yield replace(graph, positions=graph.positions[:0]), "positions"
    yield replace(graph, heads=3), "heads"
    graph = read(family="mpnet")
    assert graph.bias is not None
    yield replace(graph, bias=graph.bias[:, :-1].copy()), "biases"
    yield replace(graph, bias=graph.bias[:1]), "biases"
    yield replace(graph, positions=graph.positions[:-1]), "biases"
    yield replace(graph, positions=graph.positions[:1]), "biases"
    graph = read(family="modernbert")
    first, second = graph.rotations
    yield replace(graph, rotations=(first, second[:-1])), "a rotation has 299 positions"
    yield replace(graph, rotations=(first[:0], second)), "a rotation has 0 positions"
    yield replace(graph, rotations=(first, second, second)), "3 rotations"
    yield replace(graph, rotations=(first,)), "the rotation 1, which does not exist"
    yield replace(graph, heads=4), "rotations of heads of width 16"
    yield replace(graph, rotations=(first * np.nan, second)), "NaN or infinite"
    yield replace(graph, gated=False), "bytes"
    yield layer(graph, rotation=5), "the rotation 5"


class TestSizes:
    """The kernel checks its arguments: a wrong size is an error and causes no read out of bounds."""

    @needs_kernel
    def test_of_a_network(self, make_encoder: Any) -> None:
        for broken, message in broken_networks(make_encoder):
            with pytest.raises(ValueError, match=message):
                KernelBackend(broken)

    @needs_kernel
    def test_of_a_window(self, make_encoder: Any) -> None:
        graph = read_network(write(make_encoder(family="modernbert")))
        assert graph is not None
        wide, none = layer(graph, window=2**31 - 1), layer(graph, window=None)
        tokens = Tokens([[5] * MAX_LENGTH, [6, 7]], [])
        assert np.array_equal(run(KernelBackend(wide), tokens), run(KernelBackend(none), tokens))

    @needs_kernel
    def test_of_a_run(self, make_encoder: Any) -> None:
        graph = KernelBackend.find(write(make_encoder("mean", None)))
        assert graph is not None
        ids, rows = np.array([5, 6, 7], dtype=np.int32), np.empty((2, 64), dtype=np.float32)
        for starts in ([0, 1], [0, 1, 4], [1, 2, 3], [0, 4, 3], []):
            with pytest.raises(ValueError, match=r"do not fit|texts run|tokens"):
                graph._network.run(ids, None, np.array(starts, dtype=np.int32), rows)
        with pytest.raises(ValueError, match="do not fit"):
            graph._network.run(ids, None, np.array([0, 1, 3], dtype=np.int32), rows[:, :-1].copy())


class TestChoice:
    """The requested implementation runs a graph, or else the fastest available one."""

    @needs_kernel
    @pytest.mark.parametrize(("providers", "found"), [(None, True), ([NATIVE], True), ([CPU], False)])
    def test_of_a_small_graph(self, make_encoder: Any, providers: list[str] | None, *, found: bool) -> None:
        chosen = KernelBackend.choose(read_network(write(make_encoder())), providers=providers)
        assert (chosen is not None) == found

    @needs_kernel
    def test_large_graphs_run_on_onnx_runtime_unless_requested(
        self, make_encoder: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        content = write(make_encoder())
        assert KernelBackend.choose(read_network(content)) is not None
        monkeypatch.setattr(kernel_backend, "_MOST_WEIGHTS", 1000)
        monkeypatch.setattr(kernel_backend, "_MOST_WEIGHTS_ON_ARM", {True: 1000, False: 1000})
        assert KernelBackend.choose(read_network(content)) is None
        assert KernelBackend.choose(read_network(content), providers=[NATIVE]) is not None

    @needs_kernel
    @pytest.mark.parametrize(
        "changes", [{"intermediate_size": 100}, {"num_attention_heads": 8}, {"memory": 32}, {"memory": 96}]
    )
    def test_widths_that_fill_no_tile(self, make_encoder: Any, changes: dict[str, int]) -> None:
        content = write(make_encoder(**changes))
        assert KernelBackend.choose(read_network(content)) is None
        with pytest.raises(ProviderError, match="none of these"):
            KernelBackend.choose(read_network(content), providers=[NATIVE])

    def test_stands_alone(self, make_encoder: Any) -> None:
        with pytest.raises(ProviderError, match="cannot be combined with other providers"):
            KernelBackend.choose(read_network(write(make_encoder())), providers=[NATIVE, CPU])

    def test_without_a_kernel(self, make_encoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kernel_backend, "bert", None)
        content = write(make_encoder())
        assert KernelBackend.choose(read_network(content)) is None
        with pytest.raises(ProviderError, match="no C compiler"):
            KernelBackend.choose(read_network(content), providers=[NATIVE])

    @needs_kernel
    def test_of_the_portable_instructions(self, make_encoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are slower than ONNX Runtime, so they are used only when requested by name."""
        content = write(make_encoder())
        monkeypatch.setattr(kernel_backend, "native_instructions", lambda: ("portable",))
        assert KernelBackend.choose(read_network(content)) is None
        for options in ({"providers": [NATIVE]}, {"instructions": "portable"}):
            graph = KernelBackend.choose(read_network(content), **options)
            assert graph is not None
            assert graph.instructions == "portable"

    @needs_kernel
    def test_of_instructions_in_the_environment(self, make_encoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        content = write(make_encoder())
        monkeypatch.setenv("EMBEDKIT_INSTRUCTIONS", "portable")
        graph, named = (
            KernelBackend.choose(read_network(content), instructions=name)
            for name in (None, native_instructions()[0])
        )
        assert graph is not None
        assert named is not None
        assert (graph.instructions, named.instructions) == ("portable", native_instructions()[0])
        assert KernelBackend.choose(read_network(content), providers=[CPU]) is None
        monkeypatch.setenv("EMBEDKIT_INSTRUCTIONS", "mmx")
        with pytest.raises(ProviderError, match="'mmx' of EMBEDKIT_INSTRUCTIONS are unknown; here are"):
            KernelBackend.choose(read_network(content))

    @needs_kernel
    def test_of_instructions_that_are_not_there(self, make_encoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        content = write(make_encoder())
        missing = next(name for name in kernel_backend.INSTRUCTIONS if name not in native_instructions())
        with pytest.raises(ProviderError, match=f"'{missing}' are not on this processor or not in this build"):
            KernelBackend.choose(read_network(content), instructions=missing)
        monkeypatch.setattr(kernel_backend, "native_instructions", lambda: kernel_backend.INSTRUCTIONS)
        with pytest.raises(ValueError, match=f"the instructions {missing} are not there"):  # C checks it too
            KernelBackend.choose(read_network(content), instructions=missing)


@needs_kernel
def test_a_tokenizer_of_longer_texts_or_more_words_is_refused_on_loading(make_encoder: Any) -> None:
    graph = KernelBackend.find(write(make_encoder()))
    assert graph is not None
    graph.check(max_length=graph.positions, vocabulary_size=graph.vocabulary)
    for sizes in ((graph.positions + 1, graph.vocabulary), (graph.positions, graph.vocabulary + 1)):
        with pytest.raises(ModelError, match="the graph"):
            graph.check(max_length=sizes[0], vocabulary_size=sizes[1])


class TestNumbers:
    """A NaN or infinite weight is an error in any weight matrix, and is never rounded to a byte."""

    @needs_kernel
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_in_weights(self, make_encoder: Any, value: float) -> None:
        for products, part in (("fp32", "weight"), ("fp32", "bias"), ("int8", "scales"), ("int8", "bias")):
            graph = read_network(write(make_encoder(), products))
            assert graph is not None
            broken = getattr(graph.layers[0].ffn_in, part).copy()
            broken.flat[7] = value
            wide = dataclasses.replace(graph.layers[0].ffn_in, **{part: broken})
            layers = (dataclasses.replace(graph.layers[0], ffn_in=wide), *graph.layers[1:])
            with pytest.raises(ValueError, match="NaN or infinite"):
                KernelBackend(dataclasses.replace(graph, layers=layers))

    @needs_kernel
    @pytest.mark.parametrize("products", DIFFERENCE)
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_in_words(self, make_encoder: Any, products: str, value: float) -> None:
        graph = read_network(write(make_encoder("cls", None), products))
        assert graph is not None
        words = graph.words.values.copy()
        words[7, 3] = value
        broken = dataclasses.replace(graph, words=dataclasses.replace(graph.words, values=words))
        for instructions in native_instructions():
            network = KernelBackend(broken, instructions=instructions)
            assert np.isfinite(run(network, Tokens([[5, 6]], []))).all()
            with pytest.raises(ModelError, match="NaN or infinite"):
                run(network, Tokens([[5, 6, 7], [5, 6]], []))


@needs_kernel
def test_bits_that_differ_from_the_record_are_found(make_encoder: Any, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "toy.onnx"
    export(make_encoder(initializer_range=0.05), path, precision="fp32")
    good = read_bundle(path)
    assert good.golden.digests.keys() == {NATIVE_NUMERICS}
    golden = dataclasses.replace(good.golden, digests={NATIVE_NUMERICS: "0" * 64})
    write_bundle(path, good.model, good.manifest, good.tokenizer_json, golden)
    found = Encoder.load(path).verify()
    assert (found["passed"], found["same_bits"]) == (False, False)
    assert found["difference"] <= found["tolerance"]
    assert main(["inspect", "--verify", str(path)]) == 1
    assert "OTHER BITS than recorded" in capsys.readouterr().out
    assert Encoder.load(path, providers=[CPU]).verify()["passed"]


@needs_kernel
@pytest.mark.parametrize(("precision", "memory"), [("fp32", None), ("int8", 64)])
def test_bundles_run_on_it(make_encoder: Any, tmp_path: Path, precision: str, memory: int | None) -> None:
    path = tmp_path / "toy.onnx"
    report = export(make_encoder(initializer_range=0.05, memory=memory), path, precision=precision)
    gate = report.manifest.gates["native"]
    assert gate["batch_invariance"]["largest_difference"] == 0.0
    encoder, reference = Encoder.load(path), Encoder.load(path, providers=[CPU])
    assert (encoder.provider, reference.provider) == (NATIVE, CPU)
    for instructions in native_instructions():
        assert Encoder.load(path, instructions=instructions).verify()["same_bits"] is True
    assert (reference.verify()["passed"], reference.verify()["same_bits"]) == (True, None)
    rows = encoder.encode(TEXTS * 50)
    assert np.abs(rows - reference.encode(TEXTS * 50)).max() <= DIFFERENCE[precision]
    assert np.array_equal(rows[0], encoder.encode(TEXTS[0]))
    for options in ({"threads": 1}, {"threads": 3}, {"max_tokens_per_batch": 20}):
        assert np.array_equal(rows, Encoder.load(path, **options).encode(TEXTS * 50))  # type: ignore[arg-type]
    assert np.array_equal(rows, encoder.encode(TEXTS * 50, batch_size=3))
    with encoder.pool(2) as pool:
        assert np.array_equal(rows, pool.encode(TEXTS * 50))


RECORDED = json.loads((Path(__file__).parents[2] / "benchmarks" / "bits" / "results.json").read_text())["rows"]


@needs_kernel
@pytest.mark.parametrize("name", [name for name in bundled_names() if published_models()[name].kind == "encoder"])
def test_the_bundled_models_return_the_recorded_bits(name: str) -> None:
    """Return the bits of ``benchmarks/bits``, which may come from another processor."""
    golden = read_bundle(find_model(name)).golden
    for instructions in native_instructions():
        encoder = Encoder.load(name, instructions=instructions)
        key = encoder.fingerprint, encoder.numerics
        if key not in {(row["fingerprint"], row["numerics"]) for row in RECORDED}:
            pytest.skip("not in benchmarks/bits/results.json")
        recorded = {row["digest"] for row in RECORDED if (row["fingerprint"], row["numerics"]) == key}
        assert recorded == {digest_of(encoder.encode_tokens(encoder.tokenize(golden.texts)))}
