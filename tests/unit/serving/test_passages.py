"""Passages that match a query: what they hold, and where they begin and end."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.serving.retrieval.passages import find_passage

PAGE = Path(__file__).parents[3] / "embedkit" / "serving" / "http" / "page"
TEXT = "One line of words.\n" * 20 + "Bees dance for flowers. They fly home.\n" + "Other lines follow here.\n" * 20


def test_it_holds_the_words_of_the_query_in_whole_sentences():
    start, end = find_passage(TEXT, "do bees dance?", 60)
    assert TEXT[start:end] == "One line of words.\nBees dance for flowers. They fly home."
    assert find_passage(TEXT, "nothing of this", 40) == (0, 37)
    assert find_passage("short", "short") == (0, 5)


def test_most_different_words_decide():
    text = "home home home home. " + "x " * 200 + "bees fly home. " + "y " * 200
    start, end = find_passage(text, "bees home", 80)
    assert "bees fly home" in text[start:end]


@given(st.text(alphabet="ab. \n", max_size=200), st.text(alphabet="ab ", max_size=9), st.integers(1, 60))
def test_it_is_a_part_of_the_text_no_longer_than_allowed(text, query, most):
    start, end = find_passage(text, query, most)
    assert 0 <= start <= end <= len(text)
    assert end - start <= most
    assert end > start or not text


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_page_shows_the_same_passages(tmp_path):
    source = (PAGE / "highlight.js").read_text(encoding="utf-8").replace('import { make } from "./page.js";', "")
    cases = [[TEXT, query, most] for query in ("do bees dance?", "lines", "nothing") for most in (30, 60, 240)]
    script = f"console.log(JSON.stringify({json.dumps(cases)}.map((one) => findPassage(...one))));"
    (tmp_path / "run.mjs").write_text(source + script, encoding="utf-8")
    done = subprocess.run(["node", tmp_path / "run.mjs"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [list(find_passage(*case)) for case in cases]
