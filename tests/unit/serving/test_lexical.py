"""How texts are cut into terms, and how segments weigh them together."""

# ruff: noqa: RUF001 - letters that look like others are the point here

from __future__ import annotations

import sys
import time
import unicodedata

import numpy as np
import pytest

from embedkit.errors import CollectionError, InputError, MissingExtraError
from embedkit.serving.retrieval import Collection
from embedkit.serving.retrieval.store.analyzer import VERSION, Analyzer, _warn_without_stems
from embedkit.serving.retrieval.store.files import Arrays, ArrayWriter
from embedkit.serving.retrieval.store.keywords import (
    LexicalIndex,
    PostingsBuilder,
    recorded_analyzer,
    score_segments,
)


def cut(text, *languages):
    return Analyzer(languages).terms(text)


def index_of(folder, texts, *languages):
    builder, path = PostingsBuilder(), folder / "arrays.bin"
    for text in texts:
        builder.add(text)
    folder.mkdir(exist_ok=True)
    with ArrayWriter(path) as arrays:
        size = builder.build(Analyzer(languages)).save(arrays)
    return LexicalIndex.read(Arrays(path), size, len(texts))


def found(query, index):
    return np.flatnonzero(score_segments(query, [index])[0]).tolist()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("हिन्दी नदी", ["हिन्दी", "नदी"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("שָׁלוֹם עוֹלָם", ["שלום", "עולם"]),
        ("كِتَابٌ جَدِيدٌ", ["كتاب", "جديد"]),
        ("می\u200cخواهم", ["میخواهم"]),
        ("Windows™ of the café", ["windows", "of", "the", "cafe"]),
        ("日本語、水。2024年abc", ["日", "本", "語", "日本", "本語", "水", "2024", "年", "abc"]),
        ("カメラは", ["カメ", "メラ", "ラは"]),
        ("น้ำใส", ["น้ํา", "าใ", "ใส"]),
        ("서울에서 책", ["서울", "울에", "에서", "책"]),
        ("\u0301 ´ !", []),
    ],
)
def test_words_in_any_script(text, words):
    assert cut(text) == words


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ＦＵＬＬ　１２", "full 12"),
        ("İstanbul", "istanbul"),
        ("I\u0307stanbul", "ISTANBUL"),
        ("Straße", "STRASSE"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        ("Ångström", "angstrom"),
        ("résumé", "resume"),
        ("ｶﾞｲﾄﾞ", "ガイド"),
        ("ofﬁce", "office"),
        ("co\u00adoperate", "cooperate"),
        ("שָׁלוֹם", "שלום"),
        ("كِتَاب", "كتاب"),
    ],
)
def test_words_that_are_equal_to_readers(one, other):
    assert cut(one) == cut(other) != []


@pytest.mark.parametrize("form", ["NFD", "NFKC", "NFKD"])
def test_the_normal_form_makes_no_difference(form):
    every = map(chr, range(sys.maxunicode))
    letters = [letter for letter in every if letter.isalpha() and unicodedata.normalize(form, letter) != letter]
    different = [
        letter for letter in letters if cut(f"a{letter}") != cut(unicodedata.normalize(form, f"a{letter}"))
    ]
    assert different == []


@pytest.mark.parametrize("marks", ["\u0301\u0323", "\u0301\u0323\u0327"])
def test_many_marks_are_cut_into_words_in_linear_time(marks):
    text = f"a{marks * 100_000} bees"
    began = time.process_time()
    first, second = cut(text)
    assert time.process_time() - began < 5.0  # sorted all together, they take minutes
    assert (first[0], second) == ("\u1ea1", "bees")
    assert cut(unicodedata.normalize("NFD", text[:21])) == cut(text[:21])


IDENTIFIERS = [
    "max_body_bytes",
    "getUserName",
    "AX-4410",
    "3.11.2",
    "CVE-2024-1234",
    "HTTPServer",
    "e-mail",
    "parseJSON7Dict",
]


@pytest.mark.parametrize(
    ("query", "row"),
    [
        ("max body bytes", 0),
        ("maxBodyBytes", 0),
        ("MAX_BODY_BYTES", 0),
        ("user name", 1),
        ("getusername", 1),
        ("4410", 2),
        ("ax4410", 2),
        ("3.11.2", 3),
        ("cve 1234", 4),
        ("cve-2024-1234", 4),
        ("http server", 5),
        ("email", 6),
        ("json", 7),
        ("7 dict", 7),
        ("parse_json7dict", 7),
    ],
)
def test_identifiers_are_found_by_their_parts_and_whole(tmp_path, query, row):
    assert found(query, index_of(tmp_path, [f"see {name}." for name in IDENTIFIERS], "english")) == [row]


def test_the_whole_of_an_identifier_ranks_above_its_parts(tmp_path):
    index = index_of(tmp_path, ["AX 11 and 4410 of AX", "model AX-4410", "AX-11", "4410"])
    assert score_segments("AX-4410", [index])[0].argmax() == 1


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [
        ("english", "connection", "connected"),
        ("german", "Häuser", "Haus"),
        ("french", "maisons", "maison"),
        ("russian", "книгами", "книга"),
    ],
)
def test_words_of_one_stem_are_equal_in_their_language(language, one, other):
    pytest.importorskip("Stemmer")
    assert cut(one, language) == cut(other, language)
    assert cut(one) != cut(other)


def test_no_word_is_lost_and_frequent_ones_weigh_half():
    assert Analyzer(("english",)).query_terms("to be or not to be") == {
        "to": 1.0,
        "be": 1.0,
        "or": 0.5,
        "not": 0.5,
    }


# Languages


TEXTS = {
    "english": ["The bees are in the garden.", "You can find the keys on the table."],
    "german": ["Die Bienen sind nicht in dem Garten.", "Der Schlüssel liegt auf dem Tisch und ist alt."],
    "french": ["Les abeilles sont dans le jardin.", "La clé est sur la table pour vous."],
    "russian": ["пчёлы живут в саду"],
    "greek": ["οι μέλισσες ζουν στον κήπο"],
}


@pytest.mark.parametrize("spoken", [("english",), ("german",), ("russian",), ("english", "french", "german"), ()])
def test_the_languages_of_the_texts_decide(spoken):
    pytest.importorskip("Stemmer")
    builder = PostingsBuilder()
    for text in ["42", "AX-4410 α β", *(text for language in spoken for text in TEXTS[language])]:
        builder.add(text)
    assert builder.build().analyzer.languages == spoken


@pytest.mark.parametrize(
    ("language", "text", "query"),
    [
        ("portuguese", "informação", "informacao"),
        ("portuguese", "informações", "informação"),
        ("catalan", "educació", "educacio"),
        ("spanish", "también", "tambien"),
        ("french", "économique", "ECONOMIQUE"),
    ],
)
def test_accents_may_be_left_out_where_they_change_the_stem(tmp_path, language, text, query):
    index = index_of(tmp_path, ["ou", text], language)
    assert found(query, index) == found(text, index) == [1]


def test_texts_of_several_languages_are_found_by_the_stems_of_their_own(tmp_path):
    pytest.importorskip("Stemmer")
    texts = [text for texts in TEXTS.values() for text in texts]
    index = index_of(tmp_path, texts, *sorted(TEXTS))
    for query, row in [("key", 1), ("garten", 2), ("tische", 3), ("abeille", 4), ("пчёлами", 6), ("κήπος", 7)]:
        assert found(query, index) == [row], query


def test_the_language_is_named_or_told_and_kept(tmp_path, encoder):
    pytest.importorskip("Stemmer")
    build = {"encoder": encoder, "replace": True, "path": tmp_path / "idx"}
    named = Collection.build(["Häuser"], language="german", **build)
    assert named.search("haus", mode="lexical")[0].text == "Häuser"
    assert Collection.build(["houses"], language="none", **build).search("house", mode="lexical") == []
    told = Collection.build(TEXTS["german"], **build)
    told.upsert([("the", "the houses"), ("haus", "Häuser")])  # which alone are English
    assert [hit.id for hit in told.search("haus", mode="lexical")] == ["haus"]
    with pytest.raises(InputError, match="language must be one of auto, arabic, "):
        Collection.build(["a"], language="klingon", **build)


@pytest.mark.parametrize("first", ["Refunds", "the refunds of this shop"])
@pytest.mark.parametrize("count", [8, 80])  # in the tail, and in a segment
def test_more_texts_than_there_were_decide_their_language(tmp_path, encoder, first, count):
    pytest.importorskip("Stemmer")
    collection = Collection.build([first], encoder=encoder, path=tmp_path / "idx")
    collection.upsert(
        [(f"d{n}", f"Die Häuser der Stadt sind nicht so alt wie das Rathaus {n}.") for n in range(count)]
    )
    for _ in range(2):
        assert len(collection.search("Haus", k=100, mode="lexical")) == count
        assert len(collection.search("refunds", k=100, mode="lexical")) == 1
        collection.compact()


def test_without_pystemmer_words_are_indexed_whole_with_a_warning(tmp_path, encoder, monkeypatch, caplog):
    pytest.importorskip("Stemmer")
    stemmed = Collection.build(TEXTS["english"], encoder=encoder, path=tmp_path / "stemmed")
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    monkeypatch.setattr("embedkit.serving.retrieval.store.analyzer._stemmer", unimportable)
    _warn_without_stems.cache_clear()
    plain = Collection.build(TEXTS["english"], encoder=encoder, path=tmp_path / "plain")
    assert "keywords are indexed without stems: Stemmer is not installed" in caplog.text
    assert plain.search("keys", mode="lexical")[0].text == TEXTS["english"][1]
    opened = Collection.open(stemmed.path, encoder=encoder)
    assert opened.search("keys", mode="dense")
    with pytest.raises(MissingExtraError, match=r"embedkit-onnx\[serve\]"):
        opened.search("keys")


def unimportable(_):
    from embedkit.extras import require

    return require("Stemmer", extra="serve")


# Segments


def test_segments_of_different_analyzers_are_searched_together(tmp_path):
    pytest.importorskip("Stemmer")
    old, new = index_of(tmp_path / "a", ["keys"]), index_of(tmp_path / "b", ["keys"], "english")
    assert [bool(scores[0] > 0) for scores in score_segments("key", [old, new])] == [False, True]
    assert all(scores[0] > 0 for scores in score_segments("keys", [old, new]))


@pytest.mark.parametrize("version", [1, VERSION + 1])
def test_terms_of_another_version_are_refused(tmp_path, version):
    with pytest.raises(CollectionError, match=f"has keywords of analysis {version}, this embedkit has {VERSION}"):
        recorded_analyzer("english", version, tmp_path)


def test_a_compaction_tells_the_languages_again(tmp_path, encoder):
    pytest.importorskip("Stemmer")
    collection = Collection.build(["42"], encoder=encoder, path=tmp_path / "idx")
    collection.upsert([(str(number), text) for number, text in enumerate(TEXTS["english"], 1)])
    collection.compact()
    (segment,) = collection.manifest.segments
    assert segment.words.analyzer == "english"
    assert [hit.id for hit in collection.search("key", mode="lexical")] == ["2"]
