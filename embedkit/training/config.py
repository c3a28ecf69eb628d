"""The configuration of a run: one dataclass per table of the TOML file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from embedkit.config import merge, setting
from embedkit.errors import ConfigError
from embedkit.runtime.find import find_model, published_models
from embedkit.training.batches import ViewsConfig
from embedkit.training.corpus import SourceConfig
from embedkit.training.optim import OptimConfig
from embedkit.training.teacher_spaces import JoinConfig, MatryoshkaConfig
from embedkit.training.teachers import TeacherConfig

MEASURES = {
    "dev_map": "development MAP",
    "dev_spearman": "development Spearman",
    "dev_score": "development score",
    "held_out_cosine": "cosine with the teacher on held-out text",
}
"""Scores that select a step, by their names in ``run.json``."""
_STARTS = {"teacher": "{}'s words", "layers": "{}'s layers", "random": "random weights"}
_SHAPE = ("layers", "hidden", "intermediate_size", "heads", "bag_of_words")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """The encoder that is trained."""

    size: Literal["bert-tiny", "bert-mini", "bert-small"] = setting(
        "bert-tiny", "shape, layers x width: 2 x 128, 4 x 256 or 4 x 512"
    )
    source: str | None = setting(None, "a pre-trained model to start from (folder or hub id); overrides size")
    layers: int | None = setting(
        None, "transformer layers; default: the size's; 0: a static encoder, which averages its words", minimum=0
    )
    hidden: int | None = setting(None, "width of a token's state; default: the size's", minimum=2)
    intermediate_size: int | None = setting(
        None, "width inside the feed-forward blocks; default: 4 x hidden", minimum=1
    )
    heads: int | None = setting(None, "attention heads; default: hidden / 64", minimum=1)
    bag_of_words: int | None = setting(
        None, "width of a table of word vectors whose mean is fed directly to the head; default: none", minimum=2
    )
    word_table: Literal["float32", "int4"] = setting(
        "float32", "int4: round words and bag of words during training, for export with --word-table int4"
    )
    dropout: float | None = setting(None, "default: the value in the model's configuration", minimum=0, below=1)
    freeze_words: bool = setting(False, "keep the word table, and the bag of words, as they are")
    start: Literal["teacher", "layers", "random"] = setting(
        "teacher",
        "initial weights without source: the teacher's vocabulary and word table; layers: some of its layers too, "
        "narrowed if the student is narrower; random: its vocabulary only",
    )
    teacher_layers: tuple[int, ...] = setting(
        (),
        'layers of the teacher, or of tokenizer, for start = "layers", counted from 1; default: evenly spaced, '
        "including the last",
    )
    tokenizer: str | None = setting(
        None, "model whose tokenizer, words and layers a student without source uses; default: the teacher"
    )
    vocabulary_size: int | None = setting(
        None,
        "maximum number of pieces that the student keeps of its tokenizer: those that the corpus uses most, and "
        "all single characters; default: all pieces",
        minimum=1,
    )
    vocabulary_smoothing: float = setting(
        0.0,
        "with vocabulary_size, and a Unigram tokenizer: share of the tokenizer's own probabilities in the choice, "
        "for languages that the model should read but the corpus lacks",
        minimum=0,
        maximum=1,
    )
    pooling: Literal["mean", "cls"] = setting("mean", "how token states are pooled into one embedding")
    max_length: int = setting(
        128, "maximum length of a text in tokens, including special tokens", minimum=3, maximum=1_000_000
    )
    prompts: Mapping[str, str] = setting(
        factory=dict,
        doc='texts that queries and documents begin with, e.g. {query = "query: "}, and the model stores',
    )
    positions: int | None = setting(
        None,
        "without source: number of position embeddings, e.g. for pairs; default: max_length",
        minimum=3,
        maximum=1_000_000,
    )

    @property
    def base(self) -> str:
        """The start of the student, as shown in model cards."""
        if self.source is not None:
            return self.source
        values = ((name.replace("_", " "), getattr(self, name)) for name in _SHAPE)
        shape = [f"{name} {value}" for name, value in values if value is not None]
        return f"{', '.join(shape) or self.size}, started from {_STARTS[self.start].format(self._origin)}"

    @property
    def _origin(self) -> str:
        """The model whose words or layers the student takes: its name, or the run's for ``RUN/model``."""
        if self.tokenizer is None:
            return "its teacher"
        path = Path(self.tokenizer)
        return path.parent.name if path.name == "model" and path.parent.name else path.name.removesuffix(".onnx")

    def __post_init__(self) -> None:
        shape = [name for name in _SHAPE if getattr(self, name) is not None]
        if self.source is not None and shape:
            raise ConfigError(f"{', '.join(shape)}: not allowed with student.source, which determines the shape")
        if self.source is not None and (self.start != "teacher" or self.tokenizer is not None):
            raise ConfigError("start and tokenizer are not allowed with student.source, which determines both")
        if self.teacher_layers and self.start != "layers":
            raise ConfigError('teacher_layers requires start = "layers"')
        if self.vocabulary_smoothing and self.vocabulary_size is None:
            raise ConfigError("vocabulary_smoothing requires vocabulary_size")
        if self.positions is not None and self.positions < self.max_length:
            raise ConfigError(f"positions = {self.positions} is less than max_length = {self.max_length}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevConfig:
    """Model selection on a development set, never on a test set."""

    pairs: str | None = setting(
        None, "file or hub id of scored sentence pairs; without pairs, set and held_out, the last step is kept"
    )
    set: str | None = setting(
        None,
        "instead of pairs, any other set that `embedkit evaluate` reads: retrieval, re-ranking, triplets, pairs",
    )
    every: int = setting(64, "steps between evaluations; the end of each epoch is evaluated too", minimum=1)
    most: int | None = setting(
        None, "maximum number of evaluations in a stage; the interval grows to stay within it", minimum=1
    )
    held_out: int | None = setting(
        None,
        "number of texts per source that are held out of training to measure the distance from the teacher's "
        "vectors; without pairs, it selects the step",
        minimum=1,
    )
    limit: int | None = setting(
        None, "maximum number of scored pairs; the subset does not depend on the seed", minimum=2
    )
    patience: int | None = setting(
        None, "stop after this many consecutive epochs without an improvement; the authors' code uses 7", minimum=1
    )

    def __post_init__(self) -> None:
        if self.pairs is not None and self.set is not None:
            raise ConfigError("dev.pairs and dev.set both select the step: remove one")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that determines a run.

    Relative paths of corpus, teacher vectors and development pairs are resolved against ``data``.
    """

    method: str = setting(doc="a method or recipe listed by `embedkit methods`")
    name: str | None = setting(None, "name of the encoder; default: the run folder's name")
    seed: int = setting(1000, "seed of initialisation, order, augmentation, dropout and queues", minimum=0)
    data: str = setting(".", "base folder of relative paths")
    cache: str = setting(".embedkit-cache", "folder of prepared corpora and teacher vectors")
    device: str | None = setting(None, "cpu, cuda or another torch device; default: cuda if available")
    threads: int | None = setting(None, "number of torch threads; default: torch's own", minimum=1, maximum=1024)
    checkpoint_minutes: float = setting(5.0, "minutes between checkpoints", above=0)
    student: StudentConfig = setting(factory=StudentConfig)
    corpus: tuple[SourceConfig, ...] = setting(doc="name files or hub sets with --corpus or [[corpus]]")
    views: ViewsConfig = setting(factory=ViewsConfig)
    teacher: TeacherConfig | None = setting(None, "the teacher, for distillation")
    teachers: tuple[TeacherConfig, ...] | None = setting(
        None, "several teachers, instead of teacher, for methods that support them"
    )
    join: JoinConfig | None = setting(None, "make one teacher of the vectors of all")
    optim: OptimConfig = setting(factory=OptimConfig)
    dev: DevConfig = setting(factory=DevConfig)
    matryoshka: MatryoshkaConfig | None = setting(
        None, "for embeddings that can be truncated; methods that imitate a teacher only"
    )
    settings: Any = setting(factory=dict, doc="settings of the method; once resolved, of its own class")

    def __post_init__(self) -> None:
        if not self.corpus:
            raise ConfigError("corpus is empty: name files or hub sets with --corpus or [[corpus]]")
        if self.teacher is not None and self.teachers:
            raise ConfigError("set either [teacher] or [[teachers]], not both")
        if self.join is not None:
            if not self.every_teacher:
                raise ConfigError("[join] joins the vectors of teachers: name them in [[teachers]]")
            self.join.check(len(self.every_teacher))

    @property
    def every_teacher(self) -> tuple[TeacherConfig, ...]:
        """The teachers, from whichever table defines them."""
        return self.teachers or (() if self.teacher is None else (self.teacher,))

    @property
    def measure(self) -> str:
        """Name of the selection score, one of :data:`MEASURES`."""
        return measure_of(self.method, dataclasses.asdict(self.dev))

    @property
    def sources(self) -> list[SourceConfig]:
        """The sources of the corpus, with paths relative to the current folder."""
        return [dataclasses.replace(source, path=self.resolve(source.path)) for source in self.corpus]

    def resolve(self, path: str) -> str:
        """Resolve a path against ``data``; a path that does not exist there is returned unchanged."""
        joined = Path(self.data) / path
        return str(joined) if joined.exists() else path

    def resolve_model(self, source: str) -> str:
        """Resolve a model like a path; the name of one of embedkit's own becomes the path of its bundle.

        Raises:
            ModelNotFoundError: it is one of embedkit's own, but cannot be fetched.
        """
        path = self.resolve(source)
        return str(find_model(path)) if path.removesuffix(".onnx") in published_models() else path


def override(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the settings of a run into earlier ones; its epochs replace earlier steps."""
    return merge(without_steps(under, over), over)


def without_steps(under: Mapping[str, Any], over: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return earlier settings of a run without their steps, which would win, if later ones have epochs."""
    optim, later = under.get("optim"), over.get("optim")
    if isinstance(optim, Mapping) and isinstance(later, Mapping) and "epochs" in later:
        return {**under, "optim": {key: value for key, value in optim.items() if key != "steps"}}
    return under


def measure_of(method: str, dev: Mapping[str, Any]) -> str:
    """Return the name of a run's selection score: of a re-ranker, or by the table ``[dev]``."""
    if method in {"score-distillation", "labelled-pairs"}:
        return "dev_map"
    if dev.get("set") is not None:
        return "dev_score"
    return "dev_spearman" if dev.get("pairs") is not None else "held_out_cosine"
