"""The cross-encoder: pairs of texts in, scores out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np

from embedkit.errors import InputError, ModelError
from embedkit.protocols import FloatArray
from embedkit.runtime.arguments import check_count, check_iterable
from embedkit.runtime.bundle import Bundle, GoldenPairs, Manifest
from embedkit.runtime.engine import Engine, OnOverflow, Plan, Verification
from embedkit.runtime.loading import Origin, Reloadable, check_kind, load_model
from embedkit.runtime.native_graph import NativeGraph
from embedkit.runtime.sentence_transformers import FolderModel, read_cross_encoder_folder
from embedkit.runtime.tokenization import PairTokenizer, TokenBatch, Tokens

if TYPE_CHECKING:
    from embedkit.runtime.padded_graph import PaddedGraph

__all__ = ["CrossEncoder", "RankedDocument"]

_BUNDLE_OUTPUTS = ("score",)
_FOLDER_OUTPUTS = ("logits",)


class RankedDocument(TypedDict):
    """A document that :meth:`CrossEncoder.rank` found, in the words of sentence-transformers.

    ``corpus_id`` is its position among the documents given; ``text`` is the document itself.
    """

    corpus_id: int
    score: float
    text: NotRequired[str]


class CrossEncoder(Reloadable):
    """A cross-encoder, on ONNX Runtime or embedkit's own kernel. Use :meth:`load`; safe to share among threads.

    Both texts of a pair go through the network together, so nothing can be computed beforehand: it is
    for re-ranking a few dozen documents that an encoder found, and for scoring pairs. A score is the
    sigmoid of the network's one logit, and so in (0, 1), whatever activation a model asks for elsewhere.

    A pair of more than ``max_length`` tokens is cut, its longer text first. This is never silent: each
    call counts such pairs and logs one warning to the logger ``embedkit``. Who wants an error says
    ``on_overflow="error"``.
    """

    def __init__(
        self,
        model: Bundle | FolderModel,
        *,
        threads: int | None = None,
        providers: Sequence[str] | None = None,
        max_tokens_per_batch: int | None = None,
        instructions: str | None = None,
    ) -> None:
        check_kind(model.manifest, "cross-encoder")
        golden = model.golden if isinstance(model, Bundle) else None
        self._manifest = model.manifest
        self._fingerprint = model.fingerprint
        self._golden = golden if isinstance(golden, GoldenPairs) else None
        try:
            self._tokenizer = PairTokenizer(model.tokenizer_json, model.manifest.max_length)
        except InputError as error:  # its length, which nobody gave here
            raise ModelError(str(error)) from error
        native = NativeGraph.choose(
            model.model, pairs=True, threads=threads, providers=providers, instructions=instructions
        )
        if native is not None:
            native.check(max_length=self.max_length, vocabulary_size=self._tokenizer.vocabulary_size)
        graph = native or self._open_session(model, threads, providers)
        self._provider, self._numerics = graph.provider, graph.numerics
        self._instructions = None if native is None else native.instructions
        self._engine = Engine(
            graph,
            shape=(),
            max_length=self.max_length,
            unit="pairs",
            label="score",
            max_tokens_per_batch=max_tokens_per_batch,
        )

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str],
        *,
        file: str | None = None,
        threads: int | None = None,
        providers: Sequence[str] | None = None,
        max_tokens_per_batch: int | None = None,
        instructions: str | None = None,
    ) -> CrossEncoder:
        """Load a bundle, or a folder written by sentence-transformers that holds an ONNX graph.

        Args:
            source: a path, which is tried first and never goes to the network; the name of a bundle
                that came with embedkit; or a hub id ``org/name``.
            file: the graph in a sentence-transformers folder, ``onnx/model.onnx`` if None.
            threads: threads to keep busy; as many as this process may use (affinity and container quota)
                if None. On a CPU each works on batches of its own, unless there is only one or the graph is
                large (64 MB without the table of words); else all work on one.
            providers: ONNX Runtime execution providers in order of preference, or
                ``["EmbedkitExecutionProvider"]``, which runs cross-encoders of the BERT family that embedkit
                exported. One that is not there is an error. If None, that one
                where it is the quickest (int8 up to BERT-Base, fp32 up to BERT-Mini), else ONNX Runtime's
                for the CPU.
            max_tokens_per_batch: bound of a batch's pairs times its longest in tokens; if None, 16,384, but on
                a CPU 1024, and there 128 to 256 where threads have batches of their own.
            instructions: the instruction set of embedkit's kernel: "amx", "avx512", "avx-vnni", "avx2",
                "neon-i8mm", "neon-dotprod" or "portable". All give the same bits. If None, the one in the
                environment variable ``EMBEDKIT_INSTRUCTIONS``, else the quickest of this processor. A named one
                runs the kernel wherever it can run the model and no provider is named.

        Raises:
            ModelNotFoundError: there is nothing under that path, name or id.
            BundleError: the file is damaged, newer than this embedkit, or no bundle.
            ModelError: the model cannot be used, or is an encoder.
            ProviderError: a provider is not there or did not start, or the instructions are not there.
        """
        path, model = load_model(source, file=file, marker="config.json", read_folder=read_cross_encoder_folder)
        try:
            scorer = cls(
                model,
                threads=threads,
                providers=providers,
                max_tokens_per_batch=max_tokens_per_batch,
                instructions=instructions,
            )
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from error
        options = {
            "file": file,
            "threads": threads,
            "providers": providers,
            "max_tokens_per_batch": max_tokens_per_batch,
            "instructions": instructions,
        }
        scorer._origin = Origin(str(path.resolve()), options)
        return scorer

    @property
    def manifest(self) -> Manifest:
        """What the model is and where it comes from."""
        return self._manifest

    @property
    def name(self) -> str:
        """What people call the model."""
        return self._manifest.name

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of everything that decides the scores."""
        return self._fingerprint

    @property
    def max_length(self) -> int:
        """The longest pair in tokens, special tokens included."""
        return self._manifest.max_length

    @property
    def provider(self) -> str:
        """What runs the graph: embedkit's own kernel or the first of ONNX Runtime's providers at work."""
        return self._provider

    @property
    def instructions(self) -> str | None:
        """The instruction set of embedkit's kernel; None where ONNX Runtime runs the graph."""
        return self._instructions

    @property
    def numerics(self) -> str:
        """The arithmetic: models of the same fingerprint and numerics give the same bits on every processor.

        ONNX Runtime makes no such promise; its name and version stand here all the same.
        """
        return self._numerics

    @property
    def has_golden(self) -> bool:
        """Whether :meth:`verify` has something to compare with, as it has for a bundle."""
        return self._golden is not None

    def __repr__(self) -> str:
        return f"CrossEncoder(name={self.name!r}, max_length={self.max_length})"

    def predict(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        on_overflow: OnOverflow = "truncate",
    ) -> FloatArray:
        """Score pairs of texts.

        Args:
            pairs: any iterable of pairs, each a tuple or list of two texts; their order matters. An empty
                text is allowed.
            batch_size: largest number of pairs in a batch; only the token budget counts if None.
            show_progress_bar: None shows one on a terminal when it takes long.
            on_overflow: what to do with a pair longer than ``max_length``: ``"truncate"`` cuts it,
                ``"error"`` refuses.

        Returns:
            ``(N,) float32`` in (0, 1), in the order given.

        Raises:
            InputError: an item is no pair of texts (names its position), or an argument makes no sense.
            TextOverflowError: a pair is too long and ``on_overflow="error"``.
        """
        plan = Plan.choose(batch_size=batch_size, on_overflow=on_overflow, show_progress_bar=show_progress_bar)
        if isinstance(pairs, str):
            raise InputError("expected pairs of texts, as in [(first, second), ...], got one str")
        listed: list[Any] = list(check_iterable(pairs))
        chunks = list(self._engine.stream(listed, self._tokenize, plan, len(listed)))
        return np.concatenate(chunks) if chunks else np.empty(0, dtype=np.float32)

    def tokenize(self, pairs: Sequence[tuple[str, str]]) -> Tokens:
        """The first half of :meth:`predict`, for who wants to know what scoring will cost.

        Returns:
            token ids and token types, cut to ``max_length``; ``overflowing`` tells which pairs were cut, as
            nothing is logged here.

        Raises:
            InputError: as :meth:`predict`.
        """
        return self._tokenizer.tokenize(pairs)

    def predict_tokens(self, tokens: Tokens) -> FloatArray:
        """The second half of :meth:`predict`: ``(N,) float32`` for what :meth:`tokenize` gave."""
        return self._engine.run(tokens)

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        *,
        top_k: int | None = None,
        return_documents: bool = True,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        on_overflow: OnOverflow = "truncate",
    ) -> list[RankedDocument]:
        """Order documents by how well they go with a query, best first.

        Args:
            query: the first text of every pair.
            documents: the second ones.
            top_k: documents wanted, all if None.
            return_documents: whether the texts are in the result.
            batch_size: as in :meth:`predict`.
            show_progress_bar: as in :meth:`predict`.
            on_overflow: as in :meth:`predict`.

        Returns:
            ``{"corpus_id": ..., "score": ..., "text": ...}`` for each; equal scores keep the order given.

        Raises:
            InputError: the query or a document is no text, or an argument makes no sense.
            TextOverflowError: as :meth:`predict`.
        """
        check_count(top_k, "top_k")
        if isinstance(documents, str):
            raise InputError("documents must be an iterable of texts, not one str")
        listed = list(check_iterable(documents))
        scores = self.predict(
            [(query, document) for document in listed],
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            on_overflow=on_overflow,
        )
        best = np.argsort(-scores, kind="stable")[:top_k].tolist()
        ranked = [RankedDocument(corpus_id=row, score=float(scores[row]), text=listed[row]) for row in best]
        if not return_documents:
            for document in ranked:
                del document["text"]
        return ranked

    def verify(self) -> Verification:
        """Score the golden pairs of the bundle and compare with what they were when it was written.

        Raises:
            ModelError: the model is no bundle, so it has none.
        """
        if self._golden is None:
            raise ModelError(f"{self.name} is no bundle and has no golden pairs to verify")
        golden = Tokens(self._golden.token_ids, [], self._golden.token_type_ids)
        found = self._tokenizer.tokenize(self._golden.pairs)
        return self._engine.verify(found, golden, self._golden.scores, self._golden.tolerance)

    def _open_session(
        self, model: Bundle | FolderModel, threads: int | None, providers: Sequence[str] | None
    ) -> PaddedGraph:
        # ONNX Runtime is half of a cold start, and what the kernel runs can do without.
        from embedkit.runtime.padded_graph import PaddedGraph
        from embedkit.runtime.session import Session

        is_bundle = isinstance(model, Bundle)
        outputs = _BUNDLE_OUTPUTS if is_bundle else _FOLDER_OUTPUTS
        session = Session(model.model, outputs=outputs, threads=threads, providers=providers)
        return PaddedGraph(session, finish=_keep if is_bundle else _activate, pad_id=self._tokenizer.pad_id)

    def _tokenize(self, pairs: list[Any], first: int) -> Tokens:
        return self._tokenizer.tokenize(pairs, first=first)


def _keep(scores: FloatArray, _: TokenBatch) -> FloatArray:
    """A bundle's graph leaves nothing to be done."""
    return scores


def _activate(logits: FloatArray, _: TokenBatch) -> FloatArray:
    """A folder's graph stops at logits."""
    if logits.ndim != 2 or logits.shape[1] != 1:
        raise ModelError(f"the graph gave logits {logits.shape}, expected (B, 1)")
    # Through tanh, which does not overflow where the exponential would.
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits[:, 0].astype(np.float64))), dtype=np.float32)
