"""The rules of a tokenizer (normalisers, pre-tokenizers, post-processors), and bounds for what they add to a text.

The tokenizers package ends the whole process when its memory is exhausted, and a ``tokenizer.json`` of a few
lines can double a text forty times. Such rules are refused before any text is tokenized.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

from embedkit.errors import EmbedkitError, ModelError

_MOST_GROWTH = 100  # SentencePiece's rules can lengthen a character 36 times
_MOST_SPECIAL = 16
_PARTS = ("normalizers", "pretokenizers", "processors")

# The longest result of one character, in characters, by Unicode and UTF-8.
_STANDARD = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3}
# ... each time that they are applied: bytes, spaces around Chinese characters, a prefix of each part.
_REPEATED = {"ByteLevel": 4, "BertNormalizer": 3, "Metaspace": 2}
_ONE_CHARACTER = re.compile(r"(\\[nrst]| |\[[^\[\]\\]+\])(\+|\{[1-9]\d*,?\d*\})?")


@contextlib.contextmanager
def tokenizer_errors(what: str = "the tokenizer contradicts itself") -> Iterator[None]:
    """Convert an error of a tokenizer, such as a missing unknown token in use, to a :class:`ModelError`.

    The package raises bare Exceptions, and for a panic a BaseException, which few callers expect.
    """
    try:
        yield
    except (EmbedkitError, TypeError, UnicodeError):
        raise
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)):
            raise
        raise ModelError(f"{what}: {error}") from error


def rules_of(part: Any) -> list[dict[str, Any]]:
    """Return the descriptions of a normaliser, pre-tokenizer or post-processor, and of those in a sequence."""
    return _flat(json.loads(part.__getstate__())) if part is not None else []


def _flat(rule: dict[str, Any]) -> list[dict[str, Any]]:
    inner = [part for name in _PARTS for part in rule.get(name, ())]
    return [step for part in inner for step in _flat(part)] if rule["type"] == "Sequence" else [rule]


def check_rules(tokenizer: tokenizers.Tokenizer, special_count: int, max_length: int) -> None:
    """Check that a text cannot become much longer than it is; ``special_count`` tokens are added to it.

    Raises:
        ModelError: its rules can make a text more than 100 times longer, repeat it, or add more tokens than it
            may have itself.
    """
    growth = _Growth()
    for rule in [*rules_of(tokenizer.normalizer), *rules_of(tokenizer.pre_tokenizer)]:
        growth.add(rule)
        if max(growth.factor, growth.prefix) > _MOST_GROWTH:
            what = f"the tokenizer's rules, up to {rule['type']},"
            raise ModelError(f"{what} can make a text more than {_MOST_GROWTH} times as long")
    for rule in rules_of(tokenizer.post_processor):
        for form in ("single", "pair"):
            texts = [piece["Sequence"]["id"] for piece in rule.get(form, ()) if "Sequence" in piece]
            if len(texts) > len(set(texts)):
                raise ModelError(f"the tokenizer's {rule['type']} repeats a text")
    if special_count > max(_MOST_SPECIAL, max_length // 2):
        raise ModelError(f"the tokenizer adds {special_count} tokens to each text, of at most {max_length} in all")


class _Growth:
    """A bound for the growth of a text, rule by rule.

    Attributes:
        factor: characters that one character can become.
        prefix: characters that are put before a text.
    """

    def __init__(self) -> None:
        self.factor, self.prefix = 1.0, 0
        self._inserted: set[str] | None = set()  # what earlier rules can have inserted; None if anything

    def add(self, rule: Mapping[str, Any]) -> None:
        """Apply one more rule."""
        match rule["type"]:
            case "Prepend":
                self.prefix += len(rule["prepend"])
                self._insert(rule["prepend"])
            case "Replace":
                self._replace(rule["pattern"], rule["content"])
            case "Precompiled":
                self._multiply(_longest_spelling(rule["precompiled_charsmap"]))
            case repeated if repeated in _REPEATED:
                self._multiply(_REPEATED[repeated])
            case standard if standard in _STANDARD:
                self._standardise(standard)

    def _replace(self, pattern: Mapping[str, str], content: str) -> None:
        text, longer = pattern.get("String"), len(content)
        if text is None:
            can_be_empty = not _ONE_CHARACTER.fullmatch(pattern["Regex"])
            self.factor *= max(1, longer + can_be_empty)
        elif text and self._inserted is not None and not self._inserted.issuperset(text):
            self.factor += max(0, longer - len(text))  # each match contains a character that no rule inserted
        else:
            self.factor *= max(1.0, longer / len(text) if text else longer + 1)
        self._insert(content)

    def _standardise(self, rule: str) -> None:
        """Apply a rule that lengthens nothing in its own results, only what else the file's other rules insert."""
        inserted = None if self._inserted is None else "".join(self._inserted)
        if inserted is None or not inserted.isascii():
            self._multiply(_STANDARD[rule])
        else:  # as the quotation marks of ALBERT: ASCII keeps its length
            self._insert(inserted.lower())

    def _multiply(self, factor: int) -> None:
        self.factor *= factor
        self._inserted = None

    def _insert(self, content: str) -> None:
        if self._inserted is not None:
            self._inserted |= set(content)


def _longest_spelling(charsmap: str) -> int:
    """Return the longest result in SentencePiece's map: the size of a trie, the trie, and the results."""
    content = base64.b64decode(charsmap)
    results = content[4 + int.from_bytes(content[:4], "little") :].decode(errors="replace")
    return max(map(len, results.split("\0")))
