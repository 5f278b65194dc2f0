"""Rounding to E2M1: to nearest against exact arithmetic, stochastic against its own definition and
in the mean.
"""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch

from exact import GRID, code_value, nearest_code
from mxgemm.numerics import e2m1, philox, rounding

TIES = {0.25: 0, 0.75: 2, 1.25: 2, 1.75: 4, 2.5: 4, 3.5: 6, 5.0: 6}
"""Midpoint of neighbours to the even code."""

FAILURE_PROBABILITY = 1e-9
DRAWS = 1 << 16


def all_bfloat16() -> torch.Tensor:
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    return bits.view(torch.bfloat16)


def all_float16() -> torch.Tensor:
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    return bits.view(torch.float16)


@pytest.mark.parametrize("values", [all_bfloat16, all_float16], ids=["bfloat16", "float16"])
def test_nearest_even_of_every_16_bit_value(values):
    finite = values()
    finite = finite[finite.isfinite()].float()
    positive, negative = finite[~torch.signbit(finite)], finite[torch.signbit(finite)]
    expected = [nearest_code(Fraction(v), negative=False) for v in positive.double().tolist()]
    assert rounding.nearest_even(positive).tolist() == expected
    assert torch.equal(negative, -positive)
    assert rounding.nearest_even(negative).tolist() == [code + 8 for code in expected]


@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
@pytest.mark.parametrize(("tie", "code"), TIES.items(), ids=[f"{t:g}" for t in TIES])
def test_nearest_even_at_and_beside_every_tie(tie, code, sign):
    at = np.float32(tie)
    around = [np.nextafter(at, np.float32(0)), at, np.nextafter(at, np.float32(9))]
    below, exactly, above = rounding.nearest_even(torch.tensor(around) * sign).tolist()
    neighbours = [c for c in range(8) if abs(GRID[c] - Fraction(tie)) <= 1]
    low = max(c for c in neighbours if GRID[c] < tie)
    offset = 8 if sign < 0 else 0
    assert (below, exactly, above) == (low + offset, code + offset, low + 1 + offset)


def test_nearest_even_of_every_decoded_code_is_that_code():
    codes = torch.arange(16, dtype=torch.uint8)
    assert torch.equal(rounding.nearest_even(e2m1.decode(codes)), codes)


def test_nearest_even_keeps_the_sign_of_zero_and_of_what_rounds_to_it():
    y = torch.tensor([0.0, -0.0, 0.2, -0.2, 1e-45, -1e-45, 0.25, -0.25])
    assert rounding.nearest_even(y).tolist() == [0, 8, 0, 8, 0, 8, 0, 8]


def test_nearest_even_saturates_at_six():
    y = torch.tensor([6.0, 6.5, 7.0, 15.0, 3.4e38, -6.0, -7.0, -3.4e38])
    assert rounding.nearest_even(y).tolist() == [7] * 5 + [15] * 3


@pytest.mark.slow
def test_nearest_even_of_every_float32_in_range_of_the_grid():
    # All positive FP32 from 2^-3 (far below the first midpoint) up to 8, by integer thresholds.
    starts = [0.125, 8.0]
    first, last = (int(np.float32(s).view(np.uint32)) for s in starts)
    for start in range(first, last, 1 << 22):
        bits = np.arange(start, min(start + (1 << 22), last), dtype=np.uint32)
        y = bits.view(np.float32)
        # 4*y is exact; comparisons of FP64 against the midpoints, ties by parity.
        wide = y.astype(np.float64)
        expected = np.zeros(len(y), dtype=np.uint8)
        for code, tie in enumerate(sorted(TIES)):
            up = wide > tie if code % 2 == 0 else wide >= tie
            expected[up] = code + 1
        assert np.array_equal(rounding.nearest_even(torch.from_numpy(y.copy())).numpy(), expected)


def stochastic_by_definition(y: Fraction, word: int, *, negative: bool) -> int:
    size = abs(y)
    if size >= 6:
        return 7 + 8 * negative
    low = max(code for code in range(8) if GRID[code] <= size)
    t = (size - GRID[low]) / (GRID[low + 1] - GRID[low])
    return low + (word < t * 2**32) + 8 * negative


def test_stochastic_decides_by_the_word_at_every_threshold():
    sizes = [0.0, 2.0**-40, 0.1, 0.25, 0.4999999, 0.5, 0.7, 1.0, 1.3, 1.5, 1.9, 2.3, 3.0, 3.7, 4.0]
    sizes += [5.9999995, 6.0, 6.5, 100.0]
    cases = []
    for size in [float(np.float32(s)) for s in sizes]:
        exact = Fraction(size)
        low = max(code for code in range(8) if GRID[code] <= exact)
        step = GRID[low + 1] - GRID[low] if low < 7 else Fraction(1)
        threshold = math.floor((exact - GRID[low]) / step * 2**32)
        words = {0, 1, 2**31, 2**32 - 1, threshold - 1, threshold, threshold + 1}
        cases += [(sign * size, w) for w in words if 0 <= w < 2**32 for sign in (1, -1)]
    y = torch.tensor([case[0] for case in cases])
    words = torch.tensor([case[1] for case in cases], dtype=torch.int64)
    expected = [
        stochastic_by_definition(Fraction(v), w, negative=math.copysign(1, v) < 0) for v, w in cases
    ]
    assert rounding.stochastic(y, words).tolist() == expected


def test_stochastic_leaves_representable_values_alone():
    codes = torch.arange(16, dtype=torch.uint8).repeat(3)
    words = torch.tensor([0, 2**31, 2**32 - 1]).repeat_interleave(16)
    assert torch.equal(rounding.stochastic(e2m1.decode(codes), words), codes)


def hoeffding_radius(draws: int, statements: int) -> float:
    """Return r with P(any of `statements` means of `draws` values in [0, 1] is off by more than r)
    <= FAILURE_PROBABILITY: 2 s exp(-2 n r^2).
    """
    return math.sqrt(math.log(2 * statements / FAILURE_PROBABILITY) / (2 * draws))


def test_stochastic_is_unbiased_between_every_pair_of_neighbours():
    draws = DRAWS
    values = [
        float(low + (high - low) * Fraction(i, 8))
        for low, high in pairwise(GRID)
        for i in (1, 3, 7)
    ]
    values += [-v for v in values]
    radius = hoeffding_radius(draws, len(values))
    for index, value in enumerate(values):
        words = philox.words(index, 0, 0, draws, torch.device("cpu"))
        codes = rounding.stochastic(torch.full((draws,), value), words)
        low, high = (float(GRID[c]) for c in sorted({int(c) % 8 for c in codes.unique()}))
        mean = e2m1.decode(codes, torch.float64).mean().item()
        assert low < abs(value) < high
        assert abs(mean - value) <= radius * (high - low), value


def test_stochastic_bound_would_reject_rounding_to_nearest():
    # The same statement about a biased rounding fails by far: 2.3 goes to 2 every time.
    assert abs(float(code_value(int(rounding.nearest_even(torch.tensor(2.3))))) - 2.3) > (
        10 * hoeffding_radius(DRAWS, 42)
    )
