"""embedkit's graphs compared with Optimum's, which need an extra: ``pip install "embedkit-onnx[optimum]"``."""

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from embedkit.export.pipeline import export
from embedkit.export.probes import PROBE_TEXTS
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.tokenization import Tokenizer

optimum = pytest.importorskip("optimum.onnxruntime", reason="needs the extra optimum")

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 42,
    "pad_token_id": 0,
}


@pytest.mark.filterwarnings("ignore")  # Optimum emits many
@pytest.mark.parametrize("architecture", ["bert", "distilbert", "mpnet", "modernbert"])
def test_optimums_graph_computes_the_same_embeddings(toy_tokenizer_json, tmp_path, architecture):
    tokenizer = Tokenizer(toy_tokenizer_json, 20)
    config = AutoConfig.for_model(architecture, vocab_size=tokenizer.vocabulary_size, **SIZES)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = SentenceEncoder(AutoModel.from_config(config), tokenizer, name="toy").eval()
    model.save(tmp_path / "model")
    export(model, tmp_path / "toy.onnx", precision="fp32")

    theirs = optimum.ORTModelForFeatureExtraction.from_pretrained(tmp_path / "model", export=True)

    ours = Encoder.load(tmp_path / "toy.onnx")
    for length in (3, 7, 20):
        ids = [row[:length] for row in tokenizer.tokenize(PROBE_TEXTS[:6]).ids]
        batch = tokenizer.pad(ids)
        states = theirs(
            input_ids=torch.from_numpy(batch.input_ids), attention_mask=torch.from_numpy(batch.attention_mask)
        ).last_hidden_state.numpy()
        mask = batch.attention_mask[:, :, None]
        rows = (states * mask).sum(axis=1) / mask.sum(axis=1)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        np.testing.assert_allclose(ours.encode_tokens(ours.check_token_ids(ids)), rows, atol=1e-5)
