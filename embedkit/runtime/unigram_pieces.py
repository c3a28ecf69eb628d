"""The fastest path through SentencePiece's Unigram tokenizers: a C kernel, if it was built."""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple, Self

import numpy as np
import tokenizers
from tokenizers.models import Unigram

from embedkit.runtime.graphemes import character_kinds
from embedkit.runtime.kernel_pieces import KernelPieces
from embedkit.runtime.kernels import unigram
from embedkit.runtime.plain_texts import find_frame
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


class UnigramPieces(KernelPieces):
    """Ids of texts by Unigram models. Create it with :meth:`find`.

    The kernel knows what SentencePiece's models have: the normalisers `Precompiled`, `Strip` and `Replace` of
    several spaces, in this order, and the pre-tokenizers `WhitespaceSplit` and `Metaspace`. Texts with added
    tokens, and a few with rare combinations of characters, are left to the tokenizer.

    Args:
        tokenizer: the tokenizer to imitate.
        frame: ids before and after each text.
        room: maximum number of pieces of a text.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, frame: tuple[list[int], list[int]], room: int) -> None:
        pays = tokenizer.get_vocab_size() // _PIECES_OF_A_TEXT
        super().__init__(tokenizer, frame, room, texts_that_pay=pays)
        self._tokenizer, self._frame, self._room = tokenizer, frame, room

    @classmethod
    def find(cls, tokenizer: tokenizers.Tokenizer, max_length: int) -> Self | None:
        """Return the fast path of a tokenizer, or None if there is no kernel or the kernel does not support it.

        Args:
            tokenizer: the tokenizer to imitate; without padding, truncating on the right.
            max_length: maximum length of a text in tokens, including special tokens.
        """
        added = tokenizer.get_added_tokens_decoder().values()
        if unigram is None or type(tokenizer.model) is not Unigram or any(token.normalized for token in added):
            return None
        frame = find_frame(tokenizer, tokenizer)
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
    splitters, found = rules_of(tokenizer.pre_tokenizer), _read_normalizers(rules_of(tokenizer.normalizer))
    split_whitespace = bool(splitters) and splitters[0] == {"type": "WhitespaceSplit"}
    rest = splitters[1:] if split_whitespace else splitters
    if found is None or len(rest) != 1 or rest[0]["type"] != "Metaspace":
        return None
    scheme = rest[0]["prepend_scheme"]
    if scheme == "first" and split_whitespace:  # only a part at the very beginning would have the prefix
        return None
    return _Parts(rest[0]["replacement"], scheme != "never", rest[0]["split"], split_whitespace, **found)


def _read_normalizers(steps: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return those of the kernel's arguments, None unless it supports them in this order."""
    left, found = iter(steps), {}
    step = next(left, None)
    if step and step["type"] == "Precompiled":
        found["charsmap"] = base64.b64decode(step["precompiled_charsmap"])
        step = next(left, None)
    if step and step["type"] == "Strip":
        found |= {"strip_left": step["strip_left"], "strip_right": step["strip_right"]}
        step = next(left, None)
    if step and step["type"] == "Replace" and step["pattern"] == _SEVERAL_SPACES:
        found["spaces"] = step["content"]
        step = next(left, None)
    return None if step else found
