"""What timings say: medians, quantiles, geometric means, and how far a ratio may be noise.

Everything works on logarithms, where a ratio is a difference and a factor of 2 weighs the same up
and down. Timings of a shared machine have outliers and drift, so the location is the median, its
scale the median absolute deviation, and rounds that resemble their neighbours count for less.

Source: Student-t expansion, Abramowitz and Stegun 26.7.5; DerSimonian and Laird, Meta-analysis in
clinical trials, 1986, for the variance beyond what each part shows.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAD_TO_SIGMA = 1.4826
MEDIAN_EFFICIENCY = 1.2533
"""A median's standard error over a mean's, for a normal distribution: sqrt(pi / 2)."""

RESOLUTION = 0.002
"""Least relative standard error that is believed: clocks, alignment and page placement."""

MAX_CORRELATION = 0.8
CHANCE = 1.96
"""Correlations below this over the root of the number of rounds are what chance alone shows."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A log ratio with its standard error.

    Attributes:
        center: natural logarithm of the ratio.
        error: standard error of `center`.
        count: number of rounds (or rows) behind it.
    """

    center: float
    error: float
    count: int

    def band(self, confidence: float) -> tuple[float, float, float]:
        """Return (low, ratio, high): the ratio and the limits it lies in with `confidence`."""
        half = student_t(confidence, max(1, self.count - 1)) * self.error
        return math.exp(self.center - half), math.exp(self.center), math.exp(self.center + half)


def quantile(values: Sequence[float], q: float) -> float:
    """Return the q-quantile, 0 <= q <= 1, linear between neighbours."""
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of positive values."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def paired(base: Sequence[float], new: Sequence[float]) -> Estimate:
    """Return log(base / new) from samples of the same rounds: drift that hits both cancels."""
    return location([math.log(x / y) for x, y in zip(base, new, strict=True)])


def location(values: Sequence[float]) -> Estimate:
    """Return the median of `values` (logarithms, in the order of the rounds) with its error."""
    center = statistics.median(values)
    count = len(values)
    if count < 2:
        return Estimate(center, math.inf, count)
    scale = MAD_TO_SIGMA * statistics.median(abs(value - center) for value in values)
    correlation = _correlation(values)
    independent = max(2.0, count * (1 - correlation) / (1 + correlation))
    error = MEDIAN_EFFICIENCY * scale / math.sqrt(independent)
    return Estimate(center, max(error, RESOLUTION), count)


def difference(base: Estimate, new: Estimate) -> Estimate:
    """Return new - base of two independent runs."""
    count = base.count + new.count - 1
    return Estimate(new.center - base.center, math.hypot(base.error, new.error), count)


def deviation(groups: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation inside groups of logarithms around each group's own median.

    Groups of one say nothing. With rows grouped by variant, a variant that changed as a whole moves
    its median and not the spread around it, so that it does not hide itself.
    """
    residuals: list[float] = []
    for group in groups:
        if len(group) < 2:
            continue
        middle = statistics.median(group)
        # The median takes one degree of freedom.
        factor = math.sqrt(len(group) / (len(group) - 1))
        residuals += [abs(value - middle) * factor for value in group]
    # A group's own median is among its values, or halfway between two: zeros say nothing.
    residuals = [value for value in residuals if value > 0]
    return MAD_TO_SIGMA * statistics.median(residuals) if residuals else 0.0


@dataclass(frozen=True, slots=True)
class Pooled:
    """A standard deviation that several groups share, and its degrees of freedom."""

    sigma: float
    degrees: int


def pooled(groups: Iterable[Sequence[float]]) -> Pooled:
    """Return the standard deviation inside groups around each group's own mean; groups of one say
    nothing.
    """
    squares, degrees = 0.0, 0
    for group in groups:
        middle = statistics.fmean(group)
        squares += sum((value - middle) ** 2 for value in group)
        degrees += len(group) - 1
    return Pooled(math.sqrt(squares / degrees) if degrees else 0.0, degrees)


def beyond(deviation: float, errors: Sequence[float]) -> float:
    """Return the part of a deviation among values that their own standard errors do not explain."""
    return math.sqrt(max(0.0, deviation**2 - statistics.fmean(error**2 for error in errors)))


def widen(estimate: Estimate, further: float) -> Estimate:
    """Return the estimate with a further, independent deviation."""
    return Estimate(estimate.center, math.hypot(estimate.error, further), estimate.count)


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of independent log ratios: the logarithm of their geometric mean."""
    count = len(estimates)
    center = statistics.fmean(estimate.center for estimate in estimates)
    error = math.sqrt(sum(estimate.error**2 for estimate in estimates)) / count
    return Estimate(center, error, sum(estimate.count for estimate in estimates))


def each_confidence(family: float, count: int) -> float:
    """Return the confidence of each of `count` bands so that all hold with `family` together."""
    return float(family ** (1 / max(1, count)))


def student_t(confidence: float, degrees: int) -> float:
    """Return the two-sided Student-t quantile: |t| is below it with `confidence`."""
    tail = (1 + confidence) / 2
    if degrees == 1:
        return math.tan(math.pi * (tail - 0.5))
    if degrees == 2:
        alpha = 4 * tail * (1 - tail)
        return 2 * (tail - 0.5) * math.sqrt(2 / alpha)
    z = statistics.NormalDist().inv_cdf(tail)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(degrees) ** (i + 1) for i, term in enumerate(terms))


def _correlation(values: Sequence[float]) -> float:
    """Return the correlation of neighbouring rounds: 0 unless it is positive beyond chance."""
    middle = statistics.fmean(values)
    centered = [value - middle for value in values]
    variance = sum(value * value for value in centered)
    if variance == 0:
        return 0.0
    lagged = sum(x * y for x, y in itertools.pairwise(centered))
    correlation = lagged / variance
    if correlation < CHANCE / math.sqrt(len(values)):
        return 0.0
    return min(correlation, MAX_CORRELATION)
