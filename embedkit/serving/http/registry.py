"""The models of a server by name and its collection, and the service that replaces them when they are reloaded.

With several workers, each has a service; they ask each other over sockets in a private folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import orjson

from embedkit.errors import ConfigError, EmbedkitError, InputError, ModelError, ModelNotFoundError, WorkerError
from embedkit.protocols import FloatArray
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.model import Verification
from embedkit.runtime.tokenization import Tokens
from embedkit.serving.http.admission import Admission, Rate
from embedkit.serving.http.batcher import Batcher, BatchReport
from embedkit.serving.http.collection_service import CollectionService
from embedkit.serving.http.embedding import CosineRanker, CrossRanker, Embedder, Limits
from embedkit.serving.http.metrics import Metrics, Snapshot
from embedkit.serving.http.settings import ServerSettings
from embedkit.serving.retrieval.collection import Collection
from embedkit.serving.retrieval.models import recorded_model

_TOKENS_TO_LEARN_FROM = 256  # in smaller batches, tokens do not dominate the time


@dataclass(frozen=True, slots=True)
class LoadedModels:
    """Loaded models, the first of which is the default, and the collection, opened with encoders among these.

    ``given`` has pairs of the name or path under which a model was given, and its own name.
    """

    encoders: Sequence[Encoder]
    reranker: CrossEncoder | None = None
    collection: Collection | None = None
    given: Sequence[tuple[str, str]] = ()

    @classmethod
    def load(cls, models: Sequence[str], settings: ServerSettings) -> Self:
        """Load everything, and verify each model against the golden texts of its bundle.

        Without models, the collection's own model of queries is loaded.
        """
        options: dict[str, Any] = {"threads": settings.threads}
        encoders = [Encoder.load(model, **options) for model in models]
        if not encoders and settings.collection:
            info = Collection.describe(settings.collection)
            encoders.append(recorded_model(info.queries or info, **options))
        reranker = CrossEncoder.load(settings.reranker, **options) if settings.reranker else None
        collection = _open(settings.collection, encoders) if settings.collection else None
        for loaded in (*encoders, reranker):
            if loaded is not None and loaded.has_golden:
                _check_verification(loaded.name, loaded.verify())
        given = [(name, encoder.name) for name, encoder in zip(models, encoders, strict=False)]
        if reranker is not None and settings.reranker is not None:
            given.append((settings.reranker, reranker.name))
        return cls(encoders, reranker, collection, given)


class ModelRegistry:
    """The models and the collection that answer requests. It is immutable: a reload creates another one.

    Each model answers to its own name, to its aliases, and to the name or path under which it was given.

    Attributes:
        cross: the cross-encoder, if any.
        users: number of requests in progress that use the registry.
        queues: name of each model -> function that counts the tokens waiting for a batch.
    """

    def __init__(
        self, loaded: LoadedModels, settings: ServerSettings, metrics: Metrics, admission: Admission
    ) -> None:
        self.settings, self._metrics, self._admission = settings, metrics, admission
        self.users = 0
        self.limits = limits = Limits(settings, metrics)
        self.queues: dict[str, Callable[[], int]] = {}
        models: list[Encoder | CrossEncoder] = [*loaded.encoders]
        models += [loaded.reranker] if loaded.reranker else []
        self._cards = {model.name: _card(model) for model in models}
        if len(self._cards) < len(models):
            twice = next(name for name, count in Counter(model.name for model in models).items() if count > 1)
            raise ConfigError(f"two models are named {twice!r}, so clients could not choose between them")
        self._embedders = {
            encoder.name: Embedder(encoder, limits, admission, self._make_batcher) for encoder in loaded.encoders
        }
        self.cross: CrossRanker | None = None
        if loaded.reranker is not None:
            self.cross = CrossRanker(loaded.reranker, limits, admission, self._make_batcher)
        self._aliases = _given_names(loaded.given, self._cards) | _aliases(settings.aliases, list(self._cards))
        self.collection: CollectionService | None = None
        if (collection := loaded.collection) is not None:
            embedder = next(one for one in self._embedders.values() if one.encoder is collection.query_encoder)
            self.collection = CollectionService(
                collection, embedder, self.cross, limits, admission, settings.refresh_s
            )

    def embedder(self, name: str | None = None) -> Embedder:
        """Return the model with this name or alias, or the default one; ModelNotFoundError if there is none."""
        real = self._real_name(name)
        if real is None:
            return next(iter(self._embedders.values()))
        if real not in self._embedders:
            raise self._missing(name, list(self._embedders))
        return self._embedders[real]

    def ranker(self, name: str | None = None) -> CrossRanker | CosineRanker:
        """Return the cross-encoder or, by cosine, an encoder with this name or alias; by default the former."""
        real = self._real_name(name)
        if self.cross is not None and real in {None, self.cross.manifest.name}:
            return self.cross
        if real is not None and real not in self._embedders:
            raise self._missing(name, list(self._cards))
        return CosineRanker(self.embedder(real), self.limits, self._admission)

    def needed_collection(self) -> CollectionService:
        """Return the collection; InputError if the server has none."""
        if self.collection is None:
            raise InputError("this server has no collection; an operator can add one with --collection")
        return self.collection

    def cards(self) -> list[dict[str, Any]]:
        """Return the content of ``/v1/models``."""
        return list(self._cards.values())

    def card(self, name: str) -> dict[str, Any]:
        """Return the content of ``/v1/models/NAME``; ModelNotFoundError if there is no such model."""
        real = self._real_name(name)
        if real is None:
            return self._cards[self.embedder().encoder.name]
        if real not in self._cards:
            raise self._missing(name, list(self._cards))
        return self._cards[real]

    def warm_up(self) -> None:
        """Measure the speed of the models; call this before accepting requests."""
        for embedder in self._embedders.values():
            embedder.warm_up()

    def close(self) -> None:
        """Stop all threads."""
        for part in (*self._embedders.values(), self.cross, self.collection):
            if part is not None:
                part.close()

    def _real_name(self, name: str | None) -> str | None:
        """Resolve an alias; None means the default model."""
        return self._aliases.get(name, name) if name is not None else None

    def _missing(self, name: str | None, there: list[str]) -> ModelNotFoundError:
        return ModelNotFoundError(
            f"there is no model {name!r:.80}; this server has {', '.join(map(repr, there))} "
            "(an operator can add other names with the setting aliases)"
        )

    def _make_batcher(self, model: str, run: Callable[[Tokens], FloatArray], rate: Rate) -> Batcher:
        count = self._metrics.batch_reporter(model)

        def report(batch: BatchReport) -> None:
            count(batch)
            if batch.tokens >= _TOKENS_TO_LEARN_FROM:
                rate.learn(batch.tokens, batch.seconds)

        batcher = Batcher(
            run, batch_tokens=self.settings.batch_tokens, max_wait_ms=self.settings.max_wait_ms, report=report
        )
        self.queues[model] = lambda: batcher.waiting_tokens
        return batcher


def _open(path: str, encoders: Sequence[Encoder]) -> Collection:
    """Open a collection with the models that embedded its documents and that embed its queries, as far as loaded.

    Without either, the default model must be a student of the one that embedded its documents.
    """
    info = Collection.describe(path)
    here = {encoder.fingerprint: encoder for encoder in encoders}
    builder = here.get(info.fingerprint)
    queries = here.get(info.queries.fingerprint) if info.queries else None
    if builder is None and queries is None:
        queries = encoders[0]
    return Collection.open(path, encoder=builder, queries=queries)


def _given_names(given: Sequence[tuple[str, str]], names: Container[str]) -> dict[str, str | None]:
    """Return the model of each name or path, and of the name of its file, under which no other model is known."""
    found: dict[str, set[str]] = {}
    for path, name in given:
        for meant in {path, Path(path).name, Path(path).stem}:
            found.setdefault(meant, set()).add(name)
    return {meant: min(models) for meant, models in found.items() if len(models) == 1 and meant not in names}


def _aliases(aliases: Sequence[str], names: Sequence[str]) -> dict[str, str | None]:
    """Return the model name of each alias, or None for the default model, the first one."""
    targets: dict[str, str | None] = {}
    meant = dict(zip(names, names, strict=True))
    for alias in aliases:
        name, equals, model = alias.partition("=")
        if equals and model not in names:
            raise ConfigError(
                f"aliases: {alias!r} names an unknown model; this server has {', '.join(sorted(names))}"
            )
        meaning = model if equals else names[0]
        if meant.setdefault(name, meaning) != meaning:
            raise ConfigError(f"aliases: {name!r} would be the name of two models; choose another one")
        targets[name] = model if equals else None
    return targets


def _check_verification(name: str, verification: Verification) -> None:
    if not verification["passed"]:
        raise ModelError(
            f"{name} computes other results on this machine than where it was exported (difference "
            f"{verification['difference']:.2g}, tolerance {verification['tolerance']:.2g}"
            f"{', other bits than recorded' if verification['same_bits'] is False else ''}); see `embedkit doctor`"
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
        "numerics": model.numerics,
    }


logger = logging.getLogger(__name__)


class Service:
    """Leases the current registry to requests, and replaces it on demand without losing a request.

    ``load`` loads models and collection, now and at each reload.

    Attributes:
        registry: the current registry; a request uses the one it leases.
        draining: whether the server is shutting down.
    """

    def __init__(
        self, settings: ServerSettings, load: Callable[[], LoadedModels], *, peers: Peers | None = None
    ) -> None:
        self.settings, self._load = settings, load
        self.peers = peers or Peers()
        self.metrics = Metrics()
        self.admission = admission = Admission(settings.queue_s)
        self.metrics.watch_admission(lambda: admission.reserved_s)
        self.draining = False
        self._one_reload = asyncio.Lock()
        self._reloading: asyncio.Task[Exception | None] | None = None
        self.registry = self._make()
        self.metrics.watch_queues(self.registry.queues)

    @classmethod
    def load(cls, models: Sequence[str], settings: ServerSettings, *, peers: Peers | None = None) -> Self:
        """Load and verify everything, as :meth:`LoadedModels.load`, and measure the speed of the models."""
        service = cls(settings, lambda: LoadedModels.load(models, settings), peers=peers)
        service.registry.warm_up()
        return service

    @contextlib.contextmanager
    def lease(self) -> Iterator[ModelRegistry]:
        """Lease the current registry, which stays open during the block even if a reload replaces it."""
        registry = self.registry
        registry.users += 1
        try:
            yield registry
        finally:
            registry.users -= 1
            self._close_if_unused(registry)

    async def reload(self) -> Exception | None:
        """Load models and collection again from the same sources; new requests use the new ones.

        They are loaded and verified while the old ones still answer and finish their requests. If that fails, the
        old ones stay in use, and the error is logged and returned.
        """
        async with self._one_reload:
            try:
                fresh = await asyncio.to_thread(self._make)
                await asyncio.to_thread(fresh.warm_up)
            except Exception as error:
                self.metrics.count_reload("failed")
                fault = None if isinstance(error, EmbedkitError) else error  # a traceback for faults only
                logger.error(  # noqa: TRY400
                    "reload failed; the previous models and collection remain in use: %s", error, exc_info=fault
                )
                return error
            before, self.registry = self.registry, fresh
            self.metrics.watch_queues(fresh.queues)
            self.metrics.count_reload("done")
            models = {card["id"]: card["fingerprint"][:12] for card in fresh.cards()}
            logger.info("reloaded", extra={"fields": {"models": models}})
            self._close_if_unused(before)
            return None

    async def reload_everywhere(self) -> None:
        """Reload here, and then in all other workers, even if the caller has disconnected.

        Raises the error of :meth:`reload`, or a WorkerError if another worker keeps its state.
        """
        self._reloading = asyncio.get_running_loop().create_task(self._reload_everywhere())
        error = await asyncio.shield(self._reloading)
        if error is not None:
            raise error

    async def _reload_everywhere(self) -> Exception | None:
        error = await self.reload()
        if error is not None:
            return error
        problems = [problem for problem in await self.peers.ask("reload") if problem]
        return WorkerError(f"{len(problems)} workers could not reload: {problems[0]}") if problems else None

    async def metrics_text(self) -> bytes:
        """Return the aggregated metrics of all workers, in Prometheus's text format."""
        return self.metrics.text(await self.peers.ask("metrics"))

    async def answer_siblings(self) -> None:
        """Answer other workers from now on."""

        async def metrics() -> Snapshot:
            return self.metrics.snapshot()

        async def reload() -> str:
            error = await self.reload()
            return "" if error is None else str(error) or type(error).__name__

        await self.peers.answer({"metrics": metrics, "reload": reload})

    def close(self) -> None:
        """Stop all threads."""
        self.registry.close()

    def _make(self) -> ModelRegistry:
        return ModelRegistry(self._load(), self.settings, self.metrics, self.admission)

    def _close_if_unused(self, registry: ModelRegistry) -> None:
        if registry is not self.registry and not registry.users:
            registry.close()


_LARGEST_BYTES = 2**24


class Peers:
    """Exchanges requests with other workers by sockets in ``folder``; None if there are none."""

    def __init__(self, folder: Path | None = None, own: int = 0) -> None:
        self.folder, self._own = folder, f"worker-{own}"
        self._server: asyncio.Server | None = None

    async def answer(self, answers: Mapping[str, Callable[[], Awaitable[Any]]]) -> None:
        """Answer requests from now on, each by a function whose result is serialisable as JSON."""
        if self.folder is None:
            return

        async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, EOFError):
                question = (await reader.readuntil()).decode().strip()
                writer.write(orjson.dumps(await answers[question]()))
                await writer.drain()
            writer.close()

        path = self.folder / self._own
        path.unlink(missing_ok=True)  # left by the worker that this one replaces
        self._server = await asyncio.start_unix_server(respond, path)

    async def ask(self, question: str) -> list[Any]:
        """Return the answers of all other running workers."""
        if self.folder is None:
            return []
        others = [path for path in sorted(self.folder.glob("worker-*")) if path.name != self._own]
        answers = await asyncio.gather(*(_ask(path, question) for path in others))
        return [answer for answer in answers if answer is not None]

    def close(self) -> None:
        """Stop answering."""
        if self._server is not None and self.folder is not None:
            self._server.close()
            (self.folder / self._own).unlink(missing_ok=True)


async def _ask(path: Path, question: str) -> Any:
    """Return one worker's answer; None if it has exited."""
    try:
        reader, writer = await asyncio.open_unix_connection(path, limit=_LARGEST_BYTES)
        writer.write(f"{question}\n".encode())
        content = await reader.read()
        writer.close()
    except OSError:
        return None
    return orjson.loads(content) if content else None
