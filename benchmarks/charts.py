"""Charts as SVG that is legible on light and on dark pages."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

BLUE, ORANGE, GREY = "#2a8fbd", "#d9730d", "#808080"
STYLE = {"svg.hashsalt": "embedkit", "svg.fonttype": "none", "font.size": 14}


def save(figure: Any, path: Path) -> None:
    """Write a figure whose black lines and texts follow the colour scheme of the page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    style = "<style>svg { color: #1f2328 } @media (prefers-color-scheme: dark) { svg { color: #e6edf3 } }</style>"
    text = re.sub(r"(<text[^>]*style=\")(?![^\"]*fill:)", r"\1fill: currentColor; ", buffer.getvalue())
    text = re.sub(r"(<svg[^>]*>)", rf"\1\n {style}", text.replace("#000000", "currentColor"), count=1)
    path.write_text(text, encoding="utf-8")
