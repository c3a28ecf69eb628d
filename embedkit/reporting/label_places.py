"""Where labels of points stand so that they hide neither each other nor other points."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["LabelPlaces", "Place"]

# Sizes of a letter of eight points, about, in parts of axes three or four inches wide.
_LETTER_WIDTH, _LETTER_HEIGHT = 0.017, 0.045


class Place(NamedTuple):
    """Where a label stands, in parts of the axes, and which part of it stands there."""

    x: float
    y: float
    alignment: str


class _Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def shared_with(self, other: _Box) -> float:
        """The area of both."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(0.0, width) * max(0.0, height)

    def outside(self) -> float:
        """How far it lies outside the axes."""
        return sum(max(0.0, by) for by in (-self.left, self.right - 1.0, -self.bottom, self.top - 1.0))


# Tried in this order: beside the point, above, below, and at its corners.
_AROUND = (
    Place(0.028, 0.0, "left"),
    Place(-0.028, 0.0, "right"),
    Place(0.0, 0.045, "center"),
    Place(0.0, -0.045, "center"),
    Place(0.028, 0.045, "left"),
    Place(-0.028, 0.045, "right"),
    Place(0.028, -0.045, "left"),
    Place(-0.028, -0.045, "right"),
)


class LabelPlaces:
    """Gives each label the place around its point that is least crowded.

    Args:
        points: all that must not be hidden, in parts of the axes.
    """

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        self._taken = [_box(Place(x, y, "center"), 1) for x, y in points]

    def choose(self, point: tuple[float, float], letters: int) -> Place:
        """The place of a label of so many letters; it is taken from now on."""
        x, y = point
        places = [Place(x + right, y + up, alignment) for right, up, alignment in _AROUND]
        chosen = min(places, key=lambda place: self._crowding(_box(place, letters)))
        self._taken.append(_box(chosen, letters))
        return chosen

    def _crowding(self, box: _Box) -> float:
        return sum(box.shared_with(other) for other in self._taken) + box.outside()


def _box(place: Place, letters: int) -> _Box:
    width = letters * _LETTER_WIDTH
    left = place.x - {"left": 0.0, "center": width / 2, "right": width}[place.alignment]
    return _Box(left, place.y - _LETTER_HEIGHT / 2, left + width, place.y + _LETTER_HEIGHT / 2)
