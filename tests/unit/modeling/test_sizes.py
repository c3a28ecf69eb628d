import pytest

from embedkit.modeling.sizes import SIZES


@pytest.mark.parametrize(("name", "shape"), [("tiny", (2, 128, 2)), ("mini", (4, 256, 4)), ("small", (4, 512, 8))])
def test_sizes_are_those_of_the_published_models(name, shape):
    size = SIZES[name]

    assert (size.layers, size.hidden, size.heads) == shape
    assert size.feed_forward == 4 * size.hidden
    assert size.hidden % size.heads == 0
