"""When a result is right: a bound derived from how products are summed, element by element.

    |D - exact| <= gamma * (|A| @ |B|.T) + (K / 32) 2^-150 + half an ulp of FP32 and of D's dtype

`gamma` follows from a backend's `Accumulation`; the middle term covers block sums that underflow to
FP32 subnormals; the exact product is FP64, whose own rounding gamma_53(K) is added. There is no
tolerance to tune.

Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., chapters 3 and 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mxgemm.backends.base import Accumulation
from mxgemm.formats import MXFP4

FP32 = Accumulation()
FP64 = Accumulation(significand_bits=53)
SUBNORMAL_HALF_ULP = 2.0**-150
STEPS_PER_BLOCK = 2
"""Matrix instructions align and truncate their addends together; a k-step of at least 16 adds one
accumulator to them, so at most two further truncations per block of 32."""

CHUNK_ELEMENTS = 1 << 24


@dataclass(frozen=True, slots=True)
class Expected:
    """What a result is compared with.

    Attributes:
        product: the exact D, float64 [M, N].
        magnitude: |A| @ |B|.T, float64 [M, N].
        k: length of the contraction.
        accumulation: how the variant sums.
    """

    product: torch.Tensor
    magnitude: torch.Tensor
    k: int
    accumulation: Accumulation


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a result compares.

    Attributes:
        worst: greatest |error| / bound; above 1 is wrong, inf where an element is not finite.
        relative_error: ||D - exact||_F / ||exact||_F.
        detail: where and how much, empty when passed.
    """

    worst: float
    relative_error: float
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether every element is finite and within the bound."""
        return not self.detail


def gamma(accumulation: Accumulation, k: int) -> float:
    """Return the relative error bound of a sum of k products, relative to the sum of magnitudes."""
    if k == 0:
        return 0.0
    span = min(k, accumulation.promote_every or k)
    blocks = -(-span // MXFP4.block)
    inner = _gamma(accumulation, span, blocks)
    if accumulation.promote_every is None or span == k:
        return inner
    outer = _gamma(FP32, -(-k // span), 1)
    return inner + outer + inner * outer


def _gamma(accumulation: Accumulation, terms: int, blocks: int) -> float:
    if accumulation.exact_blocks:
        # One rounding when a block's sum is scaled, one per addition.
        terms = blocks + 1
    if accumulation.truncates:
        # Truncation only shrinks, so each loss is at most one unit of the sum of magnitudes.
        unit = 2.0 ** (1 - accumulation.significand_bits)
        return (terms + STEPS_PER_BLOCK * blocks) * unit
    total = terms * 2.0**-accumulation.significand_bits
    return total / (1 - total) if total < 1 else math.inf


def verify(out: torch.Tensor, expected: Expected) -> Verdict:
    """Return how `out` [M, N], float or int32, compares with what is expected, in chunks of rows.

    Every element is looked at. Integers must be exact up to the FP64 product's rounding.
    """
    rows, columns = out.shape
    if tuple(expected.product.shape) != (rows, columns):
        shape = tuple(expected.product.shape)
        return Verdict(math.inf, math.inf, f"shape must be {shape}, got {(rows, columns)}")
    step = max(1, CHUNK_ELEMENTS // max(1, columns))
    worst, where, squared, norm = 0.0, (0, 0), 0.0, 0.0
    for start in range(0, rows, step):
        exact = expected.product[start : start + step]
        error = (out[start : start + step].to(torch.float64) - exact).abs()
        bound = _bound(exact, expected.magnitude[start : start + step], expected, out.dtype)
        # An error of 0 passes a bound of 0; NaN and Inf fail any.
        ratio = torch.where(error == 0, 0.0, error / bound)
        ratio = torch.where(ratio.isnan(), math.inf, ratio)
        top = int(ratio.argmax())
        if float(ratio.flatten()[top]) > worst:
            worst = float(ratio.flatten()[top])
            where = (start + top // columns, top % columns)
        squared += float(error.square().sum())
        norm += float(exact.square().sum())
    relative = math.sqrt(squared / norm) if norm else math.sqrt(squared)
    if worst <= 1:
        return Verdict(worst, relative)
    row, column = where
    got, exact_value = float(out[row, column]), float(expected.product[row, column])
    detail = f"D[{row}, {column}] is {got:.9g}, exact {exact_value:.9g}, {worst:.3g} of the bound"
    return Verdict(worst, relative, detail)


def _bound(
    exact: torch.Tensor, magnitude: torch.Tensor, expected: Expected, dtype: torch.dtype
) -> torch.Tensor:
    k = expected.k
    bound = magnitude * (gamma(expected.accumulation, k) + gamma(FP64, k))
    if not dtype.is_floating_point:
        return bound
    bound = bound + -(-k // MXFP4.block) * SUBNORMAL_HALF_ULP
    for rounding in {torch.float32, dtype}:
        bound = bound + _half_ulp(exact.abs() + bound, rounding)
    return bound


def _half_ulp(magnitude: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return half the spacing of `dtype` at `magnitude`, float64."""
    info = torch.finfo(dtype)
    smallest_exponent = round(math.log2(info.smallest_normal))
    precision = 1 - round(math.log2(info.eps))
    exponent = (torch.frexp(magnitude).exponent - 1).clamp(min=smallest_exponent)
    return torch.ldexp(torch.full_like(magnitude, 0.5), exponent + 1 - precision)
