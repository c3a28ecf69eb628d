"""Joules from the counters of Linux, where it has them."""

from __future__ import annotations

import pytest

from embedkit.evaluation.speed.worker import EnergyMeter


@pytest.fixture
def counter(tmp_path):
    """``counter(name, microjoules)`` sets a counter that wraps around after 999,999."""

    def write(name, microjoules):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "energy_uj").write_text(f"{microjoules}\n")
        (folder / "max_energy_range_uj").write_text("999999\n")

    return write


def test_all_processors_count_and_none_twice(counter, tmp_path):
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        counter(name, 1000)
    meter = EnergyMeter(tmp_path)
    meter.start()
    counter("intel-rapl:0", 251_000)
    counter("intel-rapl:1", 501_000)
    counter("intel-rapl:0:0", 900_000)
    assert meter.joules() == pytest.approx(0.75)


def test_a_counter_may_wrap_around(counter, tmp_path):
    counter("intel-rapl:0", 900_000)
    meter = EnergyMeter(tmp_path)
    meter.start()
    counter("intel-rapl:0", 100_000)
    assert meter.joules() == pytest.approx(0.2)


def test_a_machine_without_counters_has_no_energy(tmp_path):
    assert EnergyMeter(tmp_path / "missing").joules() is None


def test_an_unreadable_counter_has_no_energy(counter, tmp_path):
    counter("intel-rapl:0", 1)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    (tmp_path / "intel-rapl:0" / "energy_uj").mkdir()  # unreadable even for root
    assert EnergyMeter(tmp_path).joules() is None
