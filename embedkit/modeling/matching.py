"""Cross-encoders that begin as an encoder, preceded by a layer in which words find their equals.

A cross-encoder compares the words of a query with those of a passage. A new network has to discover attention
between equal words; here the first layer's heads begin with it. Queries and keys are the same rotation of the
state, so that their product is the similarity of two words, and one column of each head holds the segment with
opposite signs, so that words attend to the other text. Layers, words and positions are the encoder's; values,
feed-forward block and classifier are random.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import BertForSequenceClassification

from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pretrained import check_bert, check_fit
from embedkit.modeling.seeding import seeded
from embedkit.modeling.vocabulary import real_words
from embedkit.runtime.tokenization import PairTokenizer

_SHARPNESS = 6.0  # attention logit of an equal word, and of the other segment
_SEGMENT = 0.35  # length of the segment's row, relative to a word's
_GAIN = 0.5  # singular values of the first layer's values and of its output


def matching_encoder(
    encoder: SentenceEncoder, *, mean: float = 0.0, spread: float = 1.0, max_length: int, seed: int
) -> PairEncoder:
    """Create a cross-encoder with one layer more than an encoder of type BERT with absolute positions.

    The expected ``mean`` of the logits becomes the classifier's bias, and their standard deviation, ``spread``,
    the scale of its weights. A step of AdamW moves a bias by no more than the learning rate, so one far from the
    mean would drive the pooler into saturation. Torch's global generators are not changed.

    Raises:
        ModelError: the encoder is of another type, or has too few positions for pairs of that length.
    """
    check_bert(encoder, "a cross-encoder starts from encoders")
    config: Any = copy.deepcopy(encoder.config)
    config.num_labels, config.type_vocab_size = 1, 2
    config.num_hidden_layers += 1
    tokenizer = PairTokenizer(encoder.tokenizer.json, max_length)
    check_fit(config, tokenizer)
    with seeded(seed), torch.no_grad():
        network: Any = BertForSequenceClassification(config)
        _copy(encoder, network.bert)
        _match(network.bert, real_words(encoder.tokenizer))
        network.classifier.weight.normal_(0.0, 2 * spread / config.hidden_size**0.5)
        network.classifier.bias.fill_(mean)
    return PairEncoder(network.to(encoder.device), tokenizer, name=encoder.name)


def _copy(encoder: SentenceEncoder, body: Any) -> None:
    """Copy the encoder's words, positions and layers; its first type becomes both segments'."""
    theirs: Any = encoder.backbone
    for name in ("word_embeddings", "position_embeddings"):
        getattr(body.embeddings, name).weight.copy_(getattr(theirs.embeddings, name).weight)
    body.embeddings.token_type_embeddings.weight.copy_(theirs.embeddings.token_type_embeddings.weight[:1])
    body.embeddings.LayerNorm.load_state_dict(theirs.embeddings.LayerNorm.state_dict())
    for own, layer in zip(body.encoder.layer[1:], theirs.encoder.layer, strict=True):
        own.load_state_dict(layer.state_dict())


def _match(body: Any, words: list[int]) -> None:
    """Fill in segments and the first layer."""
    rows = body.embeddings.word_embeddings.weight[words]
    types, norm = body.embeddings.token_type_embeddings.weight, body.embeddings.LayerNorm
    layer = body.encoder.layer[0]
    direction = torch.randn(rows.shape[1])
    shift = _SEGMENT * rows.norm(dim=1).mean() * direction / direction.norm()
    first, second = (norm(rows + types[0] + side * shift) for side in (1, -1))
    types[0] += shift
    types[1] -= shift
    middle, half = (first.mean(dim=0) + second.mean(dim=0)) / 2, (first.mean(dim=0) - second.mean(dim=0)) / 2
    states = torch.cat([first, second])
    own = layer.attention.self
    query, key = _same_words(states - middle, half, own.num_attention_heads)
    for product, weight in ((own.query, query), (own.key, key)):
        product.weight.copy_(weight)
        product.bias.copy_(-weight @ middle)
    for product in (own.value, layer.attention.output.dense):
        product.weight.copy_(_GAIN * _rotation(rows.shape[1]))
    for norm_after in (layer.attention.output.LayerNorm, layer.output.LayerNorm):  # keep the scale of the states
        norm_after.weight.fill_(states.std(dim=1).mean())
        norm_after.bias.fill_(states.mean())


def _same_words(states: Tensor, half: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Return the weights of queries and keys, ``(H, H)`` each.

    ``states``, ``(N, H)``, are centred states of words in either segment; ``half``, ``(H,)``, is what the first
    segment adds to a centred state and the second subtracts.
    """
    width = states.shape[1]
    by_head = width // heads
    unit = half / half.norm()
    plain = states - (states @ unit)[:, None] * unit
    rotation = _rotation(width)
    rotation = rotation - (rotation @ unit)[:, None] * unit
    energy = plain.square().sum(dim=1).mean() * by_head / width  # of a state's columns in a head
    query = (_SHARPNESS * by_head**0.5 / energy) ** 0.5 * rotation
    key = query.clone()
    segment = (_SHARPNESS * by_head**0.5) ** 0.5 / half.norm() * unit
    query[by_head - 1 :: by_head], key[by_head - 1 :: by_head] = segment, -segment
    return query, key


def _rotation(width: int) -> Tensor:
    rotation: Tensor = torch.linalg.qr(torch.randn(width, width)).Q
    return rotation
