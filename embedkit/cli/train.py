"""`embedkit train`: from text and optional teachers to a run folder."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import logging
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedkit.cli.options import add_settings, apply_settings, explicit
from embedkit.cli.rows import spool_stdin
from embedkit.errors import ConfigError, EmbedkitError

if TYPE_CHECKING:
    from embedkit.training.config import RunConfig
    from embedkit.training.loop import RunControl
    from embedkit.training.run_folder import TrainState

logger = logging.getLogger(__name__)

HELP = "train a small encoder from text, with or without a teacher"
EXAMPLES = """
embedkit train --method sct --size bert-tiny --corpus texts.txt --teacher all-MiniLM-L6-v2/ -o runs/tiny
embedkit train recipe.toml --set optim.lr=3e-4 -o runs/tiny --resume
"""

# Flag -> path of its setting in the configuration, metavar ("N" for whole numbers), and help.
_SETTINGS = {
    "method": ("method", "NAME", "of `embedkit methods`; sct with --teacher and --student has two stages"),
    "size": ("student.size", "NAME", "bert-tiny, bert-mini or bert-small; its published settings are used"),
    "student": ("student.source", "MODEL", "pre-trained model to start from: folder, hub id or bundle"),
    "start": ("student.start", "FROM", "teacher (its words), layers (of the teacher) or random"),
    "layers": ("student.layers", "N", "transformer layers, overriding the size; 0: a static encoder"),
    "hidden": ("student.hidden", "N", "hidden width, overriding the size"),
    "intermediate-size": ("student.intermediate_size", "N", "width of feed-forward blocks; default: 4 x hidden"),
    "bag-of-words": (
        "student.bag_of_words",
        "N",
        "width of word vectors whose mean goes to the head; default: none",
    ),
    "tokenizer": ("student.tokenizer", "MODEL", "source of tokenizer, words and layers; default: the teacher"),
    "vocabulary-size": ("student.vocabulary_size", "N", "word pieces to keep, by use in the corpus; default: all"),
    "dev": ("dev.pairs", "PAIRS", "scored pairs that select a checkpoint, such as STS-B dev"),
    "epochs": ("optim.epochs", "N", "passes over the corpus"),
    "steps": ("optim.steps", "N", "number of steps, instead of epochs"),
    "seed": ("seed", "N", "seed of all random numbers; default: 1000"),
    "name": ("name", "NAME", "name of the encoder"),
    "data": ("data", "DIR", "base folder for relative paths in the recipe"),
    "cache": ("cache", "DIR", "folder of prepared corpora and teacher vectors"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe", nargs="*", help="TOML files; later ones override earlier ones, flags override all"
    )
    parser.add_argument("-o", "--output", metavar="RUN", help="the run folder; default: runs/NAME")
    parser.add_argument(
        "--corpus", action="append", metavar="FILE", help="text file, - for standard input; may be repeated"
    )
    parser.add_argument("--text-column", metavar="NAME", help="column of the text in tables and hub sets")
    parser.add_argument("--view-columns", nargs=2, metavar="NAME", help="two columns with views of the same text")
    parser.add_argument(
        "--teacher",
        action="append",
        metavar="MODEL",
        help="model, or .npy, .parquet or .jsonl of vectors by row; may be repeated",
    )
    duration = parser.add_mutually_exclusive_group()
    for flag, (_, metavar, what) in _SETTINGS.items():
        group = duration if flag in ("epochs", "steps") else parser
        group.add_argument(f"--{flag}", type=int if metavar == "N" else str, metavar=metavar, help=what)
    add_settings(parser, "any setting of docs/training.md")
    parser.add_argument("--check", action="store_true", help="check corpus and configuration, print it, and stop")
    parser.add_argument("--resume", action="store_true", help="resume an interrupted run")
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run Python code that comes with a teacher, where a recipe asks for it",
    )


def run(arguments: argparse.Namespace) -> int | None:
    """Train, or check the configuration."""
    import tomli_w

    from embedkit.config import to_mapping
    from embedkit.training import processes
    from embedkit.training.run import run as train

    config = _config(arguments)
    folder = Path(arguments.output or Path("runs") / (config.name or config.method))
    if arguments.check:
        plain = to_mapping(config)
        print(json.dumps(plain) if arguments.json else tomli_w.dumps(plain).rstrip())
        _check(config)
        return None
    with processes.group(config.device):
        if not processes.first():
            logging.getLogger("embedkit").setLevel(logging.ERROR)  # the first one reports everything
        with stop_control(resume=arguments.resume, insist=processes.count() == 1) as control:
            allowed = dataclasses.replace(control, trust_remote_code=arguments.trust_remote_code)
            state = train(config, folder, allowed)
        if processes.first():
            _report(folder)
            _print(state, folder, config.measure, as_json=arguments.json)
    return None if state.finished else 130


def _config(arguments: argparse.Namespace) -> RunConfig:
    from embedkit.config import load_toml
    from embedkit.training.run import resolve

    mapping: dict[str, Any] = functools.reduce(_merge_recipes, map(load_toml, arguments.recipe), {})
    if sources := _sources(arguments):
        mapping["corpus"] = sources
    flags = {flag.replace("-", "_"): path for flag, (path, *_) in _SETTINGS.items()}
    mapping = apply_settings(_with_teachers(mapping, arguments.teacher or []), arguments, flags)
    return resolve(mapping, source=", ".join(arguments.recipe))


# Settings of [teacher] that apply to any model: how it runs and is stored, not how it tokenizes.
_OF_ANY_TEACHER = {"precision", "device", "dtype"}


def _merge_recipes(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Lay a recipe over earlier ones."""
    from embedkit.training.config import override

    teacher = over.get("teacher")
    if isinstance(teacher, dict) and "source" in teacher:
        under = _without_other_teacher(under, teacher["source"])
    return override(under, over)


def _without_other_teacher(mapping: dict[str, Any], source: object) -> dict[str, Any]:
    """Remove the name, prompt and permissions of another teacher than ``source``, which would not fit it."""
    teacher = mapping.get("teacher")
    if not isinstance(teacher, dict) or teacher.get("source") in (None, source):
        return mapping
    return {**mapping, "teacher": {key: teacher[key] for key in _OF_ANY_TEACHER & teacher.keys()}}


def _with_teachers(mapping: dict[str, Any], sources: list[str]) -> dict[str, Any]:
    """Override the recipe's teacher, or its list of teachers, with --teacher."""
    from embedkit.config import set_path

    if not sources:
        return mapping
    others = {key: value for key, value in mapping.items() if key != "teachers"}
    if len(sources) == 1:
        return set_path(_without_other_teacher(others, sources[0]), "teacher.source", sources[0])
    others.pop("teacher", None)
    return {**others, "teachers": [{"source": source} for source in sources]}


def _sources(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    columns = explicit(arguments, "text_column", "view_columns")
    if columns and not arguments.corpus:
        raise ConfigError("--text-column and --view-columns need --corpus")
    return [{"path": spool_stdin(path, lines=".txt"), **columns} for path in arguments.corpus or ()]


def _check(config: RunConfig) -> None:
    """Check the corpus, and print the length of the run on stderr; stdout is a recipe."""
    from embedkit.training.recipes import RECIPES
    from embedkit.training.run import planned, prepare

    steps, evaluations = planned(config, prepare(config))
    stages = "; for each stage that uses [optim]" if config.method in RECIPES else ""
    logger.info("planned%s: %s steps, %s evaluations", stages, f"{steps:,}", f"{evaluations:,}")


def _report(folder: Path) -> None:
    """Draw the run's curves; a failure does not affect the trained model."""
    from embedkit.training.run_report import write_report

    try:
        logger.info("curves: %s", write_report(folder))
    except EmbedkitError as error:
        logger.warning("no report: %s", error)


def _print(state: TrainState, folder: Path, measure: str, *, as_json: bool) -> None:
    from embedkit.training.config import MEASURES

    result = {
        "folder": str(folder),
        "finished": state.finished,
        "steps": state.step,
        "seconds": round(state.seconds, 1),
        measure: state.best_score,
        "best_step": state.best_step,
    }
    if as_json:
        print(json.dumps(result))
    elif not state.finished:
        print(f"stopped after step {state.step}; resume with the same command and --resume")
    else:
        print(f"{folder}/model: {state.step:,} steps in {state.seconds:,.0f} s")
        if state.best_score is not None:
            print(f"best {MEASURES[measure]} x 100: {100 * state.best_score:.2f} at step {state.best_step:,}")
        command = ["embedkit", "export", str(folder), "-o", f"{folder.resolve().name}.onnx", "--precision", "int8"]
        print(f"next: {shlex.join(command)}")


@contextlib.contextmanager
def stop_control(*, resume: bool, insist: bool = True) -> Iterator[RunControl]:
    """End training after the current step on the first Ctrl-C or SIGTERM, and immediately on the next one.

    Without ``insist``, further signals are ignored: torchrun sends each process a SIGTERM after the Ctrl-C that
    all of them have received, and kills the remaining processes after half a minute.

    Between steps, while text is read, a model encodes or scores it, or the result is exported, the first signal
    ends the command immediately; caches and checkpoints are kept.
    """
    from embedkit.training.loop import RunControl

    asked = stepping = False

    def ask(*_: object) -> None:
        nonlocal asked
        if asked and not insist:
            return
        if asked or not stepping:
            raise KeyboardInterrupt
        asked = True

    @contextlib.contextmanager
    def in_steps() -> Iterator[None]:
        nonlocal stepping
        stepping = True
        try:
            yield
        finally:
            stepping = False

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, ask) for number in signals]
    try:
        yield RunControl(resume, should_stop=lambda: asked, stepping=in_steps)
    except KeyboardInterrupt:
        logger.info("continue with the same command and --resume")
        raise
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
