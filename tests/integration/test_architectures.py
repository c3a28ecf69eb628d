"""The table of architectures says what each look-alike really does."""

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "architectures" / "run.py"
RUN = runpy.run_path(str(SCRIPT))


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("title", RUN["LOOK_ALIKES"])
def test_a_look_alike_does_what_the_table_says(title, tmp_path):
    table = SCRIPT.with_name("results.md").read_text(encoding="utf-8").splitlines()
    (row,) = (line for line in table if line.startswith(f"| {title} |"))
    RUN["build"](tmp_path / "model", RUN["LOOK_ALIKES"][title])

    found = [cell for _, cell in RUN["measure"](tmp_path / "model", RUN["LOOK_ALIKES"][title])]

    assert ["no" if cell.startswith("no: ") else cell for cell in found] == [
        cell.strip() for cell in row.split("|")[2:-1]
    ]
