"""A sample of the random problems; tests/native_cpu_problems.py runs any number of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import native_cpu_problems
from mxgemm.backends.native_cpu import NativeCpu
from mxgemm.runtime import native_cpu as runtime

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(
        not runtime.available_isas(), reason=str(NativeCpu().probe() or "the extension is there")
    ),
]

SEED = 3


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Restore the number of threads, which problems change."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_problems_have_their_one_right_result(first: int) -> None:
    for number in range(first, first + 100):
        native_cpu_problems.check(SEED, number)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 10_000, 1000))
def test_ten_thousand_random_problems_have_their_one_right_result(first: int) -> None:
    for number in range(first, first + 1000):
        native_cpu_problems.check(SEED, number)
