"""int8 products with fixed activation scales, so that results do not depend on other texts in the batch.

Dynamic quantization uses one scale for all texts of a batch, determined by their largest value. Here the inputs of
each product are measured on texts, and their range is divided into 255 steps once and for all. Values outside the
range, in texts unlike those measured, are clipped.

After a LayerNorm, a few inputs are many times larger than the others, which suffer from a common step. The inputs
of such a product are first equalised, half by their own range and half by that of their weights (Xiao et al. 2023,
SmoothQuant, equation 4 with alpha = 0.5). This costs a multiplication per value, and is harmful where large values
are rare, as after a Gelu; it is applied only where it reduces the expected error by a third.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from embedkit.export.inputs import InputStatistics
from embedkit.export.quantize import multiply, quantize
from embedkit.export.writer import GraphWriter
from embedkit.protocols import FloatArray

_LEVELS = 255
_SMALLEST = 1e-5
# Smoothing is applied if it reduces the expected squared error to less than this share.
_WORTH = 2 / 3


@dataclass(frozen=True)
class StaticInt8Products:
    """Products of int8 weights and activations of known ranges.

    Attributes:
        largest: maximum magnitude of a weight.
        inputs: name of a product -> statistics of its inputs.
    """

    largest: int
    inputs: Mapping[str, InputStatistics]

    def matmul(self, graph: GraphWriter, name: str, value: str, weight: FloatArray) -> str:
        """Smooth inputs if that helps, quantize them, multiply integers, and scale back to float32."""
        rounding = _choose_rounding(self.inputs[name], weight, self.largest)
        # ONNX Runtime folds products of constants, and then does not recognise the group of operators that it can
        # fuse into one kernel. An input is not a constant, even with a default value.
        step = graph.default_input(f"{name}.activation_scale", rounding.step)
        zero = graph.constant(f"{name}.activation_zero", np.array(rounding.zero, dtype=np.uint8))
        if rounding.factors is not None:
            value = graph.add("Mul", f"{name}.nearer", value, graph.constant(f"{name}.factors", rounding.factors))
            weight = weight / rounding.factors[:, None]
        rounded = graph.add("QuantizeLinear", f"{name}.rounded", value, step, zero)
        return multiply(graph, name, rounded, zero, step, *quantize(weight, self.largest, axis=0))


@dataclass(frozen=True, slots=True)
class _Rounding:
    """Quantization of inputs: multiply by factors, if any, divide by the step, round, add the zero point."""

    factors: FloatArray | None
    step: float
    zero: int


def _choose_rounding(seen: InputStatistics, weight: FloatArray, largest: int) -> _Rounding:
    met = np.maximum(np.abs(weight).max(axis=1), _SMALLEST)
    magnitudes = np.maximum(np.maximum(-seen.least, seen.largest), _SMALLEST)
    factors = np.sqrt(met / magnitudes)
    none = np.ones_like(factors)
    helps = _expect_error(factors, seen, weight, largest) < _WORTH * _expect_error(none, seen, weight, largest)
    least, step = _fit(factors if helps else none, seen)
    return _Rounding(factors if helps else None, step, round(-least / step))


def _fit(factors: FloatArray, seen: InputStatistics) -> tuple[float, float]:
    """Return the smallest scaled input and the step that covers the range."""
    least, largest = float((seen.least * factors).min()), float((seen.largest * factors).max())
    return least, max(largest - least, _SMALLEST) / _LEVELS


def _expect_error(factors: FloatArray, seen: InputStatistics, weight: FloatArray, largest: int) -> float:
    """Return twelve times the expected squared error of a row's outputs, for independent rounding errors."""
    steps = _fit(factors, seen)[1] / factors
    weight_steps = np.abs(weight / factors[:, None]).max(axis=0) / largest
    of_inputs = (np.square(weight) * np.square(steps)[:, None]).sum()
    of_weights = (seen.power * np.square(factors)).sum() * np.square(weight_steps).sum()
    return float(of_inputs + of_weights)
