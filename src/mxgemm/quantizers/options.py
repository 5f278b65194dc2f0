"""What a quantization is asked to do, checked once and handed to whichever device does it."""

from __future__ import annotations

from dataclasses import dataclass

from mxgemm.numerics.hadamard import Rotation
from mxgemm.quantizers.scale_rules import DEFAULT_RULE, RULES

ROUNDINGS = ("nearest_even", "stochastic")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeOptions:
    """The numerics of one quantization; layouts and padding are not part of it.

    Attributes:
        rule: scale rule, one of scale_rules.RULES.
        rounding: "nearest_even" or "stochastic".
        rotation: Hadamard along the contraction before the scales are chosen, or None.
        block_2d: one scale per 32 x 32 tile instead of per 32 elements of a row.
        prescale: multiply elements by 3/4 after the scale was chosen, so that none exceeds 6 under
            any rule.
        seed: 64-bit seed of the stochastic rounding; 0 for nearest_even.

    Raises:
        TypeError: rotation is no Rotation, or block_2d or prescale no bool.
        ValueError: an unknown rule or rounding.
    """

    rule: str = DEFAULT_RULE
    rounding: str = "nearest_even"
    rotation: Rotation | None = None
    block_2d: bool = False
    prescale: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"quantize: rule must be one of {RULES}, got {self.rule!r}")
        if self.rounding not in ROUNDINGS:
            raise ValueError(
                f"quantize: rounding must be one of {ROUNDINGS}, got {self.rounding!r}"
            )
        check_flag("block_2d", self.block_2d)
        check_flag("prescale", self.prescale)
        if self.rotation is not None and not isinstance(self.rotation, Rotation):
            raise TypeError(
                f"quantize: rotation must be a Rotation or None, got "
                f"{type(self.rotation).__name__}; Rotation(size) makes one"
            )

    @property
    def prescale_factor(self) -> float:
        """Factor that the elements carry relative to their scales."""
        return PRESCALE if self.prescale else 1.0

    @property
    def contraction_multiple(self) -> int:
        """What the stored contraction is a multiple of: whole blocks and whole rotations."""
        return self.rotation.period if self.rotation is not None else BLOCK


def check_flag(name: str, value: object) -> None:
    """Raise TypeError unless a switch is a bool: a factor in the place of `prescale`, say, would
    be taken for "on".
    """
    if not isinstance(value, bool):
        raise TypeError(f"quantize: {name} must be True or False, got {value!r}")


BLOCK = 32
PRESCALE = 0.75
ALONG_K, ALONG_M = 0, 1
"""Philox streams of the two halves of a pair."""
