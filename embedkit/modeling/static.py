"""Static models: a table of word vectors, whose mean over a text is its embedding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from embedkit.errors import ModelError
from embedkit.modeling.pretrained import load_weights
from embedkit.modeling.vocabulary import unknown_id
from embedkit.runtime.folder_layout import Layout
from embedkit.runtime.tokenization import Tokenizer

STATIC = "static"
"""The model type of :class:`StaticTable`."""

_NAMES = ("embedding.weight", "embeddings")  # of sentence-transformers, of model2vec


class StaticConfig(PretrainedConfig):
    """Sizes of a table: ``vocab_size`` rows of ``hidden_size`` values."""

    model_type = STATIC

    def __init__(self, vocab_size: int = 1, hidden_size: int = 1, **settings: Any) -> None:
        super().__init__(**settings)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = 0


class StaticTable(PreTrainedModel):
    """A backbone without layers: the state of a token is its row."""

    config_class = StaticConfig

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        self.words: nn.Module = nn.Embedding(config.vocab_size, config.hidden_size)

    def get_input_embeddings(self) -> nn.Module:
        """Return the table."""
        return self.words

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the table."""
        self.words = value

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> BaseModelOutput:  # noqa: ARG002
        """Return the rows of tokens, ``(B, L) int64`` twice ``-> (B, L, H)``, as ``last_hidden_state``."""
        return BaseModelOutput(last_hidden_state=self.words(input_ids))


def load_static(layout: Layout, tokenizer: Tokenizer) -> StaticTable:
    """Load the table of a folder, with one row for each id of the tokenizer.

    model2vec multiplies rows by ``weights``, shares rows by ``mapping``, and leaves unknown words out of a mean.
    Here their row is 0 instead, which has the same effect on the direction of an embedding.

    Raises:
        ModelError: the weights are missing, or do not fit each other or the tokenizer.
    """
    folder = layout.backbone
    weights = load_weights(folder, "table of words")
    rows = next((weights[name] for name in _NAMES if name in weights), None)
    if rows is None or rows.ndim != 2:
        raise ModelError(f"{folder} has no table of words; expected a matrix named {' or '.join(_NAMES)}")
    rows = rows.float()
    try:
        rows = rows[weights["mapping"].long()] if "mapping" in weights else rows
        rows = rows * weights["weights"].float()[:, None] if "weights" in weights else rows
    except (IndexError, RuntimeError) as error:
        raise ModelError(f"the words of {folder} do not fit their mapping or their weights: {error}") from error
    if len(rows) < tokenizer.vocabulary_size:
        raise ModelError(
            f"the tokenizer in {folder} has {tokenizer.vocabulary_size} pieces, but the table has {len(rows)} rows"
        )
    rows = rows[: tokenizer.vocabulary_size].clone()
    unknown = unknown_id(tokenizer)
    if layout.static == "model2vec" and unknown is not None:
        rows[unknown] = 0
    table = StaticTable(StaticConfig(*rows.shape))
    with torch.no_grad():
        table.words.get_parameter("weight").copy_(rows)
    table.train(mode=False)
    return table
