"""DistillCSE from text only: contrastive teachers, then rounds of students that distil the previous round.

Source: Xu et al., "DistillCSE: Distilled Contrastive Learning for Sentence Embeddings", Findings of EMNLP
2023. The paper does not state how many students teach a second round; here there are as many as first teachers.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from embedkit.config import setting
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training import processes
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus
from embedkit.training.method import BatchSpec
from embedkit.training.methods.distillcse import DistillCSE, DistillCSEConfig
from embedkit.training.methods.simcse import SimCSE, SimCSEConfig
from embedkit.training.optim import OptimConfig
from embedkit.training.recipes.stage import Recipe, Stage, check_stage
from embedkit.training.run_folder import TrainState
from embedkit.training.teachers import TeacherConfig, TeacherVectors, load_vectors


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


def _check(config: RunConfig, settings: RoundsConfig, corpus: Corpus) -> None:
    """Check that corpus and views fit every round."""
    if not config.every_teacher:
        check_stage("simcse", settings.contrastive, settings.contrastive_optim, config, corpus)
    check_stage("distillcse", settings.distillation, config.optim, config, corpus)


def _weights_problem(settings: RoundsConfig, teachers: int) -> str | None:
    """Return the error in the weights of the first round's teachers, named or trained, or None."""
    return DistillCSE.settings_problem(settings.distillation, teachers or settings.teachers)


def _train(stage: Stage, settings: RoundsConfig, encoder: SentenceEncoder) -> TrainState:
    """SimCSE teachers with different seeds, then rounds of DistillCSE students.

    Every teacher and every student starts from the run's initial encoder. If the configuration names teachers,
    they teach the first round and none are trained. The teachers' run folders are in ``folder/teachers``, those
    of the students of round r in ``folder/round-r``; the last round has one student, whose run folder is
    ``folder``.
    """
    distillation = settings.distillation
    for number in range(settings.rounds):
        if number == 0 and stage.data.teachers:
            continue
        members = _team(stage, settings, number)
        for member in members:
            if member.folder.model.exists():
                continue  # of a resumed run: a stage writes its model last, atomically
            start = SentenceEncoder.load(stage.folder.initial)
            if number == 0:
                state = member.train("simcse", settings.contrastive, start, settings.contrastive_optim)
            else:
                state = member.train("distillcse", distillation, start)
            if not state.finished:
                return state
        if number > 0:
            distillation = dataclasses.replace(distillation, teacher_weights=())
        vectors = tuple(_teach(member, settings) for member in members)
        stage = dataclasses.replace(stage, data=dataclasses.replace(stage.data, teachers=vectors))
    return stage.train("distillcse", distillation, encoder)


def _team(stage: Stage, settings: RoundsConfig, number: int) -> list[Stage]:
    """Return the stages of the encoders that teach round ``number + 1``, which differ in their seed."""
    team = stage.inside("teachers" if number == 0 else f"round-{number}")
    first = stage.config.seed + 1 + number * settings.teachers
    seeds = range(first, first + settings.teachers)
    return [
        team.inside(str(place), config=dataclasses.replace(stage.config, seed=seed))
        for place, seed in enumerate(seeds, 1)
    ]


def _teach(member: Stage, settings: RoundsConfig) -> TeacherVectors:
    """Return the vectors of a trained member for the corpus."""
    path, config = member.folder.path, member.config
    teacher = TeacherConfig(
        source=str(member.folder.model),
        name=f"{path.parent.name}/{path.name}",
        device=config.device,
        dtype=settings.dtype,
    )
    with processes.first_alone():
        return load_vectors(
            teacher, member.data.corpus, Path(config.cache), show_progress=member.control.show_progress
        )


DISTILLCSE_ROUNDS = Recipe(
    RoundsConfig,
    _train,
    _check,
    presets={
        size: {
            **DistillCSE.presets[size],
            "settings": {"contrastive_optim": SimCSE.presets[size]["optim"]},
        }
        for size in DistillCSE.presets
    },
    batch_spec=BatchSpec(several_teachers=True),
    paper="Xu et al., Findings of EMNLP 2023",
    settings_problem=_weights_problem,
)
