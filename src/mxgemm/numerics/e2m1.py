"""E2M1 codes on tensors: decode, encode, and two codes to a byte.

A code is 4 bits, sign | 2 exponent bits | 1 mantissa bit; its magnitudes are 0, 0.5, 1, 1.5, 2, 3,
4, 6. There is no NaN and no infinity, so a caller that meets one must say so by the block's scale
(see `e8m0`). Source: OCP Microscaling Formats (MX) v1.0.
"""

from __future__ import annotations

import torch

from mxgemm.formats import E2M1

MAX = E2M1.max
SIGN_BIT = 8


def decode(codes: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the values of `codes`, same shape, exactly; code 8 is -0.0.

    Args:
        codes: uint8, any shape, one code 0..15 an element.
        dtype: a floating dtype; every E2M1 value is exact in all of torch's.
    """
    table = torch.tensor(E2M1.values, dtype=dtype, device=codes.device)
    return table[codes.int()]


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Return two codes a byte along the last axis, the even index in the low nibble.

    Args:
        codes: uint8 [..., K], K even, values 0..15.

    Returns:
        uint8 [..., K/2].
    """
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Return one code a byte: the inverse of `pack`, uint8 [..., K/2] -> uint8 [..., K]."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)
