"""Entries of a comparison: distinguished, joined with timings, and compared by recipes."""

from __future__ import annotations

from embedkit.reporting.entries import Entry, contenders_of, differences, distinct, flat_recipe, timed_only
from embedkit.reporting.quality import Quality


def entry(label, **changes):
    return Entry(
        **{"label": label, "name": label, "kind": "run", "precision": "fp32", "source": f"runs/{label}", **changes}
    )


def test_labels_that_are_the_same_get_their_sources():
    found = distinct([entry("a", source="runs/1"), entry("a", source="runs/2"), entry("b")])
    assert [each.label for each in found] == ["a (runs/1)", "a (runs/2)", "b"]


def test_models_that_were_only_timed_are_entries_once(make_speed):
    reports = [make_speed({"tiny int8": 0.001, "bert-base fp32": 0.1}, threads=threads) for threads in (1, 2)]
    (found,) = timed_only(reports, [entry("mine", fingerprint="f-tiny int8")])
    assert (found.label, found.name, found.precision, found.kind) == (
        "bert-base fp32",
        "bert-base",
        "fp32",
        "timing only",
    )
    assert found.size_bytes == 5_000_000


def test_quality_is_joined_by_label():
    quality = Quality("stsb", {"stsb": {"a": 70.0}})
    assert [each.quality for each in contenders_of([entry("a"), entry("b")], quality)] == [70.0, None]


def test_recipes_differ_where_values_do_and_where_one_lacks_a_setting():
    entries = [
        entry("a", recipe={"method": "sct", "optim.lr": "0.001", "seed": "1"}),
        entry("b", recipe={"method": "sct", "optim.lr": "0.0005", "seed": "1", "views.rate": "0.2"}),
        entry("teacher"),
    ]
    assert differences(entries) == [["optim.lr", "0.001", "0.0005"], ["views.rate", "", "0.2"]]


def test_the_corpus_is_one_row_however_many_settings_it_has():
    one = {
        "corpus[0].path": "train/wiki.txt.xz",
        "corpus[0].limit": "100",
        "corpus[0].licence": "CC0",
        "corpus[0].view_columns": "[]",
        "corpus[1].path": "news.txt",
        "seed": "1",
    }
    entries = [entry("a", recipe=one), entry("b", recipe={"corpus[0].path": "c.txt", "seed": "1"})]
    assert differences(entries) == [["corpus", "wiki.txt.xz (limit 100); news.txt", "c.txt"]]


def test_equal_recipes_do_not_differ():
    assert differences([entry("a", recipe={"seed": "1"}), entry("b", recipe={"seed": "1"})]) == []


def test_the_name_of_a_run_is_no_setting():
    assert flat_recipe({"name": "mine", "optim": {"lr": 0.1, "name": "adamw"}}) == {
        "optim.lr": "0.1", "optim.name": "adamw"
    }  # fmt: skip
