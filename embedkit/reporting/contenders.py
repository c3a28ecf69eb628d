"""What is compared in charts, and how each is drawn so that it is known again in all of them."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from embedkit.reporting.drawing import HUES

__all__ = ["Contender", "Look", "legend", "looks"]

_KEY = "filled: int8; hollow: other precisions; squares: torch"
_KEY_TO_LINES = "; upright lines: quality not known"


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A model among others.

    Attributes:
        label: no other has the same.
        name: the model's; one model in several precisions has one name.
        precision: of its weights.
        quality: times 100; None where it is not known.
    """

    label: str
    name: str
    precision: str
    quality: float | None = None


@dataclass(frozen=True)
class Look:
    """How a contender is drawn.

    Attributes:
        hue: name of a colour; all precisions of a model share it.
        filled: int8 is filled and its lines are whole; other precisions are hollow, with broken lines.
        torch: squares and dots for what runs on torch.
    """

    hue: str
    filled: bool
    torch: bool = False

    @property
    def marker(self) -> str:
        """Matplotlib's name of it."""
        return "s" if self.torch else "o"

    @property
    def line(self) -> str:
        """Matplotlib's name of it."""
        return "-" if self.filled else ":" if self.torch else "--"


def looks(contenders: Sequence[Contender]) -> Mapping[str, Look]:
    """Label -> look. Hues go by name, in order; if they do not suffice, the last one is for all the others."""
    names = list(dict.fromkeys(each.name for each in contenders))
    hues = {name: HUES[min(place, len(HUES) - 1)] for place, name in enumerate(names)}
    return {
        each.label: Look(hues[each.name], each.precision.startswith("int8"), "torch" in each.precision)
        for each in contenders
    }


def legend(contenders: Sequence[Contender]) -> str:
    """HTML that says who is drawn how."""
    appearance = looks(contenders)
    items = "".join(f"<li>{_mark(appearance[each.label])}{html.escape(each.label)}</li>" for each in contenders)
    scored = sum(each.quality is not None for each in contenders)
    key = _KEY + (_KEY_TO_LINES if 0 < scored < len(contenders) else "")
    return f'<ul class="legend">{items}<li class="key">{key}</li></ul>'


def _mark(look: Look) -> str:
    fill = f"var(--{look.hue})" if look.filled else "none"
    shape = '<rect x="2" y="2" width="10" height="10"' if look.torch else '<circle cx="7" cy="7" r="5"'
    return f'<svg viewBox="0 0 14 14">{shape} fill="{fill}" stroke="var(--{look.hue})" stroke-width="2"/></svg>'
