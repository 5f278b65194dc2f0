"""Reports D01 to D06, D12, D42, D43 and D69: element rounding and scale rules."""

import inspect
import math

import pytest
import torch

import mxgemm
from mxgemm import OperandLayout
from mxgemm.numerics import e2m1, e8m0, rounding
from mxgemm.quantizers import RULES, scale_rules

CLOSED = ("floor", "even", "ceil", "rceil")


def codes_of(q: mxgemm.MXTensor) -> torch.Tensor:
    return e2m1.unpack(q.canonical_codes())


def block(*values: float) -> torch.Tensor:
    x = torch.zeros(1, 32)
    x[0, : len(values)] = torch.tensor(values)
    return x


def test_d01_rounding_ties_go_to_the_even_code():
    q = mxgemm.quantize(block(2.0, -0.625), rule="even")
    assert q.scales.item() == 126
    assert codes_of(q)[0, :2].tolist() == [6, 0xA]
    at_tie, above = (torch.tensor(b, dtype=torch.int32).view(torch.float32).item()
                     for b in (0x3F000000, 0x3F000003))  # fmt: skip
    q = mxgemm.quantize(block(8.0, at_tie, above), rule="even")
    assert q.scales.item() == 128
    assert codes_of(q)[0, :3].tolist() == [6, 0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("rule", RULES)
def test_d02_one_rounding_rule_in_every_path(gaussian, rule, dtype):
    x = gaussian(256 if rule == "even" else 64, 512, seed=2)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    powers = torch.exp2(torch.arange(-4, 4).float())
    x[:8, :32] = torch.outer(powers, torch.cat((ties, -ties, ties, -ties)))
    x = x.to(dtype)
    plain = mxgemm.quantize(x, rule=rule)
    pair = mxgemm.quantize_pair(x, rule=rule)
    columns = mxgemm.quantize_pair(x.t().contiguous(), rule=rule).along_m
    paths = {
        "pair": pair.along_k,
        "columnwise": columns,
        "strided": mxgemm.quantize(x.t().contiguous().t(), rule=rule),
        "wide": mxgemm.quantize(x.float(), rule=rule),
        "leading dimensions": mxgemm.quantize(x.view(4, -1, 512), rule=rule),
        "rows": mxgemm.quantize(x[3:], rule=rule),
    }
    for scales in ("scale_32x8", "scale_32x4", "scale_128x4", "scale_k_major"):
        layout = OperandLayout.of("tile_16x16", scales)
        paths[scales] = mxgemm.quantize(x, rule=rule, layout=layout)
    for name, q in paths.items():
        first = 3 if name == "rows" else 0
        assert torch.equal(q.canonical_codes(), plain.codes[first:]), name
        assert torch.equal(q.canonical_scales(), plain.scales[first:]), name


def test_d03_every_code_encodes_back_to_itself():
    for code in range(16):
        value = e2m1.decode(torch.tensor([code], dtype=torch.uint8))
        q = mxgemm.quantize(block(6.0, value.item()), rule="rceil")
        assert q.scales.item() == 127
        assert codes_of(q)[0, 1] == code
    assert rounding.nearest_even(torch.tensor([0.25000006])).tolist() == [1]


def test_d04_floor_saturates_the_maximum_and_says_so():
    for amax in (6.5, 7.0, 7.5):
        q = mxgemm.quantize(block(amax), rule="floor")
        assert q.scales.item() == 127
        assert mxgemm.dequantize(q)[0, 0] == 6.0
    for amax, code, value in ((7.0, 6, 8.0), (6.5, 5, 6.0)):
        q = mxgemm.quantize(block(amax), rule="ceil")
        assert (q.scales.item(), codes_of(q)[0, 0].item()) == (128, code)
        assert mxgemm.dequantize(q)[0, 0] == value
    documentation = scale_rules.__doc__
    assert "saturates" in documentation
    assert all(f"| {rule}" in documentation for rule in RULES)


GOLDEN_BYTES = {
    4.0: (127, 127, 127, 127),
    6.0: (127, 127, 128, 127),
    6.5: (127, 127, 128, 128),
    6.99: (127, 127, 128, 128),
    7.0: (127, 128, 128, 128),
    7.5: (127, 128, 128, 128),
    8.0: (128, 128, 128, 128),
}


@pytest.mark.parametrize("amax", GOLDEN_BYTES)
def test_d05_the_rule_is_an_argument_with_a_stable_default_and_is_recorded(amax):
    for rule, byte in zip(CLOSED, GOLDEN_BYTES[amax], strict=True):
        q = mxgemm.quantize(block(amax), rule=rule)
        assert (q.scales.item(), q.scale_rule) == (byte, rule)
    default = mxgemm.quantize(block(amax))
    assert (default.scales.item(), default.scale_rule) == (GOLDEN_BYTES[amax][1], "even")
    for function in (mxgemm.quantize, mxgemm.quantize_pair):
        assert inspect.signature(function).parameters["rule"].default == "even"


def test_d06_even_rule_threshold_is_a_mantissa_of_one_and_three_quarters():
    below, at = 6.999999, 7.0
    assert mxgemm.quantize(block(below), rule="even").scales.item() == 127
    assert mxgemm.quantize(block(at), rule="even").scales.item() == 128


def test_d12_e8m0_conversion_is_our_own_and_explicit():
    exact = torch.tensor([2.0**-127, 1.0, 2.0, 2.0**127, math.nan])
    assert e8m0.from_floats(exact).tolist() == [0, 127, 128, 254, 255]
    for value in (0.0, 2.0**-149, 1.4, 1.5, 3e38, -1.0, math.inf):
        with pytest.raises(ValueError, match="power of two"):
            e8m0.from_floats(torch.tensor([value]))


def test_d42_stochastic_rounding_differs_between_calls_and_has_the_right_mean():
    draws = 10_000
    x = torch.zeros(draws, 32)
    x[:, 0], x[:, 1] = 6.0, 2.3
    generator = torch.Generator().manual_seed(1)

    def quantized(generator):
        return mxgemm.quantize(x, rule="rceil", rounding="stochastic", generator=generator)

    first, second = quantized(generator), quantized(generator)
    assert first.scales.unique().tolist() == [127]
    assert not torch.equal(first.codes, second.codes)
    assert torch.equal(quantized(torch.Generator().manual_seed(1)).codes, first.codes)
    mean = mxgemm.dequantize(first, torch.float64)[:, 1].mean().item()
    # 2.3 is 2 or 3 with probabilities 0.7 and 0.3.
    assert abs(mean - 2.3) <= 4 * math.sqrt(0.3 * 0.7 / draws)
    nearest = mxgemm.quantize(x, rule="rceil")
    assert mxgemm.dequantize(nearest)[:, 1].unique().tolist() == [2.0]
    assert torch.equal(mxgemm.quantize(x, rule="rceil").codes, nearest.codes)


def test_d43_stochastic_rounding_never_returns_zeros_where_hardware_has_none(gaussian):
    gradient = gaussian(256, 256, seed=43) + 3.0
    q = mxgemm.quantize(gradient, rule="rceil", rounding="stochastic")
    assert (mxgemm.dequantize(q) != 0).float().mean() > 0.9


@pytest.mark.parametrize("value", [0.75, 1.3, 3e-5])
def test_d69_scales_that_are_no_powers_of_two_are_refused(value):
    codes = torch.zeros(2, 512, dtype=torch.uint8)
    scales = torch.full((2, 32), value)
    with pytest.raises(TypeError, match=r"scales must be torch.uint8 or torch.float8_e8m0fnu"):
        mxgemm.MXTensor.from_parts(codes, scales)
    with pytest.raises(ValueError, match="must be a power of two"):
        e8m0.from_floats(scales)
    q = mxgemm.MXTensor.from_parts(codes, e8m0.from_floats(torch.full((2, 32), 0.25)))
    assert q.scales.unique().tolist() == [125]
