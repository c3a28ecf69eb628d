import pytest

from embedkit.modeling.sizes import ARCHITECTURES, SIZES


@pytest.mark.parametrize(("name", "shape"), [("tiny", (2, 128, 2)), ("mini", (4, 256, 4)), ("small", (4, 512, 8))])
def test_sizes_are_those_of_the_published_models(name, shape):
    size = SIZES[name]

    assert (size.layers, size.hidden, size.heads) == shape
    assert size.feed_forward == 4 * size.hidden
    assert size.hidden % size.heads == 0


@pytest.mark.parametrize(
    ("name", "millions"),  # according to their model cards, without the pooler
    [("bert-tiny", 4.4), ("bert-mini", 11.1), ("bert-small", 28.5), ("minilm-l6", 22.6), ("bert-base", 108.9)],
)
def test_architectures_have_as_many_parameters_as_the_published_models(name, millions):
    size = ARCHITECTURES[name]
    layer = 4 * size.hidden * (size.hidden + 1) + 2 * size.hidden * size.feed_forward + 9 * size.hidden
    embeddings = (30522 + 512 + 2 + 2) * size.hidden
    assert (size.layers * layer + embeddings) / 1e6 == pytest.approx(millions, abs=0.1)


def test_bert_large():
    size = ARCHITECTURES["bert-large"]
    assert (size.layers, size.hidden, size.heads) == (24, 1024, 16)
