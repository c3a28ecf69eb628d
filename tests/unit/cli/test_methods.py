"""`embedkit methods`: exactly the tables of methods and recipes."""

from __future__ import annotations

import json

import pytest

from embedkit.cli.main import main
from embedkit.config import to_mapping
from embedkit.training.methods import METHODS
from embedkit.training.recipes import RECIPES
from embedkit.training.run import resolve

TABLE = {**METHODS, **RECIPES}


@pytest.mark.parametrize("size", ["bert-tiny", "bert-mini", "bert-small"])
@pytest.mark.parametrize("name", TABLE)
def test_defaults_are_those_of_a_run(capsys, name, size):
    assert main(["methods", name, "--size", size, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out).values()
    mapping = {"method": name, "student": {"size": size}, "corpus": [{"path": "a"}], "teacher": {"source": "t"}}
    if name in ("sct", "contrastive"):  # with a teacher the one is another method, the other has another loss
        del mapping["teacher"]
    if name == "score-distillation":  # queries have no default
        mapping["settings"] = {"queries": [{"path": "q"}]}
    config = resolve(mapping)
    settings = json.loads(json.dumps(to_mapping(config.settings)))
    if name == "score-distillation":
        settings["queries"] = []
    assert defaults(found["settings"]) == settings
    for table in ("student", "optim", "dev"):
        assert all(getattr(getattr(config, table), key) == value for key, value in found[table].items())


def defaults(rows):
    return {
        key: row["default"] if "doc" in row else defaults(row)
        for key, row in rows.items()
        if "doc" not in row or row["default"] is not None
    }


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("sct", "2 views"),
        ("pcl", "1 view, 9 positives"),
        ("mse", "1 view, teacher"),
        ("distillcse", "1 view, teachers"),
        ("trans-encoder", "pairs"),
    ],
)
def test_requirements_are_printed(capsys, name, needs):
    assert main(["methods", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[name]["needs"] == needs


def test_a_typo_gets_a_suggestion(capsys):
    assert main(["methods", "sct-two-stages"]) == 1
    assert "did you mean 'sct-two-stage'?" in capsys.readouterr().err
