"""Models that run on torch, timed like any other."""

from __future__ import annotations

from embedkit.evaluation.speed.measure import Candidate, WorkerProcess
from embedkit.modeling.initialisation import Size, random


def test_a_folder_is_timed_on_torch(tokenizer, tmp_path):
    encoder = random(tokenizer, Size(layers=1, hidden=16, heads=2), max_length=20, seed=0)
    encoder.set_head(24)
    encoder.save(tmp_path / "toy")
    candidate = Candidate(source=str(tmp_path / "toy"), worker="embedkit.export.torch_worker")
    with WorkerProcess(candidate, threads=1) as worker:
        about = worker.about
        worker.keep("short", ["a good dog", "the cat"])
        assert len(worker.time("short", batch=2, calls=3, warm_up=0)["seconds"]) == 3
    assert (about["name"], about["precision"], about["dimension"]) == ("toy", "fp32 (torch)", 24)
    assert about["fingerprint"] == encoder.fingerprint()
    files = ["model.safetensors", "2_Dense/model.safetensors", "tokenizer.json"]
    assert about["size_bytes"] == sum((tmp_path / "toy" / name).stat().st_size for name in files)
