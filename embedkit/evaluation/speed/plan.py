"""What to time, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from embedkit.errors import InputError
from embedkit.evaluation.speed.texts import WORDS, english_texts
from embedkit.runtime.threads import available_threads

__all__ = ["Cell", "Plan", "built_in_texts"]

_TEXTS = 256  # of each length
_LEAST_CALLS_OF_ONE = 4  # in a turn: enough for a 95th percentile over five rounds


@dataclass(frozen=True)
class Cell:
    """A kind of call.

    Attributes:
        texts: name of the texts.
        batch: number of texts in a call; 1 is a single text, as a server receives it.
    """

    texts: str
    batch: int


def built_in_texts() -> dict[str, list[str]]:
    """Return texts by name, one name for each length in :data:`~embedkit.evaluation.speed.texts.WORDS`."""
    return {f"{words} words": english_texts(words, _TEXTS) for words in WORDS}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to time, and how often.

    Attributes:
        threads: number of threads of each model, which is bound to the same number of processors.
        rounds: number of rounds; in each, every model takes one turn in every cell.
        seconds: target duration of a turn; fast calls are repeated up to :attr:`most_calls` times.
        most_calls: maximum number of calls in a turn.
        starts: number of fresh processes per model for measuring cold starts, after one that fills caches.
        patience_seconds: cells whose calls take longer are skipped.
        batches: numbers of texts in a call, ascending.
        texts: texts by name.

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
            raise InputError("threads, rounds, starts, batches and seconds must be positive")
        if self.threads > (usable := available_threads()):
            raise InputError(f"{self.threads} threads exceed the {usable} available processors")
        if not self.texts or not all(self.texts.values()):
            raise InputError("there are no texts to time with")

    def cells(self) -> list[Cell]:
        """Return all cells, the fast ones of each text first."""
        return [Cell(name, batch) for name in self.texts for batch in sorted(self.batches)]

    def calls(self, cell: Cell, seconds: float) -> int:
        """Return the number of calls in a turn, given the duration of one."""
        least = _LEAST_CALLS_OF_ONE if cell.batch == 1 else 1
        return max(least, min(self.most_calls, round(self.seconds / max(seconds, 1e-9))))
