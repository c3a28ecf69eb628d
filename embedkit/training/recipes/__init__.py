"""Recipes: functions that read top to bottom and train several methods one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from embedkit.training.checkpoint import TrainState
from embedkit.training.method import Presets
from embedkit.training.recipes.sct_two_stage import PRESETS, TwoStageConfig, sct_two_stage

__all__ = ["RECIPES", "RecipeEntry"]


class RecipeEntry(NamedTuple):
    """A recipe, the class of its settings, the settings for each size, and where it was published."""

    config: type[Any]
    function: Callable[..., TrainState]
    presets: Presets
    paper: str


RECIPES: dict[str, RecipeEntry] = {
    "sct-two-stage": RecipeEntry(TwoStageConfig, sct_two_stage, PRESETS, "authors' code of SCT, TACL 2023"),
}
