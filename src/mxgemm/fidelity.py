"""How much of a matrix survived its quantization: SQNR, saturated and zero elements, poolable over
tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mxgemm.numerics import e2m1, e8m0
from mxgemm.numerics.hadamard import rotate
from mxgemm.tensor import MXTensor

CHUNK_ELEMENTS = 1 << 22
"""Elements compared at once: about 0.2 GiB of FP64 temporaries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """Sums over a quantized tensor's elements; `+` pools two tensors.

    Attributes:
        signal: sum of x^2.
        error: sum of (x - q)^2.
        elements: how many.
        saturated: elements beyond 6 times their scale, which became 6 times their scale.
        zeros: elements whose code is zero of either sign.
    """

    signal: float = 0.0
    error: float = 0.0
    elements: int = 0
    saturated: int = 0
    zeros: int = 0

    @property
    def sqnr_db(self) -> float:
        """10 log10(signal / error); inf where the values are represented exactly, nan where they
        are not finite.
        """
        if self.error == 0:
            return math.inf
        ratio = self.signal / self.error
        return 10 * math.log10(ratio) if ratio > 0 else math.nan

    @property
    def saturated_percent(self) -> float:
        """Saturated elements in percent of all."""
        return 100 * self.saturated / max(1, self.elements)

    @property
    def zero_percent(self) -> float:
        """Elements with a zero code in percent of all."""
        return 100 * self.zeros / max(1, self.elements)

    def __add__(self, other: Fidelity) -> Fidelity:
        return Fidelity(
            signal=self.signal + other.signal,
            error=self.error + other.error,
            elements=self.elements + other.elements,
            saturated=self.saturated + other.saturated,
            zeros=self.zeros + other.zeros,
        )


def measure(x: torch.Tensor, tensor: MXTensor) -> Fidelity:
    """Return how `tensor` compares with the matrix it was quantized from, in FP64.

    Values are compared as the GEMM sees them: after the tensor's rotation, which changes no norm,
    and without its prescale.

    Args:
        x: float32, bfloat16 or float16 [rows, k], what was quantized.
        tensor: its quantization.

    Raises:
        ValueError: the shapes differ.
    """
    if tuple(x.shape) != tensor.shape:
        raise ValueError(
            f"fidelity: x must have the tensor's shape {tensor.shape}, got {tuple(x.shape)}"
        )
    codes, scales = tensor.canonical_codes(), tensor.canonical_scales()
    total = Fidelity()
    step = max(1, CHUNK_ELEMENTS // max(1, tensor.stored_k))
    for start in range(0, tensor.rows, step):
        rows = slice(start, start + step)
        total += _measure_rows(x[rows], codes[rows], scales[rows], tensor)
    return total


def _measure_rows(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, tensor: MXTensor
) -> Fidelity:
    source = torch.nn.functional.pad(x.detach().float(), (0, tensor.stored_k - tensor.k))
    if tensor.rotation is not None:
        source = rotate(source, tensor.rotation)
    blocks = torch.unflatten(source, -1, (-1, tensor.format.block))
    unpacked = e2m1.unpack(codes)
    scale = e8m0.decode(scales, torch.float64)[..., None] / tensor.prescale
    values = torch.unflatten(e2m1.decode(unpacked, torch.float64), -1, (-1, tensor.format.block))
    # Elements past k are zeros in both and count for nothing.
    zeros = (unpacked[:, : tensor.k] & (e2m1.SIGN_BIT - 1)) == 0
    return Fidelity(
        signal=energy(source),
        error=energy(values.mul_(scale).sub_(blocks)),
        elements=zeros.numel(),
        saturated=int((blocks.abs() > e2m1.MAX * scale).sum()),
        zeros=int(zeros.sum()),
    )


def energy(x: torch.Tensor) -> float:
    """Return the sum of squares of a floating tensor, accumulated in FP64."""
    return float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2
