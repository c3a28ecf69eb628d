"""DistillCSE from text only: contrastive teachers, then rounds of students that distil the previous round.

Source: Xu et al., "DistillCSE: Distilled Contrastive Learning for Sentence Embeddings", Findings of EMNLP
2023. The paper does not state how many students teach a second round; here there are as many as first teachers.
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
    """Settings of teachers and students; ``[optim]`` of the run applies to every student."""

    teachers: int = setting(
        16, "M, number of teachers in a round, which differ in their seed; 16 in the paper", minimum=1
    )
    rounds: int = setting(1, "number of rounds of distillation; up to 2 in the paper", minimum=1)
    contrastive: SimCSEConfig = setting(factory=SimCSEConfig, doc="settings of the first teachers")
    contrastive_optim: OptimConfig = setting(factory=OptimConfig, doc="optimizer of the first teachers")
    distillation: DistillCSEConfig = setting(
        factory=DistillCSEConfig, doc="settings of the students; teacher_weights apply to the first round"
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
    """Check that corpus, views and teacher weights fit every round."""
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
    """SimCSE teachers with different seeds, then rounds of DistillCSE students.

    Every teacher and every student starts from the run's initial encoder. If the configuration names teachers,
    they teach the first round and none are trained. The teachers' run folders are in ``folder/teachers``, those
    of the students of round r in ``folder/round-r``; the last round has one student, whose run folder is
    ``folder``.
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
    """Encoders that are trained in the same way and become the teachers of a round.

    Attributes:
        path: parent of their run folders.
        size: M.
        seed: seed of the first; each of the others has the next.
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
    """Train each member from the initial encoder; return the state of a run that was stopped, else None."""
    for place, run in enumerate(team.runs):
        if control.resume and run.model.exists():
            continue  # the model is written last, atomically
        start = SentenceEncoder.load(folder.initial)
        own = dataclasses.replace(config, seed=team.seed + place)
        state = train_stage(method_name, settings, optim, own, materials, start, run, control)
        if not state.finished:
            return state
    return None


def _teach(
    team: _Team, settings: RoundsConfig, config: RunConfig, materials: Materials, control: Control
) -> Materials:
    """Return the materials with the team's vectors in place of those of its own teachers."""
    vectors: list[TeacherVectors] = []
    for run in team.runs:
        name = f"{team.path.name}/{run.path.name}"
        teacher = TeacherConfig(source=str(run.model), name=name, device=config.device, dtype=settings.dtype)
        with processes.first_alone():
            vectors.append(
                load_vectors(teacher, materials.corpus, Path(config.cache), show_progress=control.show_progress)
            )
    return dataclasses.replace(materials, teachers=tuple(vectors))
