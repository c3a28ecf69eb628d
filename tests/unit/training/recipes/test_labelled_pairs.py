"""Labelled pairs: from a file with a column of labels to a cross-encoder that orders by them."""

import itertools
import json
import logging
import math

import pytest

from embedkit import CrossEncoder
from embedkit.errors import ConfigError, DataError
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.initialisation import Size, random
from embedkit.modeling.torch_encoder import TorchCrossEncoder
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer
from embedkit.training.corpus import Corpus, SourceConfig
from embedkit.training.loop import RunControl
from embedkit.training.recipes.labelled_pairs import Labels, QueryGroups
from embedkit.training.run import planned, prepare, resolve, run

WHO, WHERE = ("the cat", "a good dog", "my sister", "an old king"), ("in the garden", "by the sea", "today")
ROWS = [
    {"query": who, "passage": f"{other} {where}", "grade": 2 * (who == other)}
    for who, other, where in itertools.product(WHO, WHO, WHERE)
]


@pytest.fixture
def pairs(tmp_path):
    def write(rows=ROWS):
        path = tmp_path / "pairs.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        return SourceConfig(path=str(path), view_columns=("query", "passage"))

    return write


@pytest.fixture
def encoder(toy_tokenizer_json):
    return random(Tokenizer(toy_tokenizer_json, 20), Size(2, 32, 2, 48), max_length=20, seed=5)


@pytest.fixture
def recipe(encoder, pairs, tmp_path):
    PairEncoder.from_encoder(encoder, max_length=20, seed=3).save(tmp_path / "start")
    return {
        "method": "labelled-pairs",
        "cache": str(tmp_path / "cache"),
        "device": "cpu",
        "corpus": [{"path": pairs().path, "view_columns": ["query", "passage"]}],
        "student": {"source": str(tmp_path / "start"), "dropout": 0.0},
        "optim": {"batch_size": 12, "steps": 120, "lr": 1e-3},
        "settings": {"label": "grade", "length": 20, "group": 4},
    }


def train(recipe, folder, **control):
    return run(resolve(recipe), folder, RunControl(show_progress=False, **control))


@pytest.mark.parametrize("loss", ["bce", "listwise"])
def test_a_cross_encoder_learns_to_order_by_the_labels(recipe, tmp_path, loss):
    recipe["settings"]["loss"] = loss
    state = train(recipe, tmp_path / "run")
    assert state.finished
    before, after = (TorchCrossEncoder(PairEncoder.load(tmp_path / name)) for name in ("start", "run/model"))
    relevant, irrelevant = (
        [(r["query"], r["passage"]) for r in ROWS if bool(r["grade"]) == is_so] for is_so in (1, 0)
    )
    gaps = [model.predict(relevant).mean() - model.predict(irrelevant).mean() for model in (before, after)]
    assert gaps[0] < 0.05
    assert gaps[1] > 0.2


def test_truncated_pairs_are_reported(recipe, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    recipe["settings"]["length"] = 9
    train({**recipe, "optim": {"batch_size": 12, "steps": 1}}, tmp_path / "run")
    tokens = PairEncoder.load(tmp_path / "start", max_length=9).tokenizer.tokenize(
        [(row["query"], row["passage"]) for row in ROWS]
    )
    share = 100 * tokens.truncated / len(ROWS)
    assert 0 < share < 100
    assert f"about {share:.1f} % of the pairs exceed settings.length = 9 tokens and are truncated" in caplog.text


def test_other_labels_are_another_run(recipe, pairs, tmp_path):
    stops = itertools.chain([False], itertools.repeat(True))
    train(recipe, tmp_path / "run", should_stop=lambda: next(stops))
    pairs([{**row, "grade": 1} if row is ROWS[1] else row for row in ROWS])
    with pytest.raises(ConfigError, match="labels in grade"):
        train(recipe, tmp_path / "run", resume=True)


def test_an_encoder_gets_a_classifier(recipe, encoder, tmp_path):
    encoder.save(tmp_path / "encoder")
    recipe["student"]["source"] = str(tmp_path / "encoder")
    recipe["optim"]["steps"] = 2
    assert train(recipe, tmp_path / "run").finished
    assert PairEncoder.load(tmp_path / "run" / "model").hidden == 32


def test_a_cross_encoder_s_bundle_continues_to_learn(recipe, tmp_path):
    recipe["student"] = {"source": "reranker-tiny", "dropout": 0.0}
    recipe["optim"]["steps"] = 30
    recipe["optim"]["lr"] = 1e-4

    train(recipe, tmp_path / "run")

    relevant, irrelevant = ([(r["query"], r["passage"]) for r in ROWS if bool(r["grade"]) == so] for so in (1, 0))
    before, after = (
        CrossEncoder.load("reranker-tiny"),
        TorchCrossEncoder(PairEncoder.load(tmp_path / "run" / "model")),
    )
    gaps = [model.predict(relevant).mean() - model.predict(irrelevant).mean() for model in (before, after)]
    assert gaps[1] > gaps[0] > 0.2


def test_labels_follow_the_rows_that_a_corpus_keeps(pairs, tmp_path):
    rows = [ROWS[0], ROWS[0], {"query": "", "passage": "", "grade": ""}, {**ROWS[5], "grade": "1"}, ROWS[20]]
    source = pairs(rows)
    corpus = Corpus.prepare([source], tmp_path / "cache")
    assert corpus.texts([0, 1, 2], 1) == [ROWS[0]["passage"], ROWS[5]["passage"], ROWS[20]["passage"]]
    assert Labels.read([source], "grade", corpus).values.tolist() == [1.0, 0.5, ROWS[20]["grade"] / 2]


def test_a_pair_with_several_labels_learns_their_mean_and_is_counted(recipe, pairs, tmp_path, caplog):
    rows = [*ROWS, ROWS[0], {**ROWS[0], "grade": 0}, {**ROWS[5], "grade": 1}]
    assert [row["grade"] for row in (ROWS[0], ROWS[5])] == [2, 0]
    source = pairs(rows)
    labels = Labels.read([source], "grade", Corpus.prepare([source], tmp_path / "cache")).values
    assert (labels[0], labels[5], labels[1]) == (pytest.approx(4 / 3 / 2), 0.25, 1.0)
    recipe["optim"]["steps"] = 1
    train(recipe, tmp_path / "run")
    assert "2 pairs occur with different labels in grade: their mean is used" in caplog.messages


@pytest.mark.parametrize("value", [None, "good", -1, math.inf])
def test_a_label_is_a_number(pairs, tmp_path, value):
    source = pairs([ROWS[0], {**ROWS[5], "grade": value}])
    corpus = Corpus.prepare([source], tmp_path / "cache")
    with pytest.raises(DataError, match=r"pairs\.jsonl:2: expected a label of at least 0 in the column grade"):
        Labels.read([source], "grade", corpus)


@pytest.mark.parametrize("loss", ["bce", "listwise"])
def test_labels_are_read_once(recipe, tmp_path, monkeypatch, loss):
    reads = []
    records = SourceConfig.records
    monkeypatch.setattr(SourceConfig, "records", lambda source: reads.append(source) or records(source))
    recipe["settings"]["loss"] = loss
    recipe["optim"]["steps"] = 1
    train(recipe, tmp_path / "run")
    assert len(reads) == 2  # the pairs, then their labels


def test_a_missing_column_of_labels_is_named(pairs, tmp_path):
    source = pairs()
    corpus = Corpus.prepare([source], tmp_path / "cache")
    with pytest.raises(DataError, match=r"pairs\.jsonl:1: there is no column label; name .* in settings\.label"):
        Labels.read([source], "label", corpus)


def test_groups_hold_a_relevant_passage_and_others_of_its_query(pairs, toy_tokenizer_json, tmp_path):
    alike = [{"query": "music", "passage": who, "grade": 1} for who in WHO]
    source = pairs([*ROWS, *alike, {"query": "sleep", "passage": "a", "grade": 0}, {**alike[0], "query": "sleep"}])
    corpus = Corpus.prepare([source], tmp_path / "cache")
    labels = Labels.read([source], "grade", corpus)
    tokenizer = PairTokenizer(toy_tokenizer_json, 20)
    batches = QueryGroups(labels, tokenizer, batch_size=20, group=4, seed=1)
    assert batches.steps_per_epoch == 1  # five queries: music compares nothing
    drawn = [batches.batch(step).scores.view(5, 4) for step in range(12)]
    for groups in drawn:
        assert (groups[:, 0] == groups.amax(dim=1)).all()
        assert (groups.amin(dim=1) < groups.amax(dim=1)).all()
    assert len({tuple(map(tuple, groups.tolist())) for groups in drawn}) > 1


def test_the_plan_counts_pairs_or_groups(recipe):
    del recipe["optim"]["steps"]
    recipe["optim"]["epochs"] = 2
    assert planned(resolve(recipe), prepare(resolve(recipe))) == (2 * (len(ROWS) // 12), 0)
    recipe["settings"]["loss"] = "listwise"
    assert planned(resolve(recipe), prepare(resolve(recipe))) == (2 * (len(WHO) * 4 // 12), 0)


def test_impossible_runs_are_refused(recipe, pairs, tmp_path):
    without = {**recipe, "student": {}}
    with pytest.raises(ConfigError, match="name a cross-encoder or an encoder with --student"):
        train(without, tmp_path / "a")
    with pytest.raises(ConfigError, match="--view-columns"):
        train({**recipe, "corpus": [{"path": pairs().path, "text_column": "query"}]}, tmp_path / "b")
    recipe["settings"]["loss"] = "listwise"
    with pytest.raises(ConfigError, match=r"pairs each are fewer pairs than optim\.batch_size = 20"):
        train({**recipe, "optim": {"batch_size": 20}}, tmp_path / "c")
    with pytest.raises(ConfigError, match="group = 5 must divide"):
        train({**recipe, "settings": {**recipe["settings"], "group": 5}}, tmp_path / "c")
    with pytest.raises(DataError, match="nowhere"):
        train({**recipe, "settings": {**recipe["settings"], "dev": ["nowhere.jsonl"]}}, tmp_path / "c")
    pairs([{**row, "grade": int("cat" in row["query"])} for row in ROWS])
    with pytest.raises(ConfigError, match="no query has passages with different labels"):
        train(recipe, tmp_path / "c")
    assert not list(tmp_path.glob("[abc]/*.toml"))  # no run was begun
