"""The origin of a model: read from its run folder and stored in the manifest of its bundle."""

from __future__ import annotations

from collections.abc import Mapping
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
