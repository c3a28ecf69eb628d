"""How characters join grapheme clusters, according to the version of Unicode of the tokenizers package."""

from __future__ import annotations

import functools
import struct
import unicodedata
from collections.abc import Iterable

from tokenizers.normalizers import Precompiled

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
    for code in _those_that_join(candidates, "a{}"):
        kinds[_place(code)] = _JOINS
    accepting = _those_that_join([code for code in candidates if code < 0x10000], f"{{}}{_ACUTE}")
    for code in candidates:
        if _category(code) in _MAY_BE_CONTROL and code not in accepting:
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
    return {code for code, found in zip(codes, clusters.split("\n"), strict=True) if len(found) == 1}


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
