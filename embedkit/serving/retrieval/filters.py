"""Filters: conditions on the metadata of documents, expressed as JSON.

::

    {"lang": "en", "year": {"gte": 2020, "lt": 2024}, "tag": {"in": ["bees", "ants"]}}

All conditions must hold. A condition holds for a list if it holds for one of its items.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from embedkit.errors import InputError, did_you_mean, shown
from embedkit.records import parse_json
from embedkit.runtime.arguments import is_unicode
from embedkit.serving.retrieval.columns import Column, Scalar, is_scalar, kind_of
from embedkit.serving.retrieval.exact_index import BoolArray

Filter = Mapping[str, Any]

_SIGNS: Final = {"=": "eq", "!=": "ne", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
# Both take a time proportional to the text: no part of it is read twice. A part lies between commas outside of
# quotation marks, the last of which may be open.
_PART = re.compile(r'(?:"(?:\\.|[^"\\])*+(?:"|\\?(?P<open>\Z))|[^,"])++', re.DOTALL)
_CONDITION = re.compile(r'("(?:\\.|[^"\\])*+"\s*+|[^"=!<>]++)([!<>]?+=|[<>])(?![=!<>])\s*+(.+)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Condition:
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
class _Operator:
    """Validation of a condition, and the rows for which it holds."""

    expected: str
    accepts: Callable[[Any], bool]
    rows: Callable[[Column, Any], BoolArray]


def unknown_field(field: str, known: Iterable[str]) -> str:
    """Return a sentence on a field that no document has, suggesting a similar one."""
    hint = did_you_mean(field, sorted(known), f"the fields are {', '.join(sorted(known)) or 'none'}")
    return f"filter: no document has the field {field!r:.80}; {hint}"


def parse_filter(conditions: Filter) -> list[Condition]:
    """Parse a mapping from fields to required values, or to mappings from operators to values."""
    if not isinstance(conditions, Mapping):
        raise InputError(f"filter: expected a mapping from fields to values, got {type(conditions).__name__}")
    return [condition for field, wanted in conditions.items() for condition in _conditions(field, wanted)]


def read_filter(text: str) -> dict[str, Any]:
    """Read a filter as a person writes it: ``lang = en, year >= 2020``, or a JSON object.

    A value is a number, ``true``, ``false``, ``null``, a text in quotation marks, or else the text itself. The
    name of a field may be in quotation marks, too.

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
    by_field: dict[str, Any] = {}
    for match in _PART.finditer(text):
        part = match[0].strip()
        if not part:
            continue
        if match["open"] is not None:
            raise InputError(f"filter: a quotation mark is not closed in {part!r:.80}")
        condition = _CONDITION.fullmatch(part)
        if condition is None:
            raise InputError(
                f"filter: {part!r:.80} is not a condition; expected for example lang = en or year >= 2020"
            )
        field, sign, value = condition[1].rstrip(), condition[2], condition[3]
        field = str(_read_value(field)) if field.startswith('"') else field
        conditions = by_field.setdefault(field, {})
        if _SIGNS[sign] in conditions:
            raise InputError(f"filter: {field} {sign} stands twice, and all conditions must hold; keep one")
        conditions[_SIGNS[sign]] = _read_value(value)
    return by_field


def _read_value(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str) or _is_value(value) else text


def _conditions(field: Any, wanted: Any) -> Iterator[Condition]:
    if not isinstance(field, str) or not is_unicode(field):
        raise InputError(f"filter: expected the name of a field, got {shown(field)}")
    if not isinstance(wanted, Mapping):
        wanted = {"eq": wanted}
    for name, value in wanted.items():
        if name not in OPERATORS:
            raise InputError(
                f"filter: {field!r} has no operator {shown(name)}; the operators are {', '.join(OPERATORS)}"
            )
        if not OPERATORS[name].accepts(value):
            raise InputError(
                f"filter: {field!r}: expected {OPERATORS[name].expected} for {name}, got {shown(value)}"
            )
        yield Condition(field, name, value)


def _values(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_value(value: Any) -> bool:
    if isinstance(value, str):
        return is_unicode(value)
    return is_scalar(value) and not (isinstance(value, float) and not math.isfinite(value))


def _is_bound(value: Any) -> bool:
    return _is_value(value) and value is not None and not isinstance(value, bool)


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
    "exists": _Operator(
        "true or false",
        lambda value: isinstance(value, bool),
        lambda column, value: column.present() == value,
    ),
}
