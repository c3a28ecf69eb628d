"""The data that all stages of a run share: corpus, teachers' vectors, development pairs and held-out text."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from embedkit.errors import ConfigError
from embedkit.evaluation.sts import ScoredPairs, load_scored_pairs
from embedkit.protocols import TextEncoder
from embedkit.training import processes
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus, SourceConfig
from embedkit.training.joined import JoinedVectors
from embedkit.training.matryoshka import RotatedVectors, Rows
from embedkit.training.methods import METHODS
from embedkit.training.teachers import TeacherVectors, load_vectors

_LARGEST_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Split:
    """Training rows, repeated as in an epoch, and held-out rows of each source."""

    train: Rows
    held_out: Mapping[str, Rows]

    @classmethod
    def of(cls, corpus: Corpus, count: int | None) -> Split:
        """Hold out ``count`` rows of each source, at most a tenth of it; None holds out nothing.

        The choice does not depend on the seed. Of a source with translations, only these are held out: its
        distance is that from the originals' vectors. Sources with the same name are pooled in ``held_out``.

        Raises:
            ConfigError: every source has fewer than ten rows.
        """
        repeats = np.repeat([card.repeat for card in corpus.cards], [card.rows for card in corpus.cards])
        if count is None:
            return cls(np.repeat(np.arange(len(corpus)), repeats), {})
        ends = np.cumsum([card.rows for card in corpus.cards])
        drawn: dict[str, list[Rows]] = {}
        for number, (card, end) in enumerate(zip(corpus.cards, ends, strict=True)):
            rows = np.arange(end - card.rows, end)
            translations = rows[corpus.target_rows[rows] != rows]
            rows = translations if len(translations) else rows
            most = min(count, int(len(rows) * _LARGEST_SHARE))
            places = np.random.default_rng([0, number]).permutation(len(rows))[:most]
            drawn.setdefault(card.name, []).append(rows[np.sort(places)])
        held_out = {name: np.concatenate(rows) for name, rows in drawn.items() if sum(map(len, rows))}
        if not held_out:
            raise ConfigError(
                f"dev.held_out holds out at most a tenth of a source, but no source has ten rows (the corpus has "
                f"{len(corpus)}): add text, or remove dev.held_out"
            )
        kept = np.ones(len(corpus), dtype=bool)
        for rows in held_out.values():
            kept[np.isin(corpus.source_rows, corpus.source_rows[rows])] = False  # with contrasts, originals
        return cls(np.repeat(np.flatnonzero(kept), repeats[kept]), held_out)


class HeldOut:
    """Measures the distance from a teacher's vectors on held-out text of each source."""

    def __init__(self, corpus: Corpus, rows: Mapping[str, Rows], teacher: TeacherVectors) -> None:
        self._texts = {name: corpus.texts(of_source) for name, of_source in rows.items()}
        self._vectors = {name: teacher.read(of_source, 0) for name, of_source in rows.items()}

    def distances(self, encoder: TextEncoder) -> dict[str, float]:
        """Return the mean of 1 - cosine between student and teacher for each source, in [0, 2]."""
        return {
            name: float(1 - (encoder.encode(texts) * self._vectors[name]).sum(axis=1).mean())
            for name, texts in self._texts.items()
        }


@dataclasses.dataclass(frozen=True)
class Control:
    """External control of a run: resume, stop, progress."""

    resume: bool = False
    should_stop: Callable[[], bool] = lambda: False
    show_progress: bool | None = None


@dataclasses.dataclass(frozen=True)
class Materials:
    """Data shared by all stages of a run."""

    corpus: Corpus
    teachers: tuple[TeacherVectors, ...]
    dev: ScoredPairs | None
    split: Split

    def inputs(self, config: RunConfig) -> dict[str, str]:
        """Map descriptions of everything that was read to digests of its content."""
        found = corpus_inputs(config.corpus, self.corpus)
        found |= {f"the vectors of teacher {teacher.name}": teacher.fingerprint for teacher in self.teachers}
        if self.dev is not None:
            pairs = [self.dev.first, self.dev.second, self.dev.scores.tolist()]
            content = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
            found[f"the development pairs {config.dev.pairs}"] = content
        return found


def corpus_inputs(sources: Sequence[SourceConfig], corpus: Corpus) -> dict[str, str]:
    """Map the sources of a corpus to digests of the texts that were kept of them."""
    found: dict[str, str] = {}
    for source, card in zip(sources, corpus.cards, strict=True):
        name = f"the text {source.path}"
        found[name] = found.get(name, "") + card.sha256
    return found


def prepare(
    config: RunConfig, control: Control, *, teacher: bool, check: Callable[[Corpus], None] = lambda _: None
) -> Materials:
    """Load the corpus, the teachers' vectors and the development pairs.

    Teachers' vectors are loaded if ``teacher``, that is if any stage needs them; ``check`` raises an error if the
    corpus does not fit the run, before a teacher encodes it.

    Raises:
        DataError: a source is missing or malformed.
        CacheError: the teacher cache is damaged or in use.
    """
    _check_matryoshka(config, teacher=teacher)
    pairs = _dev_pairs(config)
    vectors: list[TeacherVectors] = []
    with processes.first_alone():  # the others read its results from the cache
        corpus = Corpus.prepare(config.sources, Path(config.cache), show_progress=control.show_progress)
        check(corpus)
        for named in config.every_teacher if teacher else ():
            found = dataclasses.replace(named, source=config.resolve_model(named.source))
            vectors.append(load_vectors(found, corpus, Path(config.cache), show_progress=control.show_progress))
    if config.join is not None and vectors:
        vectors = [JoinedVectors(vectors, config.join, len(corpus))]
    if config.matryoshka is not None:
        config.matryoshka.check(vectors[0].dimension)
        vectors = [RotatedVectors(one, len(corpus)) for one in vectors]
    return Materials(corpus, tuple(vectors), pairs, Split.of(corpus, config.dev.held_out))


def _check_matryoshka(config: RunConfig, *, teacher: bool) -> None:
    if config.matryoshka is None:
        return
    imitating = [name for name, method in METHODS.items() if method.imitates]
    if not (teacher and config.every_teacher and config.method in {*imitating, "sct-two-stage"}):
        raise ConfigError(
            "[matryoshka] rotates a teacher's vectors: it needs a teacher and a method that imitates one "
            f"({', '.join(imitating)})"
        )


def _dev_pairs(config: RunConfig) -> ScoredPairs | None:
    if config.dev.pairs is None:
        return None
    pairs = load_scored_pairs(config.resolve(config.dev.pairs), split="validation")
    if config.dev.limit is None or config.dev.limit >= len(pairs):
        return pairs
    # Independent of the run's seed, so that runs with different seeds are comparable.
    drawn = np.sort(np.random.default_rng(0).permutation(len(pairs))[: config.dev.limit])
    first, second = ([texts[row] for row in drawn] for texts in (pairs.first, pairs.second))
    return ScoredPairs(pairs.name, first, second, pairs.scores[drawn])
