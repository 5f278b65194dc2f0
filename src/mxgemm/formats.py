"""Number formats as data: what a code means, never how a tensor of them is stored or computed with.

Source: OCP Microscaling Formats (MX) v1.0, section 5 (formats); IEEE 754-2019 for the vocabulary.
Pure Python, so that the emulator and code generators can use the tables without torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, kw_only=True)
class ElementFormat:
    """A small binary floating-point format `sign | exponent | mantissa`.

    `nan_codes` and `inf_codes` hold the unsigned codes (sign bit clear) that are not finite; every
    other code decodes by the usual rule, subnormal when the exponent field is 0.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    nan_codes: frozenset[int] = frozenset()
    inf_codes: frozenset[int] = frozenset()

    @property
    def bits(self) -> int:
        """Width of one code."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @cached_property
    def values(self) -> tuple[float, ...]:
        """The value of every code, index = code; -0.0 keeps its sign, NaN and Inf where the
        format has them.
        """
        return tuple(self._decode(code) for code in range(1 << self.bits))

    @cached_property
    def max(self) -> float:
        """The largest finite value."""
        return max(v for v in self.values if math.isfinite(v))

    @cached_property
    def max_exponent(self) -> int:
        """floor(log2(max)): `emax` of the MX specification."""
        return math.frexp(self.max)[1] - 1

    def _decode(self, code: int) -> float:
        sign = -1.0 if code >> (self.bits - 1) else 1.0
        magnitude = code & ((1 << (self.bits - 1)) - 1)
        if magnitude in self.nan_codes:
            return math.copysign(math.nan, sign)
        if magnitude in self.inf_codes:
            return sign * math.inf
        exponent = magnitude >> self.mantissa_bits
        fraction = (magnitude & ((1 << self.mantissa_bits) - 1)) / (1 << self.mantissa_bits)
        if exponent == 0:
            return sign * math.ldexp(fraction, 1 - self.bias)
        return sign * math.ldexp(1 + fraction, exponent - self.bias)


@dataclass(frozen=True, kw_only=True)
class ScaleFormat:
    """An unsigned 8-bit scale: exponent only (E8M0), or exponent and mantissa (E5M3)."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    nan_code: int | None = None

    @cached_property
    def values(self) -> tuple[float, ...]:
        """The value of every code, index = code. E8M0 has neither zero nor infinity; its code 255
        is NaN.
        """
        return tuple(
            self._decode(code) for code in range(1 << (self.exponent_bits + self.mantissa_bits))
        )

    def _decode(self, code: int) -> float:
        if code == self.nan_code:
            return math.nan
        exponent, mantissa = code >> self.mantissa_bits, code & ((1 << self.mantissa_bits) - 1)
        if self.mantissa_bits and exponent == 0:
            return math.ldexp(mantissa, 1 - self.bias - self.mantissa_bits)
        return math.ldexp(1 + mantissa / (1 << self.mantissa_bits), exponent - self.bias)


@dataclass(frozen=True)
class BlockFormat:
    """Elements that share one scale per `block` consecutive values along the contraction."""

    name: str
    element: ElementFormat
    scale: ScaleFormat
    block: int


@dataclass(frozen=True)
class PlainFormat:
    """Values as torch stores them, without scales; `name` is the dtype's: bfloat16."""

    name: str


E2M1 = ElementFormat(name="E2M1", exponent_bits=2, mantissa_bits=1, bias=1)
E2M3 = ElementFormat(name="E2M3", exponent_bits=2, mantissa_bits=3, bias=1)
E3M2 = ElementFormat(name="E3M2", exponent_bits=3, mantissa_bits=2, bias=3)
E4M3 = ElementFormat(
    name="E4M3", exponent_bits=4, mantissa_bits=3, bias=7, nan_codes=frozenset({0x7F})
)
E5M2 = ElementFormat(
    name="E5M2",
    exponent_bits=5,
    mantissa_bits=2,
    bias=15,
    nan_codes=frozenset({0x7D, 0x7E, 0x7F}),
    inf_codes=frozenset({0x7C}),
)
E8M0 = ScaleFormat(name="E8M0", exponent_bits=8, mantissa_bits=0, bias=127, nan_code=255)
E5M3 = ScaleFormat(name="E5M3", exponent_bits=5, mantissa_bits=3, bias=15, nan_code=255)

MXFP4 = BlockFormat("mxfp4", E2M1, E8M0, 32)
