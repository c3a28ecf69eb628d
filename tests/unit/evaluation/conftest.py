"""A toy encoder that can be followed by hand, and folders in the published layouts."""

from __future__ import annotations

import gzip
import json
import zlib

import numpy as np
import pytest

from embedkit.evaluation.speed.figures import ModelFigures, SpeedReport, Start, Trial, summarise
from embedkit.evaluation.speed.plan import Workload


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


MACHINE = {
    "processor": "Fast CPU", "processors": 4, "usable": 2, "features": ["avx2"], "memory_bytes": 2**33,
    "load": 0.1, "load_after": 0.9, "platform": "Linux x86_64", "python": "3.11.7", "packages": {"embedkit": "1"},
}  # fmt: skip


@pytest.fixture(scope="session")
def make_speed():
    """``make_speed({"tiny int8": 0.001, ...}, threads=1)``: a speed report of models by seconds per text."""

    def make(models, *, threads=1, sizes=None):
        figures = []
        for label, seconds in models.items():
            name, _, precision = label.partition(" ")
            about = {"name": name, "precision": precision, "runtime": "onnxruntime 1", "fingerprint": f"f-{label}"}
            about |= {"dimension": 16, "max_length": 128, "size_bytes": (sizes or {}).get(label, 5_000_000)}
            cells = [
                summarise(
                    Workload(f"{words} words", batch), [Trial([batch * words * seconds / 24] * 100, None)], None
                )
                for words in (8, 24, 72)
                for batch in (1, 32)
            ]
            figures.append(
                ModelFigures(
                    label=label,
                    source=label,
                    note="",
                    about=about,
                    start=Start(0.1, 0.2, 0.3),
                    memory_bytes=90_000_000,
                    most_memory_bytes=None,
                    cells=cells,
                )
            )
        words = {f"{count} words": float(count) for count in (8, 24, 72)}
        return SpeedReport(machine=MACHINE, threads=threads, rounds=5, words=words, models=figures)

    return make


@pytest.fixture(scope="session")
def make_evaluation():
    """``make_evaluation("f-tiny int8", sts=0.7, mean=0.8)``: as `embedkit evaluate --json` writes it."""

    def make(fingerprint, task="sts", **values):
        results = [
            {"name": name, "convention": None, "measure": "all", "value": value} for name, value in values.items()
        ]
        return {"model": "any", "fingerprint": fingerprint, "task": task, "results": results}

    return make
