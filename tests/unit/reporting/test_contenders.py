"""A model looks the same in every chart."""

from __future__ import annotations

from embedkit.reporting.contenders import Contender, looks
from embedkit.reporting.drawing import HUES


def contender(name, precision):
    return Contender(label=f"{name} {precision}", name=name, precision=precision)


def test_precisions_of_a_model_share_a_hue_and_differ_in_form():
    found = looks([contender("a", "fp32"), contender("b", "int8"), contender("a", "int8-static")])
    assert found["a fp32"].hue == found["a int8-static"].hue != found["b int8"].hue
    assert [found[label].filled for label in ("a fp32", "a int8-static")] == [False, True]
    assert found["a fp32"].line != found["a int8-static"].line


def test_torch_has_a_form_of_its_own():
    found = looks([contender("a", "fp32"), contender("a", "fp32 (torch)")])
    assert found["a fp32"].marker != found["a fp32 (torch)"].marker


def test_more_models_than_hues_share_the_last():
    found = looks([contender(str(number), "fp32") for number in range(len(HUES) + 2)])
    assert [look.hue for look in found.values()] == [*HUES, HUES[-1], HUES[-1]]
