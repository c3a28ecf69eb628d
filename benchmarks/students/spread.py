"""Development figures of the English family in a space whose dimensions vary more alike.

    python benchmarks/students/spread.py --data DIR --space space.npz --teachers BGE MINILM --texts TEXTS MODEL...
    python benchmarks/students/spread.py --space space.npz --teachers BGE MINILM --texts TEXTS --write 0.3 NEW.npz

Each dimension is divided by a power of its standard deviation over the teachers' joined vectors of TEXTS, a file
with a text in each line. Models are bundles of students in that space. The first form writes spread.md next to
this file; no test set is read. The second writes a space, to which `embedkit export --space` takes students.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from development import load_sets, score

from embedkit import Encoder
from embedkit.protocols import FloatArray
from embedkit.records import read_lines
from embedkit.runtime.joined import JoinedEncoder, JoinedSpace
from embedkit.runtime.packing import unit_rows

HERE = Path(__file__).parent
SETS = ("STS-B dev", "SICK trial", "TrecQA dev", "SemEval CQA dev", "titles", "sentences")
POWERS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6)


class Spread:
    """An encoder whose dimensions are multiplied by factors; it keeps the embeddings of each list of texts."""

    def __init__(self, encoder: Encoder) -> None:
        self.name, self.fingerprint = encoder.name, encoder.fingerprint
        self.dimension, self.max_length = encoder.dimension, encoder.max_length
        self.factors = np.ones(encoder.dimension, dtype=np.float32)
        self._encoder = encoder
        self._known: dict[tuple[str, ...], FloatArray] = {}

    def encode(self, texts: Iterable[str], /) -> FloatArray:
        """Encode texts: ``(N, D) float32``, unit rows."""
        key = tuple(texts)
        if key not in self._known:
            self._known[key] = self._encoder.encode(key)
        return unit_rows(self._known[key] * self.factors)


def main() -> None:
    """Write the table of development figures, or a space."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--space", type=Path, required=True)
    parser.add_argument("--teachers", nargs="+", required=True, metavar="BUNDLE")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--write", nargs=2, metavar=("POWER", "NEW"))
    options = parser.parse_args()
    teachers = JoinedEncoder([Encoder.load(teacher) for teacher in options.teachers], options.space)
    rows = teachers.encode([text for _, text in read_lines(options.texts)])
    if options.write:
        power, path = options.write
        JoinedSpace.load(options.space).spread(rows, float(power)).save(Path(path))
    else:
        sets, deviations = load_sets(options.data), rows.std(axis=0)
        lines = ["Scores x 100 on development sets."]
        for model in options.models:
            spread = Spread(Encoder.load(model))
            lines += ["", f"| `{Path(model).stem}`, power | {' | '.join(SETS)} | mean |", "|---|" + 7 * "---:|"]
            for power in POWERS:
                spread.factors = deviations**-power
                figures = score(spread, sets)
                found = [figures[name] for name in SETS]
                lines.append(f"| {power} | {' | '.join(f'{value:.2f}' for value in [*found, np.mean(found)])} |")
                print(lines[-1], flush=True)
        (HERE / "spread.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
