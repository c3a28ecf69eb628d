"""Quality of encoders compared with their teacher: similarity, re-ranking, retrieval, intents and pairs.

    python benchmarks/quality/run.py --data DIR --teacher MODEL tiny models/mini.onnx --static FOLDER

Reads the test sets in DIR (docs/evaluation.md describes their layout) and writes results.json and results.md next
to this file. Models are bundles, names of bundles, or model folders, which run on torch. Nothing is chosen here:
models were selected on the development data named by their cards. --static adds a row for the static model that
the package model2vec, which must be installed, distils from a folder of the teacher. Intervals are those of
`embedkit evaluate --significance`: 95 % over resampled rows of the test sets, not over seeds. With --cache,
embeddings are kept in a folder, so that a later run encodes with new models only. --add keeps what results.json
has: other rows, and the figures of sets on which these files were measured with the same arithmetic. So an
interrupted run goes on, and a new set is measured alone.
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
from embedkit.evaluation.results import ConfidenceInterval, Evaluation, confidence_intervals
from embedkit.evaluation.retrieval import RetrievalSet
from embedkit.evaluation.tasks import Task, evaluate
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
    "own/stackfaq/qrels/test.tsv",
    "own/stackfaq/qrels/test-unseen.tsv",
    "banking77",
    "qqp-dev",
    "qnli",
)
STS = {"STS12": "sts12", "STS13": "sts13", "STS14": "sts14", "STS15": "sts15", "STSB": "stsb", "SICKR": "sickr"}
# Questions like a question, where shared words decide most of it; passages that answer one; titles for a query.
RERANKING = {
    "SemEval-2016 questions": "semeval2016-cqa-train2",
    "TrecQA": "trecqa-test",
    "SciRepEval search": "scirepeval-search",
}
RETRIEVAL = {"SciFact nDCG@10": "scifact", "Cranfield": "cranfield", "CACM": "cacm", "Medline": "medline"}
# People's questions to a help centre's answers, on two groups of subjects.
QUESTIONS = {"stackfaq nDCG@10": "stackfaq-test", "stackfaq, other subjects": "stackfaq-test-unseen"}
FIGURES = {
    **{column: (name, "all") for column, name in STS.items()},
    **{column: (name, "map") for column, name in RERANKING.items()},
    **{column: (name, "ndcg_at_10") for column, name in (RETRIEVAL | QUESTIONS).items()},
    "Banking77 accuracy": ("banking77", "accuracy"),
    "QQP AP": ("qqp-dev", "ap"),
    "QNLI AP": ("qnli", "ap"),
}
"""Column -> set and measure."""
MEANS = {
    "STS mean": tuple(STS),
    "answers mean": ("TrecQA", "SciRepEval search"),
    "retrieval mean": tuple(RETRIEVAL),
    "questions mean": tuple(QUESTIONS),
}
"""Column -> columns of which it is the mean."""
COLUMNS = (
    *(*STS, "STS mean", *RERANKING, "answers mean", *RETRIEVAL, "retrieval mean", *QUESTIONS, "questions mean"),
    *("Banking77 accuracy", "QQP AP", "QNLI AP"),
)
SHARED = (
    *("STS mean", "SemEval-2016 questions", "answers mean", "SciFact nDCG@10", "retrieval mean"),
    *COLUMNS[-4:],
)
"""Columns that are also given in percent of the teacher's figure."""
DIFFERENCES = {
    "STS mean": "sts",
    "SICK-R": "sickr",
    **RERANKING,
    **QUESTIONS,
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
    parser.add_argument("--add", action="store_true", help="measure only what results.json lacks")
    arguments = parser.parse_args()
    tasks = [load(name, arguments.data) for name in TASKS]
    models = [_load(source) for source in (arguments.teacher, *arguments.models)]
    if arguments.static:
        static = StaticModel.distil(arguments.static)
        models.append((static.name, static))
    if arguments.cache:
        models = [(label, CachedEncoder(model, arguments.cache)) for label, model in models]
    path = HERE / "results.json"
    rows = json.loads(path.read_text(encoding="utf-8")) if arguments.add else {}
    for label, model in models:
        identity = {"fingerprint": model.fingerprint, "numerics": numerics_of(model)}
        if any(rows.get(label, {}).get(key) != value for key, value in identity.items()):
            rows[label] = identity
    missing = [task for task in tasks if any(not _measured(task, rows[label]) for label, _ in models)]
    with Progress("evaluations", len(models) * len(missing), unit="sets") as progress:
        for task in missing:
            evaluations = []
            for label, model in models:
                evaluations.append(evaluate(model, task))
                progress.advance(note=f"{label}: {task.name}")
            found = confidence_intervals(evaluations, samples=SAMPLES)
            for (label, _), evaluation in zip(models, evaluations, strict=True):
                rows[label] |= figures([evaluation])
                rows[label].setdefault("differences", {}).update(_differences(found, evaluation.fingerprint))
                add_means(rows[label])
            path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    sets = [each for task in tasks for each in task.sets if isinstance(each, RetrievalSet)]
    rows["BM25"] = {column: 100 * keyword_ndcg(each) for each in sets for column in _columns(each.name)}
    add_means(rows["BM25"])
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    table = _table(rows)
    (HERE / "results.md").write_text(table, encoding="utf-8")
    print(table)


def load(name: str, data: Path) -> Task:
    """Load a task; a name with ``qrels`` is a file below ``data``."""
    return load_task(data / name if "/qrels/" in name else name, data=data)


def _load(source: str) -> tuple[str, TextEncoder]:
    if Path(source).is_dir():
        model = TorchEncoder(SentenceEncoder.load(source))
        return f"{model.name}, fp32 (torch)", model
    encoder = Encoder.load(source)
    return f"{Path(source).stem}, {encoder.manifest.precision}", encoder


def _columns(name: str) -> list[str]:
    return [column for column, (set_name, _) in FIGURES.items() if set_name == name]


def _measured(task: Task, row: Mapping[str, float]) -> bool:
    """Whether a row has the figures of all sets of a task."""
    return all(column in row for each in task.sets for column in _columns(each.name))


def figures(evaluations: Sequence[Evaluation]) -> dict[str, float]:
    """Return figures x 100 by column."""
    found = {result.name: result for evaluation in evaluations for result in evaluation.results}
    return {
        column: 100 * (found[name].measures[measure] or 0.0)
        for column, (name, measure) in FIGURES.items()
        if name in found
    }


def add_means(row: dict[str, Any]) -> None:
    """Add the means whose columns are there."""
    for mean, columns in MEANS.items():
        if all(column in row for column in columns):
            row[mean] = math.fsum(row[column] for column in columns) / len(columns)


def _differences(found: Sequence[ConfidenceInterval], fingerprint: str) -> dict[str, list[float]]:
    """Return a model's differences from the teacher x 100: value, lower and upper end of the interval."""
    own = {each.set_name: each.difference for each in found if each.fingerprint == fingerprint}
    return {
        column: [100 * (value or 0.0) for value in (each.value, each.interval.low, each.interval.high)]
        for column, name in DIFFERENCES.items()
        if (each := own.get(name)) is not None
    }


def _table(rows: dict[str, dict[str, Any]]) -> str:
    """Return tables of all figures, of shares of the first row, the teacher, and of differences from it."""
    teacher = next(iter(rows.values()))
    shares = {
        label: {column: 100 * row[column] / teacher[column] for column in SHARED if column in row}
        for label, row in rows.items()
    }
    cells = {
        label: [
            "{:+.1f} [{:+.1f}, {:+.1f}]".format(*found) if (found := row["differences"].get(column)) else ""
            for column in DIFFERENCES
        ]
        for label, row in rows.items()
        if row.get("differences")
    }
    lines = [
        *markdown(_rounded(rows, COLUMNS), COLUMNS),
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
