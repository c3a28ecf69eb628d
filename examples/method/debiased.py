"""Write a training method of your own: SimCSE without the false negatives that a frozen encoder finds.

    python examples/method/debiased.py recipe.toml runs/debiased

Two dropout passes of a sentence are positives, and the other sentences of the batch negatives, except those that
the run's teacher finds too similar. Source: Zhou et al., "Debiased Contrastive Learning of Unsupervised Sentence
Representations", ACL 2022, without its noise.

A method is a module with parameters and a loss: the loop, checkpoints, exact resume, development sets, teachers'
caches and several processes come with the run. The recipe sets ``method = "debiased"``.
"""

from __future__ import annotations

import dataclasses
import sys

import torch
from torch.nn import functional

from embedkit.config import load_toml, setting
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.losses import training_head
from embedkit.training.method import Batch, BatchSpec, Method, StepOutput, pooled
from embedkit.training.methods import METHODS
from embedkit.training.optim import trainer_presets
from embedkit.training.run import resolve, run


@dataclasses.dataclass(frozen=True, kw_only=True)
class DebiasedConfig:
    """The table ``[settings]`` of the recipe."""

    temperature: float = setting(0.05, "temperature of the softmax over the batch", above=0)
    threshold: float = setting(0.9, "teacher cosine from which two sentences are not negatives")


class Debiased(Method):
    """Contrast of two dropout passes without false negatives."""

    settings_class = DebiasedConfig
    paper = "Zhou et al., ACL 2022"
    batch_spec = BatchSpec(views=1, teacher=True)
    presets = trainer_presets(batch_size=128, epochs=3)

    def __init__(self, encoder: SentenceEncoder, config: DebiasedConfig, *, seed: int) -> None:
        super().__init__()
        encoder.set_head(None)
        self.encoder, self.config = encoder, config
        self.head = training_head(encoder, seed=seed)

    def forward(self, batch: Batch) -> StepOutput:
        """Return the cross-entropy of each anchor's own positive among the true negatives."""
        first, second = (self.head(pooled(self.encoder, batch.views[0])) for _ in range(2))
        vectors = batch.teacher[0]
        false = (vectors @ vectors.T >= self.config.threshold).fill_diagonal_(fill_value=False)
        logits = functional.normalize(first.float(), dim=1) @ functional.normalize(second.float(), dim=1).T
        own = torch.arange(len(logits), device=logits.device)
        loss = functional.cross_entropy(logits.masked_fill(false, -torch.inf) / self.config.temperature, own)
        return StepOutput(loss, metrics={"false_negatives": false.float().mean()})


METHODS["debiased"] = Debiased

if __name__ == "__main__":
    run(resolve(load_toml(sys.argv[1])), sys.argv[2])
