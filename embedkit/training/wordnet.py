"""WordNet: synonyms, read from its database files.

The files are those of WordNet's own distribution (``dict/data.noun`` and so on) and of NLTK's corpus ``wordnet``;
the manual page wndb(5WN) describes their format.

Source: Miller, "WordNet: A Lexical Database for English", Communications of the ACM, 1995.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from embedkit.errors import DataError

__all__ = ["WordNet"]

_FILES = ("data.noun", "data.verb", "data.adj", "data.adv")
_MARKER = re.compile(r"\([a-z]+\)$")  # position of an adjective: galore(ip)


class WordNet:
    """Synonyms by word.

    Args:
        folder: contains data.noun, data.verb, data.adj and data.adv.

    Attributes:
        fingerprint: hex digest of the files.

    Raises:
        DataError: a file is missing or malformed.
    """

    def __init__(self, folder: str | Path) -> None:
        digest = hashlib.sha256()
        self._synonyms: dict[str, dict[str, None]] = {}  # dictionaries keep the order of senses
        for path in (Path(folder) / name for name in _FILES):
            try:
                content = path.read_bytes()
            except OSError as error:
                expected = ", ".join(_FILES)
                raise DataError(f"{folder} is not a WordNet database: expected {expected} ({error})") from error
            digest.update(content)
            for words in _synonym_sets(path, content):
                self._add(words)
        self.fingerprint = digest.hexdigest()

    def synonyms(self, word: str) -> list[str]:
        """Return the other words of every synset that contains the word, ignoring case; phrases contain spaces."""
        return list(self._synonyms.get(word.lower(), ()))

    def _add(self, words: list[str]) -> None:
        for word in words:
            others = {other: None for other in words if other.lower() != word.lower()}
            if others:
                self._synonyms.setdefault(word.lower(), {}).update(others)


def _synonym_sets(path: Path, content: bytes) -> Iterator[list[str]]:
    """Yield the words of each line, ``offset file type count word id word id ...``, with count in hexadecimal."""
    for number, line in enumerate(content.decode("utf-8", errors="replace").split("\n"), 1):
        if not line or line.startswith(" "):  # the licence
            continue
        try:
            fields = line.split()
            count = int(fields[3], 16)
            words = [fields[4 + 2 * place] for place in range(count)]
        except (IndexError, ValueError) as error:
            raise DataError(f"{path}:{number} is not a valid line of a WordNet database") from error
        yield [_MARKER.sub("", word).replace("_", " ") for word in words]
