"""Admission control: how much work is waiting, in seconds, and whether to accept more."""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

from embedkit.errors import OverloadedError

_LARGEST_PART = 4  # one request counts for at most 1 / 4 of the queue
_ROOM = 2  # a request must leave capacity for another one like it
_NS = 1_000_000_000  # admitted work is counted in integer nanoseconds, so that it returns to exactly 0
_MEMORY = 0.2  # weight of the newest work in a rate


class Caller(NamedTuple):
    """The client of a request, by the name of its API key, if any, and its deadline by the monotonic clock.

    ``share`` is the part of the admitted work that requests with this key may hold.
    """

    name: str = ""
    share: float = 1.0
    deadline: float | None = None
    may_write: bool = True


ANYBODY = Caller()
CALLER: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)


class Rate:
    """Units of one kind of work per second: a guess, until it is learned from completed work."""

    def __init__(self, guess: float) -> None:
        self._per_s, self._learned = guess, False

    def learn(self, units: float, seconds: float) -> None:
        """Record the duration of completed work."""
        if units > 0:
            rate = units / max(seconds, 1e-9)
            self._per_s += (rate - self._per_s) * (_MEMORY if self._learned else 1)
            self._learned = True

    def seconds(self, units: float) -> float:
        """Estimate the duration of work."""
        return units / self._per_s


@dataclass(slots=True)
class Reservation:
    """Admitted work that is not complete: its estimated duration, and what it counts for in the queue."""

    name: str
    work_ns: int = 0
    charge_ns: int = 0


class Admission:
    """Admits work while waiting and running work stay below some seconds; belongs to one event loop.

    The cost of a request is estimated from its size before any work is spent on it: tokens to run, documents to
    scan, filter or write, each by the rate that this server has achieved. A request must leave capacity for
    another one like it, and counts for at most a quarter of the queue: expensive requests never fill the queue for
    cheap ones, with which they take turns, and no request is too expensive to ever be admitted.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._largest_s = limit_s / _LARGEST_PART
        self._reserved_ns = self._charged_ns = 0
        self._charged_ns_by_name: defaultdict[str, int] = defaultdict(int)

    @property
    def reserved_s(self) -> float:
        """Seconds of admitted work that is not complete."""
        return self._reserved_ns / _NS

    @contextlib.contextmanager
    def reserve(self, seconds: float) -> Iterator[Reservation]:
        """Admit work of an estimated duration, which the block may correct, and count it until the block ends.

        Too much work, in total or for this caller, and work that would end after the caller's deadline are
        OverloadedErrors with the time to retry after.
        """
        caller = CALLER.get()
        self._require_room(seconds, caller)
        reservation = Reservation(caller.name)
        self.correct(reservation, seconds)
        try:
            yield reservation
        finally:
            self.correct(reservation, 0.0)

    def correct(self, reservation: Reservation, seconds: float) -> None:
        """Replace the estimate of admitted work."""
        work_ns, charge_ns = int(seconds * _NS), int(min(seconds, self._largest_s) * _NS)
        self._reserved_ns += work_ns - reservation.work_ns
        self._charged_ns += charge_ns - reservation.charge_ns
        self._charged_ns_by_name[reservation.name] += charge_ns - reservation.charge_ns
        reservation.work_ns, reservation.charge_ns = work_ns, charge_ns

    def _require_room(self, seconds: float, caller: Caller) -> None:
        if not self._reserved_ns:
            return
        wanted, reserved_s = _ROOM * min(seconds, self._largest_s), self.reserved_s
        mine = self._charged_ns_by_name[caller.name] / _NS
        if self._charged_ns and self._charged_ns / _NS + wanted > self._limit_s:
            raise OverloadedError(
                f"{reserved_s:.2f} s of work are queued; try again later", _whole_seconds(reserved_s)
            )
        if mine > 0 and mine + wanted > caller.share * self._limit_s:
            raise OverloadedError(
                f"requests with the key {caller.name!r} have {mine:.2f} s of work queued, which is their whole "
                "share; try again later",
                _whole_seconds(mine),
            )
        left = math.inf if caller.deadline is None else caller.deadline - time.monotonic()
        if 0 < left < reserved_s:  # AccessControl handles deadlines that have already passed
            raise OverloadedError(
                f"{reserved_s:.2f} s of work are queued, more than the time limit of this request; "
                "try again later",
                _whole_seconds(reserved_s),
            )


def _whole_seconds(seconds: float) -> int:
    return max(1, math.ceil(seconds))
