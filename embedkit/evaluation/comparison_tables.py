"""Tables of a comparison, with figures times 100."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from embedkit.evaluation.comparison import Certainty, Comparison, Spread
from embedkit.evaluation.significance import LEVEL, SEED, Interval

__all__ = ["comparison_tables"]

Table = list[list[str]]

_ENOUGH_ROWS = 30
"""The bootstrap treats the rows as the population; with fewer rows than this, its intervals mean little."""


def comparison_tables(comparison: Comparison | None) -> Iterator[tuple[str, Table]]:
    """Yield a title and a table, starting with its header, for each kind of comparison."""
    if comparison is None:
        return
    if comparison.certainties:
        how = f"{LEVEL:.0%} intervals over {comparison.samples:,} samples of the rows, seed {SEED}"
        yield how, _by_model(comparison.certainties, _interval_cell)
    different = [each for each in comparison.certainties if each.difference is not None]
    if different:
        yield (
            f"Difference from {comparison.certainties[0].model}, over the same samples",
            _by_model(different, _difference_cell),
        )
    if comparison.spreads:
        yield "Over seeds: mean, standard deviation and range", _spread_table(comparison.spreads)


def _by_model(certainties: list[Certainty], cell: Callable[[Certainty], str]) -> Table:
    """Return a table with a row for each set and a column for each model."""
    models = list(dict.fromkeys((each.model, each.fingerprint) for each in certainties))
    rows: dict[tuple[str, str], list[str]] = {}
    for each in certainties:
        few = f", {each.rows} rows: too few to be meaningful" if each.rows < _ENOUGH_ROWS else ""
        row = rows.setdefault((_set(each) + few, each.measure), [""] * len(models))
        row[models.index((each.model, each.fingerprint))] = cell(each)
    return [["set", "measure", *(model for model, _ in models)], *([*key, *row] for key, row in rows.items())]


def _interval_cell(certainty: Certainty) -> str:
    return f"{_percent(certainty.value)} {_brackets(certainty.interval, sign='')}"


def _difference_cell(certainty: Certainty) -> str:
    found = certainty.difference
    if found is None or found.value is None:
        return "undefined"
    p_value = "" if found.p_value is None else f" p = {found.p_value:.3f}"
    return f"{100 * found.value:+.2f} {_brackets(found.interval, sign='+')}{p_value}"


def _brackets(interval: Interval, *, sign: str) -> str:
    if interval.low is None or interval.high is None:
        return "[undefined]"
    return f"[{100 * interval.low:{sign}.2f}, {100 * interval.high:{sign}.2f}]"


def _spread_table(spreads: list[Spread]) -> Table:
    header = ["set", "measure", "models", "seeds", "mean", "deviation", "lowest", "highest"]
    return [
        header,
        *(
            [
                _set(each),
                each.measure,
                each.group,
                str(len(each.values)),
                *(_percent(value) for value in (each.mean, each.deviation, min(each.values), max(each.values))),
            ]
            for each in spreads
        ),
    ]


def _set(each: Certainty | Spread) -> str:
    return f"{each.set_name} ({each.convention})" if each.convention else each.set_name


def _percent(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.2f}"
