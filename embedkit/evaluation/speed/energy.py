"""Energy used by the processors, from Linux's RAPL counters of Intel and AMD.

A counter covers its whole processor, including other programs and idle cores. On most systems only root can read
it.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["EnergyMeter"]

_COUNTERS = Path("/sys/class/powercap")


class EnergyMeter:
    """Counts joules since :meth:`start`.

    Args:
        root: folder of the counters; other values are for tests.
    """

    def __init__(self, root: Path = _COUNTERS) -> None:
        # intel-rapl:0 is a processor; intel-rapl:0:1 is a part of it that would be counted twice.
        self._counters = [path for path in sorted(root.glob("intel-rapl:*")) if path.name.count(":") == 1]
        self._before = self._read()

    def start(self) -> None:
        """Reset the count to 0."""
        self._before = self._read()

    def joules(self) -> float | None:
        """Return the energy used by all processors since the start, or None if it is not available."""
        now = self._read()
        if not now or len(now) != len(self._before):
            return None
        pairs = zip(now, self._before, strict=True)
        return sum((after - before) % around for (after, around), (before, _) in pairs) / 1e6

    def _read(self) -> list[tuple[int, int]]:
        """Return the microjoules of each processor, and the value at which its counter wraps around."""
        try:
            return [
                (int((path / "energy_uj").read_text()), int((path / "max_energy_range_uj").read_text()) + 1)
                for path in self._counters
            ]
        except (OSError, ValueError):  # no permission
            return []
