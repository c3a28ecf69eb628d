"""The engine for this machine: one shard after another, each by this process or by several that share it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from embedkit.runtime.encoder import Encoder
from embedkit.serving.bulk.job import Job
from embedkit.serving.bulk.parquet_input import Shard
from embedkit.serving.bulk.shard_encoder import ShardEncoder


def encode_shards(
    job: Job,
    shards: Sequence[Shard],
    *,
    encoder: Encoder,
    workers: int | None,
    advance: Callable[[int], None],
) -> None:
    """Run the engine ``local``, whose workers are the processes of an `EncoderPool`.

    Raises:
        InputError: ``workers`` is not a positive integer.
        EmbedkitError: as raised by `ShardEncoder.encode`.
    """
    with (
        contextlib.nullcontext(encoder) if workers is None else encoder.pool(workers, threads=job.threads) as model
    ):
        worker = ShardEncoder(job, model)
        for shard in shards:
            worker.encode(shard, advance)
