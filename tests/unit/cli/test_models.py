"""`embedkit models`: embedkit's own models and where they are."""

from __future__ import annotations

import json
from pathlib import Path

from embedkit.cli.main import main


def test_machines_get_paths_and_figures(capsys):
    assert main(["models", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert Path(rows["tiny"]["path"]).is_file()
    assert rows["tiny"]["size_bytes"] == Path(rows["tiny"]["path"]).stat().st_size


def test_an_unknown_name_is_answered_with_the_names(capsys):
    assert main(["models", "--fetch", "huge"]) == 1
    assert "embedkit has no model 'huge'; its models are tiny, " in capsys.readouterr().err
