"""A speed report as text."""

from __future__ import annotations

import dataclasses

import pytest

from embedkit.evaluation.speed.figures import to_text

FAST = {("8 words", 1): 0.0005, ("8 words", 32): 0.004, ("24 words", 1): 0.001}
SLOW = {("8 words", 1): 0.025, ("24 words", 1): 4.0}


@pytest.fixture
def report(make_model, make_report):
    models = [make_model("tiny", FAST), make_model("huge", SLOW, note="random weights", memory_bytes=None)]
    return make_report(models, notes=["huge: left out"])


def rows(text, title):
    section = text[text.index(title) :].split("\n\n")[0]
    return [line.split() for line in section.splitlines()[1:]]


def test_latency(report):
    _, *found = rows(to_text(report), "One text, ms")
    assert found[0] == ["tiny", "8", "words", "0.500", "0.500", "0.500", "0", "%", "100"]
    assert found[1][:5] == ["huge", "8", "words", "25.0", "25.0"]
    assert [row[0] for row in found] == ["tiny", "huge", "tiny", "huge"]


def test_skipped_cells_of_throughput_are_empty(report):
    header, *found = rows(to_text(report), "Many texts")
    assert header[-4:] == ["batch", "1", "batch", "32"]
    assert found[0] == ["tiny", "8", "words", "2,000", "8,000"]
    assert found[3] == ["huge", "24", "words", "0.25"]


def test_the_costs_of_a_model(report):
    _, tiny, huge = rows(to_text(report), "Resource use")
    assert tiny[3:] == ["4.9", "91.5", "103.2", "0.300", "0.200", "0.050", "0.050"]
    assert huge[3:5] == ["4.9", "unknown"]


def test_the_report_states_what_figures_depend_on(report):
    text = to_text(report)
    assert "huge: random weights" in text
    assert "huge: left out" in text
    assert "tiny, huge: texts are truncated to 128 tokens" in text
    machine = "Fast CPU, 2 of 4 processors, avx2, 8 GiB; Linux x86_64; load 0.1 before, 0.9 after"
    assert machine in text


def test_lengths_that_differ_are_reported_for_each_model(make_model, make_report):
    models = [make_model("tiny", FAST), make_model("huge", SLOW)]
    models[1] = dataclasses.replace(models[1], about={**models[1].about, "max_length": 512})
    assert "huge: texts are truncated to 512 tokens" in to_text(make_report(models))
