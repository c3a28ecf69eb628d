"""Trans-Encoder's cycles, followed stage by stage on toys."""

import contextlib
import json

import numpy as np
import pytest
import torch
from torch.nn import functional

from embedkit.errors import CheckpointError, ConfigError
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder
from embedkit.runtime.tokenization import PairTokenizer
from embedkit.training.batches import PairBatchSource
from embedkit.training.loop import RunControl
from embedkit.training.method import PairTrainingModule
from embedkit.training.optim import word_tables
from embedkit.training.recipes import trans_encoder
from embedkit.training.recipes.stage import Stage
from embedkit.training.run import resolve, run

OPTIM = {"batch_size": 5, "steps": 3, "lr": 1e-2}


@pytest.fixture
def mapping(make_encoder, sentences, tmp_path):
    """``mapping(**settings)``: a run of two cycles over twelve pairs."""
    for seed, name in enumerate(("start", "other")):
        make_encoder(seed).save(tmp_path / name)
    texts = sentences(24)
    rows = [f"{first}\t{second}" for first, second in zip(texts[:12], texts[12:], strict=True)]
    (tmp_path / "pairs.tsv").write_text("\n".join(rows), encoding="utf-8")
    dev = [
        f"{first}\t{second}\t{row}" for row, (first, second) in enumerate(zip(texts[3:9], texts[6:], strict=False))
    ]
    (tmp_path / "dev.tsv").write_text("\n".join(dev) + "\n", encoding="utf-8")

    def make(*, dev=True, **settings):
        return {
            "method": "trans-encoder",
            "cache": str(tmp_path / "cache"),
            "student": {"source": str(tmp_path / "start"), "max_length": 12},
            "corpus": [{"path": str(tmp_path / "pairs.tsv")}],
            "optim": OPTIM,
            "settings": {"cycles": 2, "cross_length": 16, "cross_optim": OPTIM, **settings},
            **({"dev": {"pairs": str(tmp_path / "dev.tsv"), "every": 2}} if dev else {}),
        }

    return make


@pytest.fixture
def starts(monkeypatch):
    """Weights of every model at the start of its stage, in order: ``[(kind, state), ...]``."""
    seen = []

    fit = Stage.fit

    def watch(stage, method, *arguments):
        kind = "cross" if isinstance(method.encoder, PairEncoder) else "encoder"
        seen.append((kind, {name: tensor.clone() for name, tensor in method.encoder.state_dict().items()}))
        return fit(stage, method, *arguments)

    monkeypatch.setattr(Stage, "fit", watch)
    return seen


def go(mapping, folder, **control):
    return run(resolve(mapping), folder, RunControl(show_progress=False, **control))


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def body_of(state, prefix):
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def test_refreshing_starts_every_cycle_from_the_originals(mapping, starts, tmp_path):
    go(mapping(), tmp_path / "run")

    original = SentenceEncoder.load(tmp_path / "run" / "initial")
    assert [kind for kind, _ in starts] == ["cross", "encoder"] * 2
    assert same(starts[0][1], starts[2][1])
    for _, state in (starts[1], starts[3]):
        assert same(state, original.state_dict())
    body = body_of(starts[0][1], "network.bert.")
    assert all(torch.equal(body[name], value) for name, value in original.backbone.state_dict().items())


@pytest.mark.parametrize("mode", ["refreshing", "sequential"])
def test_frozen_words_and_dropout_are_the_students_in_every_stage(mapping, tmp_path, monkeypatch, mode):
    seen, fit = [], Stage.fit

    def watch(stage, method, *arguments):
        shares = {module.p for module in method.encoder.modules() if isinstance(module, torch.nn.Dropout)}
        words = [table.weight.requires_grad for table in word_tables(method.encoder)]
        seen.append((stage.folder.path.parent.name, shares - {0.0}, any(words)))
        return fit(stage, method, *arguments)

    monkeypatch.setattr(Stage, "fit", watch)
    wanted = mapping(mode=mode, peers=[{"source": str(tmp_path / "other")}])
    go(wanted | {"student": {**wanted["student"], "freeze_words": True, "dropout": 0.25}}, tmp_path / "run")
    assert [row for row in seen if row[0] == "student"] == [("student", {0.25}, False)] * 4
    assert all(words and shares != {0.25} for name, shares, words in seen if name == "peer-1")


def test_refreshed_cross_encoders_start_from_the_backbone_named(mapping, starts, tmp_path):
    go(mapping(cycles=1, backbone=str(tmp_path / "other")), tmp_path / "run")

    other = SentenceEncoder.load(tmp_path / "other").backbone.state_dict()
    body = body_of(starts[0][1], "network.bert.")
    assert all(torch.equal(body[name], value) for name, value in other.items())


def test_sequential_continues_from_the_previous_step(mapping, starts, tmp_path):
    go(mapping(mode="sequential"), tmp_path / "run")

    place = tmp_path / "run" / "cycle-1" / "student"
    cross = PairEncoder.load(place / "cross" / "model").network.base_model.state_dict()
    encoder = SentenceEncoder.load(place / "encoder" / "model").backbone.state_dict()
    began = body_of(starts[1][1], "backbone.")
    assert all(torch.equal(cross[name], value) for name, value in began.items())
    continued = body_of(starts[2][1], "network.bert.")
    assert all(torch.equal(continued[name], value) for name, value in encoder.items())


def test_labels_are_those_of_the_best_of_the_cycle(mapping, tmp_path):
    go(mapping(), tmp_path / "run")
    pairs = [tuple(line.split("\t")) for line in (tmp_path / "pairs.tsv").read_text().splitlines()]
    first, second = map(list, zip(*pairs, strict=True))

    def cosines(folder):
        encoder = TorchEncoder(SentenceEncoder.load(folder))
        return np.clip((encoder.encode(first) * encoder.encode(second)).sum(axis=1), 0, 1)

    run_folder = tmp_path / "run"
    for cycle, labeller in (
        (1, run_folder / "initial"),
        (2, run_folder / "cycle-1" / "student" / "encoder" / "model"),
    ):
        place = run_folder / f"cycle-{cycle}"
        np.testing.assert_allclose(np.load(place / "cosines.npy"), cosines(labeller), atol=1e-5)
        scores = np.load(place / "scores.npy")
        cross = PairEncoder.load(place / "student" / "cross" / "model")
        np.testing.assert_allclose(scores, TorchCrossEncoder(cross).predict(pairs), atol=1e-6)
        assert ((scores > 0) & (scores < 1)).all()


def test_negative_cosines_are_clamped():
    labels = trans_encoder.clamp_labels(np.array([-0.5, 0.0, 0.3, 1.0000001], dtype=np.float32))
    assert labels.tolist() == [0.0, 0.0, np.float32(0.3), 1.0]
    assert labels.dtype == np.float32


def test_peers_share_the_mean_of_their_labels_and_nothing_else(mapping, starts, tmp_path):
    go(mapping(cycles=1, peers=[{"source": str(tmp_path / "other"), "pooling": "mean"}]), tmp_path / "run")

    assert [kind for kind, _ in starts] == ["cross", "cross", "encoder", "encoder"]
    assert not same(starts[0][1], starts[1][1])
    pairs = [tuple(line.split("\t")) for line in (tmp_path / "pairs.tsv").read_text().splitlines()]
    place = tmp_path / "run" / "cycle-1"
    each = [
        TorchCrossEncoder(PairEncoder.load(place / name / "cross" / "model")).predict(pairs)
        for name in ("student", "peer-1")
    ]
    np.testing.assert_allclose(np.load(place / "scores.npy"), np.mean(each, axis=0), atol=1e-6)
    assert np.abs(each[0] - each[1]).max() > 1e-4


def test_the_best_of_each_kind_is_the_result(mapping, tmp_path):
    state = go(mapping(peers=[{"source": str(tmp_path / "other")}]), tmp_path / "run")

    run_folder = tmp_path / "run"
    best = {}
    for kind in ("cross", "encoder"):
        stages = sorted(
            run_folder.glob(f"cycle-*/*/{kind}"), key=lambda path: (path.parts[-3], path.parts[-2] != "student")
        )
        scores = []
        for stage in stages:
            records = [json.loads(line) for line in (stage / "metrics.jsonl").read_text().splitlines()]
            scores.append(max(record["dev"] for record in records if "dev" in record))
        assert len(scores) == 4
        best[kind] = (max(scores), stages[scores.index(max(scores))] / "model")
    assert state.best_score == best["encoder"][0]
    encoder = SentenceEncoder.load(run_folder / "model")
    assert encoder.fingerprint() == SentenceEncoder.load(best["encoder"][1]).fingerprint()
    cross = PairEncoder.load(run_folder / "cross-model")
    assert cross.fingerprint() == PairEncoder.load(best["cross"][1]).fingerprint()
    assert json.loads((run_folder / "cross-model.json").read_text())["dev_spearman"] == best["cross"][0]
    assert cross.max_length == 16


def test_without_a_development_set_the_last_are_the_result(mapping, tmp_path):
    state = go(mapping(dev=False), tmp_path / "run")

    last = tmp_path / "run" / "cycle-2" / "student"
    assert state.best_score is None
    assert state.step == 12
    for kind, loader, name in (("encoder", SentenceEncoder, "model"), ("cross", PairEncoder, "cross-model")):
        expected = loader.load(last / kind / "model").fingerprint()
        assert loader.load(tmp_path / "run" / name).fingerprint() == expected


def test_interrupted_in_its_second_cycle_it_ends_with_the_same_bits(mapping, tmp_path):
    stop = 8
    settings = {"mode": "sequential"}
    go(mapping(**settings), tmp_path / "whole")
    steps = iter(range(1, 100))
    state = go(mapping(**settings), tmp_path / "parts", should_stop=lambda: next(steps) == stop)
    assert (state.finished, state.step) == (False, stop)
    assert not (tmp_path / "parts" / "model").exists()
    torch.manual_seed(7)
    assert go(mapping(**settings), tmp_path / "parts", resume=True).finished

    for loader, name in ((SentenceEncoder, "model"), (PairEncoder, "cross-model")):
        whole, parts = (loader.load(tmp_path / run_name / name) for run_name in ("whole", "parts"))
        assert whole.fingerprint() == parts.fingerprint()


def test_labelling_lies_between_the_steps_where_a_signal_ends_the_run(mapping, tmp_path, monkeypatch):
    stepping, places, label = [], [], trans_encoder._label

    def note(*arguments):
        places.append(len(stepping))
        return label(*arguments)

    @contextlib.contextmanager
    def steps():
        stepping.append(True)
        yield
        stepping.pop()

    monkeypatch.setattr(trans_encoder, "_label", note)
    go(mapping(), tmp_path / "run", should_stop=lambda: not stepping, stepping=steps)
    assert places == [0] * 4


def test_damaged_labels_are_reported(mapping, tmp_path):
    steps = iter(range(1, 100))
    go(mapping(), tmp_path / "run", should_stop=lambda: next(steps) == 2)
    (tmp_path / "run" / "cycle-1" / "cosines.npy").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match=r"cosines\.npy is damaged"):
        go(mapping(), tmp_path / "run", resume=True)


def test_a_new_student_has_room_for_pairs(mapping, tmp_path):
    settings = mapping(cycles=1, cross_length=20)
    settings["student"] = {"start": "random", "tokenizer": str(tmp_path / "start"), "max_length": 12}
    with pytest.raises(ConfigError, match=r"student: max_length is 20.*at most 16 tokens; .* student\.positions"):
        run(resolve({**settings, "student": {**settings["student"], "positions": 16}}), tmp_path / "short")
    assert not [*tmp_path.glob("short/cycle-*")]
    assert run(resolve(settings), tmp_path / "run").finished
    encoder, cross = (
        SentenceEncoder.load(tmp_path / "run" / "model"),
        PairEncoder.load(tmp_path / "run" / "cross-model"),
    )
    assert (encoder.max_length, encoder.backbone.config.max_position_embeddings, cross.max_length) == (12, 64, 20)


def test_texts_alone_are_refused(mapping, sentences, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(sentences(12)), encoding="utf-8")
    with pytest.raises(ConfigError, match="learns from pairs"):
        go(mapping() | {"corpus": [{"path": str(tmp_path / "texts.txt")}]}, tmp_path / "run")


# The two steps


def test_every_weight_of_the_cross_encoder_learns(make_encoder, make_corpus, sentences, toy_tokenizer_json):
    texts = sentences(12)
    corpus = make_corpus(list(zip(texts[:6], texts[6:], strict=True)))
    cross = PairEncoder.from_encoder(make_encoder(), max_length=16, seed=0)
    labels = np.linspace(0, 1, 6, dtype=np.float32)
    batches = PairBatchSource(corpus, PairTokenizer(toy_tokenizer_json, 16), scores=labels, batch_size=6, seed=0)
    method = PairTrainingModule(cross.eval(), functional.binary_cross_entropy_with_logits)
    batch = batches.batch(0)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    output = method(batch)
    output.loss.backward()

    assert same(before, method.state_dict())
    assert all(parameter.grad is not None for parameter in method.parameters())
