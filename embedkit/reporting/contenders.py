"""Models in charts, with a consistent appearance in all of them."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from embedkit.reporting.drawing import HUES

__all__ = ["Contender", "Look", "legend", "looks"]

_KEY = "filled: int8; hollow: other precisions; squares: torch"
_KEY_TO_LINES = "; vertical lines: quality unknown"


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A model in a chart.

    Attributes:
        label: unique label.
        name: name of the model, common to all its precisions.
        precision: precision of the weights.
        quality: quality times 100; None if unknown.
    """

    label: str
    name: str
    precision: str
    quality: float | None = None


@dataclass(frozen=True)
class Look:
    """The appearance of a contender.

    Attributes:
        hue: name of a colour, common to all precisions of a model.
        filled: int8 is filled with solid lines; other precisions are hollow with dashed lines.
        torch: models on torch have squares and dotted lines.
    """

    hue: str
    filled: bool
    torch: bool = False

    @property
    def marker(self) -> str:
        """Matplotlib's marker."""
        return "s" if self.torch else "o"

    @property
    def line(self) -> str:
        """Matplotlib's line style."""
        return "-" if self.filled else ":" if self.torch else "--"


def looks(contenders: Sequence[Contender]) -> Mapping[str, Look]:
    """Return the look of each label. Hues are assigned to names in order; the last one repeats if necessary."""
    names = list(dict.fromkeys(each.name for each in contenders))
    hues = {name: HUES[min(place, len(HUES) - 1)] for place, name in enumerate(names)}
    return {
        each.label: Look(hues[each.name], each.precision.startswith("int8"), "torch" in each.precision)
        for each in contenders
    }


def legend(contenders: Sequence[Contender]) -> str:
    """Return the legend in HTML."""
    appearance = looks(contenders)
    items = "".join(f"<li>{_mark(appearance[each.label])}{html.escape(each.label)}</li>" for each in contenders)
    scored = sum(each.quality is not None for each in contenders)
    key = _KEY + (_KEY_TO_LINES if 0 < scored < len(contenders) else "")
    return f'<ul class="legend">{items}<li class="key">{key}</li></ul>'


def _mark(look: Look) -> str:
    fill = f"var(--{look.hue})" if look.filled else "none"
    shape = '<rect x="2" y="2" width="10" height="10"' if look.torch else '<circle cx="7" cy="7" r="5"'
    return f'<svg viewBox="0 0 14 14">{shape} fill="{fill}" stroke="var(--{look.hue})" stroke-width="2"/></svg>'
