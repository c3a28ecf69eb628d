"""Paraphrase texts by a masked language model, by back-translation or by WordNet, for training on pairs of views.

    python examples/rewriting/rewrite.py texts.txt -o pairs.tsv --masked-lm FacebookAI/roberta-base
    python examples/rewriting/rewrite.py texts.txt -o pairs.tsv --translate models/en-de models/de-en
    python examples/rewriting/rewrite.py texts.txt -o pairs.tsv --synonyms wordnet/dict

With one rewriter the first view is the original text. ``--translate`` given twice sends each view through a
different language. Results are cached by text and by every setting that affects them, so an interrupted call
resumes.

WordNet's files are those of its own distribution (``dict/data.noun`` and so on) and of NLTK's corpus ``wordnet``;
the manual page wndb(5WN) describes their format. Source: Miller, "WordNet: A Lexical Database for English",
Communications of the ACM, 1995.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer

from embedkit.atomic import atomic_file, storage_errors
from embedkit.errors import CacheError, DataError, EmbedkitError, InputError, ModelError
from embedkit.modeling.location import find_folder
from embedkit.modeling.pretrained import quiet_transformers
from embedkit.progress import Progress
from embedkit.training.corpus import Corpus, SourceConfig, normalise

_FILES = ("data.noun", "data.verb", "data.adj", "data.adv")
_MARKER = re.compile(r"\([a-z]+\)$")  # position of an adjective: galore(ip)


class WordNet:
    """Synonyms by word.

    Args:
        folder: contains data.noun, data.verb, data.adj and data.adv.

    Attributes:
        fingerprint: hex digest of the files.

    Raises:
        DataError: a file is missing or malformed.
    """

    def __init__(self, folder: str | Path) -> None:
        digest = hashlib.sha256()
        self._synonyms: dict[str, dict[str, None]] = {}  # dictionaries keep the order of senses
        for path in (Path(folder) / name for name in _FILES):
            try:
                content = path.read_bytes()
            except OSError as error:
                expected = ", ".join(_FILES)
                raise DataError(f"{folder} is not a WordNet database: expected {expected} ({error})") from error
            digest.update(content)
            for words in _synonym_sets(path, content):
                self._add(words)
        self.fingerprint = digest.hexdigest()

    def synonyms(self, word: str) -> list[str]:
        """Return the other words of every synset that contains the word, ignoring case; phrases contain spaces."""
        return list(self._synonyms.get(word.lower(), ()))

    def _add(self, words: list[str]) -> None:
        for word in words:
            others = {other: None for other in words if other.lower() != word.lower()}
            if others:
                self._synonyms.setdefault(word.lower(), {}).update(others)


def _synonym_sets(path: Path, content: bytes) -> Iterator[list[str]]:
    """Yield the words of each line, ``offset file type count word id word id ...``, with count in hexadecimal."""
    for number, line in enumerate(content.decode("utf-8", errors="replace").split("\n"), 1):
        if not line or line.startswith(" "):  # the licence
            continue
        try:
            fields = line.split()
            count = int(fields[3], 16)
            words = [fields[4 + 2 * place] for place in range(count)]
        except (IndexError, ValueError) as error:
            raise DataError(f"{path}:{number} is not a valid line of a WordNet database") from error
        yield [_MARKER.sub("", word).replace("_", " ") for word in words]


_WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")
# WordNet lists some of them as nouns ("in" is an inch, "as" arsenic, "i" iodine).
_STAY = """
    a about above after again against all am among an and any are as at be because been before being
    below between both but by can could did do does doing down during each few for from had has have
    having he her here hers him his how i if in into is it its just may me might more most must my no nor
    not now of off on once one only or other our ours out over own same shall she should so some such
    than that the their theirs them then there these they this those through to too under until up upon
    us very was we were what when where which while who whom whose why will with within without would yes
    you your yours
"""
_FUNCTION_WORDS = frozenset(_STAY.split())


class SynonymReplacement:
    """Replaces words by synonyms, each drawn from all senses of the word; function words are kept.

    SCT's ablation replaces one word of a sentence, BSL 30 %. The random choices depend only on the text and the
    seed, so the same text is always rewritten in the same way. Words are looked up as written: inflected forms
    are kept, and replacements need no inflection. A text without any known word is returned unchanged.

    Args:
        wordnet: the source of synonyms.
        share: share of a text's words to replace, rounded; at least one word is replaced, so 0 means one.
        seed: seed of the random choices.

    Raises:
        InputError: ``share`` is not in [0, 1].

    Source: Limkonchotiwat et al., TACL 2023 (SCT), ablation of augmentations; Zhang et al., ACL 2021 (BSL).
    """

    name = "WordNet"

    def __init__(self, wordnet: WordNet, *, share: float = 0.0, seed: int = 0) -> None:
        if not 0 <= share <= 1:
            raise InputError(f"share must be between 0 and 1, not {share}")
        self._wordnet, self._share, self._seed = wordnet, share, seed
        parts = json.dumps(["synonyms", float(share), seed, wordnet.fingerprint])
        self.fingerprint = hashlib.sha256(parts.encode()).hexdigest()

    def rewrite(self, texts: Sequence[str]) -> list[str]:
        """See :class:`Rewriter`."""
        return [self._rewrite(text) for text in texts]

    def _rewrite(self, text: str) -> str:
        words = list(_WORD.finditer(text))
        known = [word for word in words if self._synonyms(word.group())]
        generator = _generator(text, self._seed)
        count = max(1, round(self._share * len(words)))
        drawn = {known[place].start() for place in generator.permutation(len(known))[:count]}

        def replace(word: re.Match[str]) -> str:
            if word.start() not in drawn:
                return word.group()
            synonyms = self._synonyms(word.group())
            return _in_case_of(word.group(), synonyms[int(generator.integers(len(synonyms)))])

        return _WORD.sub(replace, text)

    def _synonyms(self, word: str) -> list[str]:
        return [] if word.lower() in _FUNCTION_WORDS else self._wordnet.synonyms(word)


def _generator(text: str, seed: int) -> np.random.Generator:
    words = np.frombuffer(hashlib.sha256(text.encode("utf-8")).digest(), dtype="<u4")
    return np.random.default_rng([seed, *words.tolist()])


def _in_case_of(word: str, synonym: str) -> str:
    if len(word) > 1 and word.isupper():
        return synonym.upper()
    return synonym[0].upper() + synonym[1:] if word[0].isupper() else synonym


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


class MaskedRefill:
    """Masks a share of a text's word pieces and fills them in with a masked language model.

    BSL replaces 20 % with RoBERTa-base, SCT's ablation 15 %. The positions depend only on the text and the seed,
    so the same text is always rewritten in the same way. Case and whitespace are those of the model's tokenizer.

    Args:
        source: a transformers folder or hub id.
        share: share of the inner pieces to mask, rounded; at least one is masked.
        max_length: maximum length of a text in tokens; the rest is discarded.
        seed: seed of the positions.
        device: a torch device.

    Raises:
        ModelNotFoundError, ModelError: the model cannot be loaded or is not a masked language model.
        InputError: ``share`` is not in (0, 1].
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        share: float = 0.2,
        max_length: int = 128,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        if not 0 < share <= 1:
            raise InputError(f"share must be greater than 0 and at most 1, not {share}")
        self._share, self._seed, self._max_length = share, seed, max_length
        self._network = _Network(AutoModelForMaskedLM, source, device)
        if self._network.tokenizer.mask_token_id is None:
            raise ModelError(f"{source} has no mask token, so it is not a masked language model")
        self.name = self._network.name
        self.fingerprint = _digest("masked", share, max_length, seed, self._network.fingerprint)

    def rewrite(self, texts: Sequence[str]) -> list[str]:
        """See :class:`Rewriter`."""
        return [text for batch in _batches(texts) for text in self._rewrite(batch)]

    @torch.inference_mode()
    def _rewrite(self, texts: Sequence[str]) -> list[str]:
        tokenizer = self._network.tokenizer
        tokens = self._network.tokenize(texts, self._max_length, return_special_tokens_mask=True)
        special = tokens.pop("special_tokens_mask").bool()
        ids = tokens["input_ids"]
        masked = torch.stack([self._places(*pair) for pair in zip(texts, special, strict=True)])
        tokens["input_ids"] = ids.masked_fill(masked, tokenizer.mask_token_id)
        logits = self._network.model(**tokens).logits
        logits[..., tokenizer.all_special_ids] = -torch.inf
        filled = torch.where(masked.to(ids.device), logits.argmax(dim=-1), ids)
        written: list[str] = tokenizer.batch_decode(filled, skip_special_tokens=True)
        return written

    def _places(self, text: str, special: torch.Tensor) -> torch.Tensor:
        """Return which pieces of a row are masked: ``(L,) bool``."""
        inner = np.flatnonzero(~special.cpu().numpy())
        words = np.frombuffer(hashlib.sha256(text.encode("utf-8")).digest(), dtype="<u4")
        generator = np.random.default_rng([self._seed, *words.tolist()])
        count = min(len(inner), max(1, round(self._share * len(inner))))
        places = torch.zeros_like(special)
        places[generator.permutation(inner)[:count]] = True
        return places


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
        self._there = _Network(AutoModelForSeq2SeqLM, there, device)
        self._back = _Network(AutoModelForSeq2SeqLM, back, device)
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

    def __init__(self, kind: Any, source: str | os.PathLike[str], device: str) -> None:
        folder = find_folder(source)
        self.name = Path(source).name
        self.fingerprint = _fingerprint(folder)
        self._device = device
        try:
            with quiet_transformers():
                self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
                model, report = kind.from_pretrained(folder, output_loading_info=True)
            self.model: Any = model.to(device).eval()
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, AssertionError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ModelError(f"cannot load the model in {folder}: {reason}") from error
        missing = sorted(report["missing_keys"])
        if missing:  # transformers would initialise them randomly
            raise ModelError(
                f"{folder} is a model of another kind: it lacks {len(missing)} weights, for example {missing[0]}"
            )

    def tokenize(self, texts: Sequence[str], max_length: int, **options: bool) -> dict[str, Any]:
        """Return padded token tensors, without those that the model does not accept."""
        longest = min(max_length, self.tokenizer.model_max_length)
        tokens = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=longest, return_tensors="pt", **options
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

    With one rewriter the first view is the text itself (BSL's synonym and masked-LM views); with two, each
    view is the output of one of them (back-translation through two languages). Results of earlier calls,
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
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--masked-lm", metavar="MODEL", help="refill masked word pieces: a model folder or a hub id")
    ways.add_argument(
        "--translate",
        nargs=2,
        action="append",
        metavar=("THERE", "BACK"),
        help="back-translate; given twice, each view goes through a different language",
    )
    ways.add_argument(
        "--synonyms", metavar="FOLDER", help="replace words by synonyms: the folder with WordNet's data.noun"
    )
    parser.add_argument(
        "--share",
        type=float,
        metavar="S",
        help="share of masked word pieces (default: 0.2) or of replaced words (default: one word)",
    )
    parser.add_argument(
        "--beams", type=int, default=4, metavar="N", help="beams of the translation (default: %(default)s)"
    )
    parser.add_argument(
        "--max-length", type=int, default=128, metavar="L", help="maximum length in tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed for positions and synonyms (default: %(default)s)"
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
    if arguments.synonyms is not None:
        wordnet = WordNet(arguments.synonyms)
        return [SynonymReplacement(wordnet, share=arguments.share or 0.0, seed=arguments.seed)]
    shared = {"max_length": arguments.max_length, "device": arguments.device}
    if arguments.masked_lm is not None:
        share = 0.2 if arguments.share is None else arguments.share
        return [MaskedRefill(arguments.masked_lm, share=share, seed=arguments.seed, **shared)]
    return [BackTranslation(*ways, beams=arguments.beams, **shared) for ways in arguments.translate]


if __name__ == "__main__":
    main()
