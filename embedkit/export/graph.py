"""The ONNX graph of any encoder or cross-encoder.

``input_ids, attention_mask (B, L) int64 -> sentence_embedding (B, D) float32, unit rows``; for a cross-encoder
``input_ids, attention_mask, token_type_ids (B, L) int64 -> score (B,) float32`` in (0, 1), after the sigmoid.

The BERT family is written operator by operator; every other architecture is traced. The same arithmetic stores
and multiplies the large weights of both.
"""

from __future__ import annotations

import onnx

from embedkit.errors import ExportError
from embedkit.export.bert import is_bert, write_bert
from embedkit.export.traced import trace_graph
from embedkit.export.writer import Arithmetic
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder


def build_graph(model: SentenceEncoder | PairEncoder, arithmetic: Arithmetic) -> onnx.ModelProto:
    """Write the graph of an encoder or a cross-encoder.

    Raises:
        ExportError: a weight is not finite, or the network cannot be traced.
    """
    _check_weights(model)
    return write_bert(model, arithmetic) if is_bert(model) else trace_graph(model, arithmetic)


def _check_weights(model: SentenceEncoder | PairEncoder) -> None:
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ExportError(
                f"{name} of {model.name} contains values that are not finite; was the training stable?"
            )
