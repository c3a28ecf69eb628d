"""Embedding of texts of many requests, and their ranking by relevance to a query: limits, tokens, batches."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import orjson

from embedkit.errors import InputError, TextOverflowError, TooLargeError
from embedkit.protocols import FloatArray
from embedkit.runtime.cross_encoder import CrossEncoder, sigmoid
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.options import unit_rows
from embedkit.runtime.token_ids import TokenSpan
from embedkit.runtime.tokenization import Tokens
from embedkit.serving.http.admission import Admission, Rate, Reservation
from embedkit.serving.http.batcher import Batcher, background_threads
from embedkit.serving.http.metrics import Metrics
from embedkit.serving.http.settings import ServerSettings
from embedkit.serving.http.tracing import span
from embedkit.serving.retrieval.store.exact import inner_products

Result = TypeVar("Result")
MakeBatcher = Callable[[str, Callable[[Tokens], FloatArray], Rate], Batcher]
"""Creates the batcher of a model from its name, the function to run, and the rate to update."""

Role = Literal["query", "document"]

_SAMPLE, _SAMPLES = "How long does it take to embed a sentence of a dozen words?", 32
_TOKENS_PER_S = 100_000.0  # initial estimate
_CHARACTERS_PER_S = 300_000.0  # of texts whose tokens are listed, initial estimate
_TOKENS_AT_ONCE = 4096  # of those written as JSON while no other thread can run

_CHARACTERS_OF_A_TOKEN = 8  # an upper bound in most languages, so that estimates of tokens are lower bounds
_FEW = 16  # items of a list that limits other than max_items are for, such as a pair of texts
_SMALL_BYTES = 65_536  # of a body that is parsed at once, whatever is in it
_PARTS, _PARTS_OF_AN_ITEM = 131_072, 64  # lists, objects and fields of a request, and of a document
_SIGNS = (b"[", b"{", b":")
_JSON_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?')
_CHARACTERS_AT_ONCE = 4096  # more would block the event loop for longer than starting a thread takes


class EmbeddingResult(NamedTuple):
    """Texts' embeddings ``(N, D) float32, unit rows``, and the number of tokens processed."""

    rows: FloatArray
    tokens: int
    truncated: int


class Limits:
    """Checks applied to texts before any model; each names its limit in a TooLargeError."""

    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._most_parts = max(_PARTS, _PARTS_OF_AN_ITEM * settings.max_items)

    def check(self, texts: Sequence[str]) -> None:
        """Reject a request with too many texts or characters."""
        self.check_count(len(texts))
        characters = sum(map(len, texts))
        if characters > self._settings.max_characters:
            raise TooLargeError(
                f"{characters} characters in one request; at most {self._settings.max_characters} are allowed"
            )

    def check_count(self, count: int, place: str = "", unit: str = "texts") -> None:
        """Reject a request with too many texts, or other units at a place."""
        most = self._settings.max_items
        if count > most:
            raise TooLargeError(f"{place}{count} {unit} in one request; at most {most} are allowed")

    def may_hold_too_many(self, body: bytearray) -> bool:
        """Reject a body with more commas than all texts and token ids of a request have together.

        Return whether it may hold too many lists, objects and fields, unless signs in texts look like these.
        """
        if len(body) <= _SMALL_BYTES:
            return False
        most = 2 * self._settings.max_characters
        if body.count(b",") > most:
            raise TooLargeError(f"the request has more than {most} values, the maximum")
        return sum(map(body.count, _SIGNS)) > self._most_parts

    def check_parts(self, body: bytearray) -> None:
        """Reject a body with too many lists, objects and fields, which take long to parse; run it in a thread."""
        count = end = 0
        for text in itertools.chain(_JSON_TEXT.finditer(body), [None]):
            start = len(body) if text is None else text.start()
            count += sum(body.count(sign, end, start) for sign in _SIGNS)
            if count > self._most_parts:
                raise TooLargeError(f"the request has more than {self._most_parts} lists, objects and fields")
            end = start if text is None else text.end()

    def check_lists(self, content: Any) -> None:
        """Reject a long list in a request before its items are validated; numbers may be token ids of one text."""
        objects = [content] if isinstance(content, dict) else []
        while objects:
            for name, value in objects.pop().items():
                if isinstance(value, dict):
                    objects.append(value)
                elif isinstance(value, list) and len(value) > _FEW and not isinstance(value[0], int | float):
                    self.check_count(len(value), f"{name!r:.80}: ", "items")

    def check_filter(self, conditions: Mapping[str, Any] | None) -> None:
        """Reject a filter with too many values."""
        count, parts = 0, list((conditions or {}).values())
        while parts:
            part = parts.pop()
            if isinstance(part, Mapping):
                parts.extend(part.values())
            elif isinstance(part, list):
                parts.extend(part)
            else:
                count += 1
        self.check_count(count, "filter: ", "values")

    def check_response(self, size_bytes: int) -> None:
        """Reject an answer that is too large."""
        most = self._settings.max_answer_bytes
        if size_bytes > most:
            raise TooLargeError(f"the answer has more than {most} bytes, the maximum; ask for less in one request")

    def accept(self, tokens: Tokens, model: Encoder | CrossEncoder, *, truncate: bool | None = None) -> None:
        """Count truncated texts, or reject them unless the request or else the settings allow truncation."""
        wanted = self._settings.on_overflow == "truncate" if truncate is None else truncate
        if tokens.overflowing and not wanted:
            raise TextOverflowError(
                f"{tokens.truncated} of {len(tokens.ids)} texts are longer than {model.max_length} tokens, the "
                f"first at position {tokens.overflowing[0]}; shorten them, or allow truncation"
            )
        self._metrics.count_truncated(model.name, tokens.truncated)

    @staticmethod
    async def offload(characters: int, work: Callable[[], Result]) -> Result:
        """Run a function at once if the texts are short, else in a thread."""
        return work() if characters <= _CHARACTERS_AT_ONCE else await asyncio.to_thread(work)


def least_tokens(characters: Iterable[int], max_length: int) -> int:
    """Return a lower bound on the number of tokens, estimated from the lengths of texts."""
    return sum([min(max_length, 1 + count // _CHARACTERS_OF_A_TOKEN) for count in characters])


class Embedder:
    """An encoder whose batches combine texts of many requests.

    Those of its methods that embed raise an InputError, if a text or an argument does not fit the model, a
    TooLargeError, if the request is too large, and an OverloadedError, if too much work is waiting.
    """

    def __init__(self, encoder: Encoder, limits: Limits, admission: Admission, make_batcher: MakeBatcher) -> None:
        self.encoder, self._limits, self._admission = encoder, limits, admission
        self._rate, self._listing_rate = Rate(_TOKENS_PER_S), Rate(_CHARACTERS_PER_S)
        self._tokenize_pool = background_threads(
            1, "tokens"
        )  # one, because tokens take a hundred times a text's memory
        self._batcher = make_batcher(encoder.name, encoder.encode_tokens, self._rate)

    def warm_up(self) -> None:
        """Run some texts to measure the speed; call this before the server listens."""
        tokens = self.encoder.tokenize([_SAMPLE] * _SAMPLES)
        for _ in range(2):  # the first run may allocate memory
            began = time.perf_counter()
            self.encoder.encode_tokens(tokens)
            self._rate.learn(tokens.total, time.perf_counter() - began)

    def price(self, texts: Sequence[str]) -> float:
        """Estimate the seconds for embedding texts, from their lengths only."""
        return self._rate.seconds(least_tokens(map(len, texts), self.encoder.max_length))

    def check_dimensions(self, dimensions: int | None, name: str = "dimensions") -> None:
        """Reject more dimensions than the model has; ``name`` is the field of the request."""
        whole = self.encoder.dimension
        if dimensions is not None and dimensions > whole:
            raise InputError(f"{name} must be a whole number from 1 to {whole}, not {dimensions}")

    async def embed(
        self,
        texts: Sequence[str],
        *,
        role: Role | None = None,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        truncate: bool | None = None,
    ) -> EmbeddingResult:
        """Embed texts, at least one, together with those of other requests.

        ``role`` selects the model's prompt for queries or documents, and ``prompt_name`` another one. The leading
        ``dimensions`` are kept and normalised again. Without ``truncate``, the settings decide on long texts.
        """
        self._limits.check(texts)
        if not texts:
            raise InputError("expected at least one text, got an empty list")
        self.check_dimensions(dimensions)
        with self._admission.reserve(self.price(texts)) as reservation:
            result = await self.run(
                texts, role=role, prompt_name=prompt_name, truncate=truncate, reservation=reservation
            )
        return self._cut(result, dimensions)

    async def embed_ids(self, ids: Sequence[Sequence[int]], *, dimensions: int | None = None) -> EmbeddingResult:
        """Embed texts tokenized elsewhere, at least one, given as ids that include special tokens."""
        self._limits.check_count(len(ids))
        if not ids:
            raise InputError("expected at least one list of token ids, got none")
        self.check_dimensions(dimensions)
        tokens = self.encoder.check_token_ids(ids)
        count = tokens.total
        with self._admission.reserve(self._rate.seconds(count)):
            rows = await self._batcher.submit(tokens)
        return self._cut(EmbeddingResult(rows, count, 0), dimensions)

    async def list_tokens(
        self, texts: Sequence[str], *, special_tokens: bool, prompt_name: str | None
    ) -> tuple[bytes, int]:
        """Return the tokens of texts, not truncated, as JSON, and their number.

        ``special_tokens`` includes the special tokens of the tokenizer; a prompt precedes each text.
        """
        self._limits.check(texts)
        characters = sum(map(len, texts))

        def work() -> tuple[bytes, int]:
            spans = self.encoder.token_spans(texts, special_tokens=special_tokens, prompt_name=prompt_name)
            return _tokens_to_json(spans, self._limits.check_response), sum(map(len, spans))

        with self._admission.reserve(self._listing_rate.seconds(characters)):
            began = time.monotonic()
            done = await asyncio.get_running_loop().run_in_executor(self._tokenize_pool, work)
            if characters > _CHARACTERS_AT_ONCE:  # in smaller requests, characters do not dominate the time
                self._listing_rate.learn(characters, time.monotonic() - began)
        return done

    def _cut(self, result: EmbeddingResult, dimensions: int | None) -> EmbeddingResult:
        """Keep the leading dimensions and normalise again."""
        if dimensions is None or dimensions == self.encoder.dimension:
            return result
        return EmbeddingResult(unit_rows(result.rows[:, :dimensions]), result.tokens, result.truncated)

    async def run(
        self,
        texts: Sequence[str],
        *,
        role: Role | None = None,
        prompt_name: str | None = None,
        truncate: bool | None = None,
        reservation: Reservation | None = None,
    ) -> EmbeddingResult:
        """Embed texts that were admitted as part of ``reservation``, or of work that holds more than they cost.

        The reservation is corrected once the texts are tokenized; the other arguments are those of :meth:`embed`.
        """
        with span("tokenize", model=self.encoder.name, texts=len(texts)):
            tokens = await self._limits.offload(
                sum(map(len, texts)), lambda: self.encoder.tokenize(texts, role=role, prompt_name=prompt_name)
            )
        self._limits.accept(tokens, self.encoder, truncate=truncate)
        count = tokens.total
        if reservation is not None:
            self._admission.correct(reservation, self._rate.seconds(count))
        with span("wait and embed", model=self.encoder.name, tokens=count):
            rows = await self._batcher.submit(tokens)
        return EmbeddingResult(rows, count, tokens.truncated)

    def close(self) -> None:
        """Stop the threads."""
        self._batcher.close()
        self._tokenize_pool.shutdown(wait=False)


def _tokens_to_json(spans: Sequence[Sequence[TokenSpan]], check: Callable[[int], None]) -> bytes:
    """Write tokens in pieces, between which other threads run, and check the size as it grows."""
    content = bytearray(b"[")
    for tokens in spans:
        content += b"[" if len(content) == 1 else b",["
        for start in range(0, len(tokens), _TOKENS_AT_ONCE):
            piece = orjson.dumps([token._asdict() for token in tokens[start : start + _TOKENS_AT_ONCE]])
            content += (b"," if start else b"") + piece[1:-1]
            check(len(content))
        content += b"]"
    return bytes(content + b"]")


_PAIR_TOKENS_PER_S = 20_000.0  # initial estimate


@dataclass(frozen=True, slots=True)
class RankingResult:
    """Scores ``(N,) float32`` in the order of the texts, higher is better, and the number of tokens processed."""

    scores: FloatArray
    tokens: int
    truncated: int

    def best(self, count: int | None = None) -> list[int]:
        """Return the positions of the best texts, best first; ties keep their order."""
        order: list[int] = np.argsort(-self.scores, kind="stable")[:count].tolist()
        return order


class CosineRanker:
    """Scores by the cosine of embeddings, if there is no cross-encoder."""

    def __init__(self, embedder: Embedder, limits: Limits, admission: Admission) -> None:
        self._embedder, self._limits, self._admission = embedder, limits, admission
        self.manifest = embedder.encoder.manifest

    async def rank(
        self,
        query: str,
        texts: Sequence[str],
        *,
        truncate: bool | None = None,
        raw: bool = False,  # noqa: ARG002 - a cosine has no activation
    ) -> RankingResult:
        """Score texts for a query, in [-1, 1]; raises the errors of :meth:`Embedder.embed`."""
        _check_texts(texts)
        self._limits.check([query, *texts])
        with self._admission.reserve(self._embedder.price([query, *texts])):
            one, many = await asyncio.gather(
                self._embedder.run([query], role="query", truncate=truncate),
                self._embedder.run(texts, role="document", truncate=truncate),
            )
        scores = inner_products(many.rows, one.rows[0])
        return RankingResult(scores, one.tokens + many.tokens, one.truncated + many.truncated)


class CrossRanker:
    """Scores by a cross-encoder, with its own batches."""

    def __init__(
        self, model: CrossEncoder, limits: Limits, admission: Admission, make_batcher: MakeBatcher
    ) -> None:
        self.model, self._limits, self._admission = model, limits, admission
        self._rate = Rate(_PAIR_TOKENS_PER_S)
        self._batcher = make_batcher(
            model.name, lambda tokens: model.predict_tokens(tokens, "identity"), self._rate
        )
        self.manifest = model.manifest

    def price(self, query: str, characters: Iterable[int]) -> float:
        """Estimate the seconds for scoring texts with these numbers of characters."""
        return self._rate.seconds(
            least_tokens([len(query) + count for count in characters], self.model.max_length)
        )

    async def rank(
        self, query: str, texts: Sequence[str], *, truncate: bool | None = None, raw: bool = False
    ) -> RankingResult:
        """Score texts for a query, in [0, 1], or as logits if ``raw``; errors as :meth:`Embedder.embed`."""
        _check_texts(texts)
        self._limits.check([query, *texts])
        pairs = [(query, text) for text in texts]
        with self._admission.reserve(self.price(query, map(len, texts))) as reservation:
            return await self.run(pairs, truncate=truncate, raw=raw, reservation=reservation)

    async def run(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        truncate: bool | None = None,
        raw: bool = False,
        reservation: Reservation | None = None,
    ) -> RankingResult:
        """Score pairs that were admitted as part of ``reservation``, or of work that holds more than they cost."""
        characters = sum(len(first) + len(second) for first, second in pairs)
        tokens = await self._limits.offload(characters, lambda: self.model.tokenize(pairs))
        self._limits.accept(tokens, self.model, truncate=truncate)
        count = tokens.total
        if reservation is not None:
            self._admission.correct(reservation, self._rate.seconds(count))
        with span("wait and score", model=self.model.name, tokens=count):
            logits = await self._batcher.submit(tokens)
        return RankingResult(logits if raw else sigmoid(logits), count, tokens.truncated)

    def close(self) -> None:
        """Stop the thread."""
        self._batcher.close()


def _check_texts(texts: Sequence[str]) -> None:
    if not texts:
        raise InputError("expected at least one text to rank, got an empty list")
