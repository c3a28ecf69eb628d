"""Assemble English training text from public data sets on the Hugging Face hub, similar to the bundled models'.

    python examples/corpus/english.py DIR --exclude sts/*.csv scifact/*.jsonl
    embedkit train DIR/english.toml recipes/mini-minilm.toml --data DIR --teacher MODEL

Writes one file DIR/train/NAME.txt.xz for each source, one text per line, and DIR/english.toml, which lists them
with their licences. Existing files are kept, so an interrupted call continues with the next source. Texts that
equal a text of the files in --exclude, or share a run of ten words with one, are dropped: list your evaluation
sets there.

The bundled models were trained on recipes/english.toml, part of which is not on the hub in this form:
documentation, glossaries and dialogues are missing here, and Wikipedia, arXiv and Stack Exchange are different
samples. Models trained on this text are similar to the bundled ones, but not equal.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import logging
import lzma
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from embedkit.atomic import atomic_file
from embedkit.errors import DataError
from embedkit.extras import require
from embedkit.progress import Progress
from embedkit.records import read_records
from embedkit.training.corpus import normalise

logger = logging.getLogger("embedkit.corpus")

_RUN = 10  # length of word sequences that no text may share with an evaluation set
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[\"'(]?[A-Z0-9])")
_WORD = re.compile(r"\w+")
_SENTENCE_WORDS = 5, 40
_PASSAGE_WORDS = 40, 190

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Source:
    """A source of text.

    Attributes:
        repository: repository on the hub.
        read: returns a row's text.
        licence: licence of the text.
        configuration: configuration of the data set.
        form: splits the text of a row into texts; by default it is kept whole.
        limit: maximum number of texts.
        repeat: number of times each text occurs in an epoch.
    """

    repository: str
    read: Callable[[Row], str]
    licence: str
    configuration: str | None = None
    form: Callable[[str], Iterable[str]] = lambda text: [text]
    limit: int = 50_000
    repeat: int = 1


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, except very short and long ones."""
    least, most = _SENTENCE_WORDS
    for paragraph in text.splitlines():
        for sentence in _SENTENCE_END.split(paragraph):
            if least <= len(sentence.split()) <= most:
                yield sentence


def passages(text: str) -> Iterator[str]:
    """Yield the paragraphs of a text, joined if short and split at sentences if long."""
    least, most = _PASSAGE_WORDS
    gathered: list[str] = []
    for sentence in itertools.chain.from_iterable(map(_SENTENCE_END.split, text.splitlines())):
        if gathered and _count(gathered) + len(sentence.split()) > most:
            yield " ".join(gathered)
            gathered = []
        gathered.append(sentence)
        if _count(gathered) >= (least + most) / 2:
            yield " ".join(gathered)
            gathered = []
    if _count(gathered) >= least:
        yield " ".join(gathered)


def _count(parts: Iterable[str]) -> int:
    return sum(len(part.split()) for part in parts)


def _column(name: str) -> Callable[[Row], str]:
    return lambda row: str(row[name] or "")


def _titled(title: str, text: str) -> Callable[[Row], str]:
    return lambda row: f"{row[title]}. {row[text]}"


SOURCES = {
    "wikipedia": Source(
        "wikimedia/wikipedia", _column("text"), "CC BY-SA 3.0", "20231101.en", sentences, limit=220_000
    ),
    "wikipedia-passages": Source(
        "wikimedia/wikipedia", _column("text"), "CC BY-SA 3.0", "20231101.en", passages, limit=20_000
    ),
    "openstax": Source("crumb/openstax-text", _column("text"), "CC BY 4.0", form=sentences, limit=110_000),
    "openstax-passages": Source("crumb/openstax-text", _column("text"), "CC BY 4.0", form=passages, limit=15_000),
    "tatoeba": Source(
        "sentence-transformers/parallel-sentences-tatoeba",
        _column("english"),
        "CC BY 2.0 FR",
        "all",
        limit=205_000,
    ),
    "headlines": Source("heegyu/news-category-dataset", _column("headline"), "CC BY 4.0", repeat=2),
    "arxiv-titles": Source("gfissore/arxiv-abstracts-2021", _column("title"), "CC0"),
    "arxiv-abstracts": Source("gfissore/arxiv-abstracts-2021", _titled("title", "abstract"), "CC0", limit=20_000),
    "arxiv-sentences": Source("gfissore/arxiv-abstracts-2021", _column("abstract"), "CC0", form=sentences),
    "pubmed-questions": Source("qiaojin/PubMedQA", _column("question"), "MIT", "pqa_artificial", limit=25_000),
    "pubmed-sentences": Source(
        "qiaojin/PubMedQA", _column("long_answer"), "MIT", "pqa_artificial", sentences, limit=50_000
    ),
    "medquad-questions": Source("keivalya/MedQuad-MedicalQnADataset", _column("Question"), "CC BY 4.0", repeat=2),
    "medquad-passages": Source(
        "keivalya/MedQuad-MedicalQnADataset", _column("Answer"), "CC BY 4.0", form=passages, limit=10_000
    ),
    "nq-open": Source("google-research-datasets/nq_open", _column("question"), "CC BY-SA 3.0", repeat=2),
    "trivia": Source("mandarjoshi/trivia_qa", _column("question"), "Apache-2.0", "rc.nocontext"),
    "clinc150": Source("clinc/clinc_oos", _column("text"), "CC BY 3.0", "plus", repeat=4),
    "stackexchange-titles": Source(
        "sentence-transformers/stackexchange-duplicates",
        _column("title1"),
        "CC BY-SA 4.0",
        "title-title-pair",
        repeat=2,
    ),
    "stackexchange-posts": Source(
        "sentence-transformers/stackexchange-duplicates",
        _column("post1"),
        "CC BY-SA 4.0",
        "post-post-pair",
        limit=15_000,
    ),
    "wordnet-glosses": Source(
        "marksverdhei/wordnet-definitions-en-2021",
        lambda row: f"{row['Word']}: {row['Definition']}",
        "WordNet 3.0",
    ),
    "wordnet-examples": Source("marksverdhei/wordnet-definitions-en-2021", _column("Example"), "WordNet 3.0"),
}


class Excluded:
    """Detects texts of evaluation sets, and texts that share a sequence of words with them.

    Args:
        paths: files of any supported form; every string in them counts, in any column.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._texts: set[str] = set()
        self._runs: set[tuple[str, ...]] = set()
        for path in paths:
            for _, record in read_records(path):
                for value in record.values():
                    self._add(value)

    def _add(self, value: Any) -> None:
        if isinstance(value, list | tuple):
            for each in value:
                self._add(each)
        elif isinstance(value, str):
            self._texts.add(normalise(value).lower())
            self._runs.update(_runs(value))

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and (
            text.lower() in self._texts or any(run in self._runs for run in _runs(text))
        )


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    return (tuple(words[start : start + _RUN]) for start in range(len(words) - _RUN + 1))


def assemble(
    folder: Path,
    excluded: Excluded,
    *,
    sources: Mapping[str, Source] = SOURCES,
    show_progress: bool | None = None,
) -> Path:
    """Write the missing sources and the recipe that lists all of them.

    Returns:
        path of the recipe.

    Raises:
        DataError: a data set cannot be read; files written before are kept.
        MissingExtraError: the package ``datasets`` is missing.
    """
    (folder / "train").mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        path = folder / "train" / f"{name}.txt.xz"
        if path.exists():
            logger.info("%s is there already", path)
            continue
        with atomic_file(path) as temporary, lzma.open(temporary, "wt", encoding="utf-8") as file:
            count = 0
            for text in _texts(name, source, excluded, show_progress=show_progress):
                file.write(text + "\n")
                count += 1
        logger.info("%s: %s texts", path, f"{count:,}")
    entries = [_entry(name, source) for name, source in sources.items()]
    recipe = folder / "english.toml"
    with atomic_file(recipe) as temporary:
        temporary.write_text(tomli_w.dumps({"corpus": entries}), encoding="utf-8")
    return recipe


def _entry(name: str, source: Source) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": f"train/{name}.txt.xz", "licence": source.licence}
    return entry | ({"repeat": source.repeat} if source.repeat > 1 else {})


def _texts(name: str, source: Source, excluded: Excluded, *, show_progress: bool | None) -> Iterator[str]:
    """Yield distinct texts of one source, up to its limit."""
    seen: set[int] = set()
    with Progress(name, source.limit, unit="texts", enabled=show_progress) as progress:
        for row in _rows(source):
            for part in source.form(source.read(row)):
                text = normalise(part)
                if not text or hash(text) in seen or text in excluded:
                    continue
                seen.add(hash(text))
                yield text
                progress.advance()
                if len(seen) == source.limit:
                    return


def _rows(source: Source) -> Iterator[Row]:
    datasets: Any = require("datasets", extra="train")
    configuration = [] if source.configuration is None else [source.configuration]
    try:
        yield from datasets.load_dataset(source.repository, *configuration, split="train", streaming=True)
    except Exception as error:  # the hub client raises many types; all mean that the data cannot be read
        raise DataError(f"{source.repository} cannot be read from the hub: {error}") from error


def main() -> None:
    """Assemble the text requested on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--exclude", type=Path, nargs="+", default=[], metavar="FILE", help="evaluation sets")
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES), metavar="NAME")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    chosen = {name: SOURCES[name] for name in arguments.sources}
    print(assemble(arguments.folder, Excluded(arguments.exclude), sources=chosen))


if __name__ == "__main__":
    main()
