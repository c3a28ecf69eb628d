# Pieces of SentencePiece's Unigram models; embedkit/runtime/tokenizer_kernels.py describes the arguments.

from collections.abc import Iterable
from typing import final

@final
class UnigramPieces:
    def __new__(
        cls,
        pieces: tuple[str, ...],
        *,
        scores: bytes,  # float64
        unknown: int,  # -1 for none
        byte_fallback: bool,
        charsmap: bytes | None,
        kinds: bytes,  # one per character: 0 other, 1 control, 2 joins the character before, 3 unclear
        space: str,
        spaces: str | None,
        prefix: bool,
        split: bool,
        strip_left: bool,
        strip_right: bool,
        split_whitespace: bool,
        added: tuple[str, ...],
        before: bytes,  # int32
        after: bytes,  # int32
        room: int,
    ) -> UnigramPieces: ...
    # All ids, int32; 0 and the end of each text, int64; one byte per text: 0 complete, 1 truncated, 2 skipped.
    def tokenize(self, texts: Iterable[str]) -> tuple[bytes, bytes, bytes]: ...
