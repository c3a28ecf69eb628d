"""From a mapping to a configuration, and the checks of a run before it costs anything."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from embedkit.config import load_toml
from embedkit.errors import ConfigError, DataError, ModelNotFoundError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.corpus import Corpus
from embedkit.training.loop import RunControl
from embedkit.training.methods import METHODS
from embedkit.training.recipes import RECIPES
from embedkit.training.recipes.stage import Stage
from embedkit.training.run import find_method, resolve, run
from embedkit.training.run_folder import TrainState

BARE = {"method": "sct", "corpus": [{"path": "a.txt"}]}
TAUGHT = {**BARE, "method": "sct-two-stage", "teacher": {"source": "teacher"}}


def problems_of(mapping, **options):
    with pytest.raises(ConfigError) as caught:
        resolve(mapping, **options)
    return caught.value.problems


class TestResolve:
    @pytest.mark.parametrize(
        ("method", "size", "lr", "queue", "reference", "online"),
        [
            ("sct", "bert-tiny", 5e-4, 131_072, 0.03, 0.04),  # table 1 of the paper
            ("sct", "bert-mini", 3e-4, 131_072, 0.01, 0.03),
            ("sct", "bert-small", 3e-4, 65_536, 0.02, 0.03),
            ("sct-distillation", "bert-tiny", 5e-4, 131_072, 0.03, 0.04),  # of the authors' code
            ("sct-distillation", "bert-mini", 1e-4, 65_536, 0.04, 0.05),
            ("sct-distillation", "bert-small", 1e-4, 131_072, 0.04, 0.05),
        ],
    )
    def test_sct_has_the_published_settings(self, method, size, lr, queue, reference, online):
        mapping = BARE if method == "sct" else TAUGHT
        config = resolve({**mapping, "method": method, "student": {"size": size}})
        found = config.settings
        assert (config.optim.lr, found.queue_size) == (lr, queue)
        assert (found.reference_temperature, found.temperature) == (reference, online)
        assert (config.optim.batch_size, config.optim.epochs, config.optim.warmup) == (128, 10, 0.1)
        assert (config.optim.epsilon, config.optim.correct_bias, config.optim.weight_decay) == (1e-6, False, 0.01)

    @pytest.mark.parametrize("size", ["bert-tiny", "bert-mini", "bert-small"])
    def test_two_stages_have_those_of_each(self, size):
        both = resolve({**TAUGHT, "student": {"size": size}})
        first = resolve({**BARE, "student": {"size": size}})
        second = resolve({**TAUGHT, "method": "sct-distillation", "student": {"size": size}})
        assert both.settings.self_supervised == first.settings
        assert both.settings.self_supervised_optim == first.optim
        assert both.settings.distillation == second.settings
        assert both.optim == second.optim

    @pytest.mark.parametrize(
        ("method", "every"), [("sct", 64), ("simcse", 125), ("pcl", 125), ("distillcse", 125), ("ckd", 512)]
    )
    def test_evaluations_are_as_far_apart_as_published(self, method, every):
        mapping = BARE if method == "sct" else TAUGHT
        assert resolve({**mapping, "method": method}).dev.every == every

    def test_all_problems_of_all_tables_at_once(self):
        mapping = {
            "method": "sct-distillation",
            "sead": 1,
            "student": {"size": "huge"},
            "optim": {"lr": -1},
            "settings": {"queue_syze": 1, "weight": 0},
        }
        assert sorted(problems_of(mapping, source="r.toml")) == [
            "r.toml: corpus is missing: name files or hub sets with --corpus or [[corpus]]",
            "r.toml: optim.lr is greater than 0, not -1.0",
            "r.toml: sead is not a setting; did you mean 'seed'?",
            "r.toml: settings.queue_syze is not a setting; did you mean 'queue_size'?",
            "r.toml: settings.weight is greater than 0, not 0.0",
            "r.toml: student.size is one of bert-tiny, bert-mini, bert-small, not 'huge'",
            "this method needs a teacher: name one with --teacher or [teacher]",
        ]

    @pytest.mark.parametrize(
        "over",
        [{"student": 5}, {"student": {"size": ["bert-tiny"]}}, {"optim": 5}, {"settings": 5}, {"corpus": []},
         {"corpus": {"path": "a.txt"}}, {"corpus": [{"path": "a", "view_columns": ["x"]}]}, {"teacher": {}}],
        ids=str,
    )  # fmt: skip
    def test_invalid_settings_are_a_config_error(self, over):
        assert problems_of({**BARE, **over})

    @pytest.mark.parametrize(
        ("over", "named"),
        [
            ({"method": "simcse", "dev": {"held_out": 9}}, "dev.held_out measures the distance"),
            ({"method": "sct-two-stage", "dev": {"held_out": 9}}, "dev.held_out measures the distance"),
            ({"method": "simcse", "matryoshka": {"dimensions": [8]}}, "[matryoshka] rotates"),
            ({"method": "trans-encoder", "corpus": [{"path": "a.tsv", "repeat": 2}]}, "repeat is not used by"),
            ({"method": "labelled-pairs", "corpus": [{"path": "a.tsv", "repeat": 2}]}, "repeat is not used by"),
            ({"method": "score-distillation", "settings": {"queries": [{"path": "q.txt", "repeat": 2}]}},
             "repeat is not used by"),
            ({"method": "labelled-pairs", "student": {"max_length": 512}},
             "is for encoders, not for the cross-encoders of labelled-pairs: set settings.length"),
            ({"method": "labelled-pairs", "student": {"pooling": "cls"}}, "student.pooling is for encoders"),
            ({"method": "labelled-pairs", "dev": {"pairs": "dev.tsv"}},
             "dev.pairs is for encoders, not for the cross-encoders of labelled-pairs: name re-ranking sets"),
            ({"method": "score-distillation", "settings": {"queries": [{"path": "q.txt"}]},
              "dev": {"held_out": 9}}, "dev.held_out is for encoders"),
            ({"method": "score-distillation", "settings": {"queries": [{"path": "q.txt"}]},
              "matryoshka": {"dimensions": [8]}}, "[matryoshka] rotates"),
            ({"method": "distillcse", "settings": {"teacher_weights": [1, 2]}},
             "teacher_weights has 2 weights for 1 teachers"),
            ({"method": "distillcse-rounds", "settings": {"distillation": {"teacher_weights": [1, 2]}}},
             "teacher_weights has 2 weights for 1 teachers"),
            ({"student": {"source": "m", "start": "layers"}}, "start and tokenizer are not allowed with"),
            ({"student": {"source": "m", "tokenizer": "n"}}, "start and tokenizer are not allowed with"),
        ],
    )  # fmt: skip
    def test_a_setting_without_a_use_is_refused(self, over, named):
        mapping = {**BARE, "teacher": {"source": "teacher"}, **over}
        (problem,) = problems_of(mapping)
        assert named in problem

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("sct-destillation", "unknown method 'sct-destillation'; did you mean 'sct-distillation'?"),
            ("xyzzy", "unknown method 'xyzzy'; choose one of sct, "),
            ("static", "a static encoder comes from a teacher's words, by `embedkit distill-static"),
            (None, "method is missing; name a recipe, or a method of `embedkit methods`: sct, "),
            (5, "unknown method 5"),
            (["sct"], "unknown method"),
        ],
    )
    def test_an_unknown_method_gets_a_suggestion(self, name, message):
        with pytest.raises(ConfigError) as caught:
            find_method(name)
        assert str(caught.value).startswith(message)

    def test_methods_and_recipes_have_distinct_names(self):
        assert not METHODS.keys() & RECIPES.keys()


@pytest.fixture
def mapping(mapping):
    del mapping["teacher"]
    return {**mapping, "method": "sct", "settings": {"queue_size": 8, "projector_expansion": 2}}


@pytest.fixture
def taught(mapping):
    return {
        **mapping,
        "method": "sct-two-stage",
        "teacher": {"source": "start"},
        "settings": {
            "self_supervised": mapping["settings"],
            "self_supervised_optim": mapping["optim"],
            "distillation": {"queue_size": 8},
        },
    }


QUIET = RunControl(show_progress=False)


def stop_at(step):
    seen = iter(range(1, 100))
    return RunControl(should_stop=lambda: next(seen) == step, show_progress=False)


class TestResume:
    """A run is resumed only if everything that it read has the content that it had."""

    @pytest.fixture
    def begun(self, mapping, tmp_path):
        """Stop a run after its first step; return its configuration."""
        np.save(tmp_path / "v.npy", np.random.default_rng(0).standard_normal((20, 24)))
        (tmp_path / "dev.tsv").write_text("the cat\ta cat\t1\na dog\tthe cat\t2\nthe sea\ta dog\t3\n")
        config = resolve(
            {
                **mapping,
                "method": "mse",
                "settings": {},
                "teacher": {"source": "v.npy", "name": "vectors"},
                "dev": {"pairs": "dev.tsv"},
            }
        )
        assert not run(config, tmp_path / "run", stop_at(1)).finished
        return config

    @pytest.mark.parametrize(
        ("file", "named"),
        [
            ("texts.txt", r"the text texts\.txt"),
            ("dev.tsv", r"the development pairs dev\.tsv"),
            ("v.npy", "the vectors of teacher vectors"),
            ("start", "the model start"),
        ],
    )
    def test_what_has_changed_is_named(self, begun, tmp_path, make_encoder, file, named):
        path = tmp_path / file
        if file == "v.npy":
            np.save(path, np.load(path) + 1)
        elif file == "start":
            make_encoder(1).save(path)
        else:
            path.write_text(path.read_text().replace("the", "that"))
        with pytest.raises(ConfigError, match=f"cannot be resumed, because the content of {named} has changed"):
            run(begun, tmp_path / "run", RunControl(resume=True, show_progress=False))

    def test_the_same_content_is_resumed(self, begun, tmp_path):
        assert run(begun, tmp_path / "run", RunControl(resume=True, show_progress=False)).finished


class TestHead:
    """A head leads into one teacher's space; for another teacher it is fitted again."""

    @pytest.fixture
    def heads(self, mapping, make_encoder, tmp_path):
        """``heads(teacher)``: the head of ``first/model`` and the one that training starts from."""
        for name, seed in (("one", 3), ("two", 4)):
            make_encoder(seed).save(tmp_path / name)
        base = {
            **mapping,
            "method": "mse",
            "settings": {"head": "linear"},
            "optim": {"batch_size": 5, "steps": 1, "lr": 1e-9},
        }

        def heads(teacher, *, earlier=None, **changes):
            run(resolve({**base, "teacher": {"source": "one"}, **(earlier or {})}), tmp_path / "first", QUIET)
            student = {"source": "first/model", "max_length": 16}
            run(resolve({**base, "student": student, "teacher": {"source": teacher}, **changes}),
                tmp_path / "run", QUIET)  # fmt: skip
            return [SentenceEncoder.load(tmp_path / name / "model").head for name in ("first", "run")]

        return heads

    def test_it_is_kept_for_its_teacher(self, heads):
        before, after = heads("one")
        assert torch.allclose(before.linear.weight, after.linear.weight, atol=1e-6)

    def test_it_is_fitted_to_another_teacher(self, heads):
        before, after = heads("two")
        assert not torch.allclose(before.linear.weight, after.linear.weight, atol=1e-2)
        assert after.activation == "linear"

    def test_it_is_fitted_to_a_rotated_space(self, heads):
        before, after = heads("one", matryoshka={"dimensions": [8]})
        assert not torch.allclose(before.linear.weight, after.linear.weight, atol=1e-2)

    def test_it_is_fitted_after_a_rotated_space(self, heads):
        before, after = heads("one", earlier={"matryoshka": {"dimensions": [8]}})
        assert not torch.allclose(before.linear.weight, after.linear.weight, atol=1e-2)

    def test_it_is_kept_for_a_teacher_that_was_rounded_otherwise(self, heads, make_encoder, tmp_path):
        rounded = make_encoder(3)
        with torch.no_grad():
            for weight in rounded.parameters():
                weight.copy_(weight.bfloat16().float())
        rounded.save(tmp_path / "rounded")

        before, after = heads("rounded")

        assert torch.allclose(before.linear.weight, after.linear.weight, atol=1e-6)


def test_a_seed_has_at_most_63_bits():
    assert resolve({**BARE, "seed": 2**63 - 1}).seed == 2**63 - 1
    assert problems_of({**BARE, "seed": 2**63}) == [f"seed is a whole number between -2^63 and 2^63, not {2**63}"]


class TestRun:
    def test_the_folder_holds_the_resolved_configuration(self, mapping, tmp_path):
        config = resolve(mapping)
        run(config, tmp_path / "run", QUIET)
        assert resolve(load_toml(tmp_path / "run" / "config.toml")) == config
        assert {
            "config.toml",
            "environment.json",
            "inputs.json",
            "metrics.jsonl",
            "run.json",
            "model",
            "checkpoints",
            "initial",
        } == {path.name for path in (tmp_path / "run").iterdir()}

    def test_a_folder_in_use_is_refused_before_anything_is_loaded(self, mapping, tmp_path, monkeypatch):
        config = resolve(mapping)
        run(config, tmp_path / "run", QUIET)
        monkeypatch.setattr("embedkit.training.run.build_student", None)
        with pytest.raises(ConfigError, match="already holds a run"):
            run(config, tmp_path / "run", QUIET)
        with pytest.raises(ConfigError, match="other settings: seed"):
            run(resolve({**mapping, "seed": 3}), tmp_path / "run", RunControl(resume=True))

    def test_a_device_that_is_not_there_is_reported_before_anything_is_loaded(
        self, mapping, tmp_path, monkeypatch
    ):
        monkeypatch.setattr("embedkit.training.run.build_student", None)
        with pytest.raises(ConfigError, match="device 'abacus' cannot be used here"):
            run(resolve({**mapping, "device": "abacus"}), tmp_path / "run", QUIET)

    def test_a_missing_development_set_is_reported_before_anything_is_computed(
        self, mapping, tmp_path, monkeypatch
    ):
        monkeypatch.setattr("embedkit.training.run.build_student", None)
        with pytest.raises(DataError, match="gone"):
            run(resolve({**mapping, "dev": {"pairs": "gone.csv"}}), tmp_path / "run", QUIET)

    def test_a_missing_start_is_reported_before_the_corpus_is_read(self, mapping, tmp_path, monkeypatch):
        monkeypatch.setattr(Corpus, "prepare", None)
        for student in ({"source": str(tmp_path / "gone")}, {"tokenizer": str(tmp_path / "gone")}):
            with pytest.raises(ModelNotFoundError):
                run(resolve({**mapping, "student": student}), tmp_path / "run", QUIET)

    def test_threads_are_set_for_the_run_and_restored(self, mapping, tmp_path):
        before = torch.get_num_threads()
        run(resolve({**mapping, "threads": 3}), tmp_path / "run", QUIET)
        assert torch.get_num_threads() == before
        assert json.loads((tmp_path / "run" / "environment.json").read_text())["threads"] == 3

    @pytest.mark.parametrize("prompt", [None, "a "])
    def test_the_card_records_the_teachers_own_teacher(self, mapping, tmp_path, write_toy_bundle, prompt):
        """A student of a student embeds in the space of the first teacher, too."""
        first = {"name": "large", "fingerprint": "f" * 64}
        source = write_toy_bundle(tmp_path / "teacher.onnx", teacher=first)
        teacher = {"source": str(source)} | ({} if prompt is None else {"prompt": prompt})
        changes = {"method": "sct-distillation", "settings": {"queue_size": 8}, "teacher": teacher}
        run(resolve({**mapping, **changes}), tmp_path / "run", QUIET)
        card = json.loads((tmp_path / "run" / "run.json").read_text())["teacher"]
        assert (card["name"], card["teacher"]) == ("toy", first)

    def test_a_method_without_teacher_does_not_use_one(self, mapping, tmp_path, monkeypatch):
        monkeypatch.setattr("embedkit.training.run.load_vectors", None)
        config = resolve({**mapping, "method": "simcse", "settings": {}, "teacher": {"source": "start"}})
        run(config, tmp_path / "run", QUIET)
        assert json.loads((tmp_path / "run" / "run.json").read_text())["teacher"] is None

    @pytest.mark.parametrize(
        ("method", "settings"),
        [
            ("sct-two-stage", {"self_supervised_optim": {"batch_size": 5, "steps": 2}}),
            ("sct-two-stage", {"self_supervised_optim": {"batch_size": 50}}),
            ("sct-distillation", {}),
            ("distillcse", {}),
            ("distillcse-rounds", {"contrastive_optim": {"batch_size": 5}}),
        ],
    )
    def test_too_few_texts_are_refused_before_a_teacher_encodes_them(
        self, taught, tmp_path, monkeypatch, method, settings
    ):
        monkeypatch.setattr("embedkit.training.run.load_vectors", None)
        monkeypatch.setattr("embedkit.training.run.build_student", None)
        small = settings.get("self_supervised_optim", {}).get("batch_size") == 50
        optim = {"batch_size": 5 if small else 50, "steps": 1}
        config = resolve({**taught, "method": method, "optim": optim, "settings": settings})
        with pytest.raises(ConfigError, match=r"has 20 rows, fewer than optim\.batch_size = 50; add text"):
            run(config, tmp_path / "run", QUIET)
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize(("batch_size", "cross"), [(50, 5), (5, 50)])
    def test_too_few_pairs_are_refused_before_anything_is_labelled(
        self, mapping, tmp_path, monkeypatch, batch_size, cross
    ):
        monkeypatch.setattr("embedkit.training.run.build_student", None)
        (tmp_path / "texts.txt").unlink()
        (tmp_path / "pairs.tsv").write_text("".join(f"text {i}\tother {i}\n" for i in range(20)))
        pairs = {
            **mapping,
            "method": "trans-encoder",
            "corpus": [{"path": "pairs.tsv"}],
            "optim": {"batch_size": batch_size},
            "settings": {"cross_optim": {"batch_size": cross}},
        }
        with pytest.raises(ConfigError, match=r"fewer than optim\.batch_size = 50"):
            run(resolve(pairs), tmp_path / "run", QUIET)
        assert not (tmp_path / "run").exists()

    def test_a_run_refused_at_its_first_stage_leaves_the_folder_to_the_next(self, mapping, tmp_path, monkeypatch):
        def fail(*_):
            raise ConfigError("no such method")

        with monkeypatch.context() as patched:
            patched.setattr("embedkit.training.recipes.stage.train", fail)
            with pytest.raises(ConfigError, match="no such method"):
                run(resolve(mapping), tmp_path / "run", QUIET)
        assert (tmp_path / "run" / "config.toml").exists()
        state = run(resolve({**mapping, "seed": 3}), tmp_path / "run", QUIET)
        assert state.finished
        assert load_toml(tmp_path / "run" / "config.toml")["seed"] == 3

    @pytest.mark.parametrize(
        ("method", "settings", "warned"),
        [
            ("sct", {"queue_size": 21}, ["settings.queue_size = 21"]),
            ("sct", {"queue_size": 20}, []),
            ("sct-distillation", {"queue_size": 20, "self_supervised": {"queue_size": 50}}, []),
            ("sct-distillation", {"joint": True, "queue_size": 20, "self_supervised": {"queue_size": 50}},
             ["settings.self_supervised.queue_size = 50"]),
        ],
    )  # fmt: skip
    def test_a_queue_longer_than_the_corpus_is_reported(
        self, mapping, tmp_path, monkeypatch, caplog, method, settings, warned
    ):
        caplog.set_level("INFO", logger="embedkit")
        monkeypatch.setattr(Stage, "train", lambda *_: TrainState())
        teacher = {} if method == "sct" else {"teacher": {"source": "start"}}
        run(resolve({**mapping, "method": method, "settings": settings, **teacher}), tmp_path / "run", QUIET)
        found = [record.getMessage() for record in caplog.records if "queue_size" in record.getMessage()]
        assert [message.partition(" exceeds")[0] for message in found] == warned

    def test_a_student_of_another_shape_than_its_settings_logs_a_warning(self, mapping, tmp_path, caplog):
        run(resolve(mapping), tmp_path / "run", QUIET)
        (found,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert found.startswith(
            "no settings are published for a student of 1 x 16; using those of bert-tiny, 2 x 128"
        )

    def test_two_stages_leave_both_runs(self, taught, tmp_path):
        state = run(resolve(taught), tmp_path / "run", QUIET)
        assert (state.step, state.finished) == (2, True)
        first = tmp_path / "run" / "self-supervised"
        assert {path.name for path in first.iterdir()} == {"checkpoints", "metrics.jsonl", "model"}

    def test_every_record_of_the_metrics_is_handed_on(self, taught, tmp_path):
        seen = []
        run(resolve(taught), tmp_path / "run", RunControl(show_progress=False, on_record=seen.append))
        written = [tmp_path / "run" / "self-supervised" / "metrics.jsonl", tmp_path / "run" / "metrics.jsonl"]
        assert seen == [json.loads(line) for path in written for line in path.read_text().splitlines()]

    def test_a_limit_draws_the_same_development_pairs_for_every_seed(self, mapping, tmp_path, monkeypatch):
        seen, train = [], Stage.train

        def spy(stage, *rest):
            seen.append(stage.data.dev)
            return train(stage, *rest)

        monkeypatch.setattr(Stage, "train", spy)
        pairs = [(f"the cat {i}", f"a dog {i * i}", i % 6) for i in range(40)]
        (tmp_path / "dev.tsv").write_text("".join(f"{a}\t{b}\t{score}\n" for a, b, score in pairs))
        for seed, limit in ((1, 7), (2, 7), (1, 40)):
            mapping = {**mapping, "seed": seed, "dev": {"pairs": "dev.tsv", "limit": limit}}
            run(resolve(mapping), tmp_path / f"run-{seed}-{limit}", QUIET)
        drawn = [list(zip(dev.first, dev.second, dev.scores, strict=True)) for dev in seen]
        assert drawn[0] == drawn[1] == sorted(drawn[0], key=pairs.index)
        assert [len(dev) for dev in seen] == [7, 7, 40]
        assert drawn[0] != pairs[:7]
        assert json.loads((tmp_path / "run-1-7" / "run.json").read_text())["dev_pairs"] == 7

    def test_dev_pairs_from_the_hub_are_those_for_validation(self, mapping, tmp_path, monkeypatch):
        asked = {}

        def load(source, **options):
            asked.update(options, source=source)
            raise DataError("enough")

        monkeypatch.setattr("embedkit.training.run.load_scored_pairs", load)
        with pytest.raises(DataError, match="enough"):
            run(resolve({**mapping, "dev": {"pairs": "mteb/stsbenchmark-sts"}}), tmp_path / "run", QUIET)
        assert asked == {"source": "mteb/stsbenchmark-sts", "split": "validation"}
