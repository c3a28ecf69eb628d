"""From text to an exported model through the command line: every recipe, from every start, also interrupted.

The cases are pairwise: each recipe with each way of running it, each start with each kind of student. What other
toys leave out is here: a teacher as wide as its student, students without head or bag of words, and a
second stage.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedkit import CrossEncoder, Encoder
from embedkit.cli.main import main
from embedkit.export.pipeline import export
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.initialisation import Size, random
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.tokenization import Tokenizer
from embedkit.training.loop import RunControl
from embedkit.training.methods import METHODS
from embedkit.training.recipes import RECIPES
from embedkit.training.resolve import build_table

WIDTH = 32
TEXTS = [
    f"{who} {what} {where}"
    for who in ("the cat", "a good dog", "my sister", "an old king")
    for what in ("will sleep", "wants to read", "likes to swim")
    for where in ("in the garden", "by the sea", "at school today")
]
SMALL = {"queue_size": 16, "projector_expansion": 2, "rounds": 2, "teachers": 2, "cross_length": 14, "cycles": 1}
SMALL |= {"length": 20, "group": 2, "batch_size": 8, "steps": 3}
MINING = {"encoder": "tiny", "dense": 2, "bm25": 2, "random": 1, "depth": 4}

# recipe, start, parts of the student, way of running
CASES = [
    ("sct", "random", "", "straight"),
    ("sct", "bundle", "", "interrupted"),
    ("sct-distillation", "words", "head", "interrupted"),
    ("sct-distillation", "layers", "head bag", "interrupted"),
    ("sct-distillation", "random", "bag", "straight"),
    ("bsl", "random", "", "interrupted"),
    ("bsl", "bundle", "", "straight"),
    ("pcl", "bundle", "", "interrupted"),
    ("simcse", "layers", "", "straight"),
    ("simcse", "bundle", "", "interrupted"),
    ("distillcse", "words", "", "interrupted"),
    ("distillcse", "bundle", "", "straight"),
    ("congen", "layers", "", "straight"),
    ("congen", "random", "head", "interrupted"),
    ("ckd", "random", "head", "straight"),
    ("ckd", "layers", "", "interrupted"),
    ("mse", "words", "head bag", "interrupted"),
    ("mse", "bundle", "head", "straight"),
    ("sct-two-stage", "bundle", "", "interrupted"),
    ("sct-two-stage", "words", "head bag", "straight"),
    ("distillcse-rounds", "bundle", "", "straight"),
    ("distillcse-rounds", "words", "bag", "interrupted"),
    ("trans-encoder", "bundle", "", "interrupted"),
    ("score-distillation", "layers", "", "interrupted"),
    ("score-distillation", "cross-encoder", "", "straight"),
    ("labelled-pairs", "cross-encoder", "", "interrupted"),
    ("labelled-pairs", "bundle", "", "straight"),
    ("contrastive", "bundle", "", "interrupted"),
]
LONG = [*((recipe, start, parts, "interrupted") for recipe, start, parts, way in CASES if way == "straight")]
TWO = [*{case[0]: case for case in CASES}.values()]
ALONE = ["score-distillation", "labelled-pairs", "contrastive"]  # refuse a second process


def named(part: str) -> str:
    return part.replace(" ", "+") or "bare"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, toy_tokenizer_json: str) -> Path:
    """A folder with text, pairs, a teacher, a bundle and a cross-encoder, all of one width."""
    place = tmp_path_factory.mktemp("journey")
    (place / "texts.txt").write_text("\n".join(TEXTS))
    pairs = zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True)
    rows = [{"text1": first, "text2": second, "label": number % 2} for number, (first, second) in enumerate(pairs)]
    (place / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    queries = ({"query": each["text1"], "passage": each["text2"]} for each in rows)
    (place / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    (place / "two.tsv").write_text("\n".join(f"{row['text1']}\t{row['text2']}" for row in rows))
    dev = [f"{first}\t{second}\t{n % 6}" for n, (first, second) in enumerate(itertools.pairwise(TEXTS[:12]))]
    (place / "dev.tsv").write_text("\n".join(dev))
    tokenizer = Tokenizer(toy_tokenizer_json, 24)
    teacher = random(tokenizer, Size(3, WIDTH, 2), max_length=24, seed=1)
    teacher.save(place / "teacher")
    random(tokenizer, Size(2, WIDTH, 2), max_length=24, seed=2).save(place / "other")
    student = random(tokenizer, Size(2, WIDTH, 2), max_length=24, seed=3)
    export(student.eval(), place / "student.onnx", precision="fp32")
    PairEncoder.from_encoder(teacher, max_length=20, seed=4).save(place / "cross")
    return place


def arguments(place: Path, recipe: str, start: str, parts: str) -> list[str]:
    """The arguments of `embedkit train` for a case."""
    entry = {**METHODS, **RECIPES}[recipe]
    settings = small(build_table("bert-tiny")[recipe]["settings"])
    flags = ["--method", recipe, "--steps", "4", "--cache", str(place / "cache"), "-q"]
    changes: dict[str, Any] = {"optim.batch_size": 8, "threads": 1}
    changes |= {"student.max_length": 16, "student.layers": 2, "student.hidden": WIDTH}
    teachers = ["cross"] if recipe == "score-distillation" else ["teacher"] if entry.batch_spec.teacher else []
    teachers += ["other"] if recipe == "distillcse" else []
    flags += [flag for teacher in teachers for flag in ("--teacher", str(place / teacher))]
    if recipe in ("score-distillation", "labelled-pairs"):
        del changes["student.max_length"]
    if start in ("bundle", "cross-encoder"):
        flags += ["--student", str(place / {"bundle": "student.onnx", "cross-encoder": "cross"}[start])]
        del changes["student.layers"], changes["student.hidden"]
    else:
        changes["student.start"] = {"words": "teacher"}.get(start, start)
        flags += [] if teachers else ["--tokenizer", str(place / "teacher")]
    if "bag" in parts:
        changes["student.bag_of_words"] = 8
    if "head" in parts and "head" in build_table("bert-tiny")[recipe]["settings"]:
        settings["head"] = "linear"
    if recipe == "score-distillation":
        settings |= {"queries": [{"path": str(place / "texts.txt")}], "mining": MINING}
    if recipe == "contrastive":
        settings["pairs"] = [str(place / "queries.jsonl")]
    corpus = {"trans-encoder": "two.tsv", "labelled-pairs": "pairs.jsonl"}.get(recipe, "texts.txt")
    flags += ["--corpus", str(place / corpus)]
    if recipe not in ("score-distillation", "labelled-pairs"):
        flags += ["--dev", str(place / "dev.tsv")]
        changes["dev.every"] = 3
    changes |= {f"settings.{name}": value for name, value in settings.items()}
    return [*flags, *(flag for name, value in changes.items() for flag in ("--set", f"{name}={written(value)}"))]


def written(value: Any) -> str:
    """A value as `--set` takes it, in TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {written(each)}" for name, each in value.items()) + " }"
    return "[" + ", ".join(map(written, value)) + "]" if isinstance(value, list) else json.dumps(value)


def small(settings: dict[str, Any]) -> dict[str, Any]:
    """Small values of the settings that are too large for a toy, also in stages."""
    found: dict[str, Any] = {}
    for name, entry in settings.items():
        if name in SMALL and "default" in entry:
            found[name] = SMALL[name]
        elif "default" not in entry and (nested := small(entry)):
            found[name] = nested
    return found


@contextmanager
def stopping(monkeypatch: pytest.MonkeyPatch, after: int) -> Iterator[None]:
    """Runs that are asked to stop after some steps, as by Ctrl-C."""

    @contextmanager
    def stop_control(*, resume: bool, **_: Any) -> Iterator[RunControl]:
        steps = itertools.count(1)
        yield RunControl(resume, should_stop=lambda: next(steps) == after, show_progress=False)

    with monkeypatch.context() as patch:
        patch.setattr("embedkit.cli.train.stop_control", stop_control)
        yield


def digest(run: Path) -> dict[str, str]:
    """Hashes of the weights, and the development score that chose them."""
    card = json.loads((run / "run.json").read_text())
    return {"score": str(card["metrics"].get("dev_spearman"))} | {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((run / "model").rglob("*.safetensors"))
    }


def check_export(run: Path) -> None:
    """The trained model becomes a bundle that computes the same, in finite numbers."""
    bundle = run.with_suffix(".onnx")
    assert main(["export", str(run), "-o", str(bundle), "--precision", "fp32", "-q"]) == 0
    if read_bundle(bundle).manifest.kind == "cross-encoder":
        assert np.isfinite(CrossEncoder.load(bundle).predict([("a dog", "the sea")])).all()
    else:
        rows = Encoder.load(bundle).encode(TEXTS[:3])
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("recipe", "start", "parts", "way"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.release) for case in LONG)],
    ids=named,
)
def test_every_recipe_ends_in_a_model(place, recipe, start, parts, way, tmp_path, monkeypatch, capsys):
    train = ["train", *arguments(place, recipe, start, parts)]
    assert main([*train, "-o", str(tmp_path / "straight")]) == 0, capsys.readouterr().err
    if way == "straight" or recipe in ALONE:  # others are exported after two processes
        check_export(tmp_path / "straight")
    if way == "interrupted":
        resume: list[str] = []
        with stopping(monkeypatch, after=2):
            for _ in range(40):
                code = main([*train, "-o", str(tmp_path / "pieces"), *resume])
                resume = ["--resume"]
                if code != 130:
                    break
        assert code == 0, capsys.readouterr().err
        assert digest(tmp_path / "pieces") == digest(tmp_path / "straight")


@pytest.fixture(scope="module")
def shared(place, tmp_path_factory):
    """A folder with a run of two processes for each case, and what both returned: ``(folder, outcomes)``."""
    folder = tmp_path_factory.mktemp("shared")
    cases = [["train", *arguments(place, *case[:3]), "-o", str(folder / case[0])] for case in TWO]
    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("two_processes.py"), folder, port],
        env={**os.environ, "OMP_NUM_THREADS": "1", **loopback},
        stderr=subprocess.PIPE,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes = (json.loads((folder / f"outcomes-{rank}.json").read_text(encoding="utf-8")) for rank in range(2))
    return folder, dict(zip((case[0] for case in TWO), zip(*outcomes, strict=True), strict=True))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("recipe", [case[0] for case in TWO])
def test_two_processes_end_in_a_model_or_are_refused(shared, recipe):
    folder, outcomes = shared
    if recipe in ALONE:
        assert outcomes[recipe] == ([1, f"error: {recipe} runs in one process, not 2\n"],) * 2
    else:
        assert [code for code, _ in outcomes[recipe]] == [0, 0], outcomes[recipe]
        check_export(folder / recipe)


def test_every_recipe_has_a_journey():
    assert {case[0] for case in CASES} >= {*METHODS, *RECIPES}
