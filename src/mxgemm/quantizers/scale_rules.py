"""How a block's E8M0 scale follows from its largest magnitude.

With E(a) the biased exponent field and m(a) the mantissa of a = max|x| in FP32, every closed rule
is one integer addition:

    byte = max(0, ((bits(a) + bias) >> 23) - 2)

because adding `bias` to the bits carries into the exponent exactly when the mantissa exceeds the
rule's threshold, and 2 is the exponent of E2M1's largest value 6 = 1.5 * 2^2.

| rule   | bias     | exponent goes up when | saturates                      | also known as      |
|--------|----------|-----------------------|--------------------------------|--------------------|
| floor  | 0        | never                 | yes, for mantissas in (1.5, 2) | OCP v1.0 RoundDown |
| even   | 0x200000 | mantissa >= 1.75      | yes, in (1.5, 1.75)            | round-even (AMD)   |
| rceil  | 0x3FFFFF | mantissa > 1.5        | no: a / 6 up to a power of two | ROUND_UP (NVIDIA)  |
| ceil   | 0x7FFFFF | mantissa > 1          | no: a / 4 up to a power of two | Ceil               |
| search | -        | least squared error   | may                            | SSE optimal        |

`search` tries the floor rule's byte and its two neighbours and keeps the first with the least sum
of squared errors. A block of zeros gets byte 127; one that holds NaN or Inf gets byte 255; bytes
below 0 become 0 (2^-127). The largest byte that a finite FP32 block gets is 253.
"""

from __future__ import annotations

import torch

from mxgemm.numerics import e2m1, e8m0, rounding

ROUNDING_BIAS = {"floor": 0, "even": 0x200000, "rceil": 0x3FFFFF, "ceil": 0x7FFFFF}
SEARCH = "search"
RULES = ("floor", "even", "ceil", "rceil", SEARCH)
DEFAULT_RULE = "even"

MANTISSA_BITS = 23
MAX_ELEMENT_EXPONENT = 2
LARGEST_BYTE = 254


def scale_bytes(groups: torch.Tensor, rule: str) -> torch.Tensor:
    """Return the scale byte of each group of elements that share one.

    Args:
        groups: float32 [num_groups, group_size].
        rule: one of RULES.

    Returns:
        int32 [num_groups], 0..255.
    """
    amax = _amax(groups)
    finite = amax.isfinite()
    if rule == SEARCH:
        byte = _search(torch.where(finite[:, None], groups, 0.0), torch.where(finite, amax, 0.0))
    else:
        byte = _closed(amax, ROUNDING_BIAS[rule])
    byte = torch.where(amax == 0, e8m0.ONE, byte)
    return torch.where(finite, byte, e8m0.NAN).to(torch.int32)


def _amax(groups: torch.Tensor) -> torch.Tensor:
    # torch's amax propagates NaN, which is what marks the block.
    if groups.shape[-1] == 0:
        return groups.new_zeros(groups.shape[0])
    return groups.abs().amax(dim=-1)


def _closed(amax: torch.Tensor, bias: int) -> torch.Tensor:
    # In int64, so that the bits of Inf and NaN plus the bias do not wrap before they are replaced.
    bits = amax.view(torch.int32).long()
    return (((bits + bias) >> MANTISSA_BITS) - MAX_ELEMENT_EXPONENT).clamp(min=0)


def _search(groups: torch.Tensor, amax: torch.Tensor) -> torch.Tensor:
    """Return the best of the floor byte and its neighbours; a tie keeps the earlier of (same, +1,
    -1).

    Errors are FP64: y = x * 2^(127 - byte), (y - round(y))^2 summed over the group in ascending
    order, times 4^(byte - floor), so that every implementation of the rule gives the same byte.
    """
    start = _closed(amax, ROUNDING_BIAS["floor"])
    best_byte, best_error = start, _squared_error(groups, start)
    for step in (1, -1):
        byte = (start + step).clamp(0, LARGEST_BYTE)
        error = _squared_error(groups, byte) * torch.pow(4.0, (byte - start).double())
        better = error < best_error
        best_byte = torch.where(better, byte, best_byte)
        best_error = torch.where(better, error, best_error)
    return best_byte


def _squared_error(groups: torch.Tensor, byte: torch.Tensor) -> torch.Tensor:
    scale = torch.pow(2.0, (e8m0.BIAS - byte).double())
    y = groups.double() * scale[:, None]
    # |y| < 16, and FP32 keeps y exactly unless it is far below the grid, so FP32 rounding to codes
    # is the real one.
    q = e2m1.decode(rounding.nearest_even(y.float()), torch.float64)
    squares = (y - q).square()
    total = squares.new_zeros(squares.shape[0])
    for column in range(squares.shape[1]):
        total = total + squares[:, column]
    return total
