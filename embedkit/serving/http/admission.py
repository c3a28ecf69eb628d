"""Admission: how much work is waiting, in seconds, and whether there is room for more."""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from embedkit.errors import OverloadedError

__all__ = ["CALLER", "Admission", "Caller", "Held", "Rate"]

_LARGEST_PART = 4  # one request counts for this part of the queue at most
_ROOM = 2  # a request has to find room for itself and another one like it
_NS = 1_000_000_000  # admitted work is counted in whole nanoseconds, so that what came and went leaves 0
_MEMORY = 0.2  # weight of the newest work in a rate


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and until when an answer is of use.

    Attributes:
        name: of the API key; empty where none is needed.
        share: part of the admitted work that requests under this name may hold.
        deadline: time of the event loop's monotonic clock; None for none.
        may_write: whether the key has the scope ``write``.
    """

    name: str = ""
    share: float = 1.0
    deadline: float | None = None
    may_write: bool = True


CALLER: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 - it is frozen


class Rate:
    """How many units of one kind of work are done in a second, learned from work done.

    Args:
        guess: units a second, until the first is done.
    """

    def __init__(self, guess: float) -> None:
        self._per_s, self._learned = guess, False

    def learn(self, units: float, seconds: float) -> None:
        """So many units took so long."""
        if units > 0:
            found = units / max(seconds, 1e-9)
            self._per_s += (found - self._per_s) * (_MEMORY if self._learned else 1)
            self._learned = True

    def seconds(self, units: float) -> float:
        """How long so many units will take."""
        return units / self._per_s


class Held:
    """Work that was let in and is not done yet.

    Attributes:
        work_ns: nanoseconds that it takes.
        charge_ns: nanoseconds that it counts for in the queue.
    """

    __slots__ = ("charge_ns", "work_ns")

    def __init__(self) -> None:
        self.work_ns = self.charge_ns = 0


class Admission:
    """Lets work in while what is waiting and at work stays below a number of seconds; belongs to one event loop.

    The cost of a request is estimated from its size before anything is spent on it: tokens to run, documents to
    scan, filter or write, each by the rate at which this server has done such work. A request has to leave room
    for another one like it, and counts for a quarter of the queue at most: so costly requests never fill the queue
    for cheap ones, with which they take turns, and none is too costly to be let in ever.

    Args:
        limit_s: seconds of work.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._largest_s = limit_s / _LARGEST_PART
        self._held_ns = self._charged_ns = 0
        self._charged_ns_by_name: defaultdict[str, int] = defaultdict(int)

    @property
    def held_s(self) -> float:
        """Seconds of work that were let in and are not done."""
        return self._held_ns / _NS

    @contextlib.contextmanager
    def hold(self, seconds: float) -> Iterator[Held]:
        """Let work in, and count it until the block ends.

        Args:
            seconds: that it will take; the block may correct them in what it gets.

        Raises:
            OverloadedError: too much is waiting, for all or for this caller, or the work would be done after the
                caller's deadline; says when to try again.
        """
        self._require_room(seconds, CALLER.get())
        held = Held()
        self.correct(held, seconds)
        try:
            yield held
        finally:
            self.correct(held, 0.0)

    def correct(self, held: Held, seconds: float) -> None:
        """Replace the estimate of work that was let in."""
        work_ns, charge_ns = int(seconds * _NS), int(min(seconds, self._largest_s) * _NS)
        self._held_ns += work_ns - held.work_ns
        self._charged_ns += charge_ns - held.charge_ns
        self._charged_ns_by_name[CALLER.get().name] += charge_ns - held.charge_ns
        held.work_ns, held.charge_ns = work_ns, charge_ns

    def _require_room(self, seconds: float, caller: Caller) -> None:
        if not self._held_ns:
            return
        wanted, held_s = _ROOM * min(seconds, self._largest_s), self.held_s
        mine = self._charged_ns_by_name[caller.name] / _NS
        if self._charged_ns and self._charged_ns / _NS + wanted > self._limit_s:
            raise OverloadedError(f"{held_s:.2f} s of work are waiting; try again later", _whole_seconds(held_s))
        if mine > 0 and mine + wanted > caller.share * self._limit_s:
            raise OverloadedError(
                f"requests with the key {caller.name!r} have {mine:.2f} s of work waiting, which is all of their "
                "share; try again later",
                _whole_seconds(mine),
            )
        left = math.inf if caller.deadline is None else caller.deadline - time.monotonic()
        if 0 < left < held_s:  # a deadline that has passed already is the guard's to answer
            raise OverloadedError(
                f"{held_s:.2f} s of work are waiting, more than this request's timeout; try again later",
                _whole_seconds(held_s),
            )


def _whole_seconds(seconds: float) -> int:
    return max(1, math.ceil(seconds))
