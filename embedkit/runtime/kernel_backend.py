"""A BERT encoder or cross-encoder, run by embedkit's kernel instead of ONNX Runtime.

Texts or pairs are stored consecutively without padding, and one call computes everything from the word table to
the unit row or the score. Several batches run on one thread each; a single batch is shared among threads if it
has enough work for them. In int8, dynamic products round each token with its own scale, where ONNX Runtime has
one for the batch: this is more accurate, and neither embeddings nor scores depend on their batch.

The kernel is compiled for several instruction sets, all of which compute the same bits. The fastest of the
processor is used, unless the caller or ``EMBEDKIT_INSTRUCTIONS`` names another.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from embedkit.errors import ModelError, ProviderError, shown
from embedkit.kernels import bert
from embedkit.protocols import FloatArray
from embedkit.runtime.arguments import check_count
from embedkit.runtime.network import Network, Norm, Product, read_network
from embedkit.runtime.token_ids import TokenIds
from embedkit.runtime.tokenization import Tokens
from embedkit.threads import available_threads, submit_each

NATIVE = "EmbedkitExecutionProvider"
NATIVE_NUMERICS = "embedkit-1"  # increases with every change to any bit of an embedding or score
INSTRUCTIONS = ("amx", "avx512", "avx-vnni", "avx2", "neon-i8mm", "neon-dotprod", "portable")

_ENVIRONMENT = "EMBEDKIT_INSTRUCTIONS"
_PORTABLE = "portable"  # plain C: the reference for the others, and slower than ONNX Runtime
_TOKENS_PER_BATCH = range(64, 257)  # enough for all rows of a tile, and few enough for a processor's cache
_BATCHES_OF_FEW = 8
# Multiplications by a weight, of bytes and of floats, that take longer than starting another thread.
_WORK_OF_A_THREAD = {True: 400_000_000, False: 130_000_000}
_MOST_OF_A_TEAM = 1024  # threads that can share a batch
_MULTIPLE = 64  # every width is a multiple of it, so that the kernel has only whole tiles
_LANES = 16  # and so is the width of a head of this
_MOST_ROTATIONS = 2
_MOST_INPUTS = 65_793  # of a product of bytes, whose sums then fit 32 bits
# Weights in the products of the largest networks for the kernel: BERT-Large (benchmarks/encode/NOTES.md).
# On ARM, where it has not been timed beside ONNX Runtime, BERT-Base in bytes and BERT-Mini in floats.
_MOST_WEIGHTS = 310_000_000
_MOST_WEIGHTS_ON_ARM = {True: 100_000_000, False: 4_000_000}


def native_instructions() -> tuple[str, ...]:
    """Return the instruction sets available to the kernel, the fastest first; none without the kernel."""
    return bert.instructions() if bert is not None else ()


def choose_instructions(asked: str | None = None) -> str:
    """Return the instruction set to use.

    Args:
        asked: one of :data:`INSTRUCTIONS`; None uses ``EMBEDKIT_INSTRUCTIONS``, or else the fastest available one.

    Raises:
        ProviderError: the kernel is missing, or has no such instructions on this processor.
    """
    if bert is None:
        raise ProviderError(f"{NATIVE} is not available: no C compiler was found when embedkit was installed")
    available, wanted = native_instructions(), os.environ.get(_ENVIRONMENT) if asked is None else asked
    if (asked is not None or wanted) and not (isinstance(wanted, str) and wanted in available):
        source = f" of {_ENVIRONMENT}" if asked is None else ""
        is_known = isinstance(wanted, str) and wanted in INSTRUCTIONS
        reason = "not on this processor or not in this build" if is_known else "unknown"
        raise ProviderError(
            f"the instructions {shown(wanted)}{source} are {reason}; here are {', '.join(available)}"
        )
    return wanted or available[0]


class KernelBackend:
    """Runs texts or pairs without padding, one batch per thread; thread-safe. Create it with :meth:`choose`.

    Args:
        network: one that the kernel supports.
        threads: number of threads to use; None uses all that are available to this process.
        instructions: see :func:`choose_instructions`.

    Attributes:
        lanes: number of threads that may call :meth:`fill` concurrently.
        numerics: the arithmetic; networks with the same name compute the same bits on any machine.
        positions: maximum length of a text or pair in tokens; None if there is none.
        provider: the provider name that selects it.
        vocabulary: number of rows of the word table.
        width: D, the width of a row; None for a cross-encoder, which returns scores.

    Raises:
        ModelError: shapes of weights are inconsistent, or a weight is NaN or infinite.
        ProviderError: the instructions are not available.
    """

    def __init__(
        self,
        network: Network,
        *,
        threads: int | None = None,
        instructions: str | None = None,
    ) -> None:
        self.instructions = choose_instructions(instructions)
        self.lanes = check_count(threads, "threads") or available_threads()
        self.numerics = NATIVE_NUMERICS
        self.positions = network.longest if network.hidden else None
        self.vocabulary = network.words.size
        self.provider = NATIVE
        self.width = network.dimension if network.score is None else None
        self._tokens_of_a_thread = _WORK_OF_A_THREAD[_is_quantized(network)] // max(1, count_weights(network))
        self._is_typed = network.types is not None
        self._sharing = Lock()
        self._logits = False
        try:
            self._network = bert.Network(**_options(network, self.instructions))
        except (ValueError, OverflowError) as error:
            raise ModelError(f"the weights do not fit each other or are not numbers: {error}") from error

    @classmethod
    def choose(
        cls,
        network: Network | None,
        *,
        pairs: bool = False,
        threads: int | None = None,
        providers: Sequence[str] | None = None,
        instructions: str | None = None,
    ) -> KernelBackend | None:
        """Return the backend if it is requested, or if nothing is requested and it is the fastest way; else None.

        Instructions that are named, here or in the environment, request it unless a provider is named.

        Args:
            network: the network that the model describes, if any.
            pairs: whether to expect a cross-encoder instead of an encoder.
            threads: as for the class.
            providers: the providers that the caller requests.
            instructions: see :func:`choose_instructions`.

        Raises:
            ProviderError: it is requested, but the kernel is missing or does not support this graph; or the named
                instructions are not available.
        """
        asked = providers is not None and NATIVE in providers
        if providers is not None and not asked:
            return None
        if asked and list(providers or ()) != [NATIVE]:
            raise ProviderError(f"{NATIVE} runs the whole graph and cannot be combined with other providers")
        if bert is None and not asked and instructions is None:
            return None
        chosen = choose_instructions(instructions)
        is_named = instructions is not None or bool(os.environ.get(_ENVIRONMENT))
        try:
            supported = _require(network, pairs=pairs)
        except ProviderError:
            if asked:
                raise
            return None
        if asked or is_named or _is_preferred(supported, chosen):
            return cls(supported, threads=threads, instructions=chosen)
        return None

    @classmethod
    def find(cls, model: bytes, *, pairs: bool = False, instructions: str | None = None) -> KernelBackend | None:
        """Return the network if the kernel supports it, requested or not; for comparisons."""
        try:
            return cls(_require(read_network(model), pairs=pairs), instructions=instructions)
        except ProviderError:
            return None

    def with_logits(self) -> Self:
        """Return the same network of a cross-encoder, with scores before their sigmoid."""
        copied = copy.copy(self)
        copied._logits = True  # noqa: SLF001 - an instance of the same class
        return copied

    def check(self, *, max_length: int, vocabulary_size: int) -> None:
        """Reject a tokenizer with longer texts or more words than the graph has rows for.

        Raises:
            ModelError: the graph has too few rows.
        """
        if self.positions is not None and max_length > self.positions:
            raise ModelError(f"texts may have {max_length} tokens, and the graph has {self.positions} positions")
        if vocabulary_size > self.vocabulary:
            raise ModelError(f"the tokenizer has {vocabulary_size} words, and the graph {self.vocabulary}")

    def batches(
        self, lengths: npt.NDArray[np.int64], *, most_tokens: int | None, most_items: int | None
    ) -> list[slice]:
        """Return the texts or pairs of each batch, in order; sorting them would save no padding."""
        ends = np.cumsum(lengths)
        tokens, count, start = int(lengths.sum()), len(lengths), 0
        least, most = _TOKENS_PER_BATCH[0], _TOKENS_PER_BATCH[-1]
        if most_tokens:
            budget = most_tokens
        elif tokens <= self._tokens_of_a_thread:  # one batch: threads do not pay off
            budget = max(tokens, most)
        else:
            budget = min(max(tokens // _BATCHES_OF_FEW, self._tokens_of_a_thread, least), most)
        batches = []
        while start < count:
            before = int(ends[start - 1]) if start else 0
            end = max(start + 1, int(np.searchsorted(ends, before + budget, side="right")))
            end = end if most_items is None else min(end, start + most_items)
            batches.append(slice(start, end))
            start = end
        return batches

    def fill(self, rows: FloatArray, items: slice, tokens: Tokens, lane: int | None = None) -> None:
        """Write the results of a batch to ``rows[items]``: ``(B, D) float32, unit rows``, or scores ``(B,)``.

        Args:
            rows: results of all texts or pairs, C-contiguous.
            items: a slice returned by :meth:`batches`.
            tokens: tokens of all texts or pairs.
            lane: the caller's lane; None if no other lane is in use, so that threads may share the batch.

        Raises:
            ModelError: a token id exceeds the tables, or a value became NaN or infinite.
        """
        # A single text, for which a user waits, is not cut out of its tokens.
        ids = TokenIds.of(tokens.ids if len(rows) == 1 else tokens.ids[items])
        types = None
        if self._is_typed and tokens.type_ids is not None:
            types = TokenIds.of(tokens.type_ids[items]).flat
        elif self._is_typed:  # 0 by default, as in ONNX Runtime
            types = np.zeros(len(ids.flat), dtype=np.int32)
        batch = ids.flat, types, ids.bounds.astype(np.int32), rows[items]
        # Threads share a batch that is alone and has enough work for them.
        wanted = len(ids.flat) // max(1, self._tokens_of_a_thread) if lane is None else 1
        threads = min(wanted, self.lanes, _MOST_OF_A_TEAM)
        try:
            if threads < 2:
                self._network.run(*batch, None, self._logits)
            else:
                with self._team(threads) as team:
                    self._network.run(*batch, team, self._logits)
        except ValueError as error:
            raise ModelError(f"the graph does not accept the ids of the tokenizer: {error}") from error
        except ArithmeticError as error:
            raise ModelError(f"the graph cannot be computed: {error}") from error

    @contextlib.contextmanager
    def _team(self, threads: int) -> Iterator[bert.Team | None]:
        """Other threads that help this one; none beside another team, which would compete for the processors."""
        if not self._sharing.acquire(blocking=False):
            yield None
            return
        try:
            team = bert.make_team(self.instructions, threads)
            with ThreadPoolExecutor(threads - 1) as pool:
                try:
                    submit_each(pool, bert.help_team, [team] * (threads - 1))
                    yield team
                finally:
                    bert.close_team(team)
        finally:
            self._sharing.release()

    def run(self, tokens: Tokens) -> FloatArray:
        """Run all texts or pairs as one batch; return ``(N, D) float32, unit rows``, or scores ``(N,)``.

        Raises:
            ModelError: as :meth:`fill`.
        """
        shape = () if self.width is None else (self.width,)
        rows = np.empty((len(tokens.ids), *shape), dtype=np.float32)
        self.fill(rows, slice(None), tokens)
        return rows


def _require(network: Network | None, *, pairs: bool) -> Network:
    """Return the network if the kernel supports it."""
    if bert is None:
        choose_instructions()  # raises the reason
    if network is None or (network.score is not None) != pairs or not _fits(network):
        raise ProviderError(
            f"{NATIVE} runs encoders and cross-encoders of the BERT family as embedkit writes them, in fp32 and "
            f"int8, of widths that are multiples of {_MULTIPLE}; this bundle's network is none of these"
        )
    return network


def _fits(network: Network) -> bool:
    """Return whether the kernel supports the sizes; if it does not, ONNX Runtime runs the graph."""
    inputs = (network.hidden, network.pooled_width, *(len(layer.ffn_out.weight) for layer in network.layers))
    head, lanes = network.hidden // network.heads, _LANES * (2 if network.rotations else 1)
    return (
        all(width % _MULTIPLE == 0 for width in (*inputs, network.dimension))
        and all(len(layer.ffn_out.weight) == network.intermediate for layer in network.layers)
        and network.hidden % network.heads == 0
        and head % lanes == 0
        and len(network.rotations) <= _MOST_ROTATIONS
        and (network.positions is not None or len(network.rotations) > 0 or not network.hidden)
        and (max(inputs) <= _MOST_INPUTS or not _is_quantized(network))
    )


def _is_preferred(network: Network, instructions: str) -> bool:
    is_arm = instructions.startswith("neon")
    most = _MOST_WEIGHTS_ON_ARM[_is_quantized(network)] if is_arm else _MOST_WEIGHTS
    return instructions != _PORTABLE and count_weights(network) <= most


def _is_quantized(network: Network) -> bool:
    return all(product.scales is not None for product in network.products)


def count_weights(network: Network) -> int:
    """Return the number of weights in the products of the layers."""
    return sum(product.weight.size for product in network.products)


def _options(network: Network, instructions: str) -> dict[str, Any]:
    """Return the arguments of a network."""
    return {
        "hidden": network.hidden,
        "heads": network.heads,
        "intermediate": network.intermediate,
        "memory_width": network.pooled_width - network.hidden,
        "dimension": network.dimension,
        "vocabulary": network.words.size,
        "epsilon": network.epsilon,
        "tanh": network.gelu == "tanh",
        "first_token": network.pooling == "cls",
        "unit": network.score is None,
        "instructions": instructions,
        "words": _copy(network.words.values if network.hidden else None),
        "word_scales": _copy(network.words.scales),
        "memory": None if network.memory is None else _copy(network.memory.values),
        "memory_scales": None if network.memory is None else _copy(network.memory.scales),
        "positions": _copy(network.positions if network.hidden else None),
        "types": _copy(network.types),
        "norm": _norm(network.norm),
        "layers": [
            (
                _product(layer.qkv),
                _product(layer.attention_output),
                _norm(layer.attention_norm),
                _product(layer.ffn_in),
                _product(layer.ffn_out),
                _norm(layer.norm),
                -1 if layer.rotation is None else layer.rotation,
                -1 if layer.window is None else layer.window,
            )
            for layer in network.layers
        ],
        "head": None if network.head is None else _product(network.head),
        "head_activation": network.activation,
        "head_norm": None if network.head_norm is None else _norm(network.head_norm),
        "score": None if network.score is None else _score(network.score),
        "bias": network.bias,
        "rotations": network.rotations,
        "pre_norm": network.pre_norm,
        "gated": network.gated,
        **({} if network.padding_id is None else {"padding_id": network.padding_id}),
    }


def _copy(table: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
    """Copy a table, which is a view of the file and would keep all of it in memory."""
    return None if table is None else table.copy()


def _score(product: Product) -> FloatArray:
    return np.concatenate([product.weight[:, 0], product.bias]).astype(np.float32)


def _norm(norm: Norm) -> tuple[FloatArray, FloatArray]:
    return norm.weight, norm.bias


def _product(product: Product) -> bert.Product:
    step = product.step or 0.0
    least = -step * (product.zero or 0)
    return product.weight, product.scales, product.bias, product.factors, step, least
