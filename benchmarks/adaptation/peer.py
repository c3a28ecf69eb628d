"""sentence-transformers' trainer on the labelled questions of a help centre, as long as `embedkit adapt` takes.

    python benchmarks/adaptation/peer.py --data DIR --model FOLDER --minutes 1.5

Run it with the Python of an environment that has sentence-transformers; embedkit is not needed. It trains as the
library's documentation says: MultipleNegativesRankingLoss on (question, passage), batches of 32 without
duplicates, 2e-5, a tenth of warm-up. Appends to peer.json: nDCG@10 x 100 before and after, minutes of
processor time, and the peak memory.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.training_args import BatchSamplers
from transformers import TrainerCallback

HERE = Path(__file__).parent
SPLITS = ("test", "test-unseen")


def main() -> None:
    """Train once for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of text and test sets")
    parser.add_argument("--model", required=True, help="folder of the model to start from")
    parser.add_argument("--name", help="name in the results; default: that of the folder")
    parser.add_argument("--minutes", type=float, required=True, help="of processor time to train")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    saved = HERE / "peer.json"
    for seed in arguments.seeds:
        rows = json.loads(saved.read_text(encoding="utf-8")) if saved.exists() else []
        rows.append(measure(arguments, seed))
        saved.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


class _Until(TrainerCallback):
    """Stops after some minutes of processor time."""

    def __init__(self, minutes: float) -> None:
        self.end = time.process_time() + 60 * minutes

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - of the library
        control.should_training_stop = time.process_time() > self.end


def measure(arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train for the given time; return the scores before and after, and the cost."""
    folder = arguments.data / "own/stackfaq"
    documents = {row["_id"]: row["title"] + " " + row["text"] for row in read(folder / "corpus.jsonl")}
    queries = {row["_id"]: row["text"] for row in read(folder / "queries.jsonl")}
    pairs = [(queries[query], documents[document]) for query, document in judged(folder, "train")]
    model = SentenceTransformer(arguments.model, device="cpu")
    before = scores(model, folder, queries, documents)
    started, steps = time.process_time(), steps_of(arguments, pairs)
    options = SentenceTransformerTrainingArguments(
        output_dir=tempfile.gettempdir(),  # nothing is saved
        max_steps=steps,
        per_device_train_batch_size=32,
        learning_rate=2e-5,
        warmup_ratio=0.1,
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        seed=seed,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model, args=options, train_dataset=dataset(pairs), loss=MultipleNegativesRankingLoss(model)
    )
    trainer.train()
    return {
        "name": arguments.name or Path(arguments.model).name,
        "seed": seed,
        "threads": arguments.threads,
        "steps": steps,
        "minutes": (time.process_time() - started) / 60,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "version": importlib.metadata.version("sentence-transformers"),
        "figures": {
            name: [before[name], after] for name, after in scores(model, folder, queries, documents).items()
        },
    }


def steps_of(arguments: argparse.Namespace, pairs: list[tuple[str, str]]) -> int:
    """Return how many steps fill the time, by training a copy for a tenth of it."""
    model = SentenceTransformer(arguments.model, device="cpu")
    options = SentenceTransformerTrainingArguments(
        output_dir=tempfile.gettempdir(),  # nothing is saved
        max_steps=10_000,
        per_device_train_batch_size=32,
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=options,
        train_dataset=dataset(pairs),
        loss=MultipleNegativesRankingLoss(model),
        callbacks=[_Until(arguments.minutes / 10)],
    )
    started = time.process_time()
    trainer.train()
    pace = (time.process_time() - started) / max(1, trainer.state.global_step)
    return max(1, round(60 * arguments.minutes / pace))


def dataset(pairs: list[tuple[str, str]]) -> Dataset:
    """Return the pairs as the trainer reads them."""
    return Dataset.from_dict({"anchor": [query for query, _ in pairs], "positive": [text for _, text in pairs]})


def read(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def judged(folder: Path, split: str) -> list[tuple[str, str]]:
    """Return the queries of a split with the documents that answer them, by id."""
    with (folder / f"qrels/{split}.tsv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t"))[1:]
    return [(row[0], row[1]) for row in rows if float(row[2]) > 0]


def scores(
    model: SentenceTransformer, folder: Path, queries: dict[str, str], documents: dict[str, str]
) -> dict[str, float]:
    """Return nDCG@10 x 100 on each test split."""
    ids = {name: place for place, name in enumerate(documents)}
    rows = model.encode(list(documents.values()), normalize_embeddings=True)
    discounts = 1 / np.log2(np.arange(2, 12))
    found = {}
    for split in SPLITS:
        relevant: dict[str, set[int]] = {}
        for query, document in judged(folder, split):
            relevant.setdefault(query, set()).add(ids[document])
        asked = model.encode([queries[name] for name in relevant], normalize_embeddings=True)
        best = np.argsort(-(asked @ rows.T), axis=1, kind="stable")[:, :10]
        gains = [
            sum(discounts[place] for place, row in enumerate(ranked) if row in wanted)
            / discounts[: len(wanted)].sum()
            for ranked, wanted in zip(best.tolist(), relevant.values(), strict=True)
        ]
        found[split] = 100 * float(np.mean(gains))
    return found


if __name__ == "__main__":
    main()
