"""DistillCSE rounds: which model teaches which, and from which weights each starts."""

from __future__ import annotations

import pytest

from embedkit.errors import ConfigError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.loop import RunControl
from embedkit.training.recipes.stage import Stage
from embedkit.training.run import resolve, run

TEXTS = ["the cat", "a good dog", "my sister reads", "the sea", "an old king", "a bird in the garden"]


@pytest.fixture
def mapping(toy_bundle, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    optim = {"batch_size": 3, "steps": 2, "lr": 1e-2}
    return {
        "method": "distillcse-rounds",
        "cache": str(tmp_path / "cache"),
        "seed": 7,
        "student": {"start": "random", "max_length": 12, "tokenizer": str(toy_bundle)},
        "corpus": [{"path": str(tmp_path / "texts.txt")}],
        "optim": optim,
        "settings": {"teachers": 2, "rounds": 2, "contrastive_optim": optim},
    }


@pytest.fixture
def stages(monkeypatch):
    """Return the arguments of each stage."""
    seen = []
    train = Stage.train

    def spy(stage, method_name, settings, encoder, *optim):
        teachers = [teacher.name for teacher in stage.data.teachers]
        place, seed = stage.folder.path.parts, stage.config.seed
        seen.append((place, method_name, seed, encoder.fingerprint(), teachers, settings))
        return train(stage, method_name, settings, encoder, *optim)

    monkeypatch.setattr(Stage, "train", spy)
    return seen


def test_two_rounds(mapping, stages, tmp_path):
    assert run(resolve(mapping), tmp_path / "run").finished
    assert [(*place[-2:], method, seed, teachers) for place, method, seed, _, teachers, _ in stages] == [
        ("teachers", "1", "simcse", 8, []),
        ("teachers", "2", "simcse", 9, []),
        ("round-1", "1", "distillcse", 10, ["teachers/1", "teachers/2"]),
        ("round-1", "2", "distillcse", 11, ["teachers/1", "teachers/2"]),
        (tmp_path.name, "run", "distillcse", 7, ["round-1/1", "round-1/2"]),
    ]
    starts = {start for _, _, _, start, _, _ in stages}
    assert starts == {SentenceEncoder.load(tmp_path / "run" / "initial").fingerprint()}
    products = [tmp_path / "run" / part for part in ("teachers/1", "teachers/2", "round-1/1", "round-1/2", "")]
    assert len({SentenceEncoder.load(product / "model").fingerprint() for product in products}) == 5


def test_named_teachers_come_first(mapping, stages, toy_bundle, tmp_path):
    mapping["teachers"] = [{"source": str(toy_bundle)}] * 3
    mapping["settings"]["distillation"] = {"teacher_weights": [1, 1, 2]}
    assert run(resolve(mapping), tmp_path / "run").finished
    given = [(teachers, settings.teacher_weights) for *_, teachers, settings in stages]
    assert given == [(["toy"] * 3, (1, 1, 2))] * 2 + [(["round-1/1", "round-1/2"], ())]


def test_finished_members_are_not_trained_again(mapping, stages, tmp_path):
    seen = iter(range(1, 100))
    stopped = RunControl(should_stop=lambda: next(seen) == 3, show_progress=False)
    assert not run(resolve(mapping), tmp_path / "run", stopped).finished
    stages.clear()
    assert run(resolve(mapping), tmp_path / "run", RunControl(resume=True, show_progress=False)).finished
    assert [place[-1] for place, *_ in stages] == ["2", "1", "2", "run"]


def test_what_the_last_stage_lacks_is_reported_before_the_first(mapping, stages, tmp_path):
    mapping["settings"]["distillation"] = {"teacher_weights": [1, 1, 2]}
    with pytest.raises(ConfigError, match="3 weights for 2 teachers"):
        run(resolve(mapping), tmp_path / "run")
    mapping["settings"]["distillation"] = {}
    mapping["optim"]["batch_size"] = 7
    mapping["settings"]["contrastive_optim"] = {"batch_size": 3}
    with pytest.raises(ConfigError, match=r"fewer than optim\.batch_size = 7"):
        run(resolve(mapping), tmp_path / "other")
    assert stages == []
