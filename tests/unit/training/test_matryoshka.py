"""Matryoshka around a method: what it adds, what it leaves alone, and that it does what it is for."""

from __future__ import annotations

import json

import pytest
import torch

from embedkit.config import from_mapping, load_toml
from embedkit.errors import ConfigError, TrainingError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.training.batches import BatchSource
from embedkit.training.losses.nested import nested_similarity_loss
from embedkit.training.losses.similarity_distillation import cosines_with_others
from embedkit.training.matryoshka import Matryoshka, MatryoshkaConfig
from embedkit.training.method import BatchSpec, Method, StepOutput
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
    return Matryoshka(method, MatryoshkaConfig(dimensions=dimensions, **{"weight": 0.1, **settings}))


class TestWrapper:
    def test_adds_the_weighted_loss_of_the_methods_own_embeddings(self, simcse, make_batches):
        batch = make_batches().batch(0)
        plain = simcse().eval()(batch)
        found = nest(simcse(), 8, 3, weight=0.7, temperature=0.2).eval()(batch)
        nested = nested_similarity_loss(plain.embeddings, [8, 3], temperature=0.2)
        assert torch.allclose(found.metrics["matryoshka"], nested)
        assert torch.allclose(found.loss, plain.loss + 0.7 * nested)

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

    def test_a_method_that_does_not_say_its_embeddings_is_told(self, simcse, make_batches):
        class Silent(SimCSE):
            def forward(self, batch):
                return StepOutput(super().forward(batch).loss)

        method = Silent(simcse().encoder, SimCSEConfig(), seed=1)
        with pytest.raises(TrainingError, match="does not say its embeddings"):
            nest(method, 4)(make_batches().batch(0))


def disagreement(encoder: SentenceEncoder, texts: list[str], width: int) -> float:
    """How far cosines of the first dimensions are from those of all, on average."""
    embeddings = torch.from_numpy(TorchEncoder(encoder).encode(texts))
    return float((cosines_with_others(embeddings[:, :width]) - cosines_with_others(embeddings)).abs().mean())


def fit(learner: Method, batches: BatchSource, steps: int) -> SentenceEncoder:
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(learner.parameters(), lr=3e-3)
    for step in range(steps):
        optimizer.zero_grad()
        learner.train()(batches.batch(step)).loss.backward()
        optimizer.step()
    return learner.encoder


def test_cut_embeddings_agree_better_with_whole_ones(make_encoder, make_batches, sentences):
    total = {(width, nested): 0.0 for width in (8, 4) for nested in (False, True)}
    for seed in (0, 1):
        for nested in (False, True):
            method = SimCSE(make_encoder(seed), SimCSEConfig(), seed=1)
            encoder = fit(nest(method, 8, 4, weight=1.0) if nested else method, make_batches(), 40)
            for width in (8, 4):
                total[width, nested] += disagreement(encoder, sentences(60)[40:], width)
    for width in (8, 4):
        assert total[width, True] < 0.75 * total[width, False]


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

    def test_the_rotation_alone_is_the_default(self, mapping, tmp_path):
        mapping |= {
            "method": "mse",
            "settings": {},
            "teacher": {"source": "start"},
            "matryoshka": {"dimensions": [4]},
        }
        assert run(resolve(mapping), tmp_path / "run", QUIET).finished
        assert "matryoshka" not in (tmp_path / "run" / "metrics.jsonl").read_text()

    @pytest.mark.parametrize(("method", "rotate"), [("sct", True), ("mse", False)])
    def test_a_table_that_changes_nothing_is_refused(self, mapping, tmp_path, method, rotate):
        mapping |= {"method": method, "settings": {}, "teacher": {"source": "start"}}
        mapping["matryoshka"] = {"dimensions": [4], "rotate": rotate}
        with pytest.raises(ConfigError, match=r"would change nothing.*matryoshka\.weight"):
            run(resolve(mapping), tmp_path / "run", QUIET)

    def test_without_the_table_nothing_is_added(self, mapping, tmp_path):
        del mapping["matryoshka"]
        run(resolve(mapping), tmp_path / "run", QUIET)
        assert "matryoshka" not in (tmp_path / "run" / "metrics.jsonl").read_text()
