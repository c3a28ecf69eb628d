"""What a server serves: its models and its collection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from embedkit.errors import InputError, ModelError, ModelNotFoundError
from embedkit.protocols import FloatArray
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.engine import Verification
from embedkit.runtime.tokenization import Tokens
from embedkit.serving.http.admission import Admission, Rate
from embedkit.serving.http.batcher import Batcher, BatchReport
from embedkit.serving.http.embedding import Embedder, Gate
from embedkit.serving.http.library import Library
from embedkit.serving.http.metrics import Metrics
from embedkit.serving.http.ranking import CosineRanker, CrossRanker, Ranker
from embedkit.serving.http.settings import ServerSettings
from embedkit.serving.retrieval.collection import Collection

__all__ = ["Service"]

_TOKENS_TO_LEARN_FROM = 256  # the time of a smaller batch is not that of its tokens


class Service:
    """The models and the collection of a server, and what it may do with them.

    Attributes:
        encoder: the model that embeds.
        reranker: the model that scores pairs, if there is one.
        settings: limits and permissions.
        metrics: counts what happens.
        gate: what texts have to pass.
        admission: what work has to pass.
        embedder: embeds texts of many requests together.
        ranker: ranks texts: the cross-encoder if there is one, else the encoder.
        library: the collection, if there is one.
        draining: whether the server was told to end.
    """

    def __init__(
        self,
        encoder: Encoder,
        settings: ServerSettings,
        *,
        reranker: CrossEncoder | None = None,
        collection: Collection | None = None,
    ) -> None:
        self.encoder, self.reranker, self.settings = encoder, reranker, settings
        self.metrics = Metrics()
        self.gate = gate = Gate(settings, self.metrics)
        self.admission = admission = Admission(settings.queue_s)
        self.metrics.watch_admission(lambda: admission.held_s)
        self.embedder = Embedder(encoder, gate, admission, self._make_batcher)
        self._cross = None if reranker is None else CrossRanker(reranker, gate, admission, self._make_batcher)
        self.ranker: Ranker = self._cross or CosineRanker(self.embedder, gate, admission)
        self.library = (
            None
            if collection is None
            else Library(collection, self.embedder, self._cross, admission, settings.refresh_s)
        )
        self.draining = False

    @classmethod
    def load(cls, model: str, settings: ServerSettings) -> Self:
        """Load models and collection, and check them.

        Raises:
            ModelError: this machine computes something else than the one that made a bundle; says how far off.
            EmbedkitError: something cannot be loaded.
        """
        encoder = Encoder.load(model, threads=settings.threads)
        reranker = CrossEncoder.load(settings.reranker, threads=settings.threads) if settings.reranker else None
        collection = Collection.open(settings.collection, queries=encoder) if settings.collection else None
        for loaded in (encoder, reranker):
            if loaded is not None and loaded.has_golden:
                check_verification(loaded.name, loaded.verify())
        service = cls(encoder, settings, reranker=reranker, collection=collection)
        service.embedder.warm_up()
        return service

    def cards(self) -> list[dict[str, Any]]:
        """What ``/v1/models`` tells."""
        return [_card(model) for model in (self.encoder, self.reranker) if model is not None]

    def card(self, name: str) -> dict[str, Any]:
        """What ``/v1/models/NAME`` tells.

        Raises:
            ModelNotFoundError: there is no such model.
        """
        for card in self.cards():
            if card["id"] == name:
                return card
        self.check_model(name, self.encoder.name)
        return _card(self.encoder)

    def check_model(self, name: str | None, model: str) -> None:
        """Refuse to answer for a model that is not here.

        Args:
            name: what the client asks for, or None.
            model: the one that would answer.

        Raises:
            ModelNotFoundError: says which one is.
        """
        if name is not None and name not in {model, *self.settings.aliases}:
            raise ModelNotFoundError(
                f"there is no model {name!r:.80} here; this server has {model!r} "
                "(an operator can add names for it with aliases)"
            )

    def needed_library(self) -> Library:
        """The collection.

        Raises:
            InputError: the server has none.
        """
        if self.library is None:
            raise InputError("this server has no collection; an operator can give it one with --collection")
        return self.library

    def close(self) -> None:
        """Let all threads end."""
        for part in (self.embedder, self._cross, self.library):
            if part is not None:
                part.close()

    def _make_batcher(self, model: str, run: Callable[[Tokens], FloatArray], rate: Rate) -> Batcher:
        tell = self.metrics.batch_reporter(model)

        def report(batch: BatchReport) -> None:
            tell(batch)
            if batch.tokens >= _TOKENS_TO_LEARN_FROM:
                rate.learn(batch.tokens, batch.seconds)

        batcher = Batcher(
            run, batch_tokens=self.settings.batch_tokens, max_wait_ms=self.settings.max_wait_ms, report=report
        )
        self.metrics.watch_queue(model, lambda: batcher.waiting_tokens)
        return batcher


def check_verification(name: str, found: Verification) -> None:
    """Refuse a model that computes something else here.

    Raises:
        ModelError: says how far off it is.
    """
    if not found["passed"]:
        raise ModelError(
            f"{name} gives other results here than where it was made (off by {found['difference']:.2g}, allowed "
            f"{found['tolerance']:.2g}); see `embedkit doctor`"
        )


def _card(model: Encoder | CrossEncoder) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "embedkit",
        "kind": model.manifest.kind,
        "dimension": model.manifest.dimension,
        "max_length": model.max_length,
        "fingerprint": model.fingerprint,
    }
