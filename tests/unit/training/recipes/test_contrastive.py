"""Contrastive training: from files of labels to an encoder that finds the passages."""

import itertools
import json

import numpy as np
import pytest

from embedkit.errors import ConfigError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import Size, random
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.tokenization import Tokenizer
from embedkit.training.config import override
from embedkit.training.loop import RunControl
from embedkit.training.mining import nearest_negatives
from embedkit.training.pairs import read_queries
from embedkit.training.recipes.contrastive import ContrastiveConfig, QueryBatches, tokenize
from embedkit.training.run import resolve, run
from embedkit.training.students import kept_teacher

WHO = ("cat", "dog", "sister", "king", "mother", "train", "water", "summer")
PAIRS = [
    {"query": f"the {who} {verb}", "passage": f"{WHO[(row + 3) % 8]} by the {WHO[row - 2]}"}
    for row, who in enumerate(WHO)
    for verb in ("will sleep", "wants to read")
]


@pytest.fixture
def encoder(toy_tokenizer_json):
    return random(Tokenizer(toy_tokenizer_json, 12), Size(1, 32, 2, 48), max_length=12, seed=5)


@pytest.fixture
def recipe(encoder, tmp_path):
    encoder.save(tmp_path / "start")
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, PAIRS)))
    (tmp_path / "documents.txt").write_text(
        "\n".join(["a good day at school", *(row["passage"] for row in PAIRS)])
    )
    (tmp_path / "graded.tsv").write_text(
        "".join(f"the {a}\ta {b}\t{int(a == b)}\n" for a, b in itertools.product(WHO, WHO))
    )
    return {
        "method": "contrastive",
        "data": str(tmp_path),
        "cache": str(tmp_path / "cache"),
        "device": "cpu",
        "student": {"source": "start", "max_length": 12},
        "corpus": [{"path": "documents.txt"}],
        "optim": {"batch_size": 8, "steps": 60, "lr": 5e-3},
        # the cosines of random weights tell nothing about false negatives
        "dev": {"set": "pairs.jsonl"},
        "settings": {"pairs": ["pairs.jsonl"], "margin": 100.0},
    }


def train(recipe, folder, **control):
    return run(resolve(recipe), folder, RunControl(show_progress=False, **control))


@pytest.mark.parametrize(
    "settings", [{}, {"texts": 2}, {"freeze_documents": True}, {"graded": ["graded.tsv"]}, {"negatives": 0}]
)
def test_queries_find_their_passages(recipe, tmp_path, settings):
    recipe["settings"] |= settings
    state = train(recipe, tmp_path / "run")
    assert state.best_score > 0.9
    card = json.loads((tmp_path / "run/run.json").read_text())
    assert card["metrics"]["dev_score"] == state.best_score


def test_prompts_are_trained_and_stored(recipe, tmp_path):
    recipe["student"]["prompts"] = {"query": "swim "}
    assert train(recipe, tmp_path / "run").best_score > 0.9
    old, new = (SentenceEncoder.load(tmp_path / place) for place in ("start", "run/model"))
    assert (old.prompts, new.prompts) == ({}, {"query": "swim "})
    rows = [old.tokenizer.tokenize([word]).ids[0][1] for word in ("swim", "sings")]  # the other one is in no text
    before, after = (model.body.get_input_embeddings().weight[rows] for model in (old, new))
    moved = (before - after).norm(dim=1)
    assert moved[0] > 2 * moved[1]


def test_graded_pairs_alone_are_enough(recipe, tmp_path):
    recipe["settings"] = {"graded": ["graded.tsv"], "anchor": 0.0}
    assert train(recipe, tmp_path / "run").finished
    old, new = (TorchEncoder(SentenceEncoder.load(tmp_path / name)) for name in ("start", "run/model"))
    gaps = [
        np.mean(np.diag(cosines)) - np.mean(cosines)
        for cosines in (
            each.encode([f"the {w}" for w in WHO]) @ each.encode([f"a {w}" for w in WHO]).T for each in (old, new)
        )
    ]
    assert gaps[1] > gaps[0] + 0.1


@pytest.mark.parametrize("loss", ["margin-mse", "kl"])
def test_lists_scored_by_a_cross_encoder_are_learnt(recipe, tmp_path, loss, encoder):
    from embedkit.modeling.cross_encoder import PairEncoder

    PairEncoder.from_encoder(encoder, max_length=12, seed=3).save(tmp_path / "teacher")
    recipe = override(recipe, {"settings": {"loss": loss}, "teacher": {"source": str(tmp_path / "teacher")}})
    assert train(recipe, tmp_path / "run").finished
    assert json.loads((tmp_path / "run/run.json").read_text())["teacher"]["name"] == "teacher"
    assert not (tmp_path / "cache" / "vectors").exists()  # it is not asked for vectors of the documents


def test_the_anchor_keeps_vectors_near_those_of_the_start(recipe, tmp_path):
    def agreement(anchor):
        recipe["settings"]["anchor"] = anchor
        folder = tmp_path / f"run-{anchor}"
        train(recipe, folder)
        rows = [
            TorchEncoder(SentenceEncoder.load(place)).encode(["a good day", "the cat"])
            for place in (tmp_path / "start", folder / "model")
        ]
        return float((rows[0] * rows[1]).sum(axis=1).mean())

    assert agreement(5.0) > agreement(0.0) + 0.05


@pytest.fixture
def batches(recipe, encoder, tmp_path):
    labelled = read_queries(tmp_path / "pairs.jsonl")

    def make(others=None, batch_size=6, **settings):
        generator = np.random.default_rng(0)
        rows = [generator.random((n, 4), dtype=np.float32) for n in (len(labelled), len(labelled.passages))]
        vectors = tuple(values / np.linalg.norm(values, axis=1, keepdims=True) for values in rows)
        options = {"batch_size": batch_size, "seed": 0, "others": others}
        made = QueryBatches(labelled, encoder, ContrastiveConfig(**settings), vectors, **options)
        return labelled, made

    return make


def test_texts_are_read_after_the_prompts_of_a_search(encoder):
    encoder.prompts, encoder.default_prompt = {"query": "where is ", "passage": "the page says "}, "query"
    plain = encoder.tokenizer
    assert tokenize(encoder, ["a"], "query").ids == plain.tokenize(["where is a"]).ids
    assert tokenize(encoder, ["a"], "document").ids == plain.tokenize(["the page says a"]).ids
    encoder.prompts = {"query": "where is "}
    assert tokenize(encoder, ["a"], "document").ids == plain.tokenize(["a"]).ids


def test_a_passage_of_two_queries_is_one_column_and_a_negative_of_neither(batches):
    labelled, made = batches(margin=100.0, negatives=0)
    seen = False
    for step in range(6):
        rows, batch = made.rows(step), made.batch(step)
        answers = [int(labelled.positives[row][0]) for row in rows]
        columns = list(dict.fromkeys(answers))
        assert batch.scores.shape == (6, len(columns))
        seen |= len(columns) < 6
        for row, answer in enumerate(answers):
            assert batch.scores[row].tolist() == [float(column == answer) for column in columns]
    assert seen


def test_batches_of_neighbours_are_a_query_and_some_of_those_nearest_to_it(batches):
    labelled, made = batches(batch_size=2, neighbours=1.0)
    plain = batches(batch_size=2)[1]
    queries, passages = made._vectors
    centres = queries + np.stack([passages[rows].mean(axis=0) for rows in labelled.positives])
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    assert len(labelled) > 6  # of which the 5 nearest are drawn
    for step in range(12):
        first, second = made.rows(step)
        assert first == plain.rows(step)[0]
        assert second in np.argsort(-centres @ centres[first], kind="stable")[1:6]
    assert {tuple(made.rows(step)) for step in range(12)} == {tuple(made.rows(step)) for step in range(12)}
    mixed = batches(batch_size=2, neighbours=0.5)[1]
    alike = [list(mixed.rows(step)) == list(plain.rows(step)) for step in range(24)]
    assert 4 < sum(alike) < 24


def test_the_teacher_of_a_start_whose_space_is_kept_is_named(recipe, tmp_path):
    def teacher(**changes):
        student = {**recipe["student"], "source": changes.pop("source", "tiny")}
        return kept_teacher(resolve(recipe | {"student": student, "settings": recipe["settings"] | changes}))

    assert teacher() == Encoder.load("tiny").manifest.teacher != {}
    assert teacher(anchor=0) is None
    assert teacher(source="start") is None


def test_general_texts_are_held_by_the_vectors_that_come_with_them(batches, encoder):
    texts, vectors = ["a good day", "the sea"], np.eye(2, 4, dtype=np.float32)
    batch = batches(texts=5, others=(texts, vectors))[1].batch(0)
    view, held = batch.views[2], batch.teacher[2].argmax(dim=1).tolist()
    length = encoder.tokenizer.tokenize(texts).lengths
    assert [int(mask.sum()) for _, masks in view.chunks for mask in masks] == sorted(length[row] for row in held)
    assert {*held} == {0, 1}


def test_general_texts_keep_their_vectors(recipe, tmp_path):
    (tmp_path / "general.txt").write_text("my sister\nthe train\n")
    start = TorchEncoder(SentenceEncoder.load(tmp_path / "start")).encode(["my sister", "the train"])

    def agreement(**settings):
        recipe["settings"] |= {"anchor": 5.0, **settings}
        train(recipe, tmp_path / f"run-{len(settings)}")
        rows = TorchEncoder(SentenceEncoder.load(tmp_path / f"run-{len(settings)}/model")).encode(
            ["my sister", "the train"]
        )
        return float((rows * start).sum(axis=1).mean())

    assert agreement() < agreement(general="general.txt", texts=4)


def test_a_passage_that_may_answer_a_query_is_no_negative():
    queries = np.array([[1.0, 0.0]], np.float32)
    angles = np.arccos([0.8, 0.79, 0.7, 0.1])
    passages = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    find = {"depth": 2, "margin": 0.95}
    (found,) = nearest_negatives(queries, passages, [np.array([0])], **find)
    assert found.tolist() == [2, 3]
    (found,) = nearest_negatives(queries, passages, [np.array([0])], known=[np.array([1])], **find)
    assert found.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"pairs": []}}, "learns from labels"),
        ({"settings": {"loss": "kl"}}, "needs a cross-encoder"),
        ({"settings": {"general": "documents.txt"}}, "raise it"),
        ({"settings": {"origin": "tiny"}}, "name them in settings.general"),
        ({"teacher": {"source": "start"}}, "info-nce uses no teacher"),
        ({"views": {"first": "deletion"}}, "contrastive does not use it"),
        ({"optim": {"batch_size": 50}}, "fewer than optim.batch_size"),
        ({"method": "simcse", "student": {"prompts": {"query": "a "}}}, "prompts are trained by contrastive"),
    ],
)
def test_what_is_missing_is_reported_before_training(recipe, tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        train(override(recipe, change), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_truncated_passages_are_reported(recipe, tmp_path, caplog):
    caplog.set_level("INFO")
    rows = [{**row, "passage": row["passage"] + " by the sea" * 3 * (n % 2)} for n, row in enumerate(PAIRS)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe["optim"] |= {"steps": 1}
    train(recipe, tmp_path / "run")
    assert "passages exceed student.max_length = 12 tokens and are truncated" in caplog.text


def test_changed_labels_are_noticed_at_resume(recipe, tmp_path):
    stops = itertools.chain([False] * 3, itertools.repeat(True))
    assert not train(recipe, tmp_path / "run", should_stop=lambda: next(stops)).finished
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, PAIRS[:-1])))
    with pytest.raises(ConfigError, match="the content of the labels"):
        train(recipe, tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    "rows",
    [
        [{"query": row["query"], "document": row["passage"], "score": 1} for row in PAIRS],
        [{"query": row["query"], "positive": [row["passage"]], "negative": ["a good day"]} for row in PAIRS],
        [{"anchor": row["query"], "positive": row["passage"], "negative": "a good day"} for row in PAIRS],
        [
            {"sentence1": PAIRS[a]["query"], "sentence2": PAIRS[b]["passage"], "label": int(a == b)}
            for a in range(4)
            for b in range(4)
        ],
    ],
)
def test_every_form_of_a_set_selects_the_step(recipe, tmp_path, rows):
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe["dev"] = {"set": "dev.jsonl", "every": 4}
    recipe["optim"] |= {"steps": 8, "lr": 1e-4}
    assert 0 < train(recipe, tmp_path / "run").best_score <= 1
