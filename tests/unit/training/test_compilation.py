"""Compiled encoders train like the others, and are saved under the same names."""

from __future__ import annotations

import shutil

import pytest
import torch

from embedkit.errors import ConfigError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training import networks
from embedkit.training.batches import BatchSource, ViewsConfig
from embedkit.training.loop import LoopConfig, train
from embedkit.training.methods.simcse import SimCSE, SimCSEConfig
from embedkit.training.networks import compile_encoders
from embedkit.training.optim import OptimConfig
from embedkit.training.run_folder import RunFolder

COMPILER = next(filter(shutil.which, ("g++", "clang++", "c++")), None)


@pytest.mark.release  # torch compiles C++ for as long as a hundred other tests take
@pytest.mark.skipif(COMPILER is None, reason="torch.compile needs a C++ compiler, and there is none here")
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
def test_a_compiled_run_equals_an_uncompiled_one(make_encoder, make_corpus, sentences, tmp_path):
    """With texts of several lengths, which use one graph."""
    losses, states = [], []
    for compiled in (False, True):
        encoder = make_encoder()
        for module in encoder.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if hasattr(module, "dropout_prob"):
                module.dropout_prob = 0.0
        method = SimCSE(encoder, SimCSEConfig(), seed=0)
        batches = BatchSource(
            make_corpus(sentences(24)),
            encoder.tokenizer,
            spec=method.batch_spec,
            batch_size=8,
            seed=0,
            views=ViewsConfig(),
        )
        folder = RunFolder(tmp_path / str(compiled))
        optim = OptimConfig(batch_size=8, steps=3, lr=0.1, epsilon=1.0, compile=compiled)
        train(method, batches, LoopConfig(optim=optim, seed=0), folder, show_progress=False)
        losses.append(folder.metrics.read_text().split('"loss": ')[1].split(",")[0])
        states.append(method.state_dict())
    assert float(losses[0]) == pytest.approx(float(losses[1]), rel=1e-4)
    assert states[0].keys() == states[1].keys()
    assert all(torch.allclose(states[0][name], states[1][name], atol=1e-5) for name in states[0])
    assert not any("_orig_mod" in name for name in SentenceEncoder.load(folder.model).state_dict())


def test_a_missing_compiler_is_reported_before_training(make_encoder, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no compiler found\nand much more")

    monkeypatch.setattr(networks.torch, "compile", fail)
    with pytest.raises(
        ConfigError, match=r"optim\.compile cannot be used here \(no compiler found\); leave it out"
    ):
        compile_encoders(make_encoder(), torch.device("cpu"))
