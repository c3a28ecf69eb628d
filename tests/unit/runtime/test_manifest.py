"""Manifests and golden texts say which field is wrong."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from embedkit.errors import BundleError
from embedkit.runtime.manifest import Golden, Manifest

MANIFEST = Manifest(name="m", dimension=4, max_length=8)
GOLDEN = Golden(["a", "b"], [[1, 2], [1, 3]], np.arange(8, dtype=np.float32).reshape(2, 4), tolerance=0.01)


def changed(text: str, name: str, value: Any) -> str:
    return json.dumps({**json.loads(text), name: value})


def without(text: str, name: str) -> str:
    return json.dumps({key: value for key, value in json.loads(text).items() if key != name})


def test_a_manifest_survives_json() -> None:
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST


def test_golden_vectors_survive_json_bit_for_bit() -> None:
    values = np.random.default_rng(0).standard_normal((3, 5), dtype=np.float32)
    golden = Golden(["a", "", "ü"], [[1], [2], [3]], values, 0.5)
    read = Golden.from_json(golden.to_json())
    assert read.vectors.tobytes() == values.tobytes()
    assert (read.texts, read.token_ids, read.tolerance) == (golden.texts, golden.token_ids, 0.5)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Manifest)])
def test_a_missing_field_is_named(name: str) -> None:
    with pytest.raises(BundleError, match=f"manifest.{name} is missing"):
        Manifest.from_json(without(MANIFEST.to_json(), name))


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Manifest)])
def test_a_field_of_the_wrong_kind_is_named(name: str) -> None:
    with pytest.raises(BundleError, match=f"manifest.{name} should be"):
        Manifest.from_json(changed(MANIFEST.to_json(), name, None))


@pytest.mark.parametrize(
    ("name", "value", "where"),
    [
        ("kind", "cross-encoder", "manifest.kind"),
        ("dimension", 0, "manifest.dimension"),
        ("dimension", True, "manifest.dimension"),
        ("dimension", 4.0, "manifest.dimension"),
        ("max_length", 10**7, "manifest.max_length"),
        ("normalize", 1, "manifest.normalize"),
        ("prompts", {"query": 3}, "manifest.prompts.query"),
        ("corpus", ["wiki"], r"manifest.corpus\[0\]"),
        ("extra", 1, "manifest.extra is not known"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: Any, where: str) -> None:
    with pytest.raises(BundleError, match=where):
        Manifest.from_json(changed(MANIFEST.to_json(), name, value))


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "[" * 100_000])
def test_what_is_no_manifest_at_all_is_refused(text: str) -> None:
    with pytest.raises(BundleError, match=r"the manifest is not JSON|manifest should be an object"):
        Manifest.from_json(text)


@pytest.mark.parametrize(
    ("name", "value", "where"),
    [
        ("texts", [], "0 texts"),
        ("texts", ["a"], "1 texts and 2 rows"),
        ("texts", ["a", None], r"golden.texts\[1\]"),
        ("token_ids", [[1], 2], r"golden.token_ids\[1\]"),
        ("token_ids", [[1], [-1]], r"golden.token_ids\[1\]"),
        ("token_ids", [[True], [1]], r"golden.token_ids\[0\]"),
        ("vectors", "", "golden.vectors is 0 bytes"),
        ("vectors", "AAAA", "golden.vectors is 3 bytes"),
        ("vectors", "§", "golden.vectors is not base64"),
        ("vectors", "AADAfwAAwH8=", "not finite"),
        ("tolerance", 0, "golden.tolerance"),
        ("tolerance", float("inf"), "golden.tolerance"),
        ("tolerance", float("nan"), "golden.tolerance"),
        ("tolerance", "0.1", "golden.tolerance"),
    ],
)
def test_wrong_golden_texts_are_named(name: str, value: Any, where: str) -> None:
    with pytest.raises(BundleError, match=where):
        Golden.from_json(changed(GOLDEN.to_json(), name, value))


@pytest.mark.parametrize(
    ("manifest", "where"),
    [
        (dataclasses.replace(MANIFEST, dimension=5), "4 wide, manifest.dimension is 5"),
        (dataclasses.replace(MANIFEST, max_length=1), "2 ids, manifest.max_length is 1"),
    ],
)
def test_golden_texts_must_be_of_their_manifest(manifest: Manifest, where: str) -> None:
    GOLDEN.check_against(MANIFEST)
    with pytest.raises(BundleError, match=where):
        GOLDEN.check_against(manifest)
