"""Trans-Encoder: an encoder and a cross-encoder teach each other on unlabelled pairs, in cycles.

Each cycle labels the pairs by the encoder's cosines, trains a cross-encoder on these labels, labels the pairs by
its scores and trains an encoder on those. With peers (mutual distillation), every model labels the pairs and
learns from the average of all labels; nothing else is shared.

Source: Liu et al., "Trans-Encoder: Unsupervised sentence-pair modelling through self- and mutual-distillations",
ICLR 2022, settings of Table 16; the authors' code.

Differs from the paper: labels are clamped to [0, 1], because the cross-entropy is unbounded below for negative
labels; refreshed cross-encoders start from the student's body, which is the paper's raw pre-trained model only if
``settings.backbone`` names it. Differs from the authors' code: the last incomplete batch of an epoch is dropped,
and in sequential mode the pooler of a cross-encoder is initialised randomly, because embedkit's encoders have
none.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from torch.nn import functional

from embedkit.atomic import atomic_file
from embedkit.config import setting
from embedkit.errors import CheckpointError, ConfigError, ModelError
from embedkit.evaluation.sts import evaluate_cross_encoder, evaluate_pairs
from embedkit.evaluation.tasks import cosines
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import SIZES
from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder, to_device
from embedkit.progress import Progress
from embedkit.protocols import FloatArray
from embedkit.training import processes
from embedkit.training.batches import BatchSource, PairBatchSource, ViewsConfig, check_batches
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus, in_chunks
from embedkit.training.method import (
    Batch,
    BatchSpec,
    Method,
    PairTrainingModule,
    StepOutput,
    embed,
)
from embedkit.training.optim import OptimConfig
from embedkit.training.recipes.stage import Recipe, Stage, report_truncated_pairs
from embedkit.training.run_folder import RunFolder, TrainState
from embedkit.training.students import adjust

logger = logging.getLogger(__name__)
_AS_IT_IS = ViewsConfig(first="none", second="none")
_STUDENT = "student"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeerConfig:
    """Another model that labels pairs and is trained alongside the student."""

    source: str = setting(doc="the encoder it starts from (folder or hub id)")
    backbone: str | None = setting(
        None, "the raw pre-trained model of its cross-encoders; default: the encoder's body"
    )
    pooling: Literal["mean", "cls"] = setting("cls", "how token states are pooled into one embedding")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransEncoderConfig:
    """Settings of the cycles; ``[optim]`` of the run applies to encoders, ``student`` is the first of them."""

    cycles: int = setting(3, "number of cycles; 3 for STS, 5 for binary tasks", minimum=1)
    mode: Literal["refreshing", "sequential"] = setting(
        "refreshing", "start each cycle from the original models (refreshing) or from the last ones (sequential)"
    )
    backbone: str | None = setting(
        None, "the raw pre-trained model of refreshed cross-encoders; default: the student's body"
    )
    peers: tuple[PeerConfig, ...] = setting((), "other models, for mutual distillation")
    both_orders: bool = setting(True, "train cross-encoders on (a, b) and (b, a); QNLI needs one order only")
    cross_length: int = setting(64, "maximum length of a pair in tokens, including special tokens", minimum=5)
    cross_optim: OptimConfig = setting(factory=OptimConfig, doc="optimizer of the cross-encoders")


_HARNESS = {"epsilon": 1e-8, "correct_bias": True}
_PRESET: Mapping[str, Mapping[str, Any]] = {
    "student": {"pooling": "cls", "max_length": 32, "positions": 64},
    "dev": {"every": 200},
    "optim": {"lr": 5e-5, "batch_size": 128, "epochs": 10, "warmup": 0.0, **_HARNESS},
    "settings": {"cross_optim": {"lr": 2e-5, "batch_size": 32, "epochs": 1, "warmup": 0.1, **_HARNESS}},
}


class CrossToEncoder(Method):
    """Trains an encoder on scores in (0, 1); the two views are the two texts of each pair."""

    batch_spec: ClassVar[BatchSpec] = BatchSpec(views=2, scores=True)

    def __init__(self, encoder: SentenceEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, batch: Batch) -> StepOutput:
        """Return the squared error of the pairs' cosines, averaged over the batch, in float32."""
        first, second = (embed(self.encoder, view) for view in batch.views)
        assert batch.scores is not None
        return StepOutput(functional.mse_loss(functional.cosine_similarity(first, second), batch.scores.float()))


@dataclasses.dataclass
class _Member:
    """A model of a run, named like its folders.

    ``original`` is its initial encoder, which is never trained; refreshed cross-encoders start from ``backbone``,
    or from the body of ``original`` if that is None. ``latest``, an encoder or a cross-encoder, labels next.
    """

    name: str
    original: SentenceEncoder
    backbone: str | None
    latest: SentenceEncoder | PairEncoder


@dataclasses.dataclass
class _Best:
    """The best model of one kind over all members and cycles, or the last one if there are no scores."""

    folder: Path | None = None
    state: TrainState = dataclasses.field(default_factory=TrainState)

    def offer(self, folder: Path, state: TrainState) -> None:
        score, best = state.best_score, self.state.best_score
        if score is None or best is None or score > best:
            self.folder, self.state = folder, state


def _check(config: RunConfig, settings: TransEncoderConfig, corpus: Corpus) -> None:
    """Check that the corpus has pairs, at least a batch for either kind of model."""
    if corpus.views != 2:
        raise ConfigError(
            "trans-encoder learns from pairs of texts: name two columns with --view-columns, or use a .tsv file"
        )
    orders = 2 if settings.both_orders else 1
    for spec, count, optim in (
        (CrossToEncoder.batch_spec, orders * len(corpus), settings.cross_optim),
        (CrossToEncoder.batch_spec, len(corpus), config.optim),
    ):
        check_batches(spec, count, columns=corpus.views, batch_size=optim.batch_size, views=_AS_IT_IS)


def _train(stage: Stage, settings: TransEncoderConfig, encoder: SentenceEncoder) -> TrainState:
    """Self- and mutual distillation between encoders and cross-encoders, on unlabelled pairs.

    The encoder with the best development score is written to ``folder/model``, the best cross-encoder to
    ``folder/cross-model``; the stages' run folders are ``folder/cycle-N/MEMBER/{cross,encoder}``.

    Raises:
        ConfigError: a model has too few positions for pairs of the configured length.
    """
    members = _gather(stage.config, settings, encoder)
    for member in members:
        _check_start(member, settings, stage.config)
    best, total = {kind: _Best() for kind in _KINDS}, TrainState()
    for cycle in range(1, settings.cycles + 1):
        for kind, (labels_file, loader, train) in _KINDS.items():
            place = stage.inside(f"cycle-{cycle}")
            labels = _labels(place, labels_file, members)
            for member in members:
                own = place.inside(member.name, kind)
                state = train(own, settings, member, labels)
                total.step += state.step
                total.seconds += state.seconds
                if not state.finished:
                    return total
                member.latest = loader(own.folder.model)
                best[kind].offer(own.folder.model, state)
        logger.info("cycle %d of %d is done", cycle, settings.cycles)
    if processes.first():
        _deliver(best["encoder"], best["cross"], stage.folder)
    chosen = best["encoder"].state
    return dataclasses.replace(total, best_score=chosen.best_score, best_step=chosen.best_step, finished=True)


def clamp_labels(labels: FloatArray) -> FloatArray:
    """Clip labels to [0, 1], where the cross-entropy has a lower bound."""
    return np.clip(labels, 0.0, 1.0).astype(np.float32)


def _gather(config: RunConfig, settings: TransEncoderConfig, encoder: SentenceEncoder) -> list[_Member]:
    members = [_Member(_STUDENT, copy.deepcopy(encoder), settings.backbone, encoder)]
    for number, peer in enumerate(settings.peers, 1):
        model = SentenceEncoder.load(
            config.resolve_model(peer.source), pooling=peer.pooling, max_length=config.student.max_length
        )
        model.require_writable()
        members.append(_Member(f"peer-{number}", model, peer.backbone, copy.deepcopy(model)))
    return members


def _check_start(member: _Member, settings: TransEncoderConfig, config: RunConfig) -> None:
    """Check that the first cross-encoder can be built, before hours of labelling."""
    try:
        _start_cross(member, settings, config)
    except ModelError as error:
        raise ConfigError(
            f"a cross-encoder cannot start from {member.name}: {error}; lower settings.cross_length, or raise "
            "student.positions for a new student"
        ) from error


def _labels(stage: Stage, name: str, members: Sequence[_Member]) -> FloatArray:
    """Return the mean label of all members for every pair, ``(N,) float32`` in [0, 1]; saved for resumed runs."""
    path = stage.folder.path / name
    with processes.first_alone():
        if not (stage.control.resume and path.exists()) and processes.first():
            labels = clamp_labels(np.mean([_label(member.latest, stage) for member in members], axis=0))
            stage.folder.check_in_place()
            with atomic_file(path) as temporary, temporary.open("wb") as file:
                np.save(file, labels)
        try:
            return np.asarray(np.load(path), dtype=np.float32)
        except (OSError, ValueError, EOFError) as error:
            raise CheckpointError(f"{path} is damaged ({error}); delete it and continue with --resume") from error


def _label(network: SentenceEncoder | PairEncoder, stage: Stage) -> FloatArray:
    """Return an encoder's cosine or a cross-encoder's score in (0, 1) of every pair: ``(N,) float32``."""
    to_device(network, stage.config.device)
    corpus = stage.data.corpus
    labels = np.empty(len(corpus), dtype=np.float32)
    with Progress("label", len(corpus), unit="pairs") as progress:
        for rows in in_chunks(np.arange(len(corpus))):
            first, second = corpus.texts(rows, 0), corpus.texts(rows, 1)
            if isinstance(network, PairEncoder):
                labels[rows] = TorchCrossEncoder(network).predict(list(zip(first, second, strict=True)))
            else:
                embed = TorchEncoder(network).encode
                labels[rows] = cosines(embed(first), embed(second))
            progress.advance(len(rows))
    return labels


def _train_cross(stage: Stage, settings: TransEncoderConfig, member: _Member, labels: FloatArray) -> TrainState:
    cross, dev = _start_cross(member, settings, stage.config), stage.data.dev
    _adjust(cross, member, stage.config)
    report_truncated_pairs(stage.data.corpus, cross.tokenizer, "settings.cross_length")
    batches = PairBatchSource(
        stage.data.corpus,
        cross.tokenizer,
        scores=labels,
        batch_size=settings.cross_optim.batch_size,
        seed=stage.config.seed,
        both_orders=settings.both_orders,
    )
    evaluate = None if dev is None else lambda: {"dev": evaluate_cross_encoder(TorchCrossEncoder(cross), dev)}
    learner = PairTrainingModule(cross, functional.binary_cross_entropy_with_logits)
    return stage.fit(learner, batches, settings.cross_optim, evaluate)


def _train_encoder(stage: Stage, settings: TransEncoderConfig, member: _Member, labels: FloatArray) -> TrainState:
    encoder, dev = _start_encoder(member, settings), stage.data.dev
    _adjust(encoder, member, stage.config)
    batches = BatchSource(
        stage.data.corpus,
        encoder.tokenizer,
        spec=CrossToEncoder.batch_spec,
        batch_size=stage.config.optim.batch_size,
        seed=stage.config.seed,
        views=_AS_IT_IS,
        scores=labels,
    )
    evaluate = None if dev is None else lambda: {"dev": evaluate_pairs(TorchEncoder(encoder), dev)}
    return stage.fit(CrossToEncoder(encoder), batches, stage.config.optim, evaluate)


# Kind of network, in the order of a cycle -> file of the labels that it learns, how to load and to train it.
_KINDS: Mapping[str, tuple[str, Callable[[Path], SentenceEncoder | PairEncoder], Callable[..., TrainState]]] = {
    "cross": ("cosines.npy", PairEncoder.load, _train_cross),
    "encoder": ("scores.npy", SentenceEncoder.load, _train_encoder),
}


def _start_cross(member: _Member, settings: TransEncoderConfig, config: RunConfig) -> PairEncoder:
    length = settings.cross_length
    if settings.mode == "refreshing" and member.backbone is not None:
        return PairEncoder.start(config.resolve_model(member.backbone), max_length=length, seed=config.seed)
    latest = member.latest if settings.mode == "sequential" else member.original
    encoder = latest if isinstance(latest, SentenceEncoder) else member.original
    return PairEncoder.from_encoder(encoder, max_length=length, seed=config.seed)


def _start_encoder(member: _Member, settings: TransEncoderConfig) -> SentenceEncoder:
    original = member.original
    if settings.mode == "sequential" and isinstance(member.latest, PairEncoder):
        return member.latest.to_encoder(pooling=original.pooling, max_length=original.max_length)
    return copy.deepcopy(original)


def _adjust(network: SentenceEncoder | PairEncoder, member: _Member, config: RunConfig) -> None:
    """Give a network of the student the dropout and the frozen words of the configuration; peers keep theirs."""
    if member.name == _STUDENT:
        adjust(network, config.student)


def _deliver(encoder: _Best, cross: _Best, folder: RunFolder) -> None:
    """Write the best model of each kind to where export expects it, with the cross-encoder's scores."""
    assert encoder.folder is not None
    assert cross.folder is not None
    folder.save(SentenceEncoder.load(encoder.folder), folder.model)
    folder.save(PairEncoder.load(cross.folder), folder.path / "cross-model")
    figures = {
        "dev_spearman": cross.state.best_score,
        "best_step": cross.state.best_step,
        "steps": cross.state.step,
    }
    folder.write(folder.path / "cross-model.json", json.dumps(figures, indent=1))


TRANS_ENCODER = Recipe(
    TransEncoderConfig,
    _train,
    _check,
    presets=dict.fromkeys(SIZES, _PRESET),  # Table 16 differs for Large only
    batch_spec=BatchSpec(views=2, scores=True),
    paper="Liu et al., ICLR 2022",
)
