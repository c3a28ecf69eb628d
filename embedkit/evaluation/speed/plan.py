"""What is to be timed, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from embedkit.errors import InputError
from embedkit.evaluation.speed.texts import WORDS, english_texts
from embedkit.runtime.threads import available_threads

__all__ = ["Cell", "Plan", "built_in_texts"]

_TEXTS = 256  # of each length
_LEAST_CALLS_OF_ONE = 4  # in a turn, so that five rounds have a 95th percentile


@dataclass(frozen=True)
class Cell:
    """Calls of one kind.

    Attributes:
        texts: name of the texts.
        batch: texts of a call; 1 is one text, as a server gets it.
    """

    texts: str
    batch: int


def built_in_texts() -> dict[str, list[str]]:
    """Texts by name, one name for each length of :data:`~embedkit.evaluation.speed.texts.WORDS`."""
    return {f"{words} words": english_texts(words, _TEXTS) for words in WORDS}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be timed, and how often.

    Attributes:
        threads: of each model, which is bound to as many processors.
        rounds: in each of them every model takes its turn at every cell.
        seconds: that a turn should last; fast calls are repeated, up to :attr:`most_calls` times.
        most_calls: in a turn.
        starts: fresh processes of each model, by which its cold start is measured, after one that fills caches.
        patience_seconds: a cell of which one call takes longer is left out.
        batches: texts of a call, ascending.
        texts: by name.

    Raises:
        InputError: a number is not positive, there are no texts, or more threads than processors.
    """

    threads: int = 2
    rounds: int = 5
    seconds: float = 0.4
    most_calls: int = 200
    starts: int = 3
    patience_seconds: float = 4.0
    batches: tuple[int, ...] = (1, 8, 32, 128)
    texts: Mapping[str, list[str]] = field(default_factory=built_in_texts)

    def __post_init__(self) -> None:
        if min(self.threads, self.rounds, self.starts, self.most_calls, *self.batches) < 1 or self.seconds <= 0:
            raise InputError("threads, rounds, starts, batches and seconds of a timing must be above 0")
        if self.threads > (usable := available_threads()):
            raise InputError(f"{self.threads} threads on {usable} usable processors would time their queue")
        if not self.texts or not all(self.texts.values()):
            raise InputError("there are no texts to time with")

    def cells(self) -> list[Cell]:
        """All of them, the quick ones of each text first."""
        return [Cell(name, batch) for name in self.texts for batch in sorted(self.batches)]

    def calls(self, cell: Cell, seconds: float) -> int:
        """Calls of a turn, where one takes so long."""
        least = _LEAST_CALLS_OF_ONE if cell.batch == 1 else 1
        return max(least, min(self.most_calls, round(self.seconds / max(seconds, 1e-9))))
