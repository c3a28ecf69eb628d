"""Engines: who works on the shards. One module each, imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from embedkit.errors import InputError
from embedkit.extras import require
from embedkit.runtime.encoder import Encoder
from embedkit.serving.bulk.job import Job
from embedkit.serving.bulk.parquet_input import Shard

__all__ = ["ENGINES", "Engine", "find_engine"]

# name -> module, whose `encode_shards` is the engine, and the extra that brings what it imports
ENGINES: Final = {
    "local": ("embedkit.serving.bulk.local_engine", "bulk"),
    "ray": ("embedkit.serving.bulk.ray_engine", "ray"),
}


class Engine(Protocol):
    """Makes every shard of a list, in any order."""

    def __call__(
        self,
        job: Job,
        shards: Sequence[Shard],
        /,
        *,
        encoder: Encoder,
        workers: int | None,
        advance: Callable[[int], None],
    ) -> None:
        """Work until all is done.

        Args:
            job: what to do.
            shards: what to do it on.
            encoder: the job's model, loaded in this process.
            workers: processes that work side by side; the engine chooses if None.
            advance: called with a number of rows whenever so many more are embedded.

        Raises:
            EmbedkitError: what ended the work, as `ShardEncoder` raises it. Finished shards stay.
        """


def find_engine(name: str) -> Engine:
    """The engine of that name.

    Raises:
        InputError: there is no such engine.
        MissingExtraError: it needs a package that is not installed.
    """
    if name not in ENGINES:
        raise InputError(f"there is no engine {name!r}; the engines are {', '.join(ENGINES)}")
    module, extra = ENGINES[name]
    return cast(Engine, require(module, extra=extra).encode_shards)
