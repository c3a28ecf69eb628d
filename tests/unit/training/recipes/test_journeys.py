"""Journeys through a run: each start, with and without bag of words, each recipe, whole and interrupted."""

from __future__ import annotations

import pytest
import torch

from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import random
from embedkit.modeling.sizes import Size
from embedkit.training.loop import RunControl
from embedkit.training.run import resolve, run

SMALL = {"queue_size": 8, "projector_expansion": 2}
OPTIM = {"batch_size": 5, "steps": 2, "lr": 1e-2}
LINEAR = {"queue_size": 8, "head": "linear", "views": 1, "queues": "one", "regression": 1.0}
RECIPES = {
    "mse": {"head": "linear"},
    "sct-distillation": LINEAR,
    "sct-two-stage": {"self_supervised": SMALL, "self_supervised_optim": OPTIM, "distillation": {"queue_size": 8}},
    "distillcse-rounds": {"teachers": 1, "rounds": 2, "contrastive_optim": OPTIM},
}
STARTS = {
    "pre-trained": {"source": "start"},
    "random": {"start": "random", "layers": 1, "hidden": 16, "heads": 2},
    "words": {"start": "teacher", "layers": 1, "hidden": 16, "heads": 2},
    "layers": {"start": "layers", "layers": 1, "hidden": 16, "heads": 2},
}


@pytest.fixture
def mapping(tokenizer, sentences, tmp_path):
    """``mapping(recipe, start, **student)``; student and teacher are equally wide."""
    random(tokenizer, Size(2, 16, 2), max_length=16, seed=4).save(tmp_path / "teacher")
    random(tokenizer, Size(1, 16, 2), max_length=16, seed=5).save(tmp_path / "start")
    (tmp_path / "texts.txt").write_text("\n".join(sentences(20)))

    def mapping(recipe, start, **student):
        needs = "tokenizer" if recipe == "distillcse-rounds" and start != "pre-trained" else None
        taught = {} if recipe == "distillcse-rounds" else {"teacher": {"source": "teacher"}}
        return {
            "method": recipe,
            "data": str(tmp_path),
            "cache": str(tmp_path / "cache"),
            "student": {**STARTS[start], "max_length": 16, **({needs: "teacher"} if needs else {}), **student},
            "corpus": [{"path": "texts.txt"}],
            "optim": OPTIM,
            "settings": RECIPES[recipe],
            **taught,
        }

    return mapping


def go(mapping, folder, stops=()):
    """Run, stop after each of these numbers of steps and resume; return the trained encoder."""
    for number, stop in enumerate((*stops, None)):
        seen = iter(range(1, 100))
        control = RunControl(number > 0, lambda: next(seen) == stop, show_progress=False)  # noqa: B023
        assert run(resolve(mapping), folder, control).finished == (stop is None)
    return SentenceEncoder.load(folder / "model")


@pytest.mark.parametrize("words", [None, 8])
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_an_interrupted_run_ends_like_a_whole_one(mapping, tmp_path, recipe, start, words):
    if words and start == "pre-trained":
        pytest.skip("a pre-trained student has the bag of words that it has")
    recipe = mapping(recipe, start, **({} if words is None else {"bag_of_words": words}))
    stages = {"sct-two-stage": 2, "distillcse-rounds": 3}.get(recipe["method"], 1)
    stops = (1,) + (2,) * (stages - 1)  # in the first stage, then one step into each later stage
    whole = go(recipe, tmp_path / "whole")
    assert whole.fingerprint() == go(recipe, tmp_path / "parts", stops).fingerprint()
    assert (whole.memory is None) == (words is None)


@pytest.mark.parametrize("stops", [(), (1, 2)])
@pytest.mark.parametrize("recipe", ["sct-two-stage", "distillcse-rounds"])
def test_frozen_words_stay_frozen_in_every_stage(mapping, tmp_path, recipe, stops):
    trained = go(mapping(recipe, "pre-trained", freeze_words=True), tmp_path / "run", stops)
    words = SentenceEncoder.load(tmp_path / "run" / "initial").body.get_input_embeddings().weight
    assert torch.equal(trained.body.get_input_embeddings().weight, words)
