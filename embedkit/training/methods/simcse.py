"""Unsupervised SimCSE: two dropout passes of a sentence are each other's positive.

Encoding a sentence twice in train mode gives two embeddings that differ by dropout only. InfoNCE pulls them
together and away from the other sentences of the batch. During training, a linear layer with tanh follows the
pooled embedding; it is discarded afterwards, and the pooled embedding is exported.

Source: Gao, Yao and Chen, "SimCSE: Simple Contrastive Learning of Sentence Embeddings", EMNLP 2021,
equation 4; settings of the authors' code.

The embedding is the first token's state: the presets set ``student.pooling = "cls"``. With
``--set student.pooling=mean`` it is the mean of all tokens, followed by the head; use this for a student that
starts from its teacher's word table, because it begins as a mean of words.

Differs from the paper: it has no models smaller than BERT-base, so all sizes use the learning rate of BERT-base;
its other values are 1e-5 for BERT-large, 1e-5 and 3e-5 for RoBERTa-base and -large at batch size 512. Differs from
the authors' code: arithmetic is float32 unless ``optim.amp`` is set, and the last incomplete batch is dropped.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from embedkit.config import setting
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.losses import info_nce, training_head
from embedkit.training.method import Batch, BatchSpec, Method, Presets, StepOutput, pooled
from embedkit.training.optim import trainer_presets


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimCSEConfig:
    """Settings of SimCSE; the defaults are the paper's."""

    temperature: float = setting(0.05, "temperature of the softmax over the batch", above=0)


class SimCSE(Method):
    """Contrastive training on two dropout passes of each sentence.

    An existing head is removed.
    """

    settings_class: ClassVar[type[Any]] = SimCSEConfig
    paper: ClassVar[str] = "Gao et al., EMNLP 2021"
    batch_spec: ClassVar[BatchSpec] = BatchSpec()
    presets: ClassVar[Presets] = trainer_presets(batch_size=64, epochs=1)

    def __init__(self, encoder: SentenceEncoder, config: SimCSEConfig, *, seed: int) -> None:
        super().__init__()
        encoder.set_head(None)
        self.encoder, self.config = encoder, config
        self.head = training_head(encoder, seed=seed)

    def forward(self, batch: Batch) -> StepOutput:
        """Return InfoNCE of two passes with independent dropout masks."""
        embeddings, again = (pooled(self.encoder, batch.views[0]) for _ in range(2))
        loss = info_nce(self.head(embeddings), self.head(again), temperature=self.config.temperature)
        return StepOutput(loss)
