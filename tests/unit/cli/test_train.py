"""`embedkit train`: flags to configuration, --check, and a run that is interrupted and resumed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib

import pytest

from embedkit.cli.main import main
from embedkit.cli.train import stop_control
from embedkit.modeling.initialisation import Size, random
from embedkit.runtime.tokenization import Tokenizer
from embedkit.training.corpus import SourceConfig
from embedkit.training.run import resolve

SENTENCES = [f"{who} {what} {where}" for who in ("the cat", "a dog", "my sister", "the king") for what in
             ("sleeps", "reads", "sings") for where in ("at home", "at school", "by the sea")]  # fmt: skip

SLOW = """
import sys, time, torch
from embedkit.cli.main import main

backward = torch.Tensor.backward
torch.Tensor.backward = lambda *given, **more: time.sleep(0.1) or backward(*given, **more)
sys.exit(main())
"""
"""Training that is certainly interrupted before its last step."""


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(SENTENCES), encoding="utf-8")
    return str(path)


def check(capsys, *arguments):
    """Return the resolved configuration that --check prints."""
    assert main(["train", "--check", *arguments]) == 0
    return tomllib.loads(capsys.readouterr().out)


def fail(capsys, *arguments):
    assert main(["train", "--check", *arguments]) == 1
    return capsys.readouterr().err


class TestConfiguration:
    BARE = ("--method", "sct", "--corpus", "a.txt")

    @pytest.fixture(autouse=True)
    def any_corpus(self, monkeypatch):
        """These configurations name files that do not exist."""
        monkeypatch.setattr("embedkit.training.run.prepare", lambda _: None)
        monkeypatch.setattr("embedkit.training.run.planned", lambda *_: (1, 0))

    @pytest.mark.parametrize(
        ("flags", "expected"),
        [
            (["--name", "tiny 😀"], {"name": "tiny 😀"}),
            (["--name", "5"], {"name": "5"}),
            (["--size", "bert-mini"], {"student": {"size": "bert-mini"}, "optim": {"lr": 3e-4}}),
            (["--student", "org/model"], {"student": {"source": "org/model"}}),
            (["--start", "random"], {"student": {"start": "random"}}),
            (["--tokenizer", "org/model"], {"student": {"tokenizer": "org/model"}}),
            (["--dev", "dev.tsv"], {"dev": {"pairs": "dev.tsv"}}),
            (["--epochs", "3"], {"optim": {"epochs": 3}}),
            (["--steps", "30"], {"optim": {"steps": 30}}),
            (["--seed", "7"], {"seed": 7}),
            (["--data", "d"], {"data": "d"}),
            (["--cache", "c"], {"cache": "c"}),
            (["--set", "optim.lr=1e-3", "--set", "settings.queue_size=9"],
             {"optim": {"lr": 1e-3}, "settings": {"queue_size": 9}}),
            (["--seed", "7", "--set", "seed=8"], {"seed": 8}),
            (["--corpus", "b.txt"], {"corpus": [{"path": "a.txt"}, {"path": "b.txt"}]}),
            (["--text-column", "t"], {"corpus": [{"path": "a.txt", "text_column": "t"}]}),
            (["--view-columns", "a", "b"], {"corpus": [{"path": "a.txt", "view_columns": ["a", "b"]}]}),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )  # fmt: skip
    def test_flags_set_their_settings(self, capsys, flags, expected):
        assert_within(expected, check(capsys, *self.BARE, *flags))

    def test_standard_input_is_kept_so_that_a_run_can_be_resumed(self, capsys, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        paths = []
        for text in ("one\n\ntwo\n", '{"text": "three"}\n'):
            (tmp_path / "in").write_text(text, encoding="utf-8")
            with (tmp_path / "in").open(encoding="utf-8") as file:
                monkeypatch.setattr("sys.stdin", file)
                (source,) = check(capsys, "--method", "sct", "--corpus", "-")["corpus"]
            paths.append(source["path"])
        texts = [[record["text"] for _, record in SourceConfig(path=path).records()] for path in paths]
        assert texts == [["one", "two"], ["three"]]
        (tmp_path / "recipe.toml").write_text('method = "sct"\n[[corpus]]\npath = "-"\n', encoding="utf-8")
        assert "standard input" in fail(capsys, str(tmp_path / "recipe.toml"))

    def test_sct_with_a_teacher_distils(self, capsys):
        flags = [*self.BARE, "--teacher", "org/model", "--set", "teacher.name=big"]
        found = check(capsys, *flags)
        assert (found["method"], found["teacher"]["source"], found["teacher"]["name"]) == (
            "sct-distillation",
            "org/model",
            "big",
        )
        assert check(capsys, *flags, "--student", "org/bert-tiny")["method"] == "sct-two-stage"
        assert check(capsys, *self.BARE, "--teacher", "m", "--set", "method=sct")["method"] == "sct-distillation"

    def test_several_teachers(self, capsys, tmp_path):
        recipe = tmp_path / "r.toml"
        recipe.write_text('[teacher]\nsource = "c"\nprecision = "bf16"\n')
        flags = [str(recipe), "--method", "distillcse", "--corpus", "a.txt"]
        found = check(capsys, *flags, "--teacher", "a", "--teacher", "b")
        assert [teacher["source"] for teacher in found["teachers"]] == ["a", "b"]
        assert "teacher" not in found
        found = check(capsys, *flags, "--teacher", "a")
        assert (found["teacher"]["source"], found["teacher"]["precision"]) == ("a", "bf16")
        recipe.write_text('[[teachers]]\nsource = "c"\n[[teachers]]\nsource = "d"\n')
        found = check(capsys, *flags, "--teacher", "a")
        assert (found["teacher"]["source"], "teachers" in found) == ("a", False)

    def test_another_teacher_has_nothing_of_the_recipe_s_but_how_it_is_run(self, capsys, tmp_path):
        first, second = tmp_path / "a.toml", tmp_path / "b.toml"
        first.write_text(
            '[teacher]\nsource = "c"\nname = "C"\nprompt = "query: "\npooling = "cls"\nmax_length = 99\n'
            'trust_remote_code = true\nprecision = "bf16"\ndtype = "float16"\n'
        )
        second.write_text('[teacher]\nsource = "d"\n')
        flags = [*self.BARE, "--set", "method=mse"]
        kept = check(capsys, str(first), *flags, "--teacher", "c")["teacher"]
        assert (kept["name"], kept["prompt"], kept["trust_remote_code"]) == ("C", "query: ", True)
        for other in ([str(first), "--teacher", "d"], [str(first), str(second)]):
            found = check(capsys, *other, *flags)["teacher"]
            assert (found["source"], found["precision"], found["dtype"]) == ("d", "bf16", "float16")
            assert not found["trust_remote_code"]
            assert not {"name", "prompt", "pooling", "max_length"} & found.keys()
        first.write_text('[teacher]\nprompt = "query: "\n')
        assert check(capsys, str(first), *flags, "--teacher", "d")["teacher"]["prompt"] == "query: "

    @pytest.mark.parametrize(
        ("hidden", "size"), [(768, "bert-small"), (384, "bert-small"), (256, "bert-mini"), (64, "bert-tiny")]
    )
    def test_a_student_gets_the_settings_of_the_size_nearest_to_it(self, capsys, tmp_path, hidden, size):
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text(json.dumps({"hidden_size": hidden}))
        flags = [*self.BARE, "--data", str(tmp_path), "--student", "model"]
        assert check(capsys, *flags) == check(capsys, *flags, "--size", size)
        assert check(capsys, *flags, "--size", "bert-tiny")["student"]["size"] == "bert-tiny"

    def test_epochs_replace_the_steps_of_a_recipe(self, capsys, tmp_path):
        recipe = tmp_path / "r.toml"
        recipe.write_text("[optim]\nsteps = 8000\nlr = 1e-3\n")
        (tmp_path / "epochs.toml").write_text("[optim]\nepochs = 2\n")
        set_ = ["--set", "optim.epochs=2"]
        for later in (["--epochs", "2"], [str(tmp_path / "epochs.toml")], set_, ["--steps", "9", *set_]):
            found = check(capsys, str(recipe), *later, *self.BARE)["optim"]
            assert (found["epochs"], found["lr"], "steps" in found) == (2, 1e-3, False)
        assert check(capsys, str(recipe), *self.BARE, "--set", "optim.lr=2e-3")["optim"]["steps"] == 8000

    def test_flags_override_the_recipe(self, capsys, tmp_path):
        recipe = tmp_path / "r.toml"
        recipe.write_text('method = "sct"\nseed = 3\n[student]\nsize = "bert-mini"\n[[corpus]]\npath = "r.txt"\n')
        found = check(capsys, str(recipe), "--seed", "4")
        assert (found["seed"], found["student"]["size"], found["corpus"][0]["path"]) == (4, "bert-mini", "r.txt")
        assert check(capsys, str(recipe), "--corpus", "b.txt")["corpus"][0]["path"] == "b.txt"

    def test_check_prints_a_recipe_of_the_same_run(self, capsys, tmp_path):
        recipe = tmp_path / "r.toml"
        flags = ["--name", 'a "b" \\ c', "--size", "bert-small", "--set", "optim.lr=0.1"]
        assert main(["train", "--check", *self.BARE, *flags]) == 0
        recipe.write_text(capsys.readouterr().out, encoding="utf-8")
        first = resolve(tomllib.loads(recipe.read_text(encoding="utf-8")))
        assert first == resolve(check(capsys, str(recipe)))
        assert (first.name, first.optim.lr, first.student.size) == ('a "b" \\ c', 0.1, "bert-small")

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["--method", "stc", "--corpus", "a"], "did you mean 'sct'?"),
            (["--method", "sct"], "corpus is missing"),
            (["--corpus", "a"], "method is missing"),
            ([*BARE, "--size", "large"], "student.size is one of bert-tiny, bert-mini, bert-small"),
            ([*BARE, "--set", "optim.lrr=1"], "optim.lrr is not a setting; did you mean 'lr'?"),
            ([*BARE, "--set", "nonsense"], "reads key=value"),
            (["--method", "sct-distillation", "--corpus", "a"], "needs a teacher"),
            ([*BARE, "--set", "teacher.name=x"], "teacher.source is missing"),
            (
                ["--method", "mse", "--corpus", "a", "--teacher", "x", "--teacher", "y"],
                "supports one teacher, not 2",
            ),
            (["--method", "sct", "--text-column", "t"], "--text-column and --view-columns need --corpus"),
            (["gone.toml"], "there is no file gone.toml"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_mistakes_are_reported_in_one_line(self, capsys, flags, message):
        told = fail(capsys, *flags)
        assert message in told
        assert told.count("\n") == 1


def assert_within(expected, found):
    for key, value in expected.items():
        if isinstance(value, dict):
            assert_within(value, found[key])
        elif key == "corpus":
            for wanted, source in zip(value, found[key], strict=True):
                assert_within(wanted, source)
        else:
            assert found[key] == value


class TestCheck:
    @pytest.fixture
    def flags(self, corpus, tmp_path):
        places = ("--cache", str(tmp_path / "cache"), "-o", str(tmp_path / "run"))
        return ("--student", "tiny", "--corpus", corpus, *places)

    def test_prints_steps_and_evaluations(self, capsys, flags, tmp_path):
        (tmp_path / "dev.tsv").write_text("a cat\ta dog\t1\nthe king\ta king\t4\n", encoding="utf-8")
        flags = ["--method", "simcse", *flags, "--dev", str(tmp_path / "dev.tsv")]
        flags += ["--epochs", "4", "--set", "optim.batch_size=6", "--set", "dev.every=5"]
        assert main(["train", "--check", *flags]) == 0
        captured = capsys.readouterr()
        assert captured.err.endswith("planned: 24 steps, 8 evaluations\n")  # after 5, 6, 10, 12, 15, 18, 20 and 24
        assert tomllib.loads(captured.out)["method"] == "simcse"

    def test_trains_nothing(self, capsys, flags, tmp_path):
        check(capsys, "--method", "sct", *flags, "--set", "optim.batch_size=6")
        assert {path.name for path in tmp_path.iterdir()} == {"texts.txt", "cache"}

    @pytest.mark.parametrize(
        ("extra", "message"),
        [
            (["--method", "trans-encoder"], "learns from pairs of texts: name two columns with --view-columns"),
            (["--method", "labelled-pairs"], "name the columns of query and passage"),
            (["--method", "sct", "--set", "optim.batch_size=99"], "has 36 rows, fewer than optim.batch_size = 99"),
            (["--method", "sct", "--dev", "gone.tsv"], "gone.tsv"),
            (["--method", "sct", "--corpus", "gone.txt"], "gone.txt"),
            (["--method", "sct", "--student", "./gone"], "gone"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_refuses_what_the_run_would(self, capsys, flags, extra, message):
        refused = [fail(capsys, *flags, *extra)]
        assert main(["train", *flags, *extra]) == 1
        refused.append(capsys.readouterr().err)
        first, second = (told.splitlines()[-1] for told in refused)
        assert first == second
        assert message in first

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            (
                "student.layers=99999",
                "99,999 layers of hidden = 128 and intermediate_size = 512 have 19,660,603,392",
            ),
            ("student.hidden=128000", "have 393,216,000,000 parameters, more than any bundle holds"),
            ("student.heads=5", "hidden = 128 is not divisible by heads = 5"),
            ("student.max_length=1000001", "student.max_length is at most 1000000"),
            ("threads=1025", "threads is at most 1024"),
        ],
    )
    def test_refuses_sizes_that_cannot_be(self, capsys, corpus, tmp_path, setting, message):
        flags = [
            "--method",
            "simcse",
            "--tokenizer",
            "tiny",
            "--corpus",
            corpus,
            "--cache",
            str(tmp_path / "cache"),
        ]
        assert message in fail(capsys, *flags, "--set", setting)


class TestTraining:
    @pytest.fixture
    def command(self, corpus, toy_bundle, tmp_path):
        small = [
            "settings.queue_size=16",
            "settings.projector_blocks=1",
            "optim.batch_size=6",
            "threads=1",
            "student.max_length=16",
        ]
        return [
            *("train", "--method", "sct", "--corpus", corpus, "--cache", str(tmp_path / "cache")),
            *("--tokenizer", str(toy_bundle), "--start", "random", "-o", str(tmp_path / "runs" / "small")),
            *(part for setting in small for part in ("--set", setting)),
        ]

    @pytest.fixture
    def student(self, toy_tokenizer_json, tmp_path):
        encoder = random(Tokenizer(toy_tokenizer_json, 16), Size(1, 16, 2), max_length=16, seed=0)
        encoder.save(tmp_path / "student")
        return str(tmp_path / "student")

    def test_prints_the_path_of_the_encoder_and_the_next_command(self, command, capsys, tmp_path):
        run = tmp_path / "runs" / "a run"
        assert main([*command, "--steps", "2", "-o", str(run)]) == 0
        captured = capsys.readouterr()
        assert captured.out.splitlines()[0].startswith(f"{run}/model: 2 steps in ")
        assert captured.out.splitlines()[-1] == f"next: embedkit export '{run}' -o 'a run.onnx' --precision int8"
        assert "corpus texts: 36 rows of 36 read" in captured.err
        assert (run / "model" / "model.safetensors").exists()

    def test_too_little_memory_is_reported_in_one_line(self, command, capsys):
        assert main([*command, "-q", "--set", f"settings.queue_size={10**15}"]) == 1
        told = capsys.readouterr().err
        assert told.startswith(
            "error: not enough memory; lower optim.batch_size or the sizes of student and method: "
        )
        assert told.count("\n") == 1

    def test_a_run_in_the_current_folder_is_named_after_it(self, command, capsys, tmp_path, monkeypatch):
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        assert main([*command, "--steps", "2", "-o", "."]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "next: embedkit export . -o here.onnx --precision int8"
        assert json.loads((tmp_path / "here" / "run.json").read_text(encoding="utf-8"))["name"] == "here"

    def test_result_in_json(self, command, capsys, tmp_path):
        dev = tmp_path / "dev.tsv"
        dev.write_text("the cat\ta cat\t5\nthe cat\ta dog\t1\nmy sister\tthe king\t2\n")
        assert main([*command, "--steps", "2", "--json", "-q", "--dev", str(dev)]) == 0
        captured = capsys.readouterr()
        result = json.loads(captured.out)
        assert captured.err == ""
        assert (result["finished"], result["steps"], result["best_step"]) == (True, 2, 2)
        assert -1 <= result["dev_spearman"] <= 1

    def test_an_interrupted_run_continues_with_resume(self, command, student, toy_bundle, capsys, tmp_path):
        run = tmp_path / "runs" / "small"
        kept = [part for part in command if part not in ("--tokenizer", str(toy_bundle), "--start", "random")]
        command = [*kept, "--student", student, "--steps", "40"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            [sys.executable, "-c", SLOW, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as started:
            while not (run / "metrics.jsonl").exists() and started.poll() is None:
                time.sleep(0.02)
            started.send_signal(signal.SIGINT)
            out, err = started.communicate()
        assert started.returncode == 130, err
        stopped = re.fullmatch(r"stopped after step (\d+); resume with the same command and --resume\n", out)
        assert 10 <= int(stopped[1]) < 40
        assert "Traceback" not in err
        assert "not finished" in (run / "report.html").read_text(encoding="utf-8")
        assert not (run / "model").exists()

        assert main([*command, "-q"]) == 1
        assert "set --resume" in capsys.readouterr().err
        assert main([*command, "--resume", "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["finished"], result["steps"]) == (True, 40)
        steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert steps == [*range(10, 41, 10)]


class TestStopControl:
    def test_a_second_signal_ends_at_once(self):
        with stop_control(resume=False) as control, control.stepping():
            assert not control.should_stop()
            signal.raise_signal(signal.SIGTERM)
            assert control.should_stop()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)

    def test_under_torchrun_a_second_signal_belongs_to_the_first(self):
        with stop_control(resume=False, insist=False) as control:
            with control.stepping():
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGTERM)
                assert control.should_stop()
            signal.raise_signal(signal.SIGTERM)

    def test_before_the_first_step_one_signal_is_enough(self):
        with stop_control(resume=False), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    def test_after_the_steps_one_signal_is_enough_and_the_way_on_is_named(self, caplog):
        caplog.set_level("INFO")

        def interrupt_after_the_steps():
            with stop_control(resume=False) as control:
                with control.stepping():
                    assert not control.should_stop()
                signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            interrupt_after_the_steps()
        assert "continue with the same command and --resume" in caplog.messages
