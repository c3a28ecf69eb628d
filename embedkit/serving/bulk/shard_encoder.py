"""A job and its worker, an encoder that turns shards of texts into shards of embeddings, on this machine."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from embedkit.atomic import identity_of
from embedkit.errors import DataError, FingerprintError
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.numerics import warn_of_mixture
from embedkit.runtime.options import EncodeOptions, OnLong, Precision
from embedkit.runtime.pool import EncoderPool
from embedkit.serving.bulk.shards import Shard, check_begun, open_place, read_shard, replaced

EMBEDDING = "embedding"
"""The added column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The settings that every worker needs, as for :meth:`BulkEncoding.prepare`; sent to them.

    Attributes:
        model: argument of `Encoder.load`, on every machine.
        fingerprint: of the model; a worker that loads another one raises an error.
        numerics: of the model where the run started; a worker with other arithmetic logs a warning.
        output: folder or URL of the shards, on every machine.
        columns: columns to keep.
        schema: the types of these and of the texts.
        manifest: the run's description in the output.
    """

    model: str
    fingerprint: str
    numerics: str
    output: Path | str
    text_column: str
    columns: tuple[str, ...]
    schema: pa.Schema
    prompt_name: str | None = None
    truncate_dim: int | None = None
    precision: Precision = "float32"
    on_overflow: OnLong = "truncate"
    threads: int | None = None
    providers: tuple[str, ...] | None = None
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> EncodeOptions:
        """Return the keyword arguments of `Encoder.encode`."""
        return {
            "prompt_name": self.prompt_name,
            "truncate_dim": self.truncate_dim,
            "precision": self.precision,
            "on_overflow": self.on_overflow,
            "show_progress_bar": False,
        }

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that determine the contents of the shards, without place and speed."""
        return {
            "fingerprint": self.fingerprint,
            "text_column": self.text_column,
            "columns": list(self.columns),
            "prompt_name": self.prompt_name,
            "truncate_dim": self.truncate_dim,
            "precision": self.precision,
            "on_overflow": self.on_overflow,
        }


_SCHEMA_KEY = b"embedkit"


class ShardEncoder:
    """Embeds shards one at a time, by the job's model, which may be loaded already. All engines use it.

    A shard is one call of the encoder, so its token batches are the same in every worker. This matters because an
    int8 embedding depends slightly on the other texts of its batch.
    """

    def __init__(self, job: Job, encoder: Encoder | EncoderPool | None = None) -> None:
        self._job = job
        self._encoder = encoder or Encoder.load(job.model, threads=job.threads, providers=job.providers)
        if self._encoder.fingerprint != job.fingerprint:
            raise FingerprintError(
                f"{job.model} is another model here (fingerprint {self._encoder.fingerprint[:12]}) than where the "
                f"work began ({job.fingerprint[:12]}): give all machines the same file"
            )
        self._folder = identity_of(Path(job.output))
        check_begun(job.output, job.manifest)
        warn_of_mixture(job.output, [job.numerics], [self._encoder.numerics])
        about = {
            "model": self._encoder.name,
            "fingerprint": job.fingerprint,
            "numerics": self._encoder.numerics,
        }
        self._metadata = {_SCHEMA_KEY: json.dumps(about)}

    def encode(self, shard: Shard, advance: Callable[[int], None] | None = None) -> int:
        """Embed a shard and write its file to the output folder atomically; return the number of rows.

        ``advance`` is called with the number of newly embedded rows.
        """
        job = self._job
        table = read_shard(shard, job.schema)
        rows = self._embed(_texts(table, shard, job.text_column), advance)
        embeddings = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
        kept = table.select(list(job.columns)).append_column(EMBEDDING, embeddings)
        with (open_place(job.output) / shard.file).written() as temporary:
            parquet.write_table(
                kept.replace_schema_metadata(self._metadata),
                temporary,
                row_group_size=shard.rows,
                use_dictionary=list(job.columns),  # embeddings rarely repeat
                write_statistics=list(job.columns),
            )
            if identity_of(Path(job.output)) != self._folder:
                raise replaced(job.output)
        return shard.rows

    def _embed(self, texts: list[str], advance: Callable[[int], None] | None) -> npt.NDArray[np.generic]:
        chunks = []
        for rows in self._encoder.encode_batches(texts, **self._job.options):
            chunks.append(rows)
            if advance:
                advance(len(rows))
        return np.concatenate(chunks)


def _texts(table: pa.Table, shard: Shard, column: str) -> list[str]:
    texts: list[str] = table[column].to_pylist()
    if table[column].null_count:
        row = shard.first + texts.index(None) + 1  # type: ignore[arg-type]  # it is the null that is looked for
        raise DataError(f"{shard.path}:{row}: {column!r} is null; drop or fill such rows")
    return texts


def encode_shards(
    job: Job,
    shards: Sequence[Shard],
    *,
    encoder: Encoder,
    workers: int | None,
    advance: Callable[[int], None],
) -> None:
    """Run the engine ``local``, whose workers are the processes of an `EncoderPool`."""
    with (
        contextlib.nullcontext(encoder) if workers is None else encoder.pool(workers, threads=job.threads) as model
    ):
        worker = ShardEncoder(job, model)
        for shard in shards:
            worker.encode(shard, advance)
