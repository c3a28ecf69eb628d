"""The last stage of the encoders: contrast on questions and answers, near the vectors of the family.

    python recipes/questions.py DIR --teacher MINILM -o TEXT
    python recipes/last_stage.py tiny TEXT --teacher MINILM --space small --calibration TEXTS -o tiny.onnx
    python recipes/last_stage.py static TEXT --teacher MINILM --space static --calibration TEXTS -o static.onnx

A step learns from three parts (``Options`` has their sizes and weights):

- pairs: InfoNCE among the passages of the batch and a mined negative of each query. A passage that may answer a
  query, by the vectors of the start, is no negative of it.
- lists: the KL divergence of the similarities of questions and near texts from the teacher's
- texts of all kinds

All three are held near the vectors of ``--space``, a model of the same space: the squared distance. After
training, the weights are taken part of the way from the start (``share``), and exported as int8 with int4 words.
``mini`` is trained like ``tiny``. TEXTS are the first 60 lines of each file in DIR/train. The figures are in
benchmarks/students/NOTES.md.

Sources: van den Oord et al., 2018 (InfoNCE); Solatorio, "GISTEmbed", 2024; Wortsman et al., CVPR 2022 (WiSE-FT).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from embedkit import Encoder
from embedkit.export.pipeline import export, load_source
from embedkit.modeling.bundles import load_sentence_encoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.protocols import FloatArray
from embedkit.training.batches import chunk_view
from embedkit.training.loop import mix_weights
from embedkit.training.losses import squared_distance
from embedkit.training.method import pooled, unit_embeddings
from embedkit.training.methods.contrastive import info_nce_of_lists
from embedkit.training.optim import (
    ActivationPenalty,
    DenseGradients,
    OptimConfig,
    build_optimizer,
    by_rows,
    round_tables,
    rounded_words,
    schedule,
)

Rows = npt.NDArray[np.int64]
_DEPTH = 20  # nearest passages that a negative is drawn from
_MARGIN = 0.95  # passages whose cosine exceeds this share of the best positive's are no negatives
_TEMPERATURE = 0.05


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of a model.

    Attributes:
        steps: steps of training.
        lr: highest learning rate.
        batch: queries in a batch.
        lists: questions whose lists are in a batch, of ``listed`` texts each.
        texts: texts in a batch that are only held.
        anchor: weight of the squared distances of pairs and lists.
        text_anchor: weight of that of texts.
        soft: weight of the KL divergence from the teacher's similarities among a batch's pairs.
        limit: activations beyond which are penalised.
        share: part of the way from the start to the trained weights.
    """

    steps: int = 300
    lr: float = 5e-4
    batch: int = 32
    lists: int = 8
    listed: int = 8
    texts: int = 24
    anchor: float = 0.3
    text_anchor: float = 0.5
    soft: float = 0.0
    limit: float | None = None
    share: float = 1.0


class Encoders(NamedTuple):
    """The model before training, the model whose vectors are kept, and the teacher of lists."""

    start: Encoder
    space: Encoder
    teacher: Encoder


OPTIONS = {
    "tiny": Options(steps=500, anchor=0.6, text_anchor=1.0, limit=3.0, share=0.7),
    "mini": Options(steps=150, lr=1.5e-4, anchor=0.6, text_anchor=1.0, share=0.7),
    "small": Options(steps=100, lr=1e-4, anchor=0.6, text_anchor=1.0),
    "static": Options(steps=400, lr=3e-3, batch=64, lists=12, listed=10, soft=0.5, share=0.8),
}


class Texts:
    """Texts with their vectors at the start, in the space to keep, and of the teacher, which a file keeps."""

    def __init__(self, name: str, texts: list[str], encoders: Encoders, folder: Path) -> None:
        self.name, self.texts, self._encoders, self._folder = name, texts, encoders, folder

    @functools.cached_property
    def start(self) -> FloatArray:
        """Unit vectors ``(N, D)`` at the start of training."""
        return self._vectors(self._encoders.start)

    @functools.cached_property
    def kept(self) -> FloatArray:
        """Unit vectors ``(N, D)`` that the model is held near."""
        return self._vectors(self._encoders.space)

    @functools.cached_property
    def teacher(self) -> FloatArray:
        """The teacher's unit vectors ``(N, T)``."""
        return self._vectors(self._encoders.teacher)

    def _vectors(self, encoder: Encoder) -> FloatArray:
        path = self._folder / f"{self.name}-{encoder.fingerprint[:16]}.npy"
        if not path.exists():
            np.save(path, encoder.encode(self.texts, show_progress_bar=False))
        return np.asarray(np.load(path), dtype=np.float32)


class Trainer:
    """Trains an encoder, from a folder that recipes/questions.py wrote."""

    def __init__(self, encoder: SentenceEncoder, folder: Path, encoders: Encoders, options: Options) -> None:
        self.encoder, self.options = encoder, options
        pairs = [json.loads(line) for line in (folder / "pairs.jsonl").read_text("utf-8").splitlines()]
        passages = list(dict.fromkeys(text for row in pairs for text in row["positive"]))
        places = {text: place for place, text in enumerate(passages)}
        self.positives = [np.array([places[text] for text in row["positive"]]) for row in pairs]
        self.queries = Texts("queries", [row["query"] for row in pairs], encoders, folder)
        self.passages = Texts("passages", passages, encoders, folder)
        self.listed = Texts("listed", _lines(folder / "listed.txt"), encoders, folder)
        self.near = np.load(folder / "lists.npz")["near"]
        self.texts = Texts("texts", _lines(folder / "texts.txt"), encoders, folder)
        self.draws = np.random.default_rng(0)
        self.order: list[int] = []

    def train(self) -> None:
        """Take all steps, and leave the encoder with rounded words."""
        options, encoder = self.options, self.encoder
        config = OptimConfig(lr=options.lr, batch_size=options.batch, correct_bias=True, epsilon=1e-8)
        optimizer, gradients = build_optimizer(encoder, config), DenseGradients(encoder)
        penalty = ActivationPenalty(options.limit) if options.limit else None
        encoder.eval()  # without dropout
        with by_rows(encoder), rounded_words(encoder), self._watched(penalty):
            for step in range(options.steps):
                for group in optimizer.param_groups:
                    group["lr"] = schedule(config, step, options.steps)
                loss = self._pairs() + self._lists() + self._texts()
                if penalty is not None:
                    loss = loss + penalty.take()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                gradients.fill()
                torch.nn.utils.clip_grad_norm_(encoder.parameters(), config.clip)
                optimizer.step()
                if step % 20 == 0:
                    print(f"step {step}: {loss.item():.3f}", flush=True)

    @contextlib.contextmanager
    def _watched(self, penalty: ActivationPenalty | None) -> Iterator[None]:
        with penalty.watch(self.encoder.body) if penalty is not None else contextlib.nullcontext():
            yield

    def _pairs(self) -> Tensor:
        """Return the loss of a batch of pairs."""
        rows = self._next_rows()
        chosen = np.array([self.draws.choice(self.positives[row]) for row in rows])
        negatives = [self._negative(row) for row in rows]
        columns = np.array(list(dict.fromkeys([*chosen.tolist(), *negatives])))
        queries, passages = self._embed(self.queries, rows), self._embed(self.passages, columns)
        labels = torch.from_numpy(self._labels(rows, chosen, columns))
        loss = info_nce_of_lists(queries @ passages.T, labels, temperature=_TEMPERATURE)
        if self.options.soft:
            teachers = self.queries.teacher[rows], self.passages.teacher[columns]
            loss = loss + self.options.soft * divergence(queries @ passages.T, teachers[0] @ teachers[1].T)
        held = self._distance(self.queries, rows, queries) + self._distance(self.passages, columns, passages)
        return loss + self.options.anchor * held

    def _next_rows(self) -> Rows:
        if len(self.order) < self.options.batch:
            self.order = self.draws.permutation(len(self.positives)).tolist()
        return np.array([self.order.pop() for _ in range(self.options.batch)])

    def _negative(self, row: int) -> int:
        """Draw a passage near a query that does not seem to answer it."""
        cosines = self.passages.start @ self.queries.start[row]
        positives = self.positives[row]
        cosines[cosines > _MARGIN * cosines[positives].max()] = -1
        cosines[positives] = -1
        return int(self.draws.choice(np.argpartition(-cosines, _DEPTH)[:_DEPTH]))

    def _labels(self, rows: Rows, chosen: Rows, columns: Rows) -> FloatArray:
        """Return 1 for the positive of a query, NaN for passages that may answer it, else 0."""
        cosines = self.queries.start[rows] @ self.passages.start[columns].T
        labels = np.zeros(cosines.shape, dtype=np.float32)
        for place, (row, positive) in enumerate(zip(rows.tolist(), chosen, strict=True)):
            own = self.passages.start[self.positives[row]] @ self.queries.start[row]
            labels[place, cosines[place] > _MARGIN * own.max()] = np.nan
            labels[place, np.isin(columns, self.positives[row])] = np.nan
            labels[place, columns == positive] = 1
        return labels

    def _lists(self) -> Tensor:
        """Return the loss of some questions and texts near them."""
        questions = self.draws.choice(len(self.near), self.options.lists, replace=False)
        half = self.options.listed // 2
        drawn = list[int]()
        for question in questions.tolist():
            near = np.split(self.near[question], [12])
            drawn += [
                question,
                *(int(row) for part in near for row in self.draws.choice(part, half, replace=False)),
            ]
        rows = np.array(list(dict.fromkeys(drawn)))
        embeddings, teacher = self._embed(self.listed, rows), self.listed.teacher[rows]
        loss = divergence(embeddings @ embeddings.T, teacher @ teacher.T, itself=True)
        return loss + self.options.anchor * self._distance(self.listed, rows, embeddings)

    def _texts(self) -> Tensor:
        rows = self.draws.integers(0, len(self.texts.texts), self.options.texts)
        return self.options.text_anchor * self._distance(self.texts, rows, self._embed(self.texts, rows))

    def _embed(self, source: Texts, rows: Rows) -> Tensor:
        """Return unit embeddings ``(B, D)`` of some texts."""
        tokens = self.encoder.tokenizer.tokenize([source.texts[row] for row in rows])
        view = chunk_view(tokens, self.encoder.tokenizer.pad_id)
        return unit_embeddings(self.encoder, pooled(self.encoder, view))

    @staticmethod
    def _distance(source: Texts, rows: Rows, embeddings: Tensor) -> Tensor:
        return squared_distance(embeddings, torch.from_numpy(source.kept[rows]))


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").rstrip("\n").split("\n")


def divergence(found: Tensor, wanted: FloatArray, *, itself: bool = False) -> Tensor:
    """Return the KL divergence of rows of cosines from the teacher's; ``itself`` leaves out the diagonal."""
    logits = [cosines / _TEMPERATURE for cosines in (found, torch.from_numpy(wanted))]
    if itself:
        logits = [values.masked_fill(torch.eye(len(values), dtype=torch.bool), -1e4) for values in logits]
    first, second = (functional.log_softmax(values, dim=1) for values in logits)
    return functional.kl_div(first, second, reduction="batchmean", log_target=True)


def main() -> None:
    """Train a model and write its bundle."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=OPTIONS)
    parser.add_argument("folder", type=Path, help="text of recipes/questions.py")
    parser.add_argument("--teacher", required=True, help="bundle of all-MiniLM-L6-v2")
    parser.add_argument("--space", required=True, help="model whose vectors are kept")
    parser.add_argument("--calibration", type=Path, required=True, help="file of texts")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    options = OPTIONS[arguments.model]
    encoder = load_sentence_encoder(arguments.model)
    start = {name: weight.clone() for name, weight in encoder.state_dict().items()}
    names = (arguments.model, arguments.space, arguments.teacher)
    encoders = Encoders(*(Encoder.load(name, threads=1) for name in names))
    Trainer(encoder, arguments.folder, encoders, options).train()
    mix_weights(encoder, start, 1 - options.share)
    round_tables(encoder)
    texts = _lines(arguments.calibration)
    card = load_source(arguments.model).card
    export(encoder, arguments.output, card=card, precision="int8", word_table="int4", calibration=texts)


if __name__ == "__main__":
    main()
