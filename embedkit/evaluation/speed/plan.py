"""The plan of a benchmark: models, repetitions, the machine, and the built-in texts.

The texts are English of given lengths, generated from a small grammar: equal on every machine and free of
copyright. The cost of encoding depends on the number of tokens and hardly on the words. These texts contain
names, numbers and rare words, and therefore about as many word pieces per word as Wikipedia, 1.35 of BERT's.
"""

from __future__ import annotations

import os
import platform
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from embedkit import __version__
from embedkit.errors import InputError
from embedkit.extras import installed_versions
from embedkit.threads import available_threads

BF16 = "avx512_bf16"
# Features that determine the speed of int8, the best export target (see `embedkit export --help`), and training.
_CPU_FEATURES = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", BF16, "amx_int8", "asimd", "asimddp", "i8mm", "sve")
DECIDING_PACKAGES = ("numpy", "onnxruntime", "tokenizers", "torch", "transformers")
_CPUINFO = Path("/proc/cpuinfo")


def describe_machine() -> dict[str, Any]:
    """Return a JSON-serialisable description; values are None where the system does not report them."""
    return {
        "processor": processor_name(),
        "processors": os.cpu_count(),
        "usable": available_threads(),
        "features": cpu_features(),
        "memory_bytes": _memory_bytes(),
        "load": system_load(),
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {"embedkit": __version__, **installed_versions(DECIDING_PACKAGES)},
    }


def processor_name(cpuinfo: Path = _CPUINFO) -> str:
    """Return the processor's name, which Linux reports only in a file."""
    line = re.search(r"^model name\s*:(.*)$", _read(cpuinfo) or "", re.MULTILINE)
    return line.group(1).strip() if line else platform.processor() or platform.machine()


def cpu_features(cpuinfo: Path = _CPUINFO) -> list[str] | None:
    """Return the processor's features that determine speed, or None if the system does not report them."""
    text = _read(cpuinfo)
    if text is None:
        return None
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    flags = set(line.group(1).split()) if line else set()
    return [feature for feature in _CPU_FEATURES if feature in flags]


def system_load() -> float | None:
    """Return the load average of the last minute, or None if the system does not report it."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None  # not on Windows


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


WORDS = (8, 24, 72)
"""Default lengths in words: a question, a sentence, a paragraph."""

_OPENINGS = """
    in_the_morning after_the_war two_years_later for_most_visitors according_to_the_report in_1874
    during_the_summer as_a_result on_the_other_hand in_recent_decades by_contrast despite_the_delay in_2019
    after_about_12.5_hours at_noon_(local_time) for_£1,300
"""
_DETERMINERS = "the the the every this that our their another no one Okonkwo's"
_ADJECTIVES = """
    old new small large quiet early municipal industrial northern unusual abandoned half-finished careful
    electric medieval temporary local experimental reliable narrow well-known expensive independent
"""
_NOUNS = """
    committee bridge engine student river laboratory manuscript harbour password computer village election
    membrane hospital railway seismograph telescope newspaper recipe counterweight cathedral algorithm vaccine
    neighbour translation orchard winter glaciologist parliament mountain
"""
_VERBS = """
    describes replaced crosses measured repaired influenced rejected surrounds published overflowed supports
    dismantled follows restored interrupted carried inspected discovered dominates explains
"""
_PLACES = """
    near_the_border in_the_laboratory without_a_licence across_the_valley before_midnight under_pressure
    for_several_weeks on_the_mainland with_Lindqvist's_help at_the_university through_the_archives
    (see_page_214) for_nearly_$3.75_million
"""
_PHRASE = ((1.0, _DETERMINERS), (0.6, _ADJECTIVES), (1.0, _NOUNS))
# The parts of a clause in order, each with the share of clauses that have it; "_" stands for a space.
_CLAUSE = ((0.3, _OPENINGS), *_PHRASE, (1.0, _VERBS), *_PHRASE, (0.5, _PLACES))


def english_texts(words: int, count: int) -> list[str]:
    """Return texts of an exact number of words, at least 1; the last clause of a text may be cut short."""
    generator = random.Random(f"0 {words}")  # noqa: S311 - for texts, not secrets
    texts = []
    for _ in range(count):
        text: list[str] = []
        while len(text) < words:
            for share, phrases in _CLAUSE:
                if generator.random() < share:
                    text += generator.choice(phrases.split()).split("_")
            text[-1] += generator.choice(".,")
        texts.append(" ".join(text[:words]))
    return texts


_TEXTS = 256  # of each length
_LEAST_CALLS_OF_ONE = 4  # in a turn: enough for a 95th percentile over five rounds


class Workload(NamedTuple):
    """A kind of call: ``batch`` of the named texts; 1 is a single text, as a server receives it."""

    texts: str
    batch: int


def built_in_texts() -> dict[str, list[str]]:
    """Return texts by name, one name for each length in :data:`WORDS`."""
    return {f"{words} words": english_texts(words, _TEXTS) for words in WORDS}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The models to time, and the repetitions.

    Attributes:
        threads: threads of each model, which is bound to the same number of processors.
        rounds: in each, every model takes one turn in every cell.
        seconds: target duration of a turn; fast calls are repeated up to :attr:`most_calls` times.
        most_calls: maximum number of calls in a turn.
        starts: fresh processes per model for measuring cold starts, after one that fills caches.
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

    def cells(self) -> list[Workload]:
        """Return all cells, the fast ones of each text first."""
        return [Workload(name, batch) for name in self.texts for batch in sorted(self.batches)]

    def calls(self, cell: Workload, seconds: float) -> int:
        """Return the number of calls in a turn, given the duration of one."""
        least = _LEAST_CALLS_OF_ONE if cell.batch == 1 else 1
        return max(least, min(self.most_calls, round(self.seconds / max(seconds, 1e-9))))
