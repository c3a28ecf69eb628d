"""What a server does, without HTTP: texts through tokenizer, batcher and network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from embedkit.errors import InputError, ModelError, ModelNotFoundError, TextOverflowError, TooLargeError
from embedkit.protocols import FloatArray
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.manifest import Manifest
from embedkit.runtime.packing import unit_rows
from embedkit.runtime.tokenization import Tokens
from embedkit.serving.http.batcher import Batcher
from embedkit.serving.http.metrics import Metrics
from embedkit.serving.http.settings import ServerSettings

__all__ = ["Embedded", "Service"]

Result = TypeVar("Result")

_CHARACTERS_AT_ONCE = 4096  # more would keep the event loop for longer than a thread takes to start


@dataclass(frozen=True, slots=True)
class Embedded:
    """Texts' embeddings ``(N, D) float32, unit rows``, and the tokens that were run."""

    rows: FloatArray
    tokens: int
    truncated: int


class Service:
    """The models of a server and what it may do with them.

    Attributes:
        encoder: embeds.
        settings: limits and permissions.
        metrics: counts what happens.
        draining: whether the server was told to end, and takes no new work.
    """

    def __init__(self, encoder: Encoder, settings: ServerSettings) -> None:
        self.encoder, self.settings = encoder, settings
        self.metrics = Metrics()
        self.draining = False
        self._batcher = self._make_batcher(encoder.name, encoder.encode_tokens)

    def _make_batcher(self, model: str, run: Callable[[Tokens], FloatArray]) -> Batcher:
        batcher = Batcher(
            run,
            batch_tokens=self.settings.batch_tokens,
            max_wait_ms=self.settings.max_wait_ms,
            queue_tokens=self.settings.queue_tokens,
            report=self.metrics.batch_reporter(model),
        )
        self.metrics.watch_queue(model, lambda: batcher.waiting_tokens)
        return batcher

    def verify(self) -> None:
        """Encode the golden texts of the bundle, so that a server never starts that gives other embeddings.

        Raises:
            ModelError: this machine computes something else; says how far off.
        """
        if not self.encoder.has_golden:
            self.encoder.encode(["ready?"])  # where there is nothing to compare with, this one warms up
            return
        found = self.encoder.verify()
        if not found["passed"]:
            raise ModelError(
                f"{self.encoder.name} gives other embeddings here than where it was made (off by "
                f"{found['difference']:.2g}, allowed {found['tolerance']:.2g}); see `embedkit doctor`"
            )

    def close(self) -> None:
        """Let the threads end."""
        self._batcher.close()

    def cards(self) -> list[dict[str, Any]]:
        """What ``/v1/models`` tells."""
        return [_card(self.encoder.manifest, self.encoder.fingerprint)]

    def check_model(self, name: str | None) -> None:
        """Refuse to answer for a model that is not here.

        Raises:
            ModelNotFoundError: says which one is.
        """
        names = {self.encoder.name, *self.settings.aliases}
        if name is not None and name not in names:
            raise ModelNotFoundError(
                f"there is no model {name!r:.80} here; this server has {self.encoder.name!r} "
                "(an operator can add names for it with aliases)"
            )

    def check_limits(self, texts: Sequence[str]) -> None:
        """Refuse a request that is too large.

        Raises:
            TooLargeError: says what is allowed.
        """
        if len(texts) > self.settings.max_items:
            raise TooLargeError(
                f"{len(texts)} texts in one request; at most {self.settings.max_items} are allowed"
            )
        characters = sum(map(len, texts))
        if characters > self.settings.max_characters:
            raise TooLargeError(
                f"{characters} characters in one request; at most {self.settings.max_characters} are allowed"
            )

    async def embed(
        self,
        texts: Sequence[str],
        *,
        role: Literal["query", "document"] | None = None,
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
            OverloadedError: too much waits already.
        """
        self.check_limits(texts)
        if not texts:
            raise InputError("expected at least one text, got an empty list")
        whole = self.encoder.dimension
        if dimensions is not None and dimensions > whole:
            raise InputError(f"dimensions must be a whole number from 1 to {whole}, not {dimensions}")
        tokens = await beside(texts, lambda: self.encoder.tokenize(texts, role=role, prompt_name=prompt_name))
        self.accept(tokens, self.encoder.max_length, truncate=truncate)
        rows = await self._batcher.submit(tokens)
        if dimensions is not None and dimensions < whole:
            rows = unit_rows(rows[:, :dimensions])
        return Embedded(rows, sum(map(len, tokens.ids)), tokens.truncated)

    def accept(self, tokens: Tokens, max_length: int, *, truncate: bool | None = None) -> None:
        """Count texts that were cut, or refuse them.

        Raises:
            TextOverflowError: texts are too long and the request, or else the settings, want no cutting.
        """
        wanted = self.settings.on_overflow == "truncate" if truncate is None else truncate
        if tokens.overflowing and not wanted:
            raise TextOverflowError(
                f"{tokens.truncated} of {len(tokens.ids)} texts are longer than {max_length} tokens, the first at "
                f"position {tokens.overflowing[0]}; shorten them, or ask for them to be cut"
            )
        self.metrics.count_truncated(tokens.truncated)


def _card(manifest: Manifest, fingerprint: str) -> dict[str, Any]:
    return {
        "id": manifest.name,
        "object": "model",
        "created": 0,
        "owned_by": "embedkit",
        "dimension": manifest.dimension,
        "max_length": manifest.max_length,
        "fingerprint": fingerprint,
    }


async def beside(texts: Sequence[str], work: Callable[[], Result]) -> Result:
    """Do something with texts at once if they are short, else in a thread."""
    if sum(map(len, texts)) <= _CHARACTERS_AT_ONCE:
        return work()
    return await asyncio.to_thread(work)
