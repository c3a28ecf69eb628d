"""The manifest and the golden texts of a bundle, which describe and verify it; descriptions of gates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from embedkit.config import from_mapping, setting
from embedkit.errors import BundleError, ConfigError
from embedkit.protocols import FloatArray
from embedkit.runtime.options import Ranges, pack_floats, unpack_floats

ACTIVATIONS = ("sigmoid", "identity")
_DESCRIPTIVE = "info_"
_SHA256 = "[0-9a-f]{64}"
_Fields = TypeVar("_Fields")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Description and origin of a model.

    Attributes:
        kind: ``"encoder"``, or ``"cross-encoder"``, which scores pairs of texts.
        dimension: D, the width of an embedding; 1 for a cross-encoder.
        max_length: maximum length of a text, or pair of texts, in tokens, including special tokens.
        pooling: how token states are combined into an embedding, ``"mean"`` or ``"cls"``.
        normalize: whether the graph returns unit rows; False for a cross-encoder.
        prompts: prompt name -> text prepended to each text, e.g. ``{"query": "query: "}``.
        base: start of the student.
        method: the training method, e.g. ``"sct"``.
        teacher: ``{"name": ..., "fingerprint": ...}``, or empty; with ``"whitening_power"`` if the embeddings
            were whitened at export, and so have a space of their own.
        corpus: one ``{"name", "rows", "sha256", "licence"}`` for each corpus.
        config: the resolved configuration of the training.
        metrics: task -> figures.
        gates: gate -> measurements and limits of the export.
        precision: of the weights, e.g. ``"fp32"`` or ``"int8"``.
        target: the processor it was made for, e.g. ``"cpu-avx2"``.
        licence: of the weights, an SPDX expression.
        created_by: the program and version that wrote it.
        ranges: ranges of the dimensions, for embeddings of a byte per dimension, as written by
            :class:`~embedkit.runtime.options.Ranges`; empty, and not in the file, if they were not
            measured.
        default_prompt: name of the prompt that is used by default; empty, and not in the file, if
            there is none.
        activation: a cross-encoder's activation, ``"identity"`` if its scores are logits; empty, and not
            in the file, for the sigmoid.
    """

    name: str
    dimension: int = setting(minimum=1, maximum=1_000_000)
    max_length: int = setting(minimum=1, maximum=1_000_000)
    kind: Literal["encoder", "cross-encoder"] = "encoder"
    pooling: str = "mean"
    normalize: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    base: str = ""
    method: str = ""
    teacher: Mapping[str, Any] = field(default_factory=dict)
    corpus: list[Mapping[str, Any]] = field(default_factory=list)
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    gates: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "fp32"
    target: str = ""
    licence: str = ""
    created_by: str = ""
    ranges: str = setting("", optional=True)
    default_prompt: str = setting("", optional=True)
    activation: str = setting("", choices=("", *ACTIVATIONS), optional=True)

    def to_json(self) -> str:
        """The manifest as canonical JSON: all fields but optional ones that are empty, keys sorted, no spaces.

        Raises:
            BundleError: a field holds a value that is not JSON, such as NaN.
        """
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        for item in fields(self):  # a bundle without them stays readable by earlier versions
            if item.metadata.get("optional") and not values[item.name]:
                del values[item.name]
        return _dump(values, "manifest")

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read what :meth:`to_json` wrote.

        Raises:
            BundleError: a field is missing, unknown or of the wrong kind; names it.
        """
        manifest = _load(cls, text, "manifest")
        if manifest.default_prompt and manifest.default_prompt not in manifest.prompts:
            raise BundleError(
                f"manifest.default_prompt is {manifest.default_prompt!r}, which is not among the prompts"
            )
        if manifest.ranges:
            Ranges.from_text(manifest.ranges, manifest.dimension)
        return manifest


@dataclass(frozen=True, eq=False)
class Golden:
    """Texts, or pairs of texts, with the tokens and results they had when the bundle was written.

    Attributes:
        texts: G texts of an encoder, or pairs of a cross-encoder, at least one.
        token_ids: their ids, including special tokens.
        values: the output of the graph: embeddings ``(G, D) float32``, or scores ``(G,) float32``.
        tolerance: largest allowed absolute difference on another machine.
        type_ids: of pairs, token types in lists as long as ``token_ids``; None for texts.
        digests: numerics -> :func:`~embedkit.runtime.numerics.digest_of` the values, for each arithmetic that
            computes the same bits on every machine.
    """

    texts: list[Any]
    token_ids: list[list[int]]
    values: FloatArray
    tolerance: float
    type_ids: list[list[int]] | None = None
    digests: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The golden texts or pairs as canonical JSON."""
        values: dict[str, Any] = {"token_ids": _plain(self.token_ids), "tolerance": float(self.tolerance)}
        if self.digests:  # a bundle without any stays readable by earlier versions
            values["digests"] = dict(self.digests)
        if self.type_ids is None:
            values |= {"texts": self.texts, "vectors": pack_floats(self.values)}
        else:
            values |= {"pairs": [list(pair) for pair in self.texts], "scores": pack_floats(self.values)}
            values["token_type_ids"] = _plain(self.type_ids)
        return _dump(values, "golden")

    @classmethod
    def from_json(cls, text: str, manifest: Manifest) -> Golden:
        """Read what :meth:`to_json` wrote for the model that a manifest describes.

        Raises:
            BundleError: a field is missing, unknown or of the wrong kind, or does not fit the others or the
                manifest; names it.
        """
        if manifest.kind == "encoder":
            golden = _read_texts(_load(_StoredTexts, text, "golden"), manifest.dimension)
        else:
            golden = _read_pairs(_load(_StoredPairs, text, "golden"), manifest.dimension)
        longest = max(map(len, golden.token_ids))
        if longest > manifest.max_length:
            raise BundleError(
                f"golden.token_ids holds {longest} ids, manifest.max_length is {manifest.max_length}"
            )
        return golden


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """The common JSON of golden texts and pairs."""

    token_ids: list[list[int]]
    tolerance: float = setting(above=0)
    digests: dict[str, str] = setting(factory=dict, pattern=_SHA256, optional=True)


@dataclass(frozen=True, kw_only=True)
class _StoredTexts(_Stored):
    texts: list[str]
    vectors: str


@dataclass(frozen=True, kw_only=True)
class _StoredPairs(_Stored):
    pairs: list[list[str]]
    token_type_ids: list[list[int]]
    scores: str


def _read_texts(stored: _StoredTexts, dimension: int) -> Golden:
    if not stored.texts or len(stored.texts) != len(stored.token_ids):
        raise BundleError(f"golden holds {len(stored.texts)} texts and {len(stored.token_ids)} rows of token_ids")
    _check_ids(stored.token_ids, "golden.token_ids")
    vectors = unpack_floats(stored.vectors, len(stored.texts), "golden.vectors")
    if vectors.shape[1] != dimension:
        raise BundleError(f"golden.vectors are {vectors.shape[1]} wide, manifest.dimension is {dimension}")
    return Golden(stored.texts, stored.token_ids, vectors, stored.tolerance, digests=stored.digests)


def _read_pairs(stored: _StoredPairs, dimension: int) -> Golden:
    pairs, token_ids, type_ids = stored.pairs, stored.token_ids, stored.token_type_ids
    for position, pair in enumerate(pairs):
        if len(pair) != 2:
            raise BundleError(f"golden.pairs[{position}] should be a list of two strings")
    if not pairs or not len(pairs) == len(token_ids) == len(type_ids):
        raise BundleError(
            f"golden holds {len(pairs)} pairs, {len(token_ids)} rows of token_ids and {len(type_ids)} of "
            "token_type_ids"
        )
    _check_ids(token_ids, "golden.token_ids")
    _check_ids(type_ids, "golden.token_type_ids")
    if list(map(len, token_ids)) != list(map(len, type_ids)):
        raise BundleError("golden.token_ids and golden.token_type_ids differ in the length of a row")
    scores = unpack_floats(stored.scores, len(pairs), "golden.scores")
    if scores.shape[1] != 1:
        raise BundleError(f"golden.scores holds {scores.size} scores for {len(pairs)} pairs")
    if dimension != 1:
        raise BundleError(f"manifest.dimension of a cross-encoder should be 1, not {dimension}")
    both = [(first, second) for first, second in pairs]
    return Golden(both, token_ids, scores[:, 0], stored.tolerance, type_ids, stored.digests)


def _dump(values: Mapping[str, Any], what: str) -> str:
    try:
        return json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BundleError(f"the {what} cannot be written as JSON: {error}") from error


def _load(cls: type[_Fields], text: str, what: str) -> _Fields:
    """Parse an object that must hold the fields of ``cls``, may lack optional ones, and has no others.

    Members whose names begin with ``info_`` are ignored: a later version may describe more in them, but nothing
    that changes a result.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"the {what} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise BundleError(f"{what} should be an object, not {values!r:.60}")
    known = {name: value for name, value in values.items() if not name.startswith(_DESCRIPTIVE)}
    try:
        return from_mapping(cls, known, prefix=f"{what}.", written=True)
    except ConfigError as error:
        raise BundleError(str(error)) from error


def _check_ids(rows: list[list[int]], where: str) -> None:
    for position, row in enumerate(rows):
        if row and not 0 <= min(row) <= max(row) < 2**31:
            raise BundleError(f"{where}[{position}] should hold whole numbers from 0 to 2147483647")


def _plain(rows: list[list[int]]) -> list[list[int]]:
    """Rows of numpy's integers as JSON takes them."""
    return [[int(number) for number in row] for row in rows]
