"""Replacement of words by synonyms."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

import numpy as np

from embedkit.errors import InputError
from embedkit.training.wordnet import WordNet

__all__ = ["SynonymReplacement"]

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")
# WordNet lists some of them as nouns ("in" is an inch, "as" arsenic, "i" iodine).
_STAY = """
    a about above after again against all am among an and any are as at be because been before being
    below between both but by can could did do does doing down during each few for from had has have
    having he her here hers him his how i if in into is it its just may me might more most must my no nor
    not now of off on once one only or other our ours out over own same shall she should so some such
    than that the their theirs them then there these they this those through to too under until up upon
    us very was we were what when where which while who whom whose why will with within without would yes
    you your yours
"""
_FUNCTION_WORDS = frozenset(_STAY.split())


class SynonymReplacement:
    """Replaces words by synonyms, each drawn from all senses of the word; function words are kept.

    SCT's ablation replaces one word of a sentence, BSL 30 %. The random choices depend only on the text and the
    seed, so the same text is always rewritten in the same way. Words are looked up as written: inflected forms
    are kept, and replacements need no inflection. A text without any known word is returned unchanged.

    Args:
        wordnet: the source of synonyms.
        share: share of a text's words to replace, rounded; at least one word is replaced, so 0 means one.
        seed: seed of the random choices.

    Raises:
        InputError: ``share`` is not in [0, 1].

    Source: Limkonchotiwat et al., TACL 2023 (SCT), ablation of augmentations; Zhang et al., ACL 2021 (BSL).
    """

    name = "WordNet"

    def __init__(self, wordnet: WordNet, *, share: float = 0.0, seed: int = 0) -> None:
        if not 0 <= share <= 1:
            raise InputError(f"share must be between 0 and 1, not {share}")
        self._wordnet, self._share, self._seed = wordnet, share, seed
        parts = json.dumps(["synonyms", float(share), seed, wordnet.fingerprint])
        self.fingerprint = hashlib.sha256(parts.encode()).hexdigest()

    def rewrite(self, texts: Sequence[str]) -> list[str]:
        """See :class:`~embedkit.training.rewriters.Rewriter`."""
        return [self._rewrite(text) for text in texts]

    def _rewrite(self, text: str) -> str:
        words = list(_WORD.finditer(text))
        known = [word for word in words if self._synonyms(word.group())]
        generator = _generator(text, self._seed)
        count = max(1, round(self._share * len(words)))
        drawn = {known[place].start() for place in generator.permutation(len(known))[:count]}

        def replace(word: re.Match[str]) -> str:
            if word.start() not in drawn:
                return word.group()
            synonyms = self._synonyms(word.group())
            return _in_case_of(word.group(), synonyms[int(generator.integers(len(synonyms)))])

        return _WORD.sub(replace, text)

    def _synonyms(self, word: str) -> list[str]:
        return [] if word.lower() in _FUNCTION_WORDS else self._wordnet.synonyms(word)


def _generator(text: str, seed: int) -> np.random.Generator:
    words = np.frombuffer(hashlib.sha256(text.encode("utf-8")).digest(), dtype="<u4")
    return np.random.default_rng([seed, *words.tolist()])


def _in_case_of(word: str, synonym: str) -> str:
    if len(word) > 1 and word.isupper():
        return synonym.upper()
    return synonym[0].upper() + synonym[1:] if word[0].isupper() else synonym
