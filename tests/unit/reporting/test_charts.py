"""Charts: what they show, and when there is nothing to show."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from embedkit.reporting.contenders import Contender
from embedkit.reporting.quality_charts import Cost, _unbeaten, draw_quality
from embedkit.reporting.speed_charts import draw_latency, draw_throughput

CONTENDERS = [
    Contender(label="tiny int8", name="tiny", precision="int8", quality=74.0),
    Contender(label="teacher fp32", name="teacher", precision="fp32", quality=79.0),
    Contender(label="bert-base fp32", name="bert-base", precision="fp32"),
]
COST = Cost("latency", "milliseconds", {"tiny int8": 0.3, "teacher fp32": 9.0, "bert-base fp32": 50.0})


def texts_of(svg):
    root = ET.fromstring(svg)  # also inside a frame
    return ["".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_quality_names_every_contender_and_its_axes():
    found = texts_of(draw_quality(CONTENDERS, [COST], quality="STS mean"))
    assert {
        "tiny int8",
        "teacher fp32",
        "bert-base fp32",
        "STS mean",
        "milliseconds, log scale",
        "latency",
    } <= set(found)


def test_quality_has_a_drawing_for_each_cost_that_is_known():
    size = Cost("size", "megabytes", {"tiny int8": 5.0})
    found = texts_of(draw_quality(CONTENDERS, [COST, size, Cost("none", "", {})], quality="STS mean"))
    assert found.count("tiny int8") == 2
    assert found.count("teacher fp32") == 1
    assert "none" not in found


def test_without_quality_there_is_no_chart_of_it():
    assert draw_quality(CONTENDERS[2:], [COST], quality="STS mean") == ""
    assert draw_quality(CONTENDERS, [Cost("size", "MB", {"bert-base fp32": 1.0})], quality="STS mean") == ""


def test_one_contender_alone_is_drawn():
    ET.fromstring(draw_quality(CONTENDERS[:1], [Cost("size", "MB", {"tiny int8": 1.0})], quality="STS mean"))


def test_the_frontier_holds_what_no_other_beats():
    assert _unbeaten([(1.0, 70.0), (2.0, 69.0), (3.0, 75.0), (3.0, 74.0)]) == [(1.0, 70.0), (3.0, 75.0)]


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
