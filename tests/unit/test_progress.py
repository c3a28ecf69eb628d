"""Progress: a bar on a terminal for long work, log lines elsewhere, nothing if disabled."""

from __future__ import annotations

import io
import logging
import os
import shutil
import sys

import pytest
from toys import Terminal

from embedkit import progress as progress_module
from embedkit.progress import Progress


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(progress_module, "time", made)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((120, 20)))
    return made


def test_where_only_errors_are_shown_there_is_no_bar_unless_asked(clock, caplog):
    caplog.set_level(logging.ERROR, logger="embedkit")
    for enabled, shown in ((None, False), (True, True)):
        terminal = Terminal()
        with Progress("encode", 10, enabled=enabled, stream=terminal) as progress:
            clock.now += 10
            progress.advance(5)
        assert bool(terminal.getvalue()) is shown


def test_short_work_shows_nothing_unless_asked(clock):
    for enabled, shown in ((None, False), (True, True), (False, False)):
        terminal = Terminal()
        with Progress("encode", 10, enabled=enabled, stream=terminal) as progress:
            clock.now += 1.5
            progress.advance(10)
        assert bool(terminal.getvalue()) is shown


def test_long_work_shows_a_bar_that_moves(clock):
    terminal = Terminal()
    with Progress("encode", 100, stream=terminal) as progress:
        for _ in range(100):
            clock.now += 0.25
            progress.advance()
    drawn = terminal.getvalue().count("\r")
    assert 90 <= drawn <= 95
    assert terminal.getvalue().endswith("\n")


def test_elsewhere_lines_are_logged_periodically(clock, caplog):
    caplog.set_level(logging.INFO, logger="embedkit")
    stream = io.StringIO()
    with Progress("encode", 100, unit="texts", stream=stream) as progress:
        for _ in range(100):
            clock.now += 0.25
            progress.advance()
    assert caplog.messages == [
        "encode  40%  40/100 texts, 4/s  0m15s left",
        "encode  80%  80/100 texts, 4/s  0m05s left",
    ]
    assert stream.getvalue() == ""


def test_a_bar_ends_its_line_when_the_work_fails(clock):
    terminal = Terminal()

    def work():
        with Progress("encode", 10, enabled=True, stream=terminal) as progress:
            clock.now += 1
            progress.advance()
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        work()
    assert terminal.getvalue().endswith("\n")


def test_a_process_without_stderr_works(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with Progress("encode", 10, enabled=True) as progress:
        clock.now += 1
        progress.advance(10)
    assert progress.done == 10
