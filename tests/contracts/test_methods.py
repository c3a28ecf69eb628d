"""What every training method and recipe guarantees to the loop. A new one is added as a line of the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from toys import TableTeacher, stage_config

from embedkit.config import from_mapping
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import Size, random
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.tokenization import Tokenizer
from embedkit.training.batches import BatchSource, ViewsConfig
from embedkit.training.config import DevConfig
from embedkit.training.corpus import Corpus, SourceConfig
from embedkit.training.loop import RunControl, train
from embedkit.training.losses import Keys
from embedkit.training.method import Method, pooled
from embedkit.training.methods import METHODS
from embedkit.training.methods.sct import cross_view_loss
from embedkit.training.optim import OptimConfig
from embedkit.training.run_folder import RunFolder

TEACHER_WIDTH = 24
TEXTS = [
    f"{who} {what} {where}"
    for who in ("the cat", "a good dog", "my sister", "an old king")
    for what in ("will sleep", "wants to read", "likes to swim and sing")
    for where in ("in the garden", "by the sea", "at school today")
]

# Smaller values of settings that are too large for a toy; settings that a method lacks are dropped.
SMALL = {"queue_size": 20, "projector_expansion": 2, "teachers": 2, "rounds": 2, "cross_length": 14, "cycles": 2}

# Positives for runs of a method that takes a list of them; the default, nine, suits only a single step.
FEW = ("none", "shuffle", "deletion")

SWITCHES = [
    ("sct", {}),
    ("sct", {"weight": 1.0}),
    ("sct-distillation", {"queues": "one"}),
    ("sct-distillation", {"queues": "one", "views": 1, "regression": 3.0, "head": "linear"}),
    ("sct-distillation", {"joint": True}),
    ("bsl", {"predictor": "code", "scale": "code"}),
    ("bsl", {"momentum": 0.5}),
    ("pcl", {"preset": "pcl_paper"}),
    ("pcl", {"peer": "tied"}),
    ("distillcse", {"teacher_weights": [1, 2]}),
]
# Recipes that train a sentence encoder; those of cross-encoders have a suite of their own.
# Every method with its defaults, and with each of its switches.
CASES = [*((name, {}) for name in METHODS if name != "sct"), *SWITCHES]


def shrink(config: type[Any]) -> dict[str, Any]:
    """Return small settings of a config class, including nested ones."""
    small: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        if field.name in SMALL:
            small[field.name] = SMALL[field.name]
        elif field.default_factory is not dataclasses.MISSING and dataclasses.is_dataclass(field.default_factory):
            small[field.name] = shrink(field.default_factory)
    return small


def merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    nested = {key: merge(under[key], value) for key, value in over.items() if isinstance(value, dict)}
    return {**under, **over, **nested}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> dict[int, Corpus]:
    """The same sentences in rows of one and of two texts."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "texts.tsv").write_text("".join(f"{text}\tnow {text}\n" for text in TEXTS), encoding="utf-8")
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    sources = {1: SourceConfig(path=str(folder / "texts.txt")), 2: SourceConfig(path=str(folder / "texts.tsv"))}
    return {views: Corpus.prepare([source], folder) for views, source in sources.items()}


@pytest.fixture(scope="module")
def make_encoder(toy_tokenizer_json: str) -> Callable[..., SentenceEncoder]:
    return lambda: random(Tokenizer(toy_tokenizer_json, 16), Size(2, 16, 2), max_length=16, seed=3)


@pytest.fixture
def make(make_encoder, corpora) -> Callable[..., tuple[Method, BatchSource]]:
    """Return a method on a toy encoder, and its batches; ``few`` uses the positives for runs."""

    def make(
        name: str, settings: dict[str, Any] | None = None, *, batch_size: int = 6, few: bool = False
    ) -> tuple[Method, BatchSource]:
        entry, settings = METHODS[name], dict(settings or {})
        config = from_mapping(entry.settings_class, merge(shrink(entry.settings_class), settings))
        teachers = [TableTeacher.random(len(TEXTS), TEACHER_WIDTH)] if entry.batch_spec.teacher else []
        if entry.batch_spec.several_teachers:
            teachers.append(TableTeacher.random(len(TEXTS), TEACHER_WIDTH + 4, "somebody"))
        teacher_arguments = entry.teacher_arguments([teacher.dimension for teacher in teachers])
        method = entry(make_encoder(), config, seed=1, **teacher_arguments)
        spec = entry.needs(config)
        batches = BatchSource(
            corpora[spec.views],
            method.encoder.tokenizer,
            spec=spec,
            batch_size=batch_size,
            seed=5,
            views=ViewsConfig(
                second="none" if spec.views == 1 else "deletion",
                positives=FEW if few and entry.batch_spec.positives else (),
            ),
            teachers=teachers,
        )
        return method.train(), batches

    return make


def snapshot(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def identifier(case: object) -> str:
    return (
        case if isinstance(case, str) else ",".join(f"{key}={value}" for key, value in case.items()) or "defaults"
    )


@pytest.mark.parametrize(("name", "settings"), CASES, ids=identifier)
def test_a_step_has_a_loss_and_gradients_and_changes_no_state(make, name, settings):
    """A parameter without a gradient would only take space in the optimizer and in checkpoints."""
    torch.manual_seed(1)
    before = snapshot(make(name, settings)[0])
    torch.manual_seed(2)
    method, batches = make(name, settings)
    assert same(before, snapshot(method)), "the seed alone decides"
    output = method(batches.batch(0))
    assert (output.loss.shape, output.loss.dtype) == ((), torch.float32)
    logged = (*output.metrics.values(), *output.state_update.values())
    assert not any(tensor.requires_grad for tensor in logged)
    output.loss.backward()
    assert same(before, snapshot(method))
    trained = {n: parameter for n, parameter in method.named_parameters() if parameter.requires_grad}
    assert trained
    assert [n for n, parameter in trained.items() if parameter.grad is None] == []
    assert all(parameter.grad.isfinite().all() for parameter in trained.values())
    assert max(float(parameter.grad.abs().max()) for parameter in trained.values()) > 0


class Fit:
    """Train a fresh copy of one case in a folder."""

    def __init__(self, make, case, folder, *, amp="off", accumulate=1):
        self.make, self.case, self.folder = make, case, folder
        optim = OptimConfig(batch_size=6, steps=6, lr=1e-2, amp=amp, accumulate=accumulate)
        self.config = stage_config(optim=optim, seed=2, dev=DevConfig(every=3))

    def __call__(self, *, stop_after=(), resume=False):
        """Train, stopping after each of these numbers of steps and resuming as in a new process."""
        for number, steps in enumerate((*stop_after, None)):
            method, batches = self.make(*self.case, few=True)
            torch.manual_seed(999 + number)  # random state left by earlier work must not matter
            seen = iter(range(1, 100))
            state = train(
                method,
                batches,
                self.config,
                RunFolder(self.folder),
                # The functions are called in this turn only.
                RunControl(resume or number > 0, lambda: next(seen) == steps, show_progress=False),  # noqa: B023
                evaluate=lambda: {"dev": score(method.encoder)},  # noqa: B023
            )
        return state, method

    def outcome(self):
        model = SentenceEncoder.load(self.folder / "model")
        return snapshot(model)


def score(encoder):
    embeddings = TorchEncoder(encoder).encode(TEXTS[:6])
    return float(embeddings[0] @ embeddings[5])


@pytest.mark.parametrize("case", SWITCHES, ids=lambda case: "-".join(map(identifier, case)))
def test_interrupted_and_resumed_equals_uninterrupted(make, case, tmp_path):
    whole, parts = Fit(make, case, tmp_path / "whole"), Fit(make, case, tmp_path / "parts")
    state, method = whole()
    pieced_state, pieced = parts(stop_after=(1, 4))
    assert state.finished
    assert pieced_state.finished
    assert same(snapshot(method), snapshot(pieced))
    assert same(whole.outcome(), parts.outcome())
    assert dataclasses.replace(state, seconds=0) == dataclasses.replace(pieced_state, seconds=0)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_under_autocast_and_accumulation_resumes_and_its_encoder_loads_unchanged(make, name, tmp_path):
    options = {"amp": "bf16", "accumulate": 2}
    whole = Fit(make, (name, {}), tmp_path / "whole", **options)
    parts = Fit(make, (name, {}), tmp_path / "parts", **options)
    _, method = whole()
    assert same(snapshot(method), snapshot(parts(stop_after=(3,))[1]))
    method.encoder.save(tmp_path / "copy")
    loaded = SentenceEncoder.load(tmp_path / "copy")
    assert loaded.fingerprint() == method.encoder.fingerprint()
    assert loaded.dimension == (TEACHER_WIDTH if METHODS[name].matches_teacher_space else 16)
    texts = TEXTS[:5]
    assert np.array_equal(TorchEncoder(loaded).encode(texts), TorchEncoder(method.encoder).encode(texts))


@pytest.mark.parametrize("name", [name for name, entry in METHODS.items() if not entry.matches_teacher_space])
def test_a_head_that_is_not_trained_is_removed(make_encoder, name):
    encoder, entry = make_encoder(), METHODS[name]
    encoder.set_head(7)
    told = entry.teacher_arguments([TEACHER_WIDTH])
    method = entry(encoder, from_mapping(entry.settings_class, shrink(entry.settings_class)), seed=1, **told)
    assert method.encoder.head is None


class TestSCT:
    """What enters SCT's queues, and the loss that ``joint`` adds."""

    def test_references_enter_the_queue_of_their_view(self, make):
        method, batches = make("sct")
        output = method(batches.batch(0))
        method.after_step([output])
        first, second = method.self_supervision.queues.rows
        assert torch.equal(first[:6], output.state_update["reference1"])
        assert torch.equal(second[:6], output.state_update["reference2"])
        assert not torch.equal(first, second)

    def test_references_come_from_a_pass_of_their_own_without_the_projector(self, make):
        method, batches = make("sct")
        batch = batches.batch(0)
        first, again = (method(batch).state_update["reference1"] for _ in range(2))
        assert torch.allclose(first.norm(dim=1), torch.ones(6))
        assert not torch.allclose(first, again)
        method.eval()
        expected = functional.normalize(pooled(method.encoder, batch.views[0]), dim=1)
        assert torch.allclose(method(batch).state_update["reference1"], expected, atol=1e-6)

    def test_joint_adds_scts_loss_on_the_projected_pooled_embeddings(self, make):
        method, batches = make("sct-distillation", {"joint": True})
        method.eval()
        batch = batches.batch(0)
        output = method(batch)
        views = [functional.normalize(pooled(method.encoder, view), dim=1) for view in batch.views]
        added = method.self_supervision
        projected = [functional.normalize(added.projector(pooled(method.encoder, v)), dim=1) for v in batch.views]
        keys = [Keys(queue, view) for queue, view in zip(added.queues.rows, views, strict=True)]
        expected = cross_view_loss(projected, keys, temperature=0.04, reference_temperature=0.03)
        assert torch.allclose(output.metrics["self_supervised"], expected, atol=1e-4)
        assert torch.equal(output.loss, output.metrics["distillation"] + output.metrics["self_supervised"])
        alone = make("sct-distillation")[0].eval()
        assert torch.allclose(output.metrics["distillation"], alone(batch).loss)
        method.after_step([output])
        for queue, view in zip(added.queues.rows, views, strict=True):
            assert torch.allclose(queue[:6], view, atol=1e-6)
