"""The corpus: what is read, what is dropped and counted, what remains on disk."""

from __future__ import annotations

import json
import sys
import types
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.config import from_mapping
from embedkit.errors import ConfigError, DataError
from embedkit.training import corpus as module
from embedkit.training.corpus import Corpus, SourceConfig, normalise


@pytest.fixture
def prepare(tmp_path):
    """``prepare("a.txt", content, **source)`` or ``prepare(SourceConfig, ...)``."""

    def prepare(*arguments, **about):
        if isinstance(arguments[0], SourceConfig):
            return Corpus.prepare(arguments, tmp_path / "cache", show_progress=False)
        name, content = arguments
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return Corpus.prepare([SourceConfig(path=str(path), **about)], tmp_path / "cache", show_progress=False)

    return prepare


def texts(corpus, view=0):
    return corpus.texts(range(len(corpus)), view)


class TestNormalise:
    def test_canonical_letters_and_single_spaces(self):
        assert normalise(" cafe\u0301\t\u00a0 au \r\n lait\u2028") == "café au lait"

    @given(st.text())
    def test_is_idempotent_and_canonical(self, text):
        once = normalise(text)
        assert normalise(once) == once == once.strip()
        assert unicodedata.is_normalized("NFC", once)
        assert "  " not in once


class TestForms:
    PAIR = (("one text", "another text"), ("third text", "fourth text"))

    def test_tsv_has_two_views(self, prepare):
        corpus = prepare("a.tsv", "\n".join("\t".join(pair) for pair in self.PAIR))
        assert corpus.views == 2
        assert [tuple(pair) for pair in zip(texts(corpus, 0), texts(corpus, 1), strict=True)] == [*self.PAIR]

    def test_the_texts_of_a_view_are_read_in_chunks(self, prepare, monkeypatch):
        monkeypatch.setattr(module, "_CHUNK", 2)
        corpus = prepare("a.tsv", "\n".join(f"text {number}\tother {number}" for number in range(5)))
        read, of_rows = [], corpus.texts
        monkeypatch.setattr(corpus, "texts", lambda rows, view: read.append(len(rows)) or of_rows(rows, view))
        assert list(corpus.stream(1)) == [f"other {number}" for number in range(5)]
        assert read == [2, 2, 1]

    @pytest.mark.parametrize("column", ["text", "sentence", "content", "title"])
    def test_usual_names_of_the_column_are_found(self, prepare, column):
        assert texts(prepare("a.jsonl", json.dumps({"id": "x", column: "one"}))) == ["one"]

    def test_several_sources_are_read_in_order(self, prepare, tmp_path):
        (tmp_path / "a.txt").write_text("one\ntwo")
        (tmp_path / "b.jsonl").write_text('{"text": "three"}')
        corpus = prepare(*(SourceConfig(path=str(tmp_path / name)) for name in ("a.txt", "b.jsonl")))
        assert texts(corpus) == ["one", "two", "three"]
        assert [(card.name, card.rows) for card in corpus.cards] == [("a", 2), ("b", 1)]


class TestCounts:
    def test_dropped_rows_are_counted(self, prepare):
        corpus = prepare("a.txt", "one\n\ntwo\n one \n  \ncafe\u0301\ncafé\n", licence="CC0", name="mine")
        (card,) = corpus.cards
        assert texts(corpus) == ["one", "two", "café"]
        assert (card.read, card.rows, card.empty, card.duplicates) == (5, 3, 0, 2)
        assert (card.name, card.licence) == ("mine", "CC0")
        assert corpus.source_rows.tolist() == [0, 1, 3]

    def test_repeated_rows_are_found_across_sources(self, prepare, tmp_path):
        (tmp_path / "a.txt").write_text("one\ntwo\n\n")
        (tmp_path / "b.txt").write_text("two\nthree\none\n")
        corpus = prepare(*(SourceConfig(path=str(tmp_path / name)) for name in ("a.txt", "b.txt")))
        assert [(card.rows, card.read, card.empty, card.duplicates) for card in corpus.cards] == [
            (2, 2, 0, 0),
            (1, 3, 0, 2),
        ]
        assert corpus.source_rows.tolist() == [0, 1, 3]

    def test_two_views_are_repeated_only_together(self, prepare):
        corpus = prepare("a.tsv", "one\ttwo\none\tthree\none\ttwo\none\t\n\n")
        assert texts(corpus, 1) == ["two", "three"]
        assert (corpus.cards[0].duplicates, corpus.cards[0].empty) == (1, 1)

    def test_bounds_are_in_words(self, prepare):
        corpus = prepare("a.txt", "one\none two\none two three\none two three four", min_words=2, max_words=3)
        assert texts(corpus) == ["one two", "one two three"]
        assert corpus.cards[0].empty == 2

    def test_limit_counts_rows_read(self, prepare):
        corpus = prepare("a.txt", "one\none\ntwo\nthree", limit=3)
        assert texts(corpus) == ["one", "two"]
        assert corpus.cards[0].read == 3

    def test_the_hash_is_of_the_rows_kept(self, prepare):
        hashes = [
            prepare(name, content).cards[0].sha256
            for name, content in [("a.txt", "one\ntwo"), ("b.txt", " one\n\ntwo\none"), ("c.txt", "two\none")]
        ]
        assert hashes[0] == hashes[1] != hashes[2]


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "content", "about", "message"),
        [
            ("a.txt", "", {}, "no text in"),
            ("a.txt", "\n \n", {}, "no text in"),
            ("a.csv", "a,b\n1,2\n", {}, "set text_column, or view_columns for pairs, to columns of a, b"),
            ("a.csv", "a,b\n1,2\n", {"text_column": "c"}, "no column c; it has a, b"),
            ("a.csv", "a,b\n1,2\n", {"view_columns": ("a", "c")}, "no column c"),
            ("a.jsonl", '{"text": "a"}\n{"body": "b"}', {}, "a.jsonl:2: expected text in text; found body: str"),
            ("a.jsonl", '{"text": "a"}\n{"text": 5}', {}, "a.jsonl:2: expected text in text; found text: int"),
            ("a.jsonl", '{"text": "a"}\n{"text": "\\ud83d"}', {}, "a.jsonl:2: invalid Unicode"),
        ],
    )
    def test_a_bad_source_is_named_and_leaves_nothing(self, prepare, tmp_path, name, content, about, message):
        with pytest.raises(DataError, match=message):
            prepare(name, content, **about)
        assert list((tmp_path / "cache").rglob("*.*")) == []

    def test_no_source(self, tmp_path):
        with pytest.raises(DataError, match="at least one source"):
            Corpus.prepare([], tmp_path)

    def test_sources_of_different_form(self, prepare, tmp_path):
        (tmp_path / "a.txt").write_text("one")
        (tmp_path / "b.tsv").write_text("one\ttwo")
        with pytest.raises(DataError, match="2 views per row, but the previous one has 1"):
            prepare(*(SourceConfig(path=str(tmp_path / name)) for name in ("a.txt", "b.tsv")))

    @pytest.mark.parametrize("columns", [["a"], ["a", "b", "c"]])
    def test_views_are_two(self, columns):
        with pytest.raises(ConfigError, match="view_columns must name two columns"):
            from_mapping(SourceConfig, {"path": "a.csv", "view_columns": columns})

    def test_a_text_is_not_two_views(self):
        with pytest.raises(ConfigError, match="exclude each other"):
            SourceConfig(path="a.csv", text_column="a", view_columns=("b", "c"))


class TestFolder:
    def test_is_found_again(self, prepare, monkeypatch):
        first = prepare("a.txt", "one\ntwo")
        monkeypatch.setattr(module, "read_records", None)
        again = prepare("a.txt", "one\ntwo")
        assert again.folder == first.folder
        assert again.cards == first.cards

    def test_other_content_and_other_settings_have_another(self, prepare):
        folders = {
            prepare("a.txt", "one\ntwo").folder,
            prepare("a.txt", "one\nthree").folder,
            prepare("a.txt", "one\ntwo", limit=1).folder,
            prepare("a.txt", "one\ntwo", name="other").folder,
        }
        assert len(folders) == 4

    def test_an_interrupt_leaves_nothing(self, prepare, tmp_path, monkeypatch):
        def interrupted(path):
            yield 1, {"text": "one"}
            raise KeyboardInterrupt

        monkeypatch.setattr(module, "read_records", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare("a.txt", "one\ntwo")
        assert list((tmp_path / "cache" / "corpus").iterdir()) == []
        monkeypatch.undo()
        assert texts(prepare("a.txt", "one\ntwo")) == ["one", "two"]

    @pytest.mark.parametrize(
        "name", ["corpus.json", "spans.npy", "source_rows.npy", "target_rows.npy", "text.bin"]
    )
    def test_damage_is_reported(self, prepare, name):
        corpus = prepare("a.txt", "one\ntwo")
        (corpus.folder / name).write_bytes(b"")
        with pytest.raises(DataError, match="not a prepared corpus"):
            Corpus(corpus.folder)


class TestTexts:
    def test_any_order_and_repetition(self, prepare):
        corpus = prepare("a.txt", "one\ntwo\nthrée\nфour")
        assert corpus.texts([3, 0, 3, 2]) == ["фour", "one", "фour", "thrée"]
        assert corpus.texts(np.array([], dtype=np.int64)) == []

    def test_a_million_characters(self, prepare):
        long = "wörd " * 200_000
        corpus = prepare("a.txt", f"{long}\nshort")
        assert texts(corpus) == [long.strip(), "short"]

    def test_nul_and_other_controls_survive(self, prepare):
        assert texts(prepare("a.jsonl", json.dumps({"text": "a\0b\x7fc"}))) == ["a\0b\x7fc"]


def test_a_set_of_the_hub_is_streamed(prepare, monkeypatch):
    asked, fake = [], types.ModuleType("datasets")

    def load_dataset(*names, **options):
        asked.append((tuple(filter(None, names)), options["split"], options["streaming"]))
        return iter([{"text": "one"}, {"text": "two"}])

    fake.load_dataset = load_dataset
    fake.get_dataset_split_names = lambda *names, **options: ["train", "validation", "test"]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert texts(prepare(SourceConfig(path="hf://org/name"))) == ["one", "two"]
    assert asked == [(("org/name",), "train", True)]
