"""Mix the weights that a model had before into those of a run, which goes on to `embedkit export`.

    python recipes/mean.py before.onnx RUN --share 0.2

``RUN/model`` becomes the weighted mean of its weights and those of the bundle, an encoder or a re-ranker.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from embedkit.modeling.bundles import load_bundle
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.runtime.bundle import read_bundle
from embedkit.training.loop import mix_weights


def main() -> None:
    """Replace the model of the run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="bundle")
    parser.add_argument("run", type=Path)
    parser.add_argument("--share", type=float, required=True, help="share of the weights before")
    options = parser.parse_args()
    bundle = read_bundle(options.before)
    kind = PairEncoder if bundle.manifest.kind == "cross-encoder" else SentenceEncoder
    model = kind.load(options.run / "model")
    before = load_bundle(bundle, max_length=model.max_length)
    mix_weights(model, before.state_dict(), options.share)
    model.save(options.run / "model")


if __name__ == "__main__":
    main()
