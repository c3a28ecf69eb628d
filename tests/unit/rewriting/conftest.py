"""Makes the example importable as ``rewrite``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, PreTrainedModel

from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import random
from embedkit.modeling.pretrained import quiet_transformers
from embedkit.modeling.sizes import Size
from embedkit.modeling.vocabulary import write_tokenizer
from embedkit.runtime.tokenization import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "rewriting"))


@pytest.fixture(scope="session")
def tokenizer(toy_tokenizer_json: str) -> Tokenizer:
    return Tokenizer(toy_tokenizer_json, 16)


@pytest.fixture(scope="session")
def masked_lm(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a BERT that predicts masked words."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": tokenizer.vocabulary_size,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    config = BertConfig(**sizes, max_position_embeddings=16, initializer_range=0.5)
    return save(BertForMaskedLM(config), tmp_path_factory.mktemp("models") / "masked", tokenizer)


def save(model: PreTrainedModel, folder: Path, tokenizer: Tokenizer) -> Path:
    with quiet_transformers():
        model.save_pretrained(folder)
    write_tokenizer(folder, tokenizer)
    return folder


@pytest.fixture
def make_encoder(tokenizer: Tokenizer) -> Callable[[], SentenceEncoder]:
    """``make_encoder()``: H = 16, one layer."""
    return lambda: random(tokenizer, Size(1, 16, 2), max_length=16, seed=0)


@pytest.fixture
def wordnet_folder(tmp_path: Path) -> Path:
    """A WordNet of eight sets of synonyms, in the format of its database files."""
    folder = tmp_path / "wordnet"
    folder.mkdir()
    licence = "  1 This software and database is being provided to you, the LICENSEE\n"
    lines = {
        "data.noun": [
            "00001740 05 n 03 dog 0 domestic_dog 0 Canis_familiaris 0 001 @ 00001930 n 0000 | barks",
            "00001930 03 n 02 animal 0 beast 0 000 | a living organism",
            "00002452 06 n 01 house 0 000 | a dwelling",
            "00002684 23 n 02 inch 0 in 0 000 | a unit of length",
            "00003553 18 n 02 dog 1 frump 0 000 | a dull person",
        ],
        "data.verb": ["00001740 29 v 02 sleep 0 slumber 0 000 01 + 02 00 | be asleep"],
        "data.adj": [f"00001740 00 s 0b {' '.join(f'good_{i}(p) 0' for i in range(11))} 000 | eleven of them"],
        "data.adv": [],
    }
    for name, rows in lines.items():
        (folder / name).write_text(licence + "".join(f"{row}  \n" for row in rows), encoding="utf-8")
    return folder
