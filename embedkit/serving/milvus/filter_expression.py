"""Conversion of filters to Milvus expressions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from embedkit.errors import InputError
from embedkit.serving.retrieval.filters import Condition

__all__ = ["field_expression", "filter_expression"]


def filter_expression(conditions: Sequence[Condition]) -> str:
    """The expression that holds for what all conditions hold for.

    It reads the JSON field ``metadata``. Milvus takes a null there for nothing, compares no items of a list by
    their order, and does not know which kinds of value a field has: to compare with another finds nothing.

    Raises:
        InputError: a condition looks for null.
    """
    parts = [_EXPRESSIONS[each.operator](_place(each.field), each.value) for each in conditions]
    return " and ".join(f"({part})" for part in parts)


def field_expression(field: str) -> str:
    """The expression that holds for documents that have a field."""
    return _exists(_place(field), wanted=True)


def _place(field: str) -> str:
    return f"metadata[{_written(field)}]"


def _written(value: Any) -> str:
    if value is None:
        raise InputError('filter: Milvus does not tell null from absent; ask for {"exists": false}')
    return json.dumps(value, ensure_ascii=False)


def _equal(place: str, value: Any) -> str:
    """A value, or a list with it; `in` is not said of JSON by every Milvus."""
    return f"{place} == {_written(value)} or json_contains({place}, {_written(value)})"


def _any_of(place: str, values: list[Any]) -> str:
    return " or ".join(_equal(place, value) for value in values) or 'id in [""]'


def _none_of(place: str, values: list[Any]) -> str:
    """Return the negation in two parts, because comparing an absent value is neither true nor false."""
    if not values:
        return 'id != ""'
    # In parentheses, because Milvus 2.3 takes all that follows `exists` for what exists.
    return f"not (exists {place}) or not ({_any_of(place, values)})"


def _exists(place: str, *, wanted: bool) -> str:
    return f"exists {place}" if wanted else f"not exists {place}"


_EXPRESSIONS: Final[dict[str, Callable[[str, Any], str]]] = {
    "eq": _equal,
    "ne": lambda place, value: _none_of(place, [value]),
    "in": _any_of,
    "not_in": _none_of,
    "gt": lambda place, value: f"{place} > {_written(value)}",
    "gte": lambda place, value: f"{place} >= {_written(value)}",
    "lt": lambda place, value: f"{place} < {_written(value)}",
    "lte": lambda place, value: f"{place} <= {_written(value)}",
    "exists": lambda place, value: _exists(place, wanted=value),
}
