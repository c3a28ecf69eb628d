"""Quality of encoders compared with their teacher: similarity, re-ranking, retrieval, intents and pairs.

    python benchmarks/quality/run.py --data DIR --teacher MODEL tiny-sct tiny models/mini.onnx --static FOLDER

Reads the test sets in DIR (docs/evaluation.md describes their layout) and writes results.json and results.md next
to this file. Models are bundles, names of bundles, or model folders, which run on torch. Nothing is chosen here:
models were selected on the development data named by their cards. --static adds a row for the static model that
the package model2vec, which must be installed, distils from a folder of the teacher. Existing results of the same
model with the same arithmetic are not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from static_model import StaticModel

from embedkit import Encoder
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.report import to_json
from embedkit.evaluation.tasks import evaluate
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.protocols import TextEncoder
from embedkit.runtime.numerics import numerics_of

HERE = Path(__file__).parent
TASKS = (
    "sts",
    "semeval2016-cqa-train2",
    "trecqa-test",
    "scirepeval-search",
    "scifact",
    "banking77",
    "qqp-dev",
    "qnli",
)
# Column -> result and measure.
STS = {"STS12": "sts12", "STS13": "sts13", "STS14": "sts14", "STS15": "sts15", "STSB": "stsb", "SICKR": "sickr"}
RERANKING = {
    "SemEval-2016 questions": "semeval2016-cqa-train2",
    "TrecQA": "trecqa-test",
    "SciRepEval search": "scirepeval-search",
}
OTHERS = {
    "SciFact nDCG@10": ("scifact", "ndcg_at_10"),
    "Banking77 accuracy": ("banking77", "accuracy"),
    "QQP AP": ("qqp-dev", "ap"),
    "QNLI AP": ("qnli", "ap"),
}


def main() -> None:
    """Evaluate every model on every test set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="bundle, name of a bundle, or model folder")
    parser.add_argument("--data", type=Path, required=True, help="folder of the test sets")
    parser.add_argument("--teacher", required=True, help="folder or hub id of the teacher, the first row")
    parser.add_argument(
        "--static", metavar="FOLDER", help="folder of the teacher, to distil a static model by model2vec"
    )
    arguments = parser.parse_args()
    tasks = [load_task(name, data=arguments.data) for name in TASKS]
    models = [_load(source) for source in (arguments.teacher, *arguments.models)]
    if arguments.static:
        static = StaticModel.distil(arguments.static)
        models.append((static.name, static))
    saved = HERE / "results.json"
    known = json.loads(saved.read_text(encoding="utf-8")) if saved.exists() else {}
    rows = {}
    for label, model in models:
        rows[label] = known.get(label, {})
        identity = {"fingerprint": model.fingerprint, "numerics": numerics_of(model)}
        if not identity.items() <= rows[label].items():
            rows[label] = identity | _figures(to_json([evaluate(model, task) for task in tasks]))
            saved.write_text(json.dumps(known | rows, indent=1) + "\n", encoding="utf-8")
        print(f"{label}: {rows[label]}")
    saved.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    table = _table(rows)
    (HERE / "results.md").write_text(table, encoding="utf-8")
    print(table)


def _load(source: str) -> tuple[str, TextEncoder]:
    if Path(source).is_dir():
        model = TorchEncoder(SentenceEncoder.load(source))
        return f"{model.name}, fp32 (torch)", model
    encoder = Encoder.load(source)
    return f"{encoder.name}, {encoder.manifest.precision}", encoder


def _figures(report: dict[str, Any]) -> dict[str, float]:
    """Return figures x 100 by column: Spearman for STS, MAP for re-ranking, others as named by the column."""
    found = {
        each["name"]: each["measures"] | {"": each["value"]}
        for e in report["evaluations"]
        for each in e["results"]
    }
    sts = {column: found[name][""] for column, name in STS.items()}
    ranked = {column: found[name][""] for column, name in RERANKING.items()}
    columns = {
        **sts,
        "STS mean": math.fsum(sts.values()) / len(sts),
        **ranked,
        "re-ranking mean": math.fsum(ranked.values()) / len(ranked),
        **{column: found[name][measure] for column, (name, measure) in OTHERS.items()},
    }
    return {column: 100 * value for column, value in columns.items()}


def _table(rows: dict[str, dict[str, Any]]) -> str:
    """Return a table of all figures, then the goals as shares of the first row, the teacher."""
    teacher = next(iter(rows.values()))
    goals = ("STS mean", "re-ranking mean", *OTHERS)
    shares = {
        label: {column: 100 * figures[column] / teacher[column] for column in goals}
        for label, figures in rows.items()
    }
    columns = [name for name in teacher if name not in {"fingerprint", "numerics"}]
    lines = [*_lines(rows, columns), "", "Share of the teacher's figure, in percent:", "", *_lines(shares, goals)]
    return "\n".join(lines) + "\n"


def _lines(rows: dict[str, dict[str, Any]], columns: Sequence[str]) -> list[str]:
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    cells = {label: " | ".join(f"{row[column]:.2f}" for column in columns) for label, row in rows.items()}
    return lines + [f"| {label} | {row} |" for label, row in cells.items()]


if __name__ == "__main__":
    main()
