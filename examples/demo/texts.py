"""Plain English sentences from a small grammar, deterministic in the seed.

A domain is a TOML file with *slots*, lists of values, and *intents*, groups of templates over these slots. The
intents under ``train`` generate the corpus. Those under ``held_out``, whose templates are paraphrases of each
other and which are filled only with every third value of each slot, generate the evaluation sets; the corpus uses
neither these intents nor these values. Both are still one author's English: the figures compare encoders on this
text and say little about other text.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

Slots = Mapping[str, Sequence[Any]]

_SLOT = re.compile(r"\{(\w+)")
_ARTICLE = re.compile(r"\b([Aa])\(n\) (\w+)")
_SOUNDS_LIKE_A_CONSONANT = ("uni", "use", "eu", "one")
_HELD_OUT_EVERY = 3


@dataclass(frozen=True)
class Intent:
    """Templates over the same slots, and the values of these slots."""

    templates: list[str]
    slots: Slots

    def fillings(self) -> Iterator[dict[str, Any]]:
        """Yield every combination of values for the slots in the templates."""
        names = sorted({name for template in self.templates for name in _SLOT.findall(template)})
        for values in product(*(self.slots[name] for name in names)):
            yield dict(zip(names, values, strict=True))

    def draw(self, rng: random.Random) -> dict[str, Any]:
        """Return a random combination."""
        return rng.choice(list(self.fillings()))

    def say(self, filling: Mapping[str, Any], rng: random.Random, *, times: int = 1) -> list[str]:
        """Fill ``times`` different templates, chosen at random, with the same values."""
        return [sentence(template, filling) for template in rng.sample(self.templates, times)]


@dataclass(frozen=True)
class Domain:
    """The intents of one subject: those for training, and those held out for evaluation."""

    name: str
    train: list[Intent]
    held_out: list[Intent]


def load_domains(folder: Path) -> list[Domain]:
    """Load all domains of a folder, in the order of their names."""
    return [_domain(path) for path in sorted(folder.glob("*.toml"))]


def corpus(domains: Sequence[Domain], count: int, *, seed: int) -> list[str]:
    """Draw ``count`` different sentences, cycling through domains and templates."""
    rng = random.Random(seed)
    queues = [_sentences_in_turn(domain, rng) for domain in domains]
    texts: dict[str, None] = {}
    while queues and len(texts) < count:
        for queue in list(queues):
            text = next(queue, None)
            if text is None:
                queues.remove(queue)
            else:
                texts[text] = None
    return list(texts)[:count]


def scored_pairs(domains: Sequence[Domain], count: int, *, seed: int) -> list[tuple[str, str, float]]:
    """Draw pairs with a similarity from 0 to 5 that follows from their construction.

    5: the same meaning in other words. 3: the same intent with another value in one slot. 2: the same intent with
    other values in all slots. 1: another intent of the domain. 0: another domain.
    """
    rng = random.Random(seed)
    pairs: dict[tuple[str, str], float] = {}
    while len(pairs) < count:
        domain, stranger = rng.sample(domains, 2)
        intent, sibling = rng.sample(domain.held_out, 2)
        filling = intent.draw(rng)
        first, paraphrase = intent.say(filling, rng, times=2)
        pairs[first, paraphrase] = 5.0
        other = intent.draw(rng)
        slot = rng.choice(sorted(filling))
        if len(filling) > 1 and other[slot] != filling[slot]:
            pairs[first, intent.say({**filling, slot: other[slot]}, rng)[0]] = 3.0
        if all(other[name] != filling[name] for name in filling):
            pairs[first, intent.say(other, rng)[0]] = 2.0
        pairs[first, sibling.say(sibling.draw(rng), rng)[0]] = 1.0
        unrelated = rng.choice(stranger.held_out)
        pairs[first, unrelated.say(unrelated.draw(rng), rng)[0]] = 0.0
    return [(first, second, score) for (first, second), score in pairs.items()][:count]


def reranking(domains: Sequence[Domain], count: int, *, seed: int) -> list[dict[str, Any]]:
    """Draw re-ranking samples in MTEB's form: a query, its paraphrases, and texts with other meanings.

    Eight negatives have the query's intent and other values, four come from the other intents of the domain, four
    from other domains.
    """
    rng = random.Random(seed)
    samples: dict[str, dict[str, Any]] = {}
    while len(samples) < count:
        domain, *strangers = rng.sample(domains, 5)
        intent, sibling = rng.sample(domain.held_out, 2)
        filling = intent.draw(rng)
        query, *positive = intent.say(filling, rng, times=len(intent.templates))
        others = [other for other in (intent.draw(rng) for _ in range(8)) if other != filling]
        negative = [intent.say(other, rng)[0] for other in others]
        negative += [sibling.say(sibling.draw(rng), rng)[0] for _ in range(4)]
        for stranger in strangers:
            unrelated = rng.choice(stranger.held_out)
            negative.append(unrelated.say(unrelated.draw(rng), rng)[0])
        samples[query] = {"query": query, "positive": positive, "negative": sorted(set(negative))}
    return list(samples.values())


def _domain(path: Path) -> Domain:
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    kept_back = {name: values[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY] for name, values in tables["slots"].items()}
    shown = {
        name: [value for value in values if value not in kept_back[name]]
        for name, values in tables["slots"].items()
    }
    return Domain(
        name=path.stem,
        train=[Intent(intent["texts"], shown) for intent in tables["train"]],
        held_out=[Intent(intent["texts"], kept_back) for intent in tables["held_out"]],
    )


def _sentences_in_turn(domain: Domain, rng: random.Random) -> Iterator[str]:
    """Return every sentence of a domain once, cycling through all templates."""
    queues = []
    for intent in domain.train:
        for template in intent.templates:
            sentences = sorted({sentence(template, filling) for filling in intent.fillings()})
            rng.shuffle(sentences)
            queues.append(sentences)
    while queues := [queue for queue in queues if queue]:
        yield from [queue.pop() for queue in queues]


def sentence(template: str, filling: Mapping[str, Any]) -> str:
    """Fill a template, choose between *a* and *an*, and capitalise."""
    text = _ARTICLE.sub(_article, template.format_map(filling))
    return text[0].upper() + text[1:]


def _article(match: re.Match[str]) -> str:
    article, word = match.groups()
    vowel = word[0].lower() in "aeiou" and not word.lower().startswith(_SOUNDS_LIKE_A_CONSONANT)
    return f"{article}{'n' if vowel else ''} {word}"
