"""`embedkit encode`: from a file of texts to a file of embeddings in bounded memory, or from Parquet to shards."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import numpy as np
    import numpy.typing as npt

    from embedkit.runtime.encoder import Encoder
    from embedkit.runtime.pool import EncoderPool

    # Some texts and their embeddings, (n, D).
    Piece = tuple[list[str], npt.NDArray[Any]]
    # Writes all chunks to a path; an empty array specifies their width and dtype.
    Writer = Callable[[Path, Iterable[Piece], npt.NDArray[Any]], None]

HELP = "embed a file of texts into .npy, .parquet or .jsonl, or folders of Parquet into shards"
EXAMPLES = """
embedkit encode -m tiny texts.txt -o embeddings.npy
embedkit encode -m tiny.onnx pages/ --text-column body -o pages-embedded/ --engine ray
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    from embedkit.cli.bulk import configure_bulk
    from embedkit.object_store import location

    parser.add_argument(
        "input",
        type=location,
        metavar="FILE",
        help="texts: .txt, .csv, .tsv or .jsonl (each also .gz or .xz), or .parquet; - for standard input, JSON "
        "or a text a line; for an output folder also a folder or a pattern of .parquet; each also at s3://, gs:// "
        "or abfs://, and hf:// data sets",
    )
    parser.add_argument(
        "-m", "--model", required=True, help="a bundle, a bundled name, a model folder or a hub id"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=location,
        required=True,
        metavar="FILE",
        help="embeddings: .npy, .parquet or .jsonl, or a folder, which may be a URL",
    )
    _add_encoding(parser)
    _add_compute(parser)
    configure_bulk(parser)


def _add_encoding(parser: argparse.ArgumentParser) -> None:
    """Add the choice of texts and the form of their embeddings."""
    parser.add_argument(
        "--text-column", default="text", metavar="NAME", help="column or key of the texts (default: %(default)s)"
    )
    parser.add_argument(
        "--skip-empty", action="store_true", help="leave out rows without text; the output then has fewer rows"
    )
    parser.add_argument("--prompt-name", metavar="NAME", help="prepend this prompt of the model to every text")
    parser.add_argument("--truncate-dim", type=int, metavar="D", help="keep the first D dimensions")
    parser.add_argument(
        "--precision",
        choices=("float32", "int8", "uint8", "binary", "ubinary"),
        default="float32",
        help="int8, uint8: one byte per dimension, from a bundle exported with --calibration; binary, ubinary: "
        "one bit per dimension, packed into int8 or uint8 (default: %(default)s)",
    )
    parser.add_argument(
        "--on-overflow",
        choices=("truncate", "error", "windows"),
        default="truncate",
        help="texts longer than the model's maximum are cut, refused, or encoded as the mean of their windows "
        "(default: %(default)s)",
    )


def _add_compute(parser: argparse.ArgumentParser) -> None:
    """Add the choice of processors."""
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="compute threads; default: all processors available to the process",
    )
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="number of processes; they divide the processors, or use --threads each",
    )
    parser.add_argument(
        "--provider",
        dest="providers",
        action="append",
        metavar="NAME",
        help="ONNX Runtime execution provider, e.g. CUDAExecutionProvider; may be repeated",
    )


def run(arguments: argparse.Namespace) -> None:
    """Embed every text, and write the output atomically."""
    from embedkit.atomic import atomic_file
    from embedkit.cli.bulk import is_bulk, refuse_bulk_arguments, run_bulk
    from embedkit.cli.texts import read_texts
    from embedkit.runtime.encoder import Encoder

    if is_bulk(arguments):
        run_bulk(arguments)
        return
    refuse_bulk_arguments(arguments)
    write = _choose_writer(arguments.output)
    encoder = Encoder.load(arguments.model, threads=arguments.threads, providers=arguments.providers)
    options: dict[str, Any] = {
        "prompt_name": arguments.prompt_name,
        "truncate_dim": arguments.truncate_dim,
        "precision": arguments.precision,
        "on_overflow": arguments.on_overflow,
        "show_progress_bar": False if arguments.quiet else None,
    }
    form = encoder.encode([], **options)
    with _share(encoder, arguments) as sharing:
        pieces = _Counted(
            _embed(
                sharing,
                read_texts(arguments.input, arguments.text_column, skip_empty=arguments.skip_empty),
                options,
            )
        )
        started = time.perf_counter()
        with atomic_file(arguments.output) as temporary:
            write(temporary, pieces, form)
    _report(arguments, encoder, pieces.rows, form, time.perf_counter() - started)


class _Counted:
    """An iterator of chunks that counts rows."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = pieces
        self.rows = 0

    def __iter__(self) -> Iterator[Piece]:
        for texts, rows in self._pieces:
            self.rows += len(rows)
            yield texts, rows


def _share(encoder: Encoder, arguments: argparse.Namespace) -> AbstractContextManager[Encoder | EncoderPool]:
    """Return the encoder itself, or a pool of processes."""
    if arguments.processes is None:
        return contextlib.nullcontext(encoder)
    return encoder.pool(arguments.processes, threads=arguments.threads)


def _embed(encoder: Encoder | EncoderPool, texts: Iterable[str], options: dict[str, Any]) -> Iterator[Piece]:
    """Yield embeddings with their texts; only the texts of current chunks are kept."""
    waiting: list[str] = []

    def remembered() -> Iterator[str]:
        for text in texts:
            waiting.append(text)
            yield text

    for rows in encoder.encode_batches(remembered(), **options):
        yield waiting[: len(rows)], rows
        del waiting[: len(rows)]


def _choose_writer(path: Path) -> Writer:
    """Reject an unknown format, or one whose package is missing, before any work starts."""
    from embedkit.errors import InputError
    from embedkit.extras import require

    writers: dict[str, Writer] = {".npy": _write_npy, ".parquet": _write_parquet, ".jsonl": _write_jsonl}
    if path.suffix not in writers:
        raise InputError(f"expected an output that ends in {', '.join(writers)}, got {path}")
    if path.suffix == ".parquet":
        require("pyarrow.parquet", extra="bulk")
    return writers[path.suffix]


def _write_npy(path: Path, pieces: Iterable[Piece], form: npt.NDArray[Any]) -> None:
    """Rewrite the header once the number of rows is known; NumPy pads it so that it can grow."""
    width, rows_written = form.shape[1], 0
    with path.open("wb") as file:
        _write_header(file, 0, width, form.dtype)
        for _, rows in pieces:
            file.write(rows.tobytes())
            rows_written += len(rows)
        file.seek(0)
        _write_header(file, rows_written, width, form.dtype)


def _write_header(file: BinaryIO, rows: int, width: int, dtype: np.dtype[Any]) -> None:
    from numpy.lib import format as npy

    header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows, width)}
    npy.write_array_header_1_0(file, header)


def _write_jsonl(path: Path, pieces: Iterable[Piece], form: npt.NDArray[Any]) -> None:
    """Write one ``{"text": ..., "embedding": [...]}`` per line, numbers in their shortest exact form."""
    number = float if form.dtype.kind == "f" else int
    with path.open("w", encoding="utf-8") as file:
        for texts, rows in pieces:
            for text, row in zip(texts, rows, strict=True):
                embedding = [number(str(value)) for value in row]
                file.write(json.dumps({"text": text, "embedding": embedding}, ensure_ascii=False) + "\n")


def _write_parquet(path: Path, pieces: Iterable[Piece], form: npt.NDArray[Any]) -> None:
    """Write the columns ``text`` and ``embedding``, a fixed-size list."""
    import pyarrow as pa
    from pyarrow import parquet

    width = form.shape[1]
    row_type = pa.list_(pa.from_numpy_dtype(form.dtype), width)
    schema = pa.schema([("text", pa.string()), ("embedding", row_type)])
    with parquet.ParquetWriter(path, schema) as writer:
        for texts, rows in pieces:
            embeddings = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), width)
            writer.write_table(pa.table([pa.array(texts, pa.string()), embeddings], schema=schema))


def _report(
    arguments: argparse.Namespace, encoder: Encoder, rows: int, form: npt.NDArray[Any], seconds: float
) -> None:
    result = {
        "output": str(arguments.output),
        "rows": rows,
        "width": form.shape[1],
        "dtype": str(form.dtype),
        "seconds": round(seconds, 3),
        "model": encoder.name,
        "fingerprint": encoder.fingerprint,
        "numerics": encoder.numerics,
    }
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    speed = f"{rows / seconds:,.0f} texts/s" if seconds > 0 else "at once"
    print(f"{arguments.output}: {rows:,} x {form.shape[1]} {form.dtype} with {encoder.name}, {speed}")
