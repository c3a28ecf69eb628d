"""Placement of point labels so that they do not hide each other or other points."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["LabelPlaces", "Place"]

# Approximate size of a letter in 8 pt, relative to axes three or four inches wide.
_LETTER_WIDTH, _LETTER_HEIGHT = 0.017, 0.045


class Place(NamedTuple):
    """Position of a label relative to the axes, and its alignment there."""

    x: float
    y: float
    alignment: str


class _Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def shared_with(self, other: _Box) -> float:
        """Return the area of the intersection."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(0.0, width) * max(0.0, height)

    def outside(self) -> float:
        """Return the distance by which the box exceeds the axes."""
        return sum(max(0.0, by) for by in (-self.left, self.right - 1.0, -self.bottom, self.top - 1.0))


# In order of preference: beside the point, above, below, and diagonally.
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
    """Assigns each label the least crowded position around its point.

    Args:
        points: points that must not be hidden, relative to the axes.
    """

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        self._taken = [_box(Place(x, y, "center"), 1) for x, y in points]

    def choose(self, point: tuple[float, float], letters: int) -> Place:
        """Choose and occupy the position of a label with a given number of letters."""
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
