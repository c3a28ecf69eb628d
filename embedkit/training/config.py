"""The whole configuration of a run: one dataclass a table of the TOML file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from embedkit.config import setting
from embedkit.errors import ConfigError
from embedkit.training.corpus import SourceConfig
from embedkit.training.matryoshka import MatryoshkaConfig
from embedkit.training.optim import OptimConfig
from embedkit.training.teachers import TeacherConfig
from embedkit.training.trackers import TrackerName
from embedkit.training.views import ViewsConfig

__all__ = ["DevConfig", "RunConfig", "StudentConfig"]

_STARTS = {"teacher": "its teacher's words", "layers": "its teacher's layers", "random": "random weights"}
_SHAPE = ("layers", "hidden", "inner", "heads", "memory")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """The encoder that is trained."""

    size: Literal["tiny", "mini", "small"] = setting("tiny", "shape: 2 x 128, 4 x 256 or 4 x 512")
    source: str | None = setting(None, "a pre-trained model to start from, folder or hub id; overrides size")
    layers: int | None = setting(None, "transformer layers; default: the size's", minimum=1)
    hidden: int | None = setting(None, "width of a token's state; default: the size's", minimum=2)
    inner: int | None = setting(None, "width inside the feed-forward blocks; default: 4 x hidden", minimum=1)
    heads: int | None = setting(None, "attention heads; default: one for each 64 of hidden", minimum=1)
    memory: int | None = setting(
        None, "width of a table of word vectors whose mean goes straight to the head; default: none", minimum=2
    )
    dropout: float | None = setting(None, "default: what the model's configuration says", minimum=0, below=1)
    start: Literal["teacher", "layers", "random"] = setting(
        "teacher",
        "without source: the teacher's vocabulary and word table; layers: some of its layers too, narrowed if the "
        "student is narrower; random: its vocabulary alone",
    )
    teacher_layers: tuple[int, ...] = setting(
        (), 'which of its layers start = "layers" takes, counted from 1; default: evenly, with the last'
    )
    tokenizer: str | None = setting(
        None, "model whose tokenizer (and word table) a student without source gets; default: the teacher"
    )
    pooling: Literal["mean", "cls"] = setting("mean", "how token states become one embedding")
    max_length: int = setting(128, "longest text in tokens, special tokens included", minimum=3)
    positions: int | None = setting(
        None, "without source: tokens that its network has room for, pairs say; default: max_length", minimum=3
    )

    @property
    def base(self) -> str:
        """What the student starts from, for cards."""
        if self.source is not None:
            return self.source
        shape = [f"{name} {value}" for name in _SHAPE if (value := getattr(self, name)) is not None]
        return f"{', '.join(shape) or self.size}, started from {_STARTS[self.start]}"

    def __post_init__(self) -> None:
        shape = [name for name in _SHAPE if getattr(self, name) is not None]
        if self.source is not None and shape:
            raise ConfigError(f"{', '.join(shape)}: the shape of a student with a source is the source's")
        if self.teacher_layers and self.start != "layers":
            raise ConfigError('teacher_layers goes with start = "layers"')
        if self.positions is not None and self.positions < self.max_length:
            raise ConfigError(f"positions = {self.positions} leaves no room for max_length = {self.max_length}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevConfig:
    """Selection on a development set; never on a test set."""

    pairs: str | None = setting(
        None, "file or hub id of scored sentence pairs; without it and held_out the last step is kept"
    )
    every: int = setting(64, "steps between evaluations; epoch ends are evaluated too", minimum=1)
    most: int | None = setting(
        None, "evaluations of a stage; where there would be more, it is evaluated less often", minimum=1
    )
    held_out: int | None = setting(
        None,
        "texts of each source that are kept out of training, to measure the distance from the teacher's vectors; "
        "without pairs it chooses the step",
        minimum=1,
    )
    limit: int | None = setting(
        None, "score on at most this many of the pairs, the same ones whatever the seed", minimum=2
    )
    patience: int | None = setting(
        None, "stop after this many epochs in a row without a better score; the authors' code has 7", minimum=1
    )

    @property
    def measure(self) -> str:
        """What the score that chooses a step is: of the pairs, else the mean cosine on held-out text."""
        return "dev_spearman" if self.pairs is not None else "held_out_cosine"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides a run.

    Relative paths of corpus, teacher vectors and development pairs start from ``data``.
    """

    method: str = setting(doc="a name that `embedkit methods` lists")
    name: str | None = setting(None, "what the encoder is called; default: the run folder's name")
    seed: int = setting(1000, "of initialisation, order, augmentation, dropout and queues", minimum=0)
    data: str = setting(".", "folder that relative paths start from")
    cache: str = setting(".embedkit-cache", "folder of prepared corpora and teacher vectors")
    device: str | None = setting(None, "cpu, cuda or another torch device; default: cuda if there is one")
    threads: int | None = setting(None, "torch threads; default: torch's own choice", minimum=1)
    checkpoint_minutes: float = setting(5.0, "time between checkpoints", above=0)
    trackers: tuple[TrackerName, ...] = setting((), "where metrics go too: tensorboard, wandb")
    student: StudentConfig = setting(factory=StudentConfig)
    corpus: tuple[SourceConfig, ...] = setting(doc="name files or hub sets with --corpus or [[corpus]]")
    views: ViewsConfig = setting(factory=ViewsConfig)
    teacher: TeacherConfig | None = setting(None, "for distillation")
    teachers: tuple[TeacherConfig, ...] | None = setting(None, "instead of teacher, for methods that take several")
    optim: OptimConfig = setting(factory=OptimConfig)
    dev: DevConfig = setting(factory=DevConfig)
    matryoshka: MatryoshkaConfig | None = setting(
        None, "for embeddings that can be truncated, with methods that imitate a teacher"
    )
    settings: dict[str, Any] = setting(factory=dict, doc="the method's own settings")

    def __post_init__(self) -> None:
        if not self.corpus:
            raise ConfigError("corpus is empty: name files or hub sets with --corpus or [[corpus]]")
        if self.teacher is not None and self.teachers:
            raise ConfigError("teachers stand in [teacher] or in [[teachers]], not in both")

    @property
    def every_teacher(self) -> tuple[TeacherConfig, ...]:
        """The teachers, whichever table they stand in."""
        return self.teachers or (() if self.teacher is None else (self.teacher,))

    @property
    def sources(self) -> list[SourceConfig]:
        """The sources of the corpus, their paths as seen from the current folder."""
        return [dataclasses.replace(source, path=self.resolve(source.path)) for source in self.corpus]

    def resolve(self, path: str) -> str:
        """A path of this config as seen from the current folder; what is not in ``data`` stays as it is."""
        joined = Path(self.data) / path
        return str(joined) if joined.exists() else path
