"""Texts and rows of input, and the rows that `embedkit dedup` and `embedkit cluster` write."""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import json
import logging
import pickle
import sys
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from embedkit.atomic import atomic_file, cache_folder, storage_errors
from embedkit.cli.options import MODEL, add_text_column
from embedkit.errors import DataError, InputError
from embedkit.extras import require
from embedkit.records import STREAMS, begins_json

if TYPE_CHECKING:
    from embedkit.protocols import TextEncoder
    from embedkit.serving.retrieval.documents import Document, NamedRecords
    from embedkit.serving.retrieval.sources import Source

logger = logging.getLogger("embedkit")

_BATCH = 4096


def read_texts(path: Path | str, column: str, *, skip_empty: bool = False) -> Iterator[str]:
    """Yield one column of a file, of standard input (``-``), or of the URL of a file or hub data set."""
    from embedkit.serving.retrieval.documents import named_records

    for place, record in named_records(path):
        text = _text(place, record, column, skip_empty=skip_empty)
        if text is not None:
            yield text


def _text(place: str, record: Mapping[str, Any], column: str, *, skip_empty: bool) -> str | None:
    """Return the text of a record, or None for one without text that may be left out."""
    from embedkit.serving.retrieval.documents import is_empty, value_of

    text = value_of(record, column, place, "text_column")
    if skip_empty and is_empty(text):
        return None
    if not isinstance(text, str):
        raise DataError(f"{place}: {column!r} should be a text, not {type(text).__name__}")
    return text


def spool_stdin(path: str, *, lines: str) -> str:
    """Return the path of an input; standard input (``-``) is kept as a file, which can be read again.

    Its suffix is ``lines``, such as ``.txt``, unless it begins with JSON.
    """
    if path not in STREAMS:
        return path
    with open(sys.stdin.fileno(), "rb", closefd=False) as file:
        content = file.read()
    form = ".jsonl" if begins_json(content.partition(b"\n")[0].decode("utf-8-sig", "replace")) else lines
    kept = cache_folder("stdin") / hashlib.sha256(content).hexdigest()[:16] / f"stdin{form}"
    with atomic_file(kept) as temporary:
        temporary.write_bytes(content)
    return str(kept)


def configure_input(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select the texts and the comparison."""
    parser.add_argument(
        "input",
        metavar="TEXTS",
        help="a .txt, .csv, .tsv, .jsonl (each also .gz or .xz) or .parquet file; - for standard input, JSON or a "
        "text a line; a folder of Parquet or of shards of `embedkit encode`; a collection; a URL, or a data set "
        "hf://org/name[@revision][:split]",
    )
    parser.add_argument("-m", "--model", help=f"{MODEL}; not needed if TEXTS brings embeddings")
    parser.add_argument(
        "--embeddings",
        metavar="NAME|FILE.npy",
        help="existing embeddings: a column of TEXTS, or a file aligned with its rows",
    )
    add_text_column(parser)
    parser.add_argument(
        "--kind",
        default="auto",
        help="exact, or an approximate index: hnsw, ivf-pq or sq8; default: auto, which compares up to "
        "300,000 texts exactly and more over ivf-pq",
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads of the model; default: all available processors"
    )


class SpooledRows:
    """The rows of a source, read once; those without text are left out and counted.

    Attributes:
        numbers: the number of each row in the source, from 0.
        columns: the columns of the first row.
        encoder: the model, if one is needed.

    Args:
        rewritten: whether rows are written again; one that cannot be is then an error when it is read.
        form: suffix of the form in which they are written, instead of the output's.
    """

    def __init__(self, arguments: argparse.Namespace, *, rewritten: bool = False, form: str | None = None) -> None:
        from embedkit.object_store import is_url, open_store

        place = arguments.input
        self._place = str(open_store(place).fetch()) if is_url(place) else place
        self._name, self._column, self._embeddings = place, arguments.text_column, arguments.embeddings
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the rows
        self._offsets = array("q", [0])
        self.numbers = array("q")
        self.columns: list[str] = []
        self._rewritten, self._output, self._as_json = rewritten, arguments.output, arguments.json
        self._form = form
        self.encoder: TextEncoder | None = None
        self._model, self._threads = arguments.model, arguments.threads

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self.numbers)

    def source(self) -> Source:
        """Return the texts, and their embeddings if there are any; keeps the rows as they are read."""
        from embedkit.runtime.encoder import Encoder
        from embedkit.serving.retrieval.collection import Collection
        from embedkit.serving.retrieval.sources import Source, read_rows
        from embedkit.serving.retrieval.store.protocol import is_collection

        if is_collection(self._place):
            if self._embeddings is not None:
                raise InputError("embeddings: a collection brings its own; leave them out")
            collection = Collection.open(self._place)
            stored = collection.store.source()
            self.encoder = collection.document_encoder if self._model is None else None
            records: NamedRecords = map(self._record, stored.documents)
            embeddings, model = stored.embeddings, stored.model
        else:
            records, embeddings, model = read_rows(self._place, self._embeddings)
        if embeddings is None and self._model is None:
            raise InputError(f"{self._name} has no embeddings yet; name a model, such as -m tiny")
        if self._model is not None:
            self.encoder = Encoder.load(self._model, threads=self._threads)
        return Source(self._documents(records, embedded=embeddings is not None), embeddings, model)

    def __getitem__(self, row: int) -> Mapping[str, Any]:
        start, end = self._offsets[row], self._offsets[row + 1]
        self._file.seek(start)
        record: Mapping[str, Any] = pickle.loads(self._file.read(end - start))  # noqa: S301 - written by this object
        return record

    def text(self, row: int) -> str:
        """Return the text of a row."""
        return str(self[row][self._column])

    @property
    def form(self) -> str:
        """The suffix of the output; standard output has ``.txt`` for rows that are only texts, else ``.jsonl``."""
        if self._form is not None:
            return self._form
        if self._output is not None:
            return str(self._output.suffix)
        return ".txt" if self.columns in ([], [self._column]) and not self._as_json else ".jsonl"

    def schema(self) -> Any:
        """Return the Parquet schema of the source."""
        pa, files = require("pyarrow", extra="bulk"), require("embedkit.parquet_files", extra="bulk")
        shards = require("embedkit.serving.retrieval.shards", extra="bulk")
        path = Path(self._place)
        paths = files.find_files(path) if path.is_dir() else [path]
        if not paths or any(file.suffix != ".parquet" for file in paths):
            raise InputError(f"a .parquet output needs Parquet as input, not {self._name}; write .jsonl")
        dataset, *_ = shards.open_dataset(path, paths)
        return pa.schema([field for field in dataset.schema if not self.columns or field.name in self.columns])

    def _record(self, document: Document) -> tuple[str, Mapping[str, Any]]:
        """Return a document of a collection as a row; its id replaces metadata called id, too."""
        place, metadata = f"document {document.id!r}", document.metadata or {}
        if self._column in metadata:
            raise DataError(
                f"{place}: {self._column!r} is also in its metadata; name the texts with text_column",
                parameters=["text_column"],
            )
        return place, {"id": document.id, self._column: document.text} | metadata | {"id": document.id}

    def _documents(
        self, records: Iterable[tuple[str, Mapping[str, Any]]], *, embedded: bool
    ) -> Iterator[Document]:
        from embedkit.serving.retrieval.documents import Document

        number = -1
        for number, (place, record) in enumerate(records):
            text = _text(place, record, self._column, skip_empty=not embedded)
            if text is None:
                continue
            self.columns = self.columns or list(record)
            row = self._writable(place, record, text) if self._rewritten else dict(record)
            with storage_errors(Path(tempfile.gettempdir())):
                size = self._file.write(pickle.dumps(row))
            self._offsets.append(self._offsets[-1] + size)
            self.numbers.append(number)
            yield Document(place, text)
        if number + 1 > len(self):
            logger.warning("left out %s without text", counted(number + 1 - len(self), "row"))

    def _check_cells(self, place: str, record: Mapping[str, Any]) -> None:
        """Raise a DataError if a table cannot hold a row."""
        if list(record) != self.columns:
            raise DataError(f"{place}: other columns than in the first row; write .jsonl instead of .csv")
        for name, value in record.items():
            if isinstance(value, list | dict | bytes):
                raise DataError(f"{place}: {name!r} is {value!r:.40}, no text; write .jsonl instead of .csv")

    def _writable(self, place: str, record: Mapping[str, Any], text: str) -> dict[str, Any]:
        """Return a row as the output holds it; DataError if it cannot."""
        from embedkit.serving.retrieval.documents import plain_value

        if self.form == ".jsonl":
            return {name: plain_value(value, name, place) for name, value in record.items()}
        if self.form == ".txt" and ("\n" in text or "\r" in text):
            advice = "write .jsonl instead of .txt" if self._output is not None else "add --json"
            raise DataError(f"{place}: the text has several lines; {advice}")
        if self.form == ".csv":
            self._check_cells(place, record)
        if self.form == ".parquet" and not len(self):
            self.schema()
        return dict(record)


def compared(arguments: argparse.Namespace, rows: SpooledRows) -> dict[str, Any]:
    """Return the arguments that the functions of ``embedkit.serving.retrieval.similar`` have in common."""
    source = rows.source()
    return {
        "texts": source,
        "encoder": rows.encoder,
        "threshold": arguments.threshold,
        "index": arguments.kind,
    }


@contextlib.contextmanager
def lines_to(output: Path | None) -> Iterator[TextIO]:
    """Open a file that is written atomically, or standard output."""
    if output is not None:
        with atomic_file(output) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            yield file
    elif sys.stdout.isatty():
        yield sys.stdout  # which escapes control characters
    else:
        sys.stdout.flush()
        with open(sys.stdout.fileno(), "w", encoding="utf-8", newline="", closefd=False) as file:
            yield file


def report(arguments: argparse.Namespace, result: Mapping[str, Any], sentence: str) -> None:
    """Print a summary to standard output, or to standard error if that is taken by rows; never as JSON."""
    to_stdout = arguments.output is None
    if arguments.json and not to_stdout:
        print(json.dumps({"output": str(arguments.output), **result}, indent=2))
    elif not (to_stdout and arguments.quiet):
        print(sentence, file=sys.stderr if to_stdout else sys.stdout)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural if it is not 1."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def write_rows(rows: SpooledRows, chosen: Iterable[int], output: Path | None) -> None:
    """Write some rows with all their columns, in the form of the output's suffix."""
    if rows.form == ".parquet":
        assert output is not None
        _write_parquet(rows, chosen, output)
        return
    with lines_to(output) as file:
        if rows.form == ".csv":
            writer = csv.DictWriter(file, rows.columns, lineterminator="\n")
            if rows.columns:
                writer.writeheader()
            writer.writerows(rows[row] for row in chosen)
        else:
            as_text = rows.form == ".txt"
            for row in chosen:
                line = rows.text(row) if as_text else json.dumps(rows[row], ensure_ascii=False)
                file.write(line + "\n")


def _write_parquet(rows: SpooledRows, chosen: Iterable[int], output: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    schema, waiting = rows.schema(), list(chosen)
    with atomic_file(output) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        for start in range(0, len(waiting), _BATCH):
            records = [rows[row] for row in waiting[start : start + _BATCH]]
            writer.write_table(pa.Table.from_pylist(records, schema=schema))
