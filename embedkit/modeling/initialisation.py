"""The sizes of students, and their initial weights: from a teacher, or random."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from transformers import BertConfig, BertModel

from embedkit.errors import ConfigError, ModelError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pooling import WordMemory
from embedkit.modeling.pretrained import evaluating, seeded
from embedkit.modeling.static import StaticConfig, StaticTable
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.modeling.vocabulary import real_words
from embedkit.protocols import FloatArray
from embedkit.runtime.tokenization import Tokenizer


@dataclass(frozen=True, slots=True)
class Size:
    """Shape of a BERT encoder: layers, width of a token's state and heads, a divisor of it.

    The width inside a layer's feed-forward block is ``intermediate_size``; None is 4H, as in every published BERT.
    """

    layers: int
    hidden: int
    heads: int
    intermediate_size: int | None = None

    @property
    def feed_forward(self) -> int:
        """Width inside a layer's feed-forward block."""
        return self.intermediate_size or 4 * self.hidden


SIZES = {
    "bert-tiny": Size(layers=2, hidden=128, heads=2),
    "bert-mini": Size(layers=4, hidden=256, heads=4),
    "bert-small": Size(layers=4, hidden=512, heads=8),
}
"""Sizes of a student: BERT-Tiny, BERT-Mini and BERT-Small."""


def nearest_size(hidden: int) -> str:
    """Return the name in :data:`SIZES` of the size whose width is nearest to ``hidden``, by ratio."""
    return min(SIZES, key=lambda name: abs(math.log(hidden / SIZES[name].hidden)))


Float64Array = npt.NDArray[np.float64]

_WORD_SCALE = 0.05  # root mean square of the word table, as in trained BERT models
_POSITION_SCALE = 0.1  # scale of the random position and type rows, which blur a bag of words
_BALLAST = np.array([1.0, -1.0]) / np.sqrt(2.0)
_SIF_CONSTANT = 1e-4
_WORDS_PER_BATCH = 512


def random(
    tokenizer: Tokenizer,
    size: Size,
    *,
    max_length: int,
    seed: int,
    positions: int | None = None,
    pooling: str = "mean",
) -> SentenceEncoder:
    """Create a BERT encoder with BERT's own random initialisation (normal, 0.02), deterministic in the seed.

    The position table has ``positions`` rows, by default ``max_length``. Torch's global generators are not
    changed.
    """
    config = BertConfig(
        vocab_size=tokenizer.vocabulary_size,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.feed_forward,
        max_position_embeddings=positions or max_length,
        pad_token_id=tokenizer.pad_id,
    )
    with seeded(seed):
        backbone = BertModel(config, add_pooling_layer=False)
    return SentenceEncoder(backbone, tokenizer.with_max_length(max_length), pooling=pooling)


def from_teacher(
    teacher: SentenceEncoder, size: Size, *, max_length: int, seed: int, positions: int | None = None
) -> SentenceEncoder:
    """Create a BERT encoder that starts as a projected bag of the teacher's words, instead of at random.

    The tokenizer and the word table come from the teacher; the transformer layers, and the scaled-down position
    and type rows, are those of :func:`random`. With BERT's initialisation, narrow layers hardly change their
    input, so the mean-pooled embedding starts as the mean of the word rows; wider and deeper encoders blur it
    more. Each row consists of

    * a direction in H - 2 dimensions: the teacher's embedding of the single word, normalised, reduced by PCA that
      was fitted on the real words (not special, not ``[unused]``), then rotated at random, so that all
      dimensions carry equal variance;
    * a weight by smooth inverse frequency, ``a / (a + p)``, as the length of that direction, with p estimated from
      the word's position in the vocabulary by Zipf's law (vocabularies list frequent words first). Special
      tokens have weight 0;
    * ballast in the last two dimensions, +b and -b, that gives all rows the same length. LayerNorm would
      otherwise stretch every word to the same length; the scale of the last LayerNorm is initialised to 0 in
      these two dimensions, so the ballast does not reach the embedding and the weights are preserved.

    Sources: Arora et al. 2017 (smooth inverse frequency); model2vec (words through a teacher, PCA, Zipf).

    Raises:
        ModelError: the teacher's vocabulary contains no real word.
    """
    words = real_words(teacher.tokenizer)
    if not words:
        raise ModelError(f"the vocabulary of {teacher.name} contains no real words")
    student = random(teacher.tokenizer, size, max_length=max_length, seed=seed, positions=positions)
    directions = _project(_embed_words(teacher, words), size.hidden - len(_BALLAST), seed)
    weights = _smooth_inverse_frequencies(len(words))[:, None]
    table = np.zeros((teacher.tokenizer.vocabulary_size, size.hidden))
    table[:, -2:] = _BALLAST
    table[words] = np.hstack([weights * directions, np.sqrt(1.0 - weights**2) * _BALLAST])
    _install(student, table * (_WORD_SCALE * np.sqrt(size.hidden)))
    return student


def remember_words(student: SentenceEncoder, teacher: SentenceEncoder | None, width: int, *, seed: int) -> None:
    """Give a student a word memory of so many columns, initialised with its teacher's embeddings of single words.

    A row holds the direction and the weight of a word, as in :func:`from_teacher`'s word table, without ballast.
    Special tokens, or all words if there is no teacher, start at zero.
    """
    memory = WordMemory(int(student.config.vocab_size), width)
    if teacher is not None:
        words = real_words(teacher.tokenizer)
        directions = _project(_embed_words(teacher, words), width, seed)
        rows = _smooth_inverse_frequencies(len(words))[:, None] * directions * (_WORD_SCALE * np.sqrt(width))
        with torch.no_grad():
            memory.rows.weight[torch.tensor(words)] = torch.from_numpy(rows).float()
    student.memory = memory


def static_words(teacher: SentenceEncoder, dimension: int) -> SentenceEncoder:
    """Create a static encoder from its teacher's words alone, without text and without training.

    An embedding is the mean of the words' vectors, which are those of :func:`from_teacher`: a direction reduced by
    PCA, and a weight by smooth inverse frequency. The teacher embeds each word twice in succession, so that
    special tokens have a smaller share in its pooling. If it takes the state of the first token, the mean of the
    word's own states is taken, which represents a single word better. Principal components are divided by the
    square roots of their standard deviations, because a few of them would dominate a mean. Special tokens and
    ``[unused]`` pieces have the vector 0, and none are added to a text. The tokenizer is the teacher's.

    Sources: Arora et al. 2017 (smooth inverse frequency); model2vec (words through a teacher, PCA, Zipf).

    Raises:
        ModelError: the teacher's vocabulary contains no real word.
        ConfigError: the dimension is not positive.
    """
    if dimension < 1:
        raise ConfigError(f"expected a dimension of at least 1, got {dimension}")
    words = real_words(teacher.tokenizer)
    if not words:
        raise ModelError(f"the vocabulary of {teacher.name} contains no real words")
    content = json.loads(teacher.tokenizer.json)
    content["post_processor"] = None
    tokenizer = Tokenizer(json.dumps(content, ensure_ascii=False), teacher.max_length)
    is_first = teacher.pooling == "cls" and teacher.head is None and teacher.memory is None
    if is_first:
        states = _word_states(teacher, words)
        embeddings: FloatArray = functional.normalize(states, dim=1).numpy(force=True)
    else:
        embeddings = _embed_words(teacher, words, times=2)
    directions = _project(embeddings, dimension, seed=0, flatten=0.5)
    table = StaticTable(StaticConfig(tokenizer.vocabulary_size, dimension))
    rows = torch.zeros(tokenizer.vocabulary_size, dimension)
    rows[words] = torch.from_numpy(_smooth_inverse_frequencies(len(words))[:, None] * directions).float()
    with torch.no_grad():
        table.get_input_embeddings().get_parameter("weight").copy_(rows)
    table.train(mode=False)
    return SentenceEncoder(table, tokenizer, name=f"{teacher.name}-static")


def _embed_words(teacher: SentenceEncoder, words: list[int], *, times: int = 1) -> FloatArray:
    """Return the teacher's embedding of each single word, in succession: ``(W, D) float32, unit rows``."""
    return TorchEncoder(teacher).encode_ids(_framed(teacher, words, times))


def _word_states(teacher: SentenceEncoder, words: Sequence[int]) -> Tensor:
    """Return the mean of the teacher's last states at each word, given twice in succession: ``(W, H) float32``."""
    rows = []
    with torch.inference_mode(), evaluating(teacher):
        for some in torch.tensor(_framed(teacher, words, 2), device=teacher.device).split(_WORDS_PER_BATCH):
            outputs: Any = teacher.backbone(input_ids=some, attention_mask=torch.ones_like(some))
            rows.append(outputs.last_hidden_state[:, 1:3].mean(dim=1))
    return torch.cat(rows)


def _framed(teacher: SentenceEncoder, words: Sequence[int], times: int) -> list[list[int]]:
    frame = teacher.tokenizer.tokenize([""]).ids[0]
    return [[*frame[:1], *[word] * times, *frame[1:]] for word in words]


def _project(embeddings: FloatArray, width: int, seed: int, *, flatten: float = 0.0) -> Float64Array:
    """Return directions ``(W, width) float64, unit rows``: leading principal components, rotated at random.

    Components are divided by their standard deviations to the power of ``flatten``; 1 would whiten them.
    """
    centred = embeddings.astype(np.float64) - embeddings.mean(axis=0, dtype=np.float64)
    scatter, components = np.linalg.eigh(centred.T @ centred)  # ascending
    leading = components[:, ::-1][:, :width]
    leading = leading * np.sign(leading[np.abs(leading).argmax(axis=0), np.arange(leading.shape[1])])
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((width, width)))
    spread = np.sqrt(scatter[::-1][:width].clip(min=1e-12 * scatter[-1]))
    projected = centred @ (leading / spread**flatten) @ rotation[: leading.shape[1]]
    unit: Float64Array = projected / np.linalg.norm(projected, axis=1, keepdims=True).clip(min=1e-12)
    return unit


def _smooth_inverse_frequencies(count: int) -> Float64Array:
    """Return weights ``(count,)`` in (0, 1], increasing from the most frequent word to the rarest."""
    shares = 1.0 / np.arange(2, count + 2)
    weights = _SIF_CONSTANT / (_SIF_CONSTANT + shares / shares.sum())
    relative: Float64Array = weights / weights[-1]
    return relative


def _install(student: SentenceEncoder, table: Float64Array) -> None:
    weight = student.backbone.get_parameter
    layers = int(student.backbone.config.num_hidden_layers)
    last = f"encoder.layer.{layers - 1}.output" if layers else "embeddings"
    with torch.no_grad():
        weight("embeddings.word_embeddings.weight").copy_(torch.from_numpy(table))
        weight("embeddings.position_embeddings.weight").mul_(_POSITION_SCALE)
        weight("embeddings.token_type_embeddings.weight").mul_(_POSITION_SCALE)
        weight(f"{last}.LayerNorm.weight")[-len(_BALLAST) :] = 0.0
