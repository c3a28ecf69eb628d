"""Teachers: the source of the vectors that a student learns to imitate, and their cache on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from embedkit.atomic import atomic_file, make_folder, storage_errors
from embedkit.config import setting
from embedkit.errors import CacheError, ConfigError, DataError, TrainingError
from embedkit.extras import require
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.records import Record, read_records
from embedkit.runtime.batching import embed_chunks
from embedkit.runtime.encoder import Encoder
from embedkit.training.corpus import Corpus, Rows, in_chunks
from embedkit.write_lock import write_lock

logger = logging.getLogger(__name__)

_CHUNK = 4096
_ALIGNED = (".npy", ".parquet", ".jsonl", ".jsonl.gz", ".jsonl.xz")
_OWN_PROMPT = "teacher.prompt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """The teacher and how it reads text."""

    source: str = setting(
        doc="a folder or hub id of transformers or sentence-transformers, a bundle, or a .npy, .parquet or .jsonl "
        "(also .gz or .xz) file of vectors aligned with the corpus by row"
    )
    name: str | None = setting(None, "name in model cards; required for files of vectors")
    pooling: Literal["mean", "cls"] | None = setting(None, "pooling; default: from the model's own files")
    max_length: int | None = setting(
        None, "maximum length of a text in tokens; default: the model's own", minimum=3
    )
    prompt: str | None = setting(
        None, 'text before each text, such as "query: ", or ""; default: the default prompt of the teacher'
    )
    precision: Literal["fp32", "bf16"] = setting("fp32", "arithmetic of a torch teacher")
    trust_remote_code: bool = setting(False, "let transformers run Python code that comes with the model")
    device: str | None = setting(None, "cpu, cuda or another torch device; default: the CPU")
    dtype: Literal["float32", "float16"] = setting("float32", "dtype of cached vectors")
    vector_column: str = setting("embedding", "vector column in a .parquet or .jsonl file")

    @property
    def aligned(self) -> bool:
        """Whether the source holds vectors rather than a model."""
        return self.source.lower().endswith(_ALIGNED)


class TeacherVectors(Protocol):
    """A teacher's vectors for the rows of one corpus."""

    name: str
    fingerprint: str
    dimension: int

    def read(self, rows: Rows, view: int) -> FloatArray:
        """Return unit rows ``(B, D) float32`` for one view of some corpus rows."""


def load_encoder(config: TeacherConfig) -> TextEncoder:
    """Load the teacher as an encoder: a bundle through the runtime, anything else through torch.

    Raises:
        ModelNotFoundError, ModelError, BundleError: the source cannot be loaded.
        ConfigError: a setting does not apply to a bundle.
    """
    if Path(config.source).suffix == ".onnx":
        if config.pooling is not None or config.max_length is not None:
            raise ConfigError(
                f"teacher.pooling and teacher.max_length: {config.source} is a bundle, which determines both; "
                "remove them, or name a folder"
            )
        bundle = Encoder.load(config.source)
        return bundle if config.prompt is None else _Prompted(bundle, config.prompt)
    model = SentenceEncoder.load(
        config.source,
        pooling=config.pooling,
        max_length=config.max_length,
        trust_remote_code=config.trust_remote_code,
    )
    model.name = config.name or model.name
    if config.prompt is not None:
        model.prompts[_OWN_PROMPT] = config.prompt
        model.default_prompt = _OWN_PROMPT
    return TorchEncoder(model, precision=config.precision, device=config.device)


def load_vectors(
    config: TeacherConfig, corpus: Corpus, cache: Path, *, show_progress: bool | None = None
) -> TeacherVectors:
    """Return the teacher's vectors for every text of the corpus, computing those that the cache lacks.

    Raises:
        DataError: aligned vectors do not fit the corpus.
        CacheError: the cache is damaged, or on a file system without locks.
        TrainingError: the teacher returned vectors that are not finite.
    """
    if config.aligned:
        return AlignedVectors(config, corpus)
    prompt = ""
    if corpus.has_prompts:  # they are part of the texts, and of their keys in the cache
        prompt, config = config.prompt or "", dataclasses.replace(config, prompt="")
    encoder = load_encoder(config)
    vectors = CachedVectors(encoder, corpus, cache, config.dtype, prompt=prompt, show_progress=show_progress)
    vectors.name = config.name or vectors.name
    return vectors


class _Prompted:
    """A bundle that encodes each text after a prompt, which replaces its default one."""

    def __init__(self, encoder: Encoder, prompt: str) -> None:
        self._encoder, self._prompt = encoder, prompt
        self.name, self.dimension, self.max_length = encoder.name, encoder.dimension, encoder.max_length
        self.manifest = encoder.manifest
        self.fingerprint = hashlib.sha256(f"{encoder.fingerprint} {json.dumps(prompt)}".encode()).hexdigest()

    def encode(self, texts: Sequence[str], /) -> FloatArray:
        """See :class:`TextEncoder`."""
        return self._encoder.encode(texts, prompt=self._prompt)

    def encode_batches(
        self, texts: Iterable[str], /, *, show_progress_bar: bool | None = None
    ) -> Iterator[FloatArray]:
        """See :class:`StreamingEncoder`."""
        return self._encoder.encode_batches(texts, prompt=self._prompt, show_progress_bar=show_progress_bar)


class CachedVectors:
    """Vectors of a teacher model, stored in a :class:`VectorCache`.

    The teacher encodes every view of every row once, in evaluation mode: its vectors involve no dropout and never
    change (as in the authors' distillation code). A translation has the vector of its original (Reimers and
    Gurevych, EMNLP 2020). ``prompt`` is that of sources without one.

    Attributes:
        teacher: what a bundle records of its own teacher, whose space it has as well; empty for other models.
    """

    def __init__(
        self,
        teacher: TextEncoder,
        corpus: Corpus,
        cache: Path,
        dtype: Literal["float32", "float16"] = "float32",
        *,
        prompt: str = "",
        show_progress: bool | None = None,
    ) -> None:
        self._prompt = prompt
        self.name, self.fingerprint, self.dimension = teacher.name, teacher.fingerprint, teacher.dimension
        self.max_length = teacher.max_length
        self.teacher = teacher.manifest.teacher if isinstance(teacher, (Encoder, _Prompted)) else {}
        self._cache = VectorCache(cache, fingerprint=teacher.fingerprint, dimension=teacher.dimension, dtype=dtype)
        hashes = [_input_hashes(corpus, view, prompt) for view in range(corpus.views)]
        if any((self._cache.find(of_view) < 0).any() for of_view in hashes):
            with self._cache.writing():
                self._fill(teacher, corpus, hashes, show_progress=show_progress)
        self._places = np.stack([self._cache.find(of_view) for of_view in hashes])

    def read(self, rows: Rows, view: int) -> FloatArray:
        """See :class:`TeacherVectors`."""
        return self._cache.read(self._places[view, rows])

    def _fill(
        self,
        teacher: TextEncoder,
        corpus: Corpus,
        hashes: Sequence[npt.NDArray[np.uint64]],
        *,
        show_progress: bool | None,
    ) -> None:
        missing = self._missing(hashes)
        total = sum(map(len, missing))
        logger.info("teacher %s: %s vectors cached, %s to compute", self.name, len(self._cache), total)
        with Progress(f"teacher {self.name}", total, unit="texts", enabled=show_progress) as progress:
            for view, rows in enumerate(missing):
                texts = (
                    text
                    for part in in_chunks(rows)
                    for text in corpus.teacher_inputs(part, view, prompt=self._prompt)
                )
                end = 0
                for vectors in embed_chunks(teacher, texts):
                    chunk = rows[end : end + len(vectors)]
                    end += len(vectors)
                    if not np.isfinite(vectors).all():
                        raise TrainingError(f"teacher {self.name} returned vectors that are not finite")
                    self._cache.append(hashes[view][chunk], vectors)
                    progress.advance(len(chunk))

    def _missing(self, hashes: Sequence[npt.NDArray[np.uint64]]) -> list[Rows]:
        """Return the rows of each view whose text is not cached, each distinct text once."""
        texts = np.concatenate(hashes)
        wanted = np.zeros(len(texts), dtype=bool)
        wanted[np.unique(texts, axis=0, return_index=True)[1]] = True
        wanted &= self._cache.find(texts) < 0
        return [np.flatnonzero(of_view) for of_view in np.split(wanted, len(hashes))]


class AlignedVectors:
    """Vectors from elsewhere, for example an API: row i belongs to the i-th row read from the sources.

    A ``.npy`` file holds ``(N, D)``, or ``(N, V, D)`` with a vector for each view; a ``.parquet`` or
    ``.jsonl`` file a list column. Rows that the corpus dropped as duplicate or empty are skipped here too. Vectors
    are normalised to unit length.
    """

    def __init__(self, config: TeacherConfig, corpus: Corpus) -> None:
        if not config.name:
            raise DataError(f"{config.source}: vectors need a name; set teacher.name")
        if config.prompt is not None:
            raise DataError(f"{config.source} holds vectors, which no prompt can change; remove teacher.prompt")
        if corpus.has_prompts:
            raise DataError(f"{config.source} holds vectors, which no prompt can change; remove corpus.prompt")
        if len(np.unique(corpus.source_rows)) < len(corpus):
            raise DataError(f"{config.source} has no vectors for translations; leave these out of the corpus")
        self.name = config.name
        self._vectors = _load_aligned(config)
        self._rows = corpus.source_rows
        read = sum(card.read for card in corpus.cards)
        if len(self._vectors) != read:
            raise DataError(
                f"{config.source} has {len(self._vectors):,} vectors, but {read:,} corpus rows were read"
            )
        views = self._vectors.shape[1] if self._vectors.ndim == 3 else 1
        if views not in (1, corpus.views):
            raise DataError(f"{config.source} has vectors for {views} views, but the corpus has {corpus.views}")
        self.dimension = self._vectors.shape[-1]
        _check_rows(config.source, self._vectors, corpus)
        with Path(config.source).open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        self.fingerprint = hashlib.sha256(f"{self.name} {content}".encode()).hexdigest()

    def read(self, rows: Rows, view: int) -> FloatArray:
        """See :class:`TeacherVectors`."""
        vectors = self._vectors[self._rows[rows]]
        vectors = vectors[:, min(view, vectors.shape[1] - 1)] if vectors.ndim == 3 else vectors
        vectors = np.asarray(vectors, dtype=np.float32)
        unit: FloatArray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit


def _check_rows(source: str, vectors: Any, corpus: Corpus) -> None:
    """Check the vectors of the corpus' rows before the first step, which training may take hours to read."""
    for rows in in_chunks(np.asarray(corpus.source_rows)):
        lengths = np.linalg.norm(np.asarray(vectors[rows], dtype=np.float32), axis=-1).reshape(len(rows), -1)
        bad = rows[~(np.isfinite(lengths) & (lengths > 0)).all(axis=1)]
        if len(bad):
            raise DataError(
                f"{source}: the vector of row {bad[0]:,}, counted from 0, is zero or not finite; correct it, or "
                "remove the row from vectors and corpus"
            )


def _load_aligned(config: TeacherConfig) -> Any:
    path = Path(config.source)
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        if path.suffix.lower() == ".npy":
            vectors = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            vectors = _read_column(path, config.vector_column)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read vectors from {path}: {error}") from error
    if vectors.ndim not in (2, 3) or vectors.dtype.kind != "f":
        raise DataError(
            f"{path}: expected floats of shape (N, D) or (N, V, D), found {vectors.dtype} {vectors.shape}"
        )
    return vectors


def _read_column(path: Path, name: str) -> FloatArray:
    """Return a list column, read in batches: as numbers of Python, it would take eight times the memory."""
    parts: list[FloatArray] = []
    for rows in _parquet_lists(path, name) if path.suffix.lower() == ".parquet" else _json_lists(path, name):
        _check_lengths(rows, start=sum(map(len, parts)))
        parts.append(np.asarray(rows, dtype=np.float32))
    return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)


def _json_lists(path: Path, name: str) -> Iterator[list[Any]]:
    records = read_records(path)
    while rows := [_field(line, record, name) for line, record in itertools.islice(records, _CHUNK)]:
        yield rows


def _field(line: int, record: Record, name: str) -> Any:
    if name not in record:
        raise ValueError(f"line {line:,} has no field {name}; its fields are {', '.join(record):.200}")
    return record[name]


def _parquet_lists(path: Path, name: str) -> Iterator[list[Any]]:
    parquet: Any = require("pyarrow.parquet", extra="train")
    with parquet.ParquetFile(path) as file:
        if name not in file.schema_arrow.names:
            raise ValueError(f"it has no column {name}; its columns are {', '.join(file.schema_arrow.names)}")
        for batch in file.iter_batches(_CHUNK, columns=[name]):
            yield batch.column(0).to_pylist()


def _check_lengths(rows: list[Any], *, start: int) -> None:
    for number, row in enumerate(rows, start):
        if not isinstance(row, list) or len(row) != len(rows[0] or ()):
            raise ValueError(f"row {number:,}, counted from 0, holds no vector, or one of another length")


def _input_hashes(corpus: Corpus, view: int, prompt: str) -> npt.NDArray[np.uint64]:
    hashes = (
        text_hashes(corpus.teacher_inputs(rows, view, prompt=prompt)) for rows in in_chunks(np.arange(len(corpus)))
    )
    return np.concatenate(list(hashes))


_FORMAT = 1
_RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("crc", "<u4")])


def text_hashes(texts: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return the 128-bit BLAKE2b hash of each text as two words: ``(N, 2) uint64``."""
    digests = b"".join(hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8").reshape(-1, 2)


class VectorCache:
    """An append-only, memory-mapped store of one teacher's vectors, addressed by text.

    The folder's name is a hash of the teacher's fingerprint (which covers weights, tokenizer, pooling and length)
    and the dtype, which keeps the caches of different teachers apart. A vector is written before its record, and
    the next writer truncates incomplete writes: every recorded vector survives a kill and is never computed
    twice. Each vector is checked against its CRC-32 when read. Any number of processes can read; one at a time
    writes.

    Raises:
        CacheError: the folder is not this cache.
    """

    def __init__(
        self,
        folder: Path,
        *,
        fingerprint: str,
        dimension: int,
        dtype: Literal["float32", "float16"] = "float32",
    ) -> None:
        self.dimension, self.dtype = dimension, np.dtype(dtype)
        identity = {"format": _FORMAT, "teacher": fingerprint, "dimension": dimension, "dtype": dtype}
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
        self.folder = folder / "vectors" / key
        with storage_errors(self.folder):
            make_folder(self.folder)
            for file in (self._vectors, self._records):
                if not file.exists():  # a complete cache may be read-only
                    file.touch()
        self._check_identity(identity)
        self._index()

    @property
    def _vectors(self) -> Path:
        return self.folder / "vectors.bin"

    @property
    def _records(self) -> Path:
        return self.folder / "records.bin"

    def _check_identity(self, identity: dict[str, object]) -> None:
        card = self.folder / "cache.json"
        if not card.exists():
            with atomic_file(card) as temporary:
                temporary.write_text(json.dumps(identity, indent=1), encoding="utf-8")
        try:
            stored = json.loads(card.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CacheError(f"{card} is damaged; delete {self.folder}") from error
        if stored != identity:
            raise CacheError(f"{card} describes another cache; delete {self.folder}")

    def _index(self) -> None:
        """Index the complete entries of both files; a record without its vector is ignored."""
        whole = self._vectors.stat().st_size // self._row_bytes
        records = self._records.stat().st_size // _RECORD.itemsize
        self._count = min(whole, records)
        self._known = np.fromfile(self._records, dtype=_RECORD, count=self._count)
        self._order = np.argsort(self._known["high"], kind="stable")
        self._sorted = self._known["high"][self._order]
        shape = (self._count, self.dimension)
        self._rows = np.memmap(self._vectors, self.dtype, "r", shape=shape) if self._count else np.empty(shape)

    @property
    def _row_bytes(self) -> int:
        return self.dimension * self.dtype.itemsize

    def __len__(self) -> int:
        return self._count

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Wait for the right to :meth:`append`; on entry, load what other writers added.

        Raises:
            CacheError: the file system does not support locks.
            StorageError: the folder cannot be opened.
        """
        # Without a lock, a second writer would truncate what the first one added, while others read it.
        with write_lock(self.folder, refusal=CacheError, needed=True, patient=True):
            self._index()
            try:
                yield
            finally:
                self._index()

    def find(self, hashes: npt.NDArray[np.uint64]) -> Rows:
        """Return the positions of texts' vectors by their hashes: ``(N,) int64``, -1 for a text not cached.

        Vectors added by :meth:`append` are found once :meth:`writing` has ended.
        """
        if not len(self._known):
            return np.full(len(hashes), -1, np.int64)
        places = np.minimum(np.searchsorted(self._sorted, hashes[:, 0]), len(self._known) - 1)
        rows = self._order[places]
        known = (self._known["high"][rows] == hashes[:, 0]) & (self._known["low"][rows] == hashes[:, 1])
        return np.where(known, rows, -1)

    def append(self, hashes: npt.NDArray[np.uint64], vectors: FloatArray) -> None:
        """Add vectors ``(N, D)`` for texts that are not cached, each once, and sync them to disk.

        Only allowed inside :meth:`writing`.

        Raises:
            StorageError: the disk is full; existing vectors are kept.
        """
        rows = np.ascontiguousarray(vectors, dtype=self.dtype)
        records = np.empty(len(rows), dtype=_RECORD)
        records["high"], records["low"] = hashes[:, 0], hashes[:, 1]
        records["crc"] = [zlib.crc32(row.tobytes()) for row in rows]
        with storage_errors(self.folder):
            for path, row_bytes, data in (
                (self._vectors, self._row_bytes, rows),
                (self._records, _RECORD.itemsize, records),
            ):
                with path.open("r+b") as file:
                    file.truncate(self._count * row_bytes)  # drop incomplete writes of a killed writer
                    file.seek(0, os.SEEK_END)
                    file.write(data.tobytes())
                    file.flush()
                    os.fsync(file.fileno())
        self._count += len(rows)

    def read(self, rows: Rows) -> FloatArray:
        """Return vectors by position: ``(N, D) float32``.

        Raises:
            CacheError: a vector does not match its checksum.
        """
        vectors = self._rows[rows]
        for row, vector in zip(rows.tolist(), vectors, strict=True):
            if zlib.crc32(vector.tobytes()) != self._known["crc"][row]:
                raise CacheError(f"{self.folder}: vector {row} is damaged; delete the folder and run again")
        return vectors.astype(np.float32)
