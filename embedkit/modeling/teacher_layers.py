"""Students cut from their teacher: some of its layers, narrowed if the student is narrower.

Two layers of a six-layer teacher preserve more of it than randomly initialised layers learn in hours. The effect
of omitted layers, and of the narrower state, is compensated as far as a linear map can: every weight of the
student is taken from the teacher and fitted by ridge regression on states of real text.

The layers are processed from first to last:

* **read**: queries, keys, values and the first product of the feed-forward block expect the teacher's state at
  their position. The affine map from the student's state to it is fitted and multiplied into their weights.
* **select**: the heads and feed-forward units that change the teacher's state most are kept, as many as the
  student has: by the standard deviation of a unit's activation times the norm of its outgoing weights. Units with
  extreme activations are divided among copies.
* **write**: the products that add to the state are refitted, from the outputs of the kept heads and units to
  the teacher's state; so are scale and shift of each LayerNorm, column by column.

A cross-encoder is cut in the same way, on pairs. Its pooler reads the teacher's last state like a layer and keeps
the units that change the logit most, and its last product is refitted to the teacher's logits.

The narrower state consists of the leading principal components of the teacher's state (after the embeddings and
after each kept layer), rotated at random so that all columns carry equal variance, as LayerNorm expects.

Sources: least-squares reconstruction is that of pruning (He et al., ICCV 2017, channels; Frantar and Alistarh,
2022, weights); principal components of the residual stream are those of SliceGPT (Ashkboos et al., ICLR 2024).
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle
from transformers import BertForSequenceClassification

from embedkit.errors import ModelError
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import Size, random
from embedkit.modeling.pretrained import check_bert, evaluating, seeded
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer

_TEXTS_PER_BATCH = 64
_ROWS_PER_PRODUCT = 1024
_SCORE_RIDGE = 1e-2  # there is one observation for each pair, not for each token
_USUAL = 0.95  # share of feed-forward units whose largest activation counts as usual
_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")

_Place = tuple[nn.Module, str]
_Batch = dict[str, Tensor]


def choose_layers(count: int, depth: int) -> tuple[int, ...]:
    """Return the teacher layers for a student of ``count`` layers, from 1: evenly spaced, including the last.

    Raises:
        ModelError: the teacher has fewer layers.
    """
    if not 0 <= count <= depth:
        raise ModelError(f"a student of {count} layers cannot be cut from a teacher of {depth}")
    return (depth,) if count == 1 else tuple(int(place) for place in np.linspace(1, depth, count).round())


def from_layers(
    teacher: SentenceEncoder,
    size: Size,
    texts: Sequence[str],
    *,
    layers: Sequence[int] | None = None,
    max_length: int,
    seed: int,
    positions: int | None = None,
) -> SentenceEncoder:
    """Create a BERT encoder from some of its teacher's layers.

    Args:
        teacher: an encoder of the BERT family with absolute positions.
        size: shape of the student. Its heads are as wide as the teacher's; ``size.heads`` is ignored.
        texts: a few hundred to a few thousand representative texts, on which the maps are fitted.
        layers: teacher layers to take, counted from 1, ascending; default: :func:`choose_layers`.
        max_length: maximum length of the student's texts in tokens.
        seed: seed of everything random.
        positions: rows of the position table, ``max_length`` if None.

    Raises:
        ModelError: the teacher is of another family, or the student is wider, deeper or longer than its teacher.
    """
    chosen = tuple(layers) if layers is not None else choose_layers(size.layers, _depth(teacher))
    shape = _fitting_shape(teacher, size, chosen, positions or max_length)
    student = random(
        teacher.tokenizer, shape, max_length=max_length, seed=seed, positions=positions, pooling=teacher.pooling
    )
    student.backbone.config.hidden_act = teacher.config.hidden_act
    student.backbone.config.layer_norm_eps = teacher.config.layer_norm_eps
    with torch.no_grad(), evaluating(teacher), evaluating(student):
        student.backbone = type(student.backbone)(student.backbone.config, add_pooling_layer=False).eval()
        _Cut(teacher.backbone, student.backbone, chosen, _batches(student.tokenizer, texts), seed).copy()
    return student


def cross_from_layers(
    teacher: PairEncoder,
    size: Size,
    pairs: Sequence[tuple[str, str]],
    *,
    layers: Sequence[int] | None = None,
    max_length: int,
    seed: int,
) -> PairEncoder:
    """Create a BERT cross-encoder from some of its teacher's layers; see :func:`from_layers`.

    Some pairs should be relevant, others irrelevant.

    Raises:
        ModelError: the teacher is of another family, or the student is wider, deeper or longer than its teacher.
    """
    chosen = tuple(layers) if layers is not None else choose_layers(size.layers, _depth(teacher))
    shape = _fitting_shape(teacher, size, chosen, max_length)
    config: Any = copy.deepcopy(teacher.config)
    config.num_hidden_layers, config.hidden_size = shape.layers, shape.hidden
    config.num_attention_heads, config.intermediate_size = shape.heads, shape.feed_forward
    config.max_position_embeddings = max_length
    with seeded(seed):
        network = BertForSequenceClassification(config)
    student = PairEncoder(network, PairTokenizer(teacher.tokenizer.json, max_length), name=teacher.name)
    batches = _batches(student.tokenizer, pairs)
    with torch.no_grad(), evaluating(teacher), evaluating(student):
        _Cut(teacher.network.base_model, student.network.base_model, chosen, batches, seed).copy()
        _copy_score(teacher, student, batches)
    return student


def _copy_score(teacher: PairEncoder, student: PairEncoder, batches: Sequence[_Batch]) -> None:
    """Fit the pooler and the last product."""
    theirs: Any = teacher.network
    own: Any = student.network
    expected = torch.cat([theirs.bert(**batch).last_hidden_state[:, 0] for batch in batches])
    states = torch.cat([own.bert(**batch).last_hidden_state[:, 0] for batch in batches])
    lift, shift = fit_affine(states, expected)
    dense, last = theirs.bert.pooler.dense, theirs.classifier
    pooled = torch.tanh(dense(expected))
    effect = pooled.std(dim=0) * last.weight[0].abs()
    units = effect.topk(states.shape[1]).indices.sort().values
    _compose(dense.weight[units], dense.bias[units], lift, shift, own.bert.pooler.dense)
    weight, bias = fit_affine(torch.tanh(own.bert.pooler.dense(states)), last(pooled), ridge=_SCORE_RIDGE)
    own.classifier.weight.copy_(weight)
    own.classifier.bias.copy_(bias)


def _depth(teacher: SentenceEncoder | PairEncoder) -> int:
    check_bert(teacher, "students are cut from teachers")
    return int(teacher.config.num_hidden_layers)


def _fitting_shape(
    teacher: SentenceEncoder | PairEncoder, size: Size, layers: Sequence[int], positions: int
) -> Size:
    depth, config = _depth(teacher), teacher.config
    ascending = len(layers) == size.layers and sorted(set(layers)) == list(layers)
    if not ascending or not set(layers) <= set(range(1, depth + 1)):
        raise ModelError(
            f"expected {size.layers} different layers of a teacher's {depth} in ascending order, found "
            f"{', '.join(map(str, layers))}"
        )
    wide, inner, longest = config.hidden_size, config.intermediate_size, config.max_position_embeddings
    for name, own, theirs in (
        ("hidden", size.hidden, wide),
        ("intermediate_size", size.feed_forward, inner),
        ("positions", positions, longest),
    ):
        if own > theirs:
            raise ModelError(
                f"{name} = {own} exceeds the {theirs} of {teacher.name}, from which the student is cut"
            )
    by_head = wide // config.num_attention_heads
    if size.hidden % by_head:
        raise ModelError(f"hidden = {size.hidden} is not a multiple of the teacher's head width {by_head}")
    return Size(size.layers, size.hidden, size.hidden // by_head, size.feed_forward)


class _Cut:
    """Fits one student, from its embeddings to its last layer."""

    def __init__(
        self,
        # Any: mypy types the modules of a transformers network as tensors or modules.
        teacher: Any,
        student: Any,
        layers: Sequence[int],
        batches: Sequence[_Batch],
        seed: int,
    ) -> None:
        self.teacher, self.student = teacher, student
        self.theirs = [teacher.encoder.layer[number - 1] for number in layers]
        self.batches = batches
        self.seen = self._watch(self.teacher, _places(self.teacher, self.theirs))
        width = int(student.config.hidden_size)
        self.same_width = width == int(teacher.config.hidden_size)
        self.basis = self._find_basis(width, seed)

    def copy(self) -> None:
        """Fill in the student's weights."""
        self._copy_embeddings()
        for own, theirs in zip(self.student.encoder.layer, self.theirs, strict=True):
            self._copy_attention(own, theirs)
            self._copy_feed_forward(own, theirs)
            for part in theirs.modules():
                self.seen.pop((part, "input"), None)  # gigabytes, over all layers

    def _find_basis(self, width: int, seed: int) -> Tensor:
        """Return orthonormal columns ``(H of the teacher, H of the student)``."""
        wide = int(self.teacher.config.hidden_size)
        if self.same_width:
            return torch.eye(wide)
        covariance = torch.zeros(wide, wide, dtype=torch.float64)
        for norm in (self.teacher.embeddings.LayerNorm, *(layer.output.LayerNorm for layer in self.theirs)):
            states = norm(self.seen[norm, "input"])
            centred = states - states.mean(dim=0)
            covariance += (centred.T @ centred / centred.square().sum()).double()
        components = torch.linalg.eigh(covariance).eigenvectors.flip(1)[:, :width]
        turn, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((width, width)))
        basis: Tensor = components @ torch.from_numpy(turn)
        return basis.float()

    def _copy_embeddings(self) -> None:
        own, theirs = self.student.embeddings, self.teacher.embeddings
        if self.same_width:
            for name in _TABLES:
                table = getattr(own, name).weight
                table.copy_(getattr(theirs, name).weight[: len(table)])
            own.LayerNorm.load_state_dict(theirs.LayerNorm.state_dict())
            return
        words, places, types = (getattr(theirs, name).weight[: len(getattr(own, name).weight)] for name in _TABLES)
        # A word's row is its normalised state at an average position; a position's row is the difference it makes.
        words = words + types[0] + places.mean(dim=0)
        # The first type is a part of the words; another type's row is the difference it makes, too.
        scale = theirs.LayerNorm.weight / words.std(dim=1, unbiased=False).mean()
        own.word_embeddings.weight.copy_(theirs.LayerNorm(words) @ self.basis)
        own.position_embeddings.weight.copy_((places - places.mean(dim=0)) * scale @ self.basis)
        own.token_type_embeddings.weight.copy_((types - types[0]) * scale @ self.basis)
        self._fit_norm(own.LayerNorm, self._look(own.LayerNorm), theirs.LayerNorm)

    def _copy_attention(self, own: Any, theirs: Any) -> None:
        lift, shift = fit_affine(self._look(own), self.seen[theirs, "input"])
        rows = self._choose_heads(own.attention.self.num_attention_heads, theirs.attention.output.dense)
        for name in ("query", "key", "value"):
            source = getattr(theirs.attention.self, name)
            _compose(source.weight[rows], source.bias[rows], lift, shift, getattr(own.attention.self, name))
        self._write(own.attention.output, theirs.attention.output)

    def _copy_feed_forward(self, own: Any, theirs: Any) -> None:
        norm = theirs.attention.output.LayerNorm
        expected = norm(self.seen[norm, "input"])
        lift, shift = fit_affine(self._look(own.intermediate), expected)
        activations = theirs.intermediate(expected)
        units, copies = _choose_units(activations, own.intermediate.dense.out_features, theirs.output.dense)
        source = theirs.intermediate.dense
        weight, bias = source.weight[units] / copies[:, None], source.bias[units] / copies
        _compose(weight, bias, lift, shift, own.intermediate.dense)
        self._write(own.output, theirs.output)

    def _choose_heads(self, count: int, output: nn.Linear) -> Tensor:
        """Return the rows of the queries' weight that belong to the kept heads."""
        width = self.teacher.config.hidden_size // self.teacher.config.num_attention_heads
        parts = zip(self.seen[output, "input"].split(width, dim=1), output.weight.split(width, dim=1), strict=True)
        effect = torch.stack([(context @ weight.T).std(dim=0).norm() for context, weight in parts])
        kept = effect.topk(count).indices.sort().values
        rows: Tensor = kept[:, None] * width + torch.arange(width)
        return rows.flatten()

    def _write(self, own: Any, theirs: Any) -> None:
        """Fit a product that adds to the state, and the LayerNorm after it."""
        places = [(own.dense, "input"), (own, "residual")]
        inputs, before = self._watch(self.student, places).values()
        weight, bias = fit_affine(inputs, self.seen[theirs.LayerNorm, "input"] @ self.basis - before)
        own.dense.weight.copy_(weight)
        own.dense.bias.copy_(bias)
        self._fit_norm(own.LayerNorm, own.dense(inputs) + before, theirs.LayerNorm)

    def _fit_norm(self, norm: nn.LayerNorm, states: Tensor, theirs: nn.LayerNorm) -> None:
        plain = functional.layer_norm(states, states.shape[1:], eps=norm.eps)
        scale, shift = fit_scale(plain, theirs(self.seen[theirs, "input"]) @ self.basis)
        norm.weight.copy_(scale)
        norm.bias.copy_(shift)

    def _look(self, module: nn.Module) -> Tensor:
        """Return the input of one of the student's modules."""
        return self._watch(self.student, [(module, "input")])[module, "input"]

    def _watch(self, network: nn.Module, places: Sequence[_Place]) -> dict[_Place, Tensor]:
        """Return the states of all tokens at some places of a network: ``(T, width)`` each."""
        seen: dict[_Place, list[Tensor]] = {place: [] for place in places}
        with contextlib.ExitStack() as hooks:
            for place in places:
                hook = place[0].register_forward_hook(_keep(seen[place], place[1]), with_kwargs=True)
                hooks.callback(hook.remove)
            hooks.callback(_stop_after(network, places).remove)
            for batch in self.batches:
                with contextlib.suppress(_SeenAll):
                    network(**batch)
                for states in seen.values():
                    states[-1] = states[-1][batch["attention_mask"].bool()]
        return {place: torch.cat(seen.pop(place)) for place in places}  # one place twice in memory, not all


def _choose_units(activations: Tensor, count: int, output: nn.Linear) -> tuple[Tensor, Tensor]:
    """Return the feed-forward units to keep, and how many copies each of them is divided among.

    BERT has units that fire for [CLS] alone, several times as strongly as any other. In int8 they would
    determine the scale of all activations, so such a unit is divided among copies, in place of the least
    effective units.
    """
    effect = activations.std(dim=0) * output.weight.norm(dim=0)
    if count == len(effect):
        return torch.arange(count), torch.ones(count)
    units = effect.topk(count).indices
    largest = activations.amax(dim=0)[units]
    copies = (largest / largest.quantile(_USUAL)).round().clamp(min=1).long()
    return units.repeat_interleave(copies)[:count], copies.repeat_interleave(copies)[:count]


class _SeenAll(Exception):
    """A network has passed all places that are watched; the rest of it need not be computed."""


def _stop_after(network: nn.Module, places: Sequence[_Place]) -> RemovableHandle:
    """Stop a network after the layer that holds the last of some places, or after its embeddings."""
    parts: list[Any] = [network.embeddings, *network.encoder.layer]  # type: ignore[union-attr, misc]
    holding = [part for part in parts if any(module in set(part.modules()) for module, _ in places)]

    def stop(*_: Any) -> None:
        raise _SeenAll

    last: nn.Module = holding[-1]
    return last.register_forward_hook(stop)


def _places(teacher: Any, layers: Sequence[Any]) -> list[_Place]:
    """Return the places at which the teacher's states are recorded: those from which the others are computed."""
    places: list[_Place] = [(teacher.embeddings.LayerNorm, "input")]
    for layer in layers:
        inside = (layer.attention.output.dense, layer.attention.output.LayerNorm, layer.output.LayerNorm)
        places += [(part, "input") for part in (layer, *inside)]
    return places


def _compose(weight: Tensor, bias: Tensor, lift: Tensor, shift: Tensor, into: nn.Linear) -> None:
    """Fold an affine map of the input into a product's weights."""
    into.weight.copy_(weight @ lift)
    into.bias.copy_(bias + weight @ shift)


def _keep(seen: list[Tensor], what: str) -> Callable[..., None]:
    """Return a hook that records a module's first argument (``input``) or its second (``residual``)."""

    def hook(_: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any], _output: Any) -> None:
        seen.append((*inputs, *keywords.values())[what == "residual"])

    return hook


def _batches(tokenizer: Tokenizer | PairTokenizer, items: Sequence[Any]) -> list[_Batch]:
    """Return the inputs of batches of texts or pairs, grouping those of similar length."""
    tokens = tokenizer.tokenize(items)
    if not len(tokens.ids):
        raise ModelError("texts are needed to cut a student from its teacher, but there are none")
    order = np.argsort(tokens.lengths, kind="stable")
    batches = []
    for start in range(0, len(order), _TEXTS_PER_BATCH):
        batch = tokens.batch(order[start : start + _TEXTS_PER_BATCH], tokenizer.pad_id)
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        if batch.token_type_ids is not None:
            inputs["token_type_ids"] = batch.token_type_ids
        batches.append({name: torch.from_numpy(values) for name, values in inputs.items()})
    return batches


_RIDGE = 1e-4  # as a multiple of the inputs' mean variance


def fit_affine(inputs: Tensor, targets: Tensor, *, ridge: float = _RIDGE) -> tuple[Tensor, Tensor]:
    """Fit the affine map from ``(N, I)`` to ``(N, O)``; return weight ``(O, I)`` and bias ``(O,)``.

    Both are float32, in the layout of :class:`torch.nn.Linear`; sums are computed in float64, in blocks of rows.
    ``ridge`` is the penalty on squared weights, as a multiple of the inputs' mean variance.
    """
    mean, target_mean = inputs.mean(dim=0, dtype=torch.float64), targets.mean(dim=0, dtype=torch.float64)
    gram = torch.zeros(inputs.shape[1], inputs.shape[1], dtype=torch.float64)
    product = torch.zeros(inputs.shape[1], targets.shape[1], dtype=torch.float64)
    for rows, wanted in zip(inputs.split(_ROWS_PER_PRODUCT), targets.split(_ROWS_PER_PRODUCT), strict=True):
        centred = (rows - mean.float()).double()
        gram += centred.T @ centred
        product += centred.T @ (wanted - target_mean.float()).double()
    gram.diagonal().add_(ridge * gram.diagonal().mean().clamp(min=1e-12))
    weight = torch.linalg.solve(gram, product).T
    return weight.float(), (target_mean - weight @ mean).float()


def fit_scale(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Fit scale and shift of each column: ``(N, H)`` twice to two of ``(H,) float32``."""
    mean, target_mean = inputs.mean(dim=0), targets.mean(dim=0)
    centred = inputs - mean
    scale = (centred * (targets - target_mean)).sum(dim=0) / centred.square().sum(dim=0).clamp(min=1e-12)
    return scale, target_mean - scale * mean
