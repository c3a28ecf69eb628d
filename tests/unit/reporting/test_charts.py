"""Charts: what they show, and when there is nothing to show."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from embedkit.reporting.page import HUES
from embedkit.reporting.speed_page import draw_latency, draw_throughput, legend


def texts_of(svg):
    root = ET.fromstring(svg)  # also inside a frame
    return ["".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_precisions_of_a_model_share_a_hue_and_differ_in_form(make_speed):
    marks = re.findall(
        r"<li><svg.*?><(\w+).*? fill=\"(.*?)\" stroke=\"(.*?)\".*?</svg>(.*?)</li>",
        legend(make_speed({"a fp32": 0.1, "b int8": 0.1, "a int8": 0.1, "a fp32 (torch)": 0.1})),
    )
    form = {label: (shape, fill != "none") for shape, fill, _, label in marks}
    hue = {label: stroke for _, _, stroke, label in marks}
    assert hue["a fp32"] == hue["a int8"] == hue["a fp32 (torch)"] != hue["b int8"]
    assert form["a int8"] == form["b int8"]
    assert len({form["a fp32"], form["a int8"], form["a fp32 (torch)"]}) == 3


def test_more_models_than_hues_share_the_last(make_speed):
    text = legend(make_speed({f"{number} fp32": 0.1 for number in range(len(HUES) + 2)}))
    assert text.count(f'stroke="var(--{HUES[-1]})"') == 3


def test_latency_has_a_row_for_each_model_and_a_figure_in_each_row(make_speed):
    found = texts_of(draw_latency(make_speed({"tiny int8": 0.00024, "teacher fp32": 0.0024, "huge fp32": 0.24})))
    assert found.count("tiny int8") == 1
    assert {"0.08", "0.24", "0.72", "2.4", "240"} <= set(found)
    assert "one text of 72 words" in found


def test_throughput_has_a_chart_for_each_length(make_speed):
    found = texts_of(draw_throughput(make_speed({"tiny int8": 0.001})))
    assert [text for text in found if text.startswith("texts of") and "words" in text] == [
        f"texts of {words} words, per second" for words in (8, 24, 72)
    ]
    assert "32" in found
