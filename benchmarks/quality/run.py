"""Quality of encoders compared with their teacher: similarity, re-ranking, retrieval, intents and pairs.

    python benchmarks/quality/run.py --data DIR --teacher MODEL tiny models/mini.onnx --static FOLDER

Reads the test sets in DIR (docs/evaluation.md describes their layout) and writes results.json and results.md next
to this file. Models are bundles, names of bundles, or model folders, which run on torch. Nothing is chosen here:
models were selected on the development data named by their cards. --static adds a row for the static model that
the package model2vec, which must be installed, distils from a folder of the teacher. Intervals are those of
`embedkit evaluate --significance`: 95 % over resampled rows of the test sets, not over seeds. With --cache,
embeddings are kept in a folder, so that a later run encodes with new models only. --add keeps the other rows of
results.json: those of the teacher and of MODEL are measured.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embedding_cache import CachedEncoder
from keywords import keyword_ndcg
from static_model import StaticModel

from embedkit import Encoder
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.results import Evaluation
from embedkit.evaluation.retrieval import RetrievalSet
from embedkit.evaluation.significance import ConfidenceInterval, confidence_intervals
from embedkit.evaluation.tasks import evaluate
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.progress import Progress
from embedkit.protocols import TextEncoder
from embedkit.runtime.numerics import numerics_of

HERE = Path(__file__).parent
TASKS = (
    "sts",
    "semeval2016-cqa-train2",
    "trecqa-test",
    "scirepeval-search",
    "scifact",
    "retrieval/cranfield",
    "retrieval/cacm",
    "retrieval/medline",
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
RETRIEVAL = {"SciFact nDCG@10": "scifact", "Cranfield": "cranfield", "CACM": "cacm", "Medline": "medline"}
OTHERS = {
    "Banking77 accuracy": ("banking77", "accuracy"),
    "QQP AP": ("qqp-dev", "ap"),
    "QNLI AP": ("qnli", "ap"),
}
SHARED = ("STS mean", "re-ranking mean", "SciFact nDCG@10", "retrieval mean", *OTHERS)
"""Columns that are also given in percent of the teacher's figure."""
DIFFERENCES = {
    "STS mean": "sts",
    "SICK-R": "sickr",
    **RERANKING,
    "SciFact nDCG@10": "scifact",
    "Banking77 accuracy": "banking77",
    "QQP AUC": "qqp-dev",
    "QNLI AUC": "qnli",
}
"""Column -> set whose headline is compared with the teacher's."""
SAMPLES = 1000


def main() -> None:
    """Evaluate every model on every test set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="bundle, name of a bundle, or model folder")
    parser.add_argument("--data", type=Path, required=True, help="folder of the test sets")
    parser.add_argument("--teacher", required=True, help="folder or hub id of the teacher, the first row")
    parser.add_argument(
        "--static", metavar="FOLDER", help="folder of the teacher, to distil a static model by model2vec"
    )
    parser.add_argument("--cache", type=Path, metavar="DIR", help="existing folder in which embeddings are kept")
    parser.add_argument("--add", action="store_true", help="keep the rows of other models in results.json")
    arguments = parser.parse_args()
    tasks = [load_task(name, data=arguments.data) for name in TASKS]
    models = [_load(source) for source in (arguments.teacher, *arguments.models)]
    if arguments.static:
        static = StaticModel.distil(arguments.static)
        models.append((static.name, static))
    if arguments.cache:
        models = [(label, CachedEncoder(model, arguments.cache)) for label, model in models]
    rows: dict[str, dict[str, Any]] = {}
    evaluations: dict[str, list[Evaluation]] = {}
    with Progress("evaluations", len(models) * len(tasks), unit="sets") as progress:
        for label, model in models:
            evaluations[label] = []
            for task in tasks:
                evaluations[label].append(evaluate(model, task))
                progress.advance(note=f"{label}: {task.name}")
            identity = {"fingerprint": model.fingerprint, "numerics": numerics_of(model)}
            rows[label] = identity | figures(evaluations[label])
    found = confidence_intervals([each for own in evaluations.values() for each in own], samples=SAMPLES)
    for label, own in evaluations.items():
        rows[label]["differences"] = _differences(found, own[0].fingerprint)
    rows["BM25"] = keyword_figures(
        [each for task in tasks for each in task.sets if isinstance(each, RetrievalSet)]
    )
    path = HERE / "results.json"
    if arguments.add:
        rows = json.loads(path.read_text(encoding="utf-8")) | rows
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    table = _table(rows)
    (HERE / "results.md").write_text(table, encoding="utf-8")
    print(table)


def _load(source: str) -> tuple[str, TextEncoder]:
    if Path(source).is_dir():
        model = TorchEncoder(SentenceEncoder.load(source))
        return f"{model.name}, fp32 (torch)", model
    encoder = Encoder.load(source)
    return f"{Path(source).stem}, {encoder.manifest.precision}", encoder


def figures(evaluations: Sequence[Evaluation]) -> dict[str, float]:
    """Return figures x 100 by column: Spearman for STS, MAP for re-ranking, others as named by the column."""
    found = {result.name: result for evaluation in evaluations for result in evaluation.results}
    sts = {column: found[name].value or 0.0 for column, name in STS.items()}
    ranked = {column: found[name].value or 0.0 for column, name in RERANKING.items()}
    retrieved = {column: found[name].measures["ndcg_at_10"] or 0.0 for column, name in RETRIEVAL.items()}
    columns = {
        **sts,
        "STS mean": math.fsum(sts.values()) / len(sts),
        **ranked,
        "re-ranking mean": math.fsum(ranked.values()) / len(ranked),
        **retrieved,
        "retrieval mean": math.fsum(retrieved.values()) / len(retrieved),
        **{column: found[name].measures[measure] or 0.0 for column, (name, measure) in OTHERS.items()},
    }
    return {column: 100 * value for column, value in columns.items()}


def keyword_figures(sets: Sequence[RetrievalSet]) -> dict[str, float]:
    """Return nDCG@10 x 100 of keyword search by column."""
    found = {each.name: keyword_ndcg(each) for each in sets}
    retrieved = {column: 100 * found[name] for column, name in RETRIEVAL.items()}
    return {**retrieved, "retrieval mean": math.fsum(retrieved.values()) / len(retrieved)}


def _differences(found: Sequence[ConfidenceInterval], fingerprint: str) -> dict[str, list[float]]:
    """Return a model's differences from the teacher x 100: value, lower and upper end of the interval."""
    own = {each.set_name: each.difference for each in found if each.fingerprint == fingerprint}
    return {
        column: [100 * (value or 0.0) for value in (each.value, each.interval.low, each.interval.high)]
        for column, name in DIFFERENCES.items()
        if (each := own[name]) is not None
    }


def _table(rows: dict[str, dict[str, Any]]) -> str:
    """Return tables of all figures, of shares of the first row, the teacher, and of differences from it."""
    teacher = next(iter(rows.values()))
    shares = {
        label: {column: 100 * row[column] / teacher[column] for column in SHARED if column in row}
        for label, row in rows.items()
    }
    columns = [name for name in teacher if name not in {"fingerprint", "numerics", "differences"}]
    cells = {
        label: [f"{value:+.1f} [{low:+.1f}, {high:+.1f}]" for value, low, high in row["differences"].values()]
        for label, row in rows.items()
        if row.get("differences")
    }
    lines = [
        *markdown(_rounded(rows, columns), columns),
        *("", "Share of the teacher's figure, in percent:", ""),
        *markdown(_rounded(shares, SHARED), SHARED),
        *("", f"Difference from the teacher, with its 95 % interval over {SAMPLES:,} samples of the rows:", ""),
        *markdown(cells, list(DIFFERENCES)),
    ]
    return "\n".join(lines) + "\n"


def _rounded(rows: Mapping[str, Mapping[str, float]], columns: Sequence[str]) -> dict[str, list[str]]:
    return {
        label: [f"{row[column]:.2f}" if column in row else "" for column in columns] for label, row in rows.items()
    }


def markdown(rows: Mapping[str, Sequence[str]], columns: Sequence[str]) -> list[str]:
    """Return a Markdown table, a label and cells per row."""
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    return lines + [f"| {label} | {' | '.join(cells)} |" for label, cells in rows.items()]


if __name__ == "__main__":
    main()
