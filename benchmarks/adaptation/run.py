"""What `embedkit adapt` gains from labels and from documents, and what it costs.

    python benchmarks/adaptation/run.py --data DIR

Adapts `tiny` with the defaults of the command and three seeds: to a help centre with 25 to 374 labelled questions,
to questions of two sites with their answers, and to documents alone. No choice depends on the test sets. A result
that the command would not write counts with the scores of the original. Writes results.json and results.md next to
this file; runs that are in results.json are not repeated.
"""

from __future__ import annotations

import argparse
import json
import lzma
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import Encoder
from embedkit.adaptation import Files, adapt
from embedkit.atomic import atomic_file
from embedkit.errors import GateError
from embedkit.evaluation.retrieval import JudgedQuery, RetrievalSet, load_retrieval, ndcg, rank_documents
from embedkit.evaluation.sts import evaluate_pairs, load_scored_pairs

HERE = Path(__file__).parent
FAQ = "own/stackfaq"
LABELS = (374, 25, 50, 100)
SITES = {"beer_tentrr": True, "Tp-especial-XML": True}  # those with labels; the others are never trained on
COLLECTIONS = ("medline", "cranfield")
SEEDS = (0, 1, 2)


def main() -> None:
    """Run every case that has no results yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of text and test sets")
    parser.add_argument("--cases", nargs="+", default=["labels", "sites", "documents"])
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--labels", nargs="+", type=int, default=LABELS)
    parser.add_argument("--collections", nargs="+", default=COLLECTIONS)
    parser.add_argument("--steps", type=int, help="steps on documents alone; default: the command's")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    saved = HERE / "results.json"
    rows: list[dict[str, Any]] = json.loads(saved.read_text(encoding="utf-8")) if saved.exists() else []
    for case, name, files, tests in cases(arguments):
        for seed in arguments.seeds:
            if any((row["name"], row["seed"]) == (name, seed) for row in rows):
                continue
            rows.append({"case": case, "name": name, "seed": seed, **measure(files(seed), tests, seed, arguments)})
            with atomic_file(saved) as temporary:
                temporary.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            (HERE / "results.md").write_text(report(rows), encoding="utf-8")


def cases(arguments: argparse.Namespace) -> Iterator[tuple[str, str, Any, dict[str, RetrievalSet]]]:
    """Yield each case with its name, its files for a seed, and its test sets."""
    data, scratch = arguments.data, Path(tempfile.mkdtemp())
    if "labels" in arguments.cases:
        tests = {split: load_retrieval(data / FAQ / f"qrels/{split}.tsv", name=split) for split in _SPLITS}
        for count in arguments.labels:
            whole = count == max(LABELS)
            name = f"help centre, {count} labelled questions"
            yield "labels", name, lambda seed, n=count, all_=whole: faq_files(data, scratch, n, seed, all_), tests
    if "sites" in arguments.cases:
        parts = site_sets(data)
        path = scratch / "sites.jsonl"
        write_pairs(path, parts["train"], parts["train"].queries)
        documents = scratch / "answers.jsonl"
        documents.write_text("\n".join(json.dumps({"text": t}) for t in parts["train"].documents.values()))
        files = Files(documents=[documents], pairs=[path])
        name = f"answers of sites, {len(parts['train'].queries)} labelled questions"
        yield "labels", name, lambda _: files, {split: parts[split] for split in _SPLITS}
    if "documents" in arguments.cases:
        for name in arguments.collections:
            folder = data / "retrieval" / name
            tests = {"test": load_retrieval(folder, name=name)}
            yield "documents", f"documents of {name}", lambda _, f=folder: Files(documents=[f]), tests


_SPLITS = ("test", "test-unseen")


def faq_files(data: Path, scratch: Path, count: int, seed: int, whole: bool) -> Files:  # noqa: FBT001 - internal
    """Return the help centre with some of its labels; all of them are read from its folder, with its split dev."""
    if whole:
        return Files(pairs=[data / FAQ])
    train = load_retrieval(data / FAQ / "qrels/train.tsv", name="train")
    rows = np.random.default_rng([seed, count]).permutation(len(train.queries))[:count]
    path, documents = scratch / f"faq-{count}-{seed}.jsonl", scratch / "faq.jsonl"
    write_pairs(path, train, [train.queries[row] for row in rows])
    documents.write_text("\n".join(json.dumps({"text": text}) for text in train.documents.values()))
    return Files(documents=[documents], pairs=[path])


def write_pairs(path: Path, retrieval: RetrievalSet, queries: list[JudgedQuery]) -> None:
    """Write labelled queries with all of their passages."""
    texts = retrieval.documents
    rows = ({"query": query.text, "positive": [texts[name] for name in query.relevance]} for query in queries)
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def site_sets(data: Path) -> dict[str, RetrievalSet]:
    """Return titles of questions with their answers among all answers: of two sites, and of others (unseen)."""
    with lzma.open(data / "questions/stackexchange.jsonl.xz", "rt", encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if row["kind"] == "answer"]
    documents = {f"d{number}": row["passage"] for number, row in enumerate(rows)}
    relevance: dict[tuple[str, str], dict[str, float]] = {}
    for number, row in enumerate(rows):
        relevance.setdefault((row["source"], row["query"]), {})[f"d{number}"] = 1.0
    seen = [key for key in relevance if key[0] in SITES]
    order = np.random.default_rng(0).permutation(len(seen))
    chosen = {
        "train": [seen[row] for row in order[:650]],
        "test": [seen[row] for row in order[650:]],
        "test-unseen": [key for key in relevance if key[0] not in SITES],
    }
    return {
        name: RetrievalSet(name, documents, [JudgedQuery(key[1], relevance[key]) for key in keys])
        for name, keys in chosen.items()
    }


def measure(
    files: Files, tests: dict[str, RetrievalSet], seed: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Adapt once; return the scores before and after, and the cost."""
    general = arguments.data / "sts/STSBenchmark/sts-dev.csv"
    settings: dict[str, Any] = {"seed": seed, "threads": arguments.threads, "device": "cpu"}
    if arguments.steps and not files.pairs:
        settings["optim"] = {"steps": arguments.steps}
    with tempfile.TemporaryDirectory() as folder:
        output, run = Path(folder) / "adapted.onnx", Path(folder) / "run"
        settings["cache"] = str(Path(folder) / "cache")
        started, cpu = time.monotonic(), time.process_time()
        try:
            found = adapt("tiny", files, output, folder=run, settings=settings)
        except GateError:
            found = None
        seconds, cpu = time.monotonic() - started, time.process_time() - cpu
        old = Encoder.load("tiny")
        new = old if found is None else Encoder.load(output)
        pairs = load_scored_pairs(str(general), split="validation")
        figures = {name: [100 * score(encoder, test) for encoder in (old, new)] for name, test in tests.items()}
        figures["STS-B dev"] = [100 * evaluate_pairs(encoder, pairs) for encoder in (old, new)]
        return {
            "figures": figures,
            "written": found is not None,
            "steps": None if found is None else found.steps,
            "seconds": seconds,
            "cpu_seconds": cpu,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


def score(encoder: Encoder, retrieval: RetrievalSet) -> float:
    """Return nDCG@10 of exact search."""
    documents = encoder.encode_document([*retrieval.documents.values()], show_progress_bar=False)
    queries = encoder.encode_query([query.text for query in retrieval.queries], show_progress_bar=False)
    return float(np.mean([ndcg(ranking) for ranking in rank_documents(queries, documents, retrieval, depth=10)]))


def report(rows: list[dict[str, Any]]) -> str:
    """Return a table: mean and standard deviation over seeds."""
    lines = [
        "`embedkit adapt tiny` with its defaults, written by `run.py`: nDCG@10 x 100 of dense search by the int8",
        "file, and Spearman x 100 on STS-B's development set, before -> after, mean and standard deviation over",
        "seeds. *unseen* are subjects of which nothing was labelled. A fifth of the labels is held out by the",
        "command to decide whether the result is written; of 374 labels all are trained on, because the set has a",
        "split dev. Minutes of one thread; the peak memory is that of the process after all cases above.",
        "",
        "| data | seeds | test | unseen | STS-B dev | written | minutes | peak memory, MB |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        cells = [_cell([row["figures"].get(split) for row in own]) for split in (*_SPLITS, "STS-B dev")]
        minutes = np.mean([row["cpu_seconds"] for row in own]) / 60
        peak = max(row["peak_mb"] for row in own)
        written = sum(row["written"] for row in own)
        lines.append(f"| {name} | {len(own)} | {' | '.join(cells)} | {written} | {minutes:.1f} | {peak:,.0f} |")
    return "\n".join(lines) + "\n"


def _cell(figures: list[list[float] | None]) -> str:
    known = [figure for figure in figures if figure is not None]
    if not known:
        return ""
    after = [figure[1] for figure in known]
    spread = f" ± {np.std(after, ddof=1):.1f}" if len(after) > 1 else ""
    return f"{np.mean([figure[0] for figure in known]):.1f} -> {np.mean(after):.1f}{spread}"


if __name__ == "__main__":
    main()
