"""The service: the current registry, and the state that survives its replacement by a reload.

With several workers, each has a service; they ask each other over sockets in a private folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import orjson

from embedkit.errors import EmbedkitError, WorkerError
from embedkit.serving.http.admission import Admission
from embedkit.serving.http.metrics import Metrics, Snapshot
from embedkit.serving.http.registry import LoadedModels, ModelRegistry
from embedkit.serving.http.settings import ServerSettings

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
                fresh = await asyncio.to_thread(self._make_warm)
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
        """Reload here, and then in all other workers, even if the caller is gone meanwhile.

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

    def _make_warm(self) -> ModelRegistry:
        registry = self._make()
        registry.warm_up()
        return registry

    def _close_if_unused(self, registry: ModelRegistry) -> None:
        if registry is not self.registry and not registry.users:
            registry.close()


_LARGEST_BYTES = 2**24


class Peers:
    """Answers questions of other workers, and asks them, by sockets in ``folder``; None if there are none."""

    def __init__(self, folder: Path | None = None, own: int = 0) -> None:
        self.folder, self._own = folder, f"worker-{own}"
        self._server: asyncio.Server | None = None

    async def answer(self, answers: Mapping[str, Callable[[], Awaitable[Any]]]) -> None:
        """Answer questions from now on, each by a function whose result is serialisable as JSON."""
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
