"""Documents in Parquet files with a column of embeddings, such as shards of `embedkit encode`. Needs pyarrow."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import operator
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pyarrow import fs, parquet

from embedkit.errors import DataError, FingerprintError, InputError
from embedkit.parquet_files import (
    Values,
    find_files,
    join_schemas,
    partitions,
    read_schema,
    reading,
    rows_per_batch,
)
from embedkit.records import read_object
from embedkit.runtime.numerics import UNKNOWN, joined
from embedkit.serving.retrieval.sources import ModelIdentity

_COLUMN: Final = "embedding"
_METADATA: Final = b"embedkit"
_JOB: Final = "_manifest.json"


class Shards:
    """A folder of Parquet files, or one file; its column of embeddings and their model, if there are any."""

    def __init__(
        self, path: Path, dataset: pads.Dataset, column: str | None, model: ModelIdentity | None, batch_rows: int
    ) -> None:
        self._path, self._dataset, self._batch_rows = path, dataset, batch_rows
        self.column, self.model = column, model

    @classmethod
    def open(cls, path: str | os.PathLike[str], column: str | None) -> Self | None:
        """Inspect a file, or a folder without its hidden files; folders in it such as ``lang=en`` are a column.

        Args:
            path: the file or the folder.
            column: column of the embeddings; None finds those of `embedkit encode`.

        Returns:
            None for a single file without embeddings, which is read like any other table.
        """
        folder = Path(path)
        files = find_files(folder) if folder.is_dir() else [folder]
        if not files:
            raise DataError(
                f"there are no .parquet files in {folder}; embedkit index build --split reads .txt, .md and .html"
            )
        dataset, models, rows = open_dataset(folder, files)
        fingerprints = {model.fingerprint if model else "unknown" for model in models}
        if len(fingerprints) > 1:
            known_models = ", ".join(sorted(fingerprint[:12] for fingerprint in fingerprints))
            raise FingerprintError(f"{folder} holds embeddings of several models: {known_models}")
        known = [model for model in models if model]
        numerics = joined(*(model.numerics for model in known))
        model = dataclasses.replace(known[0], numerics=numerics) if known else None
        has_embeddings = _COLUMN in dataset.schema.names
        if column is None and has_embeddings and folder.is_dir() and model is None:
            raise InputError(
                f"{folder} has a column {_COLUMN!r} but does not record their model; give embeddings={_COLUMN!r} "
                "to take it as the embeddings of the texts"
            )
        if column is not None and column not in dataset.schema.names:
            raise DataError(f"{folder} has no column {column!r}; it has {', '.join(dataset.schema.names)}")
        if column is None and model is not None and has_embeddings:
            column = _COLUMN
        if column is None and not folder.is_dir():
            return None
        shards = cls(folder, dataset, column, model, rows)
        shards._check_finished()
        return shards

    def records(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield all rows without their embeddings, each with its location for error messages."""
        names = [name for name in self._dataset.schema.names if name != self.column]
        row = 0
        for batch in self._batches(names):
            for record in batch.to_pylist():
                row += 1
                yield f"{self._path}: row {row}", record

    def embeddings(self) -> Iterator[npt.NDArray[Any]]:
        """Yield the embeddings of all rows in chunks ``(n, D)``; DataError if a row has none, or another width."""
        assert self.column is not None
        for batch in self._batches([self.column]):
            yield self._rows(batch.column(0))

    def _rows(self, column: Any) -> npt.NDArray[Any]:
        kind = column.type
        is_list = pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if not (is_list and pa.types.is_floating(kind.value_type)):
            raise DataError(f"{self._path}: expected lists of floats as {self.column}, got {kind}")
        widths = pc.unique(pc.list_value_length(column))
        values = column.flatten()
        if column.null_count or values.null_count or len(widths) != 1:
            raise DataError(f"{self._path}: {self.column} is null in a row, or rows differ in their width")
        rows: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
        return rows.reshape(len(column), widths[0].as_py())

    def _batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        with reading(self._path):
            for batch in self._dataset.to_batches(columns=columns, batch_size=self._batch_rows):
                if batch.num_rows:
                    yield batch

    def _check_finished(self) -> None:
        """Reject an interrupted bulk encoding, whose folder records the expected number of rows."""
        manifest = self._path / _JOB
        if self.model is None or not manifest.is_file():
            return
        try:
            wanted = sum(file["rows"] for file in read_object(manifest)["inputs"])
        except (TypeError, LookupError) as error:
            raise DataError(f"{manifest} is damaged: it does not list the inputs of the shards") from error
        rows = self._dataset.count_rows()
        if rows != wanted:
            raise DataError(
                f"{self._path} is unfinished: {rows:,} of {wanted:,} rows are embedded; run `embedkit encode` "
                "again"
            )


def _model_of(schema: pa.Schema) -> ModelIdentity | None:
    with contextlib.suppress(ValueError, TypeError, LookupError):
        facts = json.loads((schema.metadata or {})[_METADATA])
        numerics = str(facts.get("numerics", UNKNOWN))
        return ModelIdentity(str(facts["model"]), str(facts["fingerprint"]), (numerics,))
    return None


def open_dataset(folder: Path, files: list[Path]) -> tuple[pads.Dataset, set[ModelIdentity | None], int]:
    """Return the rows of all files with the columns of their folders, their models, and rows to read at once."""
    values = partitions([str(file.relative_to(folder)) for file in files])
    schemas, models, rows = [], set(), []
    for file in files:
        with reading(file), parquet.ParquetFile(file) as opened:
            schemas.append(read_schema(opened, file))
            models.add(_model_of(schemas[-1]))
            rows.append(rows_per_batch(opened.metadata))
    schema = join_schemas(zip(files, schemas, values, strict=True))
    expressions = [_expression(mapping, schema) for mapping in values]
    with reading(folder):
        dataset = pads.FileSystemDataset.from_paths(
            [str(file) for file in files],
            schema=schema,
            format=pads.ParquetFileFormat(),
            filesystem=fs.LocalFileSystem(),
            partitions=expressions,
        )
    return dataset, models, min(rows)


def _expression(values: Values, schema: pa.Schema) -> pads.Expression:
    """Return the form in which a data set takes the values of a file's columns."""
    known = [
        pads.field(name) == pa.scalar(value, schema.field(name).type)
        for name, value in values.items()
        if value is not None
    ]
    return functools.reduce(operator.and_, known, pads.scalar(True))
