"""A bundle is read completely or rejected, quickly and with one kind of error."""

from __future__ import annotations

import base64
import dataclasses
import json
import random
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedkit.errors import (
    BundleError,
    BundleIntegrityError,
    BundleVersionError,
    ModelError,
    ModelNotFoundError,
    StorageError,
)
from embedkit.runtime import bundle as bundle_module
from embedkit.runtime.bundle import read_bundle, write_bundle
from embedkit.runtime.encoder import Encoder


@pytest.fixture
def parts(toy_bundle, toy_model_bytes):
    """Return arguments of write_bundle."""
    read = read_bundle(toy_bundle)
    return toy_model_bytes, read.manifest, read.tokenizer_json, read.golden


@pytest.fixture
def rewrite(toy_bundle, tmp_path):
    """Change a bundle with the onnx package; the fingerprint is not updated."""

    def apply(change):
        model = onnx.load_model(toy_bundle)
        change(model)
        (tmp_path / "changed.onnx").write_bytes(model.SerializeToString())
        return tmp_path / "changed.onnx"

    return apply


def entry(model, name):
    (found,) = (item for item in model.metadata_props if item.key == f"embedkit.{name}")
    return found


def sealed(path):
    """Give a changed bundle the fingerprint of its new content, as its author could."""
    fields = bundle_module._read_model(path.read_bytes())
    ours = [part for part in fields if bundle_module._key(part) != "embedkit.fingerprint"]
    ours.append(bundle_module._entry("fingerprint", bundle_module._fingerprint(ours)))
    path.write_bytes(b"".join(part.raw for part in ours))
    return path


def test_written_values_are_read_back(tmp_path, parts):
    model, manifest, tokenizer, golden = parts
    manifest = dataclasses.replace(
        manifest,
        prompts={"query": "query: "},
        corpus=[{"name": "ä", "rows": 3, "sha256": "0" * 64, "licence": "CC0-1.0"}],
        metrics={"sts": {"spearman": 0.5}},
    )
    fingerprint = write_bundle(tmp_path / "b.onnx", model, manifest, tokenizer, golden)
    read = read_bundle(tmp_path / "b.onnx")
    assert read.manifest == manifest
    assert read.tokenizer_json == tokenizer
    assert read.golden.texts == golden.texts
    assert read.golden.token_ids == golden.token_ids
    assert read.golden.tolerance == golden.tolerance
    np.testing.assert_array_equal(read.golden.values, golden.values)
    assert read.fingerprint == fingerprint
    assert len(fingerprint) == 64
    assert read.model == (tmp_path / "b.onnx").read_bytes()


def test_same_parts_give_same_bytes(tmp_path, parts):
    write_bundle(tmp_path / "a.onnx", *parts)
    write_bundle(tmp_path / "b.onnx", *parts)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_rewriting_a_bundle_replaces_embedkits_metadata_and_keeps_the_rest(tmp_path, parts):
    model = onnx.load_model_from_string(parts[0])
    model.metadata_props.add(key="author", value="someone")
    write_bundle(tmp_path / "a.onnx", model.SerializeToString(), *parts[1:])
    write_bundle(tmp_path / "b.onnx", (tmp_path / "a.onnx").read_bytes(), *parts[1:])
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert onnx.load_model(tmp_path / "b.onnx").metadata_props[0].value == "someone"


def test_a_bundle_saved_by_onnx_is_still_intact(toy_bundle, rewrite):
    assert rewrite(lambda model: None).read_bytes() == toy_bundle.read_bytes()


def test_onnx_runtime_alone_finds_everything(toy_bundle):
    session = onnxruntime.InferenceSession(toy_bundle, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata["embedkit.format"] == "1"
    assert json.loads(metadata["embedkit.manifest"])["dimension"] == 16
    tokenizer = zlib.decompress(base64.b64decode(metadata["embedkit.tokenizer"].removeprefix("zlib+base64:")))
    assert json.loads(tokenizer)["model"]["type"] == "WordPiece"


def test_every_truncation_is_a_bundle_error(toy_bundle, tmp_path):
    content = toy_bundle.read_bytes()
    cuts = {*range(200), *range(0, len(content), 487), *range(len(content) - 300, len(content))}
    for cut in cuts:
        with pytest.raises(BundleError):
            bundle_module._parse(tmp_path / "cut.onnx", content[:cut])


def test_every_flipped_bit_is_a_bundle_error(toy_bundle, tmp_path):
    content = toy_bundle.read_bytes()
    chance = random.Random(0)
    for _ in range(400):
        damaged = bytearray(content)
        position = chance.randrange(len(content))
        damaged[position] ^= 1 << chance.randrange(8)
        with pytest.raises(BundleError):
            bundle_module._parse(tmp_path / "flipped.onnx", bytes(damaged))


@settings(max_examples=200)
@given(st.sampled_from([b"", b"\x08\x08"]), st.binary(max_size=300))
def test_noise_is_a_bundle_error(start, noise):
    with pytest.raises(BundleError):
        bundle_module._parse(Path("noise.onnx"), start + noise)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(500), "not an ONNX file"),
        (b"\x08\x08", "no graph"),
        (b"\x08\x08\x3a" + b"\x80\xe4\x97\xd0\x12" + b"x" * 90, "declares 5,000,000,000 bytes"),
        (b"\x08\x08\x3a" + b"\xff" * 20, "does not end"),
        (b"\x08\x08\x3b", "wire type 3"),
    ],
)
def test_other_files_are_refused_with_the_reason(tmp_path, content, words):
    (tmp_path / "other.onnx").write_bytes(content)
    with pytest.raises(BundleError, match=words) as caught:
        read_bundle(tmp_path / "other.onnx")
    assert "other.onnx" in str(caught.value)


def test_a_plain_onnx_model_is_refused(tmp_path, toy_model_bytes):
    (tmp_path / "plain.onnx").write_bytes(toy_model_bytes)
    with pytest.raises(BundleError, match="no embedkit bundle"):
        read_bundle(tmp_path / "plain.onnx")


def test_a_missing_file_and_a_folder_are_distinguished(tmp_path):
    with pytest.raises(ModelNotFoundError, match="no bundle at"):
        read_bundle(tmp_path / "none.onnx")
    with pytest.raises(BundleError, match="not a file"):
        read_bundle(tmp_path)


def test_a_file_larger_than_protobuf_allows_is_refused_unread(tmp_path):
    with (tmp_path / "huge.onnx").open("wb") as file:
        file.truncate(2**40)  # sparse, and too large to be read
    with pytest.raises(BundleError, match="at most 2 GiB"):
        read_bundle(tmp_path / "huge.onnx")


def put(name, value):
    """Return an edit that gives metadata another value."""
    return lambda model: setattr(entry(model, name), "value", value)


def garble(name):
    """Return an edit of one letter of metadata."""

    def edit(model):
        value = entry(model, name).value
        entry(model, name).value = value[:-9] + ("a" if value[-9] != "a" else "b") + value[-8:]

    return edit


def flip_a_weight(model):
    weights = model.graph.initializer[0]
    weights.raw_data = weights.raw_data[:-1] + bytes([weights.raw_data[-1] ^ 1])


def number_a_golden_token_beyond_31_bits(model):
    stored = entry(model, "golden")
    values = json.loads(stored.value)
    values["token_ids"][0][0] = 2**31
    stored.value = json.dumps(values)


PARTS = ["manifest", "tokenizer", "golden"]
FORMATS = ["", "one", "0", "-1", "1.5", "\u00b2", "9" * 400]
EDITS = [  # edit, error, its words
    (put("format", "2"), BundleVersionError, "pip install --upgrade embedkit-onnx"),
    *((put("format", value), BundleError, "format") for value in FORMATS),
    *((garble(name), BundleIntegrityError, "fingerprint") for name in [*PARTS, "fingerprint"]),
    (flip_a_weight, BundleIntegrityError, "fingerprint"),
    (lambda model: model.metadata_props.add(key="embedkit.manifest", value="{}"), BundleIntegrityError, "twice"),
]
SEALED_EDITS = [
    *(
        (lambda model, name=name: model.metadata_props.remove(entry(model, name)), f"lacks embedkit.{name}")
        for name in PARTS
    ),
    *((put("tokenizer", f"zlib+base64:{value}"), "tokenizer") for value in ("@@", "aGVsbG8=", "")),
    (number_a_golden_token_beyond_31_bits, "whole numbers from 0 to 2147483647"),
]


@pytest.mark.parametrize(("edit", "error", "words"), EDITS)
def test_an_edited_bundle_is_refused(rewrite, edit, error, words):
    with pytest.raises(error, match=words):
        read_bundle(rewrite(edit))


@pytest.mark.parametrize(("edit", "words"), SEALED_EDITS)
def test_a_bundle_of_wrong_parts_is_refused(rewrite, edit, words):
    with pytest.raises(BundleError, match=words):
        read_bundle(sealed(rewrite(edit)))


def test_a_tokenizer_that_unpacks_beyond_bounds_is_refused(rewrite, monkeypatch):
    monkeypatch.setattr(bundle_module, "_LARGEST_TOKENIZER_BYTES", 50_000)
    bomb = base64.b64encode(zlib.compress(bytes(10_000_000))).decode()
    with pytest.raises(BundleError, match="larger than 50,000 bytes"):
        read_bundle(sealed(rewrite(put("tokenizer", "zlib+base64:" + bomb))))


def test_external_data_is_refused_at_any_place(tmp_path, parts):
    model = onnx.load_model_from_string(parts[0])
    tensor = onnx.numpy_helper.from_array(np.zeros(4, dtype=np.float32), "hidden")
    onnx.external_data_helper.set_external_data(tensor, "/etc/passwd")
    inner = onnx.helper.make_graph([onnx.helper.make_node("Constant", [], ["x"], value=tensor)], "inner", [], [])
    model.graph.node.append(onnx.helper.make_node("If", ["flag"], ["y"], then_branch=inner, else_branch=inner))
    with pytest.raises(BundleError, match="external data"):
        write_bundle(tmp_path / "b.onnx", model.SerializeToString(), *parts[1:])
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_when_a_part_is_wrong(tmp_path, parts):
    model, manifest, tokenizer, golden = parts
    wrong = [
        (b"", manifest, tokenizer, golden),
        (model[:1000], manifest, tokenizer, golden),
        (model, dataclasses.replace(manifest, dimension=8), tokenizer, golden),
        (model, dataclasses.replace(manifest, metrics={"sts": float("nan")}), tokenizer, golden),
        (model, manifest, "\ud800", golden),
        (model, manifest, tokenizer, dataclasses.replace(golden, tolerance=0.0)),
    ]
    for given_parts in wrong:
        with pytest.raises(BundleError):
            write_bundle(tmp_path / "b.onnx", *given_parts)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_bundle(tmp_path, parts, monkeypatch):
    path = tmp_path / "b.onnx"
    path.write_bytes(b"old")

    def full(self, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="No space left"):
        write_bundle(path, *parts)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def rewrite_tokenizer(change):
    """Change the files of a bundle's tokenizer."""

    def apply(model):
        stored = entry(model, "tokenizer")
        values = json.loads(bundle_module._decompress(stored.value))
        change(values)
        stored.value = json.dumps(values)

    return apply


def lose_the_unknown_token(values):
    del values["model"]["vocab"]["[UNK]"]
    values["added_tokens"] = [token for token in values["added_tokens"] if token["content"] != "[UNK]"]


def number_a_word_beyond_32_bits(values):
    values["model"]["vocab"]["a"] = 2**31


def name_a_token_that_is_not_there(values):
    values["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[NONE]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {},
    }


@pytest.mark.parametrize(
    "change", [lose_the_unknown_token, number_a_word_beyond_32_bits, name_a_token_that_is_not_there]
)
def test_a_tokenizer_that_contradicts_itself_is_an_embedkit_error(rewrite, change):
    path = sealed(rewrite(rewrite_tokenizer(change)))
    with pytest.raises(ModelError):
        Encoder.load(path).encode(["a", "an \ua66e"])


def test_a_file_of_empty_fields_takes_no_memory(tmp_path):
    path = tmp_path / "empty.onnx"
    path.write_bytes(b"\x08\x07" + b"\x3a\x00" * 2_000_000)
    tracemalloc.start()
    with pytest.raises(BundleIntegrityError, match="more than 100,000 fields"):
        read_bundle(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000_000
