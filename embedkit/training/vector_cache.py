"""An on-disk cache of teacher vectors, keyed by text."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from embedkit.atomic import atomic_file, storage_errors
from embedkit.errors import CacheError
from embedkit.protocols import FloatArray
from embedkit.write_lock import write_lock

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
            self.folder.mkdir(parents=True, exist_ok=True)
            for file in (self._vectors, self._records):
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
            found = json.loads(card.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CacheError(f"{card} is damaged; delete {self.folder}") from error
        if found != identity:
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
        """Acquire the right to :meth:`append`; on entry, load what other writers added.

        Raises:
            CacheError: another process is writing, or the file system does not support locks.
            StorageError: the folder cannot be opened.
        """
        # Without a lock, a second writer would truncate what the first one added, while others read it.
        with write_lock(self.folder, refusal=CacheError, needed=True):
            self._index()
            try:
                yield
            finally:
                self._index()

    def find(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the positions of texts' vectors by their hashes: ``(N,) int64``, -1 for a text not cached.

        Vectors added by :meth:`append` are found once :meth:`writing` has ended.
        """
        if not len(self._known):
            return np.full(len(hashes), -1, np.int64)
        places = np.minimum(np.searchsorted(self._sorted, hashes[:, 0]), len(self._known) - 1)
        rows = self._order[places]
        found = (self._known["high"][rows] == hashes[:, 0]) & (self._known["low"][rows] == hashes[:, 1])
        return np.where(found, rows, -1)

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

    def read(self, rows: npt.NDArray[np.int64]) -> FloatArray:
        """Return vectors by position: ``(N, D) float32``.

        Raises:
            CacheError: a vector does not match its checksum.
        """
        vectors = self._rows[rows]
        for row, vector in zip(rows.tolist(), vectors, strict=True):
            if zlib.crc32(vector.tobytes()) != self._known["crc"][row]:
                raise CacheError(f"{self.folder}: vector {row} is damaged; delete the folder and run again")
        return vectors.astype(np.float32)
