from collections import Counter

import numpy as np
import pytest

from embedkit.errors import ConfigError
from embedkit.training.corpus import Corpus, SourceConfig
from embedkit.training.recipes.stage import HeldOut, Split


@pytest.fixture
def corpus(tmp_path):
    for name, count in (("a", 100), ("b", 30), ("c", 5)):
        (tmp_path / f"{name}.txt").write_text("\n".join(f"{name} {number}" for number in range(count)))
    sources = [SourceConfig(path=str(tmp_path / f"{name}.txt")) for name in "abc"]
    return Corpus.prepare(sources, tmp_path, show_progress=False)


def test_each_source_holds_out_a_number_but_at_most_a_tenth(corpus):
    split = Split.of(corpus, 4)

    assert {name: len(rows) for name, rows in split.held_out.items()} == {"a": 4, "b": 3}
    for name, rows in split.held_out.items():
        assert all(text.startswith(name) for text in corpus.texts(rows))


def test_sources_of_one_name_count_as_one(tmp_path):
    for part in "xy":
        (tmp_path / f"{part}.txt").write_text("\n".join(f"{part} {number}" for number in range(40)))
    sources = [SourceConfig(path=str(tmp_path / f"{part}.txt"), name="z") for part in "xy"]
    split = Split.of(Corpus.prepare(sources, tmp_path, show_progress=False), 2)

    assert {name: len(rows) for name, rows in split.held_out.items()} == {"z": 4}


@pytest.mark.parametrize("count", [None, 2])
def test_an_epoch_repeats_a_source_as_configured(tmp_path, count):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("\n".join(f"{name} {number}" for number in range(20)))
    repeats = {"a": 1, "b": 3}
    sources = [SourceConfig(path=str(tmp_path / f"{name}.txt"), repeat=times) for name, times in repeats.items()]
    corpus = Corpus.prepare(sources, tmp_path, show_progress=False)
    split = Split.of(corpus, count)

    kept_out = {text for rows in split.held_out.values() for text in corpus.texts(rows)}
    assert len(kept_out) == 2 * (count or 0)
    assert Counter(corpus.texts(split.train)) == Counter(
        {
            f"{name} {number}": times
            for name, times in repeats.items()
            for number in range(20)
            if f"{name} {number}" not in kept_out
        }
    )


def test_the_distance_is_measured_source_by_source(corpus, counting_teacher):
    teacher = counting_teacher()

    class Vectors:
        name, fingerprint, dimension = teacher.name, teacher.fingerprint, teacher.dimension

        def read(self, rows, view):
            return teacher.encode(corpus.texts(rows, view))

    class Opposite:
        def encode(self, texts):
            rows = teacher.encode(texts)
            return rows * np.array([[-1.0 if text.startswith("a") else 1.0] for text in texts], dtype=np.float32)

    distances = HeldOut(corpus, Split.of(corpus, 4).held_out, Vectors()).distances(Opposite())

    assert distances == pytest.approx({"a": 2.0, "b": 0.0}, abs=1e-6)


def test_sources_too_small_to_hold_out_anything_are_refused(tmp_path):
    (tmp_path / "few.txt").write_text("\n".join(f"row {number}" for number in range(9)))
    corpus = Corpus.prepare([SourceConfig(path=str(tmp_path / "few.txt"))], tmp_path, show_progress=False)
    with pytest.raises(ConfigError, match=r"no source has ten rows \(the corpus has 9\)"):
        Split.of(corpus, 2)
