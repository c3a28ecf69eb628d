"""SCT in two stages, as run by its authors: self-supervision, then distillation from the resulting encoder.

Source: the authors' code of Limkonchotiwat et al., TACL 2023.
"""

from __future__ import annotations

import dataclasses

from embedkit.config import setting
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus
from embedkit.training.methods.sct import SCT, SCTConfig, SCTDistillation, SCTDistillationConfig
from embedkit.training.optim import OptimConfig
from embedkit.training.recipes.stage import Recipe, Stage, check_stage
from embedkit.training.run_folder import TrainState


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoStageConfig:
    """Settings of both stages; ``[optim]`` of the run applies to the second stage."""

    self_supervised: SCTConfig = setting(factory=SCTConfig, doc="settings of stage one")
    self_supervised_optim: OptimConfig = setting(factory=OptimConfig, doc="optimizer of stage one")
    distillation: SCTDistillationConfig = setting(factory=SCTDistillationConfig, doc="settings of stage two")


def _check(config: RunConfig, settings: TwoStageConfig, corpus: Corpus) -> None:
    """Check that corpus and views fit both stages."""
    check_stage("sct", settings.self_supervised, settings.self_supervised_optim, config, corpus)
    check_stage("sct-distillation", settings.distillation, config.optim, config, corpus)


def _train(stage: Stage, settings: TwoStageConfig, encoder: SentenceEncoder) -> TrainState:
    """Self-supervised cross-view training, then distillation from its result.

    The run folder of the first stage is ``folder/self-supervised``.
    """
    first = stage.inside("self-supervised", data=dataclasses.replace(stage.data, teachers=()))
    if not first.folder.model.exists():  # a resumed run may have it: a stage writes its model last, atomically
        state = first.train("sct", settings.self_supervised, encoder, settings.self_supervised_optim)
        if not state.finished:
            return state
    name, encoder = encoder.name, SentenceEncoder.load(first.folder.model)
    encoder.name = name
    return stage.train("sct-distillation", settings.distillation, encoder)


SCT_TWO_STAGE = Recipe(
    TwoStageConfig,
    _train,
    _check,
    presets={
        size: {
            "optim": SCTDistillation.presets[size]["optim"],
            "settings": {
                "self_supervised": SCT.presets[size]["settings"],
                "self_supervised_optim": SCT.presets[size]["optim"],
                "distillation": SCTDistillation.presets[size]["settings"],
            },
        }
        for size in SCT.presets
    },
    batch_spec=SCTDistillation.batch_spec,
    paper="authors' code of Limkonchotiwat et al., TACL 2023",
)
