"""SimCSE, unsupervised: two dropout passes of a sentence are each other's positive.

Encoding a sentence twice in train mode gives two embeddings that differ by dropout alone. InfoNCE
pulls them together and away from the other sentences of the batch. A linear layer with tanh stands on
the pooled embedding while training and is dropped afterwards: what is exported is the raw embedding.

Source: Gao, Yao and Chen, "SimCSE: Simple Contrastive Learning of Sentence Embeddings", EMNLP 2021,
equation 4; settings of the authors' code.

The embedding is the first token's state: the presets set ``student.pooling = "cls"``. With
``--set student.pooling=mean`` it is the mean of all tokens, and the head stands on that; a student that
starts from its teacher's word table begins as a mean of words and wants it.

Differs from the paper: it has no models smaller than BERT-base, so all sizes get the learning rate of
BERT-base; its other values are 1e-5 for BERT-large, 1e-5 and 3e-5 for RoBERTa-base and -large at batch
512. Differs from the authors' code: arithmetic is float32 unless ``optim.amp`` says otherwise, and a
last, short batch is left out.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from embedkit.config import setting
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.components.heads import training_head
from embedkit.training.losses.info_nce import info_nce
from embedkit.training.method import Batch, BatchSpec, Method, Presets, StepOutput, pooled
from embedkit.training.optim import TRAINER_OPTIM

__all__ = ["SimCSE", "SimCSEConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimCSEConfig:
    """Settings of SimCSE; the defaults are the paper's."""

    temperature: float = setting(0.05, "of the softmax over the batch", above=0)


class SimCSE(Method):
    """Contrastive training on two dropout passes of each sentence.

    Args:
        encoder: trained in place; a head it may have is taken away.
        config: settings.
        seed: of the training head.
    """

    settings_class: ClassVar[type[Any]] = SimCSEConfig
    paper: ClassVar[str] = "Gao et al., EMNLP 2021"
    batch_spec: ClassVar[BatchSpec] = BatchSpec()
    presets: ClassVar[Presets] = {
        size: {
            "student": {"pooling": "cls", "max_length": 32},
            "optim": {**TRAINER_OPTIM, "lr": 3e-5, "batch_size": 64, "epochs": 1},
            "dev": {"every": 125},
        }
        for size in ("tiny", "mini", "small")
    }

    def __init__(self, encoder: SentenceEncoder, config: SimCSEConfig, *, seed: int) -> None:
        super().__init__()
        encoder.set_head(None)
        self.encoder, self.config = encoder, config
        self.head = training_head(encoder, seed=seed)

    def forward(self, batch: Batch) -> StepOutput:
        """InfoNCE of two passes, each with dropout masks of its own."""
        embeddings, again = (pooled(self.encoder, batch.views[0]) for _ in range(2))
        loss = info_nce(self.head(embeddings), self.head(again), temperature=self.config.temperature)
        return StepOutput(loss)
