"""The statistics, against known values and against samples of known distributions."""

from __future__ import annotations

import math
import random

import pytest

from mxgemm.bench import spread
from mxgemm.bench.spread import Estimate

pytestmark = pytest.mark.host


@pytest.mark.parametrize(
    ("confidence", "degrees", "value"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.99, 5, 4.032), (0.95, 10, 2.228), (0.999, 30, 3.646)],
)
def test_student_t_is_the_tables(confidence, degrees, value):
    assert spread.student_t(confidence, degrees) == pytest.approx(value, rel=2e-3)


def test_quantiles_are_linear_between_neighbours():
    assert [spread.quantile([4, 1, 3, 2], q) for q in (0, 0.5, 1)] == [1, 2.5, 4]


def test_band_covers_the_ratio_as_often_as_it_says():
    rng = random.Random(0)
    covered = 0
    for _ in range(400):
        base = [math.exp(rng.gauss(0, 0.05)) for _ in range(15)]
        new = [math.exp(rng.gauss(0, 0.05)) for _ in range(15)]
        low, _, high = spread.paired(base, new).band(0.95)
        covered += low <= 1 <= high
    assert covered >= 0.92 * 400


def test_drift_that_hits_both_cancels():
    drift = [1 + 0.1 * i for i in range(20)]
    estimate = spread.paired([2 * d for d in drift], [1 * d for d in drift])
    assert estimate == Estimate(pytest.approx(math.log(2)), spread.RESOLUTION, 20)


def test_rounds_that_resemble_their_neighbours_count_for_less():
    rng = random.Random(0)
    steps = [rng.gauss(0, 1) for _ in range(60)]
    slow = [sum(steps[max(0, i - 8) : i + 1]) for i in range(60)]
    shuffled = random.Random(1).sample(slow, len(slow))
    assert spread.location(slow).error > 1.5 * spread.location(shuffled).error


def test_one_round_says_nothing():
    assert spread.location([0.0]).band(0.9)[2] == math.inf


def test_deviation_ignores_what_moves_a_whole_group():
    rng = random.Random(0)
    groups = [[shift + rng.gauss(0, 0.02) for _ in range(9)] for shift in (0, 0.5, -0.3, 0.1)]
    assert spread.deviation(groups) == pytest.approx(0.02, rel=0.35)
    assert spread.deviation([[1.0], [2.0]]) == 0.0


def test_beyond_takes_out_what_is_explained():
    assert spread.beyond(0.05, [0.03, 0.03]) == pytest.approx(0.04)
    assert spread.beyond(0.02, [0.03]) == 0.0


def test_mean_is_the_geometric_mean():
    estimates = [Estimate(math.log(x), 0.03, 10) for x in (1, 2, 4)]
    low, middle, high = spread.mean(estimates).band(0.95)
    assert middle == pytest.approx(2)
    assert low < 2 < high
    assert spread.geometric_mean([1, 2, 4]) == pytest.approx(2)


def test_family_of_bands_holds_together():
    assert spread.each_confidence(0.99, 10) ** 10 == pytest.approx(0.99)


def test_pooled_deviation_and_its_degrees_of_freedom():
    assert spread.pooled([]) == spread.Pooled(0.0, 0)
    assert spread.pooled([[3.0], [5.0]]) == spread.Pooled(0.0, 0)
    # Squares 2 * 1 and 2 * 4 over 1 + 1 degrees.
    found = spread.pooled([[1.0, 3.0], [10.0, 14.0]])
    assert (found.sigma, found.degrees) == (math.sqrt(5), 2)
