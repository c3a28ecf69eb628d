"""The bundle: one ``.onnx`` file that holds the graph, the tokenizer, a manifest and golden texts.

It is an ordinary ONNX model. The ``metadata_props`` contain what ONNX Runtime does not need::

    embedkit.format       "1"
    embedkit.manifest     JSON, the fields of Manifest
    embedkit.tokenizer    tokenizer.json, or "zlib+base64:" and its compressed form
    embedkit.network      JSON, the fields of NetworkNames; if embedkit's kernel may run it
    embedkit.golden       JSON: texts, token_ids, vectors (base64 of little-endian float32), tolerance, digests;
                          of a cross-encoder: pairs, token_ids, token_type_ids, scores (as above), and the same
    embedkit.fingerprint  hex SHA-256 over all top-level fields of the file but this one

The fields of the file are in the order of their numbers, so the same parts produce the same bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import operator
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from embedkit.atomic import atomic_file
from embedkit.errors import BundleError, BundleIntegrityError, BundleVersionError, ModelNotFoundError
from embedkit.runtime.folder_layout import LFS_ADVICE, LFS_POINTER
from embedkit.runtime.manifest import Golden, Manifest
from embedkit.runtime.network import NETWORK_KEY
from embedkit.runtime.protobuf import Field, encode_bytes, read_fields, refuse_external_data

FORMAT = 1

_GRAPH, _METADATA = 7, 14  # fields of ModelProto
_KEY, _VALUE = 1, 2  # fields of StringStringEntryProto
_PREFIX = "embedkit."
_COMPRESSED = "zlib+base64:"
_NUMBER = operator.attrgetter("number")

LARGEST_FILE_BYTES = 2**31 - 1  # what protobuf, and so ONNX Runtime, can read
_LARGEST_TOKENIZER_BYTES = 128 * 2**20
_LARGEST_JSON_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read and found whole.

    Attributes:
        manifest: description of the model.
        tokenizer_json: content of its ``tokenizer.json``.
        golden: texts with the embeddings, or pairs with the scores, they had when the bundle was written.
        fingerprint: hex SHA-256 of the content.
        model: the file itself, what ONNX Runtime loads; the very bytes that were checked.
    """

    path: Path
    manifest: Manifest
    tokenizer_json: str = field(repr=False)
    golden: Golden = field(repr=False)
    fingerprint: str
    model: bytes = field(repr=False, compare=False)

    def size_by_part(self) -> dict[str, int]:
        """Bytes of the graph, of each of our metadata entries, and of the rest; in all, those of the file."""
        sizes = {"graph": 0, "tokenizer": 0, "golden": 0, "manifest": 0, "rest": 0}
        for part in read_fields(memoryview(self.model)):
            name = "graph" if part.number == _GRAPH else _key(part).removeprefix(_PREFIX)
            sizes[name if name in sizes else "rest"] += len(part.raw)
        return sizes


def write_bundle(
    path: str | os.PathLike[str],
    model: bytes,
    manifest: Manifest,
    tokenizer_json: str,
    golden: Golden,
) -> str:
    """Write a bundle atomically; the same parts produce the same bytes.

    Args:
        path: the file to write; an existing one is replaced.
        model: a serialized ONNX ``ModelProto`` without external data; its
            ``embedkit.network`` must describe it. Earlier ``embedkit.`` metadata is replaced, other metadata is
            kept.
        manifest: description of the model.
        tokenizer_json: content of a ``tokenizer.json``.
        golden: texts with their embeddings, or pairs with their scores, under this very graph.

    Returns:
        The fingerprint.

    Raises:
        BundleError: the parts do not form a valid bundle.
        StorageError: the file cannot be written.
    """
    fields = [part for part in read_fields(memoryview(model)) if not _is_ours(part)]
    fields += [
        _entry("format", str(FORMAT)),
        _entry("manifest", manifest.to_json()),
        _entry("tokenizer", _compress(_utf8(tokenizer_json, "tokenizer"))),
        _entry("golden", golden.to_json()),
    ]
    fingerprint = _fingerprint(sorted(fields, key=_NUMBER))
    fields.append(_entry("fingerprint", fingerprint))
    content = b"".join(part.raw for part in sorted(fields, key=_NUMBER))
    _parse(Path(path), content)
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)
    return fingerprint


def read_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Read a bundle and check it whole.

    Raises:
        ModelNotFoundError: there is no such file.
        BundleVersionError: it was written in a newer format.
        BundleIntegrityError: it is truncated, or was changed after it was written.
        BundleError: it is something else.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise BundleError(f"{path} is not a file; a bundle is one .onnx file")
        if size > LARGEST_FILE_BYTES:
            raise BundleError(f"{path} is {size:,} bytes; an ONNX file holds at most 2 GiB")
        content = path.read_bytes()
    except FileNotFoundError:
        raise ModelNotFoundError(f"no bundle at {path}") from None
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror or error}") from error
    return _parse(path, content)


def _parse(path: Path, content: bytes) -> Bundle:
    try:
        return _parse_fields(path, content)
    except BundleError as error:
        raise type(error)(f"{path}: {error}") from error.__cause__


def _parse_fields(path: Path, content: bytes) -> Bundle:
    fields = _read_model(content)
    entries = _read_entries(fields)
    _check_format(entries)
    fingerprint = _fingerprint(part for part in fields if _key(part) != _PREFIX + "fingerprint")
    if entries.get("fingerprint") != fingerprint:
        raise BundleIntegrityError(
            "the fingerprint does not match the content: the bundle was truncated or changed after it was "
            "written; copy or export it again"
        )
    missing = [key for key in ("manifest", "tokenizer", "golden") if key not in entries]
    if missing:
        raise BundleError(f"the bundle lacks {', '.join(_PREFIX + key for key in missing)}")
    refuse_external_data(content)
    manifest = Manifest.from_json(entries["manifest"])
    golden = Golden.from_json(entries["golden"], manifest)
    return Bundle(path, manifest, _decompress(entries["tokenizer"]), golden, fingerprint, content)


def _read_model(content: bytes) -> list[Field]:
    """Return the fields of a ModelProto; distinguishes a damaged one from a file of another kind."""
    if not content:
        raise BundleError("the file is empty")
    if content.startswith(LFS_POINTER):
        raise BundleError(LFS_ADVICE)
    if content[0] != 0x08:  # the tag of ir_version, field 1, with which every ONNX writer begins
        raise BundleError("this is not an ONNX file")
    try:
        return list(read_fields(memoryview(content)))
    except BundleIntegrityError as error:
        raise BundleIntegrityError(
            f"the file is truncated, damaged or not an ONNX file; copy or download it again ({error})"
        ) from error


def _read_entries(fields: list[Field]) -> dict[str, str]:
    """Our metadata, prefix removed."""
    if not any(part.number == _GRAPH for part in fields):
        raise BundleError("the file has no graph: it is truncated, or not an ONNX model")
    entries: dict[str, str] = {}
    for part in fields:
        key = _key(part)
        if not key.startswith(_PREFIX):
            continue
        name = key.removeprefix(_PREFIX)
        if name in entries:
            raise BundleIntegrityError(f"metadata {key} occurs twice")
        limit = _LARGEST_TOKENIZER_BYTES if name == "tokenizer" else _LARGEST_JSON_BYTES
        if len(part.raw) > limit:
            raise BundleError(f"metadata {key} is {len(part.raw):,} bytes, more than {limit:,}")
        try:
            entries[name] = _member(part, _VALUE).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BundleIntegrityError(f"metadata {key} is not UTF-8") from error
    return entries


def _check_format(entries: dict[str, str]) -> None:
    if "format" not in entries:
        raise BundleError(
            "this is an ONNX model but no embedkit bundle: it has no embedkit.format; "
            "make one with `embedkit export`, or download it again if it should have been one"
        )
    if not (entries["format"].isascii() and entries["format"].isdecimal()) or len(entries["format"]) > 9:
        raise BundleError(f"embedkit.format should be {FORMAT}, not {entries['format'][:40]!r}")
    if int(entries["format"]) > FORMAT:
        raise BundleVersionError(
            f"the bundle has format {entries['format']}, this embedkit reads format {FORMAT}: "
            "upgrade with `pip install --upgrade embedkit-onnx`"
        )
    if int(entries["format"]) < FORMAT:
        raise BundleError(f"unknown bundle format {entries['format']}")


def _entry(key: str, value: str) -> Field:
    content = encode_bytes(_KEY, (_PREFIX + key).encode()) + encode_bytes(_VALUE, _utf8(value, key))
    raw = memoryview(encode_bytes(_METADATA, content))
    return Field(_METADATA, raw[len(raw) - len(content) :], raw)


def _is_ours(part: Field) -> bool:
    """Whether a field is metadata that :func:`write_bundle` writes."""
    return _key(part).startswith(_PREFIX) and _key(part) != NETWORK_KEY


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BundleError(f"the {what} is not valid Unicode: {error}") from error


def _key(part: Field) -> str:
    """Key of a metadata entry, or nothing for any other field."""
    return _member(part, _KEY).decode("utf-8", errors="replace") if part.number == _METADATA else ""


def _member(entry: Field, number: int) -> bytes:
    """A string member of a metadata entry; as in protobuf the last one counts and a missing one is empty."""
    value = b""
    if isinstance(entry.value, memoryview):
        for part in read_fields(entry.value):
            if part.number == number and isinstance(part.value, memoryview):
                value = bytes(part.value)
    return value


def _fingerprint(fields: Iterable[Field]) -> str:
    digest = hashlib.sha256()
    for part in fields:
        digest.update(part.raw)
    return digest.hexdigest()


def _compress(content: bytes) -> str:
    """The tokenizer as it is stored: compressed where that makes it smaller."""
    packed = _COMPRESSED + base64.b64encode(zlib.compress(content, level=9)).decode("ascii")
    return packed if len(packed) < len(content) else content.decode("utf-8")


def _decompress(text: str) -> str:
    if not text.startswith(_COMPRESSED):
        return text
    try:
        packed = base64.b64decode(text.removeprefix(_COMPRESSED), validate=True)
        unpacker = zlib.decompressobj()
        unpacked = unpacker.decompress(packed, _LARGEST_TOKENIZER_BYTES)
        if not unpacker.eof:
            raise BundleError(f"the tokenizer is cut off, or larger than {_LARGEST_TOKENIZER_BYTES:,} bytes")
        return unpacked.decode("utf-8")
    except (binascii.Error, zlib.error, UnicodeDecodeError) as error:
        raise BundleIntegrityError(f"the tokenizer cannot be unpacked: {error}") from error
