"""One stage of a run: a method trained by the loop on the run's materials."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from embedkit.config import to_mapping
from embedkit.errors import ConfigError
from embedkit.evaluation.sts import evaluate_pairs
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.training import processes
from embedkit.training.batches import Batches, BatchSource, check_batches, chunk_view
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus
from embedkit.training.distillation import Distillation
from embedkit.training.loop import LoopConfig, Scores, train
from embedkit.training.method import Learner
from embedkit.training.methods import METHODS
from embedkit.training.optim import OptimConfig
from embedkit.training.recipes.materials import Control, HeldOut, Materials, Split
from embedkit.training.run_folder import RunFolder, TrainState
from embedkit.training.students import recorded_teacher
from embedkit.training.trackers import find_trackers

_HEAD_SAMPLE = 4096  # number of texts to fit a new linear head on
_HEAD_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Stage:
    """Everything that a stage of a run needs, apart from a method and an encoder."""

    config: RunConfig
    materials: Materials
    folder: RunFolder
    control: Control

    def inside(self, *names: str, **changes: Any) -> Stage:
        """Return a stage whose run folder is a sub-folder of this one's, with other attributes changed."""
        return dataclasses.replace(self, folder=RunFolder(self.folder.path.joinpath(*names)), **changes)

    def train(
        self, method_name: str, settings: Any, encoder: SentenceEncoder, optim: OptimConfig | None = None
    ) -> TrainState:
        """Train one method from ``encoder``, in place; the result is written to ``folder.model``.

        The optimizer settings default to those of the run.

        Raises:
            ConfigError: the run lacks something that the method needs.
            TrainingError, CheckpointError, StorageError: see :func:`~embedkit.training.loop.train`.
        """
        kind, teachers, optim = METHODS[method_name], self.materials.teachers, optim or self.config.optim
        if problem := kind.batch_spec.teacher_problem(len(teachers)):
            raise ConfigError(problem)
        arguments = kind.teacher_arguments([teacher.dimension for teacher in teachers])
        method = kind(encoder, settings, seed=self.config.seed, **arguments)
        batches = self.batches(method_name, settings, encoder, optim)
        if isinstance(method, Distillation):
            if self.config.student.source is not None and not self._has_taught(self.config.student.source):
                method.renew_head(seed=self.config.seed)
            if method.awaits_start:
                self._start_head(method)
        return self.fit(method, batches, optim, self._evaluation(encoder))

    def batches(
        self, method_name: str, settings: Any, encoder: SentenceEncoder, optim: OptimConfig | None = None
    ) -> BatchSource:
        """Return the batches of a stage; the arguments are those of :meth:`train`.

        Raises:
            ConfigError: the run lacks something that the method needs.
        """
        return BatchSource(
            self.materials.corpus,
            encoder.tokenizer,
            spec=METHODS[method_name].needs(settings),
            batch_size=(optim or self.config.optim).batch_size,
            seed=self.config.seed,
            views=self.config.views,
            teachers=self.materials.teachers,
            rows=self.materials.split.train,
        )

    def fit(
        self, method: Learner, batches: Batches, optim: OptimConfig, evaluate: Callable[[], Scores] | None
    ) -> TrainState:
        """Train a method, moved to the run's device, on its batches; the result is written to ``folder.model``.

        ``evaluate`` scores ``method.encoder`` on a development set.

        Raises:
            ConfigError: the device cannot be used.
            TrainingError, CheckpointError, StorageError: see :func:`~embedkit.training.loop.train`.
        """
        config, folder = self.config, self.folder
        to_device(method, config.device)
        if processes.first():
            plain = to_mapping(config)
            folder.trackers = find_trackers(config.trackers, folder.path, name=folder.path.name, config=plain)
        loop = LoopConfig(
            optim=optim,
            seed=config.seed,
            dev_every=config.dev.every,
            dev_most=config.dev.most,
            patience=config.dev.patience,
            checkpoint_minutes=config.checkpoint_minutes,
            round_words=config.student.word_table == "int4",
        )
        return train(
            method,
            batches,
            loop,
            folder,
            evaluate=evaluate,
            resume=self.control.resume,
            should_stop=self.control.should_stop,
            show_progress=self.control.show_progress,
        )

    def _has_taught(self, source: str) -> bool:
        """Whether a model records this run's first teacher as its own, so that its head leads to that space.

        The axes of a rotated space depend on the corpus, so no earlier head leads there.
        """
        if self.config.matryoshka is not None:
            return False
        return recorded_teacher(self.config.resolve_model(source)) == self.materials.teachers[0].fingerprint

    def _start_head(self, method: Distillation) -> None:
        """Fit a new linear head on a sample of the training text."""
        corpus, tokenizer = self.materials.corpus, method.encoder.tokenizer
        rows = np.random.default_rng(0).permutation(self.materials.split.train)[:_HEAD_SAMPLE]
        parts = np.array_split(rows, -(-len(rows) // _HEAD_BATCH))
        views = (chunk_view(tokenizer.tokenize(corpus.texts(part)), tokenizer.pad_id) for part in parts)
        method.start_head(views, torch.from_numpy(self.materials.teachers[0].read(rows, 0)))

    def _evaluation(self, encoder: SentenceEncoder) -> Callable[[], Scores] | None:
        """Return the function that scores a step: on the development pairs, else by cosine with the teacher."""
        pairs, rows, teachers = self.materials.dev, self.materials.split.held_out, self.materials.teachers
        held_out = None
        if rows:
            if not teachers or encoder.dimension != teachers[0].dimension:
                raise ConfigError(
                    "dev.held_out measures the distance from a teacher's vectors, which this student does not "
                    "imitate"
                )
            held_out = HeldOut(self.materials.corpus, rows, teachers[0])
        if pairs is None and held_out is None:
            return None

        def evaluate() -> Scores:
            student = TorchEncoder(encoder)
            distances = {} if held_out is None else held_out.distances(student)
            dev = 1 - float(np.mean(list(distances.values()))) if pairs is None else evaluate_pairs(student, pairs)
            return {"dev": dev} | {f"held_out/{name}": distance for name, distance in distances.items()}

        return evaluate


def check_stage(method_name: str, settings: Any, optim: OptimConfig, config: RunConfig, corpus: Corpus) -> None:
    """Check that the corpus and the views fit a stage, before a teacher encodes the corpus.

    Raises:
        ConfigError: they do not.
    """
    spec = METHODS[method_name].needs(settings)
    rows = len(Split.of(corpus, config.dev.held_out).train)
    check_batches(spec, rows, batch_size=optim.batch_size, views=config.views)


def to_device(module: nn.Module, device: str | None) -> None:
    """Move a network to a device; if None, to the GPU if available, else to the CPU.

    Raises:
        ConfigError: the device cannot be used.
    """
    try:
        module.to(torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
    except (RuntimeError, AssertionError) as error:  # torch raises an AssertionError if it was built without CUDA
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"device {device!r} cannot be used here: {reason}") from error
