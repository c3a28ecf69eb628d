"""The origin of a model, stored in the manifest of its bundle, and the figures of its gates as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePath
from typing import Any

from embedkit.atomic import expanded
from embedkit.config import load_toml
from embedkit.runtime.folder_layout import read_json
from embedkit.runtime.manifest import Manifest

_RUN_CARD = "run.json"
_CROSS_FIGURES = "cross-model.json"
# Settings that describe the machine, not the model.
_LOCAL_SETTINGS = ("data", "cache", "device", "threads")


@dataclass(frozen=True, kw_only=True)
class Card:
    """The parts of the manifest that describe the model's origin, with the same field names."""

    name: str | None = None
    base: str = ""
    method: str = ""
    teacher: Mapping[str, Any] = field(default_factory=dict)
    corpus: list[Mapping[str, Any]] = field(default_factory=list)
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    licence: str = ""


def read_card(source: str, *, licence: str = "") -> Card:
    """Read ``run.json`` and ``config.toml`` of a run folder; other sources have an empty card.

    ``RUN/cross-model``, which a recipe writes next to ``RUN/model``, has the run's card with its own name and
    scores.

    Absolute paths are reduced to their last part, because a bundle is used
    on other machines.

    Raises:
        ModelError: ``run.json`` is damaged.
        ConfigError: ``config.toml`` is damaged.
    """
    run = expanded(source)
    is_cross = run.name == "cross-model"
    run = run.parent if is_cross else run
    if not (run / _RUN_CARD).is_file():
        return Card(licence=licence)
    facts = _portable(read_json(run / _RUN_CARD))
    settings = _portable(load_toml(run / "config.toml")) if (run / "config.toml").is_file() else {}
    metrics = read_json(run / _CROSS_FIGURES) if is_cross else facts.get("metrics") or {}
    dev = {"dev": facts["dev"]} if facts.get("dev") else {}
    return Card(
        name=f"{facts['name']}-cross" if is_cross and facts.get("name") else facts.get("name"),
        base=facts.get("base") or "",
        method=facts.get("method") or "",
        teacher=facts.get("teacher") or {},
        corpus=facts.get("corpus") or [],
        config={key: value for key, value in settings.items() if key not in _LOCAL_SETTINGS},
        metrics=dev | metrics,
        licence=licence,
    )


def card_of(manifest: Manifest, *, licence: str = "") -> Card:
    """Return the card in the manifest of a bundle, with another licence if one is given."""
    card = Card(**{field.name: getattr(manifest, field.name) for field in fields(Card)})
    return replace(card, licence=licence or card.licence)


def _portable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _portable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_portable(item) for item in value]
    if isinstance(value, str) and PurePath(value).is_absolute():
        return PurePath(value).name
    return value


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
