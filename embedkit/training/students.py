"""Students: the initial encoder or cross-encoder of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from embedkit.errors import ConfigError, InputError, ModelError
from embedkit.modeling.bundles import cross_from_bundle, from_bundle, load_sentence_encoder
from embedkit.modeling.cross_encoder import PairEncoder, is_cross_encoder, matching_encoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import SIZES, Size, from_teacher, random, remember_words
from embedkit.modeling.pruning import (
    choose_pieces,
    count_pieces,
    piece_probabilities,
    prune_model,
    prune_tokenizer,
    required_pieces,
    smooth_counts,
)
from embedkit.modeling.teacher_layers import from_layers
from embedkit.runtime.bundle import LARGEST_FILE_BYTES, read_bundle
from embedkit.runtime.find import find_bundle, find_folder
from embedkit.runtime.tokenization import Tokenizer
from embedkit.training import processes
from embedkit.training.config import RunConfig, StudentConfig
from embedkit.training.corpus import Corpus, in_chunks
from embedkit.training.optim import word_tables

logger = logging.getLogger(__name__)

_SAMPLE = 1000


def find_start(config: RunConfig) -> None:
    """Find the model that the student starts from, or whose words it takes; one on the hub is fetched.

    Raises:
        ConfigError: the student's shape is not possible, or its vocabulary is undefined.
        ModelNotFoundError: there is no such model.
    """
    source = config.student.source
    if source is None:
        _shape(config.student)
    name = _vocabulary_source(config) if source is None else config.resolve_model(source)
    if find_bundle(name) is None:
        find_folder(name)


def kept_teacher(config: RunConfig) -> dict[str, Any] | None:
    """Return the teacher of the bundle that a run starts from, if an anchor keeps the student in its space."""
    if config.student.source is None or not getattr(config.settings, "anchor", 0):
        return None
    bundle = find_bundle(config.resolve_model(config.student.source))
    return None if bundle is None else dict(read_bundle(bundle).manifest.teacher) or None


def build_student(config: RunConfig) -> SentenceEncoder:
    """Build the initial encoder of a run, deterministically from the configuration.

    The corpus, which is prepared if necessary, determines the pieces of a limited vocabulary; a sample of it fits
    a student cut from its teacher's layers.

    Raises:
        ConfigError: the student's vocabulary is undefined or too small, or its start does not fit the source.
        DataError: the corpus cannot be read.
        ModelNotFoundError, ModelError: a model cannot be loaded, or the student cannot be saved or is larger than
            its teacher.
    """
    student = config.student
    if student.source is not None:
        source = config.resolve_model(student.source)
        encoder = load_sentence_encoder(source, max_length=student.max_length, pooling=student.pooling)
        if encoder.pooling != student.pooling:
            logger.warning(
                "%s is a bundle, which keeps its pooling, %s; student.pooling = %s has no effect",
                *(student.source, encoder.pooling, student.pooling),
            )
        if student.vocabulary_size is not None:
            encoder = prune_model(encoder, _wanted_pieces(config, encoder.tokenizer, student.vocabulary_size))
    else:
        encoder = _new(config, _vocabulary_source(config))
    encoder.require_writable()
    adjust(encoder, student)
    return encoder


def load_cross_encoder(
    config: RunConfig, *, max_length: int, mean: float = 0.0, spread: float = 1.0
) -> PairEncoder:
    """Load the cross-encoder that ``student.source`` names, or make one of an encoder.

    A bundle's encoder gets a layer that matches words (:mod:`~embedkit.modeling.cross_encoder`); a folder's gets a
    classifier only. A cross-encoder, of a bundle or a folder, is continued. ``mean`` and ``spread`` are those
    expected of the logits of a bundle's encoder. ``max_length`` is that of a pair, in tokens.

    Raises:
        ModelNotFoundError, ModelError, BundleError: the model cannot be loaded.
    """
    source = config.resolve_model(str(config.student.source))
    path = find_bundle(source)
    bundle = None if path is None else read_bundle(path)
    if bundle is not None and bundle.manifest.kind == "cross-encoder":
        model = cross_from_bundle(bundle, max_length=max_length)
    elif bundle is not None:
        encoder = from_bundle(bundle)
        model = matching_encoder(encoder, mean=mean, spread=spread, max_length=max_length, seed=config.seed)
    elif is_cross_encoder(find_folder(source)):
        model = PairEncoder.load(source, max_length=max_length)
    else:
        model = PairEncoder.start(source, max_length=max_length, seed=config.seed)
    adjust(model, config.student)
    return model


def adjust(model: SentenceEncoder | PairEncoder, student: StudentConfig) -> None:
    """Set a student's dropout and freeze its words, if asked for."""
    if student.dropout is not None:
        _set_dropout(model, student.dropout)
    if student.freeze_words:
        for table in word_tables(model):
            table.weight.requires_grad_(False)


def _new(config: RunConfig, source: str) -> SentenceEncoder:
    student, size = config.student, _shape(config.student)
    teacher = None if student.start == "random" else load_sentence_encoder(source, **_permission(config, source))
    tokenizer = _tokenizer(config, source, student.max_length) if teacher is None else teacher.tokenizer
    if student.vocabulary_size is not None:  # before anything is computed for pieces that the student lacks
        kept = _wanted_pieces(config, tokenizer, student.vocabulary_size)
        tokenizer = prune_tokenizer(tokenizer, kept)
        teacher = None if teacher is None else prune_model(teacher, kept)
    lengths: dict[str, Any] = {
        "max_length": student.max_length,
        "positions": student.positions,
        "seed": config.seed,
    }
    if teacher is None:
        encoder = random(tokenizer, size, **lengths)
    elif student.start == "teacher":
        encoder = from_teacher(teacher, size, **lengths)
    else:
        layers = student.teacher_layers or None
        encoder = from_layers(teacher, size, _sample(config), layers=layers, **lengths)
    encoder.pooling = student.pooling
    if student.bag_of_words is not None:
        remember_words(encoder, teacher, student.bag_of_words, seed=config.seed)
    return encoder


def _permission(config: RunConfig, source: str) -> dict[str, bool]:
    """Return the permission to run a teacher's code, if it was given for that source."""
    trusted = [teacher.source for teacher in config.every_teacher if teacher.trust_remote_code]
    return {"trust_remote_code": True} if source in map(config.resolve_model, trusted) else {}


def _tokenizer(config: RunConfig, source: str, max_length: int) -> Tokenizer:
    if source.endswith(".onnx"):
        return Tokenizer(read_bundle(source).tokenizer_json, max_length)
    return load_sentence_encoder(source, **_permission(config, source)).tokenizer


def _shape(student: StudentConfig) -> Size:
    """Return the size's shape with the configuration's overrides."""
    size = SIZES[student.size]
    hidden = student.hidden or size.hidden
    heads = student.heads or max(1, hidden * size.heads // size.hidden)
    if hidden % heads:
        raise ConfigError(f"hidden = {hidden} is not divisible by heads = {heads}")
    layers = size.layers if student.layers is None else student.layers
    shape = Size(layers, hidden, heads, student.intermediate_size)
    parameters = layers * hidden * (4 * hidden + 2 * shape.feed_forward)
    if parameters > LARGEST_FILE_BYTES:  # in int8
        raise ConfigError(
            f"{layers:,} layers of hidden = {hidden:,} and intermediate_size = {shape.feed_forward:,} have "
            f"{parameters:,} parameters, more than any bundle holds; an ONNX file has at most 2 GiB"
        )
    return shape


def _wanted_pieces(config: RunConfig, tokenizer: Tokenizer, size: int) -> list[int]:
    """Return the ids of the pieces that the corpus, and the tokenizer's own text, need, ascending."""
    share = config.student.vocabulary_smoothing
    try:  # before the corpus is read
        required_pieces(tokenizer, size)
    except InputError as error:
        raise ConfigError(f"student.vocabulary_size: {error}") from error
    try:
        prior = piece_probabilities(tokenizer) if share else None
    except ModelError as error:
        raise ConfigError(f"student.vocabulary_smoothing: {error}") from error
    corpus = _corpus(config)
    texts = (
        corpus.texts(rows, view) for view in range(corpus.views) for rows in in_chunks(np.arange(len(corpus)))
    )
    counts = count_pieces(tokenizer.with_max_length(config.student.max_length), texts)
    weights = counts if prior is None else smooth_counts(counts, prior, share)
    kept = choose_pieces(tokenizer, weights, size)
    logger.info(
        "vocabulary: %s pieces of %s, which are %.2f %% of the tokens in the corpus",
        *(f"{len(kept):,}", f"{tokenizer.vocabulary_size:,}", 100 * counts[kept].sum() / max(1, counts.sum())),
    )
    return kept


def _corpus(config: RunConfig) -> Corpus:
    with processes.first_alone():
        sources, cache = config.sources, Path(config.cache)
        return Corpus.find(sources, cache) or Corpus.prepare(sources, cache)  # a run has reported its counts


def _sample(config: RunConfig) -> list[str]:
    """Return a sample of the corpus that does not depend on the seed."""
    corpus = _corpus(config)
    return corpus.texts(np.sort(np.random.default_rng(0).permutation(len(corpus))[:_SAMPLE]))


def _set_dropout(model: SentenceEncoder | PairEncoder, share: float) -> None:
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        if hasattr(model.config, name):
            setattr(model.config, name, share)
    parts: Iterable[Any] = model.modules()
    for module in parts:
        if isinstance(module, nn.Dropout):
            module.p = share
        if hasattr(module, "dropout_prob"):  # read by fused attention in some versions of transformers
            module.dropout_prob = share


def _vocabulary_source(config: RunConfig) -> str:
    if config.student.tokenizer is not None:
        return config.resolve_model(config.student.tokenizer)
    for teacher in config.every_teacher:
        if not teacher.aligned:
            return config.resolve_model(teacher.source)
    raise ConfigError(
        "the student has no vocabulary: set student.source (a pre-trained model) or student.tokenizer (a model "
        "whose tokenizer it shares)"
    )
