"""Development figures of the English family in a space whose dimensions vary more alike.

    python benchmarks/students/spread.py --data DIR --space space.npz --teachers BGE MINILM --texts TEXTS MODEL...
    python benchmarks/students/spread.py --space space.npz --teachers BGE MINILM --texts TEXTS --write 0.3 NEW.npz

Each dimension is divided by a power of its standard deviation over the teachers' joined vectors of TEXTS, a file
with a text in each line. Models are bundles of students in that space. The first form writes spread.md next to
this file; no test set is read. The second writes a space, to which `embedkit export --space` takes students.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from development import load_sets, score

from embedkit import Encoder
from embedkit.evaluation.tasks import Task
from embedkit.protocols import FloatArray
from embedkit.records import read_lines
from embedkit.runtime.joined import JoinedEncoder, JoinedSpace
from embedkit.runtime.packing import unit_rows

HERE = Path(__file__).parent
SETS = ("STS-B dev", "SICK trial", "TrecQA dev", "SemEval CQA dev", "titles", "sentences")
POWERS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6)


class Spread:
    """An encoder whose embeddings are taken to other spaces; it keeps those of each list of texts."""

    def __init__(self, encoder: Encoder) -> None:
        self.name, self.fingerprint = encoder.name, encoder.fingerprint
        self.dimension, self.max_length = encoder.dimension, encoder.max_length
        self.matrix = np.eye(encoder.dimension, dtype=np.float32)
        self._encoder = encoder
        self._known: dict[tuple[str, ...], FloatArray] = {}

    def encode(self, texts: Iterable[str], /) -> FloatArray:
        """Encode texts: ``(N, D) float32``, unit rows."""
        key = tuple(texts)
        if key not in self._known:
            self._known[key] = self._encoder.encode(key)
        return unit_rows(self._known[key] @ self.matrix)


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
    space = JoinedSpace.load(options.space)
    if options.write:
        power, path = options.write
        space.spread(rows, float(power)).save(Path(path))
    else:
        spaces = {power: space.spread(rows, power) for power in POWERS}
        matrices = {power: space.change_to(changed) for power, changed in spaces.items()}
        text = describe(options.models, load_sets(options.data), matrices)
        (HERE / "spread.md").write_text(text, encoding="utf-8")


def describe(models: Sequence[str], sets: Mapping[str, Task], matrices: Mapping[float, FloatArray]) -> str:
    """Return tables of the figures of each model, and of their mean, by power."""
    tables = dict[str, list[list[float]]]()
    for model in models:
        spread, name = Spread(Encoder.load(model)), f"`{Path(model).stem}`"
        for spread.matrix in matrices.values():
            figures = score(spread, sets)
            tables.setdefault(name, []).append([figures[each] for each in SETS])
    tables["mean of all"] = np.mean([*tables.values()], axis=0).tolist()
    lines = ["Scores x 100 on development sets."]
    for name, rows in tables.items():
        lines += ["", f"| {name}, power | {' | '.join(SETS)} | mean |", "|---|" + 7 * "---:|"]
        for power, row in zip(matrices, rows, strict=True):
            lines.append(f"| {power} | {' | '.join(f'{value:.2f}' for value in [*row, np.mean(row)])} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
