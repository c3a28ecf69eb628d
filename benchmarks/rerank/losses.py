"""The loss of score distillation: squared errors of logits, of their margins (MarginMSE), and both.

    python benchmarks/rerank/losses.py --data DIR --teacher teacher-int8.onnx

Trains the student of recipes/reranker-tiny.toml on the pairs of recipes/reranker-more.toml with each loss, from
the same start and in the same batches, without every twentieth query. Pairs and scores come from the cache of that
run, or are made. Prints and writes losses.json: the mean Spearman correlation with the teacher's scores of a
held-out query's candidates, the Pearson correlation over all of them, and the MAP on two development sets under
DIR/rerank.
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt
import torch

from embedkit.config import from_mapping, load_toml, merge
from embedkit.evaluation.sts import spearman
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.pretrained import plain_attention
from embedkit.modeling.torch_encoder import TorchCrossEncoder
from embedkit.runtime.tokenization import PairTokenizer
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus
from embedkit.training.loop import Control
from embedkit.training.method import PairLearner
from embedkit.training.mining import Pairs
from embedkit.training.optim import build_optimizer, schedule
from embedkit.training.recipes.run import resolve
from embedkit.training.recipes.score_distillation import (
    PairGroups,
    PairLoss,
    ScoreDistillationConfig,
    load_pair_teachers,
    pair_loss,
    prepare_pairs,
    ranking_evaluation,
)
from embedkit.training.students import load_cross_encoder

HERE = Path(__file__).parent
RECIPES = HERE.parents[1] / "recipes"
HELD_OUT = 20  # every so many queries
DEVELOPMENT = ("rerank/trecqa-dev.jsonl", "rerank/semeval2016-cqa-dev.jsonl")

_Rows = npt.NDArray[np.int64]


class Part:
    """Some queries of a corpus."""

    def __init__(self, corpus: Corpus, rows: _Rows) -> None:
        self.corpus, self.rows = corpus, rows

    def __len__(self) -> int:
        return len(self.rows)

    def texts(self, rows: _Rows) -> list[str]:
        """Return the texts of rows of this part."""
        return self.corpus.texts(self.rows[rows])


def main() -> None:
    """Train with every loss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with the text and the development sets")
    parser.add_argument("--teacher", required=True, help="bundle of the teacher")
    parser.add_argument("--cache", default=".embedkit-cache")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    recipe: dict[str, Any] = merge(*(load_toml(RECIPES / f"reranker-{name}.toml") for name in ("tiny", "more")))
    chosen = {"optim": {"lr": 1e-3, "steps": arguments.steps}, "data": arguments.data, "cache": arguments.cache}
    config = resolve(merge(recipe, {**chosen, "teacher": {"source": str(Path(arguments.teacher).resolve())}}))
    settings = from_mapping(ScoreDistillationConfig, config.settings)
    queries, passages = (
        Corpus.prepare(sources, Path(config.cache)) for sources in (settings.sources(config), config.sources)
    )
    pairs = prepare_pairs(config, settings, queries, passages, load_pair_teachers(config, settings), Control())
    assert pairs is not None
    rows = np.arange(len(pairs.queries))
    training, held_out = (part(pairs, rows[(rows % HELD_OUT == 0) == out]) for out in (False, True))
    found: dict[str, Any] = {"steps": arguments.steps, "held out": len(held_out.queries)}
    for loss in get_args(PairLoss):
        student = train(config, settings, training, loss)
        evaluate = ranking_evaluation(config, DEVELOPMENT, student)
        assert evaluate is not None
        found[loss] = agreement(student, held_out) | {key: round(value, 4) for key, value in evaluate().items()}
        print(loss, json.dumps(found[loss]), flush=True)
        (HERE / "losses.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def part(pairs: Pairs, rows: _Rows) -> Pairs:
    """Return the pairs of some queries."""
    queries = cast("Corpus", Part(pairs.queries, rows))
    return Pairs(queries, pairs.passages, pairs.candidates[rows], pairs.scores[rows])


def train(config: RunConfig, settings: ScoreDistillationConfig, pairs: Pairs, loss: PairLoss) -> PairEncoder:
    """Train a student from the encoder that the recipe names."""
    length, optim = config.student.positions or settings.length, config.optim
    mean, spread = float(pairs.scores.mean()), float(pairs.scores.std())
    student = load_cross_encoder(config, max_length=length, mean=mean, spread=spread)
    learner = PairLearner(student, functools.partial(pair_loss, loss), group=settings.group)
    tokenizer = PairTokenizer(student.tokenizer.json, settings.length)
    batches = PairGroups(pairs, tokenizer, batch_size=optim.batch_size, group=settings.group, seed=config.seed)
    optimizer, steps = build_optimizer(student, optim), optim.steps or 0
    learner.train()
    with plain_attention(student.body):
        for step in range(steps):
            with torch.autocast("cpu", torch.bfloat16):
                output = learner(batches.batch(step))
            output.loss.backward()
            torch.nn.utils.clip_grad_norm_(student.parameters(), optim.clip)
            for group in optimizer.param_groups:
                group["lr"] = schedule(optim, step, steps)
            optimizer.step()
            optimizer.zero_grad()
    return student


def agreement(student: PairEncoder, pairs: Pairs) -> dict[str, float]:
    """Return correlations of a student's logits with the teacher's."""
    queries = np.repeat(pairs.queries.texts(np.arange(len(pairs.queries))), pairs.candidates.shape[1]).tolist()
    texts = pairs.passages.texts(pairs.candidates.ravel())
    tokens = student.tokenizer.tokenize(list(zip(queries, texts, strict=True)))
    logits = TorchCrossEncoder(student).logits(tokens).reshape(pairs.scores.shape)
    within = [spearman(*both) for both in zip(logits, pairs.scores, strict=True)]
    over_all = np.corrcoef(logits.ravel(), pairs.scores.ravel())[0, 1]
    return {"spearman within queries": round(float(np.mean(within)), 4), "pearson": round(float(over_all), 4)}


if __name__ == "__main__":
    main()
