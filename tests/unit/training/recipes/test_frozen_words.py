"""Words that are frozen, through recipes of several stages."""

from __future__ import annotations

import pytest
import torch

from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import random
from embedkit.modeling.sizes import Size
from embedkit.training.loop import RunControl
from embedkit.training.run import resolve, run

OPTIM = {"batch_size": 5, "steps": 2, "lr": 1e-2}
SMALL = {"queue_size": 8, "projector_expansion": 2}
RECIPES = {
    "sct-two-stage": {"self_supervised": SMALL, "self_supervised_optim": OPTIM, "distillation": {"queue_size": 8}},
    "distillcse-rounds": {"teachers": 1, "rounds": 2, "contrastive_optim": OPTIM},
}


@pytest.mark.parametrize("stops", [(), (1, 2)])
@pytest.mark.parametrize("recipe", RECIPES)
def test_frozen_words_stay_frozen_in_every_stage(tokenizer, sentences, tmp_path, recipe, stops):
    random(tokenizer, Size(2, 16, 2), max_length=16, seed=4).save(tmp_path / "teacher")
    random(tokenizer, Size(1, 16, 2), max_length=16, seed=5).save(tmp_path / "start")
    (tmp_path / "texts.txt").write_text("\n".join(sentences(20)))
    mapping = {
        "method": recipe,
        "data": str(tmp_path),
        "cache": str(tmp_path / "cache"),
        "student": {"source": "start", "max_length": 16, "freeze_words": True},
        "corpus": [{"path": "texts.txt"}],
        "optim": OPTIM,
        "settings": RECIPES[recipe],
        **({} if recipe == "distillcse-rounds" else {"teacher": {"source": "teacher"}}),
    }
    for number, stop in enumerate((*stops, None)):
        seen = iter(range(1, 100))
        control = RunControl(number > 0, lambda: next(seen) == stop, show_progress=False)  # noqa: B023
        assert run(resolve(mapping), tmp_path / "run", control).finished == (stop is None)
    trained, initial = (SentenceEncoder.load(tmp_path / "run" / name) for name in ("model", "initial"))
    words = initial.body.get_input_embeddings().weight
    assert torch.equal(trained.body.get_input_embeddings().weight, words)
