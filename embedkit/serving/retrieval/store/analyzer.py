"""Keyword analysis: cuts texts into the terms of a keyword index.

A word is a run of letters, digits, underscores and combining marks, and gives one term: its Snowball stem (Porter,
https://snowballstem.org) in its language, without regard to case, accents and Unicode form (NFKC). An identifier
gives its parts and the whole, without what joins them: ``max_body_bytes``, ``getUserName``, ``JSON2Dict``; numbers
keep their points (``3.11.2``). A word in Latin script that has another stem without accents gives both.
Scripts without spaces, and Hangul, which joins particles to words, are cut into pairs of adjacent characters, and
Han also into single ones. No word is left out; in queries, the most frequent words of a language count half.

Which languages are stemmed is part of an :class:`Analyzer`, which is recorded with its terms.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast

from embedkit.errors import MissingExtraError
from embedkit.extras import require
from embedkit.runtime.arguments import check_choice

logger = logging.getLogger(__name__)

VERSION: Final = 5
"""Version of the analysis; texts cut by another one have to be indexed again."""

PLAIN: Final = "none"
"""The name of an analyzer without stems."""

FREQUENT: Final = {
    language: frozenset(words.split())
    for language, words in {
        "basque": "eta da ez bat du zen baina dira hau egin izan dute",
        "catalan": "els amb és una per als del dels aquest aquesta però més també",
        "danish": "og det er en af til på ikke med jeg har der som blev",
        "dutch": "de het een van en dat niet zijn voor met aan ook worden wordt",
        "english": "the of and to in is that for it with are was be on as by this an or at from "
        "have has do does not can "
        "could would should will you your my we our they their there how what which when where who why if any",
        "estonian": "ja on ei see et kui oli mis ning aga siis tema",
        "finnish": "ja on ei että se oli joka mutta hän ovat sekä myös",
        "french": "le les des et est une du que dans qui pour pas sur vous avec ce",
        "german": "der die und das ist nicht mit den von für ein eine auf zu werden sich",
        "hungarian": "az egy és hogy nem is meg van volt csak ez azt",
        "indonesian": "yang dan di dengan untuk tidak ini dari dalam adalah pada akan",
        "irish": "agus an na ar bhí sé is go leis seo raibh",
        "italian": "il di che è la per non una sono con del della gli nel anche",
        "lithuanian": "ir yra kad tai su bet kaip buvo jis iš apie",
        "norwegian": "og det er en av til på ikke med jeg har som ble fra",
        "portuguese": "o que não uma para com os do da em é são mais pelo você",
        "romanian": "și de în la este cu nu care pe sau din pentru sunt",
        "spanish": "el que los las de por con para una del es se no como más",
        "swedish": "och det är en av att på inte med jag har som för till",
        "turkish": "ve bir bu için ile de da olarak değil çok daha gibi",
    }.items()
}
"""Frequent words of the languages in Latin script, by which languages are detected."""

_OF_SCRIPT: Final = {
    "ARABIC": "arabic",
    "ARMENIAN": "armenian",
    "CYRILLIC": "russian",
    "DEVANAGARI": "hindi",
    "GREEK": "greek",
    "TAMIL": "tamil",
}
LANGUAGES: Final = (*sorted((*FREQUENT, *_OF_SCRIPT.values(), "nepali", "serbian", "yiddish")), PLAIN)

_LONGEST_FOLDED = 200
_LEAST_SHARE = 0.05  # of the texts of a collection, for a language to count

_TOKEN = re.compile(r"\w+(?:[-.]\w+)*", re.ASCII)
_PART = re.compile(r"[^-._]+")
_HUMP = re.compile(
    r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    r"|(?<=[0-9])(?=[A-Z][a-z]{2})|(?<=[A-Za-z])(?=[0-9]+[A-Z][a-z]{2})"  # JSON2Dict, but not H2O or E2Fs
)

# Characters that do not distinguish words, in NFKC: soft hyphens, joiners, directions and variation selectors;
# Hebrew points, Arabic vowel signs and tatweel, which most writers leave out.
_OMITTED = re.compile(
    "[\u00ad\u034f\u061c\u200c-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef"
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u0652\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed]"
)
_SIGNS = re.compile("[\u2120\u2122]")  # superscript SM and TM, whose NFKC would be letters of the word before
_ACCENTS = re.compile("[\u0300-\u036f]+")  # the combining marks of Latin, Greek and Cyrillic
_HAN_SET = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED_SET = (
    _HAN_SET + "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # Kana
    "\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3"  # Hangul
    "\u0e01-\u0e4f\u0e80-\u0eff\u1000-\u109f\u1780-\u17d3\u1980-\u19df\u1a20-\u1a9f\ua9e0-\ua9ff\uaa60-\uaadf"
)  # Thai, Lao, Burmese, Khmer, New Tai Lue, Tai Tham, extended Burmese and Tai Viet
_HAN, _UNSPACED = re.compile(f"[{_HAN_SET}]"), re.compile(f"[{_UNSPACED_SET}]")


_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i"})  # noqa: RUF001


@dataclass(frozen=True)
class Analyzer:
    """Cuts texts into terms; thread-safe.

    Attributes:
        languages: Snowball's names of the languages whose words are stemmed; without any, words are kept as they
            are. A text in Latin script is stemmed in that one of them whose frequent words it has, and a query in
            all of them.

    Raises:
        InputError: there are no stems for a language.
        MissingExtraError: a word has to be stemmed, and PyStemmer is not installed.
    """

    languages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for language in self.languages:
            check_choice(language, LANGUAGES[:-1], "language")

    @classmethod
    def named(cls, name: str) -> Analyzer:
        """Return the analyzer with a recorded :attr:`name`, or for one language."""
        return cls(() if name == PLAIN else tuple(name.split("+")))

    @classmethod
    def of_languages(cls, counts: Mapping[str, int]) -> Analyzer:
        """Return the analyzer for texts of which so many are in each language.

        Without PyStemmer, it is the one without stems, and a warning is logged.
        """
        least = max(1, _LEAST_SHARE * sum(counts.values()))
        languages = tuple(sorted(language for language, count in counts.items() if count >= least))
        try:
            list(map(_stemmer, languages))
        except MissingExtraError as error:
            _warn_without_stems(str(error))
            return cls()
        return cls(languages)

    @property
    def name(self) -> str:
        """The languages in one word, or :data:`PLAIN`."""
        return "+".join(self.languages) or PLAIN

    def terms(self, text: str) -> list[str]:
        """Return the terms of a document's text, in order."""
        tokens = tokenize(text)
        latin = [language for language in self.languages if language in FREQUENT]
        language = max(
            latin, key=lambda one: sum(token.lower() in FREQUENT[one] for token in tokens), default=PLAIN
        )
        return [term for token in tokens for term in self.cut(token, language)]

    def query_terms(self, query: str) -> dict[str, float]:
        """Return the terms of a query, in all languages, with their weights: how often each occurs.

        Frequent words of the language count half, which leaves the order of a query of such words as it is.
        """
        weights: dict[str, float] = {}
        languages = self.languages or (PLAIN,)
        for token in tokenize(query):
            weight = 0.5 if any(token.lower() in FREQUENT.get(language, ()) for language in languages) else 1.0
            for term in dict.fromkeys(term for language in languages for term in self.cut(token, language)):
                weights[term] = weights.get(term, 0.0) + weight
        return weights

    def cut(self, token: str, language: str) -> tuple[str, ...]:
        """Return the terms of one of the tokens of :func:`tokenize`, whose text is in this language."""
        if token.isascii() and token.isalnum() and (word := token.lower())[1:] == token[1:]:
            return self._stems(word, language)
        parts = [part for run in _PART.findall(token) for part in _HUMP.split(run)]
        terms = list(itertools.chain.from_iterable(self._cut_word(part.casefold(), language) for part in parts))
        if len(parts) > 1:
            whole = ("" if any(map(str.isalpha, token)) else ".").join(parts)
            terms += self._cut_word(whole.casefold(), language)
        return tuple(terms)

    def _cut_word(self, word: str, language: str) -> Iterable[str]:
        if not _UNSPACED.search(word):
            return self._stems(word, language)
        runs = filter(None, _patterns()[1].split(word))
        pieces = (_pieces(run) if _UNSPACED.match(run) else self._stems(run, language) for run in runs)
        return itertools.chain.from_iterable(pieces)

    def _stems(self, word: str, language: str) -> tuple[str, ...]:
        """Return the stem of a word, and that of the word as written without accents, if it is another one."""
        script = "ASCII" if word.isascii() else _script(word)
        language = _OF_SCRIPT.get(script, language)
        if language not in self.languages:
            return (_fold(word),)
        stem = _stemmer(language)
        first = _fold(stem(word))
        bare = _fold(stem(_fold(word))) if script == "LATIN" else first
        return (first,) if bare == first else (first, bare)


def tokenize(text: str) -> list[str]:
    """Return the words of a text, and identifiers whole, in their case."""
    if text.isascii():
        return _TOKEN.findall(text)
    token, _, _, many_marks = _patterns()
    text = many_marks.sub("\\g<0>\u034f", _SIGNS.sub(" ", text))
    return token.findall(_OMITTED.sub("", unicodedata.normalize("NFKC", text)))


@functools.cache
def _warn_without_stems(reason: str) -> None:
    """Log why words are not stemmed, once."""
    logger.warning("keywords are indexed without stems: %s", reason)


def script_language(token: str) -> str | None:
    """Return the language whose stems fit a word in a script of few languages; None for symbols and others."""
    is_word = len(token) > 2 and token.isalpha() and not any(map(str.isascii, token))
    return _OF_SCRIPT.get(_script(token)) if is_word else None


@functools.cache
def _stemmer(language: str) -> Callable[[str], str]:
    stemmer = require("Stemmer", extra="serve").Stemmer(language, 0)  # without a cache of its own
    return cast(Callable[[str], str], stemmer.stemWord)


def _script(word: str) -> str:
    """Return the script of a word's first letter that is not in ASCII, as in its name in Unicode."""
    letter = next((letter for letter in word if letter > "\x7f"), "a")
    return unicodedata.name(letter, "").partition(" ")[0]


def _fold(word: str) -> str:
    """Return a word without accents; longer ones than any real word as they are (see :func:`_patterns`)."""
    if word.isascii() or len(word) > _LONGEST_FOLDED:
        return word
    bare = _ACCENTS.sub("", unicodedata.normalize("NFD", word).translate(_LETTERS))
    return unicodedata.normalize("NFC", bare)


def _pieces(run: str) -> Iterator[str]:
    """Yield the terms of a run of a script without spaces: pairs of characters with their marks, and Han alone."""
    characters = _patterns()[2].findall(run)
    yield from (character for character in characters if len(characters) == 1 or _HAN.match(character))
    yield from map("".join, itertools.pairwise(characters))


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of a token, a run in a script without spaces, a character with its marks, and 30 marks.

    Normalisation sorts consecutive marks in quadratic time, so a joiner is put after each 30 of them, as in the
    Stream-Safe Text Format of Unicode; no real text has as many.
    """
    near, far = (
        "".join(chr(code) for code in codes if unicodedata.category(chr(code)).startswith("M"))
        for codes in (range(0x300, 0x10000), range(0x10000, 0x1F000))
    )
    mark = rf"(?:[{near}]|(?=[\U00010000-\U0001efff])[{far}])"  # one set of both would be tried range by range
    word = rf"\w+(?:{mark}+\w*)*"
    return (
        re.compile(rf"{word}(?:[-.]{word})*"),
        re.compile(rf"((?:[{_UNSPACED_SET}]+{mark}*)+)"),
        re.compile(rf".{mark}*", re.DOTALL),
        re.compile(rf"{mark}{{30}}"),
    )
