"""Where a student's weights come from: a pre-trained model, its teacher, or chance."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import BertConfig, BertModel

from embedkit.errors import ModelError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.sizes import Size
from embedkit.runtime.tokenization import Tokenizer

__all__ = ["from_pretrained", "from_teacher", "random"]


def from_pretrained(
    source: str | os.PathLike[str], *, max_length: int | None = None, pooling: str | None = None
) -> SentenceEncoder:
    """Start from a model that is there, e.g. ``"google/bert_uncased_L-2_H-128_A-2"`` (BERT-Tiny).

    Raises:
        ModelNotFoundError: there is no such model.
        ModelError: the model cannot be used.
    """
    return SentenceEncoder.load(source, pooling=pooling, max_length=max_length)


def random(
    tokenizer: Tokenizer, size: Size, *, max_length: int, seed: int, pooling: str = "mean"
) -> SentenceEncoder:
    """A BERT encoder with BERT's own random initialisation (normal, 0.02), the same for the same seed.

    Args:
        tokenizer: gives the vocabulary.
        size: shape of the network.
        max_length: the longest text in tokens; the position table has as many rows.
        seed: of the weights; torch's global generators are left as they are.
        pooling: ``"mean"`` or ``"cls"``.
    """
    config = BertConfig(
        vocab_size=tokenizer.vocabulary_size,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.feed_forward,
        max_position_embeddings=max_length,
        pad_token_id=tokenizer.pad_id,
    )
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        backbone = BertModel(config, add_pooling_layer=False)
    return SentenceEncoder(backbone, tokenizer.with_max_length(max_length), pooling=pooling)
