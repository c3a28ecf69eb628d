"""Recipes by name: functions that train several methods one after the other, or a cross-encoder."""

from __future__ import annotations

from embedkit.training.recipes.contrastive import CONTRASTIVE
from embedkit.training.recipes.distillcse_rounds import DISTILLCSE_ROUNDS
from embedkit.training.recipes.labelled_pairs import LABELLED_PAIRS
from embedkit.training.recipes.score_distillation import SCORE_DISTILLATION
from embedkit.training.recipes.sct_two_stage import SCT_TWO_STAGE
from embedkit.training.recipes.stage import Recipe
from embedkit.training.recipes.trans_encoder import TRANS_ENCODER

__all__ = ["RECIPES"]

RECIPES: dict[str, Recipe] = {
    "sct-two-stage": SCT_TWO_STAGE,
    "distillcse-rounds": DISTILLCSE_ROUNDS,
    "trans-encoder": TRANS_ENCODER,
    "score-distillation": SCORE_DISTILLATION,
    "labelled-pairs": LABELLED_PAIRS,
    "contrastive": CONTRASTIVE,
}
