"""Translations learn the teacher's vector of their original; sources have prompts for the teacher."""

from __future__ import annotations

import json

import numpy as np
import pytest

from embedkit.errors import ConfigError, DataError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.training.corpus import Corpus, SourceConfig
from embedkit.training.loop import RunControl
from embedkit.training.recipes.stage import HeldOut, Split
from embedkit.training.run import resolve, run
from embedkit.training.teacher_spaces import JoinConfig, JoinedVectors
from embedkit.training.teachers import AlignedVectors, CachedVectors, TeacherConfig, load_encoder, load_vectors

GERMAN = [("the cat", "die Katze"), ("the dog", "der Hund"), ("the sea", "das Meer")]
FRENCH = [("the dog", "le chien"), ("the sea", "la mer"), ("the king", "le roi"), ("the cat", "le chat")]
COLUMNS = ("text1", "text2")


@pytest.fixture
def prepare(tmp_path):
    """``prepare(name=rows, ...)``: a corpus of sources; rows of pairs are translations."""

    def make(prompts=None, **sources):
        found = []
        for name, rows in sources.items():
            paired = not isinstance(rows[0], str)
            path = tmp_path / f"{name}.{'tsv' if paired else 'txt'}"
            path.write_text("\n".join("\t".join(row) if paired else row for row in rows), encoding="utf-8")
            columns = {"translation_columns": COLUMNS} if paired else {}
            found.append(SourceConfig(path=str(path), prompt=(prompts or {}).get(name), **columns))
        return Corpus.prepare(found, tmp_path / "cache", show_progress=False)

    return make


def rows_of(corpus):
    return dict(zip(corpus.texts(range(len(corpus))), range(len(corpus)), strict=True))


def test_both_sides_are_rows_and_name_the_original(prepare):
    corpus = prepare(de=GERMAN, plain=["a plain text", "the king"], fr=FRENCH)

    rows = rows_of(corpus)
    assert corpus.views == 1
    assert [card.rows for card in corpus.cards] == [6, 2, 4]  # originals that were read before are dropped
    for original, translation in (*GERMAN, *FRENCH):
        assert corpus.target_rows[rows[translation]] == corpus.target_rows[rows[original]] == rows[original]
    assert corpus.target_rows[rows["a plain text"]] == rows["a plain text"]
    assert corpus.teacher_inputs(np.array([rows["le roi"], rows["die Katze"]])) == ["the king", "the cat"]


def test_json_lines_name_their_columns(tmp_path):
    lines = [json.dumps({"en": original, "th": translation}) for original, translation in GERMAN]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    source = SourceConfig(path=str(tmp_path / "a.jsonl"), translation_columns=("en", "th"))
    corpus = Corpus.prepare([source], tmp_path, show_progress=False)
    assert corpus.target_rows.tolist() == [0, 0, 2, 2, 4, 4]


def test_a_text_that_is_a_translation_elsewhere_keeps_its_first_target(prepare):
    corpus = prepare(one=[("the chat", "chat")], two=[("chat", "der Chat")])
    rows = rows_of(corpus)
    assert corpus.target_rows[rows["chat"]] == rows["the chat"]
    assert corpus.target_rows[rows["der Chat"]] == rows["chat"]  # the teacher reads "chat", the original


def test_the_teacher_reads_originals_only(prepare, counting_teacher, tmp_path):
    corpus, teacher = prepare(de=GERMAN, plain=["a plain text"]), counting_teacher()
    vectors = CachedVectors(teacher, corpus, tmp_path / "cache")
    rows = rows_of(corpus)
    assert sorted(teacher.asked) == ["a plain text", "the cat", "the dog", "the sea"]
    both = vectors.read(np.array([rows["das Meer"], rows["the sea"]]), 0)
    assert np.array_equal(both, np.stack([teacher.vector("the sea")] * 2))


def test_joined_teachers_read_originals_only(prepare, counting_teacher, tmp_path):
    corpus = prepare(de=GERMAN, fr=FRENCH)
    parts = [CachedVectors(counting_teacher(mark * 64), corpus, tmp_path / "cache") for mark in "ab"]
    joined = JoinedVectors(parts, JoinConfig(dimension=3), len(corpus))
    rows = rows_of(corpus)
    same = joined.read(np.array([rows["the dog"], rows["der Hund"], rows["le chien"]]), 0)
    assert np.array_equal(same[0], same[1])
    assert np.array_equal(same[0], same[2])


def test_translations_are_held_out_and_their_originals_are_not_trained(prepare, counting_teacher, tmp_path):
    pairs = [(f"the dog {number}", f"der Hund {number}") for number in range(40)]
    corpus = prepare(de=pairs, plain=[f"text {number}" for number in range(20)])

    split = Split.of(corpus, 3)

    assert {name: len(rows) for name, rows in split.held_out.items()} == {"de": 3, "plain": 2}
    held_out = split.held_out["de"]
    assert all(text.startswith("der Hund") for text in corpus.texts(held_out))
    assert not np.isin(corpus.target_rows[held_out], split.train).any()
    teacher = counting_teacher()
    measured = HeldOut(corpus, split.held_out, CachedVectors(teacher, corpus, tmp_path / "cache"))
    distances = measured.distances(teacher)  # an encoder of its own for every text knows no translation
    assert distances["de"] > 0.1 > 1e-6 > abs(distances["plain"])


def test_prompts_are_those_of_each_source(prepare, make_encoder, tmp_path):
    make_encoder().save(tmp_path / "teacher")
    source = str(tmp_path / "teacher")
    sources = {"plain": ["the king", "a red garden"], "asked": ["who reads"], "de": GERMAN}
    corpus = prepare({"asked": "the cat ", "de": ""}, **sources)
    plain = load_encoder(TeacherConfig(source=source))

    vectors = load_vectors(TeacherConfig(source=source, prompt="old dog "), corpus, tmp_path / "cache")

    expected = ["old dog the king", "old dog a red garden", "the cat who reads"]
    expected += [original for original, _ in GERMAN for _ in range(2)]
    assert np.allclose(vectors.read(np.arange(len(corpus)), 0), plain.encode(expected), atol=1e-6)
    again = prepare({"asked": "the dog ", "de": ""}, **sources)  # other prompts, the same texts
    others = load_vectors(TeacherConfig(source=source, prompt="old dog "), again, tmp_path / "cache")
    expected[2] = "the dog who reads"
    assert np.allclose(others.read(np.arange(len(again)), 0), plain.encode(expected), atol=1e-6)


@pytest.mark.parametrize("sources", [{"de": GERMAN}, {"plain": ["one", "two"]}])
def test_vectors_by_row_fit_neither(prepare, sources, tmp_path):
    np.save(tmp_path / "v.npy", np.ones((3 if "de" in sources else 2, 4), dtype=np.float32))
    corpus = prepare(None if "de" in sources else {"plain": "query: "}, **sources)
    with pytest.raises(DataError, match=r"no vectors for translations|remove corpus.prompt"):
        AlignedVectors(TeacherConfig(source=str(tmp_path / "v.npy"), name="api"), corpus)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"translation_columns": ("a",)}, "translation_columns must name two columns, not 1"),
        ({"translation_columns": ("a", "b"), "text_column": "a"}, "text_column and translation_columns exclude"),
        ({"translation_columns": ("a", "b"), "view_columns": ("a", "b")}, "view_columns and translation_columns"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        SourceConfig(path="a.csv", **settings)


TEACHER = {"source": "teacher"}


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"method": "simcse"}, "translation_columns need a teacher"),
        ({"method": "simcse", "teacher": TEACHER}, "translation_columns need a teacher"),
        ({"corpus": [{"path": "a.txt", "prompt": "query: "}], "method": "simcse"}, "for one teacher that encodes"),
        ({"corpus": [{"path": "a.txt", "prompt": ""}], "teachers": [TEACHER, TEACHER]}, "for one teacher"),
        (
            {"corpus": [{"path": "a.txt", "prompt": ""}], "teacher": {"source": "a.npy", "name": "api"}},
            "for one teacher that encodes",
        ),
        (
            {"corpus": [{"path": "a.txt", "prompt": "query: "}, {"path": "b.txt"}], "teacher": TEACHER},
            "some sources have no prompt",
        ),
        (
            {"method": "score-distillation", "student": {"vocabulary_size": 9}, "corpus": [{"path": "a.txt"}]},
            "not for the cross-encoders",
        ),
    ],
)
def test_settings_without_a_use_are_refused(over, message):
    pairs = {"path": "a.tsv", "translation_columns": list(COLUMNS)}
    with pytest.raises(ConfigError, match=message):
        resolve({"method": "sct-distillation", "corpus": [pairs], **over})


@pytest.mark.parametrize("joined", [False, True])
def test_a_run_of_plain_text_and_translations_draws_both_sides_to_the_original(
    joined, make_encoder, sentences, tmp_path
):
    make_encoder(seed=1).save(tmp_path / "teacher")
    make_encoder(seed=2).save(tmp_path / "other")
    (tmp_path / "plain.txt").write_text("\n".join(sentences(24)))
    swap = str.maketrans("aeiou", "uoiea")
    pairs = [f"{text} again\t{text.translate(swap)}" for text in sentences(24)]
    (tmp_path / "pairs.tsv").write_text("\n".join(pairs))
    teachers = [{"source": "teacher"}, *([{"source": "other"}] if joined else [])]
    mapping = {
        "method": "sct-distillation",
        "data": str(tmp_path),
        "cache": str(tmp_path / "cache"),
        "corpus": [{"path": "plain.txt"}, {"path": "pairs.tsv", "translation_columns": list(COLUMNS)}],
        "student": {"layers": 1, "hidden": 16, "heads": 2, "max_length": 16, "vocabulary_size": 100},
        "teachers": teachers,
        "optim": {"batch_size": 8, "steps": 40, "lr": 1e-2},
        "dev": {"held_out": 2, "every": 40},
        "settings": {"head": "linear", "views": 1, "queues": "one", "queue_size": 8, "regression": 10.0},
        **({"join": {"dimension": 8}} if joined else {}),
    }

    run(resolve(mapping), tmp_path / "run", RunControl(show_progress=False))

    model = SentenceEncoder.load(tmp_path / "run" / "model")
    assert model.tokenizer.vocabulary_size == 100
    student, blind = TorchEncoder(model), TorchEncoder(SentenceEncoder.load(tmp_path / "run" / "initial"))
    originals, translations = zip(*(pair.split("\t") for pair in pairs), strict=True)
    before, after = (
        float((encoder.encode(originals) * encoder.encode(translations)).sum(axis=1).mean())
        for encoder in (blind, student)
    )
    assert after > before
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "held_out/pairs" in metrics
