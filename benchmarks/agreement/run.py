"""embedkit's figures compared with those of MTEB's own code, on the same rows and the same embeddings.

    python benchmarks/agreement/run.py --data DIR --model tiny --model FOLDER

Needs `pip install "embedkit-onnx[bench,mteb]"`, but no network: MTEB's tasks use the rows in DIR
(docs/evaluation.md describes its layout) instead of downloading them; sets that DIR lacks are skipped. Each text
is embedded once for both, because embeddings of int8 bundles depend slightly on their batch. Writes results.json
and results.md next to this file, and fails if two figures differ by more than MTEB's rounding.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import mteb
import mteb_tasks
import numpy as np

from embedkit.cli.backends import load_model
from embedkit.errors import DataError
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.pairs import LabelledPairs
from embedkit.evaluation.sts import ScoredPairs
from embedkit.evaluation.tasks import Task, evaluate
from embedkit.integrations.mteb import MtebEncoder
from embedkit.protocols import FloatArray, TextEncoder

HERE = Path(__file__).parent
ROUNDING = 1e-5
"""Precision of MTEB's retrieval figures, which are rounded to five digits; the others are not rounded."""

SIMILARITY = {
    "sts12": "STS12",
    "sts13": "STS13",
    "sts14": "STS14",
    "sts15": "STS15",
    "sts16": "STS16",
    "stsb": "STSBenchmark",
    "sickr": "SICK-R",
    "stsb-de": "STSBenchmark",
    "stsb-es": "STSBenchmark",
    "stsb-fr": "STSBenchmark",
}
PAIRS = ("qqp-dev", "qnli", "mrpc")
RERANKING = ("semeval2016-cqa-dev", "semeval2016-cqa-train2", "trecqa-dev", "trecqa-test", "scirepeval-search")
SAME_NAMES = {
    "all": "cosine_spearman",
    "ap": "cosine_ap",
    "best_accuracy": "cosine_accuracy",
    "best_f1": "cosine_f1",
    "ndcg_at_10": "ndcg_at_10",
    "recall_at_100": "recall_at_100",
    "mrr_at_10": "mrr_at_10",
    "map_at_1000": "map_at_1000",
    "accuracy": "accuracy",
}
"""embedkit's measure -> MTEB's."""


class Remembering:
    """An encoder that embeds each distinct text only once."""

    def __init__(self, encoder: TextEncoder) -> None:
        self.name, self.fingerprint = encoder.name, encoder.fingerprint
        self.dimension, self.max_length = encoder.dimension, encoder.max_length
        self._encoder = encoder
        self._rows: dict[str, FloatArray] = {}

    def encode(self, texts: Sequence[str], /) -> FloatArray:
        """Embed texts, reusing earlier embeddings."""
        new = list(dict.fromkeys(text for text in texts if text not in self._rows))
        if new:
            self._rows.update(zip(new, self._encoder.encode(new), strict=True))
        return np.array([self._rows[text] for text in texts], dtype=np.float32).reshape(len(texts), -1)


def main() -> None:
    """Compare every model on every available set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the sets")
    parser.add_argument("--model", dest="models", action="append", required=True, help="a model; may be repeated")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    loaded = list(sets(arguments.data))
    rows = []
    for source in arguments.models:
        encoder = Remembering(cast(TextEncoder, load_model(source, "auto")))
        for task, theirs in loaded:
            found = compared(encoder, task, theirs)
            print("\n".join(map(str, found)), file=sys.stderr)
            rows += found
    versions = {name: version(name) for name in ("mteb", "scikit-learn", "scipy", "pytrec-eval-terrier", "numpy")}
    (HERE / "results.json").write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")
    (HERE / "results.md").write_text(table(rows, versions))
    print(table(rows, versions))
    worst = max(abs(row["ours"] - row["mteb"]) for row in rows)
    if worst > ROUNDING:
        sys.exit(f"figures differ by up to {worst:.2g}")


def sets(data: Path) -> Iterator[tuple[Task, Callable[[], Any]]]:
    """Yield embedkit's task and a function that creates MTEB's, for every set in the folder."""
    for name in (*SIMILARITY, *PAIRS, *RERANKING, "scifact", "banking77"):
        try:
            task = load_task(name, data=data, convention="mteb")
        except DataError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        yield task, lambda name=name, task=task: theirs_of(name, task, data)


def theirs_of(name: str, task: Task, data: Path) -> Any:
    """Return MTEB's task over the same rows."""
    loaded = task.sets[0]
    if isinstance(loaded, ScoredPairs):
        return mteb_tasks.similarity(SIMILARITY[name], loaded)
    if isinstance(loaded, LabelledPairs):
        return mteb_tasks.pairs(loaded)
    if name in RERANKING:
        return mteb_tasks.reranking(data / "rerank" / f"{name}.jsonl")
    if name == "banking77":
        return mteb_tasks.few_shot(data / "intents" / name)
    return mteb_tasks.retrieval(data / "retrieval" / name)


def compared(encoder: TextEncoder, task: Task, theirs: Callable[[], Any]) -> list[dict[str, Any]]:
    """Return a row for each measure that both compute."""
    (result,) = evaluate(encoder, task, progress=False).results
    found = mteb.evaluate(MtebEncoder(encoder), theirs(), cache=None, co2_tracker=False, show_progress_bar=False)
    (scores,) = found.task_results[0].scores["test"]
    return [
        {
            "model": encoder.name,
            "set": result.name,
            "measure": measure,
            "rows": f"{result.rows:,} {result.unit}",
            "ours": value,
            "mteb": float(scores[SAME_NAMES[measure]]),
        }
        for measure, value in result.measures.items()
        if measure in SAME_NAMES and value is not None
    ]


def table(rows: Sequence[dict[str, Any]], versions: dict[str, str]) -> str:
    """Return a table of figures times 100."""
    lines = ["| model | set | measure | rows | embedkit | MTEB | difference |", "|---|---|---|---|---:|---:|---:|"]
    for row in rows:
        figures = 100 * row["ours"], 100 * row["mteb"]
        shown = f"{figures[0]:.4f} | {figures[1]:.4f} | {abs(figures[0] - figures[1]):.4f}"
        lines.append(f"| {row['model']} | {row['set']} | {row['measure']} | {row['rows']} | {shown} |")
    return "\n".join([*lines, "", ", ".join(f"{name} {number}" for name, number in versions.items())]) + "\n"


if __name__ == "__main__":
    main()
