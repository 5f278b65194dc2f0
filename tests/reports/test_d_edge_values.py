"""Reports D08 to D11: E8M0's ends, tiny inputs, Inf and NaN."""

import math

import pytest
import torch

import mxgemm
from mxgemm import MXTensor
from mxgemm.numerics import e2m1
from mxgemm.quantizers import RULES


def test_d08_scale_bytes_0_and_255_decode_to_a_subnormal_and_nan():
    codes = torch.full((1, 48), 0x22, dtype=torch.uint8)
    scales = torch.tensor([[0, 255, 127]], dtype=torch.uint8)
    values = mxgemm.dequantize(MXTensor.from_parts(codes, scales)).view(3, 32)
    assert values[0].view(torch.int32).unique().tolist() == [0x00400000]
    assert bool(values[1].isnan().all())
    assert values[2].unique().tolist() == [1.0]


def test_d08_scale_bytes_0_and_255_in_a_product(runner):
    codes = torch.full((1, 48), 0x22, dtype=torch.uint8)
    tiny = MXTensor.from_parts(codes, torch.zeros(1, 3, dtype=torch.uint8))
    large = MXTensor.from_parts(codes, torch.full((1, 3), 254, dtype=torch.uint8))
    assert runner.gemm(tiny, large).item() == 96.0
    poisoned = MXTensor.from_parts(codes, torch.tensor([[127, 255, 127]], dtype=torch.uint8))
    assert math.isnan(runner.gemm(poisoned, large).item())
    assert math.isnan(runner.gemm(large, poisoned).item())


@pytest.mark.parametrize("rule", RULES)
def test_d09_tiny_inputs_stay_tiny(gaussian, rule):
    x = gaussian(2048 if rule == "even" else 64, 1024, seed=9)
    x *= 5.7e-35 / x.abs().max()
    x[0, :32] = torch.logspace(math.log10(1e-38), math.log10(3e-36), 32)
    x = x.bfloat16()
    q = mxgemm.quantize(x, rule=rule)
    back = mxgemm.dequantize(q, torch.float64)
    assert not bool(back.isnan().any())
    # At most half the grid's widest step of two scales, or what saturation cuts: amax < 8 scales.
    scale = torch.exp2(q.scales.double() - 127).repeat_interleave(32, dim=1)
    assert bool(((back - x.double()).abs() <= 2 * scale).all())
    assert back.abs().max().item() < 2 * 5.7e-35


@pytest.mark.parametrize("rule", RULES)
def test_d10_inf_makes_its_block_nan_and_no_other(rule):
    x = torch.ones(1, 64)
    x[0, :4] = torch.tensor([math.inf, -math.inf, 1.0, 0.0])
    q = mxgemm.quantize(x, rule=rule)
    clean = mxgemm.quantize(torch.ones(1, 32), rule=rule)
    assert q.scales[0, 0] == 255
    assert not q.codes[0, :16].any()
    assert q.scales[0, 1] == clean.scales[0, 0]
    assert torch.equal(q.codes[0, 16:], clean.codes[0])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("pair", [[1.0, math.nan, 0.5], [math.nan, 1.0, 0.5]], ids=["odd", "even"])
def test_d11_nan_beside_a_finite_number_is_not_lost(rule, pair):
    x = torch.full((32, 32), 0.25, dtype=torch.bfloat16)
    x[0, :3] = torch.tensor(pair)
    for source in (x, x.t()):
        both = mxgemm.quantize_pair(source, rule=rule)
        for q in (both.along_k, both.along_m):
            hit = mxgemm.dequantize(q).isnan()
            expected = source.isnan() if q is both.along_k else source.t().isnan()
            rows = expected.any(dim=1)
            assert torch.equal(hit, rows[:, None].expand(32, 32))
            assert torch.equal(q.scales[:, 0] == 255, rows)
            assert not e2m1.unpack(q.codes)[rows].any()
