"""Options that several commands have."""

from __future__ import annotations

import pytest

from embedkit.cli.main import main


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["cluster", "gone.txt", "--max-pairs", "9"], "--max-pairs: no effect without --pairs"),
        (["cluster", "gone.txt", "--pairs", "--min-size", "2"], "--min-size: no effect with --pairs"),
        (
            ["mcp", "gone", "--port", "81", "--api-key-file", "k"],
            "--port, --api-key-file: no effect without --http",
        ),
        (
            ["push", "gone", "me/it", "--save", "place", "--private", "--message", "new"],
            "--private, --message: no effect with --save",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_flags_without_effect_are_refused_before_any_work(command, message, capsys):
    assert main(command) == 1
    assert capsys.readouterr().err == f"error: {message}\n"
