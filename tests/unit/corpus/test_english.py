"""The corpus from the hub: read from small sets, split, cleaned of evaluation sets, and trained on."""

from __future__ import annotations

import importlib.util
import lzma
import sys
import types
from pathlib import Path

import pytest

from embedkit.config import load_toml
from embedkit.training.corpus import Corpus, SourceConfig

SCRIPT = Path(__file__).parents[3] / "examples" / "corpus" / "english.py"
ARTICLE = (
    "Bees are insects that live in large colonies. They make honey from the nectar of many flowers!\nShort one. "
    "A colony in summer has some forty thousand bees, most of which are workers that never lay an egg."
)
ROWS = {
    "wikimedia/wikipedia": [{"text": ARTICLE}, {"text": " ".join([ARTICLE] * 6)}],
    "google-research-datasets/nq_open": [
        {"question": "where do bees live in winter", "answer": ["a hive"]},
        {"question": "where do  bees live in winter", "answer": ["a hive"]},
        {"question": "what does a bee eat", "answer": ["nectar"]},
    ],
    "gfissore/arxiv-abstracts-2021": [{"title": "On bees", "abstract": "We study bees in the field for a year."}],
}


@pytest.fixture(scope="module")
def english():
    spec = importlib.util.spec_from_file_location("english_corpus", SCRIPT)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def hub(monkeypatch):
    """Return the requests made to the hub, which has three sets."""
    asked = []

    def load_dataset(repository, *configuration, split, streaming):
        asked.append((repository, *configuration))
        assert (split, streaming) == ("train", True)
        if repository not in ROWS:
            raise FileNotFoundError(repository)
        return iter(ROWS[repository])

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return asked


def some(english, *names):
    return {name: english.SOURCES[name] for name in names}


def read(folder, name):
    with lzma.open(folder / "train" / f"{name}.txt.xz", "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def test_the_recipe_names_files_that_train_can_read(english, hub, tmp_path):
    sources = some(english, "wikipedia", "nq-open", "arxiv-abstracts")
    recipe = english.assemble(tmp_path, english.Excluded([]), sources=sources, show_progress=False)

    corpus = load_toml(recipe)["corpus"]
    assert [entry["path"] for entry in corpus] == [f"train/{name}.txt.xz" for name in sources]
    assert corpus[1] == {"path": "train/nq-open.txt.xz", "licence": "CC BY-SA 3.0", "repeat": 2}
    found = Corpus.prepare(
        [SourceConfig(**{**entry, "path": str(tmp_path / entry["path"])}) for entry in corpus],
        tmp_path,
        show_progress=False,
    )
    assert len(found) == 3 + 2 + 1
    assert hub[0] == ("wikimedia/wikipedia", "20231101.en")


@pytest.mark.usefixtures("hub")
def test_texts_of_evaluation_sets_are_dropped(english, tmp_path):
    (tmp_path / "test.jsonl").write_text('{"query": "Where do bees live in winter", "positive": ["x"]}\n')
    (tmp_path / "other.txt").write_text(
        "It is said that a colony in summer has some forty thousand bees, most of them small.\n"
    )
    excluded = english.Excluded([tmp_path / "test.jsonl", tmp_path / "other.txt"])
    english.assemble(tmp_path, excluded, sources=some(english, "wikipedia", "nq-open"), show_progress=False)
    assert read(tmp_path, "nq-open") == ["what does a bee eat"]
    assert not any("forty thousand" in text for text in read(tmp_path, "wikipedia"))
