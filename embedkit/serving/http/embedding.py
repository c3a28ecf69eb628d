"""Embedding texts of many requests: limits, tokens, batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from embedkit.errors import InputError, TextOverflowError, TooLargeError
from embedkit.protocols import FloatArray
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.packing import unit_rows
from embedkit.runtime.tokenization import Tokens
from embedkit.serving.http.admission import Admission, Held, Rate
from embedkit.serving.http.batcher import Batcher
from embedkit.serving.http.metrics import Metrics
from embedkit.serving.http.settings import ServerSettings
from embedkit.serving.http.tracing import span

__all__ = ["Embedded", "Embedder", "Gate", "MakeBatcher", "Role", "least_pair_tokens", "least_tokens"]

Result = TypeVar("Result")
MakeBatcher = Callable[[str, Callable[[Tokens], FloatArray], Rate], Batcher]
"""Makes the batcher of a model from its name, what runs it, and the rate to keep."""

Role = Literal["query", "document"]

_SAMPLE, _SAMPLES = "How long does it take to embed a sentence of a dozen words?", 32
_TOKENS_PER_S = 100_000.0  # until the first batches say how many they are

_CHARACTERS_OF_A_TOKEN = 8  # few languages have so many: a text has as many tokens as this says, or more
_CHARACTERS_AT_ONCE = 4096  # more would keep the event loop for longer than a thread takes to start


@dataclass(frozen=True, slots=True)
class Embedded:
    """Texts' embeddings ``(N, D) float32, unit rows``, and the tokens that were run."""

    rows: FloatArray
    tokens: int
    truncated: int


class Gate:
    """What texts have to pass before a model sees them, whichever it is."""

    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics

    def check_limits(self, texts: Sequence[str]) -> None:
        """Refuse a request that is too large.

        Raises:
            TooLargeError: says what is allowed.
        """
        self.check_count(len(texts))
        characters = sum(map(len, texts))
        if characters > self._settings.max_characters:
            raise TooLargeError(
                f"{characters} characters in one request; at most {self._settings.max_characters} are allowed"
            )

    def check_count(self, texts: int) -> None:
        """Refuse a request of too many texts.

        Raises:
            TooLargeError: says how many are allowed.
        """
        if texts > self._settings.max_items:
            raise TooLargeError(f"{texts} texts in one request; at most {self._settings.max_items} are allowed")

    def accept(self, tokens: Tokens, model: Encoder | CrossEncoder, *, truncate: bool | None = None) -> None:
        """Count texts that were cut, or refuse them.

        Raises:
            TextOverflowError: texts are too long and the request, or else the settings, want no cutting.
        """
        wanted = self._settings.on_overflow == "truncate" if truncate is None else truncate
        if tokens.overflowing and not wanted:
            raise TextOverflowError(
                f"{tokens.truncated} of {len(tokens.ids)} texts are longer than {model.max_length} tokens, the "
                f"first at position {tokens.overflowing[0]}; shorten them, or ask for them to be cut"
            )
        self._metrics.count_truncated(model.name, tokens.truncated)

    @staticmethod
    async def beside(characters: int, work: Callable[[], Result]) -> Result:
        """Do something with so many characters at once if they are few, else in a thread."""
        return work() if characters <= _CHARACTERS_AT_ONCE else await asyncio.to_thread(work)


def least_tokens(texts: Sequence[str], max_length: int) -> int:
    """About as many tokens as texts have at least, from their lengths alone."""
    return sum(least_pair_tokens(len(text), max_length) for text in texts)


def least_pair_tokens(characters: int, max_length: int) -> int:
    """The same for one text, or a pair, of so many characters."""
    return min(max_length, 1 + characters // _CHARACTERS_OF_A_TOKEN)


class Embedder:
    """An encoder whose batches are made of many requests' texts.

    Attributes:
        encoder: as given.
    """

    def __init__(self, encoder: Encoder, gate: Gate, admission: Admission, make_batcher: MakeBatcher) -> None:
        self.encoder, self._gate, self._admission = encoder, gate, admission
        self._rate = Rate(_TOKENS_PER_S)
        self._batcher = make_batcher(encoder.name, encoder.encode_tokens, self._rate)

    def warm_up(self) -> None:
        """Run some texts to learn how long they take; call this before the server listens."""
        tokens = self.encoder.tokenize([_SAMPLE] * _SAMPLES)
        for _ in range(2):  # the first time something may be allocated
            began = time.perf_counter()
            self.encoder.encode_tokens(tokens)
            self._rate.learn(tokens.total, time.perf_counter() - began)

    def price(self, texts: Sequence[str]) -> float:
        """About how many seconds embedding these texts will take, from their lengths alone."""
        return self._rate.seconds(least_tokens(texts, self.encoder.max_length))

    def check_dimensions(self, dimensions: int | None, name: str = "dimensions") -> None:
        """Refuse more dimensions than the model has.

        Raises:
            InputError: names the field of the request.
        """
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
    ) -> Embedded:
        """Embed texts together with those of other requests.

        Args:
            texts: N of them, one at least.
            role: chooses the model's prompt for queries or documents.
            prompt_name: chooses another prompt.
            dimensions: keep the first so many, scaled to length 1 again.
            truncate: whether texts that are too long are cut or refused; as the settings say if None.

        Raises:
            InputError: a text or an argument does not fit the model.
            TooLargeError: the request is too large.
            OverloadedError: too much work is waiting.
        """
        self._gate.check_limits(texts)
        if not texts:
            raise InputError("expected at least one text, got an empty list")
        self.check_dimensions(dimensions)
        with self._admission.hold(self.price(texts)) as held:
            found = await self.run(texts, role=role, prompt_name=prompt_name, truncate=truncate, held=held)
        return self._cut(found, dimensions)

    async def embed_ids(self, ids: Sequence[Sequence[int]], *, dimensions: int | None = None) -> Embedded:
        """Embed texts that were tokenized elsewhere.

        Args:
            ids: token ids of N texts, one at least, special tokens included.
            dimensions: as for :meth:`embed`.

        Raises:
            InputError: they do not fit the model.
            TooLargeError: there are too many.
            OverloadedError: too much work is waiting.
        """
        self._gate.check_count(len(ids))
        if not ids:
            raise InputError("expected at least one list of token ids, got none")
        self.check_dimensions(dimensions)
        tokens = self.encoder.check_token_ids(ids)
        count = tokens.total
        with self._admission.hold(self._rate.seconds(count)):
            rows = await self._batcher.submit(tokens)
        return self._cut(Embedded(rows, count, 0), dimensions)

    def _cut(self, found: Embedded, dimensions: int | None) -> Embedded:
        """The first dimensions, scaled to length 1 again."""
        if dimensions is None or dimensions == self.encoder.dimension:
            return found
        return Embedded(unit_rows(found.rows[:, :dimensions]), found.tokens, found.truncated)

    async def run(
        self,
        texts: Sequence[str],
        *,
        role: Role | None = None,
        prompt_name: str | None = None,
        truncate: bool | None = None,
        held: Held | None = None,
    ) -> Embedded:
        """Embed texts that were let in, as part of ``held`` or of work that holds more than they cost.

        Args:
            texts: N of them, one at least.
            role: chooses the model's prompt for queries or documents.
            prompt_name: chooses another prompt.
            truncate: as for :meth:`embed`.
            held: is corrected to what the texts cost once they are tokenized.

        Raises:
            InputError: a text or an argument does not fit the model.
        """
        with span("tokenize", model=self.encoder.name, texts=len(texts)):
            tokens = await self._gate.beside(
                sum(map(len, texts)), lambda: self.encoder.tokenize(texts, role=role, prompt_name=prompt_name)
            )
        self._gate.accept(tokens, self.encoder, truncate=truncate)
        count = tokens.total
        if held is not None:
            self._admission.correct(held, self._rate.seconds(count))
        with span("wait and embed", model=self.encoder.name, tokens=count):
            rows = await self._batcher.submit(tokens)
        return Embedded(rows, count, tokens.truncated)

    def close(self) -> None:
        """Let the thread end."""
        self._batcher.close()
