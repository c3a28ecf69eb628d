"""The part of `embedkit encode` that encodes Parquet into a folder of shards."""

from __future__ import annotations

import argparse
import json
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedkit.serving.bulk import BulkEncoding

_FLAGS = {
    "--engine": "engine",
    "--keep": "columns",
    "--rows-per-shard": "rows_per_shard",
    "--check": "check",
}

logger = logging.getLogger("embedkit")


def configure_bulk(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that apply only to a folder of shards."""
    group = parser.add_argument_group("from Parquet into a folder; an interrupted run can be resumed")
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


def is_bulk(arguments: argparse.Namespace) -> bool:
    """Whether the output is a folder: an existing one, or a name without an extension."""
    output: Path | str = arguments.output
    return isinstance(output, str) or output.is_dir() or not output.suffix


def refuse_bulk_arguments(arguments: argparse.Namespace) -> None:
    """Reject options that apply only to an output folder.

    Raises:
        InputError: one of them is given.
    """
    from embedkit.errors import InputError

    for flag, name in _FLAGS.items():
        if getattr(arguments, name):
            raise InputError(f"{flag} is for an output folder, not for {arguments.output}")


def run_bulk(arguments: argparse.Namespace) -> None:
    """Log the cost, and compute the missing shards.

    Raises:
        InputError: the input is not Parquet.
    """
    from embedkit.errors import InputError
    from embedkit.serving.bulk import BulkEncoding

    given = arguments.input
    if arguments.skip_empty:
        raise InputError("--skip-empty is for an output file; rows of shards are those of the input")
    if str(given).startswith("hf://") or (
        isinstance(given, Path) and given.is_file() and given.suffix != ".parquet"
    ):
        raise InputError(
            f"an output folder needs Parquet input; for {given} use an output ending in .npy, .parquet or .jsonl"
        )
    chosen = {} if arguments.rows_per_shard is None else {"rows_per_shard": arguments.rows_per_shard}
    encoding = BulkEncoding.prepare(
        given,
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
        **chosen,
    )
    _log_cost(encoding)
    if arguments.check:
        return
    started = time.perf_counter()
    rows = encoding.run(
        engine=arguments.engine or "local",
        workers=arguments.processes,
        show_progress_bar=False if arguments.quiet else None,
    )
    _report(arguments, encoding, rows, time.perf_counter() - started)


def _log_cost(encoding: BulkEncoding) -> None:
    cost = encoding.cost()
    done = len(encoding.shards) - cost.shards
    logger.info(
        "%s texts to embed in %s shards%s: %s MB of embeddings, about %s s for one worker like this process",
        f"{cost.rows:,}",
        f"{cost.shards:,}",
        f" ({done:,} done)" if done else "",
        f"{cost.bytes / 1e6:,.0f}",
        f"{cost.rows * cost.seconds_per_row:,.0f}",
    )


def _report(arguments: argparse.Namespace, encoding: BulkEncoding, rows: int, seconds: float) -> None:
    encoder = encoding.encoder
    result = {
        "output": str(arguments.output),
        "rows": encoding.rows,
        "rows_now": rows,
        "shards": len(encoding.shards),
        "seconds": round(seconds, 3),
        "model": encoder.name,
        "fingerprint": encoder.fingerprint,
        "numerics": encoder.numerics,
    }
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    print(
        f"{arguments.output}: {encoding.rows:,} rows in {len(encoding.shards):,} shards with {encoder.name}, "
        f"{rows:,} of them now, {rows / max(seconds, 1e-9):,.0f} texts/s"
    )
