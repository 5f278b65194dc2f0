"""What a correct GEMM may differ by: elementwise bounds derived from a backend's declared
accumulation, never tuned.

    |D - D_exact| <= gamma(K) (|A| @ |B|.T) + (K/32) 2^-150 + half an ulp of the output

before an epilogue; `epilogue_bound` carries the first two terms through one. Source: Higham,
Accuracy and Stability of Numerical Algorithms, section 4.2, for gamma.

The same holds for a plain A: a product of a 24-bit value and a code is no FP32 number, but a fused
multiply-add rounds it together with the sum, so that it counts as one addition.
"""

from __future__ import annotations

import torch

from mxgemm import epilogue as epilogues
from mxgemm.backends.base import BLOCK, FP32_UNIT, Accumulation
from mxgemm.epilogue import Activation, Epilogue, EpilogueArgs
from mxgemm.numerics import e8m0
from mxgemm.plain import PlainOperand
from mxgemm.quantizers import dequantize
from mxgemm.tensor import MXTensor

FP32_UNDERFLOW = 2.0**-150
"""Half of FP32's smallest subnormal: what rounding one block's sum can lose below the normal
range."""
PRODUCT_UNIT_EXPONENT, SUBNORMAL_EXPONENT = -2, -149
"""Products of two E2M1 values are multiples of the first power of two, FP32 numbers of the second.
"""

ACTIVATION_ULPS = 8
"""Rounding units of |z| that an FP32 implementation of gelu may lose; the exact activations lose
none."""

SLOPE = {
    Activation.NONE: 1.0,
    Activation.RELU: 1.0,
    Activation.GELU: 1.13,
    Activation.GELU_TANH: 1.13,
}
"""Largest |act'|: how much an activation can amplify an error of its argument."""


def exact_product(
    a: MXTensor | PlainOperand | torch.Tensor, b: MXTensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A @ B.T and |A| @ |B|.T in FP64, float64 [M, N], of the values as stored (rotation
    and prescale left in).
    """
    if isinstance(a, MXTensor):
        left = dequantize(a, torch.float64, rotate_to_source=False) * a.prescale
    else:
        left = (a.values if isinstance(a, PlainOperand) else a).double()
    right = dequantize(b, torch.float64, rotate_to_source=False) * b.prescale
    return left @ right.t(), left.abs() @ right.abs().t()


def in_range(a: MXTensor, b: MXTensor) -> torch.Tensor:
    """Return where the range of FP32 holds every partial sum of A @ B.T, in any order, bool [M, N].

    There |A| @ |B|.T is at most FP32's largest number, and no block's scales reach below its
    smallest. Elsewhere a sum in FP32 may be infinite or NaN, or has lost what is below.
    """
    _, magnitude = exact_product(a, b)
    found = magnitude <= torch.finfo(torch.float32).max
    left, right = a.canonical_scales().int(), b.canonical_scales().int()
    for block in range(left.shape[1]):
        exponents = left[:, block, None] + right[None, :, block] - 2 * e8m0.BIAS
        found &= exponents + PRODUCT_UNIT_EXPONENT >= SUBNORMAL_EXPONENT
    return found


def product_bound(magnitude: torch.Tensor, k: int, accumulation: Accumulation) -> torch.Tensor:
    """Return the bound of the error of A @ B.T before the epilogue, float64 [M, N].

    Args:
        magnitude: |A| @ |B|.T, float64 [M, N].
        k: length of the contraction.
        accumulation: how the backend sums.
    """
    return accumulation.gamma(k) * magnitude + (k / BLOCK) * FP32_UNDERFLOW


def epilogue_bound(
    product: torch.Tensor, error: torch.Tensor, epilogue: Epilogue, args: EpilogueArgs
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return D in FP64 and the bound of its error before output rounding, an FP32 epilogue's own
    roundings included.

    Args:
        product: A @ B.T, float64 [M, N].
        error: the bound of its error, float64 [M, N].
        epilogue: what is done on the way out.
        args: its values and tensors; `c` as it was before the call.
    """
    z, bound = product * args.alpha, error * abs(args.alpha)
    if epilogue.has_alpha:
        bound = bound + FP32_UNIT * z.abs()
    if args.bias is not None:
        z = z + args.bias.double()
        bound = bound + FP32_UNIT * z.abs()
    if args.aux_in is not None:
        aux = args.aux_in.double()
        slope = epilogues.derivative(aux, epilogue.dact)
        d = z * slope
        bound = bound * slope.abs() + FP32_UNIT * (
            d.abs() + _inexact(epilogue.dact) * z.abs() * (1 + aux.abs())
        )
    else:
        d = epilogues.activate(z, epilogue.activation)
        bound = (
            bound * SLOPE[epilogue.activation] + FP32_UNIT * _inexact(epilogue.activation) * z.abs()
        )
    if args.c is not None:
        scaled = args.beta * args.c.double()
        d = d + scaled
        bound = bound + FP32_UNIT * (scaled.abs() + d.abs())
    return d, bound


def half_ulp(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return half a unit in the last place of `dtype` at each value, float64: what one rounding
    to nearest may lose.
    """
    info = torch.finfo(dtype)
    exponent = torch.frexp(values.double().abs().clamp(min=info.smallest_normal))[1]
    return torch.ldexp(torch.full_like(values, info.eps / 4, dtype=torch.float64), exponent)


def excess(out: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """Return by how much each element of `out` is farther from `exact` than `bound` and output
    rounding allow, 0 for none.

    An element whose exact value is NaN must be NaN; one that may round beyond the largest finite
    value may be infinite.
    """
    limit = bound + half_ulp(exact.abs() + bound, out.dtype)
    # FP32 lies between the FP64 sum and a 16-bit output, so there are two roundings.
    limit = limit + (
        half_ulp(exact.abs() + bound, torch.float32) if out.dtype != torch.float32 else 0
    )
    distance = (out.double() - exact).abs()
    overflow = exact.abs() + limit > torch.finfo(out.dtype).max
    fits_infinity = out.isinf() & overflow & (torch.sign(out.double()) == torch.sign(exact))
    distance = torch.where(fits_infinity, 0.0, distance)
    both_nan = out.isnan() & exact.isnan()
    distance = torch.where(
        both_nan, 0.0, torch.where(out.isnan() | exact.isnan(), torch.inf, distance)
    )
    limit = torch.where(exact.isnan(), 0.0, limit)
    return (distance - limit).clamp(min=0)


def _inexact(activation: Activation) -> int:
    return ACTIVATION_ULPS if activation in (Activation.GELU, Activation.GELU_TANH) else 0
