"""Quality by language of multilingual encoders, beside their teacher: similarity, translations, retrieval, topics.

    python benchmarks/multilingual/run.py --data DIR --teacher MODEL multilingual.onnx tiny [--limit N]

DIR holds `sts/stsb-multi-mt` and `multilingual/eval` with `tatoeba`, `xquad` (in BEIR's layout, a folder for each
language) and `sib200`; every language that is there is measured. Models are bundles, names of bundles, or model
folders, which run on torch. The teacher reads texts after `--prompt`, and the passages of XQuAD after
`--passage-prompt`; all others read plain texts. Results go to results.json and results.md next to this file, and
models whose figures are there are measured again only with `--again`, as needed after a change of prompts or sets.

* STS: Spearman's correlation of cosines and scores, STS-B machine-translated.
* Tatoeba: share of sentences whose nearest neighbour is their translation, mean of both directions.
* XQuAD: nDCG@10 of paragraphs for questions, in one language.
* SIB-200: accuracy of a logistic regression on embeddings of the 701 training sentences; ten folds select its
  strength.

With `--limit N`, only the first N pairs, sentences and questions of each language count, with the paragraphs that
these ask for and 20 N training sentences: a trial of the script, not a result.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embedkit import Encoder
from embedkit.evaluation.retrieval import RetrievalSet, load_retrieval, ndcg, rank_documents
from embedkit.evaluation.sts import load_scored_pairs, spearman
from embedkit.evaluation.transfer import Examples, folds_then_test
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.records import read_lines
from embedkit.runtime.numerics import numerics_of

HERE = Path(__file__).parent
GOALS = {"STS": 93, "Tatoeba": 88, "XQuAD": 88, "SIB-200": 96}
"""Percent of the teacher's mean that a model of two layers aims at."""


@dataclass(frozen=True)
class Reader:
    """A model and the prompts before its texts."""

    encoder: TextEncoder
    prompt: str = ""
    passage_prompt: str = ""

    def read(self, texts: Sequence[str]) -> FloatArray:
        """Return the embeddings of texts, unit rows."""
        return self.encoder.encode([self.prompt + text for text in texts])

    def read_passages(self, texts: Sequence[str]) -> FloatArray:
        """Return the embeddings of passages, unit rows."""
        return self.encoder.encode([self.passage_prompt + text for text in texts])


Measure = Callable[[Reader], float]


def main() -> None:
    """Measure every model in every language."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="bundle, name of a bundle, or model folder")
    parser.add_argument("--data", type=Path, required=True, help="folder of the test sets")
    parser.add_argument("--teacher", required=True, help="bundle or folder of the teacher, the first row")
    parser.add_argument("--prompt", default="query: ", help="the teacher's prompt of texts and questions")
    parser.add_argument("--passage-prompt", default="passage: ", help="the teacher's prompt of paragraphs")
    parser.add_argument("--limit", type=int, metavar="N", help="use the first N rows of each set and language")
    parser.add_argument(
        "--again", action="store_true", help="measure models anew whose figures are in results.json"
    )
    arguments = parser.parse_args()
    readers = {Path(source).stem: Reader(_load(source)) for source in arguments.models}
    teacher = Reader(_load(arguments.teacher), arguments.prompt, arguments.passage_prompt)
    readers = {f"{Path(arguments.teacher).stem} (teacher)": teacher} | readers
    measures = dict(_measures(arguments.data, arguments.limit))
    about = {
        label: {"fingerprint": reader.encoder.fingerprint, "numerics": numerics_of(reader.encoder)}
        for label, reader in readers.items()
    }
    rows = {} if arguments.again else _measured(about, arguments.limit)
    missing = {label: reader for label, reader in readers.items() if label not in rows}
    with Progress("measures", len(missing) * len(measures), unit="sets") as progress:
        for label, reader in missing.items():
            rows[label] = {}
            for (task, language), measure in measures.items():
                rows[label][f"{task} {language}"] = 100 * measure(reader)
                progress.advance(note=f"{label}: {task} {language}")
    rows = {label: rows[label] for label in readers}
    report = {"limit": arguments.limit, "models": about, "figures": rows}
    (HERE / "results.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    table = describe(rows, arguments.limit)
    (HERE / "results.md").write_text(table, encoding="utf-8")
    print(table)


def _measured(about: Mapping[str, object], limit: int | None) -> dict[str, dict[str, float]]:
    """Return the figures in results.json of the models that have not changed since."""
    if not (HERE / "results.json").is_file():
        return {}
    report = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    known = report["models"] if report["limit"] == limit else {}
    return {label: report["figures"][label] for label in about if known.get(label) == about[label]}


def _load(source: str) -> TextEncoder:
    if Path(source).is_dir():
        model = SentenceEncoder.load(source)
        model.default_prompt = None
        return TorchEncoder(model)
    return Encoder.load(source)


def _measures(data: Path, limit: int | None) -> Iterator[tuple[tuple[str, str], Measure]]:
    """Yield task and language with the function that measures a model."""
    place = data / "multilingual" / "eval"
    for path in sorted((data / "sts" / "stsb-multi-mt").glob("stsb-*-test.csv")):
        yield ("STS", path.stem.split("-")[1]), _similarity(path, limit)
    for path in sorted((place / "tatoeba").glob("tatoeba.*-eng.eng")):
        language = path.name.removeprefix("tatoeba.").removesuffix("-eng.eng")
        yield ("Tatoeba", language), _translations(path, path.with_suffix(f".{language}"), limit)
    for folder in sorted((place / "xquad").iterdir()):
        if folder.is_dir():
            yield ("XQuAD", folder.name), _retrieval(folder, limit)
    for folder in sorted((place / "sib200").iterdir()):
        if folder.is_dir():
            yield ("SIB-200", folder.name), _topics(folder, limit)


def _similarity(path: Path, limit: int | None) -> Measure:
    pairs = load_scored_pairs(str(path))

    def measure(reader: Reader) -> float:
        first, second = (reader.read(texts[:limit]) for texts in (pairs.first, pairs.second))
        return spearman((first * second).sum(axis=1), pairs.scores[:limit])

    return measure


def _translations(english: Path, other: Path, limit: int | None) -> Measure:
    sides = [[line for _, line in read_lines(path)][:limit] for path in (english, other)]

    def measure(reader: Reader) -> float:
        first, second = map(reader.read, sides)
        cosines, rows = first @ second.T, np.arange(len(first))
        return float(np.mean([(cosines.argmax(axis=axis) == rows).mean() for axis in (0, 1)]))

    return measure


def _retrieval(folder: Path, limit: int | None) -> Measure:
    whole = load_retrieval(folder, name=folder.name)
    queries = whole.queries[:limit]
    wanted = set(whole.documents) if limit is None else {each for query in queries for each in query.relevance}
    found = RetrievalSet(
        whole.name, {name: text for name, text in whole.documents.items() if name in wanted}, queries
    )

    def measure(reader: Reader) -> float:
        queries = reader.read([query.text for query in found.queries])
        documents = reader.read_passages(list(found.documents.values()))
        return float(np.mean([ndcg(each) for each in rank_documents(queries, documents, found)]))

    return measure


def _topics(folder: Path, limit: int | None) -> Measure:
    limits = {"train": limit and 20 * limit, "test": limit}
    parts = [_read_topics(folder / f"{part}.tsv")[:most] for part, most in limits.items()]
    numbers = {topic: number for number, topic in enumerate(sorted({topic for topic, _ in parts[0]}))}

    def measure(reader: Reader) -> float:
        train, test = (
            Examples(reader.read([text for _, text in rows]), np.array([numbers[topic] for topic, _ in rows]))
            for rows in parts
        )
        return float(folds_then_test(train, test).mean())

    return measure


def _read_topics(path: Path) -> list[tuple[str, str]]:
    """Read topic and text of each row; the first line names the columns."""
    lines = (line.split("\t") for _, line in read_lines(path))
    next(lines)
    return [(topic, text) for _, topic, text in lines]


def describe(rows: Mapping[str, Mapping[str, float]], limit: int | None) -> str:
    """Return the tables: means over languages, shares of the teacher, and every language."""
    teacher = next(iter(rows))
    means = {
        label: {task: _mean(value for name, value in row.items() if name.startswith(task)) for task in GOALS}
        for label, row in rows.items()
    }
    shares = {
        label: {task: 100 * mean[task] / means[teacher][task] for task in GOALS} for label, mean in means.items()
    }
    lines = ["# Quality by language", ""]
    if limit is not None:
        lines += [
            f"**A trial with the first {limit} rows of each set (`--limit {limit}`), which is no result.**",
            "",
        ]
    lines += ["Means over the languages below, times 100:", "", *_markdown(means, list(GOALS))]
    lines += ["", "Shares of the teacher, in percent:", ""]
    lines += _markdown({**shares, "goal": dict(GOALS)}, list(GOALS))
    for task in GOALS:
        languages = [name.removeprefix(f"{task} ") for name in rows[teacher] if name.startswith(f"{task} ")]
        cells = {label: {each: row[f"{task} {each}"] for each in languages} for label, row in rows.items()}
        lines += ["", f"## {task}", "", *_markdown(cells, languages)]
    return "\n".join(lines) + "\n"


def _mean(values: Iterator[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)


def _markdown(rows: Mapping[str, Mapping[str, float]], columns: Sequence[str]) -> list[str]:
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    return lines + [
        f"| {label} | " + " | ".join(f"{row[column]:.1f}" for column in columns) + " |"
        for label, row in rows.items()
    ]


if __name__ == "__main__":
    main()
