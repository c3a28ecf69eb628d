"""Pairs, with rewriters that are simple functions."""

from __future__ import annotations

import pytest
from rewrite import PairsReport, write_pairs

from embedkit.training.corpus import Corpus, SourceConfig

TEXTS = [f"text {number}" for number in range(600)]


class Rewriter:
    """Applies a function and counts; fails after enough calls."""

    def __init__(self, function, name="rewriter", limit=10_000):
        self.name = self.fingerprint = name
        self.function, self.limit, self.seen = function, limit, []

    def rewrite(self, texts):
        if len(self.seen) + len(texts) > self.limit:
            raise KeyboardInterrupt
        self.seen += texts
        return [self.function(text) for text in texts]


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    return Corpus.prepare([SourceConfig(path=str(tmp_path / "texts.txt"))], tmp_path)


@pytest.fixture
def write(corpus, tmp_path):
    def write(*rewriters):
        return write_pairs(corpus, tmp_path / "pairs.tsv", rewriters, tmp_path, show_progress=False)

    return write


def read(tmp_path):
    pairs = Corpus.prepare([SourceConfig(path=str(tmp_path / "pairs.tsv"))], tmp_path)
    rows = range(len(pairs))
    return list(zip(pairs.texts(rows, 0), pairs.texts(rows, pairs.views - 1), strict=True))


def test_with_two_each_view_is_one_of_theirs(write, tmp_path):
    report = write(Rewriter(str.upper, "up"), Rewriter(str.title, "title"))
    assert report == PairsReport(rows=600, unchanged=0, lost=0)
    assert read(tmp_path) == [(text.upper(), text.title()) for text in TEXTS]


def test_an_interrupted_call_resumes(write, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write(Rewriter(str.upper, limit=512))
    assert not (tmp_path / "pairs.tsv").exists()
    rest = Rewriter(str.upper)
    write(rest)
    assert rest.seen == TEXTS[512:]
    assert read(tmp_path) == [(text, text.upper()) for text in TEXTS]


def test_another_rewriter_does_not_get_these_texts(write, tmp_path):
    write(Rewriter(str.upper, "up"))
    write(Rewriter(str.title, "title"))
    assert read(tmp_path)[0] == ("text 0", "Text 0")


def test_equal_and_lost_texts_are_counted(write, tmp_path):
    lost = {"text 3": "", "text 4": " \n"}
    report = write(Rewriter(lambda text: lost.get(text, text if text < "text 2" else text.upper())))
    unchanged = sum(text < "text 2" for text in TEXTS)
    assert report == PairsReport(rows=598, unchanged=unchanged, lost=2)
    assert "text 3" not in dict(read(tmp_path))
