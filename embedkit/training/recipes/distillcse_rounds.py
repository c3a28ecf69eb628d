"""DistillCSE from nothing but text: contrastive teachers, then rounds of students that distil the ones before.

Source: Xu et al., "DistillCSE: Distilled Contrastive Learning for Sentence Embeddings", Findings of EMNLP
2023. It does not say how many students teach a second round; here they are as many as the
first teachers.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from embedkit.config import setting
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training import processes
from embedkit.training.checkpoint import TrainState
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus
from embedkit.training.methods.distillcse import DistillCSE, DistillCSEConfig, teacher_weights
from embedkit.training.methods.simcse import SimCSE, SimCSEConfig
from embedkit.training.optim import OptimConfig
from embedkit.training.recipes.stage import Control, Materials, check_stage, train_stage
from embedkit.training.run_folder import RunFolder
from embedkit.training.teachers import TeacherConfig, TeacherVectors, load_vectors

__all__ = ["PRESETS", "RoundsConfig", "check_rounds", "distillcse_rounds"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundsConfig:
    """Settings of teachers and students; ``[optim]`` of the run is that of every student."""

    teachers: int = setting(
        16, "M, teachers of a round, which differ by their seed; the authors have 16", minimum=1
    )
    rounds: int = setting(1, "rounds of distillation; the paper goes up to 2", minimum=1)
    contrastive: SimCSEConfig = setting(factory=SimCSEConfig, doc="the first teachers")
    contrastive_optim: OptimConfig = setting(factory=OptimConfig, doc="optimizer of the first teachers")
    distillation: DistillCSEConfig = setting(
        factory=DistillCSEConfig, doc="students; teacher_weights are those of the first round"
    )
    dtype: Literal["float32", "float16"] = setting("float32", "how the cache stores teacher vectors")


PRESETS = {
    size: {
        **DistillCSE.presets[size],
        "settings": {"contrastive_optim": SimCSE.presets[size]["optim"]},
    }
    for size in DistillCSE.presets
}


def check_rounds(config: RunConfig, settings: RoundsConfig, corpus: Corpus) -> None:
    """Refuse a corpus, views or weights of teachers that do not fit every round."""
    teacher_weights(settings.distillation, len(config.every_teacher) or settings.teachers)
    if not config.every_teacher:
        check_stage("simcse", settings.contrastive, settings.contrastive_optim, config, corpus)
    check_stage("distillcse", settings.distillation, config.optim, config, corpus)


def distillcse_rounds(
    config: RunConfig,
    settings: RoundsConfig,
    materials: Materials,
    encoder: SentenceEncoder,
    folder: RunFolder,
    control: Control,
) -> TrainState:
    """SimCSE teachers of several seeds, then rounds of DistillCSE students.

    Every teacher and every student starts where the run starts. Teachers that the configuration names are
    the first round's, and none are trained. The runs of the teachers lie in ``folder/teachers``, those of
    the students of round r in ``folder/round-r``; the last round has one student, whose run is ``folder``.
    """
    if not materials.teachers:
        team = _Team(folder.path / "teachers", settings.teachers, config.seed + 1)
        state = _train(
            team, "simcse", settings.contrastive, settings.contrastive_optim, config, materials, folder, control
        )
        if state is not None:
            return state
        materials = _teach(team, settings, config, materials, control)
    distillation = settings.distillation
    for number in range(1, settings.rounds):
        team = _Team(
            folder.path / f"round-{number}", settings.teachers, config.seed + 1 + number * settings.teachers
        )
        state = _train(team, "distillcse", distillation, config.optim, config, materials, folder, control)
        if state is not None:
            return state
        materials = _teach(team, settings, config, materials, control)
        distillation = dataclasses.replace(distillation, teacher_weights=())
    return train_stage("distillcse", distillation, config.optim, config, materials, encoder, folder, control)


@dataclasses.dataclass(frozen=True)
class _Team:
    """Encoders that are trained alike, and will be the teachers of a round.

    Attributes:
        path: holds a run folder for each.
        size: M.
        seed: of the first; each of the others has the next.
    """

    path: Path
    size: int
    seed: int

    @property
    def runs(self) -> list[RunFolder]:
        return [RunFolder(self.path / str(number + 1)) for number in range(self.size)]


def _train(
    team: _Team,
    method_name: str,
    settings: Any,
    optim: OptimConfig,
    config: RunConfig,
    materials: Materials,
    folder: RunFolder,
    control: Control,
) -> TrainState | None:
    """Train each member from where the run starts; the state of one that was stopped, None after the last."""
    for place, run in enumerate(team.runs):
        if control.resume and run.model.exists():
            continue  # it is written last, and whole
        start = SentenceEncoder.load(folder.initial)
        own = dataclasses.replace(config, seed=team.seed + place)
        state = train_stage(method_name, settings, optim, own, materials, start, run, control)
        if not state.finished:
            return state
    return None


def _teach(
    team: _Team, settings: RoundsConfig, config: RunConfig, materials: Materials, control: Control
) -> Materials:
    """The materials with the vectors of a team in the place of its own teachers'."""
    vectors: list[TeacherVectors] = []
    for run in team.runs:
        name = f"{team.path.name}/{run.path.name}"
        teacher = TeacherConfig(source=str(run.model), name=name, device=config.device, dtype=settings.dtype)
        with processes.first_alone():
            vectors.append(
                load_vectors(teacher, materials.corpus, Path(config.cache), show_progress=control.show_progress)
            )
    return dataclasses.replace(materials, teachers=tuple(vectors))
