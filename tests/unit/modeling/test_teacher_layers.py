import copy

import numpy as np
import pytest
import torch

from embedkit.errors import ModelError
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.initialisation import Size, random
from embedkit.modeling.teacher_layers import (
    choose_layers,
    cross_from_layers,
    fit_affine,
    fit_scale,
    from_layers,
)
from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder
from embedkit.modeling.vocabulary import real_words


@pytest.fixture(scope="module")
def teacher(tokenizer):
    """Return four layers that change their input more than BERT's small random weights would."""
    encoder = random(tokenizer, Size(4, 32, 4, 48), max_length=16, seed=5).eval()
    with torch.no_grad():
        for name, parameter in encoder.backbone.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
            elif name.endswith("LayerNorm.weight"):
                parameter.mul_(torch.linspace(0.5, 2, len(parameter)))
    return encoder


@pytest.fixture(scope="module")
def words_of_texts(tokenizer):
    generator = np.random.default_rng(0)
    pieces = {number: piece for piece, number in _vocabulary(tokenizer).items()}
    words = [pieces[number] for number in real_words(tokenizer) if pieces[number].isalpha()]
    return [" ".join(generator.choice(words, generator.integers(2, 13))) for _ in range(300)]


def _vocabulary(tokenizer):
    import tokenizers

    return tokenizers.Tokenizer.from_str(tokenizer.json).get_vocab()


def likeness(student, teacher, texts):
    return float((TorchEncoder(student).encode(texts) * TorchEncoder(teacher).encode(texts)).sum(axis=1).mean())


@pytest.mark.parametrize(
    ("count", "depth", "chosen"),
    [(0, 6, ()), (1, 6, (6,)), (2, 6, (1, 6)), (3, 6, (1, 4, 6)), (6, 6, (1, 2, 3, 4, 5, 6))],
)
def test_layers_are_spread_and_end_with_the_last(count, depth, chosen):
    assert choose_layers(count, depth) == chosen


def test_all_layers_at_full_width_are_the_teacher(teacher, words_of_texts):
    student = from_layers(teacher, Size(4, 32, 4, 48), words_of_texts, max_length=16, seed=0)

    assert likeness(student, teacher, words_of_texts[:40]) > 0.999


def test_without_layers_the_words_are_the_teacher_s(teacher, words_of_texts):
    student = from_layers(teacher, Size(0, 32, 4, 48), words_of_texts, max_length=16, seed=0)

    own, theirs = student.eval().backbone.embeddings, teacher.backbone.embeddings
    ids = torch.arange(10)[None]
    torch.testing.assert_close(own(ids), theirs(ids), atol=1e-4, rtol=0)


def test_fewer_layers_start_closer_to_the_teacher_than_its_unchanged_layers(teacher, words_of_texts):
    size = Size(2, 32, 4, 48)
    student = from_layers(teacher, size, words_of_texts, layers=(1, 4), max_length=16, seed=0)
    plain = random(teacher.tokenizer, size, max_length=16, seed=0).eval()
    plain.backbone.embeddings.load_state_dict(teacher.backbone.embeddings.state_dict())
    for own, number in zip(plain.backbone.encoder.layer, (0, 3), strict=True):
        own.load_state_dict(teacher.backbone.encoder.layer[number].state_dict())

    assert likeness(student, teacher, words_of_texts[:60]) > likeness(plain, teacher, words_of_texts[:60]) + 0.01


def test_a_narrow_student_ranks_as_its_teacher_does(teacher, words_of_texts):
    student = from_layers(teacher, Size(2, 16, 2, 24), words_of_texts, max_length=16, seed=0)
    blind = random(teacher.tokenizer, Size(2, 16, 2, 24), max_length=16, seed=0)

    def agreement(encoder):
        own, theirs = (TorchEncoder(one).encode(words_of_texts[:60]) for one in (encoder, teacher))
        upper = np.triu_indices(60, k=1)
        return np.corrcoef((own @ own.T)[upper], (theirs @ theirs.T)[upper])[0, 1]

    assert student.config.num_attention_heads == 2
    assert agreement(student) > agreement(blind) + 0.2


def largest_activation(encoder, texts):
    seen = []
    block = encoder.backbone.encoder.layer[0].output.dense
    handle = block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].amax().item()))
    TorchEncoder(encoder).encode(texts)
    handle.remove()
    return max(seen)


def test_a_unit_with_extreme_activations_is_divided(teacher, words_of_texts):
    teacher = copy.deepcopy(teacher)
    block, size = teacher.backbone.encoder.layer[0], Size(4, 32, 4, 40)
    usual = largest_activation(from_layers(teacher, size, words_of_texts, max_length=16, seed=0), words_of_texts)
    with torch.no_grad():
        block.intermediate.dense.weight[7] *= 20
        block.output.dense.weight[:, 7] /= 10

    student = from_layers(teacher, size, words_of_texts, max_length=16, seed=0)

    assert largest_activation(teacher, words_of_texts) > 5 * usual
    assert largest_activation(student, words_of_texts) < 2.5 * usual
    assert likeness(student, teacher, words_of_texts[:40]) > 0.95


def test_the_same_seed_gives_the_same_student(teacher, words_of_texts):
    one, two, other = (
        from_layers(teacher, Size(1, 16, 2, 24), words_of_texts[:50], max_length=16, seed=seed).fingerprint()
        for seed in (0, 0, 1)
    )

    assert one == two != other


@pytest.mark.parametrize(
    ("size", "layers", "reason"),
    [
        (Size(5, 32, 4, 48), None, "5 layers cannot be cut from a teacher of 4"),
        (Size(2, 32, 4, 48), (4, 1), "ascending"),
        (Size(2, 32, 4, 48), (1, 5), "of a teacher's 4"),
        (Size(2, 64, 4, 48), None, "hidden = 64 exceeds the 32"),
        (Size(2, 32, 4, 96), None, "intermediate_size = 96 exceeds the 48"),
        (Size(2, 12, 4, 24), None, "not a multiple of the teacher's head width 8"),
    ],
)
def test_shapes_beyond_the_teacher_are_refused(teacher, size, layers, reason):
    with pytest.raises(ModelError, match=reason):
        from_layers(teacher, size, ["the cat"], layers=layers, max_length=16, seed=0)


def test_longer_texts_than_the_teacher_s_are_refused(teacher):
    with pytest.raises(ModelError, match="positions = 17"):
        from_layers(teacher, Size(1, 32, 4, 48), ["the cat"], max_length=16, positions=17, seed=0)


def test_no_text_is_an_error(teacher):
    with pytest.raises(ModelError, match="there are none"):
        from_layers(teacher, Size(1, 32, 4, 48), [], max_length=16, seed=0)


@pytest.fixture(scope="module")
def cross_teacher(teacher):
    """Return a cross-encoder on the teacher's layers, whose logits spread."""
    model = PairEncoder.from_encoder(teacher, max_length=16, seed=3).eval()
    with torch.no_grad():
        model.network.bert.embeddings.token_type_embeddings.weight.mul_(4)
        model.network.bert.pooler.dense.weight.mul_(10)
        model.network.classifier.weight.mul_(20)
    return model


@pytest.fixture(scope="module")
def pairs_of_texts(words_of_texts):
    return list(zip(words_of_texts, words_of_texts[::-1], strict=True))


def logits(model, pairs):
    return TorchCrossEncoder(model).logits(model.tokenizer.tokenize(pairs))


def test_all_layers_of_a_cross_encoder_score_as_it_does(cross_teacher, pairs_of_texts):
    student = cross_from_layers(cross_teacher, Size(4, 32, 4, 48), pairs_of_texts, max_length=16, seed=0)

    expected = logits(cross_teacher, pairs_of_texts)
    assert np.corrcoef(expected, logits(student, pairs_of_texts))[0, 1] > 0.99


@pytest.mark.parametrize("size", [Size(2, 32, 4, 48), Size(3, 24, 3, 32)])
def test_a_cut_cross_encoder_follows_its_teacher(cross_teacher, pairs_of_texts, size):
    student = cross_from_layers(cross_teacher, size, pairs_of_texts[:250], max_length=16, seed=0)

    expected, got = (logits(model, pairs_of_texts[250:]) for model in (cross_teacher, student))
    assert student.config.num_hidden_layers == size.layers
    assert np.corrcoef(expected, got)[0, 1] > 0.5
    assert student.max_length == 16


def test_an_affine_map_is_found_again():
    torch.manual_seed(0)
    inputs, weight, bias = torch.randn(200, 6) + 3, torch.randn(4, 6), torch.randn(4)

    found, shift = fit_affine(inputs, inputs @ weight.T + bias, ridge=1e-9)

    torch.testing.assert_close(found, weight, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(shift, bias, atol=1e-3, rtol=1e-3)


def test_equal_columns_share_the_weight():
    inputs = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)).repeat(1, 2)

    found, _ = fit_affine(inputs, inputs[:, :1])

    torch.testing.assert_close(found, torch.full((1, 2), 0.5), atol=1e-3, rtol=0)


def test_a_ridge_shrinks_weights_and_keeps_the_mean():
    torch.manual_seed(0)
    inputs, targets = torch.randn(50, 3), torch.randn(50, 2) + 5

    free, loose = fit_affine(inputs, targets, ridge=1e-9)[0], fit_affine(inputs, targets, ridge=100.0)

    assert loose[0].norm() < 0.1 * free.norm()
    torch.testing.assert_close((inputs @ loose[0].T + loose[1]).mean(dim=0), targets.mean(dim=0))


def test_a_column_that_never_changes_gets_no_scale():
    scale, shift = fit_scale(torch.full((5, 1), 2.0), torch.arange(5.0)[:, None])

    assert (scale.item(), shift.item()) == (0.0, 2.0)
