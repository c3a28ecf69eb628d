"""Pairs for a cross-encoder: passages mined for each query, scored by teachers, cached and resumable.

Hard negatives alone hide the teacher's scores of other passages. So candidates of a query are drawn from the best
passages of an encoder and of BM25, and at random; batches draw from the whole range of their scores
(arXiv 2604.04734).

Files of a folder, named after everything that determines them::

    candidates.npy    (Q, C) int64: passages of each query; row 0 to E are the encoder's, then BM25's, then random
    scores-NAME.npy   (Q, C) float32: a teacher's logits; NaN where they are not computed yet
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embedkit.atomic import atomic_file, storage_errors
from embedkit.config import setting
from embedkit.errors import CacheError, ConfigError, TrainingError
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.torch_encoder import TorchCrossEncoder
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.runtime.batching import embed_chunks
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.find import find_model
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus, Rows
from embedkit.training.teachers import TeacherConfig
from embedkit.write_lock import write_lock

_WORD = re.compile(r"\w+")
_QUERIES_PER_PART = 64
_K1, _B = 1.5, 0.75
_LEAST_DEVIATION = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class MiningConfig:
    """Where the candidates of a query come from."""

    encoder: str = setting("tiny", "bundle of the encoder that finds passages")
    dense: int = setting(6, "candidates drawn from the encoder's best passages", minimum=0)
    bm25: int = setting(6, "candidates drawn from BM25's best passages", minimum=0)
    random: int = setting(4, "random candidates", minimum=0)
    depth: int = setting(64, "number of an encoder's or BM25's best passages to draw from", minimum=1)

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ConfigError("a query needs at least two candidates: raise dense, bm25 or random")
        if max(self.dense, self.bm25) > self.depth:
            raise ConfigError(f"depth = {self.depth} is less than the candidates that are drawn from it")

    @property
    def count(self) -> int:
        """C, the number of candidates of a query."""
        return self.dense + self.bm25 + self.random


@dataclasses.dataclass(frozen=True)
class PairTeacher:
    """A model that scores pairs, ``(N,) float32``: by the logits of a cross-encoder, or the cosines of an encoder.

    The fingerprint covers everything that determines them.
    """

    name: str
    fingerprint: str
    scores: Callable[[list[tuple[str, str]]], FloatArray]
    by_cosine: bool = False


def load_pair_teachers(config: RunConfig, length: int) -> tuple[PairTeacher, ...]:
    """Load the models that score pairs of at most ``length`` tokens: cross-encoders, and bundles of encoders.

    Raises:
        ConfigError: none of several is a cross-encoder, or a folder is not one.
        ModelNotFoundError, ModelError, BundleError: one cannot be loaded.
    """
    teachers = tuple(_teacher(teacher, length, config) for teacher in config.every_teacher)
    if teachers and all(teacher.by_cosine for teacher in teachers):
        names = " and ".join(teacher.name for teacher in teachers)
        raise ConfigError(f"{config.method} learns the logits of a cross-encoder; {names} is not one")
    return teachers


def _teacher(teacher: TeacherConfig, most: int, config: RunConfig) -> PairTeacher:
    """Return a bundle on embedkit's runtime, or a folder on torch, for pairs of ``most`` tokens."""
    source = config.resolve_model(teacher.source)
    if source.endswith(".onnx"):
        bundle = read_bundle(find_model(source))
        if bundle.manifest.kind == "encoder":
            encoder = Encoder(bundle, threads=config.threads)
            return PairTeacher(
                teacher.name or encoder.name,
                encoder.fingerprint,
                functools.partial(_cosines, encoder),
                by_cosine=True,
            )
        length = min(bundle.manifest.max_length, most)
        shorter = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, max_length=length))
        scored = CrossEncoder(shorter, threads=config.threads)
        return PairTeacher(
            teacher.name or scored.name,
            hashlib.sha256(f"{bundle.fingerprint} {length}".encode()).hexdigest(),
            lambda pairs: scored.predict(pairs, activation_fn="identity", show_progress_bar=False),
        )
    model = PairEncoder.load(source)
    model.tokenizer = model.tokenizer.with_max_length(min(model.max_length, most))
    scorer = TorchCrossEncoder(model, precision=teacher.precision, device=teacher.device)
    return PairTeacher(
        teacher.name or scorer.name,
        scorer.fingerprint,
        lambda pairs: scorer.logits(scorer.model.tokenizer.tokenize(pairs)),
    )


def _cosines(encoder: Encoder, pairs: list[tuple[str, str]]) -> FloatArray:
    """Return the cosine of each query with its passage, ``(N,) float32``."""
    queries, passages = (list(dict.fromkeys(texts)) for texts in zip(*pairs, strict=True))
    asked = dict(zip(queries, encoder.encode_query(queries, show_progress_bar=False), strict=True))
    read = dict(zip(passages, encoder.encode_document(passages, show_progress_bar=False), strict=True))
    return np.array([asked[query] @ read[passage] for query, passage in pairs], dtype=np.float32)


def mean_scores(
    teachers: Sequence[PairTeacher], scores: Sequence[FloatArray], counted: npt.NDArray[np.bool_]
) -> FloatArray:
    """Return the mean over the teachers whose scores count for a query, ``(Q, C) float32``.

    Cosines are brought to the mean and the standard deviation of the cross-encoders' mean logits.

    Args:
        teachers: T teachers, with at least one cross-encoder among them.
        scores: of each teacher, ``(Q, C) float32``.
        counted: ``(T, Q)``, with at least one teacher for each query.
    """
    by_cosine = np.array([teacher.by_cosine for teacher in teachers])
    found = np.stack(scores).astype(np.float64)
    logits, cosines = found[~by_cosine].mean(axis=0), found[by_cosine]
    means, deviations = (of(cosines, axis=(1, 2), keepdims=True) for of in (np.mean, np.std))
    found[by_cosine] = (cosines - means) / np.maximum(deviations, _LEAST_DEVIATION) * logits.std() + logits.mean()
    weights = counted / counted.sum(axis=0)
    return np.asarray(np.einsum("tqc,tq->qc", found, weights), dtype=np.float32)


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Queries, their candidates, ``(Q, C) int64`` rows of ``passages``, and mean logits, ``(Q, C) float32``."""

    queries: Corpus
    passages: Corpus
    candidates: Rows
    scores: FloatArray


def mine(
    queries: Corpus,
    passages: Corpus,
    encoder: TextEncoder,
    config: MiningConfig,
    cache: Path,
    *,
    seed: int,
    show_progress: bool | None = None,
) -> tuple[Path, Rows]:
    """Find the candidates of every query, ``(Q, C) int64``, or read an earlier run's; return their folder, too.

    Raises:
        ConfigError: there are fewer passages than ``depth``.
        CacheError: the cached candidates are damaged.
        StorageError: the cache cannot be written.
    """
    if len(passages) < max(config.depth, config.count):
        raise ConfigError(f"{len(passages)} passages are fewer than mining's depth = {config.depth}")
    parts = (queries.folder.name, passages.folder.name, encoder.fingerprint, repr(config), str(seed))
    folder = cache / f"pairs-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:16]}"
    path = folder / "candidates.npy"
    shape = (len(queries), config.count)
    if not path.exists():
        generator = np.random.default_rng([seed, 7])
        drawn = np.hstack(
            [
                _draw(
                    _nearest(queries, passages, encoder, config, show_progress=show_progress),
                    config.dense,
                    generator,
                ),
                _draw(_by_words(queries, passages, config, show_progress=show_progress), config.bm25, generator),
                generator.integers(0, len(passages), (len(queries), config.random)),
            ]
        ).astype(np.int64)
        _save(path, drawn)
    return folder, _load(path, shape)


def score(
    queries: Corpus,
    passages: Corpus,
    candidates: Rows,
    teacher: PairTeacher,
    folder: Path,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    show_progress: bool | None = None,
) -> FloatArray | None:
    """Return a teacher's logits of all candidates ``(Q, C) float32``, continuing where an earlier run stopped.

    If another run is scoring the same pairs, it waits for that run. Returns None if ``should_stop`` became true.

    Raises:
        CacheError: the cached scores are damaged.
        TrainingError: the teacher returned scores that are not finite.
        StorageError: the cache cannot be written.
    """
    path = folder / f"scores-{teacher.fingerprint[:16]}.npy"
    known: FloatArray | None = _load(path, candidates.shape) if path.exists() else None
    if known is not None and not np.isnan(known).any():
        return known  # without a lock, because a complete cache may be read-only
    with write_lock(folder, refusal=CacheError, patient=True):
        return _score(
            *(queries, passages, candidates, teacher, path), should_stop=should_stop, show_progress=show_progress
        )


def _score(
    queries: Corpus,
    passages: Corpus,
    candidates: Rows,
    teacher: PairTeacher,
    path: Path,
    *,
    should_stop: Callable[[], bool],
    show_progress: bool | None,
) -> FloatArray | None:
    if not path.exists():
        _save(path, np.full(candidates.shape, np.nan, dtype=np.float32))
    known: FloatArray = _load(path, candidates.shape)
    left = np.flatnonzero(np.isnan(known).any(axis=1))
    if not len(left):
        return known
    with storage_errors(path):
        scores = np.load(path, mmap_mode="r+")
    with Progress(f"score by {teacher.name}", len(left), unit="queries", enabled=show_progress) as progress:
        for start in range(0, len(left), _QUERIES_PER_PART):
            if should_stop():
                return None
            rows = left[start : start + _QUERIES_PER_PART]
            texts = passages.texts(candidates[rows].ravel())
            asked = np.repeat(queries.texts(rows), candidates.shape[1]).tolist()
            found = teacher.scores(list(zip(asked, texts, strict=True)))
            if not np.isfinite(found).all():
                raise TrainingError(f"teacher {teacher.name} returned scores that are not finite")
            with storage_errors(path):
                scores[rows] = found.reshape(len(rows), -1)
                scores.flush()
            progress.advance(len(rows))
    return np.array(scores)


def _nearest(
    queries: Corpus, passages: Corpus, encoder: TextEncoder, config: MiningConfig, *, show_progress: bool | None
) -> Rows:
    """Return each query's nearest passages, ``(Q, depth)``."""
    if not config.dense:
        return np.empty((len(queries), 0), dtype=np.int64)
    table = _embed(passages, encoder, "embed passages", show_progress=show_progress)
    asked = _embed(queries, encoder, "embed queries", show_progress=show_progress)
    parts = np.array_split(asked, -(-len(asked) // _QUERIES_PER_PART))
    return np.vstack([_top(part @ table.T, config.depth) for part in parts])


def _embed(corpus: Corpus, encoder: TextEncoder, label: str, *, show_progress: bool | None) -> FloatArray:
    rows = np.empty((len(corpus), encoder.dimension), dtype=np.float32)
    with Progress(label, len(corpus), unit="texts", enabled=show_progress) as progress:
        for part in embed_chunks(encoder, corpus.stream()):
            rows[progress.done : progress.done + len(part)] = part
            progress.advance(len(part))
    return rows


def _by_words(queries: Corpus, passages: Corpus, config: MiningConfig, *, show_progress: bool | None) -> Rows:
    """Return each query's best passages by BM25, ``(Q, depth)``."""
    if not config.bm25:
        return np.empty((len(queries), 0), dtype=np.int64)
    postings = _Postings(passages.stream())
    best = []
    with Progress("search words", len(queries), unit="queries", enabled=show_progress) as progress:
        for text in queries.stream():
            best.append(_top(postings.scores(text)[None], config.depth))
            progress.advance()
    return np.vstack(best)


class _Postings:
    """BM25 (Robertson et al., TREC-3) with Lucene's inverse document frequency, over whole words."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        words, lengths = array("q"), array("q")
        for text in texts:
            before = len(words)
            words.extend(self._numbers[word] for word in _words(text))
            lengths.append(len(words) - before)
        self._count = count = len(lengths)
        sizes = np.frombuffer(lengths, np.int64)
        keys = np.frombuffer(words, np.int64) * count + np.repeat(np.arange(count), sizes)
        keys, frequencies = np.unique(keys, return_counts=True)
        numbers, self._rows = np.divmod(keys, count)
        self._starts = np.searchsorted(numbers, np.arange(len(self._numbers) + 1))
        having = np.diff(self._starts)
        rarities = np.log1p((count - having + 0.5) / (having + 0.5))
        norms = _K1 * (1 - _B + _B * sizes / max(sizes.mean(), 1))
        weights = rarities[numbers] * frequencies / (frequencies + norms[self._rows])
        self._weights = weights.astype(np.float32)

    def scores(self, query: str) -> FloatArray:
        """Return the scores of all texts, ``(N,) float32``; a repeated word of the query counts once."""
        scores = np.zeros(self._count, np.float32)
        for word in set(_words(query)) & self._numbers.keys():
            start, end = self._starts[self._numbers[word] :][:2]
            np.add.at(scores, self._rows[start:end], self._weights[start:end])
        return scores


def _top(scores: FloatArray, depth: int) -> Rows:
    rows: Rows = np.argpartition(-scores, depth - 1, axis=1)[:, :depth].astype(np.int64)
    return np.take_along_axis(rows, np.argsort(-np.take_along_axis(scores, rows, 1), axis=1, kind="stable"), 1)


def nearest_negatives(
    queries: FloatArray,
    passages: FloatArray,
    positives: Sequence[Rows],
    *,
    depth: int,
    margin: float,
    known: Sequence[Rows] = (),
) -> list[Rows]:
    """Return the ``depth`` passages nearest to each query, best first, without those that may answer it.

    A passage may answer a query if its cosine exceeds ``margin`` times that of the query's best positive, unless
    it is ``known`` not to. If none is left, the last candidate is returned.

    Args:
        queries: ``(Q, D) float32``, unit rows.
        passages: ``(P, D) float32``, unit rows.
        positives: rows of passages for each query, which are left out; none for no limit.
        depth: maximum number of passages for each query.
        margin: above 0.
        known: rows of passages for each query; may be empty.
    """
    found = list[Rows]()
    for start in range(0, len(queries), _QUERIES_PER_PART):
        scores = queries[start : start + _QUERIES_PER_PART] @ passages.T
        for row, of_query in enumerate(scores, start):
            own = positives[row]
            limit = margin * of_query[own].max() if len(own) else np.inf
            of_query[own] = -np.inf
            ranked = _top(of_query[None], min(len(of_query), 4 * depth + len(own)))[0]
            ranked = ranked[of_query[ranked] > -np.inf]
            is_known = np.isin(ranked, known[row]) if len(known) else False
            kept = ranked[(of_query[ranked] <= limit) | is_known]
            found.append((kept if len(kept) else ranked[-1:])[:depth])
    return found


def _draw(ranked: Rows, count: int, generator: np.random.Generator) -> Rows:
    """Keep the first of each row and ``count - 1`` of the others."""
    if not count:
        return np.empty((len(ranked), 0), dtype=np.int64)
    others = generator.permuted(np.tile(np.arange(1, ranked.shape[1]), (len(ranked), 1)), axis=1)[:, : count - 1]
    return np.hstack([ranked[:, :1], np.take_along_axis(ranked, others, axis=1)])


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _save(path: Path, values: npt.NDArray[np.generic]) -> None:
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.save(file, values)


def _load(path: Path, shape: tuple[int, ...]) -> Any:
    try:
        values = np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise CacheError(f"{path} is damaged ({error}); delete it and run again") from error
    if values.shape != shape:
        raise CacheError(f"{path} has the shape {values.shape}, expected {shape}; delete it and run again")
    return np.asarray(values)
