"""Development sets for the last stage (recipes/last_stage.py).

    python benchmarks/students/questions.py --data DIR --miner MINILM tiny NEW.onnx
    python benchmarks/students/questions.py --data DIR --miner MINILM --tests NEW.onnx

Scores bundles, and adds them to questions.json and questions.md beside this file. ``--tests`` prints the scores on
test sets, which choose nothing. The development sets beside those of trial.py, by nDCG@10:

- wording: sentences of the bodies of held-out questions, among answers that are led by their titles
- title: titles of held-out questions among the answers alone
- heading: headings of held-out articles among their sections
- QQP: questions that have a duplicate, among the questions of 2,400 pairs of its development part
- claim: sentences of abstracts of arXiv, among the abstracts without them
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from trial import DEV, TESTS

from embedkit import Encoder
from embedkit.atomic import atomic_file
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.retrieval import JudgedQuery, RetrievalSet, load_retrieval, ndcg, rank_documents
from embedkit.evaluation.tasks import evaluate
from embedkit.protocols import TextEncoder

HERE = Path(__file__).parent
RECIPES = HERE.parents[1] / "recipes"
sys.path.insert(0, str(RECIPES))
import questions as source  # noqa: E402 - recipes/questions.py, which holds rows out

_QQP_PAIRS, _QQP_QUERIES, _ABSTRACTS, _HEADINGS = 2400, 1200, 600, 600


def sets(data: Path, miner: Encoder) -> Iterator[RetrievalSet]:
    """Yield the development sets."""
    yield from _threads(data, miner)
    yield _headings(data)
    yield _duplicates(data)
    yield _claims(data)


def _threads(data: Path, miner: Encoder) -> Iterator[RetrievalSet]:
    rows = source.rows(data, "stackexchange")
    answers = [row for row in rows if row["kind"] == "answer"]
    kept = [row for row in answers if source.is_held_out(row) or source.draw(row["passage"], 6) == 0]
    relevant: dict[str, dict[str, float]] = {}
    for place, row in enumerate(kept):
        relevant.setdefault(row["query"], {})[f"d{place}"] = 1.0
    held_out = [row for row in rows if source.is_held_out(row) and row["query"] in relevant]
    bodies = {row["query"]: row["passage"] for row in held_out if row["kind"] == "body"}
    found = source.alike(
        miner, [(title, text) for title, body in bodies.items() for text in source.wordings(title, body)]
    )
    best = dict(reversed(found))
    led = {f"d{place}": f"{row['query']} {row['passage']}" for place, row in enumerate(kept)}
    alone = {f"d{place}": row["passage"] for place, row in enumerate(kept)}
    titles = list(dict.fromkeys(row["query"] for row in held_out))
    yield RetrievalSet("wording", led, [JudgedQuery(text, relevant[title]) for title, text in best.items()])
    yield RetrievalSet("title", alone, [JudgedQuery(title, relevant[title]) for title in titles])


def _headings(data: Path) -> RetrievalSet:
    rows = [row for name in ("business-help", "powershell-docs") for row in source.rows(data, name)]
    rows = [row for row in rows if source.is_held_out(row) and source.draw(row["query"], 2)]
    names = {text: f"d{place}" for place, text in enumerate(sorted({row["passage"] for row in rows}))}
    relevant: dict[str, dict[str, float]] = {}
    for row in rows:
        relevant.setdefault(row["query"], {})[names[row["passage"]]] = 1.0
    fit = [query for query, grades in relevant.items() if len(grades) < 3 and len(query.split()) > 2]
    queries = [JudgedQuery(query, relevant[query]) for query in fit[:_HEADINGS]]
    return RetrievalSet("heading", {name: text for text, name in names.items()}, queries)


def _duplicates(data: Path) -> RetrievalSet:
    lines = (data / "pairs/qqp/dev.tsv").read_text(encoding="utf-8", errors="replace").splitlines()[:_QQP_PAIRS]
    pairs = [line.split("\t")[:3] for line in lines]
    names = {text: f"d{place}" for place, text in enumerate(sorted({t for _, a, b in pairs for t in (a, b)}))}
    queries = [
        JudgedQuery(a, {names[b]: 1.0}, hidden=names[a]) for label, a, b in pairs if label == "1" and a != b
    ]
    return RetrievalSet("QQP", {name: text for text, name in names.items()}, queries[:_QQP_QUERIES])


def _claims(data: Path) -> RetrievalSet:
    documents, queries = dict[str, str](), list[JudgedQuery]()
    for text in source.lines(data, "arxiv-abstracts")[-_ABSTRACTS:]:
        parts = source.sentences(text)
        claim = parts.pop(source.draw(text, len(parts)))
        if len(parts) > 3 and 12 <= len(claim.split()) <= 40:
            name = f"d{len(documents)}"
            documents[name] = " ".join(parts)
            queries.append(JudgedQuery(claim, {name: 1.0}))
    return RetrievalSet("claim", documents, queries)


def score(encoder: TextEncoder, found: list[RetrievalSet], data: Path) -> dict[str, float]:
    """Return the encoder's figures on all development sets, x 100."""
    figures = {each.name: _ndcg(encoder, each) for each in found}
    for name, path in DEV.items():
        results = evaluate(encoder, load_task(str(data / path)), progress=False).results
        chosen = next((result for result in results if result.name == name), results[0])
        figures[name] = 100 * (chosen.value or 0.0)
    return figures


def _ndcg(encoder: TextEncoder, found: RetrievalSet) -> float:
    documents = encoder.encode([*found.documents.values()])
    queries = encoder.encode([query.text for query in found.queries])
    rankings = rank_documents(queries, documents, found, depth=10)
    return 100 * float(np.mean([ndcg(ranking) for ranking in rankings]))


def on_tests(encoder: TextEncoder, data: Path) -> dict[str, float]:
    """Return the encoder's figures on test sets, x 100: dense nDCG@10, Spearman on STS, MAP on answers."""
    paths = [f"own/stackfaq/qrels/{split}.tsv" for split in ("test", "test-unseen")]
    paths += [f"retrieval/{name}" for name in ("scifact", "cranfield", "cacm", "medline")]
    figures = {path: _ndcg(encoder, load_retrieval(data / path, name=path)) for path in paths}
    results = [result for name in TESTS for result in evaluate(encoder, load_task(name, data=data)).results]
    return figures | {result.name: 100 * (result.value or 0.0) for result in results}


def report(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Return a table of all figures."""
    names = [*next(iter(rows.values()))]
    lines = [f"| model | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    lines += [f"| {model} | {' | '.join(f'{row[name]:.2f}' for name in names)} |" for model, row in rows.items()]
    return "Written by `questions.py`: development sets, x 100.\n\n" + "\n".join(lines) + "\n"


def main() -> None:
    """Score the models that have no figures yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="bundles")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--miner", required=True, help="all-MiniLM-L6-v2, which tells which questions are alike")
    parser.add_argument("--tests", action="store_true", help="print the scores on test sets instead")
    arguments = parser.parse_args()
    if arguments.tests:
        for model in arguments.models:
            print(model, json.dumps(on_tests(Encoder.load(model, threads=1), arguments.data), indent=1))
        return
    saved = HERE / "questions.json"
    rows: dict[str, dict[str, float]] = json.loads(saved.read_text(encoding="utf-8")) if saved.exists() else {}
    found = [*sets(arguments.data, Encoder.load(arguments.miner, threads=1))]
    for model in arguments.models:
        name = Path(model).stem
        rows[name] = rows.get(name) or score(Encoder.load(model, threads=1), found, arguments.data)
        with atomic_file(saved) as temporary:
            temporary.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        (HERE / "questions.md").write_text(report(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
