"""Edge values of 32 and 64 bits, and two's complement, for tests of instructions."""

from __future__ import annotations

import numpy as np

M32, M64 = (1 << 32) - 1, (1 << 64) - 1
EDGES = [
    0,
    1,
    2,
    5,
    31,
    32,
    33,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x12345678,
    0x55555555,
    0xAAAAAAAA,
]
EDGES += [0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF, 0x00FFFFFF, 0x01000000]
WIDE_EDGES = [
    0,
    1,
    63,
    64,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    1 << 32,
    0x123456789ABCDEF0,
    M64 >> 1,
    1 << 63,
    M64,
]


def signed(value: int, bits: int = 32) -> int:
    """Return the low `bits` of `value` as a signed number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


FLOAT_VALUES = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        1.5,
        -2.5,
        0.5,
        3.0,
        1e-45,
        -1e-45,
        1.17549435e-38,
        3.4028235e38,
        np.inf,
        -np.inf,
        np.nan,
        0.1,
    ],
    np.float32,
)


def assert_same_floats(got: np.ndarray, want: np.ndarray, what: str, ulp: int = 0) -> None:
    """Assert equal FP32 values, or at most `ulp` apart; a NaN only where `want` has one."""
    nan = np.isnan(want)
    assert (np.isnan(got) == nan).all(), what
    distance = np.abs(got.view(np.int32).astype(np.int64) - want.view(np.int32).astype(np.int64))
    assert (distance[~nan] <= ulp).all(), (what, got[~nan], want[~nan])
