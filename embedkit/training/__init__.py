"""Training: from a corpus, and a teacher if there is one, to a run folder with a small encoder in it."""

from __future__ import annotations

__all__: list[str] = []
