"""A toy encoder that can be followed by hand, and folders in the published layouts."""

from __future__ import annotations

import gzip
import json
import zlib

import numpy as np
import pytest


class WordEncoder:
    """Counts words in 256 hashed dimensions; records the texts it is given."""

    name = "words"
    fingerprint = "f" * 64
    dimension = 256
    max_length = 12

    def __init__(self):
        self.seen: list[str] = []

    def encode(self, texts, /):
        self.seen += texts
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in text.lower().split():
                row[zlib.crc32(word.encode()) % self.dimension] += 1
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.where(norms > 0, norms, 1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Keep data read from the hub in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def words():
    return WordEncoder()


@pytest.fixture
def write_lines(tmp_path):
    """``write_lines("a/b.tsv", "line", ...)`` writes below tmp_path, compressed if the name says so."""

    def write(name, *lines):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = "".join(f"{line}\n" for line in lines).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path

    return write


@pytest.fixture
def write_json_lines(write_lines):
    """``write_json_lines("a.jsonl", {...}, ...)``, one object a line."""

    def write(name, *rows):
        return write_lines(name, *(json.dumps(row) for row in rows))

    return write


@pytest.fixture
def askubuntu(write_lines):
    """Write AskUbuntu's files: three test and two dev questions with three candidates each."""
    write_lines(
        "askubuntu/text_tokenized.txt.gz",
        "1\tinstall flash player\tbody of one",
        "2\tinstall adobe flash\tbody of two",
        "3\tremove a kernel\tbody of three",
        "4\tsound does not work \tbody of four",
        "5\tno sound at all\tbody of five",
        "6\tunused\tbody of six",
    )
    write_lines(
        "askubuntu/test.txt",
        "1\t2\t3 2 4\t1.5 3.5 2.5",
        "4\t\t1 2 3\t3 2 1",
        "5\t4 1 3\t4 1 3\t9 8 7",
    )
    dev = write_lines("askubuntu/dev.txt", "4\t5\t5 1 2\t9 8 7", "2\t\t3 4 5\t3 2 1")
    return dev.parent
