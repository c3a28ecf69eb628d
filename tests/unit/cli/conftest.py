"""Fixtures of the commands' tests."""

from __future__ import annotations

import functools

import pytest


@pytest.fixture
def one_cold_start(monkeypatch):
    """Let `embedkit bench` measure one cold start per model: each is a process that imports a runtime."""
    from embedkit.evaluation.speed import plan

    monkeypatch.setattr(plan, "Plan", functools.partial(plan.Plan, starts=1))
