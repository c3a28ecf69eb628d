"""What `embedkit adapt` gains from labels, from documents and from queries, and what it costs.

    python benchmarks/adaptation/run.py --data DIR --teachers BGE.onnx MINILM.onnx

Adapts `tiny` with the defaults of the command and three seeds: to a help centre with 25 to 374 labelled questions,
to the answers of two sites, to five collections of documents alone, and to a help centre with a log of questions.
No choice depends on the test sets. A result that the command would not write counts with the scores of the
original. Each run has a process of its own. Writes results.json and results.md next to this file; runs that are in
results.json are not repeated.
"""

from __future__ import annotations

import argparse
import json
import lzma
import resource
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import Encoder
from embedkit.adaptation import Files, adapt
from embedkit.atomic import atomic_file
from embedkit.errors import GateError
from embedkit.evaluation.retrieval import (
    JudgedQuery,
    RetrievalSet,
    evaluate_search,
    load_retrieval,
    ndcg,
    rank_documents,
)
from embedkit.evaluation.sts import evaluate_pairs, load_scored_pairs
from embedkit.evaluation.tasks import Task
from embedkit.serving.retrieval.collection import Collection

HERE = Path(__file__).parent
FAQ = "own/stackfaq"
LABELS = (374, 25, 50, 100)
SITES = {"beer_tentrr", "Tp-especial-XML"}  # those with labels; the others are never trained on
COLLECTIONS = ("scifact", "cacm", "cranfield", "medline", "stackfaq")
SEEDS = (0, 1, 2)
CASES = ("labels", "sites", "documents", "queries")


@dataclass(frozen=True)
class Case:
    """What `tiny` is adapted to, and the sets that it is measured on, by name."""

    kind: str
    name: str
    files: dict[str, list[str]]
    tests: dict[str, RetrievalSet]
    teachers: list[str] = field(default_factory=list)


def main() -> None:
    """Run every case that has no results yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of text and test sets")
    parser.add_argument("--teachers", nargs="*", default=[], help="of documents and queries; default: `small`")
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--labels", nargs="+", type=int, default=LABELS)
    parser.add_argument("--collections", nargs="+", default=COLLECTIONS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache", help="folder of vectors of teachers, for all runs; default: one for each run")
    arguments = parser.parse_args()
    saved = HERE / "results.json"
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as scratch:
            for case in cases(arguments, Path(scratch), seed):
                if any((row["name"], row["seed"]) == (case.name, seed) for row in read(saved)):
                    continue
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    found = pool.submit(measure, case, seed, arguments).result()
                rows = [*read(saved), {"case": case.kind, "name": case.name, "seed": seed, **found}]
                with atomic_file(saved) as temporary:
                    temporary.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
                (HERE / "results.md").write_text(report(rows), encoding="utf-8")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the results so far."""
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return rows


def cases(arguments: argparse.Namespace, scratch: Path, seed: int) -> Iterator[Case]:
    """Yield each case for a seed, in the order of what it costs."""
    data, wanted, teachers = arguments.data, arguments.cases, arguments.teachers
    faq = {split: load_retrieval(data / FAQ / f"qrels/{split}.tsv", name=split) for split in ("train", *SPLITS)}
    tests = {split: faq[split] for split in SPLITS}
    corpus = write_documents(scratch / "faq.jsonl", faq["train"])
    for count in arguments.labels if "labels" in wanted else ():
        name = f"help centre, {count} labelled questions"
        if count == max(LABELS):
            files = {"pairs": [str(data / FAQ)]}  # with its split dev
            yield Case("labels", name, files, tests)
            if teachers:
                yield Case("labels", f"{name}, teachers of its answers", files, tests, teachers)
            continue
        chosen = np.random.default_rng([seed, count]).permutation(len(faq["train"].queries))[:count]
        pairs = write_pairs(
            scratch / f"{count}.jsonl", faq["train"], [faq["train"].queries[row] for row in chosen]
        )
        yield Case("labels", name, {"documents": [corpus], "pairs": [pairs]}, tests)
    if "sites" in wanted:
        parts = site_sets(data)
        files = {
            "documents": [write_documents(scratch / "answers.jsonl", parts["train"])],
            "pairs": [write_pairs(scratch / "sites.jsonl", parts["train"], parts["train"].queries)],
        }
        name = f"answers of sites, {len(parts['train'].queries)} labelled questions"
        yield Case("labels", name, files, {split: parts[split] for split in SPLITS})
    for collection in arguments.collections if "documents" in wanted else ():
        folder = data / FAQ if collection == "stackfaq" else data / "retrieval" / collection
        judged = tests if collection == "stackfaq" else {"test": load_retrieval(folder, name=collection)}
        path = scratch / f"{collection}.jsonl"  # without queries and judgements
        path.write_text((folder / "corpus.jsonl").read_text(encoding="utf-8"), encoding="utf-8")
        yield Case("documents", f"documents of {collection}", {"documents": [str(path)]}, judged, teachers)
    if "queries" in wanted:
        log = scratch / "log.txt"
        log.write_text("\n".join(query.text for query in faq["train"].queries), encoding="utf-8")
        files = {"documents": [corpus], "queries": [str(log)]}
        yield Case("documents", "help centre and 374 questions without labels", files, tests, teachers)


SPLITS = ("test", "test-unseen")


def write_documents(path: Path, retrieval: RetrievalSet) -> str:
    """Write the documents of a set."""
    path.write_text(
        "\n".join(json.dumps({"text": text}) for text in retrieval.documents.values()), encoding="utf-8"
    )
    return str(path)


def write_pairs(path: Path, retrieval: RetrievalSet, queries: list[JudgedQuery]) -> str:
    """Write labelled queries with all of their passages."""
    texts = retrieval.documents
    rows = ({"query": query.text, "positive": [texts[name] for name in query.relevance]} for query in queries)
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


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


def measure(case: Case, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Adapt once; return the scores before and after, and the cost."""
    settings = {"seed": seed, "threads": arguments.threads, "device": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        output, run = Path(folder) / "adapted.onnx", Path(folder) / "run"
        settings["cache"] = arguments.cache or str(Path(folder) / "cache")
        started, cpu = time.monotonic(), time.process_time()
        try:
            found = adapt(
                "tiny", Files(**case.files), output, folder=run, teachers=case.teachers, settings=settings
            )
        except GateError:
            found = None
        seconds, cpu = time.monotonic() - started, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        old = Encoder.load("tiny")
        encoders = old, old if found is None else Encoder.load(output)
        figures: dict[str, list[float]] = {}
        for name, test in case.tests.items():
            figures[name] = [dense(encoder, test) for encoder in encoders]
            if case.kind == "documents":
                figures[f"{name}, hybrid"] = [hybrid(encoder, test, Path(folder)) for encoder in encoders]
        pairs = load_scored_pairs(str(arguments.data / "sts/STSBenchmark/sts-dev.csv"), split="validation")
        figures["STS-B dev"] = [100 * evaluate_pairs(encoder, pairs) for encoder in encoders]
        return {
            "figures": figures,
            "proof": None if found is None else asdict(found.proof),
            "written": found is not None,
            "seconds": seconds,
            "cpu_seconds": cpu,
            "threads": arguments.threads,
            "peak_mb": peak,
        }


def dense(encoder: Encoder, retrieval: RetrievalSet) -> float:
    """Return nDCG@10 x 100 of exact search."""
    documents = encoder.encode_document([*retrieval.documents.values()], show_progress_bar=False)
    queries = encoder.encode_query([query.text for query in retrieval.queries], show_progress_bar=False)
    return 100 * float(
        np.mean([ndcg(ranking) for ranking in rank_documents(queries, documents, retrieval, depth=10)])
    )


def hybrid(encoder: Encoder, retrieval: RetrievalSet, folder: Path) -> float:
    """Return nDCG@10 x 100 of a collection's default search, with a keyword index."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        collection = Collection.build(
            retrieval.documents.items(),
            encoder=encoder,
            path=Path(place) / "c",
            lexical=True,
            skip_empty=True,
            show_progress_bar=False,
        )
        found = evaluate_search(collection, Task(retrieval.name, [retrieval]), {}).results[-1].value
        collection.close()
    assert found is not None
    return 100 * found


def report(rows: list[dict[str, Any]]) -> str:
    """Return the tables: mean and standard deviation over seeds."""
    labels = [row for row in rows if row["case"] == "labels"]
    documents = [row for row in rows if row["case"] == "documents"]
    lines = [
        "`embedkit adapt tiny` with its defaults, written by `run.py`: nDCG@10 x 100 of the int8 file, and",
        "Spearman x 100 on STS-B's development set, before -> after, mean and standard deviation over seeds.",
        "*Unseen* are subjects of which nothing was labelled. Minutes are the median of processor time, with the",
        "proof, and memory is the highest peak of a process. `written` counts the seeds whose result the command",
        "found to be better; others count as the original.",
        "",
        "## Labels",
        "",
        *table(labels, ["test", "test-unseen", "STS-B dev"]),
    ]
    if documents:
        columns = ["test", "test, hybrid", "test-unseen", "test-unseen, hybrid", "STS-B dev"]
        lines += ["", "## Documents without labels", "", *table(documents, columns), *mean(documents)]
    return "\n".join(lines) + "\n"


def table(rows: list[dict[str, Any]], columns: list[str]) -> list[str]:
    """Return a table of cases."""
    lines = [f"| data | seeds | {' | '.join(columns)} | written | threads | processor minutes | peak memory, MB |"]
    lines.append("|---|" + "---:|" * (len(columns) + 5))
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        cells = [_cell([row["figures"].get(column) for row in own]) for column in columns]
        written = sum(row["written"] for row in own)
        threads = ", ".join(map(str, sorted({row["threads"] for row in own})))
        minutes = float(np.median([row["cpu_seconds"] for row in own])) / 60
        peak = max(row["peak_mb"] for row in own)
        cost = f"{written} | {threads} | {minutes:.1f} | {peak:,.0f}"
        lines.append(f"| {name} | {len(own)} | {' | '.join(cells)} | {cost} |")
    return lines


def mean(rows: list[dict[str, Any]]) -> list[str]:
    """Return the mean gain over collections, of dense and of hybrid search."""
    known = [row for row in rows if row["name"].startswith("documents of ")]
    if len({row["name"] for row in known}) < 2:
        return []
    gains = []
    for suffix in ("", ", hybrid"):
        of_collection: dict[str, list[float]] = {}
        for row in known:
            parts = [row["figures"][name + suffix] for name in SPLITS if name + suffix in row["figures"]]
            gain = float(np.mean([after - before for before, after in parts]))
            of_collection.setdefault(row["name"], []).append(gain)
        gains.append([float(np.mean(each)) for each in of_collection.values()])
    cells = [f"{np.mean(each):+.1f} ({min(each):+.1f} to {max(each):+.1f})" for each in gains]
    return ["", f"Mean gain over {len(gains[0])} collections: {cells[0]} in dense, {cells[1]} in hybrid search."]


def _cell(figures: list[list[float] | None]) -> str:
    known = [figure for figure in figures if figure is not None]
    if not known:
        return ""
    after = [figure[1] for figure in known]
    spread = f" ± {np.std(after, ddof=1):.1f}" if len(after) > 1 else ""
    return f"{np.mean([figure[0] for figure in known]):.1f} -> {np.mean(after):.1f}{spread}"


if __name__ == "__main__":
    main()
