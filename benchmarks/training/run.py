"""Overhead of a training step over the passes of its networks.

    OMP_NUM_THREADS=1 python benchmarks/training/run.py
    python benchmarks/training/run.py --device cuda --amp bf16 --batch 512 -o results-cuda

For every method, two things are timed in turns, in one process, on the same batches:

- the step: forward pass, loss, backward pass, clipping, optimizer, queues and averages, as in the training loop;
- the floor: the same passes of the same networks (encoder, dense head, projector, predictor, averaged copy), each
  with or without gradient as in the step, and a backward pass from the sum of their outputs. No loss and
  no optimizer.

Texts are random word pieces and teacher vectors random unit rows, which does not affect the cost of a step. Writes
results.json and results.md next to this file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import DenseHead, SentenceEncoder
from embedkit.modeling.initialisation import random
from embedkit.modeling.sizes import SIZES
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.location import find_model
from embedkit.runtime.tokenization import Tokenizer, Tokens
from embedkit.training.batches import chunk_view
from embedkit.training.method import Batch, Learner, PairLearner
from embedkit.training.methods import METHODS
from embedkit.training.methods.bsl import Predictor
from embedkit.training.networks import DenseGradients, by_rows
from embedkit.training.optim import OptimConfig, build_optimizer
from embedkit.training.recipes.trans_encoder import CrossToEncoder
from embedkit.training.self_supervision import Projector

HERE = Path(__file__).parent
BUNDLE = "tiny"
QUEUES = (16_384, 131_072)
TEACHER_WIDTH = 384
LENGTHS = (12, 21)  # tokens per text, from (inclusive) and to (exclusive); 16 on average
BATCHES = 4
AMP = {"off": torch.float32, "bf16": torch.bfloat16}
PAIRS = {"encoder-to-cross": PairLearner, "cross-to-encoder": CrossToEncoder}
HEADS = (DenseHead, Projector, Predictor)


def main() -> None:
    """Time every method, with every kind of queue."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=[*METHODS, *PAIRS])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--batch", type=int, default=128, help="rows a batch")
    parser.add_argument("--rounds", type=int, default=15, help="number of turns of step and floor")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--amp", choices=AMP, default="off")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--output", default="results", help="name of the two files")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows: list[dict[str, Any]] = []
    for name in arguments.methods:
        for queue in QUEUES if has_queue(name) else (None,):
            rows.append({"method": name, "queue": queue, **measure(name, queue, arguments)})
            print(json.dumps(rows[-1]), flush=True)
    write(rows, arguments)


def has_queue(name: str) -> bool:
    """Whether a method scores against past vectors."""
    fields = () if name in PAIRS else dataclasses.fields(METHODS[name].settings_class)
    return any(field.name == "queue_size" for field in fields)


def measure(name: str, queue: int | None, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the median milliseconds of step and floor, and their ratio."""
    torch.manual_seed(0)
    method = build(name, queue, arguments.size).to(arguments.device).train()
    batches = [make_batch(method, arguments.batch, seed).to(method.encoder.device) for seed in range(BATCHES)]
    stepper = Stepper(method, arguments.amp)
    passes = [record(stepper, batch) for batch in batches]
    ways: dict[str, Callable[[int], None]] = {
        "step_ms": lambda number: stepper.step(batches[number]),
        "floor_ms": lambda number: stepper.floor(passes[number]),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    with by_rows(method):
        for turn in range(arguments.rounds + 2):
            for way, go in ways.items():
                elapsed = clock(go, turn % BATCHES, method.encoder.device)
                if turn > 1:  # skip the warm-up
                    times[way].append(1000 * elapsed)
    medians = {way: round(statistics.median(values), 2) for way, values in times.items()}
    ratio = statistics.median(step / floor for step, floor in zip(*times.values(), strict=True))
    return {**medians, "ratio": round(ratio, 3)}


def clock(go: Callable[[int], None], number: int, device: torch.device) -> float:
    """Return the seconds of a call, including work on the device."""
    synchronize(device)
    began = time.perf_counter()
    go(number)
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def build(name: str, queue: int | None, size: str) -> Learner:
    """Return a method on a new encoder, with its defaults except for the queue."""
    tokenizer = Tokenizer(read_bundle(find_model(BUNDLE)).tokenizer_json, 128)
    encoder = random(tokenizer, SIZES[size], max_length=128, seed=0)
    if name == "encoder-to-cross":
        cross = PairEncoder.from_encoder(encoder, max_length=128, seed=0)
        return PairLearner(cross, functional.binary_cross_entropy_with_logits)
    if name == "cross-to-encoder":
        return CrossToEncoder(encoder)
    entry = METHODS[name]
    settings = {} if queue is None else {"queue_size": queue}
    return entry(encoder, entry.settings_class(**settings), seed=0, **entry.teacher_arguments([TEACHER_WIDTH]))


def make_batch(method: Learner, rows: int, seed: int) -> Batch:
    """Return a batch with the views that the method needs, of random word pieces with random teacher vectors."""
    generator = np.random.default_rng(seed)
    spec = method.batch_spec
    views = []
    for _ in range(spec.views + len(spec.positives)):
        lengths = generator.integers(*LENGTHS, rows)
        ids = [generator.integers(1000, 30_000, length).tolist() for length in lengths]
        types = [[0] * (len(row) // 2) + [1] * (len(row) - len(row) // 2) for row in ids]
        views.append(chunk_view(Tokens(ids, [], types if isinstance(method, PairLearner) else None), 0))
    vectors = [torch.from_numpy(generator.standard_normal((rows, TEACHER_WIDTH), dtype=np.float32)) for _ in views]
    teacher = tuple(functional.normalize(each, dim=1) for each in vectors)
    scores = torch.from_numpy(generator.random(rows, dtype=np.float32))
    return Batch(tuple(views), (teacher,) if spec.teacher else (), scores if spec.scores else None)


@dataclasses.dataclass(frozen=True)
class Pass:
    """One call of a network: its arguments, and whether gradients were enabled."""

    network: nn.Module
    arguments: tuple[Tensor, ...]
    named: dict[str, Tensor]
    learns: bool

    def __call__(self) -> Tensor:
        """Return the sum of the outputs, with their graph if gradients were enabled."""
        with torch.set_grad_enabled(self.learns):
            inputs = [tensor.detach().requires_grad_(self.learns) for tensor in self.arguments]
            output = self.network(*inputs, **self.named)
            for field in ("last_hidden_state", "logits"):
                output = getattr(output, field, output)
            return output.float().sum()


class Stepper:
    """Runs training steps, and the passes of their networks only."""

    def __init__(self, method: Learner, amp: str) -> None:
        self.method, self.amp = method, amp
        self.optim = OptimConfig()
        self.optimizer = build_optimizer(method, self.optim)
        self.gradients = DenseGradients(method)

    def step(self, batch: Batch) -> None:
        """Run one training step."""
        with self.autocast():
            output = self.method(batch)
        output.loss.backward()
        self.gradients.fill()
        nn.utils.clip_grad_norm_(self.method.parameters(), self.optim.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.method.after_step([output])

    def floor(self, passes: list[Pass]) -> None:
        """Run the same passes and nothing else."""
        with self.autocast():
            sums = [call() for call in passes]
        torch.stack([total for total in sums if total.requires_grad]).sum().backward()
        self.optimizer.zero_grad(set_to_none=True)

    def autocast(self) -> torch.autocast:
        """Return the autocast context."""
        return torch.autocast(self.method.encoder.device.type, AMP[self.amp], enabled=self.amp != "off")


def record(stepper: Stepper, batch: Batch) -> list[Pass]:
    """Record the calls of networks in one step."""
    passes: list[Pass] = []

    def remember(network: nn.Module, arguments: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        kept = tuple(tensor.detach().clone() for tensor in arguments)
        passes.append(Pass(network, kept, named, torch.is_grad_enabled()))

    hooks = [network.register_forward_pre_hook(remember, with_kwargs=True) for network in networks(stepper.method)]
    stepper.step(batch)
    for hook in hooks:
        hook.remove()
    return passes


def networks(method: Learner) -> Iterator[nn.Module]:
    """Yield bodies of encoders, and heads."""
    for module in method.modules():
        if isinstance(module, SentenceEncoder):
            yield module.backbone
        elif isinstance(module, PairEncoder):
            yield module.network
        elif isinstance(module, HEADS):
            yield module


def write(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Save figures and circumstances."""
    setting = {
        "size": arguments.size,
        "batch": arguments.batch,
        "tokens": f"{LENGTHS[0]} to {LENGTHS[1] - 1}",
        "teacher_width": TEACHER_WIDTH,
        "rounds": arguments.rounds,
        "device": device_name(arguments.device),
        "amp": arguments.amp,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }
    report = json.dumps({"setting": setting, "rows": rows}, indent=1)
    (HERE / f"{arguments.output}.json").write_text(report + "\n", encoding="utf-8")
    lines = [
        "A training step over the bare passes of its networks (the floor; see run.py): medians of",
        f"{arguments.rounds} turns, in milliseconds, and the median of the turns' ratios.",
        "",
        "What a queue adds are products of the batch with its keys: for each view one for the reference, one",
        "for the student, one for the gradient. They grow with queue and teacher's width, the passes of a",
        "network do not: beside a small one, the products with a long queue are the step.",
        "",
        *(f"- {key.replace('_', ' ')}: {value}" for key, value in setting.items() if key != "rounds"),
        "",
        "| method | queue | step | floor | ratio |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        queue = "" if row["queue"] is None else f"{row['queue']:,}"
        figures = f"{row['step_ms']:.0f} | {row['floor_ms']:.0f} | {row['ratio']:.2f}"
        lines.append(f"| {row['method']} | {queue} | {figures} |")
    (HERE / f"{arguments.output}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def device_name(device: str) -> str:
    """Return the name of the hardware."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
