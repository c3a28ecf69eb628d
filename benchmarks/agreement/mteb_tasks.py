"""MTEB's own tasks, with local rows instead of downloaded ones."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mteb
from datasets import Dataset, DatasetDict
from mteb.abstasks.text.reranking import OLD_FORMAT_RERANKING_TASKS, AbsTaskReranking

from embedkit.evaluation.pairs import LabelledPairs
from embedkit.evaluation.sts import ScoredPairs


def similarity(name: str, pairs: ScoredPairs) -> Any:
    """Return an STS task with the pairs of all subsets."""
    rows = {"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.scores.tolist()}
    return _filled(name, DatasetDict({"test": Dataset.from_dict(rows)}))


def pairs(labelled: LabelledPairs) -> Any:
    """Return a pair classification task, whose code does not depend on the set."""
    labels = [int(label) for label in labelled.labels]
    rows = {"sentence1": labelled.first, "sentence2": labelled.second, "labels": labels}
    return _filled("TwitterSemEval2015", DatasetDict({"test": Dataset.from_dict(rows)}))


def retrieval(folder: Path) -> Any:
    """Return a retrieval task for a folder in BEIR's form, read independently of embedkit."""
    relevant: dict[str, dict[str, int]] = {}
    with (folder / "qrels" / "test.tsv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            relevant.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    corpus = [
        {"id": row["_id"], "title": row.get("title") or "", "text": row["text"]}
        for row in _json_lines(folder / "corpus.jsonl")
    ]
    queries = [{"id": row["_id"], "text": row["text"]} for row in _json_lines(folder / "queries.jsonl")]
    split = {
        "corpus": Dataset.from_list(corpus),
        "queries": Dataset.from_list(queries),
        "relevant_docs": relevant,
        "top_ranked": None,
    }
    return _filled("SciFact", {"default": {"test": split}})


def reranking(path: Path) -> Any:
    """Return a re-ranking task for a file of ``query, positive[], negative[]``, converted by MTEB's own code."""
    rows = [{key: row[key] for key in ("query", "positive", "negative")} for row in _json_lines(path)]
    task = _Lists()
    OLD_FORMAT_RERANKING_TASKS.append(task.metadata.name)
    task.transform_old_dataset_format(DatasetDict({"test": Dataset.from_list(rows)}))
    return task


class _Lists(AbsTaskReranking):
    """A set in MTEB 1's form, under a name known to MTEB."""

    metadata = mteb.get_task("AskUbuntuDupQuestions").metadata


def few_shot(folder: Path) -> Any:
    """Return an intent classification task from ``train.csv`` and ``test.csv`` of ``text, category``."""
    parts = {}
    for part in ("train", "test"):
        with (folder / f"{part}.csv").open(encoding="utf-8", newline="") as file:
            rows = [{"text": row["text"], "label": row["category"]} for row in csv.DictReader(file)]
        parts[part] = Dataset.from_list(rows)
    return _filled("Banking77Classification", DatasetDict(parts))


def _filled(name: str, data: Any) -> Any:
    task = mteb.get_task(name)
    task.dataset, task.data_loaded = data, True
    return task


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)
