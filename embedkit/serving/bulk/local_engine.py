"""This process: one shard after the other, on all its threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embedkit.errors import InputError
from embedkit.runtime.encoder import Encoder
from embedkit.serving.bulk.job import Job
from embedkit.serving.bulk.parquet_input import Shard
from embedkit.serving.bulk.shard_encoder import ShardEncoder

__all__ = ["encode_shards"]


def encode_shards(
    job: Job,
    shards: Sequence[Shard],
    *,
    encoder: Encoder,
    workers: int | None,
    advance: Callable[[int], None],
) -> None:
    """The engine ``local``.

    Raises:
        InputError: several workers are asked for.
        EmbedkitError: as `ShardEncoder.encode`.
    """
    if workers not in (None, 1):
        raise InputError(f"the engine local is one worker, not {workers}; give it threads, or take the engine ray")
    worker = ShardEncoder(job, encoder)
    for shard in shards:
        worker.encode(shard, advance)
