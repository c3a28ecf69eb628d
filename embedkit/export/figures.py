"""The figures of gates, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# Figures whose limit is not named like them with the suffix "_allowed".
_LIMITS = {"retention": "allowed", "spearman": "allowed", "largest_error_in_steps": "largest_error_allowed"}


def describe_figures(figures: Mapping[str, Any]) -> str:
    """One gate's figures as the manifest holds them, each with its limit, whose name ends in ``allowed``."""
    return ", ".join(_operators(figures) if "expected" in figures else _parts(figures))


def _parts(figures: Mapping[str, Any]) -> Iterator[str]:
    for name, value in figures.items():
        if name.endswith("allowed"):
            continue
        limit = figures.get(_LIMITS.get(name, f"{name}_allowed"))
        if not isinstance(value, Mapping):
            yield f"{_words(name)} {_figure(name, value, limit)}"
        elif isinstance(limit, Mapping):
            parts = (f"{form} {_figure(name, figure, limit[form])}" for form, figure in value.items())
            yield f"{_words(name)}: {', '.join(parts)}"
        else:
            yield f"{_words(name)}: {describe_figures(value)}"


def _figure(name: str, value: object, limit: object) -> str:
    text = "undefined" if value is None else str(value)
    if limit is None:
        return text
    return f"{text} ({'at most' if name.startswith(('largest', 'graph')) else 'at least'} {limit})"


def _operators(figures: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Counts of operators: those that are expected, and where a graph has others."""
    expected = figures["expected"]
    yield from (f"{count} {_words(name)}" for name, count in expected.items() if count)
    for graph, counts in figures.items():
        for name, count in counts.items():
            if count != expected[name]:
                yield f"{graph}: {count} {_words(name)} instead of {expected[name]}"


def _words(name: str) -> str:
    return name.replace("_", " ")
