from __future__ import annotations

import re
import types

import pytest

from embedkit import records
from embedkit.errors import DataError
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.sts import load_scored_pairs
from embedkit.records import HubDataset

PAIR = {"sentence1": "a", "sentence2": "b", "score": 1.0}


@pytest.fixture
def fake_hub(monkeypatch):
    """A stand-in for the package `datasets`: {id: {configuration: {split: rows}}}; records the requests."""
    contents, asked = {}, []

    def table(id_, configuration):
        if id_ not in contents:
            raise FileNotFoundError(f"Dataset '{id_}' doesn't exist on the Hub\nsecond line")
        return contents[id_][configuration or "default"]

    def load_dataset(id_, configuration=None, *, split, revision, streaming):
        asked.append((id_, configuration, split, revision))
        return table(id_, configuration)[split]

    def get_dataset_split_names(id_, configuration=None, *, revision):
        return list(table(id_, configuration))

    def get_dataset_config_names(id_, *, revision):
        return list(contents[id_])

    functions = (load_dataset, get_dataset_split_names, get_dataset_config_names)
    module = types.SimpleNamespace(**{function.__name__: function for function in functions})
    monkeypatch.setattr(records, "require", lambda name, *, extra: module)
    return types.SimpleNamespace(contents=contents, asked=asked)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("org/name", HubDataset("org/name")),
        ("hf://org/name", HubDataset("org/name")),
        ("hf://org/name@v1.0", HubDataset("org/name", "v1.0")),
        ("hf://org/name:dev", HubDataset("org/name", None, "dev")),
        ("hf://org/na-me.x@refs/pr/1:dev", HubDataset("org/na-me.x", "refs/pr/1", "dev")),
        ("hf://org/name/fr@v1.0:dev", HubDataset("org/name", "v1.0", "dev", "fr")),
    ],
)
def test_written_form(text, parsed):
    assert HubDataset.parse(text) == parsed


@pytest.mark.parametrize("text", ["name", "a/b/c", "hf://a/b/c/d", "org/", "hf://org", "org/name@", "org/name:"])
def test_other_forms_are_refused(text):
    with pytest.raises(DataError, match="hf://org/name"):
        HubDataset.parse(text)


def test_split_and_revision_reach_the_hub(fake_hub):
    fake_hub.contents["org/sts"] = {"default": {"validation": [PAIR], "test": [PAIR, PAIR]}}
    assert len(load_scored_pairs("org/sts")) == 2
    assert len(load_scored_pairs("hf://org/sts@abc:validation")) == 1
    assert [request[2:] for request in fake_hub.asked] == [("test", None), ("validation", "abc")]


def test_an_only_split_is_read_under_any_name(fake_hub):
    fake_hub.contents["org/sts"] = {"default": {"train": [PAIR]}}
    assert len(load_scored_pairs("org/sts")) == 1


def test_a_wrong_value_names_data_set_split_and_row(fake_hub):
    fake_hub.contents["org/sts"] = {"default": {"test": [PAIR, {**PAIR, "score": None}]}}
    with pytest.raises(DataError, match=r"hf://org/sts:test, row 2: expected a finite number"):
        load_scored_pairs("org/sts")


PIN = "0123456789abcdef0123456789abcdef01234567"


def test_a_pinned_commit_is_asked_for_once(fake_hub):
    rows = [PAIR, {**PAIR, "sentence1": "\N{LINE SEPARATOR} ü", "picture": object()}]
    fake_hub.contents["org/sts"] = {"default": {"test": rows, "dev": [PAIR]}, "other": {"test": [PAIR]}}
    pinned = HubDataset("org/sts", PIN)
    first = [row.fields for row in pinned.rows()]
    names = pinned.configurations()
    fake_hub.contents.clear()  # as if offline
    assert [row.fields for row in pinned.rows()] == first == [PAIR, {**rows[1], "picture": None}]
    assert pinned.configurations() == names == ["default", "other"]
    assert len(fake_hub.asked) == 1
    with pytest.raises(DataError, match="cannot load hf://org/sts"):
        list(pinned.rows(split="dev"))
    with pytest.raises(DataError, match="cannot load hf://org/sts"):
        list(HubDataset("org/sts", "f" * 40).rows())


def test_branches_and_the_newest_are_asked_for_each_time(fake_hub):
    fake_hub.contents["org/sts"] = {"default": {"test": [PAIR]}}
    for revision in (None, "main", None, "main"):
        assert len(list(HubDataset("org/sts", revision).rows())) == 1
    assert len(fake_hub.asked) == 4


def test_an_interrupted_reading_leaves_nothing(fake_hub):
    def broken():
        yield PAIR
        raise KeyboardInterrupt

    fake_hub.contents["org/sts"] = {"default": {"test": broken()}}
    with pytest.raises(KeyboardInterrupt):
        list(HubDataset("org/sts", PIN).rows())
    fake_hub.contents["org/sts"] = {"default": {"test": [PAIR, PAIR]}}
    assert len(list(HubDataset("org/sts", PIN).rows())) == 2


@pytest.mark.usefixtures("fake_hub")
def test_errors_of_the_hub_are_reported_in_one_line():
    with pytest.raises(DataError) as caught:
        load_scored_pairs("org/gone")
    expected = "cannot load hf://org/gone from the hub: Dataset 'org/gone' doesn't exist on the Hub"
    assert str(caught.value) == expected


def test_named_tasks_are_pinned_to_a_commit(fake_hub):
    from embedkit.evaluation.catalogue import TASKS

    fake_hub.contents["mteb/stsbenchmark-sts"] = {"default": {"validation": [PAIR], "test": [PAIR]}}
    task = load_task("stsb")
    assert fake_hub.asked[0][3] == TASKS["stsb"].hub.revision
    assert task.sets[0].source == f"hf://mteb/stsbenchmark-sts@{TASKS['stsb'].hub.revision}"
    pins = [entry.hub.revision for entry in TASKS.values() if entry.hub is not None]
    assert all(re.fullmatch("[0-9a-f]{40}", pin) for pin in pins)


def test_a_task_name_may_pin_a_revision(fake_hub):
    fake_hub.contents["mteb/stsbenchmark-sts"] = {"default": {"validation": [PAIR], "test": [PAIR]}}
    load_task("stsb@abc")
    load_task("stsb-dev@def")
    assert [request[2:] for request in fake_hub.asked] == [("test", "abc"), ("validation", "def")]


def test_the_real_package_reads_a_local_folder(write_json_lines, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = write_json_lines("repository/test.jsonl", PAIR, PAIR).parent
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", folder / "cache")
    rows = list(HubDataset(str(folder)).rows())
    assert [row.fields for row in rows] == [PAIR, PAIR]
    assert HubDataset(str(folder)).configurations() == ["default"]
