import pytest

from embedkit.modeling.sizes import ARCHITECTURES


@pytest.mark.parametrize(
    ("name", "millions"),  # according to their model cards, without the pooler
    [("bert-tiny", 4.4), ("bert-mini", 11.1), ("bert-small", 28.5), ("minilm-l6", 22.6), ("bert-base", 108.9)],
)
def test_architectures_have_as_many_parameters_as_the_published_models(name, millions):
    size = ARCHITECTURES[name]
    layer = 4 * size.hidden * (size.hidden + 1) + 2 * size.hidden * size.feed_forward + 9 * size.hidden
    embeddings = (30522 + 512 + 2 + 2) * size.hidden
    assert (size.layers * layer + embeddings) / 1e6 == pytest.approx(millions, abs=0.1)
