"""Texts to token ids to token batches; training and the runtime share it, so both sides tokenize alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers

from embedkit.errors import InputError, ModelError, ModelNotFoundError

__all__ = ["TokenBatch", "Tokenizer", "Tokens"]

_PAD_TOKENS = ("[PAD]", "<pad>", "<|pad|>")


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Token ids of B texts, padded on the right to the longest.

    Attributes:
        input_ids: ``(B, L) int64``.
        attention_mask: ``(B, L) int64``, 1 where a token stands and 0 on padding.
    """

    input_ids: npt.NDArray[np.int64]
    attention_mask: npt.NDArray[np.int64]


class Tokens(NamedTuple):
    """Token ids of several texts, not padded.

    Attributes:
        ids: one list for each text, special tokens included, at most ``max_length`` each.
        overflowing: positions of the texts that lost tokens, ascending.
    """

    ids: list[list[int]]
    overflowing: list[int]

    @property
    def truncated(self) -> int:
        """How many texts lost tokens."""
        return len(self.overflowing)


class Tokenizer:
    """A fast tokenizer with one way of truncating and padding, whatever its JSON asks for.

    Texts are cut on the right to ``max_length`` tokens, special tokens included, and padded to the
    longest text of a batch. An empty text is its special tokens. Safe to share between threads.

    Args:
        json: content of a ``tokenizer.json``; padding and truncation in it are overridden.
        max_length: the longest text in tokens, special tokens included.

    Attributes:
        json: the content as given.
        max_length: as given.
        pad_id: id that fills a token batch; the attention mask is 0 there.
        vocabulary_size: number of ids, added tokens included.
        special_ids: ids of special tokens, e.g. of ``[CLS]`` and ``[SEP]``.

    Raises:
        ModelError: ``json`` is not a tokenizer.
        InputError: ``max_length`` leaves no room for a token of the text.
    """

    def __init__(self, json: str, max_length: int) -> None:
        self._tokenizer = _parse(json)
        least = self._tokenizer.num_special_tokens_to_add(is_pair=False) + 1
        if max_length < least:
            raise InputError(f"max_length must be at least {least} for this tokenizer, not {max_length}")
        self.json = json
        self.max_length = max_length
        self.pad_id = _find_pad_id(self._tokenizer)
        self.vocabulary_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(number for number, token in added.items() if token.special)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length)

    @classmethod
    def load(cls, path: str | Path, max_length: int) -> Tokenizer:
        """Read ``path``, a ``tokenizer.json`` or a folder that holds one.

        Raises:
            ModelNotFoundError: there is no such file.
            ModelError: the file is not a tokenizer.
        """
        file = Path(path)
        file = file / "tokenizer.json" if file.is_dir() else file
        try:
            return cls(file.read_text(encoding="utf-8"), max_length)
        except FileNotFoundError:
            raise ModelNotFoundError(f"no tokenizer at {file}; embedkit needs a tokenizer.json") from None
        except (OSError, UnicodeDecodeError, ModelError) as error:
            raise ModelError(f"cannot use the tokenizer {file}: {error}") from error

    def with_max_length(self, max_length: int) -> Tokenizer:
        """The same tokenizer, cutting at another length."""
        return Tokenizer(self.json, max_length)

    def tokenize(self, texts: Sequence[str], *, prompt: str = "", first: int = 0) -> Tokens:
        """Turn texts into token ids.

        Args:
            texts: N texts.
            prompt: put before each.
            first: position of ``texts[0]`` in what the caller was given, for messages.

        Raises:
            InputError: an item is not a ``str``, or not valid Unicode; names its position.
        """
        if isinstance(texts, (str, bytes)):
            raise InputError(f"expected a sequence of texts, got one {type(texts).__name__}; wrap it in a list")
        texts = list(texts)
        if not set(map(type, texts)) <= {str}:  # a tuple, for one, would pass for a pair of texts
            _check_texts(texts, first)
        prompted = [prompt + text for text in texts] if prompt else texts
        try:
            encodings = self._tokenizer.encode_batch_fast(prompted)
        except (TypeError, ValueError) as error:
            _check_texts(texts, first)
            raise InputError(f"the tokenizer refused these texts: {error}") from error
        ids = [encoding.ids for encoding in encodings]
        overflowing = [
            position
            for position, row in enumerate(ids)
            # Reading `overflowing` copies the whole rest of a text: look only where there can be one.
            if len(row) == self.max_length and encodings[position].overflowing
        ]
        return Tokens(ids, overflowing)

    def pad(self, ids: Sequence[Sequence[int]]) -> TokenBatch:
        """Make one token batch ``(B, L)`` of B lists of ids, in their order; L is the longest."""
        lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
        longest = int(lengths.max(initial=0))
        is_token = np.arange(longest) < lengths[:, None]
        input_ids = np.full(is_token.shape, self.pad_id, dtype=np.int64)
        input_ids[is_token] = np.fromiter(chain.from_iterable(ids), dtype=np.int64, count=int(lengths.sum()))
        return TokenBatch(input_ids, is_token.astype(np.int64))


def _parse(json: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(json)
    except Exception as error:  # tokenizers raises bare Exception for whatever its parser dislikes
        raise ModelError(f"not a tokenizer.json: {error}") from error


def _find_pad_id(tokenizer: tokenizers.Tokenizer) -> int:
    if tokenizer.padding:
        return int(tokenizer.padding["pad_id"])
    found = (tokenizer.token_to_id(token) for token in _PAD_TOKENS)
    # Any id does where the mask is 0, so a tokenizer without a padding token is no obstacle.
    return next((number for number in found if number is not None), 0)


def _check_texts(texts: Sequence[object], first: int) -> None:
    """Name the first item that is no text."""
    for position, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise InputError(f"texts[{position}] is {type(text).__name__}, expected str")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"texts[{position}] is not valid Unicode: it holds half a surrogate pair at character "
                f"{error.start}; decode the file with errors='replace'"
            ) from None
