"""The corpus: raw text from files or the hub, normalised, deduplicated, counted, and read by row from disk."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from embedkit.atomic import atomic_folder
from embedkit.config import setting
from embedkit.errors import ConfigError, DataError
from embedkit.evaluation.sources import split_of
from embedkit.progress import Progress
from embedkit.records import HubDataset, Record, read_records

logger = logging.getLogger(__name__)

Rows = npt.NDArray[np.int64]
"""Numbers of rows, ``(N,)``."""

_FORMAT = 4
_CHUNK = 4096
_HUB = "hf://"
_COLUMN_GUESSES = ("text", "sentence", "content", "title")
_SPACE = re.compile(r"\s+")
_ID = re.compile(r"\s*[^\s\d]*\d\S*\s*")  # a single word with a digit, such as 7, D12 or MED-10
FIRST_ROWS = 20  # rows that decide what the columns of a table hold


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """One source of text."""

    path: str = setting(doc="file, or hf://org/name:split on the Hugging Face hub")
    name: str | None = setting(None, "name in the model card; default: the file's name")
    licence: str = setting("unknown", "licence of the text, for the model card")
    text_column: str | None = setting(None, "text column in .csv, .jsonl, .parquet and hub data sets")
    view_columns: tuple[str, ...] = setting((), "columns of two views of a sentence, e.g. back-translations")
    translation_columns: tuple[str, ...] = setting(
        (), "columns of a text and its translation, which both learn the teacher's vector of the text"
    )
    prompt: str | None = setting(
        None, 'text that the teacher reads before each text, such as "passage: "; default: teacher.prompt'
    )
    limit: int | None = setting(None, "maximum number of rows to read", minimum=1)
    repeat: int = setting(1, "number of times each row occurs in an epoch", minimum=1)
    min_words: int = setting(1, "drop rows with fewer words in a view", minimum=1)
    max_words: int | None = setting(None, "drop rows with more words in a view", minimum=1)

    def __post_init__(self) -> None:
        if self.path in ("-", "/dev/stdin"):
            raise ConfigError("path: a corpus is read more than once, which standard input cannot be; name a file")
        pairs = {"view_columns": self.view_columns, "translation_columns": self.translation_columns}
        for name, columns in pairs.items():
            if len(columns) not in (0, 2):
                raise ConfigError(f"{name} must name two columns, not {len(columns)}")
            if columns and self.text_column:
                raise ConfigError(f"text_column and {name} exclude each other")
        if self.view_columns and self.translation_columns:
            raise ConfigError("view_columns and translation_columns exclude each other")

    @property
    def label(self) -> str:
        """Name shown in model cards."""
        return self.name or Path(self.path.removeprefix(_HUB)).name.split(".")[0]

    def records(self) -> Iterator[tuple[int, Record]]:
        """Read the rows, each with its line.

        Raises:
            DataError: the source is missing or malformed.
        """
        if self.path.startswith(_HUB):
            rows = HubDataset.parse(self.path).rows(split="train", keep=False)
            return enumerate((dict(row.fields) for row in itertools.islice(rows, self.limit)), 1)
        return itertools.islice(read_records(Path(self.path)), self.limit)


@dataclasses.dataclass(frozen=True)
class CorpusCard:
    """Counts of one source; ``sha256`` covers the hashes of the kept rows, in order.

    An epoch contains each of its rows ``repeat`` times. Its teacher reads them after ``prompt``.
    """

    name: str
    licence: str
    rows: int
    read: int
    empty: int
    duplicates: int
    sha256: str
    repeat: int = 1
    prompt: str | None = None


class Corpus:
    """Texts in a memory-mapped folder: ``len(corpus)`` rows of ``corpus.views`` texts each.

    A row costs 24 bytes per view, in the page cache and not in process memory.

    Attributes:
        views: number of texts in a row, 1 or 2.
        cards: one :class:`CorpusCard` per source.
        source_rows: (N,) int64, each row's position among all rows read, which a translation shares with its
            original.
        target_rows: (N,) int64, the row whose text the teacher reads: of a translation its original, else itself.
    """

    def __init__(self, folder: Path) -> None:
        try:
            card = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
            self.views: int = card["views"]
            self.cards = [CorpusCard(**source) for source in card["sources"]]
            self.source_rows: Rows = np.load(folder / "source_rows.npy", mmap_mode="r")
            self.target_rows: Rows = np.load(folder / "target_rows.npy", mmap_mode="r")
            self._spans: Rows = np.load(folder / "spans.npy", mmap_mode="r")
            self._text = np.memmap(folder / "text.bin", dtype=np.uint8, mode="r")
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder} is not a prepared corpus ({error}); delete it and run again") from error
        self.folder = folder

    @classmethod
    def prepare(cls, sources: Sequence[SourceConfig], cache: Path, *, show_progress: bool | None = None) -> Corpus:
        """Read, normalise and deduplicate sources into a folder under ``cache``; reuse an existing one.

        Text is normalised to Unicode NFC with single spaces. Rows that are empty in any view and duplicate
        rows are dropped and counted. The folder is named after the content of the sources and created atomically.

        Raises:
            DataError: a source is missing or malformed, sources differ in their number of views, or no row
                remains.
            StorageError: the cache cannot be written.
        """
        if not sources:
            raise DataError("a corpus needs at least one source")
        folder = _folder(sources, cache)
        if not folder.is_dir():
            with atomic_folder(folder) as temporary:
                _write(sources, temporary, show_progress=show_progress)
        corpus = cls(folder)
        for card in corpus.cards:
            logger.info(
                "corpus %s: %s rows of %s read (%s empty or out of bounds, %s repeated)",
                *(card.name, f"{card.rows:,}", f"{card.read:,}", f"{card.empty:,}", f"{card.duplicates:,}"),
            )
        return corpus

    @classmethod
    def find(cls, sources: Sequence[SourceConfig], cache: Path) -> Corpus | None:
        """Return the corpus that :meth:`prepare` cached for these sources, or None.

        Raises:
            DataError: the cached corpus is damaged.
        """
        folder = _folder(sources, cache)
        return cls(folder) if folder.is_dir() else None

    def __len__(self) -> int:
        return len(self._spans)

    @property
    def has_prompts(self) -> bool:
        """Whether a source has a prompt for the teacher."""
        return any(card.prompt is not None for card in self.cards)

    def teacher_inputs(self, rows: Rows, view: int = 0, *, prompt: str = "") -> list[str]:
        """Return the texts that a teacher reads for some rows: the originals of translations, after prompts.

        ``prompt`` is that of sources without one.
        """
        texts = self.texts(self.target_rows[rows], view)
        prompts = [prompt if card.prompt is None else card.prompt for card in self.cards]
        if not any(prompts):
            return texts
        sources = np.searchsorted(np.cumsum([card.rows for card in self.cards]), rows, side="right")
        return [prompts[source] + text for source, text in zip(sources.tolist(), texts, strict=True)]

    def stream(self, view: int = 0) -> Iterator[str]:
        """Yield the texts of all rows, read in chunks."""
        return (text for rows in in_chunks(np.arange(len(self))) for text in self.texts(rows, view))

    def texts(self, rows: Sequence[int] | Rows, view: int = 0) -> list[str]:
        """Return the texts of some rows, in the requested order."""
        spans = self._spans[np.asarray(rows, dtype=np.int64), view : view + 2]
        return [self._text[start:end].tobytes().decode("utf-8") for start, end in spans.tolist()]


def in_chunks(rows: Rows) -> Iterator[Rows]:
    """Yield rows 4096 at a time, which bounds the memory of a chunk."""
    return (rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK))


def normalise(text: str) -> str:
    """Normalise to Unicode NFC, collapse whitespace (including line breaks) to one space, and strip."""
    return _SPACE.sub(" ", unicodedata.normalize("NFC", text)).strip()


def _folder(sources: Sequence[SourceConfig], cache: Path) -> Path:
    """Return the folder of a corpus, named after settings and content of its sources."""
    digest = hashlib.sha256(f"corpus {_FORMAT}".encode())
    for source in sources:
        digest.update(repr(dataclasses.replace(source, name=source.label)).encode())
        if not source.path.startswith(_HUB):
            with contextlib.suppress(OSError), Path(source.path).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return cache / "corpus" / digest.hexdigest()[:32]


class _Table:
    """Rows on their way to disk: text is written to a file, everything else is kept at eight bytes per value."""

    def __init__(self, file: BinaryIO) -> None:
        self.read = self.empty = 0
        self.views = 0
        self.hashes = array("Q")
        self.spans, self.source_rows, self.target_rows = (array("q") for _ in range(3))
        self._file, self._position = file, 0

    def __len__(self) -> int:
        return len(self.hashes)

    def add(self, row: tuple[str, ...] | None, *, translated: bool = False) -> None:
        """Append a row, or a text and its translation, which has the text as its target."""
        self.read += 1
        if row is None:
            self.empty += 1
            return
        first = len(self)
        for texts in [(text,) for text in row] if translated else [row]:
            self.target_rows.append(first if translated else len(self))
            self._append(texts)

    def _append(self, row: tuple[str, ...]) -> None:
        """Write the texts of a row consecutively; record each start and the last end."""
        if len(row) != (self.views or len(row)):
            raise DataError(f"a source has {len(row)} views per row, but the previous one has {self.views}")
        self.views = len(row)
        self.hashes.append(row_hash(row))
        self.source_rows.append(self.read - 1)
        self.spans.append(self._position)
        for text in row:
            self._position += self._file.write(text.encode("utf-8"))
            self.spans.append(self._position)


def row_hash(row: tuple[str, ...]) -> int:
    """Return the 64-bit hash of a row's texts, by which repeated rows are found."""
    digest = hashlib.blake2b("\0".join(row).encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _write(sources: Sequence[SourceConfig], folder: Path, *, show_progress: bool | None) -> None:
    """Stream every source into text.bin, then index the first of each group of equal rows."""
    marks = [(0, 0, 0)]
    with (
        (folder / "text.bin").open("wb") as file,
        Progress("read corpus", unit="rows", enabled=show_progress) as progress,
    ):
        table = _Table(file)
        for source in sources:
            for _, _, row in read_rows(source):
                table.add(row, translated=bool(source.translation_columns))
                progress.advance()
            marks.append((table.read, table.empty, len(table)))
    if not len(table):
        raise DataError(f"no text in {', '.join(source.path for source in sources)}")
    hashes = np.frombuffer(table.hashes, dtype=np.uint64)
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    keep = np.sort(first)
    targets = first[group[np.frombuffer(table.target_rows, np.int64)[keep]]]
    np.save(folder / "target_rows.npy", np.searchsorted(keep, targets))
    np.save(folder / "spans.npy", np.frombuffer(table.spans, np.int64).reshape(-1, table.views + 1)[keep])
    np.save(folder / "source_rows.npy", np.frombuffer(table.source_rows, np.int64)[keep])
    cards = [
        _card(source, before, after, hashes, keep)
        for source, before, after in zip(sources, marks, marks[1:], strict=False)
    ]
    card = {"format": _FORMAT, "views": table.views, "sources": [dataclasses.asdict(card) for card in cards]}
    (folder / "corpus.json").write_text(json.dumps(card, indent=1), encoding="utf-8")


def _card(
    source: SourceConfig,
    before: tuple[int, int, int],
    after: tuple[int, int, int],
    hashes: npt.NDArray[np.uint64],
    keep: npt.NDArray[np.int64],
) -> CorpusCard:
    """Count one source between two marks (rows read, empty rows, rows written)."""
    read, empty, written = (end - start for start, end in zip(before, after, strict=True))
    mine = keep[(keep >= before[2]) & (keep < after[2])]
    return CorpusCard(
        name=source.label,
        licence=source.licence,
        rows=len(mine),
        read=read,
        empty=empty,
        duplicates=written - len(mine),
        sha256=hashlib.sha256(hashes[mine].tobytes()).hexdigest(),
        repeat=source.repeat,
        prompt=source.prompt,
    )


def read_rows(source: SourceConfig) -> Iterator[tuple[int, Record, tuple[str, ...] | None]]:
    """Yield each row's line, record and normalised views, which are None if it is empty or out of bounds.

    Rows that a column ``split`` assigns to development or test are out of bounds, too.

    Raises:
        DataError: the source is missing or malformed, or holds ids instead of text.
    """
    columns: tuple[str, ...] = ()
    records = source.records()
    first = list(itertools.islice(records, FIRST_ROWS))
    for line, record in itertools.chain(first, records):
        if all(value in ("", None) for value in record.values()) or split_of(record) in ("dev", "test"):
            yield line, record, None
            continue
        columns = columns or _columns(source, record, [record for _, record in first])
        try:
            row = tuple(_text(record[column]) for column in columns)
        except (KeyError, TypeError) as error:
            types = ", ".join(f"{key}: {type(value).__name__}" for key, value in record.items())
            raise DataError(
                f"{source.path}:{line}: expected text in {', '.join(columns)}; found {types}"
            ) from error
        except UnicodeEncodeError as error:
            raise DataError(f"{source.path}:{line}: invalid Unicode: unpaired surrogate") from error
        yield line, record, row if all(_fits(text, source) for text in row) else None


def _text(value: Any) -> str:
    """Normalise a cell; null counts as empty."""
    text = "" if value is None else normalise(value)
    text.encode("utf-8")
    return text


def _fits(text: str, source: SourceConfig) -> bool:
    words = text.count(" ") + 1 if text else 0
    return source.min_words <= words <= (source.max_words or words)


def _columns(source: SourceConfig, record: Record, first: Sequence[Record]) -> tuple[str, ...]:
    """Return the columns that hold the views, decided on the first rows and the first that is not blank."""
    wanted = source.view_columns or source.translation_columns
    wanted = wanted or ((source.text_column,) if source.text_column else ())
    missing = [column for column in wanted if column not in record]
    if missing:
        raise DataError(f"{source.path} has no column {', '.join(missing)}; it has {', '.join(record)}")
    if wanted:
        return wanted
    if "text1" in record:
        return _columns_of_table(source.path, first)
    guesses = [column for column in _COLUMN_GUESSES if column in record]
    if not guesses:
        raise DataError(
            f"{source.path}: no known text column; set text_column, or view_columns for pairs, to columns of "
            f"{', '.join(record)}",
            parameters=["text_column", "view_columns"],
        )
    return (guesses[0],)


def _columns_of_table(path: str, first: Sequence[Record]) -> tuple[str, ...]:
    """Return the first two columns of a table without names, if these are text and further ones only numbers."""
    record = first[0]
    texts, others = list(record)[:2], list(record)[2:]
    ids = columns_of_ids(first, texts)
    more = [column for column in others if not _is_number(record[column])]
    if ids or more:
        what = f"{', '.join(ids)} holds ids" if ids else f"it has {len(record)} columns"
        raise DataError(
            f"{path}: {what}, for example {', '.join(map(str, record.values()))[:80]!r}; name the column "
            f"of text with text_column, or those of pairs with view_columns, out of {', '.join(record)}",
            parameters=["text_column", "view_columns"],
        )
    return tuple(texts)


def columns_of_ids(first: Sequence[Record], columns: Iterable[str]) -> list[str]:
    """Return the columns that hold ids instead of texts, by the first rows."""
    below = first[1:] or first  # the first may be a header of unusual names
    return [column for column in columns if all(_ID.fullmatch(str(row[column])) for row in below)]


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True
