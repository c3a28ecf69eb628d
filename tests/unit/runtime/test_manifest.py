"""Errors of manifests and golden texts name the field."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from embedkit.errors import BundleError
from embedkit.runtime.manifest import Golden, Manifest
from embedkit.runtime.options import Ranges

MANIFEST = Manifest(name="m", dimension=4, max_length=8)
GOLDEN = Golden(["a", "b"], [[1, 2], [1, 3]], np.arange(8, dtype=np.float32).reshape(2, 4), tolerance=0.01)


def changed(text, name, value):
    return json.dumps({**json.loads(text), name: value})


def without(text, name):
    return json.dumps({key: value for key, value in json.loads(text).items() if key != name})


def test_a_manifest_survives_json():
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST


def test_golden_vectors_survive_json_bit_for_bit():
    values = np.random.default_rng(0).standard_normal((3, 5), dtype=np.float32)
    golden = Golden(["a", "", "ü"], [[1], [2], [3]], values, 0.5)
    read = Golden.from_json(golden.to_json(), dataclasses.replace(MANIFEST, dimension=5))
    assert read.values.tobytes() == values.tobytes()
    assert (read.texts, read.token_ids, read.tolerance) == (golden.texts, golden.token_ids, 0.5)


def test_digests_survive_json_and_leave_no_trace_where_there_are_none():
    golden = dataclasses.replace(GOLDEN, digests={"embedkit-1": "0" * 64})
    assert Golden.from_json(golden.to_json(), MANIFEST).digests == golden.digests
    assert "digests" not in json.loads(GOLDEN.to_json())
    assert Golden.from_json(GOLDEN.to_json(), MANIFEST).digests == {}


def test_ranges_survive_json_and_leave_no_trace_where_there_are_none():
    ranges = Ranges.measure(GOLDEN.values)
    measured = dataclasses.replace(MANIFEST, ranges=ranges.to_text())
    read = Manifest.from_json(measured.to_json())
    assert read == measured
    found = Ranges.from_text(read.ranges, 4)
    np.testing.assert_array_equal([found.least, found.most], [ranges.least, ranges.most])
    assert "ranges" not in json.loads(MANIFEST.to_json())


def test_a_default_prompt_is_one_of_the_prompts_and_optional():
    prompted = dataclasses.replace(MANIFEST, prompts={"query": "q: "}, default_prompt="query")
    assert Manifest.from_json(prompted.to_json()) == prompted
    assert "default_prompt" not in json.loads(MANIFEST.to_json())
    with pytest.raises(BundleError, match="default_prompt is 'text', which is not among the prompts"):
        Manifest.from_json(dataclasses.replace(prompted, default_prompt="text").to_json())


OPTIONAL = ("ranges", "default_prompt", "activation")
REQUIRED = [field.name for field in dataclasses.fields(Manifest) if field.name not in OPTIONAL]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_field_is_named(name):
    with pytest.raises(BundleError, match=f"manifest.{name} is missing"):
        Manifest.from_json(without(MANIFEST.to_json(), name))


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Manifest)])
def test_a_field_of_the_wrong_kind_is_named(name):
    with pytest.raises(BundleError, match=f"manifest.{name} is"):
        Manifest.from_json(changed(MANIFEST.to_json(), name, None))


@pytest.mark.parametrize(
    ("name", "value", "where"),
    [
        ("kind", "reranker", "manifest.kind"),
        ("dimension", 0, "manifest.dimension"),
        ("max_length", 10**7, "manifest.max_length"),
        ("ranges", "no base64!", "manifest.ranges is not base64"),
        ("prompts", {"query": 3}, "manifest.prompts.query"),
        ("corpus", ["wiki"], r"manifest.corpus\[0\]"),
        ("extra", 1, "manifest.extra is not known"),
    ],
)
def test_a_wrong_value_is_named(name, value, where):
    with pytest.raises(BundleError, match=where):
        Manifest.from_json(changed(MANIFEST.to_json(), name, value))


def test_descriptions_that_a_later_version_adds_are_ignored():
    described = changed(MANIFEST.to_json(), "info_energy", {"kWh": 0.4})
    assert Manifest.from_json(described) == MANIFEST


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "[" * 100_000])
def test_a_value_that_is_no_manifest_is_refused(text):
    with pytest.raises(BundleError, match=r"the manifest is not JSON|manifest should be an object"):
        Manifest.from_json(text)


@pytest.mark.parametrize(
    ("name", "value", "where"),
    [
        ("texts", [], "0 texts"),
        ("texts", ["a"], "1 texts and 2 rows"),
        ("texts", ["a", None], r"golden.texts\[1\]"),
        ("token_ids", [[True], [1]], r"golden.token_ids\[0\]"),
        ("vectors", "AAAA", "golden.vectors is 3 bytes"),
        ("vectors", "AADAfwAAwH8=", "not finite"),
        ("tolerance", 0, "golden.tolerance"),
        ("digests", {"embedkit-1": 1}, "golden.digests.embedkit-1 is a text, not 1"),
        ("digests", {"embedkit-1": "0"}, "golden.digests has the form"),
    ],
)
def test_wrong_golden_texts_are_named(name, value, where):
    with pytest.raises(BundleError, match=where):
        Golden.from_json(changed(GOLDEN.to_json(), name, value), MANIFEST)


@pytest.mark.parametrize(
    ("manifest", "where"),
    [
        (dataclasses.replace(MANIFEST, dimension=5), "4 wide, manifest.dimension is 5"),
        (dataclasses.replace(MANIFEST, max_length=1), "2 ids, manifest.max_length is 1"),
    ],
)
def test_golden_texts_must_be_of_their_manifest(manifest, where):
    with pytest.raises(BundleError, match=where):
        Golden.from_json(GOLDEN.to_json(), manifest)


# Cross-encoders

PAIRS = Golden(
    [("a", "b"), ("", "ü")], [[1, 2], [1]], np.array([0.25, 0.7], dtype=np.float32), 0.01, [[0, 1], [0]]
)
CROSS = dataclasses.replace(MANIFEST, kind="cross-encoder", dimension=1)


def test_golden_pairs_survive_json_bit_for_bit():
    read = Golden.from_json(PAIRS.to_json(), CROSS)
    assert (read.texts, read.token_ids, read.type_ids) == (PAIRS.texts, PAIRS.token_ids, PAIRS.type_ids)
    assert read.values.tobytes() == PAIRS.values.tobytes()
    assert read.tolerance == PAIRS.tolerance


@pytest.mark.parametrize(
    ("name", "value", "where"),
    [
        ("pairs", [["a", "b"]], "1 pairs, 2 rows"),
        ("pairs", [["a", "b"], ["c"]], r"golden.pairs\[1\] should be a list of two strings"),
        ("token_ids", [[1, 2], 2], r"golden.token_ids\[1\]"),
        ("token_type_ids", [[0, 1], [-1]], r"golden.token_type_ids\[1\]"),
        ("token_type_ids", [[0, 1], [0, 1]], "differ in the length"),
        ("scores", "AAAA", "golden.scores is 3 bytes"),
        ("scores", "AACAPgAAgD4AAIA+AACAPg==", "4 scores for 2 pairs"),
        ("texts", [], "golden.texts is not known"),
    ],
)
def test_wrong_golden_pairs_are_named(name, value, where):
    with pytest.raises(BundleError, match=where):
        Golden.from_json(changed(PAIRS.to_json(), name, value), CROSS)


def test_golden_pairs_must_be_of_a_cross_encoder():
    with pytest.raises(BundleError, match="dimension of a cross-encoder should be 1, not 4"):
        Golden.from_json(PAIRS.to_json(), dataclasses.replace(CROSS, dimension=4))
    with pytest.raises(BundleError, match=r"2 ids, manifest\.max_length is 1"):
        Golden.from_json(PAIRS.to_json(), dataclasses.replace(CROSS, max_length=1))


def test_an_unknown_activation_is_refused():
    raw = dataclasses.replace(MANIFEST, activation="identity")
    assert Manifest.from_json(raw.to_json()) == raw
    with pytest.raises(BundleError, match=r"activation is one of sigmoid, identity, not 'tanh'"):
        Manifest.from_json(dataclasses.replace(MANIFEST, activation="tanh").to_json())
