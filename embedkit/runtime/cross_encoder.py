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
    """A cross-encoder on ONNX Runtime or embedkit's own kernel. Create it with :meth:`load`; it is thread-safe.

    Both texts of a pair pass through the network together, so nothing can be precomputed: use it to re-rank a few
    dozen documents found by an encoder, and to score pairs. A score is the sigmoid of the network's single logit,
    and so in (0, 1), whatever activation the model specifies elsewhere.

    Pairs of more than ``max_length`` tokens are truncated, the longer text first. Each call counts them and logs
    one warning to the logger ``embedkit``. Pass ``on_overflow="error"`` to get an exception.
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
            source: a path, which takes precedence and never uses the network; the name of a bundled model;
                or a hub id ``org/name``.
            file: the graph in a sentence-transformers folder, ``onnx/model.onnx`` if None.
            threads: number of compute threads; if None, all processors available to the process (affinity and
                container quota). On a CPU each thread runs its own batches, unless there is only one thread or
                the graph is large (64 MB without the word table); then all threads share a batch.
            providers: ONNX Runtime execution providers in order of preference, or
                ``["EmbedkitExecutionProvider"]``, which runs cross-encoders of the BERT family that embedkit
                exported. An unavailable provider is an error. If None,
                embedkit's own where it is the fastest (int8 up to BERT-Base, fp32 up to BERT-Mini), otherwise
                ONNX Runtime's CPU provider.
            max_tokens_per_batch: maximum number of pairs in a batch times the longest of them in tokens; if None,
                16,384, but 1024 on a CPU, and 128 to 256 there if threads run their own batches.
            instructions: the instruction set of embedkit's kernel: "amx", "avx512", "avx-vnni", "avx2",
                "neon-i8mm", "neon-dotprod" or "portable". All give the same bits. If None, the one in the
                environment variable ``EMBEDKIT_INSTRUCTIONS``, else the quickest of this processor. A named one
                runs the kernel wherever it can run the model and no provider is named.

        Raises:
            ModelNotFoundError: no model exists under the path, name or id.
            BundleError: the file is damaged, not a bundle, or of a newer format.
            ModelError: the model cannot be used, or is not a cross-encoder.
            ProviderError: a provider or the instruction set is not available, or a provider failed to start.
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
        """Description and origin of the model."""
        return self._manifest

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._manifest.name

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of everything that determines the scores."""
        return self._fingerprint

    @property
    def max_length(self) -> int:
        """Maximum length of a pair in tokens, including special tokens."""
        return self._manifest.max_length

    @property
    def provider(self) -> str:
        """Name of the execution provider: embedkit's own kernel, or the first active one of ONNX Runtime."""
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
        """Whether the model has golden pairs for :meth:`verify`, as bundles do."""
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
            batch_size: maximum number of pairs in a batch; if None, only the number of tokens is limited.
            show_progress_bar: None shows a progress bar on a terminal for calls of more than two seconds.
            on_overflow: handling of pairs longer than ``max_length``: ``"truncate"`` or ``"error"``.

        Returns:
            ``(N,) float32`` in (0, 1), in the order of the pairs.

        Raises:
            InputError: an item is not a pair of texts (names its position), or an argument is invalid.
            TextOverflowError: a pair is too long and ``on_overflow="error"``.
        """
        plan = Plan.choose(batch_size=batch_size, on_overflow=on_overflow, show_progress_bar=show_progress_bar)
        if isinstance(pairs, str):
            raise InputError("expected pairs of texts, as in [(first, second), ...], got one str")
        listed: list[Any] = list(check_iterable(pairs))
        chunks = list(self._engine.stream(listed, self._tokenize, plan, len(listed)))
        return np.concatenate(chunks) if chunks else np.empty(0, dtype=np.float32)

    def tokenize(self, pairs: Sequence[tuple[str, str]]) -> Tokens:
        """Tokenize pairs, the first half of :meth:`predict`, for example to estimate the cost of scoring.

        Returns:
            Token ids and token types, truncated to ``max_length``; ``overflowing`` marks the truncated pairs,
            which are not logged.

        Raises:
            InputError: as :meth:`predict`.
        """
        return self._tokenizer.tokenize(pairs)

    def predict_tokens(self, tokens: Tokens) -> FloatArray:
        """Score the result of :meth:`tokenize`: ``(N,) float32``."""
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
        """Order documents by their score with a query, best first.

        Args:
            query: the first text of every pair.
            documents: the second texts.
            top_k: number of documents to return, all if None.
            return_documents: whether to include the texts in the result.
            batch_size: as in :meth:`predict`.
            show_progress_bar: as in :meth:`predict`.
            on_overflow: as in :meth:`predict`.

        Returns:
            ``{"corpus_id": ..., "score": ..., "text": ...}`` for each document; ties keep the original order.

        Raises:
            InputError: the query or a document is not a text, or an argument is invalid.
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
        """Score the golden pairs of the bundle and compare with the scores stored at export.

        They have to be as near as the bundle's tolerance says, and to have the bits that it records, if it does
        so for the arithmetic at work (:attr:`numerics`).

        Raises:
            ModelError: the model is not a bundle and has no golden pairs.
        """
        if self._golden is None:
            raise ModelError(f"{self.name} is no bundle and has no golden pairs to verify")
        golden = Tokens(self._golden.token_ids, [], self._golden.token_type_ids)
        found = self._tokenizer.tokenize(self._golden.pairs)
        digest = self._golden.digests.get(self.numerics)
        return self._engine.verify(found, golden, self._golden.scores, self._golden.tolerance, digest)

    def _open_session(
        self, model: Bundle | FolderModel, threads: int | None, providers: Sequence[str] | None
    ) -> PaddedGraph:
        # Importing ONNX Runtime takes half of a cold start, and the kernel does not need it.
        from embedkit.runtime.padded_graph import PaddedGraph
        from embedkit.runtime.session import Session

        is_bundle = isinstance(model, Bundle)
        outputs = _BUNDLE_OUTPUTS if is_bundle else _FOLDER_OUTPUTS
        session = Session(model.model, outputs=outputs, threads=threads, providers=providers)
        return PaddedGraph(session, finish=_keep if is_bundle else _activate, pad_id=self._tokenizer.pad_id)

    def _tokenize(self, pairs: list[Any], first: int) -> Tokens:
        return self._tokenizer.tokenize(pairs, first=first)


def _keep(scores: FloatArray, _: TokenBatch) -> FloatArray:
    """Return the scores of a bundle's graph unchanged."""
    return scores


def _activate(logits: FloatArray, _: TokenBatch) -> FloatArray:
    """Apply the sigmoid to the logits of a folder's graph."""
    if logits.ndim != 2 or logits.shape[1] != 1:
        raise ModelError(f"the graph gave logits {logits.shape}, expected (B, 1)")
    # Through tanh, which does not overflow where the exponential would.
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits[:, 0].astype(np.float64))), dtype=np.float32)
