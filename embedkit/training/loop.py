"""The training loop, shared by all methods."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor

from embedkit.errors import ConfigError, TrainingError
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pretrained import plain_attention
from embedkit.progress import Progress
from embedkit.training import processes
from embedkit.training.batches import Batches
from embedkit.training.config import RunConfig
from embedkit.training.method import Batch, StepOutput, TrainingModule
from embedkit.training.optim import (
    ActivationPenalty,
    DenseGradients,
    build_optimizer,
    by_rows,
    round_tables,
    rounded_words,
    schedule,
)
from embedkit.training.run_folder import RunFolder, TrainState, load_checkpoint, save_checkpoint


def total_steps(batches_per_epoch: int, *, accumulate: int, epochs: int, steps: int | None) -> tuple[int, int]:
    """Return the optimizer steps per epoch and in total: ``steps`` if set, else ``epochs`` epochs."""
    per_epoch = max(1, batches_per_epoch // accumulate)
    return per_epoch, steps or epochs * per_epoch


def evaluation_steps(total: int, *, steps_per_epoch: int, every: int, most: int | None = None) -> frozenset[int]:
    """Return the steps after which a run is evaluated: ``every`` so many, at the end of each epoch, and the last.

    If these are more than ``most``, evaluations are evenly spaced instead, as densely as ``most`` allows.
    """
    steps = {*range(every, total + 1, every), *range(steps_per_epoch, total + 1, steps_per_epoch), total}
    if most is not None and len(steps) > most:
        distance = -(-total // most)
        steps = {*range(distance, total + 1, distance), total}
    return frozenset(steps)


Scores = Mapping[str, float]
"""Results of an evaluation by name; ``dev`` selects the encoder, and higher is better."""
logger = logging.getLogger(__name__)
_LOG_EVERY = 10
_LEAST_ROOM = 0.75e9  # bytes that freed memory may take
_RESIDENT = Path("/proc/self/statm")


@dataclasses.dataclass(frozen=True)
class RunControl:
    """External control of a run: resume, stop, progress.

    Steps are made inside ``stepping()``; after each, ``should_stop()`` ends the run with a checkpoint. The first
    process calls ``on_record`` with every record of metrics.jsonl: values by name, and ``step``, counted from 1. A
    resumed run repeats the records after its checkpoint. ``trust_remote_code`` allows a configuration to run
    Python code that comes with its teacher.
    """

    resume: bool = False
    should_stop: Callable[[], bool] = lambda: False
    stepping: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    show_progress: bool | None = None
    on_record: Callable[[Mapping[str, float]], None] = lambda _: None
    trust_remote_code: bool = False


def train(
    method: TrainingModule,
    batches: Batches,
    config: RunConfig,
    folder: RunFolder,
    control: RunControl,
    evaluate: Callable[[], Scores] | None = None,
) -> TrainState:
    """Train a method and write the encoder to ``folder.model``; return the state, not ``finished`` if stopped.

    With ``evaluate`` the encoder with the highest score is kept, otherwise the last one. An interrupted run
    resumes from its last checkpoint and ends with the same bits as an uninterrupted one, on the same machine and
    with the same versions, number of threads and number of processes. Of the configuration, ``[optim]`` is that of
    this stage.

    Several processes (:mod:`~embedkit.training.processes`) share the rows of each batch. The first one evaluates
    and writes.

    Raises:
        ConfigError: the processes cannot share a batch evenly.
        TrainingError: the loss is not finite.
        CheckpointError: the checkpoint is damaged or was written with other settings.
        StorageError: the disk is full; the last checkpoint is kept.
    """
    run = _Run(method, batches, config, folder, control, evaluate)
    torch.manual_seed(config.seed)
    if control.resume and folder.last.exists():
        run.state = load_checkpoint(folder.last, method, run.optimizer)
    if control.resume and processes.first():
        folder.rewind(run.state.step)
    processes.copy_state(method)
    if not run.state.finished and run.make_steps():
        run.finish()
    processes.wait()  # the caller may read files written by the first process
    return run.state


class _Run:
    """The state of one call of :func:`train`."""

    def __init__(
        self,
        method: TrainingModule,
        batches: Batches,
        config: RunConfig,
        folder: RunFolder,
        control: RunControl,
        evaluate: Callable[[], Scores] | None,
    ) -> None:
        if config.optim.batch_size % processes.count():
            raise ConfigError(
                f"{processes.count()} processes cannot share optim.batch_size = {config.optim.batch_size} evenly"
            )
        self.round_words = config.student.word_table == "int4"
        self.method, self.batches, self.config, self.folder = method, batches, config, folder
        self.start = copy.deepcopy(method.encoder.state_dict()) if config.optim.keep else None
        self.control, self.evaluate = control, evaluate
        self.optim = config.optim
        self.device = method.encoder.device
        batches.on_gpu = self.device.type != "cpu"
        self.optimizer = build_optimizer(method, config.optim)
        self.gradients = DenseGradients(method)
        self.state = TrainState()
        self.steps_per_epoch, self.total = total_steps(
            batches.steps_per_epoch,
            accumulate=config.optim.accumulate,
            epochs=config.optim.epochs,
            steps=config.optim.steps,
        )
        self.dev_steps = evaluation_steps(
            self.total, steps_per_epoch=self.steps_per_epoch, every=config.dev.every, most=config.dev.most
        )
        limit = config.optim.activation_limit
        self.penalty = None if limit is None else ActivationPenalty(limit)
        self.window: list[StepOutput] = []
        self.saved_at = self.started = time.monotonic()
        self.resident, self.room = resident_memory(), _LEAST_ROOM

    def make_steps(self) -> bool:
        """Make the steps that are left; return whether they were made, or the caller ended the run before."""
        first, seconds = self.state.step, self.state.seconds
        self.method.train()
        stream = self.batches.stream(first * self.optim.accumulate, self.total * self.optim.accumulate)
        show_progress = self.control.show_progress if processes.first() else False
        progress = Progress("train", self.total - first, unit="steps", enabled=show_progress)
        rounded = rounded_words(self.method) if self.round_words else contextlib.nullcontext()
        watched = self.penalty.watch(self.method.encoder.body) if self.penalty else contextlib.nullcontext()
        with (
            self.control.stepping(),
            contextlib.closing(stream),
            progress,
            _quicker_on_cpu(self.method),
            rounded,
            watched,
        ):
            for _ in range(first, self.total):
                if self._exhausted():
                    break
                loss = self._step(stream)
                self.state.seconds = seconds + time.monotonic() - self.started
                self._after_step()
                progress.advance(note=f"loss {loss:.4f}{self._best()}")
                if processes.agree(self.control.should_stop()):
                    self._checkpoint()
                    logger.info("stopped after step %d; continue with --resume", self.state.step)
                    return False
        return True

    def _step(self, stream: Iterator[Batch]) -> float:
        """Make one optimizer step over ``accumulate`` batches; return the mean loss."""
        rate = schedule(self.optim, self.state.step, self.total)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        outputs = [self._backward(next(stream)) for _ in range(self.optim.accumulate)]
        self.gradients.fill()
        processes.average_gradients(self.method)
        torch.nn.utils.clip_grad_norm_(self.method.parameters(), self.optim.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.method.after_step(outputs)
        self.state.step += 1
        self.window += [StepOutput(output.loss.detach(), output.metrics) for output in outputs]
        loss = sum(output.loss.item() for output in outputs) / len(outputs)
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} at step {self.state.step}; lower optim.lr or raise the temperatures"
            )
        if self.penalty and self.state.step == 1 and (cost := outputs[0].metrics["activations"].item()) > loss:
            logger.warning(
                "the first step's activations beyond optim.activation_limit cost %.3g, and its loss is %.3g: the "
                "student will lose part of its initialisation; train it without the limit, or with a higher one",
                *(cost, loss),
            )
        return loss

    def _backward(self, batch: Batch) -> StepOutput:
        own = batch.share(processes.rank(), processes.count()).to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.optim.amp == "bf16"):
            output: StepOutput = self.method(own)
        loss = output.loss
        if self.penalty:
            penalty = self.penalty.take().to(self.device)
            loss = loss + penalty
            mean = processes.gather(penalty.detach()[None]).mean()
            output = dataclasses.replace(output, metrics={**output.metrics, "activations": mean})
        (loss / self.optim.accumulate).backward()
        if self.penalty:
            self.penalty.take()  # what chunks that were computed again for the gradient recorded a second time
        return output

    def _after_step(self) -> None:
        """Log, evaluate and save a checkpoint when due."""
        step = self.state.step
        epoch_end = step % self.steps_per_epoch == 0 or step == self.total
        if step % _LOG_EVERY == 0 or step == self.total:
            self._log()
        if self.evaluate is not None and step in self.dev_steps:
            self._select(self.evaluate)
        if epoch_end:
            self._close_epoch()
        if time.monotonic() - self.saved_at > 60 * self.config.checkpoint_minutes:
            self._checkpoint()
        self._release_memory()

    def _release_memory(self) -> None:
        """Return freed memory to the system at the end, or once there is much more than after the first step."""
        growth = resident_memory() - self.resident
        if self.state.step == 1:
            self.room = max(self.room, 1.5 * growth)
        if self.state.step == self.total or growth > self.room:
            release_memory()
            self.resident = resident_memory()

    def _log(self) -> None:
        step, window = self.state.step, self.window
        record: dict[str, float] = {"step": step, "epoch": step / self.steps_per_epoch}
        record["loss"] = _mean([output.loss for output in window])
        for name in window[0].metrics:
            record[name] = _mean([output.metrics[name] for output in window])
        record["lr"] = schedule(self.optim, step - 1, self.total)
        record["seconds"] = round(self.state.seconds, 3)
        self._write(record)
        self.window = []

    def _write(self, record: dict[str, float]) -> None:
        if processes.first():
            self.folder.log(record)
            self.control.on_record(record)

    def _select(self, evaluate: Callable[[], Scores]) -> None:
        """Score the encoder on the development set and keep it if it is strictly better than the best so far.

        As long as no score is defined, or all are equal, the latest encoder is kept.
        """
        began = time.monotonic()
        scores: dict[str, float] = {}

        def decide() -> float:
            scores.update(evaluate())
            return scores["dev"]

        score = processes.from_first(decide)
        seconds = time.monotonic() - began
        defined = math.isfinite(score)  # the correlation of a collapsed encoder, or with equal labels, is not
        measured = {name: value for name, value in scores.items() if math.isfinite(value)}
        self._write({"step": self.state.step, **measured, "dev_seconds": round(seconds, 3)})
        is_first = self.state.step == min(self.dev_steps)
        if is_first and len(self.dev_steps) > 1:
            count = len(self.dev_steps)
            steps = self.state.seconds / self.state.step * self.total
            logger.info(
                "an evaluation takes %.2f s; all %s take about %.1f minutes, %.0f %% of the run, by dev.every, "
                "dev.limit and dev.most",
                *(seconds, f"{count:,}", seconds * count / 60, 100 * seconds * count / (seconds * count + steps)),
            )
        if is_first and not defined:
            logger.warning("the development score is undefined: all labels, or all cosines, are equal")
        if defined and self.state.best_score is not None:
            self.state.scores_differ |= score != self.state.best_score
        is_constant = defined and not self.state.scores_differ
        if is_constant or self.state.best_score is None or score > self.state.best_score:  # NaN never is
            if defined:
                self.state.best_score, self.state.best_step = score, self.state.step
            if processes.first():
                self.folder.save(self.method.encoder, self.folder.best)

    def _close_epoch(self) -> None:
        """Count epochs without an improvement; an epoch without an evaluation does not count."""
        state = self.state
        began = (state.step - 1) // self.steps_per_epoch * self.steps_per_epoch
        if not any(began < step <= state.step for step in self.dev_steps):
            return
        better = state.best_score is not None and (state.epoch_best is None or state.best_score > state.epoch_best)
        state.stale_epochs = 0 if better else state.stale_epochs + 1
        state.epoch_best = state.best_score

    def _exhausted(self) -> bool:
        patience = self.config.dev.patience
        if self.evaluate is None or patience is None or self.state.stale_epochs < patience:
            return False
        logger.info("no better development score in %d epochs; stopping early", patience)
        return True

    def finish(self) -> None:
        """Write the encoder that is kept, and a checkpoint."""
        self.state.finished = True
        if not processes.first():
            return
        encoder = self.method.encoder
        if self.evaluate is not None:
            encoder = type(encoder).load(self.folder.best)
            evaluations = sum(step <= self.state.step for step in self.dev_steps)
            if self.state.best_step is not None and evaluations > 1 and not self.state.scores_differ:
                logger.warning(
                    "the development score was %.4f at every evaluation, so it selects no model; the last is kept",
                    self.state.best_score,
                )
        if self.start is not None:
            mix_weights(encoder, self.start, self.optim.keep)
        if self.round_words:
            round_tables(encoder)
        self.folder.save(encoder, self.folder.model)
        self._checkpoint()
        logger.info(
            "trained: %s steps in %.0f s%s; %s",
            *(f"{self.state.step:,}", self.state.seconds, self._best(), self.folder.model),
        )

    def _checkpoint(self) -> None:
        if processes.first():
            self.folder.check_in_place()
            save_checkpoint(self.folder.last, self.method, self.optimizer, self.state)
        self.saved_at = time.monotonic()

    def _best(self) -> str:
        return f", dev {self.state.best_score:.4f}" if self.state.best_score is not None else ""


def mix_weights(encoder: SentenceEncoder | PairEncoder, start: Mapping[str, Tensor], share: float) -> None:
    """Move the weights towards those of the start by a share of the way.

    Source: Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR 2022.
    """
    for name, weights in encoder.state_dict().items():
        if weights.is_floating_point():
            weights.lerp_(start[name].to(weights.device), share)


@contextlib.contextmanager
def _quicker_on_cpu(method: TrainingModule) -> Iterator[None]:
    """Use sparse gradients of word tables and, on a CPU, attention by plain matrix products.

    Torch's fused attention saves memory that the short texts of a chunk do not need, and its backward pass is
    several times slower on a CPU.
    """
    networks = [part for part in method.modules() if isinstance(part, SentenceEncoder | PairEncoder)]
    with contextlib.ExitStack() as changed:
        changed.enter_context(by_rows(method))
        for network in networks:
            if network.device.type == "cpu":
                changed.enter_context(plain_attention(network.body))
        yield


def resident_memory() -> int:
    """Return the bytes of memory in use by this process; 0 on systems that do not say it as Linux does."""
    if not _RESIDENT.exists():
        return 0
    return int(_RESIDENT.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def release_memory() -> None:
    """Return freed memory to the system, where the C library can.

    glibc keeps the gaps between blocks in use, into which aligned blocks of the same size do not fit again: a
    process that trains on long texts would grow by a gigabyte in fifty steps.
    """
    with contextlib.suppress(AttributeError, TypeError, OSError):  # another library, or another system
        ctypes.CDLL(None).malloc_trim(0)


def _mean(values: list[Tensor]) -> float:
    return float(torch.stack([value.float() for value in values]).mean())
