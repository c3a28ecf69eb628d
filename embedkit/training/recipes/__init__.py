"""Recipes: functions that train several methods one after the other."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple

from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus
from embedkit.training.method import BatchSpec, Presets
from embedkit.training.methods import METHODS
from embedkit.training.methods.sct import SCTDistillation
from embedkit.training.recipes.distillcse_rounds import PRESETS as ROUNDS_PRESETS
from embedkit.training.recipes.distillcse_rounds import (
    RoundsConfig,
    check_rounds,
    distillcse_rounds,
    weights_problem,
)
from embedkit.training.recipes.labelled_pairs import (
    LABEL_PRESETS,
    LabelledPairsConfig,
    check_labelled_pairs,
    labelled_pairs,
)
from embedkit.training.recipes.score_distillation import (
    SCORE_PRESETS,
    ScoreDistillationConfig,
    check_score_distillation,
    score_distillation,
)
from embedkit.training.recipes.sct_two_stage import (
    PRESETS,
    TwoStageConfig,
    check_two_stages,
    sct_two_stage,
    two_stage_problem,
)
from embedkit.training.recipes.stage import Stage, check_stage
from embedkit.training.recipes.trans_encoder import (
    TRANS_ENCODER_PRESETS,
    TransEncoderConfig,
    check_trans_encoder,
    trans_encoder,
)
from embedkit.training.run_folder import TrainState

__all__ = ["RECIPES", "Recipe", "one_stage"]


class Recipe(NamedTuple):
    """A way to train, by one method or by several in turn.

    Attributes:
        settings_class: dataclass of the settings, the table ``[settings]`` of a run.
        function: trains; called with the stage of the whole run, settings and initial encoder, or the
            teachers if ``scores_pairs``.
        check: raises a :class:`~embedkit.errors.ConfigError` if the corpus does not fit one of the stages; called
            with config, settings and corpus before a teacher encodes the corpus. Returns what the recipe reads
            beside the corpus if ``scores_pairs``.
        presets: settings for each size.
        batch_spec: the requirements of the most demanding stage.
        paper: the publication.
        paired: further presets for values of a setting, as for a method.
        settings_problem: returns what is wrong with the settings for a number of teachers, or None.
        scores_pairs: whether it trains a cross-encoder, which it builds itself; then its settings have
            ``inputs``, digests of what ``check`` returns, ``epoch_rows`` and ``dev``.
    """

    settings_class: type[Any]
    function: Callable[[Stage, Any, Any], TrainState]
    check: Callable[[RunConfig, Any, Corpus], Any]
    presets: Presets
    batch_spec: BatchSpec
    paper: str
    paired: Presets = MappingProxyType({})
    settings_problem: Callable[[Any, int], str | None] = lambda _settings, _teachers: None
    scores_pairs: bool = False


def one_stage(name: str) -> Recipe:
    """The recipe that trains one method."""

    def train(stage: Stage, settings: Any, encoder: SentenceEncoder) -> TrainState:
        return stage.train(name, settings, encoder)

    def check(config: RunConfig, settings: Any, corpus: Corpus) -> None:
        check_stage(name, settings, config.optim, config, corpus)

    method = METHODS[name]
    return Recipe(
        *(method.settings_class, train, check, method.presets, method.batch_spec, method.paper, method.paired),
        settings_problem=method.settings_problem,
    )


RECIPES: dict[str, Recipe] = {
    "sct-two-stage": Recipe(
        TwoStageConfig,
        sct_two_stage,
        check_two_stages,
        PRESETS,
        SCTDistillation.batch_spec,
        "authors' code of Limkonchotiwat et al., TACL 2023",
        settings_problem=two_stage_problem,
    ),
    "distillcse-rounds": Recipe(
        RoundsConfig,
        distillcse_rounds,
        check_rounds,
        ROUNDS_PRESETS,
        BatchSpec(several_teachers=True),
        "Xu et al., Findings of EMNLP 2023",
        settings_problem=weights_problem,
    ),
    "trans-encoder": Recipe(
        TransEncoderConfig,
        trans_encoder,
        check_trans_encoder,
        TRANS_ENCODER_PRESETS,
        BatchSpec(views=2, scores=True),
        "Liu et al., ICLR 2022",
    ),
    "score-distillation": Recipe(
        ScoreDistillationConfig,
        score_distillation,
        check_score_distillation,
        SCORE_PRESETS,
        BatchSpec(several_teachers=True, scores=True),
        "Hofstaetter et al., 2020",
        scores_pairs=True,
    ),
    "labelled-pairs": Recipe(
        LabelledPairsConfig,
        labelled_pairs,
        check_labelled_pairs,
        LABEL_PRESETS,
        BatchSpec(scores=True),
        "Zhuang et al., SIGIR 2023",
        scores_pairs=True,
    ),
}
