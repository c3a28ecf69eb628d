"""The processes of test_processes.py: train every method on toys, alone and as two, and write the results.

python shared_training.py FOLDER
"""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import distributed
from torch.nn import functional

from embedkit.config import from_mapping
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.initialisation import Size, random
from embedkit.runtime.tokenization import Tokenizer
from embedkit.training.batches import BatchSource, PairBatchSource, ViewsConfig, chunk_view
from embedkit.training.config import DevConfig
from embedkit.training.corpus import Corpus, SourceConfig
from embedkit.training.loop import RunControl, train
from embedkit.training.method import Distillation, PairTrainingModule
from embedkit.training.methods import METHODS
from embedkit.training.optim import OptimConfig
from embedkit.training.recipes.trans_encoder import CrossToEncoder
from embedkit.training.run_folder import RunFolder

sys.path.insert(0, str(Path(__file__).parents[2]))
from toys import TableTeacher, stage_config, without_dropout

QUEUE = {"queue_size": 20}
SCT = {**QUEUE, "projector_expansion": 2}
# Label -> method, settings, further settings of the optimizer. No dropout and no random shuffling, so that one
# process has the batches of two.
EXACT = {
    "sct": ("sct", SCT, {}),
    "sct-distillation": ("sct-distillation", QUEUE, {}),
    "sct-joint": ("sct-distillation", {**QUEUE, "joint": True, "self_supervised": SCT}, {}),
    "congen": ("congen", QUEUE, {}),
    "ckd": ("ckd", QUEUE, {}),
    "simcse": ("simcse", {}, {}),
    "distillcse": ("distillcse", {"group_mass": 1e-9}, {}),
    "bsl": ("bsl", {"momentum": 0.5}, {}),
    "pcl": ("pcl", {}, {}),
    "pcl-tied": ("pcl", {"peer": "tied"}, {}),
    "mse": ("mse", {}, {}),
    "linear-head": ("mse", {"head": "linear"}, {}),
    "activations": ("mse", {}, {"activation_limit": 0.5}),
    "accumulated": ("sct-distillation", QUEUE, {"accumulate": 2}),
    "encoder-to-cross": ("encoder-to-cross", {}, {}),
    "cross-to-encoder": ("cross-to-encoder", {}, {}),
}
# With dropout and shuffling: two processes differ from one, but must agree with each other.
RANDOM = {
    "random-sct": ("sct", SCT, {}),
    "random-distillcse": ("distillcse", {}, {}),
}


TEACHER = TableTeacher.random(48, 24)


class Toy:
    """Return a method on a toy encoder, its batches, and a run of them."""

    def __init__(self, folder, corpora, case, *, dropout):
        name, settings, optim = case
        tokenizer = Tokenizer((folder / "tokenizer.json").read_text(encoding="utf-8"), 16)
        encoder = random(tokenizer, Size(2, 16, 2), max_length=16, seed=3)
        # With such a large epsilon AdamW is gradient descent with momentum: it neither hides the scale of a
        # gradient nor amplifies rounding where the true gradient is zero.
        self.optim = OptimConfig(**{"batch_size": 8, "steps": 4, "lr": 0.3, "epsilon": 1.0, "clip": 100, **optim})
        scores = np.random.default_rng(1).random(len(corpora[2]), dtype=np.float32)
        if name == "encoder-to-cross":
            pair_encoder = PairEncoder.from_encoder(encoder, max_length=14, seed=4)
            self.method = PairTrainingModule(pair_encoder, functional.binary_cross_entropy_with_logits)
            self.batches = PairBatchSource(corpora[2], pair_encoder.tokenizer, scores=scores, batch_size=8, seed=5)
        else:
            spec = CrossToEncoder.batch_spec if name == "cross-to-encoder" else METHODS[name].batch_spec
            self.batches = BatchSource(
                corpora[spec.views],
                tokenizer,
                spec=spec,
                batch_size=8,
                seed=5,
                views=ViewsConfig(second="none" if spec.scores or spec.views == 1 else "deletion"),
                teachers=[TEACHER] if spec.teacher else [],
                scores=scores,
            )
            self.method = CrossToEncoder(encoder) if spec.scores else build(name, settings, encoder)
        if not dropout:
            without_dropout(self.method)
        if isinstance(self.method, Distillation) and self.method.awaits_start:
            rows = np.arange(24)
            view = chunk_view(tokenizer.tokenize(corpora[1].texts(rows)), tokenizer.pad_id)
            self.method.start_head([view], torch.from_numpy(TEACHER.read(rows, 0)))

    def run(self, place, *, stop_after=None, resume=False):
        def evaluate():
            assert not distributed.is_initialized() or distributed.get_rank() == 0
            parameters = self.method.encoder.parameters()
            return {"dev": float(sum(parameter.detach().square().sum() for parameter in parameters))}

        seen = iter(range(1, 100))
        config = stage_config(optim=self.optim, seed=2, dev=DevConfig(every=2))
        return train(
            self.method,
            self.batches,
            config,
            RunFolder(place),
            # Only one process is told to stop.
            RunControl(
                resume, lambda: next(seen) == stop_after and distributed.get_rank() == 1, show_progress=False
            ),
            evaluate,
        )


def build(name, settings, encoder):
    entry = METHODS[name]
    told = entry.teacher_arguments([TEACHER.dimension])
    return entry(encoder, from_mapping(entry.settings_class, settings), seed=1, **told)


def main(folder: Path, rank: int, count: int) -> None:
    torch.set_num_threads(1)
    if count > 1:
        distributed.init_process_group(
            "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=count
        )
    path, cache = str(folder / "texts.tsv"), folder / f"cache-{count}-{rank}"
    sources = SourceConfig(path=path, text_column="text1"), SourceConfig(path=path)
    corpora = {number: Corpus.prepare([source], cache) for number, source in enumerate(sources, 1)}
    for label, case in EXACT.items():
        toy = Toy(folder, corpora, case, dropout=False)
        toy.run(folder / f"{label}-{count}")
        leave(folder, label, toy, rank, count)
    for label, case in RANDOM.items() if count > 1 else ():
        toy = Toy(folder, corpora, case, dropout=True)
        toy.run(folder / f"{label}-{count}")
        leave(folder, label, toy, rank, count)
        for stop_after in (2, None):
            toy = Toy(folder, corpora, case, dropout=True)
            torch.manual_seed(rank)  # random state left by earlier work must not matter
            toy.run(folder / f"{label}-resumed", stop_after=stop_after, resume=stop_after is None)
        leave(folder, f"{label}-resumed", toy, rank, count)
    if count > 1:
        distributed.destroy_process_group()


def leave(folder, label, toy, rank, count):
    save_file(
        {name: tensor.contiguous() for name, tensor in toy.method.state_dict().items()},
        folder / f"{label}-{count}-{rank}.safetensors",
    )


def start_all(folder: Path) -> int:
    """Run one process alone and two together, which share one import of torch where they can; 0 if all succeed."""
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    shares = [(0, 1), (0, 2), (1, 2)]
    running = [context.Process(target=main, args=(folder, *share), daemon=True) for share in shares]
    for process in running:
        process.start()
    for process in running:
        process.join(780)
    return int(any(process.exitcode != 0 for process in running))


if __name__ == "__main__":
    sys.exit(start_all(Path(sys.argv[1])))
