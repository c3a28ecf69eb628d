"""Compare the kernels' token ids with those of the tokenizers package, and their times.

    python benchmarks/multilingual/tokenizer.py TOKENIZER TEXTS [--random 100000] [--max-length 512] [--rounds 5]

`TOKENIZER` is a `tokenizer.json` or its folder; `TEXTS` is a folder with files of one text a line (`.txt`, `.tsv`,
`.jsonl`, also with `.xz`), which are all read, and pairs and fields compared as they stand. Every text and as many
random strings are tokenized by both; a single difference makes the exit status 1. Random strings mix characters of
all planes, single scripts, combining marks, joiners, controls, spaces and names of special tokens.

Times are for one thread: in each round both tokenize the same texts, one after the other; the ratio is the median
of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tokenizers

from embedkit.runtime.tokenization import Tokenizer
from embedkit.runtime.tokenizer_kernels import TokenizerKernel
from embedkit.runtime.unigram_pieces import UnigramPieces
from embedkit.runtime.word_pieces import WordPieces

SCRIPTS = [(0x20, 0x7F), (0xA0, 0x250), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE80), (0x1000, 0x1200)]
SCRIPTS += [(0x1E00, 0x2100), (0x2100, 0x2800), (0x3000, 0x3400), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4)]
SCRIPTS += [(0xF900, 0xFFFE), (0x10000, 0x12000), (0x1F000, 0x1FB00), (0, 0xD800), (0xE000, 0x110000)]
HOSTILE = "\u0301\u0300\u0323\u200d\u200c\u200b\ufe0f\u0e33\u093c\u094d\u1100\u1161\u11a8\r\n\t\0"
HOSTILE += "\u2581\u3000\xa0\xad\ufdfa\ufb01\u2122\xa9\u0344\u1e9e\u0130\u03a3\u3297\ufffd\ufeff"
RARE = ["\u0600", "\u06dd", "\u0d4e", "\U0001f1e6", "\U0001f3fb", "\u0378", "\U000e0001", "  ", "\r\n"]
CHUNK = 2000


def main() -> int:
    """Compare, time and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--random", type=int, default=100_000)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    ours = Tokenizer.load(arguments.tokenizer, arguments.max_length)
    theirs = tokenizers.Tokenizer.from_str(ours.json)
    theirs.no_padding()
    theirs.enable_truncation(arguments.max_length)
    length = arguments.max_length
    kernel = WordPieces.find(theirs, length) or UnigramPieces.find(theirs, length)
    for made in (ours.tokenize, kernel.encode if kernel else ours.tokenize):
        made(["a"] * 100_000)  # enough texts to create the kernel
    if kernel is None or kernel.encode(["a"]) is None:
        sys.exit("there is no kernel for this tokenizer")
    special = [token.content for token in theirs.get_added_tokens_decoder().values()][:20]
    sources = {path.name: list(read(path)) for path in sorted(arguments.texts.rglob("*")) if is_text(path)}
    sources["random"] = [random_text(number, special) for number in range(arguments.random)]
    total = differing = left = 0
    for name, texts in sources.items():
        found, skipped = compare((ours, kernel, theirs), texts, name)
        total, differing, left = total + len(texts), differing + found, left + skipped
        print(
            f"{name}: {len(texts):,} texts, {found} differ, {skipped} left to the tokenizers package", flush=True
        )
    report_times(ours, theirs, [text for name in sources if name != "random" for text in sources[name]], arguments)
    print(f"{total:,} texts, {differing} differ, {left} left to the tokenizers package")
    return 1 if differing else 0


def is_text(path: Path) -> bool:
    """Whether a file has texts."""
    name = path.name.removesuffix(".xz")
    return path.is_file() and name.endswith((".txt", ".tsv", ".jsonl"))


def read(path: Path) -> Iterator[str]:
    """Read the texts of a file."""
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield line.rstrip("\n")


def random_text(seed: int, special: list[str]) -> str:
    """Return a string of up to 60 characters."""
    generator = random.Random(seed)
    scripts = generator.sample(SCRIPTS, generator.randint(1, 3))
    parts = []
    for _ in range(generator.randint(0, 60)):
        kind = generator.random()
        if kind < 0.6:
            parts.append(chr(generator.randrange(*generator.choice(scripts))))
        elif kind < 0.75:
            parts.append(generator.choice(HOSTILE))
        elif kind < 0.995:
            parts.append(generator.choice("aeinot  "))
        else:
            parts.append(generator.choice([*special, *RARE]))
    return "".join(part for part in parts if not "\ud800" <= part <= "\udfff")


def compare(
    tokenizers_of_each: tuple[Tokenizer, TokenizerKernel, tokenizers.Tokenizer], texts: list[str], name: str
) -> tuple[int, int]:
    """Return how many texts differ, and how many the kernel leaves."""
    ours, kernel, theirs = tokenizers_of_each
    differing = left = 0
    for start in range(0, len(texts), CHUNK):
        chunk = texts[start : start + CHUNK]
        tokens = ours.tokenize(chunk)
        encodings = theirs.encode_batch_fast(chunk)
        _, _, skipped = kernel.encode(chunk) or ([], [], chunk)
        left += len(skipped)
        cut = set(tokens.overflowing)
        for row, (ids, encoding) in enumerate(zip(tokens.ids, encodings, strict=True)):
            if ids != encoding.ids or (row in cut) != bool(encoding.overflowing):
                differing += 1
                if differing <= 3:
                    print(f"{name}: {chunk[row]!a}\n  {ids}\n  {encoding.ids}", file=sys.stderr)
    return differing, left


def report_times(
    ours: Tokenizer, theirs: tokenizers.Tokenizer, texts: list[str], arguments: argparse.Namespace
) -> None:
    """Print the median ratio of times over rounds that alternate."""
    generator = random.Random(0)
    rows = []
    for _ in range(arguments.rounds):
        sample = generator.sample(texts, min(CHUNK, len(texts)))
        started = time.perf_counter()
        encodings = theirs.encode_batch_fast(sample)
        middle = time.perf_counter()
        tokens = ours.tokenize(sample)
        rows.append((middle - started, time.perf_counter() - middle, tokens.total))
        assert tokens.total == sum(len(encoding.ids) for encoding in encodings)
    ratio = statistics.median(theirs / ours for theirs, ours, _ in rows)
    count = min(CHUNK, len(texts))
    print(
        json.dumps(
            {
                "ratio": round(ratio, 1),
                "tokenizers_us_a_text": round(1e6 * statistics.median(row[0] for row in rows) / count, 1),
                "embedkit_us_a_text": round(1e6 * statistics.median(row[1] for row in rows) / count, 1),
                "tokens_a_text": round(statistics.mean(row[2] for row in rows) / count, 1),
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main())
