# Word pieces of BERT's tokenizers; embedkit/runtime/tokenizer_kernels.py describes the arguments.

from collections.abc import Iterable
from typing import final

@final
class WordPieces:
    def __new__(
        cls,
        vocabulary: dict[str, int],
        *,
        unknown: int,
        prefix: str,
        longest_word: int,  # characters, at most 256
        letters: dict[str, str],
        marks: dict[str, str],
        spaces: dict[str, str],
        added: tuple[str, ...],
        before: bytes,  # int32
        after: bytes,  # int32
        room: int,
    ) -> WordPieces: ...
    # All ids, int32; 0 and the end of each text, int64; one byte per text: 0 complete, 1 truncated, 2 skipped.
    def tokenize(self, texts: Iterable[str]) -> tuple[bytes, bytes, bytes]: ...
