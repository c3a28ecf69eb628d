"""What a run refuses, or reports, instead of training on something else without a word."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from embedkit.errors import ConfigError, DataError
from embedkit.training.corpus import Corpus, SourceConfig
from embedkit.training.loop import RunControl
from embedkit.training.recipes.labelled_pairs import Labels
from embedkit.training.run import prepare as prepare_run
from embedkit.training.run import resolve, run

QUIET = RunControl(show_progress=False)


@pytest.fixture
def mapping(mapping, sentences, tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"{text}\tnow {text}\n" for text in sentences(20)))
    return mapping


@pytest.fixture
def prepare(tmp_path):
    """``prepare(name, content, **source)``: the texts of each view of a corpus."""

    def prepare(name, content, **source):
        (tmp_path / name).write_text(content, encoding="utf-8")
        corpus = Corpus.prepare([SourceConfig(path=str(tmp_path / name), **source)], tmp_path, show_progress=False)
        return [corpus.texts(np.arange(len(corpus)), view) for view in range(corpus.views)]

    return prepare


class TestColumns:
    @pytest.mark.parametrize("method", ["mse", "ckd", "simcse", "distillcse", "pcl", "sct-distillation"])
    def test_a_second_column_that_a_method_would_drop_is_refused(self, mapping, method):
        settings = {"views": 1, "queues": "one"} if method == "sct-distillation" else {}
        changes = {"method": method, "settings": settings, "corpus": [{"path": "pairs.tsv"}]}
        with pytest.raises(ConfigError, match="trains on one text per row, but the corpus has 2: name the column"):
            prepare_run(resolve({**mapping, **changes}))
        named = {**changes, "corpus": [{"path": "pairs.tsv", "text_column": "text2"}]}
        assert len(prepare_run(resolve({**mapping, **named})).corpus) == 20

    def test_an_augmentation_of_a_view_that_a_method_lacks_is_refused(self, mapping):
        with pytest.raises(ConfigError, match=r"has one view; remove views\.second"):
            prepare_run(resolve({**mapping, "views": {"second": "deletion"}}))

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ("7\tThe presence of communication", "text1 holds ids, for example '7, The presence"),
            ("7\t12", "text1, text2 holds ids"),
            ("MED-10\tRecent studies", "text1 holds ids"),
            ("a query\ta passage\tanother passage", "it has 3 columns, for example 'a query, a passage, another"),
            ("main\tMSRvid\t2012\t1\t5.0\tA plane\tA bird", "it has 7 columns"),
        ],
    )
    def test_ids_and_columns_without_a_name_are_no_text(self, prepare, row, message):
        with pytest.raises(DataError, match=message):
            prepare("rows.tsv", f"{row}\n{row}\n")

    def test_a_column_named_by_position_and_scores_beside_pairs_are_read(self, prepare):
        assert prepare("ids.tsv", "7\tone\n8\ttwo\n", text_column="text2") == [["one", "two"]]
        assert prepare("scored.tsv", "one\tuno\t5.0\ntwo\tdos\t4\n") == [["one", "two"], ["uno", "dos"]]

    def test_a_header_names_the_columns_of_a_table(self, prepare):
        quora = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tHow?\tWhy?\t0\n"
        with pytest.raises(DataError, match="no known text column"):
            prepare("quora.tsv", quora)
        assert prepare("quora.tsv", quora, view_columns=("question1", "question2")) == [["How?"], ["Why?"]]
        assert prepare("texts.tsv", "id\ttext\n5\tone\n6\ttwo\n") == [["one", "two"]]

    def test_rows_of_development_and_test_are_left_out(self, prepare, tmp_path):
        splits = ("train", "dev", "Test", "validation", "held-out", "val", "extra")
        rows = [{"text": f"text {split}", "split": split} for split in splits]
        assert prepare("rows.jsonl", "\n".join(map(json.dumps, rows))) == [["text train", "text extra"]]
        pairs = [
            {"query": f"q {n}", "passage": "p", "label": n % 2, "split": ("train", "test")[n > 3]}
            for n in range(6)
        ]
        (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
        sources = [SourceConfig(path=str(tmp_path / "pairs.jsonl"), view_columns=("query", "passage"))]
        assert len(Labels.read(sources, "label", Corpus.prepare(sources, tmp_path)).values) == 4


class TestLabels:
    def read(self, tmp_path, rows, columns):
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        sources = [SourceConfig(path=str(tmp_path / "rows.jsonl"), view_columns=columns)]
        return Labels.read(sources, "label", Corpus.prepare(sources, tmp_path))

    def test_labels_that_are_all_equal_are_refused(self, tmp_path):
        rows = [{"query": f"q {number}", "passage": "p", "label": 1} for number in range(4)]
        with pytest.raises(DataError, match="all labels in label are 1, from which a re-ranker learns one score"):
            self.read(tmp_path, rows, ("query", "passage"))

    def test_classes_of_inference_are_no_grades(self, tmp_path):
        rows = [{"premise": f"a {number}", "hypothesis": "b", "label": number % 3} for number in range(6)]
        with pytest.raises(DataError, match="classes of natural language inference"):
            self.read(tmp_path, rows, ("premise", "hypothesis"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"student": {"layers": 0}}, "student.layers = 0 is a static encoder"),
        ({"student": {"heads": 2}}, "student.heads is for encoders"),
        ({"student": {"bag_of_words": 8}}, "student.bag_of_words is for encoders"),
        ({"student": {"start": "random"}}, 'student.start = "random" is for encoders'),
        ({"student": {"start": "teacher"}}, 'student.start = "teacher" is for encoders'),
        ({"views": {"first": "deletion"}}, r"\[views\] augments texts without labels"),
    ],
)
def test_options_that_score_distillation_does_not_use_are_refused(changes, message):
    recipe = {
        "method": "score-distillation",
        "corpus": [{"path": "a.txt"}],
        "teacher": {"source": "large"},
        "settings": {"queries": [{"path": "q.txt"}]},
    }
    assert resolve(recipe).student.start == "layers"
    with pytest.raises(ConfigError, match=message):
        resolve({**recipe, **changes})


@pytest.mark.parametrize(("most", "level"), [(32, logging.WARNING), (8, logging.INFO)])
def test_truncated_texts_are_reported_once_with_both_limits(mapping, tmp_path, caplog, most, level):
    caplog.set_level(logging.INFO)
    (tmp_path / "texts.txt").write_text(
        "".join(f"the old king reads today {'by the sea ' * (n % 2 * 4)}{n}\n" for n in range(20))
    )
    student = {"source": "start", "max_length": 10}
    teacher = {"source": "start", "max_length": min(most, 16)}
    run(resolve({**mapping, "student": student, "teacher": teacher}), tmp_path / "run", QUIET)
    (record,) = [record for record in caplog.records if "exceed student.max_length" in record.getMessage()]
    assert record.getMessage() == (
        "about 50.0 % of the texts exceed student.max_length = 10 tokens and are truncated; "
        f"teacher start reads {min(most, 16)}"
    )
    assert record.levelno == level


def test_code_of_a_recipe_runs_only_with_the_callers_permission(mapping, tmp_path):
    trusting = {**mapping, "teacher": {"source": "start", "trust_remote_code": True}}
    with pytest.raises(ConfigError, match="asks to run Python code that comes with start"):
        run(resolve(trusting), tmp_path / "run", QUIET)
    allowed = RunControl(show_progress=False, trust_remote_code=True, should_stop=lambda: True)
    assert not run(resolve(trusting), tmp_path / "run", allowed).finished
    with pytest.raises(ConfigError, match="trust-remote-code"):
        run(resolve(trusting), tmp_path / "run", RunControl(resume=True, show_progress=False))


def test_a_run_leaves_the_random_numbers_of_the_process(mapping, tmp_path):
    before = torch.random.get_rng_state()
    run(resolve(mapping), tmp_path / "run", QUIET)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("import embedkit.training", "PASSIVE False"),
        ("import embedkit.export", "PASSIVE False"),
        ("import sys; sys.modules['torch'] = sys; import embedkit.training", "PASSIVE True"),
    ],
)
def test_threads_sleep_while_they_wait_unless_torch_came_first(statement, expected):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    told = "import os; print(os.environ['OMP_WAIT_POLICY'], embedkit.modeling.SPINS)"
    found = subprocess.run(
        [sys.executable, "-c", f"{statement}; {told}"], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == expected


def test_the_log_says_how_threads_wait(mapping, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    for number, spins in enumerate((False, True)):
        monkeypatch.setattr("embedkit.training.run.SPINS", spins)
        run(resolve({**mapping, "threads": 2}), tmp_path / str(number), QUIET)
    found = [record.getMessage() for record in caplog.records if "threads, which" in record.getMessage()]
    assert found[0] == "2 threads, which sleep while they wait"
    assert "set OMP_WAIT_POLICY=PASSIVE" in found[1]
