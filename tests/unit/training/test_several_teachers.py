"""From one teacher to several: configuration, batches, and what is rejected."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from toys import TableTeacher

from embedkit.config import to_mapping
from embedkit.errors import ConfigError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.batches import BatchSource, ViewsConfig
from embedkit.training.method import BatchSpec
from embedkit.training.recipes.run import resolve, run

TEXTS = ["the cat", "a good dog", "my sister reads", "the sea", "an old king", "a bird in the garden"]
RUN = {"method": "distillcse", "corpus": [{"path": "texts.txt"}]}


def invented(dimension):
    return TableTeacher.random(len(TEXTS), dimension, f"teacher {dimension}")


class TestBatches:
    @pytest.fixture
    def source(self, make_corpus, tokenizer):
        corpus, about = make_corpus(TEXTS), {"batch_size": 3, "seed": 0, "views": ViewsConfig()}
        return lambda spec, *teachers: BatchSource(corpus, tokenizer, spec=spec, teachers=teachers, **about)

    def test_each_teacher_returns_its_own_vectors_for_the_same_rows(self, source):
        spec = BatchSpec(views=2, teacher=True, several_teachers=True)
        both = source(spec, invented(4), invented(7)).batch(1)
        alone = [source(spec, invented(width)).batch(1) for width in (4, 7)]
        assert [[tuple(view.shape) for view in teacher] for teacher in both.teachers] == [
            [(3, 4)] * 2,
            [(3, 7)] * 2,
        ]
        for found, expected in zip(both.teachers, alone, strict=True):
            assert all(torch.equal(*pair) for pair in zip(found, expected.teacher, strict=True))

    def test_vectors_that_are_not_requested_are_not_read(self, source):
        assert source(BatchSpec(), invented(4)).batch(0).teachers == ()

    def test_batches_move_with_all_their_vectors(self, source):
        batch = source(BatchSpec(teacher=True, several_teachers=True), invented(4), invented(7)).batch(0)
        moved = batch.to(torch.device("meta"))
        assert {vectors.device.type for teacher in moved.teachers for vectors in teacher} == {"meta"}

    @pytest.mark.parametrize(
        ("spec", "count", "message"),
        [
            (BatchSpec(teacher=True), 0, "needs a teacher"),
            (BatchSpec(teacher=True), 2, "supports one teacher, not 2"),
            (BatchSpec(), 2, "supports one teacher, not 2"),
            (BatchSpec(teacher=True, several_teachers=True), 0, "needs a teacher"),
        ],
    )
    def test_too_few_and_too_many_are_refused(self, source, spec, count, message):
        with pytest.raises(ConfigError, match=message):
            source(spec, *[invented(4)] * count)


class TestConfig:
    def test_several_are_a_list(self):
        config = resolve({**RUN, "teachers": [{"source": "a"}, {"source": "b"}]})
        assert [teacher.source for teacher in config.every_teacher] == ["a", "b"]
        assert resolve(to_mapping(config)) == config

    def test_one_may_be_in_either_table(self):
        for table in ({"teacher": {"source": "a"}}, {"teachers": [{"source": "a"}]}):
            for method in ("distillcse", "mse"):
                config = resolve({**RUN, "method": method, **table})
                assert [teacher.source for teacher in config.every_teacher] == ["a"]

    def test_not_in_both_tables(self):
        both = {"teacher": {"source": "a"}, "teachers": [{"source": "b"}]}
        with pytest.raises(ConfigError, match="not both"):
            resolve({**RUN, **both})

    def test_an_empty_list_is_no_teacher(self):
        with pytest.raises(ConfigError, match="needs a teacher"):
            resolve({**RUN, "teachers": []})


class TestRun:
    @pytest.mark.parametrize(
        ("method", "dimension", "settings"),
        [
            ("distillcse", 128, {}),
            ("congen", 5, {"queue_size": 6}),
            ("sct-distillation", 5, {"queue_size": 6}),
            (
                "sct-two-stage",
                5,
                {
                    "self_supervised": {"queue_size": 6},
                    "self_supervised_optim": {"batch_size": 3, "steps": 1},
                    "distillation": {"queue_size": 6},
                },
            ),
        ],
    )
    def test_two_teachers_from_files_to_card(self, toy_bundle, tmp_path, method, dimension, settings):
        """One bundle, whose vocabulary the student receives, and one file of vectors of another width."""
        (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
        np.save(tmp_path / "vectors.npy", invented(5).read(np.arange(6), 0))
        config = resolve(
            {
                "method": method,
                "settings": settings,
                "data": str(tmp_path),
                "cache": str(tmp_path / "cache"),
                "student": {"start": "random", "max_length": 12},
                "corpus": [{"path": "texts.txt"}],
                "teachers": [{"source": "vectors.npy", "name": "table"}, {"source": str(toy_bundle)}],
                "optim": {"batch_size": 3, "steps": 2},
            }
        )
        assert run(config, tmp_path / "run").finished
        teacher = json.loads((tmp_path / "run" / "run.json").read_text())["teacher"]
        assert teacher["name"] == "table, toy"
        assert [one["name"] for one in teacher["teachers"]] == ["table", "toy"]
        assert len({teacher["fingerprint"], *(one["fingerprint"] for one in teacher["teachers"])}) == 3
        assert SentenceEncoder.load(tmp_path / "run" / "model").dimension == dimension
