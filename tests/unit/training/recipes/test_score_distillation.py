"""Score distillation: from text to a student cross-encoder, with cached pairs and exact resume."""

import dataclasses
import itertools
import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import embedkit
from embedkit import CrossEncoder
from embedkit.config import from_mapping, load_toml, merge
from embedkit.errors import ConfigError, DataError, ModelNotFoundError, TrainingError
from embedkit.modeling.bundles import from_bundle
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.initialisation import Size, random
from embedkit.modeling.torch_encoder import TorchCrossEncoder
from embedkit.runtime.find import find_model
from embedkit.runtime.tokenization import Tokenizer
from embedkit.training import mining
from embedkit.training.corpus import Corpus, SourceConfig
from embedkit.training.loop import RunControl
from embedkit.training.mining import MiningConfig, Pairs, PairTeacher, load_pair_teachers, mine, score
from embedkit.training.recipes.score_distillation import (
    PairGroups,
    ScoreDistillationConfig,
    _student,
    prepare_pairs,
    ranking_evaluation,
)
from embedkit.training.run import planned, prepare, resolve, run, training_text

RECIPES = Path(__file__).parents[4] / "recipes"
WHO, WHAT = ("the cat", "a good dog", "my sister", "an old king"), ("will sleep", "wants to read", "likes music")
QUERIES = [f"{who} {what}" for who, what in itertools.product(WHO, WHAT)]
PASSAGES = [f"{query} {where}" for query in QUERIES for where in ("in the garden", "by the sea", "today")]
MINING = MiningConfig(encoder="tiny", dense=3, bm25=3, random=2, depth=8)


class Encoder:
    """Embeds texts by their letters."""

    name, fingerprint, dimension, max_length = "letters", "f" * 64, 26, 99

    def encode(self, texts):
        rows = np.array([[text.count(chr(97 + letter)) for letter in range(26)] for text in texts], np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def shared_words(pairs):
    return np.array([len({*a.split()} & {*b.split()}) for a, b in pairs], dtype=np.float32)


@pytest.fixture
def corpora(tmp_path):
    def prepare(name, texts):
        (tmp_path / name).write_text("\n".join(texts))
        return Corpus.prepare([SourceConfig(path=str(tmp_path / name))], tmp_path / "cache")

    return prepare("queries.txt", QUERIES), prepare("passages.txt", PASSAGES)


@pytest.fixture
def recipe(toy_tokenizer_json, toy_bundle, corpora, tmp_path):
    encoder = random(Tokenizer(toy_tokenizer_json, 20), Size(4, 32, 2, 48), max_length=20, seed=5)
    teacher = PairEncoder.from_encoder(encoder, max_length=20, seed=3)
    with torch.no_grad():
        teacher.network.classifier.weight.mul_(20)
    teacher.save(tmp_path / "teacher")
    return {
        "method": "score-distillation",
        "cache": str(tmp_path / "cache"),
        "device": "cpu",
        "corpus": [{"path": str(tmp_path / "passages.txt")}],
        "teacher": {"source": str(tmp_path / "teacher")},
        "student": {"layers": 2, "hidden": 16, "intermediate_size": 24},
        "optim": {"batch_size": 8, "steps": 6, "lr": 1e-3},
        "settings": {
            "queries": [{"path": str(tmp_path / "queries.txt")}],
            "mining": dataclasses.asdict(dataclasses.replace(MINING, encoder=str(toy_bundle))),
            "group": 2,
            "length": 20,
        },
    }


def test_candidates_are_the_best_by_vectors_and_by_words_and_some_more(corpora, tmp_path):
    queries, passages = corpora

    _, candidates = mine(queries, passages, Encoder(), MINING, tmp_path / "cache", seed=1)

    assert candidates.shape == (len(QUERIES), 8)
    for query, row in zip(queries.texts(np.arange(len(queries))), candidates, strict=True):
        texts = passages.texts(row)
        assert query in texts[0]
        assert query in texts[3]


def test_candidates_are_mined_once(corpora, tmp_path, monkeypatch):
    first = mine(*corpora, Encoder(), MINING, tmp_path / "cache", seed=1)
    monkeypatch.setattr(Encoder, "encode", lambda *_: pytest.fail("embedded again"))

    folder, candidates = mine(*corpora, Encoder(), MINING, tmp_path / "cache", seed=1)

    assert folder == first[0]
    np.testing.assert_array_equal(candidates, first[1])


def test_scoring_continues_where_it_stopped(corpora, tmp_path, monkeypatch):
    monkeypatch.setattr(mining, "_QUERIES_PER_PART", 5)
    folder, candidates = mine(*corpora, Encoder(), MINING, tmp_path / "cache", seed=1)
    seen = []

    def logits(pairs):
        seen.extend(pairs)
        return shared_words(pairs)

    teacher = PairTeacher("words", "e" * 64, logits)
    stops = iter([False, True])
    assert score(*corpora, candidates, teacher, folder, should_stop=lambda: next(stops)) is None
    assert len(seen) == 5 * 8

    scores = score(*corpora, candidates, teacher, folder)

    assert len(seen) == len(QUERIES) * 8
    asked = np.repeat(corpora[0].texts(np.arange(len(QUERIES))), 8).tolist()
    expected = shared_words(list(zip(asked, corpora[1].texts(candidates.ravel()), strict=True)))
    np.testing.assert_array_equal(scores.ravel(), expected)


def test_a_second_run_waits_for_the_scores_of_the_first(corpora, tmp_path, monkeypatch):
    folder, candidates = mine(*corpora, Encoder(), MINING, tmp_path / "cache", seed=1)
    waiting, counts = threading.Event(), []
    monkeypatch.setattr("embedkit.write_lock.logger.info", lambda *_: waiting.set())

    def logits(pairs):
        if not counts:
            other.start()
            assert waiting.wait(60)
        counts.append(len(pairs))
        return shared_words(pairs)

    teacher = PairTeacher("words", "e" * 64, logits)
    other = threading.Thread(target=lambda: score(*corpora, candidates, teacher, folder, show_progress=False))
    score(*corpora, candidates, teacher, folder, show_progress=False)
    other.join(250)
    assert sum(counts) == candidates.size

    monkeypatch.setattr(mining, "write_lock", lambda *_, **__: pytest.fail("locked a complete cache"))
    score(*corpora, candidates, teacher, folder, show_progress=False)


def test_groups_span_the_range_of_scores(corpora, toy_tokenizer_json):
    tokenizer = PairEncoder.from_encoder(
        random(Tokenizer(toy_tokenizer_json, 20), Size(1, 32, 2, 48), max_length=20, seed=5), max_length=20, seed=0
    ).tokenizer
    candidates = np.random.default_rng(0).integers(0, len(PASSAGES), (len(QUERIES), 8))
    scores = np.random.default_rng(1).permuted(
        np.tile(np.arange(8.0, dtype=np.float32), (len(QUERIES), 1)), axis=1
    )
    batches = PairGroups(Pairs(*corpora, candidates, scores), tokenizer, batch_size=12, group=4, seed=3)

    drawn = [batches.batch(step).scores.view(-1, 4) for step in range(20)]

    for groups in drawn:
        assert (groups // 2 == torch.arange(4.0)).all()
    assert len({tuple(groups[0].tolist()) for groups in drawn}) > 4


def test_the_text_of_a_run_includes_its_queries(recipe, tmp_path):
    """An export that keeps the word pieces of this text keeps those of the queries."""
    recipe["optim"]["steps"] = 1
    run(resolve(recipe), tmp_path / "run", RunControl(show_progress=False))
    assert training_text(tmp_path / "run") == [*PASSAGES, *QUERIES]


def test_training_brings_the_student_nearer(recipe, tmp_path):
    recipe["optim"]["steps"] = 60
    run(resolve(recipe), tmp_path / "run", RunControl(show_progress=False))
    run(resolve({**recipe, "optim": {**recipe["optim"], "steps": 1, "lr": 1e-9}}), tmp_path / "start")

    pairs = list(itertools.product(QUERIES[:4], PASSAGES))
    models = [PairEncoder.load(tmp_path / name) for name in ("teacher", "run/model", "start/model")]
    teacher, trained, start = (
        TorchCrossEncoder(model).logits(model.tokenizer.tokenize(pairs)) for model in models
    )
    assert np.square(trained - teacher).mean() < 0.7 * np.square(start - teacher).mean()


def test_a_student_starts_from_the_bundle_of_an_encoder_and_keeps_its_words(recipe, tmp_path):
    recipe["student"] = {"source": "tiny.onnx", "dropout": 0.0, "freeze_words": True}

    run(resolve(recipe), tmp_path / "run", RunControl(show_progress=False))

    model, tiny = PairEncoder.load(tmp_path / "run" / "model"), from_bundle(find_model("tiny"))
    assert (model.config.num_hidden_layers, model.max_length) == (3, 20)
    assert model.config.hidden_dropout_prob == 0.0
    words, types = (
        model.body.bert.embeddings.get_parameter(f"{name}_embeddings.weight") for name in ("word", "token_type")
    )
    assert torch.equal(words, tiny.backbone.get_input_embeddings().weight)
    assert not torch.equal(types[0], types[1])


def test_a_student_cut_from_layers_has_the_dropout_and_the_frozen_words_asked_for(recipe, corpora):
    config = resolve({**recipe, "student": {**recipe["student"], "dropout": 0.25, "freeze_words": True}})
    settings = from_mapping(ScoreDistillationConfig, config.settings)
    candidates = np.zeros((len(QUERIES), 8), dtype=np.int64)

    student = _student(config, settings, Pairs(*corpora, candidates, candidates.astype("f4")))

    assert {module.p for module in student.modules() if isinstance(module, torch.nn.Dropout)} == {0.25}
    assert not student.body.get_input_embeddings().weight.requires_grad


def test_teachers_and_batches_read_fewer_tokens_than_the_student(recipe, toy_cross_bundle, tmp_path, monkeypatch):
    """A bundle scores what a shorter pair holds, and its scores are cached by that length."""
    pair = ("a good dog", "the cat is asleep in the garden by the sea")
    settings = {length: {**recipe["settings"], "length": length} for length in (8, 12)}
    teachers = {}
    for length, each in settings.items():
        config = resolve({**recipe, "teacher": {"source": str(toy_cross_bundle)}, "settings": each})
        (teachers[length],) = load_pair_teachers(config, config.settings.length)
    cut = CrossEncoder.load(toy_cross_bundle).tokenize([pair]).ids[0]
    assert len(cut) == 12
    assert teachers[8].scores([pair]) != teachers[12].scores([pair])
    assert teachers[8].fingerprint != teachers[12].fingerprint

    lengths = []
    batch = PairGroups.batch

    def watched(self, step):
        found = batch(self, step)
        lengths.extend(ids.shape[1] for ids, _ in found.views[0].chunks)
        return found

    monkeypatch.setattr(PairGroups, "batch", watched)
    student = {**recipe["student"], "positions": 20, "max_length": 16}
    run(resolve({**recipe, "student": student, "settings": settings[8]}), tmp_path / "run", RunControl())
    assert max(lengths) == 8
    assert PairEncoder.load(tmp_path / "run" / "model").max_length == 20


def test_a_folder_scores_on_its_device_and_in_its_precision(recipe):
    pairs = [("a good dog", "the cat is asleep in the garden by the sea")]
    teachers = {}
    for precision in ("fp32", "bf16"):
        config = resolve({**recipe, "teacher": {**recipe["teacher"], "precision": precision, "device": "cpu"}})
        (teachers[precision],) = load_pair_teachers(config, config.settings.length)
    full, half = (teacher.scores(pairs) for teacher in teachers.values())
    np.testing.assert_allclose(full, half, rtol=0.05)
    assert full != half
    assert teachers["fp32"].fingerprint != teachers["bf16"].fingerprint

    config = resolve({**recipe, "teacher": {**recipe["teacher"], "device": "abacus"}})
    with pytest.raises(ConfigError, match="'abacus' cannot be used here"):
        load_pair_teachers(config, config.settings.length)


def test_the_scores_of_several_teachers_are_their_mean(recipe, corpora, toy_cross_bundle):
    both = [{"source": recipe.pop("teacher")["source"]}, {"source": str(toy_cross_bundle)}]
    config = resolve({**recipe, "teachers": both})
    settings = from_mapping(ScoreDistillationConfig, config.settings)
    teachers = load_pair_teachers(config, config.settings.length)

    pairs = prepare_pairs(config, settings, *corpora, teachers, RunControl(show_progress=False))

    asked = np.repeat(QUERIES, pairs.candidates.shape[1]).tolist()
    texts = list(zip(asked, corpora[1].texts(pairs.candidates.ravel()), strict=True))
    first, second = (teacher.scores(texts) for teacher in teachers)
    assert np.abs(first - second).max() > 0.1
    np.testing.assert_allclose(pairs.scores.ravel(), (first + second) / 2, atol=1e-4)


def test_the_plan_counts_groups_of_queries(recipe):
    del recipe["optim"]["steps"]
    recipe["optim"]["epochs"] = 3

    assert planned(resolve(recipe), prepare(resolve(recipe))) == (3 * (len(QUERIES) * 2 // 8), 0)


def test_a_collapsed_student_gets_no_credit_for_the_order_of_the_candidates(recipe, tmp_path):
    """Files list relevant passages first, and a student that scores all alike must not gain by it."""
    row = {"query": "the cat", "positive": ["the cat"], "negative": ["a", "b", "c"]}
    (tmp_path / "dev.jsonl").write_text(json.dumps(row))
    student = PairEncoder.load(recipe["teacher"]["source"])
    with torch.no_grad():
        student.network.classifier.weight.zero_()
    evaluate = ranking_evaluation(resolve(recipe), (str(tmp_path / "dev.jsonl"),), student)
    assert evaluate()["dev"] == pytest.approx(1 / 4)


def test_the_recipes_of_rerankers_share_their_pairs():
    tiny, more, small = (load_toml(RECIPES / f"reranker-{name}.toml") for name in ("tiny", "more", "small"))
    one, other = resolve(merge(tiny, more)), resolve(merge(more, small))
    assert resolve(tiny).corpus != one.corpus
    assert (one.student.source, other.student.source, other.student.start) == ("tiny.onnx", None, "layers")
    assert (one.name, other.name) == ("reranker-tiny", "reranker-small")
    assert (one.settings, one.corpus, one.teacher) == (other.settings, other.corpus, other.teacher)
    last = resolve(merge(load_toml(RECIPES / "reranker-pairs.toml"), {"student": {"source": "runs/deeper"}}))
    assert (last.optim.batch_size % last.settings.group, last.student.positions) == (0, last.settings.length)


def test_cosines_of_an_encoder_count_on_the_scale_of_logits_where_it_is_named(
    recipe, corpora, toy_bundle, tmp_path
):
    (tmp_path / "own.txt").write_text(f"{QUERIES[0]}\n{QUERIES[1]}\n")
    named = {"path": str(tmp_path / "own.txt"), "teachers": ["cross"]}
    (tmp_path / "queries.txt").write_text("\n".join(QUERIES[1:]))
    both = {
        **{key: value for key, value in recipe.items() if key != "teacher"},
        "teachers": [{**recipe["teacher"], "name": "cross"}, {"source": str(toy_bundle), "name": "near"}],
        "settings": {**recipe["settings"], "queries": [named, *recipe["settings"]["queries"]]},
    }

    pairs, alone = (
        prepare_pairs(
            *(config, config.settings, *corpora),
            load_pair_teachers(config, config.settings.length),
            RunControl(show_progress=False),
        )
        for config in map(resolve, (both, merge(both, {"teachers": both["teachers"][:1]})))
    )

    encoder = embedkit.Encoder.load(toy_bundle)
    texts = corpora[1].texts(pairs.candidates.ravel())
    asked = encoder.encode_query(corpora[0].texts(np.arange(len(QUERIES))))
    read = encoder.encode_document(texts).reshape(*pairs.candidates.shape, -1)
    cosines = np.einsum("qd,qcd->qc", asked, read)
    scaled = (cosines - cosines.mean()) / cosines.std() * alone.scores.std() + alone.scores.mean()
    np.testing.assert_array_equal(pairs.candidates, alone.candidates)
    np.testing.assert_allclose(pairs.scores[0], alone.scores[0], atol=1e-4)
    np.testing.assert_allclose(pairs.scores[1:], (alone.scores + scaled)[1:] / 2, atol=1e-4)

    more = [{**named, "teachers": ["gone"]}, *recipe["settings"]["queries"]]
    with pytest.raises(ConfigError, match=r"own\.txt: gone is not among the teachers: cross, near"):
        run(resolve(merge(both, {"settings": {"queries": more}})), tmp_path / "run")


def test_impossible_runs_are_refused(recipe, tmp_path):
    without = {key: value for key, value in recipe.items() if key != "teacher"}
    with pytest.raises(ConfigError, match="needs a teacher"):
        run(resolve(without), tmp_path / "a")
    settings = {**recipe["settings"], "queries": []}
    with pytest.raises(ConfigError, match="needs queries"):
        run(resolve({**recipe, "settings": settings}), tmp_path / "b")
    with pytest.raises(ConfigError, match="learns the logits of a cross-encoder; tiny is not one"):
        run(resolve({**recipe, "teacher": {"source": "tiny"}, "student": {"source": "tiny"}}), tmp_path / "c")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"settings": {"group": 3}}, ConfigError, "group = 3 must divide"),
        ({"optim": {"batch_size": 32}}, ConfigError, r"12 queries with settings\.group = 2 pairs each are fewer"),
        ({"settings": {"dev": ["gone.jsonl"]}}, DataError, r"gone\.jsonl"),
        ({"student": {"tokenizer": "tiny.onnx"}}, ConfigError, "a student is cut from a model folder, not from"),
        ({"teacher": {"source": "tiny"}}, ConfigError, "a student is cut from a model folder, not from"),
        ({"student": {"tokenizer": "./gone"}}, ModelNotFoundError, "gone"),
    ],
)
def test_what_training_lacks_is_reported_before_pairs_are_mined(recipe, tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        run(resolve(merge(recipe, changes)), tmp_path / "run")
    assert not list((tmp_path / "cache").glob("pairs-*"))


def test_the_card_names_the_teacher_as_configured(recipe, tmp_path):
    run(resolve(merge(recipe, {"teacher": {"name": "large"}})), tmp_path / "run", RunControl(show_progress=False))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["teacher"]["name"] == "large"


def test_scores_that_are_not_finite_are_reported_and_not_kept(corpora, tmp_path):
    folder, candidates = mine(*corpora, Encoder(), MINING, tmp_path, seed=1)
    broken = PairTeacher("broken", "b" * 64, lambda pairs: np.full(len(pairs), np.inf, np.float32))
    with pytest.raises(TrainingError, match="broken returned scores that are not finite"):
        score(*corpora, candidates, broken, folder)
    honest = dataclasses.replace(broken, scores=shared_words)
    assert np.isfinite(score(*corpora, candidates, honest, folder)).all()
