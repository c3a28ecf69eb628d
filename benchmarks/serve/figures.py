"""Statistics of the measurements of run.py, and the results files."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Runs = dict[tuple[str, int], dict[float, list[dict[str, Any]]]]
"""Server, texts per request -> offered rate, 0 for closed-loop clients -> results of load.py in each turn."""

LADDER = (0.3, 0.6, 0.75, 0.9, 1.0)  # offered rates, relative to the throughput of 64 closed-loop clients
OVERLOAD = 2.0
COMPARED = "infinity fp32"
_PERCENTILES = ("p50_ms", "p95_ms", "p99_ms")


@dataclass(frozen=True)
class Plan:
    """Extent of the measurements.

    Attributes:
        threads: threads of a server.
        per_request: texts per request.
        turns: turns of each server.
        seconds: duration of a measurement.
        bound_ms: upper bound for p95.
    """

    threads: int
    per_request: tuple[int, ...]
    turns: int
    seconds: float
    bound_ms: float

    def ladder(self, rate: float) -> list[float]:
        """Return the offered rates, the last being overload, for a server with a given closed-loop throughput."""
        return [round(share * rate, 1) for share in (*LADDER, OVERLOAD)]

    def describe(self) -> dict[str, Any]:
        """Describe the plan for readers."""
        return {
            "threads": self.threads,
            "turns": self.turns,
            "seconds of a measurement": self.seconds,
            "bound of p95 in ms": self.bound_ms,
        }


def highest(runs: Runs, plan: Plan) -> list[dict[str, Any]]:
    """Return the highest sustainable rate of each server, and its ratio to the others."""
    kept = {
        key: [_highest(rates, turn, plan.bound_ms) for turn in range(plan.turns)] for key, rates in runs.items()
    }
    rows = []
    for (server, size), found in kept.items():
        row = {
            "server": server,
            "texts_per_request": size,
            "requests_per_s": statistics.median(found),
            "lowest": min(found),
            "highest": max(found),
            "top_of_ladder": sorted(runs[server, size])[-2],
            "times_infinity": None,
        }
        others = kept.get((COMPARED, size), [])
        if others and min(others):
            row["times_infinity"] = round(
                statistics.median(mine / other for mine, other in zip(found, others, strict=True)), 2
            )
        rows.append(row)
    return rows


def _highest(rates: dict[float, list[dict[str, Any]]], turn: int, bound_ms: float) -> float:
    """Return a turn's highest offered rate without losses and with p95 below the bound; 0 if there is none."""
    return max((rate for rate, found in rates.items() if rate and _is_kept(found[turn], bound_ms)), default=0.0)


def _is_kept(found: dict[str, Any], bound_ms: float) -> bool:
    return not found["refused"] and not found["failed"] and (found["p95_ms"] or 0) <= bound_ms


def summarise(runs: Runs) -> list[dict[str, Any]]:
    """Return a row for each server, texts per request and load."""
    return [
        {
            "server": server,
            "texts_per_request": size,
            "load": _name(rate, last=rate == max(rates)),
            **_figures(found),
        }
        for (server, size), rates in runs.items()
        for rate, found in rates.items()
    ]


def _name(rate: float, *, last: bool) -> str:
    if not rate:
        return "64 clients"
    return f"{rate:g} a second" + (", overload" if last else "")


def _figures(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over turns, the spread of p95, and the share of rejected requests."""
    medians = {name: _median(turn[name] for turn in turns) for name in ("answered_per_s", *_PERCENTILES)}
    slowest = [turn["p95_ms"] for turn in turns if turn["p95_ms"] is not None]
    return {
        **medians,
        "p95_from_ms": min(slowest, default=None),
        "p95_to_ms": max(slowest, default=None),
        "refused_percent": round(100 * sum(t["refused"] for t in turns) / sum(t["sent"] for t in turns), 1),
        "refused_p99_ms": _median(turn["refused_p99_ms"] for turn in turns),
        "failed": sum(turn["failed"] for turn in turns),
        "late_p99_ms": _median(turn["late_p99_ms"] for turn in turns),
    }


def _median(values: Any) -> float | None:
    there = [value for value in values if value is not None]
    return round(statistics.median(there), 2) if there else None


def write(about: dict[str, Any], tables: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Write both files: the description, and the tables ``highest``, ``streams``, ``workers`` and ``rows``."""
    content = {"about": about, **tables}
    path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    lines = [
        "Servers with the same weights under load (see run.py): medians of turns. A request is timed from when it",
        "was due, so that waiting counts.",
        "",
        *(f"- {name}: {_plain(value)}" for name, value in about.items()),
        "",
        "The highest offered rate at which nothing was rejected and p95 stayed below the bound:",
        "",
        *_table(tables["highest"]),
        "",
        "Streams: four clients that send 512 texts per request and read base64, compared with `Encoder.encode` on",
        "the same processor:",
        "",
        *_table(tables["streams"]),
        "",
        "One worker and two, with a thread each, on all processors, which the load generator shares; int8, 64",
        "closed-loop clients:",
        "",
        *_table(tables["workers"]),
        "",
        "All loads; *late* is how late the load generator itself was.",
        "",
        *_table(tables["rows"]),
    ]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def _table(rows: list[dict[str, Any]]) -> list[str]:
    heads = [name.replace("_", " ") for name in rows[0]]
    cells = [["" if value is None else f"{value}" for value in row.values()] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] + ["---:"] * (len(heads) - 1), *cells)]


def _plain(value: object) -> str:
    """Format lists and tables in one line."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items()) or "nothing"
    return ", ".join(map(str, value)) or "nothing" if isinstance(value, list) else str(value)
