"""A last stage that contrasts: the head of a trained student learns a cross-encoder's scores.

    python benchmarks/students/ranking.py --data DIR --teachers BGE MINILM --reranker RERANKER tiny

Only the head goes on learning, as a matrix after it, which costs a bundle nothing: the embeddings of all texts are
computed once. Every row learns the teachers' vectors of the recipes' text, as the recipes do; rows with lists also
learn to rank candidates of queries. Queries and candidates are those of recipes/reranker-more.toml, found by
`tiny`, by BM25 and at random; RERANKER, ms-marco-MiniLM-L12-v2, has scored all of them, so that a list covers the
whole range of its scores. A tenth of the queries is held out. Figures are of development sets, two of them made
from arXiv abstracts (development.py); no test set is read. Writes ranking.json and ranking.md next to this file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from development import load_sets, score
from torch import Tensor
from torch.nn import functional

from embedkit.config import from_mapping, lay_over, load_toml, merge
from embedkit.protocols import FloatArray
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.packing import unit_rows
from embedkit.training.corpus import Corpus, Rows
from embedkit.training.loop import Control
from embedkit.training.mining import Pairs
from embedkit.training.recipes.run import resolve
from embedkit.training.recipes.score_distillation import ScoreDistillationConfig, load_pair_teachers, prepare_pairs
from embedkit.training.recipes.stage import prepare

HERE = Path(__file__).parent
RECIPES = HERE.parents[1] / "recipes"
TEXTS, STEPS, QUERIES, ROWS_OF_TEXT = 20_000, 600, 64, 512  # the last two are of a batch
HELD_OUT = 10  # one query of so many
SEEDS = (0, 1, 2)


@dataclasses.dataclass(frozen=True)
class Row:
    """How lists are learned.

    Attributes:
        loss: ``kl``, the divergence of a list's distributions, or ``margins``, squared differences of margins.
        weight: of that loss; the recipe's squared distance from the teachers' vectors has a weight of 10.
        best: number of best-scored candidates of a query that a list has, None for all eight.
        temperature: of the student's cosines.
        unit: logits of the cross-encoder that count as one.
    """

    loss: str = "kl"
    weight: float = 1.0
    best: int | None = None
    temperature: float = 0.05
    unit: float = 2.0


ROWS = {
    "vectors alone": Row(weight=0.0),
    "lists of scores": Row(),
    "lists, a third of the weight": Row(weight=0.3),
    "lists, three times the weight": Row(weight=3.0),
    "lists of the best four": Row(best=4),
    "margins": Row("margins", weight=10.0),
}


class Lists(NamedTuple):
    """Embeddings of queries ``(Q, D)`` and of their candidates ``(Q, C, D)``, and scores ``(Q, C)``."""

    queries: Tensor
    candidates: Tensor
    scores: Tensor

    def rows(self, chosen: Any) -> Lists:
        """Return some queries."""
        return Lists(*(part[chosen] for part in self))

    def top(self, count: int | None) -> Lists:
        """Return the best candidates of each query."""
        order = self.scores.argsort(dim=1, descending=True)[:, :count]
        wide = order[:, :, None].expand(-1, -1, self.candidates.shape[2])
        return Lists(self.queries, self.candidates.gather(1, wide), self.scores.gather(1, order))


def main() -> None:
    """Train every row with every seed, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a bundle of the family, or its name")
    parser.add_argument("--data", type=Path, required=True, help="folder of text and evaluation sets")
    parser.add_argument("--text", help="folder of the text of recipes/english-quarter.toml; default: --data")
    parser.add_argument("--teachers", nargs=2, required=True, metavar="MODEL", help="of the recipe, also bundles")
    parser.add_argument("--cache", default=".embedkit-cache", help="text, vectors, candidates and scores")
    parser.add_argument("--reranker", required=True, help="ms-marco-MiniLM-L12-v2, also as a bundle")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    encoder = Turned(Encoder.load(arguments.model, threads=1))
    sets = load_sets(arguments.data)
    texts, vectors = load_vectors(arguments, encoder)
    pairs = load_pairs(arguments.data, arguments.cache, arguments.reranker)
    lists = embed(pairs, np.arange(len(pairs.queries)), encoder.plain)
    held_out = torch.arange(len(lists.queries)) % HELD_OUT == 0
    learned, kept = lists.rows(~held_out), lists.rows(held_out)
    report = {"the bundle": [score(encoder, sets) | agreement(kept, torch.eye(encoder.dimension))]}
    for name, row in ROWS.items():
        report[name] = []
        for seed in SEEDS:
            matrix = train(texts, vectors, learned.top(row.best), row, seed)
            encoder.matrix = matrix.numpy()
            report[name].append(score(encoder, sets) | agreement(kept, matrix))
            print(name, seed, report[name][-1], flush=True)
    (HERE / "ranking.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (HERE / "ranking.md").write_text(table(report), encoding="utf-8")


class Turned:
    """An encoder with a matrix after it; texts are encoded once."""

    def __init__(self, encoder: Encoder) -> None:
        self.name, self.fingerprint = encoder.name, encoder.fingerprint
        self.dimension, self.max_length = encoder.dimension, encoder.max_length
        self.matrix: FloatArray = np.eye(encoder.dimension, dtype=np.float32)
        self._encoder, self._rows = encoder, dict[str, FloatArray]()

    def plain(self, texts: Sequence[str]) -> FloatArray:
        """Return the encoder's embeddings."""
        new = [text for text in dict.fromkeys(texts) if text not in self._rows]
        self._rows.update(zip(new, self._encoder.encode(new), strict=True))
        return np.stack([self._rows[text] for text in texts])

    def encode(self, texts: Sequence[str], /) -> FloatArray:
        """Return embeddings after the matrix, ``(N, D) float32``, unit rows."""
        return unit_rows(self.plain(texts) @ self.matrix.T)


def load_vectors(arguments: argparse.Namespace, encoder: Turned) -> tuple[Tensor, Tensor]:
    """Return embeddings and the joined teachers' vectors of a sample of the recipes' text."""
    mapping = merge(load_toml(RECIPES / "english-quarter.toml"), load_toml(RECIPES / "tiny.toml"))
    for teacher, source in zip(mapping["teachers"], arguments.teachers, strict=True):
        teacher["source"] = source
    mapping |= {"data": str(arguments.text or arguments.data), "cache": arguments.cache}
    materials = prepare(resolve(mapping), Control(), teacher=True)
    rows = np.random.default_rng(0).permutation(materials.split.train)[:TEXTS]
    (joined,) = materials.teachers
    return tensor(encoder.plain(materials.corpus.texts(rows))), tensor(joined.read(rows, 0))


def load_pairs(data: Path, cache: str, reranker: str) -> Pairs:
    """Mine and score the candidates of recipes/reranker-more.toml, or read them from the cache."""
    mapping = merge(load_toml(RECIPES / "reranker-tiny.toml"), load_toml(RECIPES / "reranker-more.toml"))
    mapping |= {"data": str(data), "cache": cache}
    config = resolve(lay_over(mapping, "teacher.source", reranker))
    settings = from_mapping(ScoreDistillationConfig, config.settings)
    queries, passages = (
        Corpus.prepare(sources, Path(config.cache)) for sources in (settings.sources(config), config.sources)
    )
    pairs = prepare_pairs(config, settings, queries, passages, load_pair_teachers(config, settings), Control())
    assert pairs is not None
    return pairs


def embed(pairs: Pairs, rows: Rows, encode: Callable[[list[str]], FloatArray]) -> Lists:
    """Embed some queries and their candidates."""
    candidates = pairs.candidates[rows]
    found = encode(pairs.passages.texts(candidates.ravel()))
    asked = tensor(encode(pairs.queries.texts(rows)))
    return Lists(asked, tensor(found.reshape(*candidates.shape, -1)), tensor(pairs.scores[rows]))


def tensor(array: FloatArray) -> Tensor:
    """Return a copy that torch owns."""
    return torch.from_numpy(np.array(array, dtype=np.float32))


def train(texts: Tensor, vectors: Tensor, lists: Lists, row: Row, seed: int) -> Tensor:
    """Return the matrix ``(D, D)`` after the last step, from the identity."""
    matrix = torch.eye(texts.shape[1], requires_grad=True)
    optimizer = torch.optim.Adam([matrix], lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        chosen = torch.randint(len(texts), (ROWS_OF_TEXT,), generator=generator)
        student = functional.normalize(texts[chosen] @ matrix.T, dim=1)
        loss = 10 * (student - vectors[chosen]).square().sum(dim=1).mean()
        if row.weight:
            asked = torch.randint(len(lists.queries), (QUERIES,), generator=generator)
            loss = loss + row.weight * rank(lists.rows(asked), matrix, row)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return matrix.detach()


def cosines(lists: Lists, matrix: Tensor) -> Tensor:
    """Return the cosines of queries with their candidates, ``(Q, C)``."""
    queries = functional.normalize(lists.queries @ matrix.T, dim=1)
    candidates = functional.normalize(lists.candidates @ matrix.T, dim=2)
    return torch.einsum("qd,qcd->qc", queries, candidates)


def rank(lists: Lists, matrix: Tensor, row: Row) -> Tensor:
    """Return the loss of some lists."""
    return divergence(cosines(lists, matrix), lists.scores, row)


def divergence(found: Tensor, scores: Tensor, row: Row) -> Tensor:
    """Return the loss of cosines of queries with candidates and of their scores, each ``(Q, C)``."""
    scores = scores / row.unit
    if row.loss == "margins":
        return functional.mse_loss(margins(found) / row.temperature, margins(scores)) * row.temperature**2
    student = functional.log_softmax(found / row.temperature, dim=1)
    return functional.kl_div(student, functional.softmax(scores, dim=1), reduction="batchmean")


def margins(scores: Tensor) -> Tensor:
    """Differences between all scores of a query, ``(Q, C, C)``."""
    return scores[:, :, None] - scores[:, None, :]


def agreement(lists: Lists, matrix: Tensor) -> dict[str, float]:
    """Return the share of candidate pairs of held-out queries that are in the cross-encoder's order, x 100."""
    same = margins(cosines(lists, matrix)) * margins(lists.scores) > 0
    count = lists.scores.shape[1]
    return {"same order": 100 * float(same.float().sum(dim=(1, 2)).mean()) / (count * (count - 1))}


def table(report: dict[str, list[dict[str, float]]]) -> str:
    """Return a table of means and standard deviations over seeds."""
    columns = list(report["the bundle"][0])
    lines = [
        f"{STEPS} steps of a matrix after the head of `tiny`. Scores x 100, mean and standard deviation over",
        f"{len(SEEDS)} seeds; `same order` is the share of pairs of a held-out query's candidates that embeddings",
        "order as the cross-encoder does.",
        "",
        f"| | {' | '.join(columns)} |",
        "|---|" + "---:|" * len(columns),
    ]
    for name, runs in report.items():
        values = np.array([[run[column] for column in columns] for run in runs])
        cells = [f"{mean:.2f}" for mean in values.mean(axis=0)]
        if len(runs) > 1:
            cells = [f"{cell} ± {each:.2f}" for cell, each in zip(cells, values.std(axis=0, ddof=1), strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
