"""Small random encoders over the toy vocabulary, with weights large enough to matter."""

import pytest
import torch
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.runtime.tokenization import Tokenizer

HIDDEN, LAYERS, MAX_LENGTH = 32, 2, 20


@pytest.fixture(scope="session")
def tokenizer(toy_tokenizer_json: str) -> Tokenizer:
    return Tokenizer(toy_tokenizer_json, MAX_LENGTH)


@pytest.fixture
def make_encoder(tokenizer):
    """``make_encoder(pooling="mean", head=None, family="bert", **config)``, in evaluation mode."""

    def make(*, pooling="mean", head=None, family="bert", **changes):
        config_class, model_class = {"bert": (BertConfig, BertModel), "roberta": (RobertaConfig, RobertaModel)}[
            family
        ]
        settings = {
            "vocab_size": tokenizer.vocabulary_size + 3,
            "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 40,
            "pad_token_id": 0,
            "initializer_range": 0.3,
            "layer_norm_eps": 1e-12,
        }
        with torch.random.fork_rng():
            torch.manual_seed(11)
            backbone = model_class(config_class(**settings | changes), add_pooling_layer=False)
            # Biases and the scales of LayerNorm start at 0 and 1, which would hide a forgotten one.
            with torch.no_grad():
                for parameter in backbone.parameters():
                    if parameter.ndim == 1:
                        parameter.add_(0.2 * torch.randn_like(parameter))
            encoder = SentenceEncoder(backbone, tokenizer, pooling=pooling, name="toy")
            encoder.set_head(head)
        return encoder.eval()

    return make


@pytest.fixture
def make_pair_encoder(make_encoder):
    """``make_pair_encoder(family="bert", **config)``: a cross-encoder whose scores spread, in evaluation mode."""

    def make(*, family="bert", **changes):
        model = PairEncoder.from_encoder(make_encoder(family=family, **changes), max_length=MAX_LENGTH, seed=2)
        with torch.no_grad():
            model.network.get_parameter(
                "classifier.weight" if family == "bert" else "classifier.out_proj.weight"
            ).mul_(2)
        return model.eval()

    return make
