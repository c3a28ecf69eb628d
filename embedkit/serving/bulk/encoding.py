"""Bulk encoding: preparation, cost, engines and execution."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

import pyarrow as pa

from embedkit.atomic import expanded
from embedkit.errors import DataError, InputError, shown
from embedkit.extras import require
from embedkit.object_store import is_url
from embedkit.parquet_files import join_schemas
from embedkit.progress import Progress
from embedkit.runtime.arguments import (
    check_count,
    check_names,
    check_path,
    check_progress,
    check_text,
    check_whole,
)
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.find import absolute_source
from embedkit.runtime.options import OnLong, Precision
from embedkit.serving.bulk.shard_encoder import EMBEDDING, Job
from embedkit.serving.bulk.shards import (
    ParquetInput,
    Shard,
    begin_or_resume,
    check_output,
    cut_into_shards,
    find_inputs,
    read_shard,
    unfinished,
)
from embedkit.threads import most_processes

_ROWS_PER_SHARD = 32_768
_SAMPLE_ROWS = 512
_WARM_UP_ROWS = 64  # the first call is always slower


@dataclass(frozen=True, slots=True)
class Cost:
    """The remaining work.

    Attributes:
        rows: number of texts to embed.
        shards: number of files to write.
        bytes: size of the embeddings to write, without the other columns.
        seconds_per_row: of one worker with the threads of this process, measured on a sample.
    """

    rows: int
    shards: int
    bytes: int
    seconds_per_row: float


class BulkEncoding:
    """Embeds Parquet files shard by shard into a folder, skipping shards that exist.

    Created by :meth:`prepare`, which checks everything that can be checked in advance::

        encoding = BulkEncoding.prepare("pages/", "embedded/", model="tiny")
        encoding.cost()
        encoding.run(engine="ray")

    Attributes:
        job: the settings that every worker needs.
        shards: the shards of the inputs.
    """

    def __init__(self, job: Job, inputs: Sequence[ParquetInput], rows_per_shard: int, encoder: Encoder) -> None:
        self.shards = cut_into_shards(inputs, rows_per_shard)
        self._encoder = encoder
        self._form = encoder.encode([], **job.options)
        manifest = {
            "model": encoder.name,
            "numerics": [encoder.numerics],
            **job.settings,
            "rows_per_shard": rows_per_shard,
            "inputs": [
                {"name": file.name, "rows": file.rows, "bytes": file.bytes, "footer_sha256": file.footer}
                for file in inputs
            ],
        }
        self.job = replace(job, manifest=manifest)

    @classmethod
    def prepare(
        cls,
        source: str | os.PathLike[str],
        output: str | os.PathLike[str],
        *,
        model: str | os.PathLike[str],
        text_column: str = "text",
        columns: Sequence[str] | None = None,
        rows_per_shard: int = _ROWS_PER_SHARD,
        prompt_name: str | None = None,
        truncate_dim: int | None = None,
        precision: Precision = "float32",
        on_overflow: OnLong = "truncate",
        threads: int | None = None,
        providers: Sequence[str] | None = None,
    ) -> BulkEncoding:
        """Check the inputs and the model, without writing anything.

        Args:
            source: a Parquet file, a folder of them, or a pattern (see :func:`find_inputs`).
            output: folder of the shards, or its URL in an object store: new, empty, or from a run with the same
                arguments. Shards of other arithmetic (:attr:`embedkit.Encoder.numerics`) are kept, and a
                warning is logged.
            model: as for :meth:`Encoder.load`; for engines on several machines, a path that all of them can read.
            text_column: column of the texts.
            columns: columns to keep; None keeps all, including the texts.
            rows_per_shard: number of rows that are embedded together and written to one file; a worker holds one
                shard in memory.
            prompt_name: name of one of the model's prompts, prepended to every text.
            truncate_dim: number of leading dimensions to keep.
            precision: as for :meth:`Encoder.encode`.
            on_overflow: how to treat a text that is too long.
            threads: number of threads of a worker.
            providers: ONNX Runtime execution providers; None uses the CPU.

        Raises:
            DataError: ``source`` has no Parquet files, no rows, or lacks the columns.
            InputError: an argument is invalid or unsuitable for the model, or the folder belongs to another run.
            ModelNotFoundError, BundleError, ModelError, ProviderError: the model cannot be loaded.
            FingerprintError: the folder contains embeddings of another model.
            CollectionError: the folder contains something else.
        """
        source, output = check_path(source, "source"), check_path(output, "output")
        rows_per_shard = check_whole(rows_per_shard, "rows_per_shard")
        inputs = find_inputs(source)
        kept, schema = _checked_columns(
            inputs,
            check_text(text_column, "text_column"),
            None if columns is None else check_names(columns, "columns"),
        )
        if not any(file.rows for file in inputs):
            raise DataError(f"{', '.join(str(file.path) for file in inputs[:3])}: there are no rows to embed")
        folder = str(output) if is_url(output) else expanded(output)
        _check_apart(source, folder)
        encoder = Encoder.load(model, threads=threads, providers=providers)
        job = Job(
            model=absolute_source(model),
            fingerprint=encoder.fingerprint,
            numerics=encoder.numerics,
            output=folder,
            text_column=text_column,
            columns=kept,
            schema=schema,
            prompt_name=prompt_name,
            truncate_dim=None if truncate_dim is None else check_whole(truncate_dim, "truncate_dim"),
            precision=precision,
            on_overflow=on_overflow,
            threads=check_count(threads, "threads"),
            providers=None if providers is None else tuple(providers),
        )
        encoding = cls(job, inputs, rows_per_shard, encoder)
        check_output(folder, encoding.job.manifest)
        return encoding

    @property
    def rows(self) -> int:
        """Number of rows of all inputs."""
        return sum(shard.rows for shard in self.shards)

    @property
    def encoder(self) -> Encoder:
        """The model, loaded in this process."""
        return self._encoder

    def left(self) -> list[Shard]:
        """Return the shards that do not exist yet, or are damaged."""
        return unfinished(self.job.output, self.shards)

    def cost(self) -> Cost:
        """Return the remaining work, with the speed measured on a few hundred of its texts.

        Raises:
            DataError: the first shard cannot be read.
        """
        left = self.left()
        rows = sum(shard.rows for shard in left)
        row_bytes = self._form.shape[1] * self._form.itemsize
        return Cost(rows, len(left), rows * row_bytes, self._seconds_per_row(left[0]) if left else 0.0)

    def run(
        self, *, engine: str = "local", workers: int | None = None, show_progress_bar: bool | None = None
    ) -> int:
        """Create the shards that do not exist yet, or are damaged.

        Args:
            engine: ``"local"``, this machine, or ``"ray"``.
            workers: number of parallel processes; by default this one, or with ``"ray"`` as many as fit.
            show_progress_bar: None shows progress on a terminal only, and logs it elsewhere.

        Returns:
            the number of rows embedded by this call.

        Raises:
            FingerprintError: a worker loads another model.
            InputError: the engine does not exist, or ``workers`` is not a positive integer.
            CollectionError: another process is writing to the folder.
            DataError: an input cannot be read, or a text is null.
            TextOverflowError: a text is too long and ``on_overflow`` refuses it.
            MissingExtraError: the engine needs a package that is not installed.
            WorkerError: the engine itself failed. Finished shards are kept, as with every other error.
            StorageError: the disk is full or the folder cannot be written.
        """
        encode_shards, shows = find_engine(engine), check_progress(show_progress_bar)
        workers = check_count(workers, "workers", most=most_processes() if engine == "local" else None)
        with begin_or_resume(self.job.output, self.job.manifest):
            left = unfinished(self.job.output, self.shards, warn=True)
            rows = sum(shard.rows for shard in left)
            with Progress("encode", rows, unit="texts", enabled=shows) as progress:
                if left:
                    encode_shards(self.job, left, encoder=self._encoder, workers=workers, advance=progress.advance)
        return rows

    def _seconds_per_row(self, shard: Shard) -> float:
        sample = replace(shard, rows=min(_SAMPLE_ROWS, shard.rows))
        schema = pa.schema([self.job.schema.field(self.job.text_column)])
        texts = read_shard(sample, schema)[self.job.text_column].drop_null().to_pylist()
        encoder, prompt_name = self._encoder, self.job.prompt_name
        encoder.encode_tokens(encoder.tokenize(texts[:_WARM_UP_ROWS], prompt_name=prompt_name))
        started = time.perf_counter()
        encoder.encode_tokens(encoder.tokenize(texts, prompt_name=prompt_name))
        return (time.perf_counter() - started) / max(1, len(texts))


def _checked_columns(
    inputs: Sequence[ParquetInput], text_column: str, columns: Sequence[str] | None
) -> tuple[tuple[str, ...], pa.Schema]:
    """Return the columns to keep, and the types of these and the texts, after checking that all exist."""
    path = inputs[0].path
    wanted = None if columns is None else (text_column, *columns)
    schema = join_schemas(((file.path, file.schema, file.values) for file in inputs), wanted)
    kept = tuple(schema.names if columns is None else dict.fromkeys(columns))
    for name in (text_column, *kept):
        if name not in schema.names:
            there = dict.fromkeys(name for file in inputs for name in (*file.schema.names, *file.values))
            raise DataError(f"{path}: there is no column {name!r}; there are {', '.join(there)}")
    if EMBEDDING in kept:
        raise InputError(f"{path} already has a column {EMBEDDING!r}; leave it out of the columns to keep")
    for file in inputs:
        if text_column not in file.schema.names:
            raise DataError(f"{file.path}: there is no column {text_column!r}, unlike in {path}")
    if not _holds_texts(schema.field(text_column).type):
        raise DataError(f"{path}: {text_column!r} should be texts, not {schema.field(text_column).type}")
    return kept, schema


def _holds_texts(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _check_apart(source: str | os.PathLike[str], output: Path | str) -> None:
    if is_url(source) or isinstance(output, str):
        inner, outer = (f"{str(place).rstrip('/')}/" for place in (output, source))
        if inner.startswith(outer):
            raise InputError(f"{output} is inside the input {source}; choose another folder")
        return
    folder = expanded(source)
    if folder.is_dir() and output.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{output} is inside the input {folder}; choose another folder")
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; choose a folder")


# Name -> module, and the extra with its dependencies. `encode_shards` of the module creates all shards of a list,
# in any order and in a number of processes, and calls `advance` with the number of newly embedded rows.
ENGINES: Final = {
    "local": ("embedkit.serving.bulk.shard_encoder", "bulk"),
    "ray": ("embedkit.serving.bulk.ray_engine", "ray"),
}


def find_engine(name: str) -> Callable[..., None]:
    """Return the engine with this name; InputError or MissingExtraError if there is none."""
    if not isinstance(name, str) or name not in ENGINES:
        raise InputError(f"there is no engine {shown(name)}; the engines are {', '.join(ENGINES)}")
    module, extra = ENGINES[name]
    return cast(Callable[..., None], require(module, extra=extra).encode_shards)
