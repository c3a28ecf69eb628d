"""Windows of a long text: as many whole tokens as fit, ended where the text has a pause."""

from __future__ import annotations

from collections.abc import Sequence

from embedkit.errors import InputError

Span = tuple[int, int]
"""First character, and end of the characters, exclusive."""

_SENTENCE_ENDS = frozenset(".!?\u2026\u3002\uff01\uff1f")  # the last three: Chinese and Japanese
_CLOSING = "\"'\u201d\u2019\xbb)]"


def find_windows(text: str, tokens: Sequence[Span], size: int, overlap: int = 0) -> list[Span]:
    """Divide a text into windows of at most ``size`` tokens.

    A window ends, in its second half, after a paragraph, else a line, a sentence or a word; each begins at most
    ``overlap`` tokens before the end of the previous one, likewise after a pause. ``tokens`` are the characters of
    each token, ascending.

    Returns:
        the characters of each window, without white space around them; none for a text without tokens.

    Raises:
        InputError: ``size`` or ``overlap`` is out of range.
    """
    if size < 1:
        raise InputError(f"expected windows of at least 1 token, got {size}")
    if not 0 <= overlap < size:
        raise InputError(
            f"expected an overlap from 0 to {size - 1} tokens, below the windows' size, got {overlap}"
        )
    windows, start = [], 0
    while start < len(tokens):
        stop = min(start + size, len(tokens))
        if stop < len(tokens):
            stop = max(range(start + (size + 1) // 2, stop + 1), key=lambda end: (_pause(text, tokens, end), end))
        windows.append((tokens[start][0], tokens[stop - 1][1]))
        if stop == len(tokens):
            break
        earliest = max(start + 1, stop - overlap)
        start = max(range(earliest, stop + 1), key=lambda begin: (_pause(text, tokens, begin), -begin))
    return windows


def _pause(text: str, tokens: Sequence[Span], place: int) -> int:
    """Rank what lies before a token: 4, 3, 2, 1 for the end of a paragraph, line, sentence, word; else 0."""
    end, start = tokens[place - 1][1], tokens[place][0] if place < len(tokens) else len(text)
    between = text[end:start]
    if not between:
        return 0
    lines = between.count("\n")
    if lines:
        return 4 if lines > 1 else 3
    return 2 if text[max(0, end - 3) : end].rstrip(_CLOSING)[-1:] in _SENTENCE_ENDS else 1
