"""The code of a model that transformers does not know, as folders bring it: rotary positions and gated units."""

from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling


class OwnConfig(PretrainedConfig):
    """Sizes under other names than transformers'."""

    model_type = "own-model"
    attribute_map: ClassVar = {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_heads",
    }

    def __init__(
        self, vocab_size: int = 100, n_embd: int = 128, n_layer: int = 2, n_heads: int = 4, **settings: Any
    ) -> None:
        self.vocab_size, self.n_embd, self.n_layer, self.n_heads = vocab_size, n_embd, n_layer, n_heads
        super().__init__(**settings)


class OwnLayer(nn.Module):
    """Attention with rotary positions, and a gated feed-forward block."""

    def __init__(self, config: OwnConfig) -> None:
        super().__init__()
        self.heads = config.n_heads
        self.norm1, self.norm2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.projection = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.out = nn.Linear(config.n_embd, config.n_embd)
        self.up = nn.Linear(config.n_embd, 4 * config.n_embd, bias=False)
        self.down = nn.Linear(2 * config.n_embd, config.n_embd, bias=False)

    def forward(
        self, states: torch.Tensor, mask: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Map states ``(B, L, H)``."""
        size = states.shape
        parts = self.projection(states).view(size[0], size[1], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = (
            parts[0] * cos + _turn(parts[0]) * sin,
            parts[1] * cos + _turn(parts[1]) * sin,
            parts[2],
        )
        scores = query @ key.transpose(2, 3) / value.shape[3] ** 0.5 + mask
        context = (scores.softmax(dim=3) @ value).transpose(1, 2).reshape(size)
        states = self.norm1(states + self.out(context))
        gate, up = self.up(states).chunk(2, dim=2)
        return self.norm2(states + self.down(nn.functional.gelu(gate) * up))


def _turn(states: torch.Tensor) -> torch.Tensor:
    first, second = states.chunk(2, dim=3)
    return torch.cat([-second, first], dim=3)


class OwnModel(PreTrainedModel):
    """The network."""

    config_class = OwnConfig

    def __init__(self, config: OwnConfig, add_pooling_layer: bool = True) -> None:  # noqa: FBT001, FBT002
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.n_embd)
        self.layers = nn.ModuleList(OwnLayer(config) for _ in range(config.n_layer))
        self.pooler = nn.Linear(config.n_embd, config.n_embd) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the word table."""
        return self.words

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any
    ) -> BaseModelOutputWithPooling:
        """Return the states of tokens, ``(B, L) int64`` twice ``-> (B, L, H)``."""
        width = self.config.n_embd // self.config.n_heads
        rates = 10_000.0 ** -(torch.arange(0, width, 2, device=input_ids.device) / width)
        angles = torch.arange(input_ids.shape[1], device=input_ids.device)[:, None] * rates
        angles = torch.cat([angles, angles], dim=1)
        mask = (1.0 - attention_mask[:, None, None, :].float()) * -1e4
        states = self.words(input_ids)
        for layer in self.layers:
            states = layer(states, mask, angles.cos(), angles.sin())
        pooled = self.pooler(states[:, 0]).tanh() if self.pooler is not None else None
        return BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=pooled)
