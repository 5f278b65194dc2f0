"""A kernel that its vendor wrote and tests on the device gives the right product here: an outside
witness.
"""

import re

import numpy as np
import pytest

import flydsl_witness
from flydsl_witness import CASES

pytestmark = pytest.mark.emulated

BF16_HALF_ULP = 2.0**-8
FP32_UNIT = 2.0**-23

needs_checkout = pytest.mark.skipif(
    not flydsl_witness.has_checkout(),
    reason="needs MXGEMM_FLYDSL_REPO: a checkout of the FlyDSL repository",
)


@needs_checkout
@pytest.mark.compile
@pytest.mark.parametrize("case", CASES, ids=str)
def test_vendor_kernel_agrees_with_float64_up_to_bf16_rounding(case):
    code = flydsl_witness.compile_case(case)
    for seed, timing in enumerate(("early", "late", "random")):
        out, product, _ = flydsl_witness.run_case(code, case, timing, seed)
        worst, nearest = flydsl_witness.errors(out, product)
        assert worst <= BF16_HALF_ULP + 2 * case.k * FP32_UNIT
        assert nearest > 0.999
        assert not np.isnan((out.astype(np.uint32) << 16).view(np.float32)).any()


def test_log_of_the_vendor_kernel_is_of_these_cases_and_within_rounding():
    rows = [
        line.strip("| ").split(" | ")
        for line in flydsl_witness.LOG.read_text().splitlines()
        if line.startswith("| m")
    ]
    assert [row[0] for row in rows] == [str(case) for case in CASES for _ in range(3)]
    for name, _, _, worst, nearest, _ in rows:
        k = int(re.search(r"-k(\d+)-", name)[1])
        assert float(worst) <= BF16_HALF_ULP + 2 * k * FP32_UNIT
        assert float(nearest) > 0.999
