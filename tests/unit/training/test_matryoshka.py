"""Matryoshka around a method: what it adds, what it leaves alone, and that it does what it is for."""

from __future__ import annotations

import json

import pytest
import torch

from embedkit.config import from_mapping, load_toml
from embedkit.errors import ConfigError
from embedkit.training.batches import BatchSource
from embedkit.training.cutting import Replay
from embedkit.training.losses.info_nce import info_nce
from embedkit.training.matryoshka import Matryoshka, MatryoshkaConfig
from embedkit.training.method import BatchSpec, Method, pooled
from embedkit.training.methods.sct import SCT, SCTConfig
from embedkit.training.methods.simcse import SimCSE, SimCSEConfig
from embedkit.training.recipes.run import resolve, run
from embedkit.training.recipes.stage import Control, prepare
from embedkit.training.rotation import RotatedVectors
from embedkit.training.views import ViewsConfig

QUIET = Control(show_progress=False)


@pytest.fixture
def simcse(make_encoder):
    return lambda: SimCSE(make_encoder(), SimCSEConfig(), seed=1)


@pytest.fixture
def make_batches(tokenizer, make_corpus, sentences):
    def make(views: int = 1, rows: int = 40) -> BatchSource:
        corpus = make_corpus(sentences(rows))
        spec, second = BatchSpec(views=views), ViewsConfig()
        return BatchSource(corpus, tokenizer, spec=spec, batch_size=10, seed=0, views=second)

    return make


def nest(method: Method, *dimensions: int, **settings) -> Matryoshka:
    return Matryoshka(method, MatryoshkaConfig(dimensions=dimensions, **settings))


class TestWrapper:
    def test_adds_the_weighted_mean_of_the_losses_of_cut_embeddings(self, simcse, make_batches):
        batch = make_batches().batch(0)
        method = simcse().eval()  # without dropout, so that it can be computed again
        embeddings = pooled(method.encoder, batch.views[0])
        losses = []
        for width in (16, 8, 3):
            rows = method.head(torch.cat([embeddings[:, :width], torch.zeros(10, 16 - width)], dim=1))
            losses.append(info_nce(rows, rows, temperature=0.05))
        found = nest(method, 8, 3, weight=0.7)(batch)
        assert torch.allclose(found.metrics["matryoshka"], (losses[1] + losses[2]) / 2)
        assert torch.allclose(found.loss, losses[0] + 0.7 * (losses[1] + losses[2]) / 2)

    def test_without_weight_the_method_is_alone(self, simcse, make_batches):
        batch = make_batches().batch(0)
        found = nest(simcse(), 8, weight=0).eval()(batch)
        assert torch.equal(found.loss, simcse().eval()(batch).loss)
        assert not found.metrics

    def test_the_encoder_does_not_run_more_often(self, simcse, make_batches):
        calls = []
        for method in (simcse(), nest(simcse(), 4)):
            counted = []
            method.encoder.backbone.register_forward_hook(lambda *_: counted.append(1))  # noqa: B023 - this turn's
            method(make_batches().batch(0))
            calls.append(len(counted))
        assert calls[0] == calls[1] > 0

    def test_the_state_is_the_methods_under_a_prefix(self, simcse):
        method = simcse()
        assert list(nest(method, 4).state_dict()) == [f"method.{name}" for name in method.state_dict()]

    def test_steps_and_product_are_the_methods(self, make_encoder, make_batches):
        method = SCT(make_encoder(), SCTConfig(queue_size=20, projector_expansion=2), seed=0)
        outer = nest(method, 4)
        assert outer.encoder is method.encoder
        assert outer.batch_spec == SCT.batch_spec
        output = outer(make_batches(views=2).batch(0))
        outer.after_step([output])
        assert torch.equal(method.self_supervision.queues.rows[0][:10], output.carry["reference1"])

    @pytest.mark.parametrize("dimensions", [[16], [20], [8, 16]])
    def test_dimensions_are_below_the_width(self, simcse, dimensions):
        with pytest.raises(ConfigError, match="below the embedding's width, here 16"):
            nest(simcse(), *dimensions)

    @pytest.mark.parametrize("dimensions", [[], [0], [-3, 4], [4, 4]])
    def test_dimensions_are_different_widths(self, dimensions):
        with pytest.raises(ConfigError, match="dimensions are different widths of 1 or more"):
            from_mapping(MatryoshkaConfig, {"dimensions": dimensions})


def fit(learner: Method, batches: BatchSource, steps: int) -> None:
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(learner.parameters(), lr=3e-3)
    for step in range(steps):
        optimizer.zero_grad()
        learner.train()(batches.batch(step)).loss.backward()
        optimizer.step()


def loss_when_cut(method: Method, batches: BatchSource, width: int) -> float:
    total = 0.0
    for step in range(100, 110):
        replay = Replay()
        with replay.at(width):
            total += float(method(batches.batch(step)).loss.detach())
    return total


def test_cut_embeddings_do_better_for_it(make_encoder, make_batches):
    total = {(width, nested): 0.0 for width in (8, 4) for nested in (False, True)}
    for seed in (0, 1):
        for nested in (False, True):
            method = SimCSE(make_encoder(seed), SimCSEConfig(), seed=1)
            fit(nest(method, 8, 4) if nested else method, make_batches(), 40)
            for width in (8, 4):
                total[width, nested] += loss_when_cut(method, make_batches(), width)
    for width in (8, 4):
        assert total[width, True] < 0.9 * total[width, False]


class TestRuns:
    @pytest.fixture
    def mapping(self, make_encoder, tmp_path, sentences):
        make_encoder().save(tmp_path / "start")
        (tmp_path / "texts.txt").write_text("\n".join(sentences(20)))
        return {
            "method": "sct",
            "data": str(tmp_path),
            "cache": str(tmp_path / "cache"),
            "student": {"source": "start", "max_length": 16},
            "corpus": [{"path": "texts.txt"}],
            "optim": {"batch_size": 5, "steps": 2},
            "matryoshka": {"dimensions": [8, 4], "weight": 0.1},
            "settings": {"queue_size": 8, "projector_expansion": 2},
        }

    def test_a_table_of_the_recipe_is_all_it_takes(self, mapping, tmp_path):
        assert run(resolve(mapping), tmp_path / "run", QUIET).finished
        records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        assert records[0]["matryoshka"] > 0
        assert load_toml(tmp_path / "run" / "config.toml")["matryoshka"]["dimensions"] == [8, 4]

    def test_every_stage_of_a_recipe_is_nested(self, mapping, tmp_path):
        stages = {
            "method": "sct-two-stage",
            "teacher": {"source": "start"},
            "settings": {
                "self_supervised": mapping["settings"],
                "self_supervised_optim": mapping["optim"],
                "distillation": {"queue_size": 8},
            },
        }
        assert run(resolve({**mapping, **stages}), tmp_path / "run", QUIET).finished
        for folder in (tmp_path / "run" / "self-supervised", tmp_path / "run"):
            assert "matryoshka" in json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])

    @pytest.mark.parametrize("rotate", [True, False])
    def test_teachers_are_turned_unless_the_table_says_no(self, mapping, rotate):
        table = {"dimensions": [4], "rotate": rotate, "weight": 0.1}
        config = resolve(
            {**mapping, "method": "mse", "settings": {}, "teacher": {"source": "start"}, "matryoshka": table}
        )
        (teacher,) = prepare(config, QUIET, teacher=True).teachers
        assert isinstance(teacher, RotatedVectors) == rotate

    @pytest.mark.parametrize(
        ("method", "table", "nested"),
        [
            ("mse", {}, False),
            ("mse", {"rotate": False}, True),
            ("mse", {"weight": 0.5}, True),
            ("distillcse", {}, True),  # knows cosines only, which no rotation changes
        ],
    )
    def test_who_imitates_turned_vectors_gets_no_loss_unless_asked_for(
        self, mapping, tmp_path, method, table, nested
    ):
        mapping |= {"method": method, "settings": {}, "teacher": {"source": "start"}}
        assert run(
            resolve(mapping | {"matryoshka": {"dimensions": [4], **table}}), tmp_path / "run", QUIET
        ).finished
        assert ("matryoshka" in (tmp_path / "run" / "metrics.jsonl").read_text()) == nested

    @pytest.mark.parametrize(("method", "rotate"), [("simcse", True), ("mse", False)])
    def test_a_table_that_changes_nothing_is_refused(self, mapping, tmp_path, method, rotate):
        mapping |= {"method": method, "settings": {}, "teacher": {"source": "start"}}
        mapping["matryoshka"] = {"dimensions": [4], "rotate": rotate, "weight": 0}
        with pytest.raises(ConfigError, match=r"would change nothing.*matryoshka\.weight"):
            run(resolve(mapping), tmp_path / "run", QUIET)

    def test_without_the_table_nothing_is_added(self, mapping, tmp_path):
        del mapping["matryoshka"]
        run(resolve(mapping), tmp_path / "run", QUIET)
        assert "matryoshka" not in (tmp_path / "run" / "metrics.jsonl").read_text()
