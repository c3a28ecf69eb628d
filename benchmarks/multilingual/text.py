"""Text made for `multilingual`: passages of several sentences, and random words of scripts that the text lacks.

    python benchmarks/multilingual/text.py DIR TEACHER

DIR/multilingual holds `train/LANGUAGE.txt.xz`, one sentence per line, and `aligned/LANGUAGE.tsv.xz`, English TAB
other language. TEACHER is the folder of a model with a SentencePiece Unigram tokenizer. Three files are written to
DIR/multilingual/made, in random order:

* passages.txt.xz: three to eight sentences of one language, which need not follow each other in a text.
* aligned.tsv.xz: three to six consecutive pairs, joined on both sides.
* pieces.txt.xz: random word pieces of one script, as frequent as the tokenizer expects them, somewhat flattened.
  The teacher knows words of languages of which there is no text; this is how a student sees them.
"""

from __future__ import annotations

import argparse
import json
import lzma
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from embedkit.records import read_lines, read_records

PASSAGES = 2500
"""Passages of a language, and pairs of passages."""
LINES = 5000
"""Lines of random pieces of a script, five times as many of Latin, which many languages share."""
LEAST_PIECES = 1000
"""Pieces that a script needs."""
FLATTENED = 0.75
"""Exponent of a piece's probability."""
UNWRITTEN = 0.08
"""Share of pieces without letters."""


def passages(folder: Path, generator: np.random.Generator) -> Iterator[str]:
    """Join random sentences of each language; each sentence occurs at most once."""
    for path in sorted(folder.glob("*.txt.xz")):
        lines = [line for _, line in read_lines(path)]
        sizes = generator.integers(3, 9, size=PASSAGES)
        order = generator.permutation(len(lines)).tolist()
        for end, size in zip(np.cumsum(sizes).tolist(), sizes.tolist(), strict=True):
            if end <= len(lines):
                yield " ".join(lines[row] for row in order[end - size : end])


def aligned_passages(folder: Path, generator: np.random.Generator) -> Iterator[str]:
    """Join consecutive pairs of each language."""
    for path in sorted(folder.glob("*.tsv.xz")):
        pairs = [tuple(record.values()) for _, record in read_records(path)]
        sizes = generator.integers(3, 7, size=PASSAGES)
        starts = generator.permutation(max(0, len(pairs) - 6))[:PASSAGES]
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=False):
            sides = zip(*pairs[start : start + size], strict=True)
            yield "\t".join(" ".join(map(str, side)) for side in sides)


def script_of(piece: str) -> str:
    """Return the script of most letters of a piece, or nothing."""
    letters = (letter for letter in piece if unicodedata.category(letter)[0] in "LM")
    names = Counter(unicodedata.name(letter, "").split(" ")[0] for letter in letters)
    return names.most_common(1)[0][0] if names else ""


def random_pieces(teacher: Path, generator: np.random.Generator) -> Iterator[str]:
    """Draw lines of 4 to 24 pieces for each script."""
    vocabulary = json.loads((teacher / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    scripts: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for piece, score in vocabulary:
        if score < 0 and piece != "\u2581":
            scripts[script_of(piece)].append((piece, score))
    unwritten = _Pieces(scripts.pop(""))
    for script, pieces in sorted(scripts.items()):
        if len(pieces) >= LEAST_PIECES:
            written = _Pieces(pieces)
            for _ in range(LINES * (5 if script == "LATIN" else 1)):
                length = int(generator.integers(4, 25))
                drawn = zip(written.draw(length, generator), unwritten.draw(length, generator), strict=True)
                mixed = (pair[int(generator.random() < UNWRITTEN)] for pair in drawn)
                yield "".join(mixed).replace("\u2581", " ").strip()


class _Pieces:
    """Pieces to draw from by their probabilities."""

    def __init__(self, pieces: list[tuple[str, float]]) -> None:
        self._pieces = [piece for piece, _ in pieces]
        self._weights = np.exp(FLATTENED * np.array([score for _, score in pieces])).cumsum()

    def draw(self, count: int, generator: np.random.Generator) -> list[str]:
        """Return ``count`` pieces."""
        places = np.searchsorted(self._weights, generator.random(count) * self._weights[-1], side="right")
        return [self._pieces[place] for place in places.tolist()]


def main() -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("teacher", type=Path, metavar="TEACHER")
    options = parser.parse_args()
    folder = options.data / "multilingual"
    made = folder / "made"
    made.mkdir(exist_ok=True)
    for name, lines in {
        "passages.txt": passages(folder / "train", np.random.default_rng(0)),
        "aligned.tsv": aligned_passages(folder / "aligned", np.random.default_rng(1)),
        "pieces.txt": random_pieces(options.teacher, np.random.default_rng(2)),
    }.items():
        mixed = np.random.default_rng(3).permutation(np.array([*lines], dtype=object)).tolist()
        with lzma.open(made / f"{name}.xz", "wt", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in mixed)
        print(f"{made / name}.xz: {len(mixed):,} lines")


if __name__ == "__main__":
    main()
