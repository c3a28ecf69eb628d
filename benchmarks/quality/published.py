"""Write embedkit/runtime/models.json: embedkit's own models with hashes, sizes and measured figures.

    python benchmarks/quality/published.py

Reads the files in embedkit/bundled and models, and results.json of this folder and of benchmarks/frontier. Run it
after replacing a model or measuring anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from embedkit.runtime.bundle import read_bundle

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDERS = (ROOT / "embedkit" / "bundled", ROOT / "models")
LICENCE = "Apache-2.0"
# In the order of the list.
ABOUT = {
    "tiny": "two layers of 192: the default",
    "static": "no layers: where nothing else is fast enough",
    "mini": "two layers of 384: STS and retrieval of all-MiniLM-L6-v2, at a third of its time",
    "small": "three layers of 384: the best of these, at half the time of all-MiniLM-L6-v2",
    "multilingual": "six layers of 384, for other languages",
    "tiny-minilm": "an earlier tiny, in the space of all-MiniLM-L6-v2",
    "mini-minilm": "an earlier mini, in the space of all-MiniLM-L6-v2",
    "small-minilm": "an earlier small, in the space of all-MiniLM-L6-v2",
    "static-minilm": "an earlier static, in the space of all-MiniLM-L6-v2",
    "reranker-tiny": "five layers of 192, a cross-encoder: re-ranks what another model found",
    "reranker-small": "four layers of 384, a cross-encoder: for answers to questions",
}
LANGUAGES = {"multilingual": "48 languages"}
QUALITY = {"STS": "STS mean", "questions": "questions mean", "SciFact": "SciFact nDCG@10"}


def main() -> None:
    """Write the list."""
    path = ROOT / "embedkit" / "runtime" / "models.json"
    path.write_text(content(), encoding="utf-8")


def content() -> str:
    """Return what the list holds."""
    folders = HERE, HERE.parent / "frontier"
    quality, frontier = (json.loads((each / "results.json").read_text(encoding="utf-8")) for each in folders)
    return json.dumps(list(models(quality, frontier["rows"])), indent=1) + "\n"


def models(quality: Mapping[str, Any], times: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each model that has a file."""
    for name, about in ABOUT.items():
        path = next((folder / f"{name}.onnx" for folder in FOLDERS if (folder / f"{name}.onnx").is_file()), None)
        if path is None:
            continue
        bundle = read_bundle(path)
        manifest, file = bundle.manifest, path.read_bytes()
        measured = next((row for row in quality.values() if row.get("fingerprint") == bundle.fingerprint), {})
        figures = {label: round(measured[column], 2) for label, column in QUALITY.items() if column in measured}
        label = f"{name}, {manifest.precision}"
        if label in times and measured and quality.get(label) is measured:
            figures["µs a title"] = round(times[label]["titles"])
        yield {
            "name": name,
            "kind": manifest.kind,
            "about": about,
            "languages": LANGUAGES.get(name, "English"),
            "licence": LICENCE,
            "dimension": manifest.dimension if manifest.kind == "encoder" else None,
            "max_length": manifest.max_length,
            "size_bytes": len(file),
            "sha256": hashlib.sha256(file).hexdigest(),
            "figures": figures,
        }


if __name__ == "__main__":
    main()
