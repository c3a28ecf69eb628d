"""A short hash of a text, the same on every machine."""

from __future__ import annotations

import hashlib

__all__ = ["text_hash"]


def text_hash(text: str) -> int:
    """Return 64 bits of BLAKE2b, for any string, including those that cannot be encoded as UTF-8."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little")
