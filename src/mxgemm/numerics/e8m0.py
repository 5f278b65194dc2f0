"""E8M0 scale bytes: 2^(byte - 127), byte 0 included, and byte 255 is NaN.

torch's own casts to `float8_e8m0fnu` are not used: they differ between versions for zero, negatives
and halves. Source: OCP Microscaling Formats (MX) v1.0.
"""

from __future__ import annotations

import torch

from mxgemm.formats import E8M0

BIAS = E8M0.bias
NAN = 255
ONE = BIAS
"""The byte of scale 1, given to blocks of zeros."""


def decode(scales: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the values of scale bytes, same shape, exact in FP32 (byte 0 is the subnormal 2^-127)
    and FP64.

    Args:
        scales: uint8, any shape.
        dtype: torch.float32 or torch.float64.
    """
    table = torch.tensor(E8M0.values, dtype=dtype, device=scales.device)
    return table[scales.int()]


def power_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """Return 2^exponents in FP32 for int32 `exponents` in -127..127, built from bits so that -127
    is exact.
    """
    normal = (exponents + 127) << 23
    return torch.where(exponents == -127, 1 << 22, normal).to(torch.int32).view(torch.float32)


def from_floats(values: torch.Tensor) -> torch.Tensor:
    """Return the scale bytes of values that are exactly powers of two in E8M0's range, or NaN.

    Args:
        values: floating, any shape.

    Raises:
        ValueError: a value is zero, negative, infinite, or no power of two: it has no E8M0 code,
        and none is guessed.
    """
    mantissa, exponent = torch.frexp(values.double())
    byte = exponent.int() - 1 + BIAS
    nan = values.isnan()
    bad = ~nan & ((mantissa != 0.5) | (byte < 0) | (byte > 254))
    if bool(bad.any()):
        first = float(values[bad].flatten()[0])
        raise ValueError(
            f"E8M0 scales: each must be a power of two in 2^-127..2^127 or NaN, got {first:g}; "
            "round the scales first, or quantize the tensor anew"
        )
    return torch.where(nan, NAN, byte).to(torch.uint8)
