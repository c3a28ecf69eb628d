"""How texts are cut into words, and words of several analyses in one search."""

# ruff: noqa: RUF001 - letters that look like others are the point here

from __future__ import annotations

import dataclasses
import functools
import sys
import time
import unicodedata

import pytest

from embedkit.errors import CollectionError
from embedkit.serving.retrieval import Collection
from embedkit.serving.retrieval.lexical import ANALYSIS, LexicalIndex, WordCounts, split_words, term_factors
from embedkit.serving.retrieval.segment_files import MemoryArrays


def index_of(folder, texts, analysis=ANALYSIS):
    module = pytest.importorskip("embedkit.serving.retrieval.words", exc_type=ImportError)
    builder, arrays = module.WordsBuilder(), MemoryArrays(folder / "arrays.bin")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "split_words", functools.partial(split_words, analysis=analysis))
        for text in texts:
            builder.add(text)
    size = dataclasses.replace(builder.build().save(arrays), analysis=analysis)
    return LexicalIndex(arrays, size, len(texts))


@pytest.mark.parametrize(
    "text",
    ["how Bees find_their way, in 1066!", "", "e-mail: a.b@c.org", "E1234 x"],
)
def test_ascii_is_cut_as_ever(text):
    assert split_words(text) == split_words(text, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("हिन्दी नदी", ["हिन्दी", "नदी"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("שָׁלוֹם עוֹלָם", ["שלום", "עולם"]),
        ("كِتَابٌ جَدِيدٌ", ["كتاب", "جديد"]),
        ("می\u200cخواهم", ["میخواهم"]),
        ("Windows™ of the café", ["windows", "of", "the", "café"]),
        ("日本語、水。2024年abc", ["日", "本", "語", "日本", "本語", "水", "2024", "年", "abc"]),
        ("カメラは", ["カメ", "メラ", "ラは"]),
        ("น้ำใส", ["น้ํา", "าใ", "ใส"]),
        ("서울에서 책", ["서울", "울에", "에서", "책"]),
        ("\u0301 ´ !", []),
    ],
)
def test_words_in_any_script(text, words):
    assert split_words(text) == words


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ＦＵＬＬ　１２", "full 12"),
        ("İstanbul", "istanbul"),
        ("I\u0307stanbul", "ISTANBUL"),
        ("Straße", "STRASSE"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        ("ｶﾞｲﾄﾞ", "ガイド"),
        ("ofﬁce", "office"),
        ("co\u00adoperate", "cooperate"),
        ("שָׁלוֹם", "שלום"),
        ("كِتَاب", "كتاب"),
    ],
)
def test_words_that_are_equal_to_readers(one, other):
    assert split_words(one) == split_words(other) != []


@pytest.mark.parametrize("form", ["NFD", "NFKC", "NFKD"])
def test_the_normal_form_makes_no_difference(form):
    letters = [chr(code) for code in range(sys.maxunicode) if chr(code).isalpha()]
    different = [
        letter
        for letter in letters
        if split_words(f"a{letter}") != split_words(unicodedata.normalize(form, f"a{letter}"))
    ]
    assert different == []


@pytest.mark.parametrize("marks", ["\u0301\u0323", "\u0301\u0323\u0327"])
def test_many_marks_are_cut_into_words_in_linear_time(marks):
    text = f"a{marks * 100_000} bees"
    began = time.process_time()
    first, second = split_words(text)
    assert time.process_time() - began < 5.0  # sorted all together, they take minutes
    assert (first[0], second) == ("\u1ea1", "bees")
    assert split_words(unicodedata.normalize("NFD", text[:21])) == split_words(text[:21])


def test_segments_of_different_analyses_are_searched_together(tmp_path):
    texts = ["İzmir by bees", "tea", "ships"]
    old, new = index_of(tmp_path / "old", texts, analysis=1), index_of(tmp_path / "new", texts)
    for query in ("İzmir", "bees"):
        factors = term_factors(query, [old, new])
        scores = [index.scores(factor) for index, factor in zip([old, new], factors, strict=True)]
        assert [list(row > 0) for row in scores] == [[True, False, False]] * 2


def test_equal_words_of_two_analyses_weigh_the_same(tmp_path):
    texts = ["bees and tea", "tea"]
    old, new = index_of(tmp_path / "old", texts, analysis=1), index_of(tmp_path / "new", texts)
    both, alone = term_factors("bees", [old, new]), term_factors("bees", [new, new])
    assert both == alone


@pytest.mark.parametrize("analysis", [0, ANALYSIS + 1])
def test_words_of_a_newer_version_are_refused(tmp_path, analysis):
    with pytest.raises(CollectionError, match=f"has words of analysis {analysis}, this embedkit knows {ANALYSIS}"):
        LexicalIndex(MemoryArrays(tmp_path / "arrays.bin"), WordCounts(0, 0, analysis), 1)


def test_compacting_cuts_the_words_of_the_first_release_again(tmp_path, encoder):
    pytest.importorskip("bm25s")
    manifest = Collection.build(["bees"], encoder=encoder, path=tmp_path, lexical=True).manifest
    (segment,) = manifest.segments
    old = dataclasses.replace(segment, words=dataclasses.replace(segment.words, analysis=1))
    dataclasses.replace(manifest, segments=(old,)).write(tmp_path)
    opened = Collection.open(tmp_path, encoder=encoder)
    opened.compact()
    assert opened.manifest.segments[0].words == segment.words
    assert opened.search("bees")[0].scores["lexical"] > 0
