"""What a recipe's later stages keep of the configuration and of the student of the first, also when resumed."""

from __future__ import annotations

import pytest
import torch

from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import Size, random, remember_words
from embedkit.training.loop import RunControl
from embedkit.training.run import resolve, run

SMALL = {"queue_size": 8, "projector_expansion": 2}
OPTIM = {"batch_size": 5, "steps": 2, "lr": 1e-2}
RECIPES = {
    "sct-two-stage": {"self_supervised": SMALL, "self_supervised_optim": OPTIM, "distillation": {"queue_size": 8}},
    "distillcse-rounds": {"teachers": 1, "rounds": 2, "contrastive_optim": OPTIM},
}


@pytest.fixture
def go(tokenizer, sentences, tmp_path):
    """``go(recipe, folder, stops, **student)``: run, stop after these numbers of steps and resume each time."""
    random(tokenizer, Size(2, 24, 2), max_length=16, seed=4).save(tmp_path / "teacher")
    random(tokenizer, Size(1, 16, 2), max_length=16, seed=5).save(tmp_path / "start")
    (tmp_path / "texts.txt").write_text("\n".join(sentences(20)))

    def go(recipe, folder, stops=(), **student):
        mapping = {
            "method": recipe,
            "data": str(tmp_path),
            "cache": str(tmp_path / "cache"),
            "student": {"source": "start", "max_length": 16, **student},
            "corpus": [{"path": "texts.txt"}],
            "optim": OPTIM,
            "settings": RECIPES[recipe],
            **({"teacher": {"source": "teacher"}} if recipe == "sct-two-stage" else {}),
        }
        for number, stop in enumerate((*stops, None)):
            seen = iter(range(1, 100))
            control = RunControl(number > 0, lambda: next(seen) == stop, show_progress=False)  # noqa: B023
            assert run(resolve(mapping), tmp_path / folder, control).finished == (stop is None)
        return SentenceEncoder.load(tmp_path / folder / "model")

    return go


@pytest.mark.parametrize("memory", [None, 4])
def test_a_second_stage_resumes_with_the_student_of_the_first(go, tokenizer, tmp_path, memory):
    """The first stage removes the student's linear head, and the second adds another one."""
    start = random(tokenizer, Size(1, 16, 2), max_length=16, seed=5)
    if memory:
        remember_words(start, None, memory, seed=6)
    start.set_head(24, "linear")
    start.save(tmp_path / "start")
    trained = go("sct-two-stage", "parts", (1, 2))
    assert trained.head.activation == "tanh"
    assert trained.fingerprint() == go("sct-two-stage", "whole").fingerprint()


@pytest.mark.parametrize("stops", [(), (1, 2)])
@pytest.mark.parametrize("width", [16, 24])
@pytest.mark.parametrize("recipe", RECIPES)
def test_frozen_words_stay_frozen_in_every_stage(go, tokenizer, tmp_path, recipe, width, stops):
    random(tokenizer, Size(2, width, 2), max_length=16, seed=4).save(tmp_path / "teacher")
    go(recipe, "run", stops, freeze_words=True)
    words = SentenceEncoder.load(tmp_path / "start").body.get_input_embeddings().weight
    trained = [path for path in (tmp_path / "run").rglob("model") if path.is_dir()]
    assert len(trained) > 1
    for folder in (tmp_path / "run" / "initial", *trained):
        assert torch.equal(SentenceEncoder.load(folder).body.get_input_embeddings().weight, words), folder
