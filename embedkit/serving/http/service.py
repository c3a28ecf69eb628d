"""The service: the current catalogue, and the state that survives its replacement by a reload."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from embedkit.errors import EmbedkitError, WorkerError
from embedkit.serving.http.admission import Admission
from embedkit.serving.http.catalogue import Assets, Catalogue
from embedkit.serving.http.metrics import Metrics, Snapshot
from embedkit.serving.http.settings import ServerSettings
from embedkit.serving.http.siblings import Siblings

logger = logging.getLogger(__name__)


class Service:
    """Leases the current catalogue to requests, and replaces it on demand without losing a request.

    Args:
        settings: limits and permissions.
        load: loads models and collection, now and at each reload.
        siblings: other processes that serve the same socket, if any.

    Attributes:
        settings: as given.
        metrics: counts events.
        admission: admits work.
        draining: whether the server is shutting down.
        siblings: as given.

    Raises:
        EmbedkitError: raised by ``load``.
    """

    def __init__(
        self, settings: ServerSettings, load: Callable[[], Assets], *, siblings: Siblings | None = None
    ) -> None:
        self.settings, self._load = settings, load
        self.siblings = siblings or Siblings()
        self.metrics = Metrics()
        self.admission = admission = Admission(settings.queue_s)
        self.metrics.watch_admission(lambda: admission.held_s)
        self.draining = False
        self._one_reload = asyncio.Lock()
        self._reloading: asyncio.Task[None] | None = None
        self._catalogue = self._make()
        self.metrics.watch_queues(self._catalogue.queues)

    @classmethod
    def load(cls, models: Sequence[str], settings: ServerSettings, *, siblings: Siblings | None = None) -> Self:
        """Load and verify everything, and measure the speed of the models.

        Raises:
            EmbedkitError: as :meth:`Assets.load`.
        """
        weights_folder = None if siblings is None else siblings.folder
        service = cls(settings, lambda: Assets.load(models, settings, weights_folder), siblings=siblings)
        service.catalogue.warm_up()
        return service

    @property
    def catalogue(self) -> Catalogue:
        """The current catalogue; a request uses the one it leases."""
        return self._catalogue

    @contextlib.contextmanager
    def lease(self) -> Iterator[Catalogue]:
        """Lease the current catalogue, which stays open during the block even if a reload replaces it."""
        catalogue = self._catalogue
        catalogue.users += 1
        try:
            yield catalogue
        finally:
            catalogue.users -= 1
            self._close_if_unused(catalogue)

    async def reload(self) -> None:
        """Load models and collection again from the same sources; new requests use the new ones.

        They are loaded and verified while the old ones still answer and finish their requests. A reload that has
        started continues even if its caller is gone.

        Raises:
            EmbedkitError: something cannot be loaded or verified; the old ones stay in use.
        """
        self._reloading = asyncio.get_running_loop().create_task(self._reload())
        await asyncio.shield(self._reloading)

    async def _reload(self) -> None:
        async with self._one_reload:
            try:
                fresh = await asyncio.to_thread(self._make_warm)
            except EmbedkitError as error:
                self.metrics.count_reload("failed")
                logger.error("reload failed, and everything stays as it was: %s", error)  # noqa: TRY400
                raise
            before, self._catalogue = self._catalogue, fresh
            self.metrics.watch_queues(fresh.queues)
            self.metrics.count_reload("done")
            models = {card["id"]: card["fingerprint"][:12] for card in fresh.cards()}
            logger.info("reloaded", extra={"fields": {"models": models}})
            self._close_if_unused(before)

    async def reload_everywhere(self) -> None:
        """Reload here, and then in all other workers.

        Raises:
            EmbedkitError: something cannot be loaded or verified, here or in another worker, which keeps its
                state.
        """
        await self.reload()
        problems = [problem for problem in await self.siblings.ask("reload") if problem]
        if problems:
            raise WorkerError(f"{len(problems)} workers could not reload: {problems[0]}")

    async def metrics_text(self) -> bytes:
        """Return the aggregated metrics of all workers, in Prometheus's text format."""
        return self.metrics.text(await self.siblings.ask("metrics"))

    async def answer_siblings(self) -> None:
        """Answer other workers from now on."""

        async def metrics() -> Snapshot:
            return self.metrics.snapshot()

        async def reload() -> str:
            try:
                await self.reload()
            except EmbedkitError as error:
                return str(error)
            return ""

        await self.siblings.answer({"metrics": metrics, "reload": reload})

    def close(self) -> None:
        """Stop all threads."""
        self._catalogue.close()

    def _make(self) -> Catalogue:
        return Catalogue(self._load(), self.settings, self.metrics, self.admission)

    def _make_warm(self) -> Catalogue:
        catalogue = self._make()
        catalogue.warm_up()
        return catalogue

    def _close_if_unused(self, catalogue: Catalogue) -> None:
        if catalogue is not self._catalogue and not catalogue.users:
            catalogue.close()
