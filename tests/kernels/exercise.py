"""Call the kernels with arguments made from arbitrary bytes, valid and broken ones.

``fuzz.c`` calls it under libFuzzer, which searches for bytes that reach new code;
``tests/contracts/test_fuzzing.py`` calls it with a few hundred random inputs. It needs only the kernels.
"""

from __future__ import annotations

import itertools
import math
import random
import threading
from array import array
from typing import Any

REFUSALS = (ValueError, ArithmeticError)
"""What the kernels may raise, `OverflowError` among the second."""

KINDS = 0x21000
"""Characters whose joins the kernel of Unigram models supports."""

ALPHABET = "abcß#. \n€雪\ud800\U0001f600"
INPUT_BYTES = 400


def exercise(data: bytes, bert: Any, wordpiece: Any, unigram: Any) -> str | None:
    """Run one of the kernels on arguments made from the bytes.

    Args:
        data: any bytes.
        bert: the module `embedkit.kernels.bert`, however it was compiled.
        wordpiece: the module `embedkit.kernels.wordpiece`.
        unigram: the module `embedkit.kernels.unigram`.

    Returns:
        the message with which the kernel refused its arguments; None if it accepted them.

    Raises:
        AssertionError: a result is impossible, or instruction sets disagree.
    """
    draw = Draw(data)
    try:
        kernel = draw.below(4)
        if kernel == 0:
            cut_texts(draw, wordpiece)
        elif kernel == 1:
            cut_sentences(draw, unigram)
        else:
            run_network(draw, bert)
    except REFUSALS as error:
        return str(error)
    return None


def random_input(seed: int) -> bytes:
    """Return bytes for :func:`exercise`."""
    return random.Random(seed).randbytes(INPUT_BYTES)


class Draw:
    """Choices made by the bytes of an input, which is read cyclically."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data or b"\0", 0

    def byte(self) -> int:
        """Return the next byte."""
        self._at += 1
        return self._data[self._at % len(self._data)]

    def below(self, limit: int) -> int:
        """Return a number from 0."""
        return self.byte() % limit

    def rarely(self) -> bool:
        """Return True for about one byte in a hundred."""
        return self.byte() in (7, 77, 177)

    def one_of(self, usual: list[int], broken: list[int]) -> int:
        """Return a usual value, rarely a broken one."""
        values = broken if self.rarely() else usual
        return values[self.below(len(values))]

    def bytes(self, count: int) -> bytes:
        """Return that many bytes, rarely more or fewer."""
        count = max(0, count + (self.below(9) - 4 if self.rarely() else 0))
        first = self._at % len(self._data)
        self._at += min(count, 16)
        around = self._data[first:] + self._data[:first]
        return (around * (count // len(around) + 1))[:count]

    def floats(self, count: int, size: float = 0.02) -> bytes:
        """Return that many floats from ``-128 size`` to ``127 size``.

        Rarely they are so small that inverses are infinite, or bytes that may be any floats.
        """
        if self.rarely():
            return self.bytes(4 * count)
        size *= 1e-37 if self.rarely() else 1
        return array("f", [(byte - 128) * size for byte in self.bytes(count)]).tobytes()

    def text(self, most: int) -> str:
        """Return a text of few different characters."""
        return "".join(ALPHABET[self.below(len(ALPHABET))] for _ in range(self.below(most + 1)))


def run_network(draw: Draw, bert: Any) -> None:
    """Run the same texts on every instruction set: all return the same bits, or all refuse."""
    options, ids, types, starts, rows = network_arguments(draw)
    threads, logits, results = draw.one_of([1, 1, 1, 2, 3], [0, -1, 2**31 - 1]), draw.below(2), set()
    for instructions in bert.instructions():
        found = bytearray(rows)
        try:
            network = bert.Network(**options, instructions=instructions)
            run_shared(bert, network, instructions, threads, (ids, types, starts, found), logits)
        except REFUSALS as error:
            results.add(str(error).replace(instructions, ""))
        else:
            results.add(bytes(found))
            assert options["unit"] or all(map(math.isfinite, array("f", found))), "a value is not finite"
    assert len(results) == 1, "instruction sets differ"
    (result,) = results
    if isinstance(result, str):
        raise ValueError(result)  # noqa: TRY004 - the kernel's own refusal, as it was


def run_shared(
    bert: Any, network: Any, instructions: str, threads: int, arguments: tuple[Any, ...], logits: int
) -> None:
    """Run a network alone, or with a team of one helper less than it has places."""
    if threads == 1:
        network.run(*arguments, None, logits)
        return
    team = bert.make_team(instructions, threads)
    helpers = [threading.Thread(target=bert.help_team, args=(team,)) for _ in range(threads - 2)]
    for helper in helpers:
        helper.start()
    try:
        network.run(*arguments, team, logits)
    finally:
        bert.close_team(team)
        for helper in helpers:
            helper.join()


def network_arguments(draw: Draw) -> tuple[dict[str, Any], bytes, bytes | None, bytes, int]:
    """Return the arguments of a network and of one run of it, and the bytes of its rows."""
    hidden = draw.one_of([64, 128], [0, -64, 32, 2**31 - 64])
    heads = draw.one_of([1, 2, 4], [0, -1, 3, 64])
    inner = draw.one_of([64, 192], [0, 1, 2**31 - 64])
    memory = draw.one_of([0, 0, 64], [-64, 16, 2**31 - 64])
    vocabulary, places = draw.one_of([3, 8], [0, -1, 2**31 - 1]), draw.one_of([5, 9], [0])
    with_head, with_types, with_score = draw.below(2), draw.below(2), draw.below(3) == 0
    with_bias, padding_id = draw.below(3) == 0, draw.one_of([-1, 0], [1, 2**31 - 1])
    rotations, gated = draw.one_of([0, 0, 1, 2], [3]), draw.below(3) == 0
    is_byte, is_static, kind = draw.below(3) > 0, draw.below(2) == 1, draw.below(3)
    sizes = hidden, inner, memory, vocabulary
    if not all(0 <= size < 1000 for size in sizes):  # the kernel has to refuse them, whatever the buffers hold
        hidden_bytes, inner_bytes, memory_bytes, words = 64, 64, 0, 3
    else:
        hidden_bytes, inner_bytes, memory_bytes, words = sizes
    pooled = hidden_bytes + memory_bytes
    dimension = 64 if with_head else pooled

    def product(inputs: int, outputs: int) -> tuple[Any, ...]:
        bias, factors = draw.floats(outputs), draw.floats(inputs, 0.01) if is_static else None
        if not is_byte:
            return draw.floats(inputs * outputs, 0.001), None, bias, None, 0.0, 0.0
        step = draw.one_of([3, 6], [0, -1, 255]) / (10**40 if draw.rarely() else 100) if is_static else 0.0
        return draw.bytes(inputs * outputs), draw.floats(outputs, 1e-4), bias, factors, step, -128 * step

    def norm(width: int) -> tuple[bytes, bytes]:
        return draw.floats(width), draw.floats(width)

    def table(width: int) -> tuple[bytes, bytes | None]:
        if kind == 0:
            return draw.floats(words * width), None
        if kind == 1:
            return draw.bytes(words * width), draw.floats(words, 0.001)
        return draw.bytes(words * width // 2), bytes(draw.below(0x38) for _ in range(2 * 2 * words))

    def layer() -> tuple[Any, ...]:
        return (
            product(hidden_bytes, 3 * hidden_bytes),
            product(hidden_bytes, hidden_bytes),
            norm(hidden_bytes),
            product(hidden_bytes, inner_bytes * (1 + gated)),
            product(inner_bytes, hidden_bytes),
            norm(hidden_bytes),
            draw.one_of([-1, rotations - 1], [rotations, -2, 2**31 - 1]),
            draw.one_of([-1, 1, 3], [0, -2, 2**31 - 1]),
        )

    (word_values, word_scales), (memory_values, memory_scales) = (
        table(hidden_bytes),
        table(memory_bytes) if memory_bytes else (None, None),
    )
    options = {
        "hidden": hidden,
        "heads": heads,
        "intermediate": inner,
        "memory_width": memory,
        "dimension": draw.one_of([dimension], [0, -1, 16]),
        "vocabulary": vocabulary,
        "padding_id": padding_id,
        "bias": draw.floats(max(heads, 0) % 100 * (2 * (places - (padding_id >= 0)) - 1)) if with_bias else None,
        "epsilon": draw.one_of([1, 1, 0], [-100]) * 1e-5,
        "tanh": draw.below(2),
        "first_token": draw.below(2),
        "unit": draw.below(2),
        "words": word_values,
        "word_scales": word_scales,
        "memory": memory_values,
        "memory_scales": memory_scales,
        "positions": None
        if rotations and padding_id < 0 and draw.below(2)
        else draw.floats(places * hidden_bytes),
        "rotations": [
            draw.floats((places - (padding_id >= 0)) * (hidden_bytes // max(heads, 1))) for _ in range(rotations)
        ],
        "pre_norm": draw.below(2),
        "gated": gated,
        "types": draw.floats(2 * hidden_bytes) if with_types else None,
        "norm": norm(hidden_bytes),
        "layers": [layer() for _ in range(draw.below(3))],
        "head": product(pooled, dimension) if with_head else None,
        "head_activation": draw.one_of(["linear", "tanh", "gelu"], ["relu", ""]),
        "head_norm": norm(draw.one_of([dimension], [64, 0])) if draw.below(3) == 0 else None,
        "score": draw.floats(dimension + 1) if with_score else None,
    }
    lengths = [draw.below(places + 1) for _ in range(draw.below(6))]
    starts = array("i", [0] + [sum(lengths[: number + 1]) for number in range(len(lengths))])
    if draw.rarely():
        starts[draw.below(len(starts))] = draw.one_of([3], [-1, 2**31 - 1])
    count = max(0, sum(lengths))
    ids = array("i", [draw.one_of([number % max(words, 1)], [-1, words, 2**31 - 1]) for number in range(count)])
    types = array("i", [draw.one_of([0, 1], [-1, 2]) for _ in range(count)]).tobytes() if with_types else None
    rows = max(0, len(lengths) * 4 * (1 if with_score else dimension) + (4 if draw.rarely() else 0))
    return options, ids.tobytes(), types, starts.tobytes(), rows


def cut_texts(draw: Draw, wordpiece: Any) -> None:
    """Split texts into pieces: ids of the vocabulary, with consecutive bounds."""
    entries = list(dict.fromkeys(draw.text(6).replace("\ud800", "") for _ in range(draw.below(20))))
    vocabulary: dict[str, int] = {
        entry: draw.one_of([number], [-1, 2**31]) for number, entry in enumerate(entries)
    }
    kinds: list[dict[str, str]] = [{}, {}, {}]
    for character in ALPHABET.replace("\ud800", ""):
        kinds[draw.below(3)][character] = draw.text(3).replace("\ud800", "") if draw.below(2) else character
    unknown, room = 1000, draw.one_of([0, 3, 40], [-1, 2**40])
    before, after = array("i", [2000] * draw.below(3)).tobytes(), array("i", [3000] * draw.below(3)).tobytes()
    pieces = wordpiece.WordPieces(
        vocabulary=vocabulary,
        unknown=unknown,
        prefix=draw.text(2).replace("\ud800", ""),
        longest_word=draw.one_of([0, 3, 256], [-1, 257]),
        letters=kinds[0],
        marks=kinds[1],
        spaces=kinds[2],
        added=tuple(draw.text(4) for _ in range(draw.below(3))),
        before=before,
        after=after,
        room=room,
    )
    check_ids(draw, pieces, {*vocabulary.values(), unknown}, (room, before, after))


def cut_sentences(draw: Draw, unigram: Any) -> None:
    """Split texts into pieces of a Unigram model."""
    spelled = [draw.text(6).replace("\ud800", "") for _ in range(1 + draw.below(20))]
    spelled += [f"<0x{byte:02X}>" for byte in range(256)] if draw.below(3) == 0 else []
    scores = draw.floats(len(spelled), 0.1)
    doubles = array("d", array("f", scores[: len(scores) // 4 * 4])).tobytes()
    unknown, room = draw.one_of([0, -1], [len(spelled), -2]), draw.one_of([0, 3, 40], [-1, 2**40])
    before, after = array("i", [2000] * draw.below(3)).tobytes(), array("i", [3000] * draw.below(3)).tobytes()
    kinds = bytearray(draw.one_of([KINDS], [0, 5]))
    for character in ALPHABET[: len(kinds)]:
        if ord(character) < len(kinds):
            kinds[ord(character)] = draw.below(5)
    pieces = unigram.UnigramPieces(
        tuple(spelled),
        scores=doubles,
        unknown=unknown,
        byte_fallback=draw.below(2),
        charsmap=[None, draw_map(draw), draw.bytes(40)][draw.one_of([0, 1], [2])],
        kinds=bytes(kinds),
        space=draw.text(2).replace("\ud800", "") or "_",
        spaces=draw.text(2).replace("\ud800", "") if draw.below(2) else None,
        prefix=draw.below(2),
        split=draw.below(2),
        strip_left=draw.below(2),
        strip_right=draw.below(2),
        split_whitespace=draw.below(2),
        added=tuple(draw.text(4) for _ in range(draw.below(3))),
        before=before,
        after=after,
        room=room,
    )
    check_ids(draw, pieces, set(range(len(spelled))), (room, before, after))


def draw_map(draw: Draw) -> bytes:
    """Return a map of characters whose double array has arbitrary leaves, transitions and replacements."""
    units = array("I", [0] * 1024)
    units[0] = 256 << 10
    for character in ALPHABET.replace("\ud800", "").encode():
        offset = draw.one_of([512, 256, 1], [2000])
        units[256 ^ character] = character | draw.below(2) << 8 | offset << 10
        units[(256 ^ character ^ offset) % 1024] |= draw.one_of([0, 2, 5], [99, 2**31 - 1])
    replacements = "\0".join(draw.text(3).replace("\ud800", "") for _ in range(4)).encode()
    return array("I", [4 * len(units)]).tobytes() + units.tobytes() + replacements


def check_ids(draw: Draw, pieces: Any, known: set[int], frame: tuple[int, bytes, bytes]) -> None:
    """Tokenize texts: the ids are known, and their bounds consecutive."""
    room, before, after = frame
    texts = [draw.text(60) * (1 + 50 * draw.rarely()) for _ in range(draw.below(6))]
    ids, bounds, outcomes = pieces.tokenize(texts)
    found, ends = array("i", ids), array("q", bounds)
    assert len(outcomes) == len(texts) == len(ends) - 1
    assert list(ends) == sorted(ends)
    assert (ends[0], ends[-1]) == (0, len(found))
    assert set(found) <= known | {2000, 3000}
    longest = room + (len(before) + len(after)) // 4
    assert all(end - start <= longest for start, end in itertools.pairwise(ends))
