"""The numerics once more, scalar, in exact arithmetic and sharing no code with mxgemm.

Written from the definitions of OCP Microscaling Formats (MX) v1.0 and of the scale rules, over
`Fraction` and Python integers, one number at a time.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

GRID = tuple(Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12))
"""The magnitudes of E2M1, index = code."""

BLOCK = 32


def power(exponent: int) -> Fraction:
    """Return 2^exponent."""
    return Fraction(2) ** exponent


def code_value(code: int) -> Fraction:
    """Return the value of an E2M1 code; -0 is 0 here."""
    return -GRID[code - 8] if code >= 8 else GRID[code]


def nearest_code(y: Fraction, *, negative: bool) -> int:
    """Return the code nearest to y, the even one of two that are equally near."""
    magnitude = min(range(8), key=lambda code: (abs(GRID[code] - abs(y)), code % 2))
    return magnitude + 8 * negative


def floor_log2(value: Fraction) -> int:
    """Return the greatest e with 2^e <= value, for value > 0."""
    e = value.numerator.bit_length() - value.denominator.bit_length()
    return e if power(e) <= value else e - 1


def ceil_log2(value: Fraction) -> int:
    """Return the least e with 2^e >= value, for value > 0."""
    e = floor_log2(value)
    return e if power(e) == value else e + 1


def _even(amax: Fraction) -> int:
    e = floor_log2(amax)
    return e - 2 + (amax / power(e) >= Fraction(7, 4))


EXPONENT: dict[str, Callable[[Fraction], int]] = {
    "floor": lambda amax: floor_log2(amax) - 2,
    "even": _even,
    "ceil": lambda amax: ceil_log2(amax) - 2,
    "rceil": lambda amax: ceil_log2(amax / 6),
}
"""The unclamped exponent of the scale by rule, from its definition as a logarithm."""


def scale_byte(amax: Fraction, rule: str) -> int:
    """Return the scale byte of a block whose largest magnitude is amax."""
    return 127 if amax == 0 else max(0, EXPONENT[rule](amax) + 127)


def search_byte(block: Sequence[float]) -> int:
    """Return the byte of the search rule as it is defined: FP64, ascending order, first of the
    least.
    """
    amax = max(abs(Fraction(x)) for x in block)
    if amax == 0:
        return 127
    start = scale_byte(amax, "floor")
    best: tuple[float, int] | None = None
    for step in (0, 1, -1):
        byte = min(max(start + step, 0), 254)
        error = 0.0
        for x in block:
            y = x * 2.0 ** (127 - byte)
            q = float(code_value(nearest_code(Fraction(y), negative=y < 0)))
            error += (y - q) * (y - q)
        error *= 4.0 ** (byte - start)
        if best is None or error < best[0]:
            best = (error, byte)
    return best[1]


def quantize_block(block: Sequence[float], rule: str) -> tuple[int, list[int]]:
    """Return the byte and the codes of a finite block."""
    amax = max(abs(Fraction(x)) for x in block)
    byte = search_byte(block) if rule == "search" else scale_byte(amax, rule)
    codes = [
        nearest_code(Fraction(x) / power(byte - 127), negative=math.copysign(1, x) < 0)
        for x in block
    ]
    return byte, codes
