"""When a result of a benchmark is right: within `mxgemm.accuracy`'s bound, element by element.

The exact product is FP64, whose own rounding is added. There is no tolerance to tune.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mxgemm import accuracy
from mxgemm.backends.base import Accumulation

FP32 = Accumulation()
FP64 = Accumulation(significand_bits=53)
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
    bound = accuracy.product_bound(magnitude, expected.k, expected.accumulation)
    # The exact product is a sum in FP64.
    bound = bound + magnitude * FP64.gamma(expected.k)
    if not dtype.is_floating_point:
        return bound
    return bound + sum(
        accuracy.half_ulp(exact.abs() + bound, rounding) for rounding in {torch.float32, dtype}
    )
