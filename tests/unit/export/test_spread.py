"""Changes of an encoder's embeddings by its head: whitening, and another space of its teachers."""

import dataclasses

import numpy as np
import pytest
import torch

from embedkit.errors import ExportError
from embedkit.export.card import Card
from embedkit.export.pipeline import export
from embedkit.export.spread import spread_embeddings
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.joined import JoinedSpace

WORDS = ["the", "a", "cat", "dog", "house", "sea", "walks", "sleeps", "to", "not", "far", "bees", "find", "tea"]
_DRAWN = np.random.default_rng(3)
TEXTS = [" ".join(_DRAWN.choice(WORDS, _DRAWN.integers(2, 12))) for _ in range(300)]


def outputs(encoder):
    """Embeddings before they are scaled to unit length, one text at a time."""
    rows = encoder.tokenizer.tokenize(TEXTS).ids
    with torch.inference_mode():
        values = [
            encoder(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.long))[0].numpy() for row in rows
        ]
    return np.array(values, dtype=np.float64)


def axes_and_variances(values):
    variances, axes = np.linalg.eigh(np.cov(values, rowvar=False, bias=True))
    return axes, variances


@pytest.mark.parametrize("head", [None, (8, "linear"), (8, "tanh")], ids=["no head", "linear", "tanh"])
@pytest.mark.parametrize("spread", [0.0, 0.4, 1.0])
def test_components_vary_by_a_power_of_what_they_did(make_encoder, head, spread):
    encoder = make_encoder()
    if head is not None:
        torch.manual_seed(0)
        encoder.set_head(*head)
    before = outputs(encoder)

    after = outputs(spread_embeddings(encoder, TEXTS, spread))

    axes, variances = axes_and_variances(before)
    varied = ((after - after.mean(axis=0)) @ axes).var(axis=0)
    assert np.abs(after.mean(axis=0)).max() < 1e-4 * after.std()
    kept = variances > 1e-5 * variances.mean()  # LayerNorm leaves one direction without any
    ratio = varied[kept] / variances[kept] ** (1 - spread)
    np.testing.assert_allclose(ratio, ratio.mean(), rtol=5e-3)
    np.testing.assert_array_equal(outputs(encoder), before)


def test_the_copy_shares_all_weights_but_those_of_its_head(make_encoder):
    encoder = make_encoder(head=6)

    spreading = spread_embeddings(encoder, TEXTS, 0.4)

    own = {name: parameter.data_ptr() for name, parameter in encoder.named_parameters()}
    others = {name: parameter.data_ptr() for name, parameter in spreading.named_parameters()}
    assert {name for name in own if own[name] != others[name]} == {"head.linear.weight", "head.linear.bias"}


def test_fewer_texts_than_dimensions_are_an_error(make_encoder):
    with pytest.raises(ExportError, match=r"at least as many calibration texts as dimensions, 32, not 31"):
        spread_embeddings(make_encoder(), TEXTS[:31], 0.4)


def test_a_bundle_gives_the_spread_embeddings_and_records_it(make_encoder, tmp_path):
    encoder = make_encoder(head=8)
    encoder.prompts = {"query": "find "}
    card = Card(teacher={"name": "large", "fingerprint": "f" * 64})

    report = export(encoder, tmp_path / "spread.onnx", precision="fp32", calibration=TEXTS, spread=0.4, card=card)

    read_ways = [*TEXTS, *("find " + text for text in TEXTS)]
    expected = TorchEncoder(spread_embeddings(encoder, read_ways, 0.4)).encode(TEXTS)
    np.testing.assert_allclose(Encoder.load(report.path).encode(TEXTS), expected, atol=1e-5)
    assert np.abs(expected - TorchEncoder(encoder).encode(TEXTS)).max() > 0.1
    assert report.manifest.teacher == {"name": "large", "fingerprint": "f" * 64, "spread": 0.4}


@pytest.fixture
def spaces(tmp_path):
    """Two spaces of the same teachers, as files, and the card of a student in the first."""
    generator = np.random.default_rng(0)
    means = tuple(generator.standard_normal(width).astype(np.float32) for width in (5, 6))
    axes = np.linalg.qr(generator.standard_normal((11, 8)))[0].astype(np.float32)
    old = JoinedSpace(name="one + two", means=means, weights=np.array([1.4, 1.0], dtype=np.float32), axes=axes)
    new = old.spread(generator.standard_normal((50, 8)).astype(np.float32) * np.geomspace(1, 9, 8), 0.5)
    parts = [letter * 64 for letter in "ab"]
    joined = {"teachers": [{"name": name, "fingerprint": part} for name, part in zip("ab", parts, strict=True)]}
    card = Card(teacher={"name": old.name, "fingerprint": old.fingerprint(parts), "joined": joined})
    paths = tmp_path / "old.npz", tmp_path / "new.npz"
    for space, path in zip((old, new), paths, strict=True):
        space.save(path)
    return paths, card, new.fingerprint(parts)


@pytest.mark.parametrize("of_a_student", [False, True])
def test_students_of_joined_teachers_change_their_space(make_encoder, spaces, tmp_path, of_a_student):
    encoder = make_encoder(head=8)
    (old, new), card, fingerprint = spaces
    expected_teacher = {**card.teacher, "fingerprint": fingerprint}
    if of_a_student:
        student = {"name": "student", "fingerprint": "c" * 64}
        card = Card(teacher={**student, "teacher": card.teacher})
        expected_teacher = {**student, "teacher": expected_teacher}

    report = export(encoder, tmp_path / "changed.onnx", precision="fp32", card=card, space=(old, new))

    rows = TorchEncoder(encoder).encode(TEXTS)
    expected = rows @ JoinedSpace.load(old).change_to(JoinedSpace.load(new))
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(Encoder.load(report.path).encode(TEXTS), expected, atol=1e-5)
    assert np.abs(expected - rows).max() > 0.1
    assert report.manifest.teacher == expected_teacher


def test_only_a_student_in_the_first_space_changes_to_the_second(make_encoder, spaces, tmp_path):
    (old, new), card, _ = spaces
    other = dataclasses.replace(JoinedSpace.load(new), weights=np.ones(2, dtype=np.float32))
    other.save(tmp_path / "other.npz")
    for known, space, message in [
        (card, (new, old), "the first space is not that of the model's teachers"),
        (Card(teacher={"name": "large", "fingerprint": "f" * 64}), (old, new), "the first space is not that of"),
        (Card(), (old, new), "the first space is not that of the model's teachers"),
        (card, (old, tmp_path / "other.npz"), "cannot change its space: .*other means or weights"),
    ]:
        with pytest.raises(ExportError, match=message) as caught:
            export(make_encoder(head=8), tmp_path / "x.onnx", precision="fp32", card=known, space=space)
        assert caught.value.parameters == ("space",)
    assert not (tmp_path / "x.onnx").exists()


@pytest.mark.parametrize("options", [{"calibration": TEXTS, "spread": 0.4}, {"space": ("a", "b")}])
def test_a_cross_encoder_has_no_embeddings_to_change(make_pair_encoder, tmp_path, options):
    with pytest.raises(ExportError, match="a cross-encoder has none"):
        export(make_pair_encoder(), tmp_path / "x.onnx", precision="fp32", **options)
    assert not (tmp_path / "x.onnx").exists()
