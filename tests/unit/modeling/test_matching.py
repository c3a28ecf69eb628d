"""Cross-encoders that begin with attention between equal words."""

import copy

import numpy as np
import pytest
import torch

from embedkit.errors import ModelError
from embedkit.modeling.cross_encoder import matching_encoder
from embedkit.modeling.initialisation import Size, random
from embedkit.modeling.torch_encoder import TorchCrossEncoder

QUERY, PASSAGE = "where is the blue train", "my sister and a train to the blue sea"
PAIRS = [(QUERY, PASSAGE), ("the cat is asleep", "a good dog"), ("music", "the sea")]


def attention(model, query, passage):
    """Return the first layer's attention, averaged over heads, and the tokens' ids and segments."""
    tokens = model.tokenizer.tokenize([(query, passage)])
    batch = tokens.batch(np.array([0]), model.tokenizer.pad_id)
    model.network.set_attn_implementation("eager")
    inputs = {"input_ids": batch.input_ids, "token_type_ids": batch.token_type_ids}
    with torch.inference_mode():
        found = model.network.bert(
            **{name: torch.from_numpy(values) for name, values in inputs.items()}, output_attentions=True
        )
    return found.attentions[0][0].mean(dim=0), batch.input_ids[0], batch.token_type_ids[0]


def test_words_attend_to_their_equals_in_the_other_text(tokenizer):
    encoder = random(tokenizer, Size(2, 128, 2), max_length=32, seed=0)
    with torch.no_grad():  # as in trained encoders, words count for more than their positions
        encoder.backbone.embeddings.word_embeddings.weight.mul_(5.0)
    model = matching_encoder(encoder, max_length=32, seed=1).eval()

    seen, ids, segments = attention(model, QUERY, PASSAGE)

    shared = set(ids[segments == 0]) & set(ids[segments == 1]) - {ids[0], ids[-1]}  # not [CLS] and [SEP]
    assert len(shared) == 3
    for word in shared:
        (row,) = np.flatnonzero((ids == word) & (segments == 0))
        assert ids[int(seen[row].argmax())] == word
        assert segments[int(seen[row].argmax())] == 1


def test_layers_and_words_are_the_encoder_s(make_encoder):
    encoder = make_encoder()
    before = copy.deepcopy(encoder.state_dict())
    model = matching_encoder(encoder, max_length=16, seed=1)

    body = model.network.bert
    assert len(body.encoder.layer) == 3
    torch.testing.assert_close(
        body.embeddings.word_embeddings.weight, encoder.backbone.embeddings.word_embeddings.weight
    )
    for own, theirs in zip(body.encoder.layer[1:], encoder.backbone.encoder.layer, strict=True):
        torch.testing.assert_close(own.state_dict(), theirs.state_dict())
    torch.testing.assert_close(encoder.state_dict(), before)


def test_logits_begin_near_their_mean_and_depend_on_the_seed_alone(make_encoder):
    models = [
        matching_encoder(make_encoder(), mean=-7.0, spread=0.01, max_length=16, seed=seed) for seed in (1, 1, 2)
    ]
    one, again, other = (TorchCrossEncoder(model).logits(model.tokenizer.tokenize(PAIRS)) for model in models)
    np.testing.assert_allclose(one, -7.0, atol=0.1)
    np.testing.assert_array_equal(one, again)
    assert (one != other).all()


def test_other_architectures_are_refused(make_encoder):
    encoder = make_encoder()
    encoder.backbone.config.position_embedding_type = "relative_key"
    with pytest.raises(
        ModelError, match=r"encoders of type 'bert' with absolute positions; .* with relative_key ones"
    ):
        matching_encoder(encoder, max_length=16, seed=1)
