"""Engines, which distribute shards to workers. Each is a module that is imported on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from embedkit.errors import InputError
from embedkit.extras import require
from embedkit.runtime.arguments import shown
from embedkit.runtime.encoder import Encoder
from embedkit.serving.bulk.job import Job
from embedkit.serving.bulk.parquet_input import Shard

# name -> module, whose `encode_shards` is the engine, and the extra that installs its dependencies
ENGINES: Final = {
    "local": ("embedkit.serving.bulk.local_engine", "bulk"),
    "ray": ("embedkit.serving.bulk.ray_engine", "ray"),
}


class Engine(Protocol):
    """Creates every shard of a list, in any order."""

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
        """Create all shards.

        Args:
            job: the settings.
            shards: the shards to create.
            encoder: the job's model, loaded in this process.
            workers: number of parallel processes; None lets the engine choose.
            advance: called with the number of newly embedded rows.

        Raises:
            EmbedkitError: as raised by `ShardEncoder`. Finished shards are kept.
        """


def find_engine(name: str) -> Engine:
    """Return the engine with this name.

    Raises:
        InputError: the engine does not exist.
        MissingExtraError: it requires a package that is not installed.
    """
    if not isinstance(name, str) or name not in ENGINES:
        raise InputError(f"there is no engine {shown(name)}; the engines are {', '.join(ENGINES)}")
    module, extra = ENGINES[name]
    return cast(Engine, require(module, extra=extra).encode_shards)
