"""`embedkit encode`: from a file of texts to a file of embeddings in bounded memory, or from Parquet to shards."""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from embedkit.atomic import atomic_file
from embedkit.cli.options import MODEL, add_text_column, check_apart, check_form, explicit, in_processes, show
from embedkit.cli.rows import counted, read_texts
from embedkit.errors import InputError
from embedkit.extras import require

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from embedkit.runtime.encoder import Encoder
    from embedkit.runtime.pool import EncoderPool
    from embedkit.serving.bulk import BulkEncoding

    # Some texts and their embeddings, (n, D).
    Piece = tuple[list[str], npt.NDArray[Any]]
    # Writes all chunks to a path, and returns the number of rows; an empty array specifies their width and dtype.
    Writer = Callable[[Path, Iterable[Piece], npt.NDArray[Any]], int]

logger = logging.getLogger("embedkit")

HELP = "embed a file of texts into .npy, .parquet or .jsonl, or folders of Parquet into shards"
EXAMPLES = """
embedkit encode -m tiny texts.txt -o embeddings.npy
embedkit encode -m tiny.onnx pages/ --text-column body -o pages-embedded/ --engine ray
"""


# Flags that apply only to an output folder.
_FOLDER_ONLY = {
    "--engine": "engine",
    "--keep": "columns",
    "--rows-per-shard": "rows_per_shard",
    "--check": "check",
}


def configure(parser: argparse.ArgumentParser) -> None:
    from embedkit.object_store import location

    parser.add_argument(
        "input",
        type=location,
        metavar="FILE",
        help="texts: .txt, .csv, .tsv, .jsonl or .parquet, - for standard input, a URL, or a data set hf://...; "
        "for an output folder also a folder or pattern of .parquet",
    )
    parser.add_argument("-m", "--model", required=True, help=MODEL)
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
    _add_bulk(parser.add_argument_group("from Parquet into a folder; an interrupted run can be resumed"))


def _add_encoding(parser: argparse.ArgumentParser) -> None:
    """Add the choice of texts and the form of their embeddings."""
    add_text_column(parser)
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


def _add_bulk(group: argparse._ArgumentGroup) -> None:
    """Add what applies only to a folder of shards."""
    group.add_argument(
        "--engine",
        choices=("local", "ray"),
        help="run on this machine or on a Ray cluster, with as many --processes as fit (default: local)",
    )
    group.add_argument(
        "--keep",
        dest="columns",
        action="append",
        metavar="NAME",
        help="keep this column; may be repeated (default: all columns, including the texts)",
    )
    group.add_argument("--rows-per-shard", type=int, metavar="N", help="rows per output file (default: 32768)")
    group.add_argument("--check", action="store_true", help="print the remaining work and its cost, and exit")


def run(arguments: argparse.Namespace) -> None:
    """Embed every text, and write the output atomically, or shard by shard."""
    output: Path | str = arguments.output
    if isinstance(output, str) or output.is_dir() or not output.suffix:
        _run_bulk(arguments)
    else:
        _run_file(arguments)


def _run_file(arguments: argparse.Namespace) -> None:
    from embedkit.runtime.encoder import Encoder

    for flag, name in _FOLDER_ONLY.items():
        if getattr(arguments, name):
            raise InputError(f"{flag} is for an output folder, not for {arguments.output}")
    write = _choose_writer(arguments.output)
    check_apart(arguments.output, arguments.input, "output", "input")
    encoder = Encoder.load(arguments.model, threads=arguments.threads, providers=arguments.providers)
    options: dict[str, Any] = {
        "prompt_name": arguments.prompt_name,
        "truncate_dim": arguments.truncate_dim,
        "precision": arguments.precision,
        "on_overflow": arguments.on_overflow,
    }
    form = encoder.encode([], **options)
    with in_processes(encoder, arguments.processes, arguments.threads) as sharing:
        texts = read_texts(arguments.input, arguments.text_column, skip_empty=arguments.skip_empty)
        started = time.perf_counter()
        with atomic_file(arguments.output) as temporary:
            rows = write(temporary, _embed(sharing, texts, options), form)
    seconds = time.perf_counter() - started
    result = {"rows": rows, "width": form.shape[1], "dtype": str(form.dtype)}
    speed = f"{rows / seconds:,.0f} texts/s" if seconds > 0 else "at once"
    sentence = f"{arguments.output}: {rows:,} x {form.shape[1]} {form.dtype} with {encoder.name}, {speed}"
    _report(arguments, encoder, result, seconds, sentence)


def _embed(encoder: Encoder | EncoderPool, texts: Iterable[str], options: dict[str, Any]) -> Iterator[Piece]:
    """Yield embeddings with their texts; only the texts of current chunks are kept."""
    encoded, kept = itertools.tee(texts)
    for rows in encoder.encode_batches(encoded, **options):
        yield list(itertools.islice(kept, len(rows))), rows


def _choose_writer(path: Path) -> Writer:
    """Reject an unknown format, or one whose package is missing, before any work starts."""
    writers: dict[str, Writer] = {".npy": _write_npy, ".parquet": _write_parquet, ".jsonl": _write_jsonl}
    check_form(path, *writers)
    if path.suffix == ".parquet":
        require("pyarrow.parquet", extra="bulk")
    return writers[path.suffix]


def _write_npy(path: Path, pieces: Iterable[Piece], form: npt.NDArray[Any]) -> int:
    """Rewrite the header once the number of rows is known; NumPy pads it so that it can grow."""
    width, rows_written = form.shape[1], 0
    with path.open("wb") as file:
        _write_header(file, 0, width, form.dtype)
        for _, rows in pieces:
            file.write(rows.tobytes())
            rows_written += len(rows)
        file.seek(0)
        _write_header(file, rows_written, width, form.dtype)
    return rows_written


def _write_header(file: BinaryIO, rows: int, width: int, dtype: np.dtype[Any]) -> None:
    from numpy.lib import format as npy

    header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows, width)}
    npy.write_array_header_1_0(file, header)


def _write_jsonl(path: Path, pieces: Iterable[Piece], form: npt.NDArray[Any]) -> int:
    """Write one ``{"text": ..., "embedding": [...]}`` per line, numbers in their shortest exact form."""
    number, rows_written = float if form.dtype.kind == "f" else int, 0
    with path.open("w", encoding="utf-8") as file:
        for texts, rows in pieces:
            for text, row in zip(texts, rows, strict=True):
                embedding = [number(str(value)) for value in row]
                file.write(json.dumps({"text": text, "embedding": embedding}, ensure_ascii=False) + "\n")
            rows_written += len(rows)
    return rows_written


def _write_parquet(path: Path, pieces: Iterable[Piece], form: npt.NDArray[Any]) -> int:
    """Write the columns ``text`` and ``embedding``, a fixed-size list."""
    import pyarrow as pa
    from pyarrow import parquet

    width, rows_written = form.shape[1], 0
    row_type = pa.list_(pa.from_numpy_dtype(form.dtype), width)
    schema = pa.schema([("text", pa.string()), ("embedding", row_type)])
    with parquet.ParquetWriter(path, schema) as writer:
        for texts, rows in pieces:
            embeddings = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), width)
            writer.write_table(pa.table([pa.array(texts, pa.string()), embeddings], schema=schema))
            rows_written += len(rows)
    return rows_written


def _run_bulk(arguments: argparse.Namespace) -> None:
    """Log the cost, and compute the missing shards."""
    require("pyarrow.parquet", extra="ray" if arguments.engine == "ray" else "bulk")
    from embedkit.serving.bulk import BulkEncoding

    source = arguments.input
    if arguments.skip_empty:
        raise InputError("--skip-empty is for an output file; rows of shards are those of the input")
    is_file = isinstance(source, Path) and source.is_file() and source.suffix != ".parquet"
    if is_file or str(source).startswith("hf://"):
        raise InputError(
            f"an output folder needs Parquet input; for {source} use an output ending in .npy, .parquet or .jsonl"
        )
    encoding = BulkEncoding.prepare(
        source,
        arguments.output,
        model=arguments.model,
        text_column=arguments.text_column,
        columns=arguments.columns,
        prompt_name=arguments.prompt_name,
        truncate_dim=arguments.truncate_dim,
        precision=arguments.precision,
        on_overflow=arguments.on_overflow,
        threads=arguments.threads,
        providers=arguments.providers,
        **explicit(arguments, "rows_per_shard"),
    )
    _log_cost(encoding)
    if arguments.check:
        return
    started = time.perf_counter()
    rows = encoding.run(engine=arguments.engine or "local", workers=arguments.processes)
    seconds, shards = time.perf_counter() - started, len(encoding.shards)
    result = {"rows": encoding.rows, "rows_now": rows, "shards": shards}
    sentence = (
        f"{arguments.output}: {counted(encoding.rows, 'row')} in {counted(shards, 'shard')} with "
        f"{encoding.encoder.name}, "
        f"{rows:,} of them now, {rows / max(seconds, 1e-9):,.0f} texts/s"
    )
    _report(arguments, encoding.encoder, result, seconds, sentence)


def _log_cost(encoding: BulkEncoding) -> None:
    cost = encoding.cost()
    done = len(encoding.shards) - cost.shards
    logger.info(
        "%s to embed in %s%s: %s MB of embeddings, about %s s for one worker like this process",
        counted(cost.rows, "text"),
        counted(cost.shards, "shard"),
        f" ({done:,} done)" if done else "",
        f"{cost.bytes / 1e6:,.0f}",
        f"{cost.rows * cost.seconds_per_row:,.0f}",
    )


def _report(
    arguments: argparse.Namespace, encoder: Encoder, result: dict[str, Any], seconds: float, sentence: str
) -> None:
    model = {"model": encoder.name, "fingerprint": encoder.fingerprint, "numerics": encoder.numerics}
    show(arguments, {"output": str(arguments.output), **result, "seconds": round(seconds, 3), **model}, sentence)
