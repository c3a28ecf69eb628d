"""Students: the encoder that a run starts from."""

from __future__ import annotations

from pathlib import Path

from embedkit.errors import ConfigError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import from_pretrained, from_teacher, random
from embedkit.modeling.sizes import SIZES
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.tokenization import Tokenizer
from embedkit.training.config import RunConfig

__all__ = ["build_student"]


def build_student(config: RunConfig) -> SentenceEncoder:
    """The encoder that training starts from, the same for the same configuration.

    Raises:
        ConfigError: nothing says which vocabulary the student has, or its start does not fit the source.
        ModelNotFoundError, ModelError: a model cannot be loaded.
    """
    student = config.student
    if student.source is not None:
        encoder = from_pretrained(
            config.resolve(student.source), max_length=student.max_length, pooling=student.pooling
        )
    else:
        encoder = _new(config, _vocabulary_source(config))
    return encoder


def _new(config: RunConfig, source: str) -> SentenceEncoder:
    student, size = config.student, SIZES[config.student.size]
    length, positions = student.max_length, student.positions
    if Path(source).suffix == ".onnx":
        if student.start == "teacher":
            raise ConfigError(
                f'a student can start from a torch model, not from {source}: set student.start = "random", '
                "or student.tokenizer to the model that the bundle was made from"
            )
        tokenizer = Tokenizer(read_bundle(source).tokenizer_json, length)
    else:
        teacher = SentenceEncoder.load(source)
        if student.start == "teacher":
            encoder = from_teacher(teacher, size, max_length=length, seed=config.seed, positions=positions)
            encoder.pooling = student.pooling
            return encoder
        tokenizer = teacher.tokenizer
    return random(
        tokenizer, size, max_length=length, seed=config.seed, positions=positions, pooling=student.pooling
    )


def _vocabulary_source(config: RunConfig) -> str:
    if config.student.tokenizer is not None:
        return config.resolve(config.student.tokenizer)
    for teacher in config.every_teacher:
        if not teacher.aligned:
            return config.resolve(teacher.source)
    raise ConfigError(
        "the student has no vocabulary: give student.source (a pre-trained model), or student.tokenizer (a model "
        "whose tokenizer it shares)"
    )
