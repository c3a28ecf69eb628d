"""Effect of `embedkit adapt` on two kinds of text, and on other text.

    python benchmarks/adaptation/run.py --data DIR --teacher models/small.onnx

Adapts a bundled encoder to scientific text and to community questions, with the defaults of the command and a
teacher in whose space the encoder is, and evaluates each result and the original encoder on test sets of that kind
and on the STS sets. No choice depends on them. Writes results.json and results.md next to this file.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from embedkit import Encoder
from embedkit.adaptation import adapt, adaptation_config
from embedkit.atomic import atomic_file
from embedkit.config import apply_overrides
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.tasks import evaluate

HERE = Path(__file__).parent
# Kind of text -> its sources and limits, and the test sets of that kind with their measures.
KINDS: dict[str, dict[str, Any]] = {
    "science": {
        "text": {"pmc-sentences": 10000, "abstract-sentences": 10000},
        "tests": {"scifact": "ndcg_at_10", "scirepeval-search": None},
    },
    "community questions": {
        "text": {"stackexchange-posts": 3000, "stackexchange-titles": 10000, "stackoverflow-titles": 10000},
        "tests": {"semeval2016-cqa-train2": None},
    },
}
EVERYWHERE = {"sts": None}
TITLES = {
    "scifact": "SciFact nDCG@10",
    "scirepeval-search": "SciRepEval search MAP",
    "semeval2016-cqa-train2": "SemEval-2016 CQA MAP",
    "sts": "STS, mean of 6",
}


def main() -> None:
    """Adapt to each kind of text, and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of text and test sets")
    parser.add_argument("--teacher", required=True, help="folder, hub id or bundle")
    parser.add_argument("--models", nargs="+", default=["tiny"], help="bundles to start from")
    parser.add_argument("--cache", default=".embedkit-cache", help="prepared text and teacher vectors")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting of the runs"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    os.environ["OMP_NUM_THREADS"] = "1"
    saved = HERE / "results.json"
    rows: list[dict[str, Any]] = json.loads(saved.read_text(encoding="utf-8")) if saved.exists() else []
    for model in arguments.models:
        for kind in KINDS:
            if not any((row["model"], row["text"]) == (model, kind) for row in rows):
                rows.append(measure(model, kind, arguments))
                with atomic_file(saved) as temporary:
                    temporary.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (HERE / "results.md").write_text(table(rows), encoding="utf-8")


def measure(model: str, kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Adapt to one kind of text; return the scores before and after."""
    text = KINDS[kind]["text"]
    changes: dict[str, Any] = {
        "name": f"{model}, {kind}",
        "data": str(arguments.data),
        "cache": arguments.cache,
        "threads": 1,
        "teacher": {"source": arguments.teacher, "dtype": "float16"},
        "corpus": [{"path": f"train/{name}.txt.xz", "limit": limit} for name, limit in text.items()],
    }
    config = adaptation_config(model, apply_overrides(changes, arguments.set))
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "adapted.onnx"
        started = time.process_time()
        found = adapt(config, Path(folder) / "run", output)
        seconds = time.process_time() - started
        assert found is not None  # runs to completion
        tests = {**KINDS[kind]["tests"], **EVERYWHERE}
        return {
            "model": model,
            "teacher": found.report.manifest.teacher["name"],
            "text": kind,
            "steps": found.steps,
            "minutes": seconds / 60,
            "cosine": {"before": _mean(found.before), "after": _mean(found.after)},
            "before": scores(Encoder.load(model), tests, arguments.data),
            "after": scores(Encoder.load(output), tests, arguments.data),
        }


def scores(encoder: Encoder, tests: dict[str, str | None], data: Path) -> dict[str, float]:
    """Return the score of each test set x 100."""
    found = {}
    for name, measure_name in tests.items():
        results = evaluate(encoder, load_task(name, data=data)).results
        result = next((each for each in results if each.name == name), results[0])
        value = result.value if measure_name is None else result.measures[measure_name]
        found[name] = 100 * (value or 0.0)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Return a table of scores before and after."""
    lines = [
        "`embedkit adapt` with its defaults, apart from the steps. The cosine with the teacher is",
        "measured on held-out text of each kind. Each model was trained on part of this text",
        "before. The minutes are of one processor, including the teacher's vectors.",
        "",
        "| start | teacher | text | steps | minutes | measure | before | after |",
        "|---|---|---|---:|---:|---|---:|---:|",
    ]
    for row in rows:
        head = f"| {row['model']} | {row['teacher']} | {row['text']} | {row['steps']:,} | {row['minutes']:.0f} |"
        cosine = row["cosine"]
        lines.append(f"{head} cosine | {cosine['before']:.4f} | {cosine['after']:.4f} |")
        for name, before in row["before"].items():
            lines.append(f"| | | | | | {TITLES[name]} | {before:.2f} | {row['after'][name]:.2f} |")
    return "\n".join(lines) + "\n"


def _mean(values: Any) -> float:
    return float(sum(values.values()) / len(values))


if __name__ == "__main__":
    main()
