# Word pieces of BERT's tokenizers; what the arguments are stands in embedkit/runtime/word_pieces.py.

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
    # All ids, int32; 0 and where each text ends in them, int64; a byte for each text: 0 whole, 1 cut, 2 left out.
    def tokenize(self, texts: Iterable[str]) -> tuple[bytes, bytes, bytes]: ...
