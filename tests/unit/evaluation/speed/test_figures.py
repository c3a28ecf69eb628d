"""Figures computed from timings, against calculations by hand."""

from __future__ import annotations

import pytest

from embedkit.evaluation.speed.figures import Trial, summarise
from embedkit.evaluation.speed.plan import Workload, cpu_features


def turn(*seconds):
    return Trial(seconds, None)


def test_medians_rates_and_spread():
    found = summarise(
        Workload("short", 4), [turn(0.1, 0.2, 0.3), turn(0.2, 0.2, 0.4), turn(0.25, 0.25, 0.25)], None
    )
    assert (found.texts, found.batch, found.calls) == ("short", 4, 9)
    assert found.p50_ms == pytest.approx(250)
    assert found.texts_per_second == pytest.approx(16)
    assert found.spread_percent == pytest.approx(25)  # medians 0.2, 0.2, 0.25
    assert found.ratio is None


def test_ratios_are_of_the_same_round():
    mine = [turn(0.2), turn(0.4), turn(0.9)]
    first = [turn(0.1), turn(0.4), turn(0.3)]
    assert summarise(Workload("short", 1), mine, first).ratio == pytest.approx(2)  # of 2, 1 and 3
    assert summarise(Workload("short", 1), first, first).ratio == 1


@pytest.mark.parametrize(
    ("calls", "has_p95", "has_p99"), [(19, False, False), (20, True, False), (100, True, True)]
)
def test_a_percentile_needs_enough_calls(calls, has_p95, has_p99):
    found = summarise(Workload("short", 1), [turn(*[0.001] * calls)], None)
    assert (found.p95_ms is not None, found.p99_ms is not None) == (has_p95, has_p99)


X86 = "processor\t: 0\nflags\t\t: fpu sse4_2 avx2 avx512f avx512_vnni\nbugs\t\t: spectre_v1\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd aes asimddp i8mm\nCPU part\t: 0xd40\n"


@pytest.mark.parametrize(
    ("text", "features"),
    [(X86, ["avx2", "avx512f", "avx512_vnni"]), (ARM, ["asimd", "asimddp", "i8mm"]), ("model name : toy\n", [])],
)
def test_cpu_features(tmp_path, text, features):
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_features(tmp_path / "cpuinfo") == features
