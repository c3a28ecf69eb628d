"""A deeper start for a cross-encoder: repeated layers that begin nearly as the identity.

    python benchmarks/rerank/deepen.py reranker-tiny.onnx --layers 1 2 2 3 3 --pairs DIR/rerank/trecqa-dev.jsonl \
        -o runs/deeper

Writes a folder to train on. A repeated layer keeps the weights of its original, but its two last products are
zero, and its LayerNorms map states of the usual mean and spread, measured on pairs, to themselves. So the deeper
network orders almost as its source does, and leaves it as it learns. After the last layer only the first token
counts.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import BertForSequenceClassification

from embedkit.evaluation.reranking import load_lists
from embedkit.modeling.bundles import cross_from_bundle
from embedkit.modeling.cross_encoder import PairEncoder

PAIRS = 200


def main() -> None:
    """Write the deeper cross-encoder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", help="a cross-encoder in int8 or fp32")
    parser.add_argument("--layers", type=int, nargs="+", required=True, help="layers of the bundle, from 1")
    parser.add_argument("--pairs", type=Path, required=True, help="a re-ranking set")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    model = cross_from_bundle(arguments.bundle)
    queries = load_lists(arguments.pairs, name=arguments.pairs.stem).queries
    pairs = [(query.text, text) for query in queries for text in query.candidates][:PAIRS]
    deepen(model, [layer - 1 for layer in arguments.layers], pairs).save(arguments.output)


@torch.no_grad()
def deepen(model: PairEncoder, order: Sequence[int], pairs: Sequence[tuple[str, str]]) -> PairEncoder:
    """Return a cross-encoder with the layers ``order``, counted from 0; a repeated one begins as the identity."""
    config: Any = copy.deepcopy(model.config)
    config.num_hidden_layers = len(order)
    source: Any = model.network
    network: Any = BertForSequenceClassification(config)
    kept = {name: value for name, value in source.state_dict().items() if ".layer." not in name}
    network.load_state_dict(kept, strict=False)
    layers, states = source.bert.encoder.layer, token_states(model, pairs)
    for place, (layer, number) in enumerate(zip(network.bert.encoder.layer, order, strict=True)):
        layer.load_state_dict(layers[number].state_dict())
        if place and order[place - 1] == number:
            is_last = number == len(layers) - 1
            begin_as_identity(layer, torch.cat([rows[:1] if is_last else rows for rows in states[number]]))
    return PairEncoder(network, model.tokenizer, name=model.name)


def token_states(model: PairEncoder, pairs: Sequence[tuple[str, str]]) -> list[list[Tensor]]:
    """Return the states after each layer: of each pair ``(L, H) float32``."""
    batch = model.tokenizer.tokenize(pairs).batch(np.arange(len(pairs)), model.tokenizer.pad_id)
    ids, mask = (torch.from_numpy(each) for each in (batch.input_ids, batch.attention_mask))
    types = torch.zeros_like(ids) if batch.token_type_ids is None else torch.from_numpy(batch.token_type_ids)
    network: Any = model.network.eval()
    after = network.bert(ids, mask, types, output_hidden_states=True).hidden_states[1:]
    return [[rows[real.bool()] for rows, real in zip(states, mask, strict=True)] for states in after]


def begin_as_identity(layer: Any, states: Tensor) -> None:
    """Make a layer map states ``(N, H)`` of the usual mean and spread to themselves."""
    for part in (layer.attention.output, layer.output):
        part.dense.weight.zero_()
        part.dense.bias.zero_()
        part.LayerNorm.weight.fill_(states.std(dim=1, unbiased=False).mean())
        part.LayerNorm.bias.fill_(states.mean())


if __name__ == "__main__":
    main()
