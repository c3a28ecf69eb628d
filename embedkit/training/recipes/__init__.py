"""Recipes: functions that read top to bottom and train several methods one after the other."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple

from embedkit.training.checkpoint import TrainState
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus
from embedkit.training.method import BatchSpec, Presets
from embedkit.training.methods.sct import SCTDistillation
from embedkit.training.recipes.distillcse_rounds import PRESETS as ROUNDS_PRESETS
from embedkit.training.recipes.distillcse_rounds import RoundsConfig, check_rounds, distillcse_rounds
from embedkit.training.recipes.sct_two_stage import PRESETS, TwoStageConfig, check_two_stages, sct_two_stage
from embedkit.training.recipes.trans_encoder import (
    TRANS_ENCODER_PRESETS,
    TransEncoderConfig,
    check_trans_encoder,
    trans_encoder,
)

__all__ = ["RECIPES", "RecipeEntry"]


class RecipeEntry(NamedTuple):
    """A recipe, the class of its settings, the settings for each size, its needs, and where it was published.

    ``check(config, settings, corpus)`` raises a ``ConfigError`` for what any of its stages lacks, before a teacher
    encodes the corpus. ``batch_spec`` is what the most demanding of its stages needs; ``paired`` is as a method's.
    """

    config: type[Any]
    function: Callable[..., TrainState]
    check: Callable[[RunConfig, Any, Corpus], None]
    presets: Presets
    batch_spec: BatchSpec
    paper: str
    paired: Presets = MappingProxyType({})


RECIPES: dict[str, RecipeEntry] = {
    "sct-two-stage": RecipeEntry(
        TwoStageConfig,
        sct_two_stage,
        check_two_stages,
        PRESETS,
        SCTDistillation.batch_spec,
        "authors' code of Limkonchotiwat et al., TACL 2023",
    ),
    "distillcse-rounds": RecipeEntry(
        RoundsConfig,
        distillcse_rounds,
        check_rounds,
        ROUNDS_PRESETS,
        BatchSpec(several_teachers=True),
        "Xu et al., Findings of EMNLP 2023",
    ),
    "trans-encoder": RecipeEntry(
        TransEncoderConfig,
        trans_encoder,
        check_trans_encoder,
        TRANS_ENCODER_PRESETS,
        BatchSpec(views=2, scores=True),
        "Liu et al., ICLR 2022",
    ),
}
