"""Figures: SVG that can be embedded in any page, and a PNG."""

from __future__ import annotations

import struct
import xml.etree.ElementTree as ET

import pytest

from embedkit.errors import StorageError
from embedkit.training.run_report import Curve, draw_svg, write_curves

DEV = Curve("dev <score> & more", (10, 2000, 3000), (50.0, 75.25, 60.0), best=1)
LOSS = Curve("loss", (10, 20, 30), (8.0, 0.4, 0.01), logarithmic=True)


def test_a_figure_is_well_formed_and_labelled():
    root = ET.fromstring(draw_svg(DEV))
    texts = ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert root.get("aria-label") == DEV.title
    assert {DEV.title, "best 75.25 at step 2,000", "step"} <= set(texts)


def test_a_figure_has_the_colours_and_the_width_of_its_page():
    svg = draw_svg(DEV)
    assert all(f"var(--{name})" in svg for name in ("ink", "rule", "line", "best"))
    assert not set("0123456789abcdef") & {part[0] for part in svg.split("stroke: #")[1:]}
    root = ET.fromstring(svg)
    assert root.get("width") is root.get("height") is None
    assert root.get("viewBox")


@pytest.mark.parametrize(
    "curve",
    [
        Curve("one", (10,), (0.5,), best=0),
        Curve("flat", (1, 2), (0.0, 0.0)),
        Curve("gap", (1, 2), (1.0, float("nan"))),
    ],
    ids=lambda curve: curve.title,
)
def test_unusual_curves(curve):
    ET.fromstring(draw_svg(curve))


def test_all_curves_in_one_image_with_two_per_row(tmp_path):
    heights = []
    for count in (2, 3):
        write_curves([LOSS] * count, tmp_path / "curves.png")
        head = (tmp_path / "curves.png").read_bytes()[:24]
        assert head.startswith(b"\x89PNG")
        heights.append(struct.unpack(">II", head[16:]))
    (width, one), (same, two) = heights
    assert (width, 2 * one) == (same, two)


def test_a_full_disk_is_reported(tmp_path):
    (tmp_path / "curves.png").mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*curves\.png"):
        write_curves([LOSS], tmp_path / "curves.png")
