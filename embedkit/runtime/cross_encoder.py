"""The cross-encoder: pairs of texts in, scores out."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NotRequired, TypedDict, Unpack, cast, get_args, overload

import numpy as np

from embedkit.errors import ModelError
from embedkit.progress import Progress
from embedkit.protocols import FloatArray
from embedkit.runtime.arguments import check_choice, check_count, check_flag, check_iterable, check_text
from embedkit.runtime.batching import BatchRunner
from embedkit.runtime.bundle import Bundle
from embedkit.runtime.folder_model import FolderModel
from embedkit.runtime.kernel_backend import KernelBackend
from embedkit.runtime.manifest import Manifest
from embedkit.runtime.model import Model
from embedkit.runtime.options import Activation, PredictCall, PredictOptions, check_run_options
from embedkit.runtime.protobuf import expose_logits
from embedkit.runtime.tokenization import PairTokenizer, TokenBatch, Tokens, check_items

_BUNDLE_OUTPUTS = ("score",)
_FOLDER_OUTPUTS = ("logits",)


class RankedDocument(TypedDict):
    """A document that :meth:`CrossEncoder.rank` found, with the keys of sentence-transformers.

    ``corpus_id`` is its position among the documents given; ``text`` is the document itself.
    """

    corpus_id: int
    score: float
    text: NotRequired[str]


class CrossEncoder(Model[PairTokenizer, PredictCall]):
    """A cross-encoder on ONNX Runtime or embedkit's own kernel. Create it with :meth:`load`; it is thread-safe.

    Both texts of a pair pass through the network together, so nothing can be precomputed: use it to re-rank a few
    dozen documents found by an encoder, and to score pairs. A score is the network's single logit after the
    model's activation: the sigmoid, with scores in (0, 1), unless the model's folder named ``Identity``.

    Pairs of more than ``max_length`` tokens are truncated, the longer text first. Each call counts them and logs
    one warning to the logger ``embedkit``. Pass ``on_overflow="error"`` to get an exception, or ``"windows"`` to
    score overlapping windows of the second text and take the best.
    """

    _kind = "cross-encoder"
    _unit = "pairs"
    _label = "score"
    _tokenizer_class = PairTokenizer
    _logit_name: str | None = None

    def __repr__(self) -> str:
        return f"CrossEncoder(name={self.name!r}, max_length={self.max_length})"

    @property
    def activation_fn(self) -> Activation:
        """The model's activation, the default of :meth:`predict` and :meth:`rank`."""
        return cast(Activation, self._manifest.activation or "sigmoid")

    @overload
    def predict(self, pairs: tuple[str, str], **options: Unpack[PredictOptions]) -> np.float32: ...

    @overload
    def predict(self, pairs: Iterable[tuple[str, str]], **options: Unpack[PredictOptions]) -> FloatArray: ...

    def predict(
        self, pairs: tuple[str, str] | Iterable[tuple[str, str]], **options: Unpack[PredictOptions]
    ) -> FloatArray | np.float32:
        """Score pairs of texts.

        Args:
            pairs: one pair, or any iterable of pairs, each a tuple, list or array of two texts; their order
                matters. An empty text is allowed.
            batch_size: maximum number of pairs in a batch; if None, only the number of tokens is limited.
            show_progress_bar: None shows a progress bar on a terminal for calls of more than two seconds.
            activation_fn: ``"sigmoid"`` for scores in (0, 1), or ``"identity"`` for the logits; None uses the
                model's own, as sentence-transformers does.
            on_overflow: handling of pairs longer than ``max_length``: ``"truncate"``, ``"error"``, or
                ``"windows"``, which scores overlapping windows of the second text and takes the best.

        Returns:
            ``(N,) float32`` in the order of the pairs, or a scalar for one pair.

        Raises:
            InputError: an item is not a pair of texts (names its position), or an argument is invalid.
            TextOverflowError: a pair is too long and ``on_overflow="error"``.
        """
        call = self._check_options(options, "predict")
        is_alone = _is_pair(pairs)
        scores = self._score([pairs] if is_alone else list(check_iterable(pairs, "pairs")), call)
        return cast(np.float32, scores[0]) if is_alone else scores

    def _score(self, pairs: list[Any], call: PredictCall) -> FloatArray:
        """Score pairs: ``(N,) float32``."""
        chunks = list(self._results(pairs, call, len(pairs), call.unit))
        return np.concatenate(chunks) if chunks else np.empty(0, dtype=np.float32)

    def _run_chunk(
        self, chunk: list[Any], first: int, call: PredictCall, progress: Progress | None = None
    ) -> tuple[FloatArray, int]:
        runner = self._runner_for(call.activation)
        if call.on_overflow == "windows":
            tokens, starts = self._tokenizer.tokenize_windows(chunk, first=first)
            scores: FloatArray = np.maximum.reduceat(runner.run(tokens, call.batch_size), starts)
            if progress:
                progress.advance(len(chunk))
            return scores, 0
        tokens = self._tokenizer.tokenize(chunk, first=first)
        if tokens.overflowing and call.on_overflow == "error":
            raise self._overflow_error(tokens.overflowing, first, call.unit)
        return runner.run(tokens, call.batch_size, progress), tokens.truncated

    def tokenize(self, pairs: Sequence[tuple[str, str]]) -> Tokens:
        """Tokenize pairs, the first half of :meth:`predict`, for example to estimate the cost of scoring.

        Returns:
            Token ids and token types, truncated to ``max_length``; ``overflowing`` marks the truncated pairs,
            which are not logged.

        Raises:
            InputError: as :meth:`predict`.
        """
        return self._tokenizer.tokenize(list(check_iterable(pairs, "pairs")))

    def predict_tokens(self, tokens: Tokens, activation_fn: Activation | None = None) -> FloatArray:
        """Score the result of :meth:`tokenize`, with the activation of :meth:`predict`: ``(N,) float32``."""
        return self._runner_for(self._check_activation(activation_fn)).run(tokens)

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        return_documents: bool = True,  # noqa: FBT001, FBT002 - in this place, as in sentence-transformers
        **options: Unpack[PredictOptions],
    ) -> list[RankedDocument]:
        """Order documents by their score with a query, best first.

        Args:
            query: the first text of every pair.
            documents: the second texts.
            top_k: number of documents to return, all if None.
            return_documents: whether to include the texts in the result; sentence-transformers omits them by
                default.
            options: the keyword arguments of :meth:`predict`.

        Returns:
            ``{"corpus_id": ..., "score": ..., "text": ...}`` for each document; ties keep the original order.

        Raises:
            InputError: the query or a document is not a text, or an argument is invalid.
            TextOverflowError: as :meth:`predict`.
        """
        best_of, returns_texts = check_count(top_k, "top_k"), check_flag(return_documents, "return_documents")
        check_text(query, "query")
        call = self._check_options(options, "rank", unit="documents")
        listed = check_items(list(check_iterable(documents, "documents")), name="documents")
        scores = self._score([(query, document) for document in listed], call)
        best = np.argsort(-scores, kind="stable")[:best_of].tolist()
        ranked = [RankedDocument(corpus_id=row, score=float(scores[row]), text=listed[row]) for row in best]
        if not returns_texts:
            for document in ranked:
                del document["text"]
        return ranked

    def _check_shape(self, width: int | None) -> tuple[int, ...]:  # noqa: ARG002 - a score has none
        return ()

    def _check_options(self, options: PredictOptions, caller: str, *, unit: str = "pairs") -> PredictCall:
        run_options = check_run_options(options, PredictOptions, caller)
        return PredictCall(
            activation=self._check_activation(options.get("activation_fn")), unit=unit, **run_options
        )

    def _check_activation(self, activation: Activation | None) -> str:
        """Return the activation of a call, whose logits the model can give."""
        chosen = self.activation_fn if activation is None else activation
        check_choice(chosen, get_args(Activation), "activation_fn")
        self._runner_for(chosen)
        return chosen

    def _runner_for(self, activation: str) -> BatchRunner:
        return self._runner if activation == "sigmoid" else self._logits

    @functools.cached_property
    def _logits(self) -> BatchRunner:
        if isinstance(self._backend, KernelBackend):
            return self._make_runner(self._backend.with_logits())
        if self._is_bundle and self._logit_name is None:
            raise ModelError(f"{self.name} has no logits: its graph does not end in a sigmoid")
        return self._make_runner(self._backend.reading(self._logit_name, lambda rows, _: _logits_of(rows)))

    def _graph(self, model: Bundle | FolderModel) -> bytes:
        if not isinstance(model, Bundle):
            return model.model
        content, self._logit_name = expose_logits(model.model)
        return content

    def _outputs(self, model: Bundle | FolderModel) -> Sequence[str]:
        return _BUNDLE_OUTPUTS if isinstance(model, Bundle) else _FOLDER_OUTPUTS

    @staticmethod
    def _finish(rows: FloatArray, batch: TokenBatch, manifest: Manifest, *, is_bundle: bool) -> FloatArray:  # noqa: ARG004 - scores have no tokens
        return rows if is_bundle else sigmoid(_logits_of(rows))


def _is_pair(pairs: object) -> bool:
    if isinstance(pairs, np.ndarray):
        return bool(pairs.shape == (2,))
    return isinstance(pairs, (tuple, list)) and len(pairs) == 2 and all(isinstance(text, str) for text in pairs)


def _logits_of(rows: FloatArray) -> FloatArray:
    """Return logits ``(B,)``; a folder's graph gives ``(B, 1)``."""
    if rows.ndim == 1:
        return rows
    if rows.ndim != 2 or rows.shape[1] != 1:
        raise ModelError(f"the graph gave logits {rows.shape}, expected (B, 1)")
    return rows[:, 0]


def sigmoid(logits: FloatArray) -> FloatArray:
    """Return the scores of logits, through tanh, which does not overflow where the exponential would."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64))), dtype=np.float32)
