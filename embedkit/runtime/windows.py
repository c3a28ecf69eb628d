"""Windows of a long text: as many whole tokens as fit, ended where the text has a pause."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embedkit.errors import InputError, shown

Span = tuple[int, int]
"""First character, and end of the characters, exclusive."""

_WIDE_ENDS = frozenset("\u3002\uff01\uff1f")  # Chinese and Japanese, no white space follows
_SENTENCE_ENDS = _WIDE_ENDS | frozenset(".!?\u2026")
_CLOSING = "\"'\u201d\u2019\xbb)]\u300d\u300f\uff09"
_AFTER_AN_END = _WIDE_ENDS | frozenset(_CLOSING)


def find_windows(
    text: str,
    tokens: Sequence[Span],
    size: int,
    overlap: int = 0,
    *,
    fits: Callable[[str], bool] = lambda window: True,  # noqa: ARG005
) -> list[Span]:
    """Divide a text into windows of at most ``size`` tokens.

    A window ends, in its second half, after a paragraph, else a line, a sentence or a word; each begins at most
    ``overlap`` tokens before the end of the previous one, likewise after a pause. ``tokens`` are the characters of
    each token, ascending. ``fits`` tells whether a window, tokenized alone, has at most ``size`` tokens: its first
    word may have more than in the text. A window that does not fit ends earlier.

    Returns:
        the characters of each window, without white space around them; none for a text without tokens.

    Raises:
        InputError: ``size`` or ``overlap`` is out of range.
    """
    if size < 1:
        raise InputError(f"expected windows of at least 1 token, got {size}")
    if not 0 <= overlap < size:
        raise InputError(
            f"expected an overlap from 0 to {size - 1} tokens, below the windows' size, got {shown(overlap)}"
        )
    windows, start = [], 0
    while start < len(tokens):
        stop = _end(text, tokens, start, size, start + size)
        while stop > start + 1 and not fits(text[tokens[start][0] : tokens[stop - 1][1]]):
            stop = _end(text, tokens, start, size, stop - 1)
        windows.append((tokens[start][0], tokens[stop - 1][1]))
        if stop == len(tokens):
            break
        earliest = max(start + 1, stop - overlap)
        start = max(range(earliest, stop + 1), key=lambda begin: (_pause(text, tokens, begin), -begin))
    return windows


def _end(text: str, tokens: Sequence[Span], start: int, size: int, most: int) -> int:
    """Return the best end in a window's second half, up to ``most``; the end of the tokens if that is within."""
    if most >= len(tokens):
        return len(tokens)
    least = min(start + (size + 1) // 2, most)
    return max(range(least, most + 1), key=lambda end: (_pause(text, tokens, end), end))


def _pause(text: str, tokens: Sequence[Span], place: int) -> int:
    """Rank what lies before a token: 4, 3, 2, 1 for the end of a paragraph, line, sentence, word; else 0."""
    end, start = tokens[place - 1][1], tokens[place][0] if place < len(tokens) else len(text)
    between = text[end:start]
    lines = between.count("\n")
    if lines:
        return 4 if lines > 1 else 3
    last = text[max(0, end - 3) : end].rstrip(_CLOSING)[-1:]
    if between:
        return 2 if last in _SENTENCE_ENDS else 1
    return 2 if last in _WIDE_ENDS and text[start : start + 1] not in _AFTER_AN_END else 0
