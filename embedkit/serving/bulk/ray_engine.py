"""Ray Data: actors that each hold a model, on one machine or on a cluster; Ray assigns the shards.

Only the bounds of shards pass through Ray. Workers read texts and write embeddings themselves, so Ray's object
store does not hold them, and all machines must see the same paths.
"""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import ray
import ray.data
from ray.exceptions import RayError

from embedkit.errors import EmbedkitError, WorkerError
from embedkit.object_store import location
from embedkit.runtime.encoder import Encoder
from embedkit.serving.bulk.shard_encoder import Job, ShardEncoder
from embedkit.serving.bulk.shards import Shard, resolved

_GPU_PROVIDERS = frozenset({"CUDAExecutionProvider", "TensorrtExecutionProvider", "ROCMExecutionProvider"})
_FIELDS = ("number", "path", "first", "rows", "values")
_Columns = dict[str, Any]


def encode_shards(
    job: Job,
    shards: Sequence[Shard],
    *,
    encoder: Encoder,  # noqa: ARG001 - every actor loads its own
    workers: int | None,
    advance: Callable[[int], None],
) -> None:
    """Run the engine ``ray`` on the connected cluster, or on one that Ray finds or starts.

    An actor uses ``job.threads`` processors (one if None), and a GPU if a provider needs one; by default there are
    as many actors as currently fit on the cluster.
    """
    job = replace(job, output=resolved(job.output), threads=job.threads or 1)
    with _connected(), _quiet():
        needs: dict[str, float] = {"num_cpus": job.threads or 1, "num_gpus": _gpus(job)}
        pool = ray.data.ActorPoolStrategy(size=min(workers or _room(needs), len(shards)))
        places = ray.data.from_items([_place(shard) for shard in shards], override_num_blocks=len(shards))
        finished = places.map_batches(_Actor, fn_constructor_args=(job,), batch_size=1, compute=pool, **needs)
        with _errors_converted():
            for outcome in finished.iter_rows():
                advance(_rows_of(outcome))


class _Actor:
    """A worker in its own process, which loads the model for its first shard.

    Errors of a shard are returned as values: Ray would add a long traceback.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._worker: ShardEncoder | None = None

    def __call__(self, places: _Columns) -> _Columns:
        number, path, first, rows, values = (places[name][0] for name in _FIELDS)
        shard = Shard(int(number), location(str(path)), int(first), int(rows), json.loads(str(values)))
        try:
            self._worker = self._worker or ShardEncoder(self._job)
            done, error = self._worker.encode(shard), b""
        except EmbedkitError as caught:
            done, error = 0, pickle.dumps(caught)
        return {"rows": np.array([done]), "error": np.array([error], dtype=object)}


def _rows_of(outcome: _Columns) -> int:
    if outcome["error"]:
        raise pickle.loads(outcome["error"])  # noqa: S301 - from our worker, by the way Ray itself takes
    return int(outcome["rows"])


def _place(shard: Shard) -> _Columns:
    return {
        "number": shard.number,
        "path": str(resolved(shard.path)),
        "first": shard.first,
        "rows": shard.rows,
        "values": json.dumps(shard.values),  # files differ in them
    }


def _gpus(job: Job) -> int:
    return int(bool(_GPU_PROVIDERS & set(job.providers or ())))


def _room(needs: dict[str, float]) -> int:
    """Return the number of workers that fit on the cluster; at least one, for which Ray may have to wait."""
    has = ray.cluster_resources()
    fits = [
        has.get(name, 0) // needs[key] for name, key in (("CPU", "num_cpus"), ("GPU", "num_gpus")) if needs[key]
    ]
    return max(1, int(min(fits)))


@contextlib.contextmanager
def _connected() -> Iterator[None]:
    """Connect to a cluster; an existing connection is kept open."""
    if ray.is_initialized():
        yield
        return
    ray.init(include_dashboard=False, logging_level=logging.ERROR)  # warnings of workers are still shown
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Show only errors of Ray Data, because progress is shown by embedkit."""
    context, log = ray.data.DataContext.get_current(), logging.getLogger("ray.data")
    bars, level = context.enable_progress_bars, log.level
    context.enable_progress_bars = False
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        context.enable_progress_bars = bars
        log.setLevel(level)


@contextlib.contextmanager
def _errors_converted() -> Iterator[None]:
    try:
        yield
    except RayError as error:
        raise WorkerError(f"Ray could not finish the work: {error}") from error
