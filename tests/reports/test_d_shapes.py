"""Reports D23 to D34, D51, D52 and D62: sizes, tails, strides, slices, nothing at all, and too
much.
"""

import functools
import math

import pytest
import torch

import mxgemm
import oracles
from mxgemm import MXTensor, OperandLayout, Rotation
from mxgemm.formats import MXFP4
from mxgemm.numerics import e2m1
from mxgemm.quantizers import reference


@pytest.mark.parametrize("k", [1664, 1824, 1856, 1792])
def test_d23_k_may_end_anywhere_between_blocks(runner, gaussian, k):
    x, w = gaussian(128, k, seed=k), gaussian(256, k, seed=k + 1)
    out = runner.check(mxgemm.quantize(x), mxgemm.quantize(w))
    exact = x.double() @ w.double().t()
    # Two Gaussian operands of about 19 dB each: the format's own noise, sqrt(2) * 0.11.
    noise = (out - exact).norm() / exact.norm()
    assert 0.14 < noise < 0.18


@pytest.mark.parametrize("k", range(32, 321, 32))
def test_d24_every_multiple_of_a_block_is_a_k(runner, k):
    a, b = runner.exact_operands(128, 128, k, seed=k)
    out = runner.gemm(a, b)
    left, right = (mxgemm.dequantize(q, torch.float64) for q in (a, b))
    oracles.assert_same_bits(out, (left @ right.t()).float())


@functools.cache
def wide_weight() -> MXTensor:
    return mxgemm.quantize(torch.randn(512, 6144, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("m", [1, 2, 4, 8, 16, 31, 32, 33])
def test_d25_small_m(runner, gaussian, m):
    a, b = mxgemm.quantize(gaussian(m, 6144, seed=m)), wide_weight()
    first = runner.check(a, b)
    oracles.assert_same_bits(runner.gemm(a, b), first)


@pytest.mark.parametrize("m", [16, 17, 129])
def test_d26_each_batch_equals_its_own_product(runner, gaussian, m):
    x, w = gaussian(2, m, 128, seed=26), gaussian(128, 128, seed=27)
    b = mxgemm.quantize(w)
    both = runner.gemm(mxgemm.quantize(x), b).view(2, m, 128)
    for batch in range(2):
        oracles.assert_same_bits(runner.gemm(mxgemm.quantize(x[batch]), b), both[batch])
        swizzled = mxgemm.quantize(x[batch], layout=OperandLayout.of("row_major", "scale_32x8"))
        assert torch.equal(
            mxgemm.dequantize(swizzled),
            mxgemm.dequantize(mxgemm.quantize(x)).view(2, m, 128)[batch],
        )


@pytest.mark.parametrize("k", [8192, 8448, 12288, 16384])
def test_d27_scales_far_along_k_are_the_right_ones(runner, k):
    blocks = torch.arange(k // 32)
    operands = []
    for rows in (24, 40):
        codes = torch.full((rows, k // 2), 0x22, dtype=torch.uint8)
        # Rising with the block, by 2^-8..2^7, different in every tile of 256 blocks.
        scales = (119 + (blocks // 32 + blocks) % 16).to(torch.uint8).expand(rows, -1)
        operands.append(MXTensor.from_parts(codes, scales))
    runner.check(*operands)


@pytest.mark.parametrize("shape", [(256, 512), (4096, 4096)])
def test_d28_quantize_of_small_and_large_matrices(gaussian, shape):
    row = gaussian(1, shape[1], seed=28, dtype=torch.bfloat16)
    q = mxgemm.quantize(row.expand(shape))
    one = mxgemm.quantize(row)
    assert torch.equal(q.codes, one.codes.expand(shape[0], -1))
    assert torch.equal(q.scales, one.scales.expand(shape[0], -1))


def test_d28_a_single_row_returns(runner, gaussian):
    runner.check(mxgemm.quantize(gaussian(1, 512)), mxgemm.quantize(gaussian(256, 512)))


def test_d29_a_tiny_product_is_finite(runner, gaussian):
    x = torch.ones(1, 64, dtype=torch.bfloat16)
    out = runner.check(mxgemm.quantize(x), mxgemm.quantize(0.01 * gaussian(64, 64, seed=29)))
    assert bool((out.abs() < 1).all())


def test_d30_blocks_do_not_run_across_rows():
    x = torch.ones(3, 48)
    x[1] = 1e30
    with pytest.raises(ValueError, match="multiple of 32, got 48; pass pad=True"):
        mxgemm.quantize(x)
    q = mxgemm.quantize(x, pad=True)
    calm = mxgemm.quantize(torch.ones(3, 48), pad=True)
    for row in (0, 2):
        assert torch.equal(q.codes[row], calm.codes[row])
        assert torch.equal(q.scales[row], calm.scales[row])


def test_d31_transposed_input_is_its_contiguous_copy(gaussian):
    x = gaussian(512, 256, seed=31).t()
    assert x.stride() == (1, 256)
    for function in (mxgemm.quantize, lambda t: mxgemm.quantize_pair(t).along_m):
        q, copy = function(x), function(x.contiguous())
        assert torch.equal(q.codes, copy.codes)
        assert torch.equal(q.scales, copy.scales)


def test_d32_slices_of_packed_weights_are_slices_of_the_values(runner, gaussian):
    q = mxgemm.quantize(gaussian(128, 256, seed=32))
    values = mxgemm.dequantize(q)
    rows = MXTensor.from_parts(q.codes[32:96], q.scales[32:96])
    assert torch.equal(mxgemm.dequantize(rows), values[32:96])
    columns = MXTensor.from_parts(q.codes[:, :64], q.scales[:, :4])
    assert torch.equal(mxgemm.dequantize(columns), values[:, :128])
    other = mxgemm.quantize(gaussian(24, 128, seed=33))
    copy = mxgemm.quantize(values[:, :128])
    oracles.assert_same_bits(runner.gemm(other, columns), runner.gemm(other, copy))


def test_d33_groups_without_rows(runner, gaussian):
    x, w = gaussian(96, 64, seed=33), mxgemm.quantize(gaussian(32, 64, seed=34))
    whole = runner.gemm(mxgemm.quantize(x), w)
    at = 0
    for size in (64, 0, 32):
        q = mxgemm.quantize_pair(x[at : at + size])
        assert (q.along_k.codes.shape, q.along_k.scales.shape) == ((size, 32), (size, 2))
        assert q.along_k.codes.dtype == torch.uint8
        out = runner.gemm(q.along_k, w)
        assert out.shape == (size, 32)
        oracles.assert_same_bits(out, whole[at : at + size])
        at += size
    empty = mxgemm.quantize(torch.empty(0, 64))
    assert mxgemm.dequantize(empty).shape == (0, 64)


def test_d34_element_indices_do_not_wrap_at_two_to_the_31(monkeypatch):
    monkeypatch.setattr(reference, "CHUNK_ELEMENTS", 1 << 40)
    shape = (65537, 32768)
    assert math.prod(shape) > 2**31
    q = mxgemm.quantize(torch.empty(shape, device="meta", dtype=torch.bfloat16))
    assert (q.codes.shape, q.scales.shape) == ((65537, 16384), (65537, 1024))
    for name in ("row_major", "tile_16x16"):
        offset = mxgemm.OperandLayout.of(name).codes.offset(65536, 16383, rows=65537, columns=16384)
        assert offset >= 2**30
    problem = mxgemm.GemmProblem(m=2**20, n=2**20, k=2**20, device=mxgemm.DeviceSpec.of("cpu"))
    assert problem.flops == 2**61


@pytest.mark.slow
def test_d34_more_than_two_to_the_31_elements(gaussian):
    rows, k = 65537, 32768
    patterns = gaussian(3, k, seed=34, dtype=torch.bfloat16)
    x = patterns[1].expand(rows, k)
    q = mxgemm.quantize(x)
    one = mxgemm.quantize(patterns[1])
    for row in (0, rows // 2, rows - 1):
        assert torch.equal(q.codes[row], one.codes[0])
        assert torch.equal(q.scales[row], one.scales[0])


@pytest.mark.parametrize("size", [1, 32, 100])
def test_d51_pieces_of_a_weight_cat_to_the_original(gaussian, size):
    q = mxgemm.quantize(gaussian(100, 96, seed=51))
    for parts in (q.split(size), torch.split(q, size)):
        assert torch.equal(torch.cat([part.codes for part in parts]), q.codes)
        assert torch.equal(torch.cat([part.scales for part in parts]), q.scales)
    assert torch.equal(q.narrow(0, 40, 20).codes, q.codes[40:60])


def test_d52_a_shard_boundary_inside_a_block_is_refused_with_the_multiple(gaussian):
    q = mxgemm.quantize(gaussian(64, 1856, seed=52))
    with pytest.raises(ValueError, match=r"multiples of 32, got 232\.\.464"):
        q.narrow(1, 232, 232)
    with pytest.raises(ValueError, match="multiples of 32"):
        q.split(1856 // 8, dim=1)
    assert [part.k for part in q.split(256, dim=1)] == [256] * 7 + [64]
    rotated = mxgemm.quantize(gaussian(64, 1856, seed=52), rotation=Rotation(64))
    with pytest.raises(ValueError, match="multiples of 64"):
        rotated.split(32, dim=1)


def test_d62_the_block_is_the_one_limit_on_k(runner, gaussian):
    limit = MXFP4.block
    a, b = (mxgemm.quantize(gaussian(rows, limit, seed=rows)) for rows in (3, 5))
    runner.check(a, b)
    with pytest.raises(ValueError, match=f"multiple of {limit}, got {limit - 1}"):
        mxgemm.quantize(gaussian(3, limit - 1))
    with pytest.raises(ValueError, match=f"multiple of {limit}"):
        mxgemm.GemmProblem(m=1, n=1, k=limit // 2, device=mxgemm.DeviceSpec.of("cpu"))
    assert e2m1.unpack(a.codes).shape == (3, limit)
