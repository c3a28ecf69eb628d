"""Fixtures of the commands' tests."""

from __future__ import annotations

import functools
import sys

import pytest


@pytest.fixture
def no_matplotlib(monkeypatch):
    """Simulate that matplotlib is not installed, also for modules already imported."""
    ours = ("embedkit.training.run_report",)
    for name in list(sys.modules):
        if name in ours or name.startswith("embedkit.reporting") or name.partition(".")[0] == "matplotlib":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture
def one_cold_start(monkeypatch):
    """Let `embedkit bench` measure one cold start per model: each is a process that imports a runtime."""
    from embedkit.evaluation.speed import plan

    monkeypatch.setattr(plan, "Plan", functools.partial(plan.Plan, starts=1))
