import json

import pytest

from embedkit.errors import ModelError
from embedkit.export.card import Card, read_card

FACTS = {
    "name": "tiny-sct",
    "method": "sct-distillation",
    "base": "tiny, started from teacher",
    "teacher": {"name": "all-MiniLM-L6-v2", "fingerprint": "ab" * 32},
    "corpus": [{"name": "wiki", "rows": 3, "sha256": "cd" * 32, "licence": "CC-BY-SA-4.0"}],
    "dev": "/home/someone/data/sts-dev.csv",
    "metrics": {"dev_spearman": 0.81, "steps": 100},
}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(FACTS))
    (tmp_path / "config.toml").write_text(
        'method = "sct-distillation"\ndata = "/home/someone/data"\ncache = ".cache"\n'
        '[teacher]\nsource = "/home/someone/models/minilm"\n[[corpus]]\npath = "text/wiki.txt"\n'
    )
    (tmp_path / "model").mkdir()
    return tmp_path


def test_a_run_s_card_is_read(run):
    card = read_card(str(run), licence="Apache-2.0")

    assert (card.name, card.method, card.base) == ("tiny-sct", "sct-distillation", "tiny, started from teacher")
    assert (card.teacher, card.corpus, card.licence) == (FACTS["teacher"], FACTS["corpus"], "Apache-2.0")


def test_a_bundle_holds_no_facts_about_the_machine(run):
    card = read_card(str(run))

    assert card.config == {
        "method": "sct-distillation",
        "teacher": {"source": "minilm"},
        "corpus": [{"path": "text/wiki.txt"}],
    }
    assert card.metrics == {"dev": "sts-dev.csv", "dev_spearman": 0.81, "steps": 100}


def test_anything_else_has_an_empty_card(tmp_path):
    assert read_card(str(tmp_path)) == Card()
    assert read_card("org/model", licence="MIT") == Card(licence="MIT")


@pytest.mark.parametrize("content", ['{"cut', "[1, 2]"])
def test_a_damaged_card_is_named(run, content):
    (run / "run.json").write_text(content)

    with pytest.raises(ModelError, match=r"run\.json"):
        read_card(str(run))


def test_a_cross_model_beside_the_model_has_a_name_and_figures_of_its_own(tmp_path):
    facts = {"name": "tenc", "method": "trans-encoder", "metrics": {"steps": 1}}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    (tmp_path / "cross-model.json").write_text(json.dumps({"steps": 2}))
    (tmp_path / "cross-model").mkdir()

    card = read_card(str(tmp_path / "cross-model"))

    assert (card.name, card.method, card.metrics) == ("tenc-cross", "trans-encoder", {"steps": 2})
