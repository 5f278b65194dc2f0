"""Block Hadamard rotations along the contraction: they spread outliers and cancel in A @ B.T when
both operands carry the same.

Size 16 rotates both halves of every block of 32, which is ROCm TransformerEngine's form; 32 and 64
rotate one and two whole blocks. Sizes 16 and 64 have power-of-two normalisation (1/4, 1/8), so that
the rotation of small integers is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

SIZES = (16, 32, 64)
BLOCK = 32


@dataclass(frozen=True, slots=True)
class Rotation:
    """A Hadamard rotation of `size` consecutive elements along the contraction, with optional sign
    flips before it.

    Attributes:
        size: 16, 32 or 64.
        signs: bit mask over `period` elements: element k is negated where bit k % period is set; 0
            flips nothing.

    Raises:
        ValueError: another size, or a mask wider than the period.
    """

    size: int
    signs: int = 0

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise ValueError(f"Rotation: size must be one of {SIZES}, got {self.size}")
        if not 0 <= self.signs < 1 << self.period:
            raise ValueError(
                f"Rotation: signs must be a mask of {self.period} bits for size {self.size}, got "
                f"{self.signs:#x}"
            )

    @classmethod
    def random(cls, size: int, generator: torch.Generator | None = None) -> Rotation:
        """Return a rotation whose signs are drawn from `generator`; give the same object to both
        operands of a GEMM.
        """
        plain = cls(size)
        device = generator.device if generator is not None else "cpu"
        bits = torch.randint(0, 2, (plain.period,), generator=generator, device=device).tolist()
        return cls(size, sum(int(bit) << k for k, bit in enumerate(bits)))

    @property
    def period(self) -> int:
        """Number of elements after which the signs repeat: whole blocks, whole rotations."""
        return max(self.size, BLOCK)

    @property
    def normalisation(self) -> float:
        """1/sqrt(size), to be rounded to FP32 before use."""
        return 1.0 / math.sqrt(self.size)

    def __str__(self) -> str:
        return f"hadamard{self.size}" + (f"/signs={self.signs:#x}" if self.signs else "")


def rotate(x: torch.Tensor, rotation: Rotation, *, normalise: bool = True) -> torch.Tensor:
    """Return x rotated along its last axis in FP32: sign flips, butterflies in natural order, then
    one multiplication.

    The stages h = 1, 2, 4, .. replace (a, b), h apart, by (a + b, a - b); this order is part of the
    definition, so that every quantizer gives the same bits.

    Args:
        x: float32 [..., K], K a multiple of `rotation.period`.
        rotation: size and signs.
        normalise: False leaves out the factor 1/sqrt(size).

    Returns:
        float32 [..., K].
    """
    x = _flip_signs(x, rotation)
    distance = 1
    while distance < rotation.size:
        pairs = torch.unflatten(x, -1, (-1, 2, distance))
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        x = torch.stack((low + high, low - high), dim=-2).flatten(-3)
        distance *= 2
    return x * x.new_tensor(rotation.normalisation) if normalise else x


def rotate_back(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Return the inverse of `rotate`: the Hadamard matrix is its own inverse up to scale, and the
    signs come last.
    """
    return _flip_signs(rotate(x, Rotation(rotation.size)), rotation)


def _flip_signs(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    if not rotation.signs:
        return x
    flips = [-1.0 if rotation.signs >> k & 1 else 1.0 for k in range(rotation.period)]
    return (torch.unflatten(x, -1, (-1, rotation.period)) * x.new_tensor(flips)).flatten(-2)
