"""The kernels that were compiled here, and None for those that were not.

To add one: its C file and its stub in ``embedkit/kernels/``, an entry in ``pyproject.toml``, a line here.
"""

from __future__ import annotations

__all__ = ["bert", "built", "wordpiece"]

try:
    from embedkit.kernels import bert
except ImportError:  # no compiler was found when embedkit was installed
    bert = None  # type: ignore[assignment]
try:
    from embedkit.kernels import wordpiece
except ImportError:
    wordpiece = None  # type: ignore[assignment]


def built() -> dict[str, bool]:
    """Name of each kernel -> whether it is there."""
    return {"bert": bert is not None, "wordpiece": wordpiece is not None}
