"""Strict conversion between mappings and frozen dataclasses: of TOML for configurations, of JSON for manifests.

A field with a limit or a description is declared with :func:`setting`. The mapping must match the class exactly;
all mismatches are reported in one :class:`~embedkit.errors.ConfigError`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np

from embedkit.errors import ConfigError, did_you_mean, shown

Config = TypeVar("Config")

_MISSING: Any = dataclasses.MISSING
_BITS = 63  # beside the sign: integers of TOML, and of arrays


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
    choices: Collection[str] | None = None,
    pattern: str | None = None,
    factory: Any = _MISSING,
    optional: bool = False,
) -> Any:
    """Declare a field.

    Without a default, the file has to set it; a ``factory`` creates the default of nested classes. ``doc`` is one
    sentence with the unit, and the paper's value where there is one. ``above`` and ``below`` are exclusive limits;
    ``pattern`` is a regular expression for the whole of a text, or of each value in a table of texts. An
    ``optional`` field may be missing where a mapping must be complete.
    """
    metadata: dict[str, Any] = {"doc": doc, "minimum": minimum, "maximum": maximum, "above": above, "below": below}
    metadata |= {"choices": choices, "pattern": pattern, "optional": optional}
    if factory is not _MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def load_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: the file is missing, unreadable or not TOML; names the line.
    """
    try:
        return _parse_toml(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a readable TOML file: {error}") from error


def from_mapping(
    cls: type[Config], mapping: Mapping[str, Any], *, source: str = "", prefix: str = "", written: bool = False
) -> Config:
    """Build a dataclass from a mapping and check every value.

    ``source`` and ``prefix`` (such as ``"manifest."``) begin its messages. A mapping ``written`` by a program from
    an instance lacks no field unless it is optional, and writes no whole number as 3.0.

    Raises:
        ConfigError: unknown keys ("did you mean"), wrong types, values out of range, missing keys; all at once.
    """
    reader = _Reader(written=written)
    config = reader.build(cls, _plain(mapping), prefix)
    if reader.problems:
        problems = [f"{source}: {problem}" if source else problem for problem in reader.problems]
        raise ConfigError(problems, parameters=reader.parameters)
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
        result = set_path(result, path.strip(), _parse_value(text.strip()))
    return result


def merge(under: Mapping[str, Any], over: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Merge ``over`` into ``under``, table by table; lists are replaced as a whole.

    ``prefix`` is the path of both, such as ``"optim."``, for the error.

    Raises:
        ConfigError: a table of ``over`` would replace a value of ``under`` that is not a table.
    """
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        if below is None or not isinstance(value, Mapping):
            merged[key] = value
        elif isinstance(below, Mapping):
            merged[key] = merge(below, value, f"{prefix}{key}.")
        else:
            raise _no_table(f"{prefix}{key}", next(iter(value), ""))
    return merged


def flat(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables by dotted names, ``a.b`` and ``a[0].b``; None is omitted."""
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for number, item in enumerate(value):
                yield from flat(item, f"{prefix}{key}[{number}].")
        elif value is not None:
            yield prefix + key, value


def _no_table(path: str, rest: str) -> ConfigError:
    return ConfigError(f"{path}.{rest} cannot be set: {path} is not a table")


def set_path(mapping: Mapping[str, Any], path: str, value: Any, prefix: str = "") -> dict[str, Any]:
    """Return a copy of ``mapping`` with the value at ``path``, e.g. ``"optim.lr"``, set.

    Raises:
        ConfigError: the path leads through a value that is not a table.
    """
    key, dot, rest = path.partition(".")
    if not dot:
        return {**mapping, key: value}
    table = mapping.get(key, {})
    if not isinstance(table, Mapping):
        raise _no_table(f"{prefix}{key}", rest)
    return {**mapping, key: set_path(table, rest, value, f"{prefix}{key}.")}


def _parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML, or raise ValueError."""
    import tomllib

    try:
        values = tomllib.loads(text)
        repr(values)  # which no message could do with a hexadecimal integer of thousands of digits
        return values
    except RecursionError as error:
        raise ValueError("values are nested too deeply") from error
    except ValueError as error:  # also of an integer with more digits than Python converts
        raise ValueError(str(error).partition(";")[0]) from error


def _parse_value(text: str) -> Any:
    try:
        return _parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_mapping(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()  # numpy's numbers are as good as Python's
    return value


@functools.cache
def _fields(cls: Any) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(cls)
    return {field.name: (field, hints[field.name]) for field in dataclasses.fields(cls)}


class _Reader:
    """Converts values, and collects their errors."""

    def __init__(self, *, written: bool) -> None:
        self.problems: list[str] = []
        self.parameters: list[str] = []
        self._written = written
        self._table = "an object" if written else "a table"

    def build(self, cls: Any, mapping: Mapping[str, Any], prefix: str) -> Any:
        fields, before = _fields(cls), len(self.problems)
        values: dict[str, Any] = {}
        for key, value in mapping.items():
            if key not in fields:
                self.problems.append(self._unknown(prefix + key, key, fields))
                continue
            field, hint = fields[key]
            try:
                values[key] = self._convert(value, hint, prefix + key)
                _check_limits(values[key], field.metadata, prefix + key)
            except _Problem as problem:
                self.problems.append(str(problem))
        for name, (field, _) in fields.items():
            is_open = field.default is _MISSING and field.default_factory is _MISSING
            if name not in mapping and (is_open or (self._written and not field.metadata.get("optional"))):
                self.problems.append(f"{prefix}{name} is missing: {field.metadata.get('doc', '')}".rstrip(": "))
        if len(self.problems) > before:
            return None
        try:
            return cls(**values)
        except ConfigError as error:
            self.problems.extend(prefix + problem for problem in error.problems)
            self.parameters.extend(error.parameters)
            return None

    def _unknown(self, path: str, key: str, fields: Mapping[str, Any]) -> str:
        if self._written:
            return f"{path} is not known in this format"
        hint = did_you_mean(key, fields, f"known here: {', '.join(sorted(fields))}")
        return f"{path} is not a setting; {hint}"

    def _convert(self, value: Any, hint: Any, path: str) -> Any:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            return self._convert_union(value, arguments, path)
        if origin is Literal:
            return _one_of(value, arguments, path)
        if dataclasses.is_dataclass(hint):
            return self.build(hint, self._mapping(value, path), f"{path}.")
        if origin in (tuple, list, dict, Mapping):
            return self._convert_items(value, origin, arguments, path)
        return value if hint is Any else self._convert_scalar(value, hint, path)

    def _convert_items(self, value: Any, origin: Any, arguments: tuple[Any, ...], path: str) -> Any:
        if origin in (dict, Mapping):
            table, kind = self._mapping(value, path), arguments[1]
            return {name: self._convert(item, kind, f"{path}.{name}") for name, item in table.items()}
        if not isinstance(value, list | tuple):
            kind = " of tables, [[...]]" if isinstance(value, Mapping) and not self._written else ""
            raise _Problem(f"{path} is a list{kind}, not {value!r:.80}")
        kind = arguments[0]
        if kind in (int, str) and all(type(item) is kind for item in value):
            return origin(value)  # without a path for each of many items
        return origin(self._convert(item, kind, f"{path}[{i}]") for i, item in enumerate(value))

    def _mapping(self, value: Any, path: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise _Problem(f"{path} is {self._table}, not {value!r:.80}")
        return value

    def _convert_union(self, value: Any, arguments: tuple[Any, ...], path: str) -> Any:
        """Match ``X | None`` and ``X | Y``: use the first member that fits."""
        if value is None and type(None) in arguments:
            return None
        failures = []
        for member in arguments:
            if member is type(None):
                continue
            try:
                return self._convert(value, member, path)
            except _Problem as problem:
                failures.append(str(problem))
        raise _Problem(failures[0])

    def _convert_scalar(self, value: Any, hint: Any, path: str) -> Any:
        if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
            return _finite(value, path)
        if hint is int and isinstance(value, float) and value.is_integer() and not self._written:
            value = int(value)
        if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
            raise _Problem(f"{path} is {_WORDS.get(hint, hint.__name__)}, not {value!r:.80}")
        if hint is int and value.bit_length() > _BITS:
            raise _Problem(f"{path} is a whole number between -2^63 and 2^63, not {shown(value)}")
        return value


def _one_of(value: Any, choices: Collection[Any], path: str) -> Any:
    if not isinstance(value, str | int) or value not in choices:
        raise _Problem(f"{path} is one of {', '.join(map(str, filter(None, choices)))}, not {value!r:.80}")
    return value


def _finite(value: float, path: str) -> float:
    """Reject nan and inf, which TOML allows; nan would pass every comparison with a limit."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _Problem(f"{path} is a finite number, not {shown(value)}")
    return number


_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _check_limits(value: Any, limits: Mapping[str, Any], path: str) -> None:
    pattern, choices = limits.get("pattern"), limits.get("choices")
    for text in value.values() if isinstance(value, Mapping) else [value]:
        if pattern is not None and isinstance(text, str) and not re.fullmatch(pattern, text):
            raise _Problem(f"{path} has the form {pattern}, which {text!r:.80} does not have")
    if choices is not None:
        _one_of(value, choices, path)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    minimum, maximum, above, below = (limits.get(key) for key in ("minimum", "maximum", "above", "below"))
    if minimum is not None and value < minimum:
        raise _Problem(f"{path} is at least {minimum}, not {value}")
    if maximum is not None and value > maximum:
        raise _Problem(f"{path} is at most {maximum}, not {value}")
    if above is not None and value <= above:
        raise _Problem(f"{path} is greater than {above}, not {value}")
    if below is not None and value >= below:
        raise _Problem(f"{path} is less than {below}, not {value}")
