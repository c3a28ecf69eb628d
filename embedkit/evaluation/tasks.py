"""Evaluation tasks: sets whose texts are encoded once, or whose pairs are scored once, and their results."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np

from embedkit.errors import DataError, InputError, shown
from embedkit.evaluation.results import Evaluation, Part, Resampler, Result, average, defined
from embedkit.evaluation.sources import DataLocation, Source, first_file, read_rows
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, PairScorer, PromptingEncoder, TextEncoder
from embedkit.records import HubDataset, Row
from embedkit.runtime.arguments import check_flag
from embedkit.runtime.batching import embed_chunks
from embedkit.runtime.cross_encoder import CrossEncoder

_TEXTS_PER_CALL = 4096
"""Texts or pairs per call: enough for a model to sort by length within a call, few enough to show progress."""


Role = Literal["query", "document"]
"""The side of a search on which a text stands; models may have a prompt for each."""

RoleText = tuple[Role | None, str]
"""A text and its role, None where two texts are compared as equals."""


class EmbeddingCache:
    """Embeddings by role and text. As in a search, queries and documents get the model's prompts for them.

    Args:
        encoder: encodes the texts.
        texts: all texts that will be requested; repeated ones are encoded once.
        label: label of the progress bar.
        progress: False is silent; None shows a bar on a terminal, or logs progress.
    """

    def __init__(
        self, encoder: TextEncoder, texts: Iterable[RoleText], *, label: str, progress: bool | None = None
    ) -> None:
        self._has_roles = _has_prompts(encoder)
        by_role: dict[Role | None, dict[str, None]] = {}
        for role, text in texts:
            by_role.setdefault(role if self._has_roles else None, {})[text] = None
        keys = [(role, text) for role, several in by_role.items() for text in several]
        self._rows = {key: row for row, key in enumerate(keys)}
        self._embeddings = np.empty((len(self._rows), encoder.dimension), dtype=np.float32)
        with Progress(label, len(self._rows), unit="texts", enabled=progress) as bar:
            for part in chain.from_iterable(
                _encode(encoder, role, [*several]) for role, several in by_role.items()
            ):
                self._embeddings[bar.done : bar.done + len(part)] = part
                bar.advance(len(part))

    def __len__(self) -> int:
        """Number of distinct texts encoded, counted once for each role."""
        return len(self._rows)

    def similarities(
        self, first: Sequence[str], second: Sequence[str], /, roles: tuple[Role | None, Role | None] = (None, None)
    ) -> FloatArray:
        """Return the cosine of each text of ``first`` with its counterpart in ``second``: ``(N,) float32``."""
        return cosines(self.embeddings(first, roles[0]), self.embeddings(second, roles[1]))

    def embeddings(self, texts: Sequence[str], /, role: Role | None = None) -> FloatArray:
        """Return the embedding of each text: ``(N, D) float32``."""
        known = role if self._has_roles else None
        return self._embeddings[[self._rows[known, text] for text in texts]]


def _has_prompts(encoder: TextEncoder) -> bool:
    """Whether an encoder may treat queries and documents differently."""
    if not isinstance(encoder, PromptingEncoder):
        return False
    holder = getattr(encoder, "manifest", None) or getattr(encoder, "model", None)
    prompts = getattr(holder, "prompts", None)
    return prompts is None or bool(prompts)


def _encode(encoder: TextEncoder, role: Role | None, texts: list[str]) -> Iterator[FloatArray]:
    if role is None or not isinstance(encoder, PromptingEncoder):
        yield from embed_chunks(encoder, texts)
        return
    encode = encoder.encode_query if role == "query" else encoder.encode_document
    for start in range(0, len(texts), _TEXTS_PER_CALL):
        yield encode(texts[start : start + _TEXTS_PER_CALL], show_progress_bar=False)


class PairPool:
    """Scores of a cross-encoder by pair, computed on request and counted by ``bar``."""

    def __init__(self, scorer: PairScorer, bar: Progress) -> None:
        self._scorer, self._bar = scorer, bar
        self._predict = scorer.predict
        if isinstance(scorer, CrossEncoder):
            self._predict = lambda pairs: scorer.predict(pairs, show_progress_bar=False)
        self._scores: dict[tuple[str, str], float] = {}

    def __len__(self) -> int:
        """Number of distinct pairs scored."""
        return len(self._scores)

    def similarities(self, first: Sequence[str], second: Sequence[str], /, roles: object = None) -> FloatArray:  # noqa: ARG002 - of encoders
        """Return the score of each pair, in the given order of its texts: ``(N,) float32``."""
        pairs = list(zip(first, second, strict=True))
        new = list(dict.fromkeys(pair for pair in pairs if pair not in self._scores))
        for start in range(0, len(new), _TEXTS_PER_CALL):
            chunk = new[start : start + _TEXTS_PER_CALL]
            self._scores.update(zip(chunk, self._predict(chunk).tolist(), strict=True))
            self._bar.advance(len(chunk))
        return np.array([self._scores[pair] for pair in pairs], dtype=np.float32)

    def embeddings(self, _: Sequence[str], /, role: object = None) -> FloatArray:  # noqa: ARG002 - of encoders
        """Raise InputError: a cross-encoder has no embeddings."""
        raise InputError(
            f"{self._scorer.name} is a cross-encoder: it scores pairs, so it supports tasks of similarity, "
            "pairs and re-ranking, but not those that need an embedding of each text"
        )


Pool = EmbeddingCache | PairPool
"""The view of a model that sets use."""


def cosines(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the cosine of each row of ``first`` with the same row of ``second``: ``(N, D)`` to ``(N,) float32``.

    Computed in float64 and rounded to float32, so that pairs of equal texts tie exactly, whatever their
    embedding and position; an invalid embedding (zero, infinite or not a number) gives 0, as in the evaluation
    code of SimCSE and SCT.
    """
    x, y = first.astype(np.float64), second.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
        quotients = np.einsum("nd,nd->n", x, y) / norms
    return np.where(np.isfinite(quotients), quotients, 0.0).astype(np.float32)


Conventions = tuple[str, ...]
"""Requested re-ranking conventions, ``"useb"`` or ``"mteb"``."""


@dataclass(frozen=True)
class EvaluationSet(ABC):
    """Texts with their labels or judgements, on which models are measured; one class for each family of tasks.

    Attributes:
        source: the file, folder or hub id of the set.
        expected: the published size by unit, the scored rows first; None for a custom set.
        convention: ``"useb"`` or ``"mteb"`` where they differ.
        skipped: reason -> number of skipped queries.
        notes: caveats for readers, one sentence each.
    """

    needs_embeddings: ClassVar[bool] = False
    """Whether the figures need embeddings of texts, which cross-encoders do not provide."""

    name: str
    source: str = field(default="", kw_only=True)
    expected: Mapping[str, int] | None = field(default=None, kw_only=True)
    convention: str | None = field(default=None, kw_only=True)
    skipped: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    notes: Sequence[str] = field(default=(), kw_only=True)

    @abstractmethod
    def texts(self) -> Iterator[RoleText]:
        """Yield every text to encode, including repeated ones."""

    @abstractmethod
    def result(self, pool: Pool, /) -> Result:
        """Compute the figures from the model's outputs."""

    def _result(
        self,
        measures: Mapping[str, float],
        sizes: Mapping[str, int],
        resampler: Resampler,
        *,
        headline: str | None = None,
        parts: Mapping[str, Part] = MappingProxyType({}),
        notes: Sequence[str] = (),
    ) -> Result:
        """Build the result; a difference between ``sizes``, by unit, and the published ones is noted.

        ``measures`` are NaN where undefined, and the first is the headline unless another is named. The rows
        scored are those of the first unit.
        """
        differing = [unit for unit, size in (self.expected or {}).items() if sizes.get(unit, 0) != size]
        found, published = (
            ", ".join(f"{counts.get(unit, 0):,} {unit}" for unit in differing)
            for counts in (sizes, self.expected or {})
        )
        unit, rows = next(iter(sizes.items()))
        figures = {measure: defined(value) for measure, value in measures.items()}
        measure = headline or next(iter(figures))
        return Result(
            name=self.name,
            convention=self.convention,
            measure=measure,
            value=figures[measure],
            measures=figures,
            rows=rows,
            unit=unit,
            source=self.source,
            expected=self.expected[unit] if self.expected else None,
            complete=None if self.expected is None else not differing,
            parts=dict(parts),
            skipped=dict(self.skipped),
            notes=[*notes, *self.notes, *([f"{found}; the published set has {published}"] if differing else [])],
            resampler=resampler,
        )


@dataclass(frozen=True)
class Task:
    """A named evaluation whose data is loaded.

    Attributes:
        sets: the sets that could be loaded; a set of two conventions counts as two.
        average_of: number of sets in a published average; None reports no average.
        missing: set -> why it could not be loaded.
    """

    name: str
    sets: Sequence[EvaluationSet]
    average_of: int | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def needs_embeddings(self) -> bool:
        """Whether the task needs embeddings of texts, which cross-encoders do not provide."""
        return any(member.needs_embeddings for member in self.sets)

    def texts(self) -> Iterator[RoleText]:
        """Yield every text to encode, including repeated ones."""
        return chain.from_iterable(member.texts() for member in self.sets)

    def results(self, pool: Pool) -> list[Result]:
        """Return a result for each set and, if the task has one, their average."""
        results = [member.result(pool) for member in self.sets]
        if self.average_of is None:
            return results
        return [*results, average(self.name, results, wanted=self.average_of, missing=self.missing)]


Loads = Mapping[str, Callable[[], "EvaluationSet"]]
"""How to load a set by each convention that its source supports."""


def by_convention(loads: Loads, conventions: Conventions, source: object) -> list[EvaluationSet]:
    """Load a set by each of the conventions that its source supports.

    Raises:
        DataError: it supports none of them, or is malformed.
    """
    wanted = [load() for convention, load in loads.items() if convention in conventions]
    if not wanted:
        raise DataError(f"{source} supports only the convention {' or '.join(loads)}")
    return wanted


@dataclass(frozen=True)
class Published:
    """A task of one published set, before its data is loaded.

    Attributes:
        folders: its names in a data folder.
        hub: the pinned data set, None if it needs local files.
        expected: the published size by unit, the scored rows first.
        read: reads the set of a name from a folder, a file or, if there is one, the hub's data set; or returns how
            to load it by each convention.
    """

    what: str
    folders: tuple[str, ...]
    hub: HubDataset | None
    expected: Mapping[str, int]
    read: Callable[[str, Any], EvaluationSet | Loads]

    @classmethod
    def of_pairs(
        cls,
        what: str,
        folders: tuple[str, ...],
        hub: HubDataset | None,
        size: int,
        *files: str,
        collect: Callable[[str, Iterator[Row]], EvaluationSet],
        rows: Callable[[Path], Iterator[Row]] = read_rows,
        configuration: str | None = None,
        split: str = "test",
    ) -> Published:
        """Return a set of pairs in one table: the first of ``files`` in its folder, or a part of the hub's set."""

        def read(name: str, source: Source) -> EvaluationSet:
            if isinstance(source, HubDataset):
                return collect(name, source.rows(configuration=configuration, split=split))
            return collect(name, rows(first_file(source, *files)))

        return cls(what, folders, hub, {"pairs": size}, read)

    @property
    def size(self) -> str:
        """The published size, as text."""
        return ", ".join(f"{size:,} {unit}" for unit, size in self.expected.items())

    def load(self, name: str, location: DataLocation, conventions: Conventions) -> Task:
        """Load the data from a location.

        Raises:
            DataError: it is not there, malformed, or does not support the conventions.
        """
        source = location.find(*self.folders, hub=self.hub)
        read = self.read(name, source)
        if isinstance(read, EvaluationSet):
            return Task(name, [replace(read, source=str(source), expected=read.expected or self.expected)])
        return Task(name, [replace(one, source=str(source)) for one in by_convention(read, conventions, source)])


@dataclass(frozen=True)
class PublishedAverage:
    """A task of several published sets, by name, and their average; attributes as for :class:`Published`."""

    what: str
    size: str
    members: Mapping[str, Published]
    hub: HubDataset | None = None

    def load(self, name: str, location: DataLocation, conventions: Conventions) -> Task:
        """Load the data of all sets, with the reasons why some could not be loaded.

        Raises:
            DataError: none can be loaded.
        """
        sets, missing = list[EvaluationSet](), dict[str, str]()
        for member, published in self.members.items():
            try:
                sets += published.load(member, location, conventions).sets
            except DataError as error:
                missing[member] = str(error)
        if not sets:
            reasons = "; ".join(missing.values())
            raise DataError(f"none of the {len(self.members)} sets of {name} can be loaded: {reasons}")
        return Task(name, sets, average_of=len(self.members), missing=missing)


def evaluate(model: TextEncoder | PairScorer, task: Task, *, progress: bool | None = None) -> Evaluation:
    """Evaluate a model on a task: an encoder by its cosines, a cross-encoder by its scores.

    Each distinct text is encoded once, each distinct pair scored once.

    Args:
        model: an encoder or a cross-encoder.
        task: a task from :func:`embedkit.evaluation.catalogue.load_task`.
        progress: False is silent; None shows a bar on a terminal, or logs progress.

    Raises:
        InputError: an argument is something else.
    """
    if not isinstance(model, (TextEncoder, PairScorer)) or isinstance(model, type):
        raise InputError(f"model must be an encoder or a cross-encoder, not {shown(model)}")
    if not isinstance(task, Task):
        raise InputError(f"task must be a result of load_task, not {shown(task)}")
    if progress is not None:
        check_flag(progress, "progress")
    started = time.perf_counter()
    label = f"{model.name} on {task.name}"
    pool: Pool
    if isinstance(model, TextEncoder):
        pool = EmbeddingCache(model, task.texts(), label=label, progress=progress)
        results = task.results(pool)
    else:
        with Progress(label, unit="pairs", enabled=progress) as bar:
            pool = PairPool(model, bar)
            results = task.results(pool)
    return Evaluation(
        model=model.name,
        fingerprint=model.fingerprint,
        dimension=model.dimension if isinstance(model, TextEncoder) else None,
        max_length=model.max_length,
        task=task.name,
        texts=len(pool),
        seconds=time.perf_counter() - started,
        results=results,
    )
