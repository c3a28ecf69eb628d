"""Where evaluation data comes from: a file, a data folder or the hub, and sets that consist of several tables."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from embedkit.atomic import expanded
from embedkit.errors import DataError
from embedkit.records import HubDataset, Row, check_columns, named_cells, read_lines, read_records, read_table

Source = Path | HubDataset

_Value = TypeVar("_Value")

_RECORD_SUFFIXES = (".jsonl", ".parquet")
_COMPRESSED = (".gz", ".xz")
SUFFIXES = (*_RECORD_SUFFIXES, ".tsv", ".csv", ".txt")
"""Forms of files; tables and lines may also be compressed."""

_STSB = ["genre", "file", "year", "id", "score", "sentence1", "sentence2"]
_SCORED = ["sentence1", "sentence2", "score"]
_TREC = ["query-id", "iteration", "corpus-id", "score"]

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})")
"""Names of the hub's files: ``test-00000-of-00003.parquet``."""


def locate(source: str | Source) -> Source:
    """Distinguish a path from a hub id: anything that exists locally or looks like a file is a path.

    Args:
        source: a path, a hub data set, ``org/name`` or ``hf://org/name[@revision][:split]``.

    Raises:
        DataError: the file does not exist, and it is not a hub id.
    """
    if isinstance(source, HubDataset):
        return source
    if not str(source).startswith("hf://"):
        path = expanded(source)
        if path.exists():
            return path
        if isinstance(source, Path) or path.suffix in (".gz", ".xz", *SUFFIXES):
            raise DataError(f"there is no file or folder {path}")
    return HubDataset.parse(str(source))


@dataclass(frozen=True)
class DataLocation:
    """A data folder or, without one, the hub.

    Attributes:
        revision: revision of a hub data set, overriding the pinned one.
    """

    folder: Path | None
    revision: str | None = None

    _PLACES: ClassVar = (
        "", "sts", "STS", "rerank", "retrieval", "pairs", "transfer", "intents",
        "downstream", "downstream/STS", "data-eval",
    )  # fmt: skip
    """Sub-folders that contain sets: of custom data folders, of SentEval's and of USEB's."""

    def find(self, *names: str, hub: HubDataset | None = None) -> Source:
        """Return the first of ``names`` in the folder, or the hub's data set if there is no folder.

        Raises:
            DataError: the folder has none of them, or the set is not on the hub.
        """
        if self.folder is not None:
            places = (self.folder / place / name for place in self._PLACES for name in names)
            for place in places:
                if place.exists():
                    return place
            raise DataError(f"{self.folder} has no {' or '.join(names)}")
        if hub is None:
            raise DataError(f"{names[0]} is not on the hub: it needs a data folder")
        return replace(hub, revision=self.revision or hub.revision)


def first_file(folder: Path, *names: str) -> Path:
    """Return the first of ``names`` in a folder.

    Raises:
        DataError: it has none of them.
    """
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise DataError(f"{folder} has no {' or '.join(names)}")
    return path


_SINGLE = "train"
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "devel", "development", "validation", "valid", "val", "eval", "trial"), "dev"),
    **dict.fromkeys(("test", "testing", "heldout"), "test"),
}


def split_of(record: Mapping[str, Any]) -> str | None:
    """Return ``train``, ``dev`` or ``test`` if a column ``split`` has one of its usual names."""
    return _SPLITS.get(re.sub(r"[\W_]+", "", str(record.get("split", "")).lower()))


def of_split(rows: Iterable[Row], split: str) -> Iterator[Row]:
    """Yield the rows of one split, if a column ``split`` names the split of each row; otherwise all rows.

    Raises:
        DataError: there are rows, but none of this split.
    """
    found = dict[str, None]()
    any_left, wanted = False, split_of({"split": split}) or split
    for row in rows:
        named = split_of(row.fields)
        if named and named != wanted:
            found[named] = None
            continue
        any_left = True
        yield row
    if found and not any_left:
        raise DataError(
            f"{row.place}: the column `split` names {', '.join(found)}, but no row of {split}; name another split"
        )


_CORPUS = ("corpus",)
_QUERIES = ("queries", "query")
_QRELS = ("qrels", "default", "data")
_TOP_RANKED = ("top_ranked",)


def has_tables(source: Source) -> bool:
    """Whether a folder or hub data set consists of tables, see :class:`Tables`."""
    return _has_table(source, *_CORPUS)


def has_top_ranked(source: Source) -> bool:
    """Whether a set of tables has candidates to re-rank; otherwise it is a retrieval set."""
    return _has_table(source, *_TOP_RANKED)


def _has_table(source: Source, name: str) -> bool:
    if isinstance(source, HubDataset):
        return name in source.configurations()
    return source.is_dir() and ((source / name).is_dir() or bool(_files(source, name)))


@dataclass(frozen=True)
class Tables:
    """A set in BEIR's and MTEB 2's form, from a folder or from the hub.

    ``corpus`` (``_id, title, text``), ``queries`` (``_id, text``), ``qrels`` (``query-id, corpus-id, score``, or
    TREC's four columns without a header; on the hub often called ``default`` and stored in ``data/``) and, for
    re-ranking, ``top_ranked`` (``query-id, corpus-ids[]``). A row that repeats an earlier one counts once, see the
    notes.

    Attributes:
        source: a folder or a hub data set.
        split: split of the judgements; several splits may share corpus and queries.
        notes: caveats about the tables read so far, one sentence each.

    Raises:
        DataError: by all methods: the table is missing or malformed, names an unknown text, or has two different
            values for an id.
    """

    source: Source
    split: str = "test"
    notes: list[str] = field(default_factory=list)
    _ungraded: list[str] = field(default_factory=list, init=False, repr=False)

    def documents(self) -> dict[str, str]:
        """Return text by id, with title and text joined as in BEIR and MTEB."""
        rows = ((row.place, (row.identifier("_id", "id"),), _document(row)) for row in self._rows(_CORPUS))
        return {name: text for (name,), text in unique(rows, "document", self.notes).items()}

    def queries(self) -> dict[str, str]:
        """Return text by id."""
        rows = ((row.place, (row.identifier("_id", "id"),), row.text("text")) for row in self._rows(_QUERIES))
        return {name: text for (name,), text in unique(rows, "query", self.notes).items()}

    def judgements(self) -> dict[str, dict[str, float]]:
        """Return relevance by query id and document id."""
        rows = (
            (row.place, (row.identifier("query-id"), row.identifier("corpus-id")), self._grade(row))
            for row in self._rows(_QRELS)
        )
        judgements = by_query(unique(rows, "judgement", self.notes))
        if self._ungraded:
            self.notes.append("judgements without a score count as relevant")
        return judgements

    def _grade(self, row: Row) -> float:
        if "score" in row.fields:
            return row.number("score")
        self._ungraded.append(row.place)
        return 1.0

    def candidates(self, documents: Mapping[str, str], queries: Mapping[str, str]) -> dict[str, list[str]]:
        """Return the ids of the documents to re-rank for each query, by its id."""
        rows = (
            (row.place, (_known(row, queries),), _candidates(row, documents)) for row in self._rows(_TOP_RANKED)
        )
        return {name: ids for (name,), ids in unique(rows, "list of candidates", self.notes).items()}

    def _rows(self, names: Sequence[str]) -> Iterator[Row]:
        if isinstance(self.source, Path):
            return folder_rows(self.source, names, self.split, notes=self.notes if names is _QRELS else None)
        configurations = self.source.configurations()
        table = next((name for name in names if name in configurations), None)
        if table is None:
            expected = f"{self.source}: expected a table {names[0]}"
            raise DataError(f"{expected}, but it has {', '.join(configurations)}")
        return self.source.rows(configuration=table, split=self.split)


def unique(
    items: Iterable[tuple[str, tuple[str, ...], _Value]], what: str, notes: list[str]
) -> dict[tuple[str, ...], _Value]:
    """Return values by key from place, key and value of each item; repeated ones are counted in ``notes``.

    Raises:
        DataError: a key has two different values; names the place of the second.
    """
    values: dict[tuple[str, ...], _Value] = {}
    repeated = []
    for place, key, value in items:
        if key not in values:
            values[key] = value
        elif values[key] == value:
            repeated.append(f"{', '.join(key)} at {place}")
        else:
            raise DataError(f"{place}: there is already a {what} {', '.join(key)} with other content")
    if repeated:
        notes.append(f"{len(repeated):,} times a {what} is repeated and counts once; the first is {repeated[0]}")
    return values


def by_query(judgements: Mapping[tuple[str, ...], float]) -> dict[str, dict[str, float]]:
    """Return relevance by query id and document id from relevance by both."""
    relevance: dict[str, dict[str, float]] = {}
    for (query, document), score in judgements.items():
        relevance.setdefault(query, {})[document] = score
    return relevance


def folder_rows(
    folder: Path, names: Sequence[str], split: str, *, notes: list[str] | None = None
) -> Iterator[Row]:
    """Yield the rows of one table: ``NAME/SPLIT.tsv``, its shards as on the hub, or ``NAME.jsonl``.

    Names are exact: ``test-hard.tsv`` and ``test.v2.tsv`` are other splits than ``test``. A corpus has one split,
    whatever its name; judgements with only ``train``, the hub's name for a single split, are used with a note.

    Raises:
        DataError: there is no such file, several, or only some of the shards.
    """
    for name in names:
        files = (_files(folder / name, split) if (folder / name).is_dir() else []) or (
            _files(folder, name) if name else []
        )
        only = _only_split(folder / name) if name and not files else None
        if only and (names in (_CORPUS, _QUERIES) or (names == _QRELS and only == _SINGLE)):
            files = _files(folder / name, only)
            if notes is not None:
                notes.append(f"the judgements are those of the split {only}, the only one")
        if files:
            return (row for file in files for row in read_rows(file, judgements=names is _QRELS))
    others = sorted(path.name for name in names if name for path in folder.glob(f"{name}/*"))
    there = f"; {names[0]}/ has {', '.join(others)}: name another split or the file" if others else ""
    raise DataError(f"{folder}: expected {names[0] or '.'}/{split}.jsonl or .parquet, found no such file{there}")


def _only_split(folder: Path) -> str | None:
    """Return the name of the only split in a table's folder; None if there are several or none."""
    paths = folder.iterdir() if folder.is_dir() else ()
    stems = {plain_stem(path) for path in paths if plain_suffix(path) in SUFFIXES and path.is_file()}
    splits = {match[1] if (match := _SHARD.fullmatch(stem)) else stem for stem in stems}
    return splits.pop() if len(splits) == 1 else None


def _files(folder: Path, stem: str) -> list[Path]:
    """Return the file of exactly this stem, or all its shards; empty if there are none."""
    files = [path for path in sorted(folder.iterdir()) if plain_suffix(path) in SUFFIXES and path.is_file()]
    whole = [path for path in files if plain_stem(path) == stem]
    shards = [path for path in files if (match := _SHARD.fullmatch(plain_stem(path))) and match[1] == stem]
    if len(whole) > 1 or (whole and shards):
        names = ", ".join(path.name for path in (*whole, *shards))
        raise DataError(f"{folder}: expected one file {stem}, found {names}; remove all but one")
    wanted = {
        f"{stem}-{i:05d}-of-{plain_stem(path)[-5:]}"
        for path in shards[:1]
        for i in range(int(plain_stem(path)[-5:]))
    }
    if {plain_stem(path) for path in shards} != wanted or len(shards) != len(wanted):
        names = ", ".join(path.name for path in shards)
        raise DataError(f"{folder}: expected the {len(wanted)} shards of {stem}, found {names}")
    return whole or shards


def _document(row: Row) -> str:
    title = row.fields.get("title") or ""
    return f"{title} {row.text('text')}".strip()


def _known(row: Row, queries: Mapping[str, str]) -> str:
    name = row.identifier("query-id")
    if name not in queries:
        raise DataError(f"{row.place}: query {name!r} is missing in its table")
    return name


def _candidates(row: Row, documents: Mapping[str, str]) -> list[str]:
    ids = list(dict.fromkeys(row.texts("corpus-ids")))
    unknown = next((document for document in ids if document not in documents), None)
    if unknown is not None:
        raise DataError(f"{row.place}: document {unknown!r} is missing in its table")
    return ids


def read_rows(path: Path, *, headless: bool = False, judgements: bool = False) -> Iterator[Row]:
    """Yield the rows of a JSONL or Parquet file, or of a table with a header.

    ``headless`` accepts tables of scored pairs without a header, too: three columns, or STS-B's seven and more;
    ``judgements`` accepts TREC's qrels: query, iteration, document and grade, separated by spaces or TABs.

    Raises:
        DataError: the file cannot be read, or a row is malformed; names the line.
        MissingExtraError: a Parquet file without pyarrow.
    """
    if path.is_dir():
        raise DataError(f"expected a file, but {path} is a folder")
    if plain_suffix(path) in _RECORD_SUFFIXES:
        return (Row(f"{path}:{number}", record) for number, record in read_records(path))
    if judgements and _is_trec(path):
        return _trec_rows(path)
    return _table_rows(path, headless=headless)


def _is_trec(path: Path) -> bool:
    _, line = next(read_lines(path), ("", ""))
    fields = line.split()
    return len(fields) == len(_TREC) and fields[-1].lstrip("-").isdecimal()


def _trec_rows(path: Path) -> Iterator[Row]:
    for place, line in read_lines(path):
        fields = line.split()
        if len(fields) != len(_TREC):
            raise DataError(f"{place}: expected {', '.join(_TREC)}, got {line:.80}")
        yield Row(place, dict(zip(_TREC, fields, strict=True)))


def _table_rows(path: Path, *, headless: bool) -> Iterator[Row]:
    table = read_table(path)
    first = next(table, None)
    if first is None:
        return
    place, columns = first
    named = (_columns_without_header(columns) if headless else None) or columns
    check_columns(place, named)
    for place, cells in table if named is columns else itertools.chain([first], table):
        kept = cells[: len(named)] if named is _STSB else cells  # STS-B appends sources
        yield Row(place, named_cells(place, named, kept))


def _columns_without_header(fields: list[str]) -> list[str] | None:
    """Return the columns of scored pairs without a header, recognised by a number in the first line."""
    columns = _STSB if len(fields) >= len(_STSB) else _SCORED
    if len(fields) < len(columns) or (columns is _SCORED and len(fields) > len(_SCORED)):
        return None
    try:
        float(fields[columns.index("score")])
    except ValueError:
        return None
    return columns


def plain_suffix(path: Path) -> str:
    """Return the suffix that determines the form of a file: ``.jsonl`` for ``test.jsonl.gz``."""
    return Path(path.stem).suffix if path.suffix in _COMPRESSED else path.suffix


def plain_stem(path: Path) -> str:
    """Return the name of a file without the suffixes of its form: ``sts.en`` for ``sts.en.csv.gz``."""
    name = path.name.removesuffix(path.suffix) if path.suffix in _COMPRESSED else path.name
    return name.removesuffix(Path(name).suffix) if Path(name).suffix in SUFFIXES else name
