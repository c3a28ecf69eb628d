"""The cross-encoder's network, a transformers classifier with one logit over pairs of texts, and its start.

A cross-encoder compares the words of a query and of a passage. A new network has to discover attention between
equal words. A cross-encoder made from an encoder gets an additional first layer, whose heads begin with it.
Queries and keys are the same rotation of the state, so that their product is the similarity of two words, and one
column of each head holds the segment with opposite signs, so that words attend to the other text. Layers, words
and positions are the encoder's; values, feed-forward block and classifier are random.
"""

from __future__ import annotations

import copy
import functools
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from embedkit.errors import ModelError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pretrained import (
    Network,
    check_bert,
    check_configured,
    check_fit,
    decisive_settings,
    fingerprint,
    load_reported,
    loading,
    model_name,
    probe,
    quiet_transformers,
    require_weights,
    seeded,
    usual_length,
)
from embedkit.modeling.vocabulary import load_tokenizer, real_words, write_tokenizer
from embedkit.runtime.find import find_folder
from embedkit.runtime.folder_layout import Layout, read_layout, stored_activation
from embedkit.runtime.folder_model import read_activation
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer

_CLASSIFIER = "ForSequenceClassification"


class PairEncoder(Network):
    """A network that maps token batches of pairs to logits.

    It is transformers' own classifier with one label: for BERT the body, its pooler (dense, tanh), dropout and a
    linear layer; for RoBERTa the body, then dense, tanh, dropout and linear on the first token.

    Raises:
        ModelError: the network has more than one label, or the parts do not match.
    """

    tokenizer: PairTokenizer

    def __init__(self, network: PreTrainedModel, tokenizer: PairTokenizer, *, name: str = "cross-encoder") -> None:
        super().__init__()
        if network.config.num_labels != 1:
            raise ModelError(f"a cross-encoder has one label, but this classifier has {network.config.num_labels}")
        check_fit(network.config, tokenizer)
        self.network = network
        self.tokenizer = tokenizer
        self.name = name

    @property
    def body(self) -> PreTrainedModel:
        """The transformers network, under the same name as in sentence encoders."""
        return self.network

    @property
    def hidden(self) -> int:
        """H, width of the body."""
        return int(self.config.hidden_size)

    @property
    def activation(self) -> str:
        """The activation that sentence-transformers stored, ``"identity"``; empty for the sigmoid, its default.

        Raises:
            ModelError: it is another one.
        """
        return read_activation(stored_activation({}, self.config.to_dict()))

    @property
    def token_types(self) -> int:
        """Number of token types: 2 for BERT; 1 for RoBERTa and others that do not use them."""
        return _token_types(self.config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return logits, before the sigmoid: ``(B, L) int64`` three times ``-> (B,) float32``."""
        types = {"token_type_ids": token_type_ids} if self.token_types > 1 else {}
        output = self.network(input_ids=input_ids, attention_mask=attention_mask, **types)
        logits: Tensor = output.logits
        return logits.squeeze(1).float()

    def write(self, folder: Path) -> None:
        """Write the files of :meth:`save` into an existing folder."""
        with quiet_transformers():
            self.network.save_pretrained(folder)
        write_tokenizer(folder, self.tokenizer, with_types=self.token_types > 1)

    @classmethod
    def load(
        cls, source: str | os.PathLike[str], *, max_length: int | None = None, trust_remote_code: bool = False
    ) -> PairEncoder:
        """Load a trained cross-encoder from a transformers folder or the hub.

        The length of a pair is that of tokenizer and network if ``max_length`` is None.

        Raises:
            ModelNotFoundError: neither a folder nor a model on the hub.
            ModelError: the model is not a cross-encoder, or cannot be used.
        """
        layout = read_layout(find_folder(source, with_code=trust_remote_code))
        if layout.kind != "cross-encoder":
            raise ModelError(f"{source} is not a cross-encoder: its config.json names no {_CLASSIFIER}")
        folder = layout.backbone
        network, missing = _from_pretrained(folder, trust_remote_code=trust_remote_code)
        require_weights(folder, missing)
        probe(network, lambda output: output.logits.squeeze(1), f"the classifier in {folder} gives no logits")
        if layout.activation is not None:  # version 6 stores it elsewhere; transformers saves its configuration
            network.config.sentence_transformers = {"activation_fn": layout.activation}
        tokenizer = _load_tokenizer(layout, network.config, max_length, trust_remote_code=trust_remote_code)
        return cls(network.float(), tokenizer, name=model_name(source))

    @classmethod
    def start(cls, source: str | os.PathLike[str], *, max_length: int | None = None, seed: int) -> PairEncoder:
        """Put a new classifier on the body of any model, for example a raw pre-trained one.

        The pooler is kept if the folder has one; missing weights of the classifier are initialised randomly.
        ``max_length`` is as in :meth:`load`. Torch's global generators are not changed by ``seed``.

        Raises:
            ModelNotFoundError: neither a folder nor a model on the hub.
            ModelError: the model cannot be used.
        """
        layout = read_layout(find_folder(source))
        folder = layout.backbone
        with seeded(seed):
            network, missing = _from_pretrained(folder, num_labels=1)
        body = [key for key in missing if ".pooler." not in key and not key.startswith(("classifier.", "pooler."))]
        require_weights(folder, body, "body")
        tokenizer = _load_tokenizer(layout, network.config, max_length)
        return cls(network.float(), tokenizer, name=model_name(source))

    @classmethod
    def from_encoder(cls, encoder: SentenceEncoder, *, max_length: int, seed: int) -> PairEncoder:
        """Put a new classifier on a copy of an encoder's body.

        An encoder has no pooler, so pooler and last layer are initialised randomly. A dense head is not carried
        over. Torch's global generators are not changed by ``seed``.

        Raises:
            ModelError: the encoder has too few positions for pairs of that length.
        """
        config = copy.deepcopy(encoder.backbone.config)
        config.num_labels = 1
        tokenizer = PairTokenizer(encoder.tokenizer.json, max_length)
        check_fit(config, tokenizer)
        with seeded(seed), quiet_transformers():
            network = AutoModelForSequenceClassification.from_config(config)
        network.base_model.load_state_dict(encoder.backbone.state_dict(), strict=False)
        return cls(network.to(encoder.device), tokenizer, name=encoder.name)

    def to_encoder(self, *, pooling: str, max_length: int) -> SentenceEncoder:
        """Return an encoder on a copy of this network's body, without the classifier."""
        config = AutoConfig.for_model(**self.config.to_dict())
        with seeded(0), quiet_transformers():
            backbone = AutoModel.from_config(config, add_pooling_layer=False)
        backbone.load_state_dict(self.network.base_model.state_dict(), strict=False)  # all but the pooler
        tokenizer = Tokenizer(self.tokenizer.json, max_length)
        return SentenceEncoder(backbone.to(self.device), tokenizer, pooling=pooling, name=self.name)

    def fingerprint(self) -> str:
        """Return the hex SHA-256 of weights, architecture, tokenizer and length, which determine the scores."""
        settings = [*decisive_settings(self.config), "cross-encoder", self.max_length]
        return fingerprint(self, settings, self.tokenizer.json)


def _token_types(config: PretrainedConfig) -> int:
    return max(1, int(getattr(config, "type_vocab_size", 1)))


def is_cross_encoder(folder: Path) -> bool:
    """Whether a model folder contains a cross-encoder; see :func:`~embedkit.runtime.folder_layout.read_layout`.

    Raises:
        ModelError: the folder's settings are damaged or not supported.
    """
    return read_layout(folder).kind == "cross-encoder"


def _from_pretrained(
    folder: Path, *, trust_remote_code: bool = False, **changes: Any
) -> tuple[PreTrainedModel, list[str]]:
    """Return the model and the names of weights that are missing in its folder."""
    check_configured(folder, trust_remote_code=trust_remote_code)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    with loading(folder, "model"):
        options["config"] = AutoConfig.from_pretrained(folder, **options, **changes)
        options["config"].return_dict = True
        load = functools.partial(AutoModelForSequenceClassification.from_pretrained, folder, **options)
        model, missing = load_reported(load)
    return model, [key for key in missing if not key.endswith("position_ids")]


def _load_tokenizer(
    layout: Layout, config: PretrainedConfig, max_length: int | None, *, trust_remote_code: bool = False
) -> PairTokenizer:
    """Load the folder's tokenizer for pairs, limited to the length that tokenizer and network support."""
    max_length = max_length if max_length is not None else usual_length(layout, config)
    with_types = _token_types(config) > 1
    tokenizer = load_tokenizer(layout, max_length, trust_remote_code=trust_remote_code, with_types=with_types)
    return PairTokenizer(tokenizer.json, max_length)


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

    ``states``, ``(N, H)``, are centred states of words in either segment; ``half``, ``(H,)``, is the vector that
    the first segment adds to a centred state and the second subtracts.
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
