"""Adapting: from a bundle and a user's files to a bundle that is better on what was held out."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from toy_networks import exact_levels

from embedkit import CrossEncoder
from embedkit.adaptation import Comparison, Files, Proof, adapt, plan
from embedkit.adaptation.data import read, spans
from embedkit.adaptation.teachers import as_bundle, fit_space, random_texts
from embedkit.cli.main import main
from embedkit.errors import ConfigError, DataError, GateError, InputError
from embedkit.evaluation.results import Interval
from embedkit.export.card import Card
from embedkit.export.pipeline import export
from embedkit.export.quantize import TARGETS
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.initialisation import Size, random
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.joined import JoinedSpace
from embedkit.runtime.options import unit_rows
from embedkit.runtime.tokenization import Tokenizer
from embedkit.serving.retrieval.collection import Collection
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.splitting import split_documents
from embedkit.training.corpus import normalise
from embedkit.training.loop import RunControl

WHO = ("cat", "dog", "sister", "king", "mother", "train", "water", "summer")
VERBS = ("will sleep", "wants to read", "likes to swim", "is good", "sings today")
PAIRS = [
    {"query": f"the {who} {verb}", "passage": f"{WHO[(row + 3) % 8]} by the {WHO[row - 2]}"}
    for row, who in enumerate(WHO)
    for verb in VERBS
]
# The cosines of random weights tell nothing about false negatives, and the anchor would hold them.
SETTINGS = {
    "device": "cpu",
    "optim": {"lr": 1e-2, "steps": 80},
    "settings": {"margin": 100.0, "anchor": 0.0},
}


def save(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def student(toy_tokenizer_json, tmp_path_factory):
    encoder = random(Tokenizer(toy_tokenizer_json, 12), Size(1, 32, 2), max_length=12, seed=1)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        encoder.set_head(16, "linear")
    path = tmp_path_factory.mktemp("student") / "student.onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TARGETS, "cpu-vnni", exact_levels())
        card = Card(name="student", licence="MIT")
        export(encoder.eval(), path, precision="int8", word_table="int4", target="cpu-vnni", card=card)
    return path


@pytest.fixture
def pairs(tmp_path):
    return save(tmp_path / "pairs.jsonl", PAIRS)


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    monkeypatch.setitem(TARGETS, "cpu-vnni", exact_levels())
    monkeypatch.setattr("embedkit.adaptation.data._FEW", 8)
    monkeypatch.setattr("embedkit.adaptation.data._FEWEST_TITLES", 8)


@pytest.fixture
def go(student, pairs, tmp_path):
    def go(files=None, **options):
        settings = {**SETTINGS, "cache": str(tmp_path / "cache"), **options.pop("settings", {})}
        options = {"folder": tmp_path / "run", "settings": settings, **options}
        return adapt(student, files or Files(pairs=[pairs]), tmp_path / "new.onnx", **options)

    return go


def test_labels_make_a_better_bundle_of_the_same_form_with_the_proof_in_its_card(go, student, tmp_path):
    found = go()
    measure = found.proof.measures["nDCG@10"]
    assert measure.after > measure.before + 0.2
    assert measure.rows == 8
    assert measure.gain.low > 0
    old, new = Encoder.load(student), Encoder.load(tmp_path / "new.onnx")
    assert new.verify()["passed"]
    assert new.fingerprint == found.report.fingerprint != old.fingerprint
    for name in ("precision", "target", "dimension", "max_length", "licence"):
        assert getattr(new.manifest, name) == getattr(old.manifest, name)
    stored = new.manifest.metrics["adaptation"]["measures"]["nDCG@10"]
    assert (stored["before"], stored["after"]) == (measure.before, measure.after)


def test_few_labels_are_all_measured_on_by_models_that_did_not_see_them(go, student, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr("embedkit.adaptation.data._FEW", 100)
    data = read(Files(pairs=[pairs]), Encoder.load(student))
    folds = [(set(each.labelled.queries), set(each.held_out.queries)) for each in data.folds()]
    assert len(data.labelled) == len(set.union(*(held_out for _, held_out in folds))) == 40
    assert all(not learnt & held_out and len(learnt | held_out) == 40 for learnt, held_out in folds)
    found = go()
    assert found.proof.measures["nDCG@10"].rows == 40
    assert found.steps == 80


def test_what_is_no_better_is_not_written_unless_forced(go, tmp_path):
    (tmp_path / "new.onnx").write_bytes(b"precious")
    idle = {"optim": {"lr": 1e-9, "steps": 2}}
    with pytest.raises(GateError, match="nothing was written: nDCG@10: "):
        go(settings=idle)
    assert (tmp_path / "new.onnx").read_bytes() == b"precious"
    assert go(settings=idle, force=True, control=RunControl(resume=True)).steps == 2
    assert Encoder.load(tmp_path / "new.onnx").dimension == 16


def test_it_can_be_interrupted_and_resumed(go, tmp_path):
    stops = itertools.chain([False] * 10, itertools.repeat(True))
    assert go(control=RunControl(should_stop=lambda: next(stops))) is None
    assert not (tmp_path / "new.onnx").exists()
    assert go(control=RunControl(resume=True)).steps == 80


def test_crosswise_runs_that_were_interrupted_end_with_the_same_result(go, tmp_path, monkeypatch):
    monkeypatch.setattr("embedkit.adaptation.data._FEW", 100)
    options = {"force": True, "settings": {"name": "mine", "optim": {"lr": 1e-2, "steps": 6}}}
    texts = [row["query"] for row in PAIRS]
    whole, vectors = go(**options), Encoder.load(tmp_path / "new.onnx").encode(texts)
    stops = itertools.chain([False] * 8, itertools.repeat(True))  # in the second of five runs
    options["folder"] = tmp_path / "again"
    assert go(**options, control=RunControl(should_stop=lambda: next(stops))) is None
    assert [path.name for path in sorted((tmp_path / "again").glob("fold-*/model"))] == ["model"]
    resumed = go(**options, control=RunControl(resume=True))
    np.testing.assert_array_equal(Encoder.load(tmp_path / "new.onnx").encode(texts), vectors)
    assert resumed.proof == whole.proof


def test_queries_alone_can_be_trained_for_a_collection_that_stays(go, student, tmp_path):
    documents = [row["passage"] for row in PAIRS]
    Collection.build(list(dict.fromkeys(documents)), encoder=str(student), path=tmp_path / "collection")
    found = go(queries_only=True)
    assert found.proof.keeps_collections
    queries = Encoder.load(tmp_path / "new.onnx")
    collection = Collection.open(tmp_path / "collection", encoder=Encoder.load(student))
    rows = collection.search_embeddings(queries.encode_query([row["query"] for row in PAIRS]), 1)
    assert sum(hits[0].text == text for hits, text in zip(rows, documents, strict=True)) > len(PAIRS) / 2


def test_graded_pairs_are_enough(go, tmp_path):
    rows = [{"sentence1": f"the {a}", "sentence2": f"a {b}", "score": int(a == b)} for a in WHO for b in WHO]
    found = go(Files(graded=[save(tmp_path / "graded.jsonl", rows)]))
    assert next(iter(found.proof.measures)) == "Spearman, held-out graded pairs"


def test_a_reranker_learns_from_positives_and_mined_negatives(toy_tokenizer_json, pairs, tmp_path):
    body = random(Tokenizer(toy_tokenizer_json, 20), Size(1, 32, 2), max_length=20, seed=1)
    model = PairEncoder.from_encoder(body, max_length=20, seed=1).eval()
    export(model, tmp_path / "cross.onnx", precision="fp32", card=Card(name="cross"))
    settings = {"device": "cpu", "cache": str(tmp_path / "cache"), "optim": {"steps": 2}}
    options = {"folder": tmp_path / "run", "settings": settings, "force": True}
    found = adapt(tmp_path / "cross.onnx", Files(pairs=[pairs]), tmp_path / "new.onnx", **options)
    assert [*found.proof.measures] == ["nDCG@10 of 20 candidates"]
    assert CrossEncoder.load(tmp_path / "new.onnx").predict([("the cat", "the sea")]).shape == (1,)
    judged = [json.loads(line) for line in (tmp_path / "run/.data/judged.jsonl").read_text().splitlines()]
    assert {row["label"] for row in judged} == {0, 1}


def test_a_loss_that_may_be_chance_does_not_outweigh_the_gain():
    def proof(high):
        better = Comparison(before=0.5, after=0.6, rows=8, gain=Interval(0.0, 0.2))
        worse = Comparison(before=0.5, after=0.4, rows=8, gain=Interval(-0.2, high))
        return Proof(measures={"first": better, "second": worse}, agreement=0.9, keeps_collections=None)

    assert proof(0.01).is_better
    assert not proof(-0.01).is_better


@pytest.fixture
def titled(tmp_path):
    rows = [{"title": row["query"], "text": f"{row['passage']} {number}"} for number, row in enumerate(PAIRS)]
    return save(tmp_path / "titled.jsonl", rows)


def test_documents_are_trained_towards_a_teacher_and_measured_by_their_titles(go, titled, student, tmp_path):
    options = {"teachers": [str(student)], "force": True, "settings": {"optim": {"steps": 3, "batch_size": 8}}}
    options["settings"]["settings"] = {"queue_size": 64}
    found = go(Files(documents=[titled]), **options)
    assert found.proof.measures["nDCG@10"].rows == 8


def test_documents_are_read_below_their_titles_as_in_a_collection_but_not_below_held_out_ones(student, tmp_path):
    rows = [{"title": f"the {who}", "text": verb} for who, verb in zip(WHO, VERBS * 2, strict=False)]
    rows = [{**row, "text": f"{row['text']} {number}"} for number, row in enumerate(rows)]
    path, only = (
        save(tmp_path / "a.jsonl", rows),
        save(tmp_path / "b.jsonl", [{"title": "an old king", "text": ""}]),
    )
    encoder = Encoder.load(student)
    data = read(Files(documents=[path, only]), encoder)
    collection = Collection.build(rows, encoder=encoder, path=tmp_path / "collection")
    embedded = [" ".join(each.content.split()) for each in collection.sample(len(rows))[0]]
    assert len(data.held_out) == 2
    for row, content in zip(rows, embedded, strict=True):
        assert content == f"{row['title']} {row['text']}"
        assert (row["text"] if row["title"] in data.held_out.queries else content) in data.documents
    assert data.documents[len(rows) :] == ["an old king"]
    save(tmp_path / "corpus.jsonl", [{"_id": str(number), **row} for number, row in enumerate(rows)])
    assert read(Files(documents=[tmp_path]), encoder).documents == data.documents[:-1]


def test_windows_after_the_title_that_a_text_begins_with_are_below_it_as_in_a_collection(student, tmp_path):
    path = save(tmp_path / "a.jsonl", [{"title": "the cat", "text": "the cat " + "will read and sleep. " * 40}])
    encoder = Encoder.load(student)
    windows = [Document("", each["text"], each).content for each in split_documents(path, encoder)]
    assert len(windows) > 1
    assert read(Files(documents=[path]), encoder).documents == [*dict.fromkeys(map(normalise, windows))]


def test_a_labelled_passage_is_not_read_again_below_its_title(student, tmp_path):
    rows = [{"title": f"the {who}", "text": f"is good {number}"} for number, who in enumerate(WHO)]
    path = save(tmp_path / "a.jsonl", rows)
    pairs = save(tmp_path / "p.jsonl", [{"query": row["title"], "passage": row["text"]} for row in rows[:4]])
    labelled = read(Files(documents=[path], pairs=[pairs]), Encoder.load(student)).labelled
    passages = [*(row["text"] for row in rows[:4]), *(f"{row['title']} {row['text']}" for row in rows[4:])]
    assert labelled.passages == passages


def test_labels_go_on_from_documents_if_a_teacher_is_named(go, pairs, student, tmp_path):
    labels = {**SETTINGS, "optim": {"steps": 2, "batch_size": 8}}
    stops = itertools.chain([False] * 2, itertools.repeat(True))  # a step of the second run is made
    options = {"teachers": [str(student)], "force": True, "settings": labels}
    assert go(**options, control=RunControl(should_stop=lambda: next(stops))) is None
    found = go(**options, control=RunControl(resume=True))
    assert found.proof.measures["nDCG@10"].rows == 8
    assert found.report.manifest.config["student"]["source"] == "documents"
    assert found.report.manifest.config["settings"]["texts"] == 64
    assert (
        "towards student"
        in plan(student, Files(pairs=[pairs]), tmp_path / "plan", teachers=[str(student)]).lines[-2]
    )


def test_a_teacher_reads_the_passages_of_labels_or_graded_texts_too(student, pairs, titled, tmp_path):
    graded = save(
        tmp_path / "graded.jsonl",
        [{"sentence1": who, "sentence2": "a cat", "score": n} for n, who in enumerate(WHO)],
    )

    def read_by_teacher(**files):
        start = plan(student, Files(**files), tmp_path / "run", teachers=[str(student)]).start
        return {
            json.loads(line)["text"] for line in (start.folder / ".data/documents.jsonl").read_text().splitlines()
        }

    assert {row["passage"] for row in PAIRS} <= read_by_teacher(documents=[titled], pairs=[pairs])
    assert "a cat" in read_by_teacher(graded=[graded])


def test_documents_without_titles_are_measured_by_their_first_sentences(student, tmp_path, monkeypatch):
    monkeypatch.setattr("embedkit.adaptation.data._FEWEST_WORDS", 1)
    texts = [f"the {who}. {verb}" for who in WHO for verb in VERBS]
    path = save(tmp_path / "texts.jsonl", [{"text": text} for text in texts])
    data = read(Files(documents=[path]), Encoder.load(student))
    assert len(data.held_out) > 0
    for query, rows in zip(data.held_out.queries, data.held_out.positives, strict=True):
        assert {f"{query} {data.held_out.passages[row]}" for row in rows} <= set(texts)
    assert len(data.documents) == len(texts)


def test_teachers_vectors_are_brought_to_the_space_that_a_model_has_learned():
    generator = np.random.default_rng(0)
    teacher = unit_rows(generator.normal(size=(400, 24)) + generator.normal(size=24))
    axes = np.linalg.qr(generator.normal(size=(24, 24)))[0]
    means = (teacher.mean(axis=0) / 2, teacher.mean(axis=0))
    known, centred = (JoinedSpace(name="", means=(mean,), weights=np.ones(1), axes=axes) for mean in means)
    own = known.join([teacher])
    found = fit_space([teacher], own, "found")
    agreements = [(space.join([teacher]) * own).sum(axis=1).mean() for space in (centred, found)]
    assert agreements[1] > 0.99 > agreements[0]


def test_a_teacher_that_was_trained_again_is_exported_again(toy_tokenizer_json, tmp_path, monkeypatch):
    monkeypatch.setattr("embedkit.adaptation.teachers.export_source", lambda *_, **__: None)
    teacher, bundles = tmp_path / "teacher", []
    for seed in (1, None, 2):
        if seed is not None:
            random(Tokenizer(toy_tokenizer_json, 12), Size(1, 32, 2), max_length=12, seed=seed).save(teacher)
        bundles.append(as_bundle(str(teacher), tmp_path / "cache"))
    assert bundles[0] == bundles[1] != bundles[2]


@pytest.mark.parametrize("mark", ["", "\u2581", "\u0120"])
def test_random_texts_are_whole_words_of_a_vocabulary_and_mostly_frequent_ones(mark):
    words = [first + second for first in "bcdfghjklm" for second in "aeiouy" for _ in range(2)]
    words = [word + last for word, last in zip(words, itertools.cycle("nt"), strict=False)]
    others = ["[CLS]", "7", ",", "##ing"] if not mark else ["<s>", mark + "7", mark, "ing"]
    pieces = [*others, *(mark + word for word in words)]
    vocabulary = [[piece, 0.0] for piece in pieces] if mark == "\u2581" else dict(zip(pieces, itertools.count()))
    texts = [*random_texts(json.dumps({"model": {"vocab": vocabulary}}))]
    drawn = [word for text in texts for word in text.split(" ")]
    assert {*drawn} == {*words}
    assert all(3 <= len(text.split(" ")) < 13 for text in texts)
    assert drawn.count(words[0]) > 3 * drawn.count(words[-1])


def test_a_vocabulary_without_words_makes_no_texts():
    assert [*random_texts(json.dumps({"model": {"vocab": {"##a": 0, "b": 1}}}))] == []


def test_documents_alone_need_a_teacher(go, titled):
    with pytest.raises(ConfigError, match="documents without labels need a teacher"):
        go(Files(documents=[titled]))


@pytest.mark.parametrize("labelled", [True, False])
def test_a_cross_encoder_scores_the_passages_near_each_query(
    go, pairs, titled, tmp_path, toy_tokenizer_json, labelled
):
    encoder = random(Tokenizer(toy_tokenizer_json, 24), Size(1, 32, 2), max_length=24, seed=3)
    PairEncoder.from_encoder(encoder, max_length=24, seed=3).save(tmp_path / "teacher")
    files = Files(pairs=[pairs]) if labelled else Files(documents=[titled])
    found = go(
        files, teachers=[str(tmp_path / "teacher")], force=True, settings={**SETTINGS, "optim": {"steps": 2}}
    )
    assert found.report.manifest.config["settings"]["loss"] == "kl"
    with pytest.raises(ConfigError, match="teaches alone"):
        go(files, teachers=[str(tmp_path / "teacher")] * 2)


def test_without_a_teacher_the_hybrid_search_labels_a_log_of_queries(student, titled, tmp_path):
    (tmp_path / "log.txt").write_text("\n".join(row["query"] for row in PAIRS))
    files = Files(documents=[titled], queries=[tmp_path / "log.txt"])
    made = plan(student, files, tmp_path / "run")
    assert made.config.method == "contrastive"
    alone = plan(student, files, tmp_path / "alone", teachers=[str(student)], queries_only=True)
    assert alone.config.settings.freeze_documents
    rows = [json.loads(line) for line in (tmp_path / "run/.data/pairs.jsonl").read_text().splitlines()]
    assert {row["query"] for row in rows} == {row["query"] for row in PAIRS}
    assert {row["passage"] for row in rows} <= {*made.data.documents, *made.data.titles.passages}
    assert "40 queries, each with what the hybrid search finds first" in made.lines[-1]


def test_every_source_is_recognised_by_what_it_holds(student, pairs, titled, tmp_path):
    encoder = Encoder.load(student)
    (tmp_path / "log.txt").write_text("the cat\nthe cat\nan old king\n")
    (tmp_path / "texts.txt").write_text("a good day\n" + " ".join(WHO * 3))
    (tmp_path / "handbook").mkdir()
    (tmp_path / "handbook" / "a.txt").write_text("a good dog by the sea")
    Collection.build(["my sister wants to read"], encoder=encoder, path=tmp_path / "collection")
    sources = [tmp_path / name for name in ("texts.txt", "handbook", "collection")]
    data = read(Files(documents=[*sources, pairs, titled], queries=[tmp_path / "log.txt"]), encoder)
    assert data.documents[0] == "a good day"
    assert len([text for text in data.documents if text.startswith(("cat dog", "mother train"))]) >= 1
    assert {"a good dog by the sea", "my sister wants to read"} <= set(data.documents)
    assert (len(data.labelled), len(data.held_out), len(data.queries)) == (32, 8, 2)
    assert not set(data.labelled.queries) & set(data.held_out.queries)
    assert len(data.found) == 6


def test_the_split_dev_is_held_out_of_a_set_in_beirs_form(student, tmp_path):
    save(tmp_path / "corpus.jsonl", [{"_id": "a", "text": "the sea"}, {"_id": "b", "text": "a good day"}])
    save(tmp_path / "queries.jsonl", [{"_id": name, "text": f"the {name}"} for name in WHO])
    (tmp_path / "qrels").mkdir()
    for split, names in {"train": WHO[:6], "dev": WHO[6:]}.items():
        lines = "".join(f"{name}\ta\t1\n" for name in names)
        (tmp_path / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")
    data = read(Files(pairs=[tmp_path]), Encoder.load(student))
    assert (data.labelled.queries, data.held_out.queries) == (
        [f"the {name}" for name in WHO[:6]],
        [f"the {name}" for name in WHO[6:]],
    )


def test_rows_of_other_splits_are_not_trained_on(student, tmp_path):
    splits = ["train"] * 20 + ["dev"] * 2 + ["test"] * 2
    rows = {
        "pairs": [{"query": f"q {n}", "passage": "the sea"} for n in range(24)],
        "graded": [{"sentence1": f"q {n}", "sentence2": "the sea", "score": n} for n in range(24)],
        "queries": [{"query": f"q {n}"} for n in range(24)],
        "documents": [{"text": f"q {n}"} for n in range(24)],
    }
    for name, records in rows.items():
        marked = [{**row, "split": split} for row, split in zip(records, splits, strict=True)]
        save(tmp_path / f"{name}.jsonl", marked)
    data = read(Files(**{name: [tmp_path / f"{name}.jsonl"] for name in rows}), Encoder.load(student))
    train = [f"q {n}" for n in range(20)]
    assert (data.labelled.queries, data.held_out.queries) == (train, ["q 20", "q 21"])
    assert sorted([*data.graded.first, *data.held_out_graded.first]) == sorted(train)
    assert (data.queries, data.documents) == (train, train)


def test_spans_are_words_of_the_documents():
    text = " ".join(map(str, range(100)))
    drawn = list(spans([text, "a b"], each=3))
    assert len(drawn) == 6
    assert all(f" {span} " in f" {text} a b " and 1 < span.count(" ") + 1 <= 16 for span in drawn)


def test_too_few_labels_are_refused(go, tmp_path):
    with pytest.raises(DataError, match="1 labelled queries are too few"):
        go(Files(pairs=[save(tmp_path / "few.jsonl", PAIRS[:1])]))
    with pytest.raises(InputError, match="nothing to adapt to"):
        Files()


def test_the_command_says_what_it_found_and_what_it_gained(student, pairs, tmp_path, capsys):
    command = ["adapt", str(student), "--pairs", str(pairs), "-o", str(tmp_path / "new.onnx")]
    command += [
        "--run",
        str(tmp_path / "run"),
        "--cache",
        str(tmp_path / "cache"),
        "--steps",
        "80",
        "--lr",
        "0.01",
    ]
    command += ["--set", "settings.margin=100.0", "--set", "settings.anchor=0.0", "--set", "device=cpu"]
    assert main([*command, "--plan"]) in (0, None)
    planned = capsys.readouterr().out
    assert "40 labelled queries" in planned
    assert "80 steps of 32" in planned
    assert not (tmp_path / "new.onnx").exists()
    assert main(command) in (0, None)
    printed = capsys.readouterr()
    assert "nDCG@10: " in printed.out
    assert planned.splitlines()[0] in printed.err
    assert read_bundle(tmp_path / "new.onnx").manifest.name == "new"


def test_a_plan_tells_labels_from_documents(student, pairs, tmp_path):
    made = plan(student, Files(pairs=[pairs]), tmp_path / "run")
    assert made.config.method == "contrastive"
    assert made.config.optim.steps == 30


@pytest.mark.parametrize("source", ["tiny", "mini"])
def test_activations_are_limited_if_they_were_in_training(source, pairs, tmp_path):
    trained = Encoder.load(source).manifest.config.get("optim", {}).get("activation_limit")
    assert trained == {"tiny": 3.0, "mini": None}[source]
    assert plan(source, Files(pairs=[pairs]), tmp_path / "run").config.optim.activation_limit == trained
