"""Write the most frequent words of a corpus, one a line: text that teaches a student rare words by themselves.

    python examples/corpus/words.py recipes/english.toml --data DIR -o DIR/train/words.txt.xz

A word stands alone, so a teacher encodes it in a few milliseconds, and a student sees each of them as often as a
whole sentence.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import lzma
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

_WORD = re.compile(r"[^\W\d_]{2,}(?:['-][^\W\d_]+)*")


def main() -> None:
    """Count the words of every source and write the most frequent ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="TOML file with [[corpus]] tables")
    parser.add_argument("--data", type=Path, required=True, help="base folder of the sources")
    parser.add_argument("--limit", type=int, default=120_000, help="number of words to keep")
    parser.add_argument("--least", type=int, default=3, help="occurrences that a word needs")
    parser.add_argument("-o", "--output", type=Path, required=True, help="an .xz file")
    arguments = parser.parse_args()
    sources = tomllib.loads(arguments.corpus.read_text(encoding="utf-8"))["corpus"]
    texts = itertools.chain.from_iterable(lines(arguments.data, source) for source in sources)
    counts = collections.Counter(word for text in texts for word in _WORD.findall(text.lower()))
    words = [word for word, count in counts.most_common(arguments.limit) if count >= arguments.least]
    with lzma.open(arguments.output, "wt", encoding="utf-8") as file:
        file.writelines(f"{word}\n" for word in words)
    print(f"{len(words):,} of {len(counts):,} words")


def lines(data: Path, source: dict[str, str | int]) -> Iterator[str]:
    """Yield the lines of a source that the corpus reads."""
    path = data / str(source["path"])
    if path.name == "words.txt.xz":
        return
    with lzma.open(path, "rt", encoding="utf-8") as file:
        limit = source.get("limit")
        yield from itertools.islice(file, None if limit is None else int(limit))


if __name__ == "__main__":
    main()
