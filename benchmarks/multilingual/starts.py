"""Untrained students of a multilingual teacher, by what they start from.

    python benchmarks/multilingual/starts.py --data DIR --teacher FOLDER [11:12:384:1024 ...]

A start W:L,L:H:I has words that passed through the teacher's first W layers alone (`student.word_layers`), the
layers L of the teacher (`student.teacher_layers`), states of width H and feed-forward blocks of width I. DIR holds
`multilingual/train` and the development sets of `sts/stsb-multi-mt`. All students keep the pieces that these texts
need. A linear head is fitted by ridge regression on sentences in many languages to the teacher's vectors, which
are centred and whose components are made more alike (`join.spread`). Measured are its cosine with the teacher on
other sentences of the same kind, and the similarity of sentences on the development sets. Results go to starts.md
next to this file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from embedkit.evaluation.sts import load_scored_pairs, spearman
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pruning import choose_pieces, count_pieces, prune_model
from embedkit.modeling.sizes import Size
from embedkit.modeling.teacher_layers import fit_affine, from_layers
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.progress import Progress
from embedkit.records import read_lines

HERE = Path(__file__).parent
STARTS = (
    *("0:1,12:192:384", "0:1,12:384:1024", "0:12:384:1024", "11:12:384:1024", "11:12:256:1024"),
    *("10:11,12:384:1024", "8:9,10,11,12:384:1536", "6:7,8,9,10,11,12:384:1536", "0:2,4,6,8,10,12:384:1536"),
)
LANGUAGES = (
    *("ar", "bg", "cs", "de", "el", "en", "es", "fa", "fi", "fr", "hi", "hu", "id"),
    *("it", "ja", "nl", "pl", "pt", "ro", "sv-SE", "tr", "uk", "ur", "vi", "zh-CN"),
)
DEVELOPMENT = ("de", "es", "fr")
SPREAD = 0.2
SAMPLE = 1500  # texts on which a student's layers are fitted, as many as in a run
RIDGE = 1e-3


@dataclass(frozen=True)
class Start:
    """What a student is made of."""

    word_layers: int
    layers: tuple[int, ...]
    hidden: int
    inner: int

    @classmethod
    def read(cls, written: str) -> Start:
        """Read ``W:L,L:H:I``."""
        words, layers, hidden, inner = written.split(":")
        return cls(int(words), tuple(int(number) for number in layers.split(",")), int(hidden), int(inner))

    def build(self, teacher: SentenceEncoder, texts: Sequence[str], length: int) -> SentenceEncoder:
        """Cut the student from its teacher."""
        size = Size(len(self.layers), self.hidden, 1, self.inner)
        layers, words = self.layers, self.word_layers
        return from_layers(teacher, size, texts, layers=layers, word_layers=words, max_length=length, seed=0)


def main() -> None:
    """Measure every start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("starts", nargs="*", type=Start.read, metavar="W:L,L:H:I")
    parser.add_argument("--data", type=Path, required=True, help="folder of training text and development sets")
    parser.add_argument("--teacher", required=True, help="folder of the teacher")
    parser.add_argument("--prompt", default="query: ", help="the teacher's prompt")
    parser.add_argument("--sentences", type=int, default=400, help="sentences of each language to fit heads on")
    parser.add_argument("--max-length", type=int, default=64, help="tokens of a text")
    arguments = parser.parse_args()
    starts = arguments.starts or [Start.read(each) for each in STARTS]
    fitted, held_out = _sentences(arguments.data, arguments.sentences)
    pairs = [load_scored_pairs(str(path)) for path in _development(arguments.data)]
    teacher = SentenceEncoder.load(arguments.teacher, max_length=arguments.max_length)
    vectors = _encode(teacher, [arguments.prompt + text for text in [*fitted, *held_out]])
    targets = normalize(_spread(vectors, len(fitted)))
    texts = [*fitted, *held_out, *(text for each in pairs for text in (*each.first, *each.second))]
    tokenizer = teacher.tokenizer
    small = prune_model(teacher, choose_pieces(tokenizer, count_pieces(tokenizer, [texts]), None))
    rows = []
    with Progress("starts", len(starts), unit="students") as progress:
        for start in starts:
            student = start.build(small, fitted[:SAMPLE], arguments.max_length)
            states = _encode(student, [*fitted, *held_out])
            weight, bias = fit_affine(states[: len(fitted)], targets[: len(fitted)], ridge=RIDGE)
            cosine = (normalize(states @ weight.T + bias) * targets)[len(fitted) :].sum(dim=1).mean()
            similar = []
            for each in pairs:
                first, second = (
                    normalize(_encode(student, side) @ weight.T + bias) for side in (each.first, each.second)
                )
                similar.append(100 * spearman((first * second).sum(dim=1).numpy(), each.scores))
            rows.append((start, 100 * float(cosine), similar))
            progress.advance()
    table = describe(rows, len(fitted), small.tokenizer.vocabulary_size)
    (HERE / "starts.md").write_text(table, encoding="utf-8")
    print(table)


def _development(data: Path) -> Iterator[Path]:
    return (data / "sts" / "stsb-multi-mt" / f"stsb-{language}-dev.csv" for language in DEVELOPMENT)


def _sentences(data: Path, count: int) -> tuple[list[str], list[str]]:
    """Return sentences to fit heads on, and a fifth as many others, in random order."""
    fitted, held_out = [], []
    for language in LANGUAGES:
        lines = [line for _, line in read_lines(data / "multilingual" / "train" / f"{language}.txt.xz")]
        chosen = np.random.default_rng(0).permutation(len(lines))[: count + count // 5]
        fitted += [lines[row] for row in chosen[:count]]
        held_out += [lines[row] for row in chosen[count:]]
    return [fitted[row] for row in np.random.default_rng(0).permutation(len(fitted))], held_out


def _encode(model: SentenceEncoder, texts: Sequence[str]) -> Tensor:
    return torch.from_numpy(TorchEncoder(model).encode(texts))


def _spread(vectors: Tensor, count: int) -> Tensor:
    """Centre vectors, and divide their principal components by a power of their standard deviations."""
    centred = vectors - vectors[:count].mean(dim=0)
    _, sizes, components = torch.linalg.svd(centred[:count], full_matrices=False)
    spread: Tensor = centred @ (components.T * (sizes / sizes.max()) ** -SPREAD)
    return spread


def describe(rows: Sequence[tuple[Start, float, Sequence[float]]], count: int, pieces: int) -> str:
    """Return the table of starts."""
    lines = [
        "# Students of a multilingual teacher before training",
        "",
        f"Heads fitted on {count:,} sentences in {len(LANGUAGES)} languages, {pieces:,} pieces. Cosine with the",
        "teacher on other sentences, and Spearman's correlation on the development sets of STS-B, times 100:",
        "",
        f"| words after layer | layers | width | inner | cosine | {' | '.join(DEVELOPMENT)} |",
        "|---:|---|---:|---:|---:|" + "---:|" * len(DEVELOPMENT),
    ]
    for start, cosine, similar in rows:
        cells = [str(start.word_layers), ", ".join(map(str, start.layers)), str(start.hidden), str(start.inner)]
        lines.append(f"| {' | '.join(cells)} | {cosine:.1f} | {' | '.join(f'{each:.1f}' for each in similar)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
