"""Labels are placed where there is room."""

from __future__ import annotations

import pytest

from embedkit.reporting.label_places import LabelPlaces


def test_a_label_is_beside_its_point():
    place = LabelPlaces([(0.4, 0.5)]).choose((0.4, 0.5), 10)
    assert place.x > 0.4
    assert (place.y, place.alignment) == (0.5, "left")


@pytest.mark.parametrize(("point", "alignment"), [((0.95, 0.5), "right"), ((0.02, 0.5), "left")])
def test_at_an_edge_it_is_inside(point, alignment):
    assert LabelPlaces([point]).choose(point, 12).alignment == alignment


def test_labels_of_points_close_together_do_not_share_a_place():
    points = [(0.5, 0.5), (0.52, 0.51), (0.5, 0.48)]
    places = LabelPlaces(points)
    assert len({places.choose(point, 10) for point in points}) == 3


def test_a_label_does_not_hide_another_point():
    neighbour = (0.5, 0.5)
    place = LabelPlaces([(0.4, 0.5), neighbour]).choose((0.4, 0.5), 12)
    assert place.alignment != "left"
