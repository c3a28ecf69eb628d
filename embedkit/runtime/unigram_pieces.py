"""The fastest path through SentencePiece's Unigram tokenizers: a C kernel, if it was built."""

from __future__ import annotations

import base64
import functools
import json
import struct
import unicodedata
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import numpy as np
import tokenizers
from tokenizers.models import Unigram
from tokenizers.normalizers import Precompiled

from embedkit.runtime.kernels import unigram
from embedkit.runtime.tokenizer_kernels import TokenizerKernel, find_special_tokens, finds_added
from embedkit.runtime.tokenizer_rules import rules_of

_PIECES_OF_A_TEXT = 25  # so many pieces of the vocabulary are read in the time of a short text
_SEVERAL_SPACES = {"Regex": " {2,}"}


class _Parts(NamedTuple):
    """A normaliser and a pre-tokenizer that the kernel supports, as its arguments.

    Attributes:
        charsmap: SentencePiece's precompiled map of characters.
        space: what replaces a space, and begins a word.
        spaces: what replaces several spaces, before that.
        prefix: whether a text, or a part between spaces, begins with `space`.
        split: whether `space` begins a word.
        strip_left: whether spaces are removed on the left.
        strip_right: whether they are on the right.
        split_whitespace: whether texts are split at spaces, which are dropped.
    """

    space: str
    prefix: bool
    split: bool
    split_whitespace: bool
    charsmap: bytes | None = None
    spaces: str | None = None
    strip_left: bool = False
    strip_right: bool = False


class UnigramPieces(TokenizerKernel):
    """Ids of texts by Unigram models. Create it with :meth:`find`.

    The kernel knows what SentencePiece's models have: the normalisers `Precompiled`, `Strip` and `Replace` of
    several spaces, in this order, and the pre-tokenizers `WhitespaceSplit` and `Metaspace`. Texts with added
    tokens, and a few with rare combinations of characters, are left to the tokenizer.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, frame: tuple[list[int], list[int]], room: int) -> None:
        pays = tokenizer.get_vocab_size() // _PIECES_OF_A_TEXT
        super().__init__(tokenizer, frame, room, texts_that_pay=pays)
        self._tokenizer, self._frame, self._room = tokenizer, frame, room

    @classmethod
    def find(cls, tokenizer: tokenizers.Tokenizer, max_length: int) -> Self | None:
        """Return the fast path of a tokenizer, or None if there is no kernel or the kernel does not support it.

        The tokenizer is without padding and truncates on the right; ``max_length`` includes special tokens.
        """
        if unigram is None or type(tokenizer.model) is not Unigram or not finds_added(tokenizer):
            return None
        frame = find_special_tokens(tokenizer)
        if frame is None or _read_parts(tokenizer) is None:
            return None
        return cls(tokenizer, frame, max_length - sum(map(len, frame)))

    def _make(self) -> unigram.UnigramPieces:
        parts, model = _read_parts(self._tokenizer), json.loads(self._tokenizer.model.__getstate__())
        if parts is None:
            raise ValueError("not a tokenizer that the kernel supports")
        before, after = (np.array(ids, dtype=np.int32).tobytes() for ids in self._frame)
        unknown = model["unk_id"]
        return unigram.UnigramPieces(
            tuple(piece for piece, _ in model["vocab"]),
            scores=np.array([score for _, score in model["vocab"]], dtype=np.float64).tobytes(),
            unknown=-1 if unknown is None else unknown,
            byte_fallback=model["byte_fallback"],
            kinds=character_kinds() if parts.charsmap else b"",
            added=tuple(token.content for token in self._tokenizer.get_added_tokens_decoder().values()),
            before=before,
            after=after,
            room=self._room,
            **parts._asdict(),
        )


def _read_parts(tokenizer: tokenizers.Tokenizer) -> _Parts | None:
    """Return the kernel's arguments for the normaliser and the pre-tokenizer, None for others than it supports."""
    splitters, normalizers = rules_of(tokenizer.pre_tokenizer), _read_normalizers(rules_of(tokenizer.normalizer))
    split_whitespace = bool(splitters) and splitters[0] == {"type": "WhitespaceSplit"}
    rest = splitters[1:] if split_whitespace else splitters
    if normalizers is None or len(rest) != 1 or rest[0]["type"] != "Metaspace":
        return None
    scheme = rest[0]["prepend_scheme"]
    if scheme == "first" and split_whitespace:  # only a part at the very beginning would have the prefix
        return None
    return _Parts(rest[0]["replacement"], scheme != "never", rest[0]["split"], split_whitespace, **normalizers)


def _read_normalizers(steps: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return those of the kernel's arguments, None unless it supports them in this order."""
    left, arguments = iter(steps), {}
    step = next(left, None)
    if step and step["type"] == "Precompiled":
        arguments["charsmap"] = base64.b64decode(step["precompiled_charsmap"])
        step = next(left, None)
    if step and step["type"] == "Strip":
        arguments |= {"strip_left": step["strip_left"], "strip_right": step["strip_right"]}
        step = next(left, None)
    if step and step["type"] == "Replace" and step["pattern"] == _SEVERAL_SPACES:
        arguments["spaces"] = step["content"]
        step = next(left, None)
    return None if step else arguments


_CONTROL, _JOINS, _UNCLEAR = 1, 2, 3
_PLANES = 0x20000  # the first two, whose characters have kinds, and then the beginning of plane 14
_TAGS = range(0xE0000, 0xE1000)
_ALWAYS_CONTROL = "\0\n\r"
# Ideographs, Hangul syllables, surrogates and private use never join the character before, and others join them.
_PLAIN_BLOCKS = (range(0x3400, 0xA000), range(0xAC00, 0xF900))
_INDIC = range(0x11000, 0x12000)  # of plane 1, with letters that join the next character
_MAY_JOIN = {"Mn", "Mc", "Me", "Cf", "Sk", "Lm"}
_MAY_BE_CONTROL = {"Cc", "Cf", "Zl", "Zp", "Cn"}
_ACUTE = "\u0301"


@functools.cache
def character_kinds() -> bytes:
    """Return the kind of each character, one byte each, as ``kernels/charsmap.h`` reads them.

    The tokenizers package is asked about each character that may join others: whether it joins an "a" before it,
    whether an "a" joins it, and whether an accent does not.
    """
    kinds = bytearray(_PLANES + len(_TAGS))
    candidates = [code for code in [*range(_PLANES), *_TAGS] if _may_join(code)]
    joining = _those_that_join(candidates, "a{}")
    for code in joining:
        kinds[_place(code)] = _JOINS
    within = joining | _those_that_join([code for code in candidates if code < 0x10000], f"{{}}{_ACUTE}")
    for code in candidates:
        if _category(code) in _MAY_BE_CONTROL and code not in within:
            kinds[_place(code)] = _CONTROL
    for code in _those_that_join(candidates, "{}a"):  # its cluster contains the next character's
        kinds[_place(code)] = _UNCLEAR
    for code in range(0x10000, _PLANES):  # a later version of Unicode may know it
        if _category(code) == "Cn" and code not in _INDIC:
            kinds[code] = _UNCLEAR
    for character in _ALWAYS_CONTROL:
        kinds[ord(character)] = _CONTROL
    return bytes(kinds)


def _may_join(code: int) -> bool:
    if code < 0x10000:
        return chr(code) not in _ALWAYS_CONTROL and not any(code in block for block in _PLAIN_BLOCKS)
    return code in _INDIC or code in _TAGS or _category(code) in _MAY_JOIN


def _category(code: int) -> str:
    return unicodedata.category(chr(code))


def _place(code: int) -> int:
    return code if code < _PLANES else _PLANES + code - _TAGS.start


def _those_that_join(codes: Iterable[int], pattern: str) -> set[int]:
    """Return the characters that form one cluster in the pattern."""
    codes = list(codes)
    clusters = _one_letter_a_cluster().normalize_str("\n".join(pattern.format(chr(code)) for code in codes))
    return {code for code, cluster in zip(codes, clusters.split("\n"), strict=True) if len(cluster) == 1}


def _one_letter_a_cluster() -> Precompiled:
    """Return a normaliser that replaces each cluster of fewer than six bytes by "x", except line feeds.

    Its double array has one entry for each byte, which the clusters begin with.
    """
    units = [0] * 1024
    units[0] = 256 << 10
    for byte in range(1, 256):
        if byte != ord("\n"):
            units[256 ^ byte] = byte | 1 << 8 | 512 << 10
    return Precompiled(struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + b"x\0")
