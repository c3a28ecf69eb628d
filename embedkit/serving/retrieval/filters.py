"""Filters: conditions on the metadata of documents, expressed as JSON.

::

    {"lang": "en", "year": {"gte": 2020, "lt": 2024}, "tag": {"in": ["bees", "ants"]}}
    {"or": [{"address.city": "Bern"}, {"title": {"contains": "bee"}}], "not": {"path": {"prefix": "a/"}}}

All conditions must hold. A condition holds for a list if it holds for one item. A dot leads into an object.
Texts of a time in a zone, ``2024-05-01T10:00+02:00``, are compared by time; a date without a zone is in UTC then.
``or`` and ``and`` with a list of filters, and ``not`` with a filter, are not fields.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embedkit.errors import DataError, InputError, did_you_mean, shown
from embedkit.records import parse_json
from embedkit.runtime.arguments import is_unicode
from embedkit.serving.retrieval.documents import plain_value
from embedkit.serving.retrieval.store.columns import Column, Scalar, is_scalar, kind_of
from embedkit.serving.retrieval.store.exact import BoolArray

Filter = Mapping[str, Any]

_SIGNS: Final = {"=": "eq", "!=": "ne", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
# Both take a time proportional to the text: no part of it is read twice. A part lies between commas outside of
# quotation marks, the last of which may be open.
_PART = re.compile(r'(?:"(?:\\.|[^"\\])*+(?:"|\\?(?P<open>\Z))|[^,|"])++', re.DOTALL)
_CONDITION = re.compile(r'("(?:\\.|[^"\\])*+"\s*+|[^"=!<>]++)([!<>]?+=|[<>])(?![=!<>])\s*+(.+)', re.DOTALL)
_WORDED = re.compile(r'("(?:\\.|[^"\\])*+"|[^\s"]++)\s++(contains|prefix)\s++(.+)', re.DOTALL)
ON_TEXTS: Final = ("contains", "prefix")
"""Operators on a part of a text."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One condition on one field: one of `OPERATORS`, with a value, or a list for ``in`` and ``not_in``."""

    field: str
    operator: str
    value: Any

    def rows(self, column: Column) -> BoolArray:
        """Return the rows for which it holds: ``(N,) bool``."""
        return OPERATORS[self.operator].rows(column, self.value)

    def check_kinds(self, samples: Mapping[str, Scalar]) -> None:
        """Reject comparisons of numbers with texts, which would silently find nothing.

        ``samples`` are the kinds of value that the field has in all segments, each with an example.
        """
        known = {kind: sample for kind, sample in samples.items() if kind != "null"}
        for value in _values(self.value):
            if known and value is not None and self.operator != "exists" and kind_of(value) not in known:
                kind, sample = next(iter(known.items()))
                hint = f'; "{shown(value)}" in quotation marks is a text' if kind_of(value) == "number" else ""
                raise InputError(
                    f"filter: the field {self.field!r} holds values of kind {kind} ({shown(sample)}), none of "
                    f"kind {kind_of(value)} as {shown(value)}{hint}"
                )


@dataclass(frozen=True, slots=True)
class Combination:
    """Conditions of which all (``and``), one (``or``) or not all (``not``) must hold."""

    operator: str
    parts: tuple[Condition, ...]


Condition = Comparison | Combination


def comparisons(conditions: Iterable[Condition]) -> Iterator[Comparison]:
    """Yield the comparisons in conditions."""
    for condition in conditions:
        if isinstance(condition, Comparison):
            yield condition
        else:
            yield from comparisons(condition.parts)


def selected_rows(condition: Condition, column: Callable[[str], Column]) -> BoolArray:
    """Return the rows for which a condition holds, ``(N,) bool``, given the column of each field."""
    if isinstance(condition, Comparison):
        return condition.rows(column(condition.field))
    parts = [selected_rows(part, column) for part in condition.parts]
    if condition.operator == "or":
        either: BoolArray = np.logical_or.reduce(parts)
        return either
    both: BoolArray = np.logical_and.reduce(parts)
    return ~both if condition.operator == "not" else both


@dataclass(frozen=True, slots=True)
class _Operator:
    """Validation of a condition, and the rows for which it holds."""

    expected: str
    accepts: Callable[[Any], bool]
    rows: Callable[[Column, Any], BoolArray]


def unknown_field(field: str, known: Iterable[str]) -> str:
    """Return a sentence on a field that no document has, suggesting a similar one."""
    hint = did_you_mean(field, sorted(known), f"the fields are {', '.join(sorted(known)) or 'none'}")
    return f"filter: no document has the field {field!r:.80}; {hint}"


def parse_filter(conditions: Filter | None) -> list[Condition]:
    """Parse a mapping from fields to required values, or to mappings from operators to values; None has none.

    NumPy's values, tuples and sets, dates and times are taken as in metadata.

    Raises:
        InputError: something else is given.
    """
    try:
        return [] if conditions is None else _parse(conditions)
    except RecursionError:
        raise InputError("filter: it is nested too deeply") from None


def _parse(conditions: Any) -> list[Condition]:
    if not isinstance(conditions, Mapping):
        raise InputError(f"filter: expected a mapping from fields to values, got {type(conditions).__name__}")
    parsed: list[Condition] = []
    for field, wanted in conditions.items():
        if field in ("or", "and") and isinstance(wanted, (list, tuple)):
            if not wanted:
                raise InputError(f"filter: {field} has no filters; give at least one")
            parsed.append(Combination(field, tuple(_all(part, field) for part in wanted)))
        elif field == "not" and isinstance(wanted, Mapping):
            parsed.append(Combination("not", (_all(wanted, field),)))
        else:
            parsed += _conditions(field, wanted)
    return parsed


def _all(conditions: Any, operator: str) -> Condition:
    parts = _parse(conditions)
    if not parts:
        raise InputError(f"filter: a filter in {operator} has no conditions; give at least one")
    return parts[0] if len(parts) == 1 else Combination("and", tuple(parts))


def read_filter(text: str) -> dict[str, Any]:
    """Read a filter in its text form: ``lang = en, year >= 2020``, or a JSON object.

    A value is a number, ``true``, ``false``, ``null``, a text in quotation marks, or else the text itself. The
    name of a field may be in quotation marks, too. Further forms are ``title contains bees``, ``path prefix a/``,
    ``not lang = en``, and ``lang = en | lang = de, year > 2020``, where one of the two groups must hold.

    Raises:
        InputError: a part is not a condition, a quotation mark is not closed, or two conditions are alike but
            for their values, of which JSON would keep the last.
    """
    if text.lstrip().startswith("{"):
        try:
            return dict(parse_json(text))
        except InputError as error:
            raise InputError(f"filter: {error}") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"filter: not JSON: {error}") from error
    groups: list[dict[str, Any]] = [{}]
    for match in _PART.finditer(text):
        if text.startswith("|", match.start() - 1) and match.start():
            groups.append({})
        if part := match[0].strip():
            if match["open"] is not None:
                raise InputError(f"filter: a quotation mark is not closed in {part!r:.80}")
            _read_condition(part, groups[-1])
    groups = [group for group in groups if group]
    return groups[0] if len(groups) == 1 else {"or": groups} if groups else {}


def _read_condition(part: str, group: dict[str, Any]) -> None:
    """Add a condition to those that must hold with it."""
    negated = part.startswith("not ")
    written = part.removeprefix("not ").lstrip() if negated else part
    condition = _WORDED.fullmatch(written) or _CONDITION.fullmatch(written)
    if condition is None:
        raise InputError(
            f"filter: {part!r:.80} is not a condition; expected for example lang = en or year >= 2020"
        )
    field, sign, value = condition[1].rstrip(), condition[2], condition[3]
    field = str(_read_value(field)) if field.startswith('"') else field
    operator = _SIGNS.get(sign, sign)
    wanted = value.strip('"') if operator in ON_TEXTS and not value.startswith('"') else _read_value(value)
    if negated:
        group.setdefault("and", []).append({"not": {field: {operator: wanted}}})
        return
    conditions = group.setdefault(field, {})
    if operator in conditions:
        raise InputError(f"filter: {field} {sign} occurs twice, and all conditions must hold; keep one")
    conditions[operator] = wanted


def _read_value(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str) or _is_value(value) else text


def _conditions(field: Any, wanted: Any) -> Iterator[Comparison]:
    if not isinstance(field, str) or not is_unicode(field):
        raise InputError(f"filter: expected the name of a field, got {shown(field)}")
    if not isinstance(wanted, Mapping):
        wanted = {"eq": wanted}
    if not wanted:
        raise InputError(f"filter: {field!r} has no operator; the operators are {', '.join(OPERATORS)}")
    for name, given in wanted.items():
        value = _plain(given)
        if not isinstance(name, str) or name not in OPERATORS:
            raise InputError(
                f"filter: {field!r} has no operator {shown(name)}; the operators are {', '.join(OPERATORS)}"
            )
        if not OPERATORS[name].accepts(value):
            raise InputError(
                f"filter: {field!r}: expected {OPERATORS[name].expected} for {name}, got {shown(value)}"
            )
        yield Comparison(field, name, value)


def _plain(value: Any) -> Any:
    """Return the JSON of NumPy's values, tuples and sets, dates and times; other values as they are."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if value is None or (isinstance(value, (str, bool, int, float)) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, np.floating):
        return float(value)
    try:
        return plain_value(value, "value", "filter")
    except DataError:
        return value


def _values(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_value(value: Any) -> bool:
    if isinstance(value, str):
        return is_unicode(value)
    return is_scalar(value) and not (isinstance(value, float) and not math.isfinite(value))


def _is_bound(value: Any) -> bool:
    return _is_value(value) and value is not None and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and is_unicode(value) and bool(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_value, value))


def _bound(*, low: bool, included: bool) -> _Operator:
    def rows(column: Column, value: Any) -> BoolArray:
        low_bound, high_bound = (value, None) if low else (None, value)
        return column.between(low_bound, high_bound, low_included=included, high_included=included)

    return _Operator("a number or a text", _is_bound, rows)


OPERATORS: Final = {
    "eq": _Operator("a value", _is_value, lambda column, value: column.equal([value])),
    "ne": _Operator("a value", _is_value, lambda column, value: ~column.equal([value])),
    "in": _Operator("a list of values", _is_list, lambda column, values: column.equal(values)),
    "not_in": _Operator("a list of values", _is_list, lambda column, values: ~column.equal(values)),
    "gt": _bound(low=True, included=False),
    "gte": _bound(low=True, included=True),
    "lt": _bound(low=False, included=False),
    "lte": _bound(low=False, included=True),
    "contains": _Operator("a text", _is_text, lambda column, value: column.containing(value)),
    "prefix": _Operator("a text", _is_text, lambda column, value: column.starting_with(value)),
    "exists": _Operator(
        "true or false",
        lambda value: isinstance(value, bool),
        lambda column, value: column.present() == value,
    ),
}
