"""Paraphrase texts by back-translation, for training on pairs of views.

    python examples/rewriting/rewrite.py texts.txt -o pairs.tsv --translate models/en-de models/de-en

The first view is the original text; ``--translate`` given twice sends each view through a different language.
Results are cached by text and by every setting that affects them, so an interrupted call resumes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from embedkit.atomic import atomic_file, storage_errors
from embedkit.errors import CacheError, EmbedkitError, InputError, ModelError
from embedkit.modeling.pretrained import quiet_transformers
from embedkit.progress import Progress
from embedkit.runtime.find import find_folder
from embedkit.training.corpus import Corpus, SourceConfig, normalise

_BATCH = 32
_DECISIVE_FILES = ("*.json", "*.txt", "*.model", "*.spm", "*.safetensors", "*.bin")


class Rewriter(Protocol):
    """Paraphrases texts.

    Attributes:
        name: name of the rewriter.
        fingerprint: hex digest of everything that determines the output.
    """

    name: str
    fingerprint: str

    def rewrite(self, texts: Sequence[str]) -> list[str]:
        """Return a paraphrase of each text, possibly unchanged or empty."""


class BackTranslation:
    """Translates a text and back, with one sequence-to-sequence model for each direction.

    Marian models are supported; models that need a language code (NLLB, mBART) are not.

    Args:
        there: a transformers folder or hub id, from the text's language into another.
        back: a folder or hub id for the opposite direction.
        beams: number of beams; the search is deterministic, so the same text is always rewritten in the same way.
        max_length: maximum length of a text in tokens, on both sides; the rest is discarded.
        device: a torch device.

    Raises:
        ModelNotFoundError, ModelError: a model cannot be loaded or is not a translation model.
    """

    def __init__(
        self,
        there: str | os.PathLike[str],
        back: str | os.PathLike[str],
        *,
        beams: int = 4,
        max_length: int = 128,
        device: str = "cpu",
    ) -> None:
        self._there = _Network(there, device)
        self._back = _Network(back, device)
        self._beams, self._max_length = beams, max_length
        self.name = f"{self._there.name} and {self._back.name}"
        models = self._there.fingerprint, self._back.fingerprint
        self.fingerprint = _digest("translated", beams, max_length, *models)

    def rewrite(self, texts: Sequence[str]) -> list[str]:
        """See :class:`Rewriter`."""
        written: list[str] = []
        for batch in _batches(texts):
            written += self._translate(self._back, self._translate(self._there, batch))
        return written

    @torch.inference_mode()
    def _translate(self, way: _Network, texts: Sequence[str]) -> list[str]:
        tokens = way.tokenize(texts, self._max_length)
        ids = way.model.generate(
            **tokens, num_beams=self._beams, do_sample=False, max_new_tokens=self._max_length, max_length=None
        )
        written: list[str] = way.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return written


class _Network:
    """A model in evaluation mode, and its tokenizer."""

    def __init__(self, source: str | os.PathLike[str], device: str) -> None:
        folder = find_folder(source)
        self.name = Path(source).name
        self.fingerprint = _fingerprint(folder)
        self._device = device
        try:
            with quiet_transformers():
                self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
                model, report = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
            self.model: Any = model.to(device).eval()
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, AssertionError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ModelError(f"cannot load the model in {folder}: {reason}") from error
        missing = sorted(report["missing_keys"])
        if missing:  # transformers would initialise them randomly
            raise ModelError(
                f"{folder} is a model of another kind: it lacks {len(missing)} weights, for example {missing[0]}"
            )

    def tokenize(self, texts: Sequence[str], max_length: int) -> dict[str, Any]:
        """Return padded token tensors, without those that the model does not accept."""
        longest = min(max_length, self.tokenizer.model_max_length)
        tokens = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=longest, return_tensors="pt"
        ).to(self._device)
        tokens.pop("token_type_ids", None)
        return dict(tokens)


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), _BATCH):
        yield texts[start : start + _BATCH]


def _fingerprint(folder: Path) -> str:
    """Return a digest of the files that determine a model's output."""
    files = sorted({path for pattern in _DECISIVE_FILES for path in folder.glob(pattern)})
    parts = []
    for path in files:
        with path.open("rb") as file:
            parts.append(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}")
    return _digest(*parts)


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


_FORMAT = 1


class TextCache:
    """The outputs of one rewriter, in a SQLite file named after the rewriter's fingerprint.

    Each :meth:`add` is a transaction, so entries survive a kill. Any number of processes can read; one at a time
    writes while others wait.

    Args:
        folder: parent folder of all caches; the file is created inside it.
        fingerprint: the rewriter's fingerprint, which keeps the caches of different rewriters apart.

    Raises:
        CacheError: the file is damaged or not a cache.
        StorageError: the folder cannot be written.
    """

    def __init__(self, folder: Path, *, fingerprint: str) -> None:
        key = hashlib.sha256(f"texts {_FORMAT} {fingerprint}".encode()).hexdigest()[:32]
        self.path = folder / "texts" / f"{key}.sqlite"
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._connection() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS rewritten (hash BLOB PRIMARY KEY, text TEXT NOT NULL)")

    def __len__(self) -> int:
        with self._connection() as connection:
            return int(connection.execute("SELECT count(*) FROM rewritten").fetchone()[0])

    def find(self, texts: Sequence[str]) -> list[str | None]:
        """Return the cached rewriting of each text, or None."""
        query = "SELECT text FROM rewritten WHERE hash = ?"
        with self._connection() as connection:
            rows = [connection.execute(query, (_hash(text),)).fetchone() for text in texts]
        return [row and row[0] for row in rows]

    def add(self, texts: Sequence[str], rewritten: Sequence[str]) -> None:
        """Store the rewriting of each text."""
        rows = [(_hash(text), other) for text, other in zip(texts, rewritten, strict=True)]
        with self._connection() as connection:
            connection.executemany("INSERT OR REPLACE INTO rewritten VALUES (?, ?)", rows)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Open a connection whose changes are committed together or not at all."""
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=60)) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            raise CacheError(
                f"the text cache {self.path} cannot be used ({error}); delete it if it is damaged"
            ) from error


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest()


_CHUNK = 256


@dataclasses.dataclass(frozen=True)
class PairsReport:
    """Counts of a rewritten corpus.

    Attributes:
        rows: number of pairs written.
        unchanged: number of these pairs whose views are equal.
        lost: number of texts dropped because a rewriter returned nothing.
    """

    rows: int
    unchanged: int
    lost: int


def write_pairs(
    corpus: Corpus, output: Path, rewriters: Sequence[Rewriter], cache: Path, *, show_progress: bool | None = None
) -> PairsReport:
    """Write a ``.tsv`` corpus of two views per row.

    With one rewriter the first view is the text itself; with two, each view is the output of one of them
    (back-translation through two languages). Results of earlier calls,
    including interrupted ones, are taken from the cache.

    Args:
        corpus: its first column is rewritten.
        output: the output file, written atomically.
        rewriters: one or two.
        cache: folder that caches rewritten texts.
        show_progress: see :class:`~embedkit.progress.Progress`.

    Raises:
        InputError: there are no rewriters, or more than two.
        CacheError: the cache is damaged.
        StorageError: output or cache cannot be written.
    """
    if len(rewriters) not in (1, 2):
        raise InputError(f"expected one or two rewriters, found {len(rewriters)}")
    caches = [TextCache(cache, fingerprint=rewriter.fingerprint) for rewriter in rewriters]
    rows = unchanged = lost = 0
    with (
        Progress("rewrite", len(corpus), unit="texts", enabled=show_progress) as progress,
        atomic_file(output) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as file,
    ):
        for texts in _chunks(corpus):
            views = [_rewrite(texts, *pair) for pair in zip(rewriters, caches, strict=True)]
            for first, second in zip(*[texts, *views][-2:], strict=True):
                if first and second:
                    file.write(f"{first}\t{second}\n")
                    rows, unchanged = rows + 1, unchanged + (first == second)
                else:
                    lost += 1
            progress.advance(len(texts))
    return PairsReport(rows, unchanged, lost)


def _chunks(corpus: Corpus) -> Iterator[list[str]]:
    for start in range(0, len(corpus), _CHUNK):
        yield corpus.texts(range(start, min(start + _CHUNK, len(corpus))))


def _rewrite(texts: list[str], rewriter: Rewriter, cache: TextCache) -> list[str]:
    """Rewrite and normalise the texts that the cache lacks; return all of them."""
    found = cache.find(texts)
    missing = list(dict.fromkeys(text for text, known in zip(texts, found, strict=True) if known is None))
    made = dict(zip(missing, map(normalise, rewriter.rewrite(missing)), strict=True)) if missing else {}
    cache.add(missing, list(made.values()))
    return [made[text] if known is None else known for text, known in zip(texts, found, strict=True)]


def main(given: Sequence[str] | None = None) -> None:
    """Rewrite every text once, and print statistics."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _configure(parser)
    arguments = parser.parse_args(given)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        print(_run(arguments))
    except EmbedkitError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "input", metavar="FILE", help="texts: .txt, .csv, .tsv, .jsonl (each also .gz or .xz), .parquet or hf://"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="the pairs, a .tsv for `embedkit train`",
    )
    parser.add_argument(
        "--translate",
        nargs=2,
        action="append",
        required=True,
        metavar=("THERE", "BACK"),
        help="a model folder or hub id for each direction; given twice, each view goes through another language",
    )
    parser.add_argument(
        "--beams", type=int, default=4, metavar="N", help="beams of the translation (default: %(default)s)"
    )
    parser.add_argument(
        "--max-length", type=int, default=128, metavar="L", help="maximum length in tokens (default: %(default)s)"
    )
    parser.add_argument("--device", default="cpu", help="a torch device (default: %(default)s)")
    parser.add_argument("--text-column", metavar="NAME", help="column or key of the texts")
    parser.add_argument("--limit", type=int, metavar="N", help="read at most this many rows")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(".embedkit-cache"),
        metavar="DIR",
        help="cache of rewritten texts (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")


def _run(arguments: argparse.Namespace) -> str:
    if arguments.output.suffix != ".tsv":
        raise InputError(f"expected an output that ends in .tsv, got {arguments.output}")
    rewriters = _rewriters(arguments)
    source = SourceConfig(path=arguments.input, text_column=arguments.text_column, limit=arguments.limit)
    corpus = Corpus.prepare([source], arguments.cache)
    report = write_pairs(corpus, arguments.output, rewriters, arguments.cache)
    if arguments.json:
        return json.dumps({"output": str(arguments.output), **dataclasses.asdict(report)})
    figures = f"{report.rows:,} pairs, {report.unchanged:,} of them equal; {report.lost:,} texts lost"
    return f"{arguments.output}: {figures}"


def _rewriters(arguments: argparse.Namespace) -> list[Rewriter]:
    settings = {"max_length": arguments.max_length, "device": arguments.device, "beams": arguments.beams}
    return [BackTranslation(*ways, **settings) for ways in arguments.translate]


if __name__ == "__main__":
    main()
