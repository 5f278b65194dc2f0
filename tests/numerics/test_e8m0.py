"""E8M0: all 256 bytes, and conversion of floats that never guesses."""

import math

import pytest
import torch

from exact import power
from mxgemm.numerics import e8m0

ALL_BYTES = torch.arange(256, dtype=torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_decode_of_every_byte_is_exact(dtype):
    values = e8m0.decode(ALL_BYTES, dtype)
    assert values.dtype == dtype
    assert values[:255].tolist() == [float(power(byte - 127)) for byte in range(255)]
    assert math.isnan(values[255])


def test_decode_of_byte_zero_is_the_subnormal_not_zero():
    assert e8m0.decode(ALL_BYTES)[0].view(torch.int32).item() == 0x00400000


def test_power_of_two_of_every_exponent_is_exact():
    exponents = torch.arange(-127, 128, dtype=torch.int32)
    values = e8m0.power_of_two(exponents)
    assert values.dtype == torch.float32
    assert values.tolist() == [float(power(e)) for e in range(-127, 128)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_from_floats_inverts_decode_for_every_byte(dtype):
    assert torch.equal(e8m0.from_floats(e8m0.decode(ALL_BYTES).to(dtype)), ALL_BYTES)


@pytest.mark.parametrize(
    "value",
    [0.0, -0.0, -1.0, 0.75, 1.3, 3e-5, math.inf, -math.inf, 2.0**-128, 2.0**-149, 3e38, 2.0**128],
)
def test_from_floats_refuses_what_has_no_code(value):
    values = torch.tensor([1.0, value], dtype=torch.float64)
    with pytest.raises(ValueError, match="each must be a power of two"):
        e8m0.from_floats(values)


def test_from_floats_accepts_no_values_at_all():
    assert e8m0.from_floats(torch.empty(0, 3)).shape == (0, 3)
