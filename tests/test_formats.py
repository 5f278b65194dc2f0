"""The format tables: every code of every format against its bits."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from mxgemm.formats import E2M1, E2M3, E3M2, E4M3, E5M2, E5M3, E8M0, MXFP4, ElementFormat

POSITIVE_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
NUMPY_TYPES = {
    E2M1: ml_dtypes.float4_e2m1fn,
    E2M3: ml_dtypes.float6_e2m3fn,
    E3M2: ml_dtypes.float6_e3m2fn,
    E4M3: ml_dtypes.float8_e4m3fn,
    E5M2: ml_dtypes.float8_e5m2,
}
ELEMENTS = tuple(NUMPY_TYPES)


def bits_of(values) -> list[bytes]:
    """Return FP64 bit patterns, NaN made canonical: equality that sees the sign of zero."""
    array = np.array(values, dtype=np.float64)
    array[np.isnan(array)] = math.nan
    return [value.tobytes() for value in array]


def test_e2m1_values_of_all_sixteen_codes():
    assert bits_of(E2M1.values) == bits_of([*POSITIVE_E2M1, *(-v for v in POSITIVE_E2M1)])
    assert math.copysign(1, E2M1.values[8]) == -1


@pytest.mark.parametrize("fmt", ELEMENTS, ids=lambda f: f.name)
def test_element_values_of_every_code_agree_with_ml_dtypes(fmt: ElementFormat):
    codes = np.arange(1 << fmt.bits, dtype=np.uint8)
    theirs = codes.view(NUMPY_TYPES[fmt]).astype(np.float64)
    assert bits_of(fmt.values) == bits_of(theirs)


@pytest.mark.parametrize(
    ("fmt", "largest", "emax", "bits"),
    [(E2M1, 6, 2, 4), (E2M3, 7.5, 2, 6), (E3M2, 28, 4, 6), (E4M3, 448, 8, 8), (E5M2, 57344, 15, 8)],
    ids=lambda v: getattr(v, "name", None),
)
def test_element_range_is_that_of_the_specification(fmt, largest, emax, bits):
    assert (fmt.max, fmt.max_exponent, fmt.bits) == (largest, emax, bits)


def test_e8m0_values_of_all_bytes():
    assert [Fraction(v) for v in E8M0.values[:255]] == [
        Fraction(2) ** (b - 127) for b in range(255)
    ]
    assert math.isnan(E8M0.values[255])
    assert len(E8M0.values) == 256


def test_e5m3_values_of_all_bytes():
    for byte, value in enumerate(E5M3.values[:255]):
        exponent, mantissa = divmod(byte, 8)
        expected = (
            Fraction(mantissa, 8) * Fraction(2) ** -14
            if exponent == 0
            else (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 15)
        )
        assert Fraction(value) == expected, byte
    assert math.isnan(E5M3.values[255])


def test_mxfp4_is_e2m1_with_one_e8m0_scale_per_32():
    assert (MXFP4.name, MXFP4.element, MXFP4.scale, MXFP4.block) == ("mxfp4", E2M1, E8M0, 32)
