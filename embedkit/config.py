"""Strict conversion between TOML and frozen dataclasses.

A config class is a frozen, keyword-only dataclass whose fields are declared with :func:`setting`. The file must
match the class exactly; all mismatches are reported in one :class:`~embedkit.errors.ConfigError`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from embedkit.errors import ConfigError

__all__ = ["apply_overrides", "from_mapping", "lay_over", "load_toml", "merge", "setting", "to_mapping"]

Config = TypeVar("Config")

_MISSING: Any = dataclasses.MISSING


class _Problem(ValueError):
    """A value that does not match its field; collected into a ConfigError."""


def setting(
    default: Any = _MISSING,
    doc: str = "",
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    factory: Any = _MISSING,
) -> Any:
    """Declare a field of a config class.

    Args:
        default: the value if the file does not set it; without a default, the field is required.
        doc: one sentence with the unit, and the paper's value where there is one.
        minimum: smallest value allowed.
        maximum: largest value allowed.
        above: the value must be greater than this.
        below: the value must be less than this.
        factory: creates the default, for nested config classes.
    """
    metadata = {"doc": doc, "minimum": minimum, "maximum": maximum, "above": above, "below": below}
    if factory is not _MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata, kw_only=True)
    return dataclasses.field(default=default, metadata=metadata, kw_only=True)


def load_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: the file is missing, unreadable or not TOML; names the line.
    """
    try:
        return _parse_toml(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not a readable TOML file: {error}") from error


def from_mapping(cls: type[Config], mapping: Mapping[str, Any], *, source: str = "") -> Config:
    """Build a config from a mapping and check every value.

    Args:
        cls: a config class.
        mapping: contents of the TOML file.
        source: origin of the mapping, for the message.

    Raises:
        ConfigError: unknown keys ("did you mean"), wrong types, values out of range, missing keys; all at once.
    """
    problems: list[str] = []
    config = _build(cls, mapping, "", problems)
    if problems:
        raise ConfigError([f"{source}: {problem}" if source else problem for problem in problems])
    return typing.cast(Config, config)


def to_mapping(config: Any) -> dict[str, Any]:
    """Convert a config to nested dictionaries for TOML: tuples become lists, ``None`` is omitted."""
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value is not None:
            plain[field.name] = _plain(value)
    return plain


def apply_overrides(mapping: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Apply ``key.sub=value`` overrides to a mapping; values are TOML, bare words are strings.

    Raises:
        ConfigError: an override has no ``=``, or its path leads through a value that is not a table.
    """
    result = dict(mapping)
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"an override reads key=value or table.key=value, not {override!r}")
        result = lay_over(result, path.strip(), _parse_value(text.strip()))
    return result


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``over`` into ``under``, table by table; lists are replaced as a whole."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = merge(below, value) if both and isinstance(below, Mapping) else value
    return merged


def lay_over(mapping: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy of ``mapping`` with the value at ``path``, e.g. ``"optim.lr"``, set.

    Raises:
        ConfigError: the path leads through a value that is not a table.
    """
    key, dot, rest = path.partition(".")
    if not dot:
        return {**mapping, key: value}
    table = mapping.get(key, {})
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path} cannot be set: {key} is not a table")
    return {**mapping, key: lay_over(table, rest, value)}


def _parse_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise tomllib.TOMLDecodeError("values are nested too deeply") from error
    except ValueError as error:  # also of an integer with more digits than Python converts
        raise tomllib.TOMLDecodeError(str(error).partition(";")[0]) from error


def _parse_value(text: str) -> Any:
    try:
        return _parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_mapping(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _build(cls: Any, mapping: Mapping[str, Any], prefix: str, problems: list[str]) -> Any:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    before = len(problems)
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        if key not in fields:
            problems.append(_unknown(prefix + key, key, fields))
            continue
        try:
            values[key] = _convert(value, hints[key], prefix + key, problems)
            _check_range(values[key], fields[key], prefix + key)
        except _Problem as problem:
            problems.append(str(problem))
    for name, field in fields.items():
        required = field.default is _MISSING and field.default_factory is _MISSING
        if required and name not in mapping:
            problems.append(f"{prefix}{name} is missing: {field.metadata.get('doc', '')}".rstrip(": "))
    if len(problems) > before:
        return None
    try:
        return cls(**values)
    except ConfigError as error:
        problems.extend(prefix + problem for problem in error.problems)
        return None


def _unknown(path: str, key: str, fields: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key, fields, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(fields))}"
    return f"{path} is not a setting; {hint}"


def _convert(value: Any, hint: Any, path: str, problems: list[str]) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(value, arguments, path, problems)
    if origin is Literal:
        if value not in arguments:
            raise _Problem(f"{path} is one of {', '.join(map(str, arguments))}, not {value!r}")
        return value
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise _Problem(f"{path} is a table, not {value!r}")
        return _build(hint, value, f"{path}.", problems)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _Problem(f"{path} is a list, not {value!r}")
        return tuple(_convert(item, arguments[0], f"{path}[{i}]", problems) for i, item in enumerate(value))
    return _convert_scalar(value, origin or hint, path)


def _convert_union(value: Any, arguments: tuple[Any, ...], path: str, problems: list[str]) -> Any:
    """Match ``X | None`` and ``X | Y``: use the first member that fits."""
    if value is None and type(None) in arguments:
        return None
    failures = []
    for member in arguments:
        if member is type(None):
            continue
        try:
            return _convert(value, member, path, problems)
        except _Problem as problem:
            failures.append(str(problem))
    raise _Problem(failures[0])


def _convert_scalar(value: Any, hint: Any, path: str) -> Any:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(value, path)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise _Problem(f"{path} is {_WORDS.get(hint, hint.__name__)}, not {value!r}")
    return value


def _finite(value: float, path: str) -> float:
    """Reject nan and inf, which TOML allows; nan would pass every comparison with a limit."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _Problem(f"{path} is a finite number, not {value}")
    return number


_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", dict: "a table"}


def _check_range(value: Any, field: dataclasses.Field[Any], path: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    bounds = (field.metadata.get(key) for key in ("minimum", "maximum", "above", "below"))
    minimum, maximum, above, below = bounds
    if minimum is not None and value < minimum:
        raise _Problem(f"{path} is at least {minimum}, not {value}")
    if maximum is not None and value > maximum:
        raise _Problem(f"{path} is at most {maximum}, not {value}")
    if above is not None and value <= above:
        raise _Problem(f"{path} is greater than {above}, not {value}")
    if below is not None and value >= below:
        raise _Problem(f"{path} is less than {below}, not {value}")
