"""Embed texts with a bundle in Python and in transformers.js, and compare tokens and embeddings.

transformers.js cuts the end of a long text together with its last special token, so tokens are compared where
nothing is cut.

npm install --prefix examples/transformersjs
python examples/transformersjs/compare.py tiny models/mini.onnx
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embedkit import Encoder
from embedkit.export.folder import save_repository
from embedkit.export.probes import GOLDEN_TEXTS, PROBE_TEXTS
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.find import find_model

HERE = Path(__file__).parent
SMALLEST_COSINE = 0.99  # int8 activations round differently in different runtimes
TEXTS = [*PROBE_TEXTS, *GOLDEN_TEXTS]


def main() -> int:
    """Print one row for each model; return 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=["tiny"], help="bundles; default: tiny")
    parser.add_argument(
        "--modules", type=Path, default=HERE, help="folder with node_modules; default: this folder"
    )
    arguments = parser.parse_args()
    rows = [compare(model, arguments.modules) for model in arguments.models]
    print("| model | transformers.js | texts | cut | other tokens | smallest cosine | largest difference |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for model, row in zip(arguments.models, rows, strict=True):
        print(f"| {model} | {row.version} | {len(TEXTS)} | {row.cut} | {row.others} ", end="")
        print(f"| {row.cosine:.5f} | {row.difference:.2g} |")
    return int(any(row.others or row.cosine < SMALLEST_COSINE for row in rows))


class Row(NamedTuple):
    """Texts cut, texts with other tokens although not cut, smallest cosine, and largest difference of a value."""

    version: str
    cut: int
    others: int
    cosine: float
    difference: float


def compare(model: str, modules: Path) -> Row:
    """Embed the texts on both sides."""
    encoder = Encoder.load(model)
    with tempfile.TemporaryDirectory() as place:
        repository = Path(place) / "model"
        save_repository(read_bundle(find_model(model)), repository)
        found = run_node(repository, modules)
    results, tokens = found["results"], encoder.tokenize(TEXTS)
    cut = set(tokens.overflowing)
    others = [row for row, ids in enumerate(tokens.ids) if row not in cut and results[row]["ids"] != list(ids)]
    theirs = np.array([result["embedding"] for result in results], dtype=np.float32)
    ours = np.stack([encoder.encode(text) for text in TEXTS])
    cosines = (theirs * ours).sum(axis=1)
    difference = float(np.abs(theirs - ours).max())
    return Row(found["version"], len(cut), len(others), float(cosines.min()), difference)


def run_node(repository: Path, modules: Path) -> dict[str, Any]:
    """Output of ``embed.mjs``, which runs beside ``node_modules``."""
    script = modules / "embed.mjs"
    if modules != HERE:
        script.write_bytes((HERE / "embed.mjs").read_bytes())
    done = subprocess.run(
        ["node", str(script), str(repository)],  # noqa: S607 - the one on the path
        input=json.dumps(TEXTS),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"node failed; was `npm install --prefix {modules}` run?\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    sys.exit(main())
