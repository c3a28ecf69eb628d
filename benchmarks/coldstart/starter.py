"""One library from process start to its first embedding; started by run.py with the Python that has the library.

    python starter.py start LIBRARY MODEL
    python starter.py size LIBRARY
    python starter.py make TOKENIZER FOLDER

``start`` prints a line when packages are imported, when the model is loaded and when a text is embedded. ``size``
prints the size in bytes of the library and each package it requires, as JSON. ``make`` writes a static model of
random rows for model2vec. embedkit is needed only for starting embedkit itself.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

TEXT = "What is the capital of Iceland?"
STATIC_DIMENSIONS = 256


def main() -> None:
    """Run the command given by the first argument."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    match sys.argv[1:]:
        case ["start", library, model]:
            lines, sys.stdout = sys.stdout, sys.stderr  # keep output of packages out of our lines
            for _ in LIBRARIES[library](model):
                print("reached", file=lines, flush=True)
        case ["size", library]:
            print(json.dumps(package_bytes(library)))
        case ["make", tokenizer, folder]:
            make_static_model(tokenizer, folder)


def embedkit(model: str) -> Iterator[None]:
    """``Encoder.encode``."""
    from embedkit import Encoder

    yield
    encoder = Encoder.load(model)
    yield
    encoder.encode(TEXT)
    yield


def fastembed(model: str) -> Iterator[None]:
    """``TextEmbedding.embed``; MODEL is a folder whose graph includes pooling."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    yield
    about = {"pooling": PoolingType.DISABLED, "normalization": False, "dim": 1, "model_file": "model.onnx"}
    TextEmbedding.add_custom_model(model="peer", sources=ModelSource(url="unused"), **about)
    encoder = TextEmbedding("peer", specific_model_path=model)
    yield
    next(iter(encoder.embed([TEXT])))
    yield


def model2vec(model: str) -> Iterator[None]:
    """``StaticModel.encode``."""
    from model2vec import StaticModel

    yield
    encoder = StaticModel.from_pretrained(model)
    yield
    encoder.encode(TEXT)
    yield


def sentence_transformers(model: str) -> Iterator[None]:
    """``SentenceTransformer.encode`` on torch."""
    from sentence_transformers import SentenceTransformer

    yield
    encoder = SentenceTransformer(model, device="cpu")
    yield
    encoder.encode(TEXT, show_progress_bar=False)
    yield


LIBRARIES: dict[str, Callable[[str], Iterator[None]]] = {
    "embedkit": embedkit,
    "fastembed": fastembed,
    "model2vec": model2vec,
    "sentence-transformers": sentence_transformers,
}


def make_static_model(tokenizer: str, folder: str) -> None:
    """Write a model for model2vec: a row for each piece of a vocabulary."""
    import numpy as np
    from model2vec import StaticModel
    from tokenizers import Tokenizer

    pieces = Tokenizer.from_file(tokenizer)
    rows = np.random.default_rng(0).standard_normal((pieces.get_vocab_size(), STATIC_DIMENSIONS), dtype=np.float32)
    StaticModel(rows, pieces).save_pretrained(folder)


def package_bytes(library: str) -> dict[str, int]:
    """Return the installed bytes of the library and, recursively, of its requirements, by package."""
    wanted, found = {library}, {}
    while wanted:
        name = wanted.pop()
        try:
            distribution = metadata.distribution("embedkit-onnx" if name == "embedkit" else name)
        except metadata.PackageNotFoundError:
            if name == "embedkit":  # running from its source tree
                found[name] = source_bytes()
                wanted |= {"numpy", "onnxruntime", "tokenizers"}
            continue  # a requirement for another system or Python version
        files = (Path(distribution.locate_file(file)) for file in distribution.files or ())
        found[name] = sum(file.stat().st_size for file in files if file.exists())
        needed = (re.match(r"[\w.-]+", each) for each in distribution.requires or () if "extra ==" not in each)
        wanted |= {match[0].lower().replace("_", "-") for match in needed if match} - found.keys()
    return found


def source_bytes() -> int:
    """Return the size of embedkit's source tree."""
    import embedkit

    folder = Path(embedkit.__file__).parent
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
