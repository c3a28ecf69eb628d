"""Energy that processors used, where Linux tells it: the RAPL counters of Intel and AMD.

A counter covers its whole processor, whatever runs on it, idle cores included. Most systems let only root read it.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["EnergyMeter"]

_COUNTERS = Path("/sys/class/powercap")


class EnergyMeter:
    """Counts joules since :meth:`start`.

    Args:
        root: where the counters stand; another place only in tests.
    """

    def __init__(self, root: Path = _COUNTERS) -> None:
        # intel-rapl:0 is a processor; intel-rapl:0:1 is a part of it, and would count twice.
        self._counters = [path for path in sorted(root.glob("intel-rapl:*")) if path.name.count(":") == 1]
        self._before = self._read()

    def start(self) -> None:
        """Begin at 0."""
        self._before = self._read()

    def joules(self) -> float | None:
        """Used since the start by all processors together; None where the machine does not tell."""
        now = self._read()
        if not now or len(now) != len(self._before):
            return None
        pairs = zip(now, self._before, strict=True)
        return sum((after - before) % around for (after, around), (before, _) in pairs) / 1e6

    def _read(self) -> list[tuple[int, int]]:
        """Microjoules of each processor, and where its counter starts again."""
        try:
            return [
                (int((path / "energy_uj").read_text()), int((path / "max_energy_range_uj").read_text()) + 1)
                for path in self._counters
            ]
        except (OSError, ValueError):  # no permission
            return []
