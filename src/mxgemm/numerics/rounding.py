"""Rounding scaled values to E2M1 codes: to nearest with ties to even, and stochastically.

Both saturate at 6 and keep the sign of everything, also of zero and of what rounds to zero. NaN
never reaches these functions: the quantizer gives a block that holds one the scale 255 and codes 0.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from mxgemm.formats import E2M1
from mxgemm.numerics.e2m1 import SIGN_BIT

MAGNITUDES = E2M1.values[:SIGN_BIT]
MIDPOINTS = tuple((low + high) / 2 for low, high in pairwise(MAGNITUDES))


def _sign_codes(y: torch.Tensor) -> torch.Tensor:
    return torch.signbit(y).to(torch.uint8) * SIGN_BIT


def nearest_even(y: torch.Tensor) -> torch.Tensor:
    """Return the codes nearest to FP32 `y`, a tie going to the even code: 0.25->0, 0.75->1,
    1.25->1, 1.75->2, 2.5->2, 3.5->4, 5->4.

    Args:
        y: float32, any shape, values divided by their block's scale.

    Returns:
        uint8 codes 0..15, same shape.
    """
    midpoints = torch.tensor(MIDPOINTS, dtype=torch.float32, device=y.device)
    # The midpoint above an even code belongs to that code, so the next one starts just behind it.
    above_even = torch.nextafter(midpoints, torch.full_like(midpoints, torch.inf))
    is_even = torch.arange(len(MIDPOINTS), device=y.device) % 2 == 0
    starts = torch.where(is_even, above_even, midpoints)
    magnitude = torch.bucketize(y.abs().contiguous(), starts, right=True, out_int32=True)
    return magnitude.to(torch.uint8) | _sign_codes(y)


def stochastic(y: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Return codes whose expected value is `y` for |y| <= 6, an element decided by its own word.

    With lo <= |y| < hi the neighbouring magnitudes and t = (|y| - lo) / (hi - lo), which FP32 holds
    exactly, the result is hi when word < t * 2^32 and lo otherwise: P(hi) is t rounded up to a
    multiple of 2^-32.

    Args:
        y: float32, any shape, values divided by their block's scale.
        words: int64, same number of elements, uniform in 0..2^32-1.

    Returns:
        uint8 codes 0..15, same shape as y.
    """
    magnitudes = torch.tensor(MAGNITUDES, dtype=torch.float32, device=y.device)
    size = y.abs().clamp(max=MAGNITUDES[-1]).contiguous()
    low = torch.bucketize(size, magnitudes[1:], right=True, out_int32=True)
    high = (low + 1).clamp(max=len(MAGNITUDES) - 1)
    step = torch.where(high > low, magnitudes[high] - magnitudes[low], 1.0)
    threshold = ((size - magnitudes[low]) / step).double() * 2.0**32
    up = words.view(y.shape).double() < threshold
    return torch.where(up, high, low).to(torch.uint8) | _sign_codes(y)
