"""The compiled kernels, one C file each, and None for those that were not built. See ``docs/install.md``.

All are optional: without a compiler they are absent. To add one: its C file and its stub here, an entry in
``build_kernels.py``, a line below.
"""

from __future__ import annotations

__all__ = ["bert", "built", "unigram", "wordpiece"]

try:
    from embedkit.kernels import bert
except ImportError:  # no compiler was available when embedkit was installed
    bert = None  # type: ignore[assignment]
try:
    from embedkit.kernels import wordpiece
except ImportError:
    wordpiece = None  # type: ignore[assignment]
try:
    from embedkit.kernels import unigram
except ImportError:
    unigram = None  # type: ignore[assignment]


def built() -> dict[str, bool]:
    """Return whether each kernel was built, by name."""
    return {"bert": bert is not None, "unigram": unigram is not None, "wordpiece": wordpiece is not None}
