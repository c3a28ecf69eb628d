"""More text for `multilingual`, out of Python packages: translated interfaces, and lines of frequent words.

    pip download --no-deps --dest WHEELS home-assistant-frontend==20250109.2 homeassistant==2024.3.3 \
        Django==5.2.19 wagtail==8.0.1 jupyterlab-language-pack-he-IL==4.5.post3 wordfreq==3.1.1 pythainlp==5.4.0
    pip install babel==2.19.0 msgpack
    python benchmarks/multilingual/interfaces.py DIR WHEELS

DIR/multilingual has no text in Hebrew, Thai and many other languages. Written, in random order, to
DIR/multilingual/made:

* interfaces-LANGUAGE.tsv.xz: English TAB other language, from interfaces (Home Assistant, Apache-2.0; Django,
  Wagtail and JupyterLab, BSD-3-Clause) and names of languages, countries, months and days (CLDR, Unicode-3.0).
* words.txt.xz: lines of words that are as frequent as in the language, somewhat flattened (wordfreq, CC BY-SA 4.0;
  Thai from PyThaiNLP, CC0).
* titles.txt.xz: titles of the Thai Wikipedia (PyThaiNLP, CC BY-SA 4.0).

No side of a pair, and no title, equals a text of DIR/multilingual/eval.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from babel import Locale
from babel.messages.pofile import read_po

_CODES = """
af ar bg bn ca cs cy da de el eo es et eu fa fi fr gl he hi hr hu hy id is it ja ka ko lt lv mk ml mr ms nb ne nl
pl pt ro ru sk sl sq sr sv ta te th tr uk ur vi zh
"""
LANGUAGES = tuple(_CODES.split())
"""Languages that the teacher reads and that have text in these packages."""
PAIRS = 4000
"""Most pairs of a language other than those of ``WITHOUT_TEXT``."""
WITHOUT_TEXT = ("he", "th")
WORDS = {
    **dict.fromkeys(WITHOUT_TEXT, 20_000),
    **dict.fromkeys(("bn", "fi", "ko", "ru"), 6000),
    **dict.fromkeys(("ro", "mk", "ms"), 4000),
}
"""Lines of words of a language."""
TITLES = 20_000
FLATTENED = 0.75
"""Exponent of a word's frequency."""
UNLIKE_TEXT = re.compile(r"[{}<>]|%[(sd]|\[%|https?:|\\n")
"""Places for values, markup and addresses."""

Pairs = Iterator[tuple[str, str, str]]
"""Language, English, other language."""


def home_assistant(wheels: Path) -> Pairs:
    """Read JSON catalogues, one file per language, with the same keys."""
    for wheel in sorted(wheels.glob("home*assistant*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            files: dict[str, dict[str, str]] = defaultdict(dict)
            for name in archive.namelist():
                if match := _CATALOGUE.fullmatch(name):
                    files[match[1]][match[2]] = name
            for by_language in files.values():
                if "en" in by_language:
                    english = dict(_strings(json.loads(archive.read(by_language.pop("en")))))
                    for language, name in sorted(by_language.items()):
                        others = _strings(json.loads(archive.read(name)))
                        yield from (
                            (_language(language), english[key], text) for key, text in others if key in english
                        )


_CATALOGUE = re.compile(r"(.*/translations/(?:.*/)?)([A-Za-z-]+?)(?:-[0-9a-f]{32})?\.json")


def _strings(value: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _strings(inner, (*keys, key))
    elif isinstance(value, str):
        yield keys, value


def _language(code: str) -> str:
    return {"iw": "he", "no": "nb"}.get(code, re.split("[-_]", code)[0])


def catalogues(wheels: Path) -> Pairs:
    """Read the .po files of Django, Wagtail and JupyterLab."""
    for wheel in sorted([*wheels.glob("[Dd]jango*"), *wheels.glob("wagtail*"), *wheels.glob("jupyterlab*")]):
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(archive.namelist()):
                if match := re.search(r"/locale/([^/]+)/LC_MESSAGES/[^/]+\.po$", name):
                    for message in read_po(BytesIO(archive.read(name))):
                        if message.id and isinstance(message.id, str) and message.string and not message.fuzzy:
                            yield _language(match[1]), message.id, str(message.string)


def names() -> Pairs:
    """Name languages, countries, months and days."""
    english = Locale("en")
    for language in LANGUAGES:
        locale = Locale(language)
        for kind in ("languages", "territories"):
            other = getattr(locale, kind)
            for code, name in getattr(english, kind).items():
                if code in other:
                    yield language, name, other[code]
        for kind in ("months", "days"):
            other = getattr(locale, kind)["format"]["wide"]
            for code, name in getattr(english, kind)["format"]["wide"].items():
                yield language, name, other[code]


def frequent_words(wheels: Path, generator: np.random.Generator) -> Iterator[str]:
    """Draw lines of 3 to 16 words of each language in ``WORDS``."""
    for language, lines in WORDS.items():
        counted = _thai_words(wheels) if language == "th" else _words(wheels, language)
        words = [word for word in counted if any(letter.isalpha() for letter in word)]
        weights = np.array([counted[word] for word in words]) ** FLATTENED
        places = (weights / weights.sum()).cumsum()
        space = "" if language == "th" else " "
        for _ in range(lines):
            drawn = np.searchsorted(places, generator.random(int(generator.integers(3, 17))))
            yield space.join(words[min(place, len(words) - 1)] for place in drawn.tolist())


def _thai_words(wheels: Path) -> dict[str, float]:
    lines = _thai(wheels, "tnc_freq.txt")
    return {row[0]: float(row[1]) for row in (line.split("\t") for line in lines) if len(row) > 1}


def _words(wheels: Path, language: str) -> dict[str, float]:
    with zipfile.ZipFile(next(wheels.glob("wordfreq*"))) as archive:
        names = (f"wordfreq/data/{size}_{language}.msgpack.gz" for size in ("large", "small"))
        packed = archive.read(next(name for name in names if name in archive.namelist()))
    _, *bins = msgpack.loads(gzip.decompress(packed))
    return {word: 10.0 ** (-place / 100) for place, words in enumerate(bins) for word in words}


def _thai(wheels: Path, name: str) -> list[str]:
    with zipfile.ZipFile(next(wheels.glob("pythainlp*"))) as archive:
        return archive.read(f"pythainlp/corpus/{name}").decode().splitlines()


def titles(wheels: Path) -> Iterator[str]:
    """Read titles of at least eight characters."""
    lines = _thai(wheels, "wikipedia_titles_th.txt")
    return (line for line in lines if not line.startswith("#") and len(line) >= 8)


def _key(text: str) -> str:
    return "".join(letter for letter in text.casefold() if letter.isalnum())


def _test_texts(folder: Path) -> set[str]:
    texts = set()
    for path in folder.rglob("*"):
        if path.is_file():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                values = _strings(json.loads(line)) if path.suffix == ".jsonl" else enumerate(line.split("\t"))
                texts |= {_key(text) for _, text in values}
    return texts


def _usable(pairs: Pairs, tests: set[str]) -> dict[str, dict[str, str]]:
    by_language: dict[str, dict[str, str]] = defaultdict(dict)
    for language, *sides in pairs:
        english, other = (" ".join(side.split()) for side in sides)
        if language in LANGUAGES and _is_usable(english, other, tests):
            by_language[language].setdefault(english, other)
    return by_language


def _is_usable(english: str, other: str, tests: set[str]) -> bool:
    keys = {_key(english), _key(other)}
    if len(keys) == 1 or "" in keys or keys & tests:
        return False
    return all(3 <= len(side) <= 300 and not UNLIKE_TEXT.search(side) for side in (english, other))


def _write(path: Path, lines: Iterable[str], limit: int | None = None) -> None:
    mixed = np.random.default_rng(3).permutation(np.array([*lines], dtype=object))[:limit].tolist()
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in mixed)
    print(f"{path}: {len(mixed):,} lines", flush=True)


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("wheels", type=Path, metavar="WHEELS")
    options = parser.parse_args()
    made = options.data / "multilingual" / "made"
    made.mkdir(exist_ok=True)
    tests = _test_texts(options.data / "multilingual" / "eval")
    read = chain(home_assistant(options.wheels), catalogues(options.wheels), names())
    for language, pairs in sorted(_usable(read, tests).items()):
        lines = (f"{english}\t{other}" for english, other in pairs.items())
        _write(made / f"interfaces-{language}.tsv.xz", lines, None if language in WITHOUT_TEXT else PAIRS)
    _write(made / "words.txt.xz", frequent_words(options.wheels, np.random.default_rng(4)))
    _write(made / "titles.txt.xz", (line for line in titles(options.wheels) if _key(line) not in tests), TITLES)


if __name__ == "__main__":
    main()
