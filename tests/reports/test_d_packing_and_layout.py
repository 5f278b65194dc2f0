"""Reports D13 and D15 to D22: nibbles, dtypes, shuffles, and what lies in the pads."""

import pytest
import torch

import mxgemm
import oracles
from mxgemm import MXTensor, OperandLayout
from mxgemm.errors import LayoutMismatch
from mxgemm.layouts import Tile16x16
from mxgemm.numerics import e2m1

SCALE_LAYOUTS = ("scale_32x8", "scale_32x4", "scale_128x4", "scale_k_major")


def test_d13_the_first_element_is_the_low_nibble():
    x = torch.zeros(1, 32)
    x[0, :2] = torch.tensor([0.5, 6.0])
    q = mxgemm.quantize(x)
    assert q.scales.item() == 127
    assert q.codes[0, 0] == 0x71


def test_d15_storage_is_half_the_logical_width():
    q = mxgemm.quantize(torch.ones(128, 256))
    assert (q.shape, q.k) == ((128, 256), 256)
    assert (q.codes.shape, q.codes.dtype) == ((128, 128), torch.uint8)
    assert q.codes_float4.shape == (128, 128)


def test_d16_operands_may_come_in_different_storage_dtypes(runner):
    a, b = runner.exact_operands(16, 32, 128)
    expected = runner.gemm(a, b)
    as_float4 = [
        MXTensor.from_parts(q.codes.view(torch.float4_e2m1fn_x2), q.scales_e8m0) for q in (a, b)
    ]
    as_bytes = [MXTensor.from_parts(q.codes.view(torch.uint8), q.scales) for q in (a, b)]
    for left, right in ((as_bytes[0], as_float4[1]), (as_float4[0], as_bytes[1])):
        oracles.assert_same_bits(runner.gemm(left, right), expected)


@pytest.mark.parametrize("shape", [(1, 3), (3, 32), (2, 31)])
def test_d17_an_odd_count_leaves_zero_nibbles(shape):
    k = shape[1]
    x = torch.full(shape, 4.0)
    q = mxgemm.quantize(x, pad=True)
    codes = e2m1.unpack(q.codes)
    assert codes[:, :k].unique().tolist() == [6]
    assert not codes[:, k:].any()
    assert torch.equal(mxgemm.dequantize(q), x)


def test_d18_a_shuffle_takes_a_matrix_and_is_undone():
    layout = Tile16x16()
    for shape in ((4, 64, 128), (4, 128, 64)):
        w = torch.randint(0, 256, shape, dtype=torch.uint8)
        with pytest.raises(LayoutMismatch, match="takes a uint8 matrix"):
            layout.pack(w)
        for expert in w:
            storage = layout.pack(expert)
            assert not torch.equal(storage, expert)
            assert torch.equal(layout.unpack(storage, *shape[1:]), expert)
            with pytest.raises(LayoutMismatch, match="is stored as"):
                layout.unpack(storage, shape[2], shape[1])


def test_d19_every_row_and_block_has_its_own_scale(runner):
    k, rows = 512, (48, 80)
    blocks = torch.arange(k // 32)
    operands = []
    for count in rows:
        scales = 124 + (torch.arange(count)[:, None] + 3 * blocks) % 7
        codes = torch.full((count, k // 2), 0x22, dtype=torch.uint8)
        operands.append(MXTensor.from_parts(codes, scales.to(torch.uint8)))
    a, b = operands
    left, right = (torch.exp2(q.scales.double() - 127) for q in operands)
    exact = 32 * left @ right.t()
    out = runner.check(a, b)
    if runner.accumulation(a, b).significand_bits >= 24:
        oracles.assert_same_bits(out, exact.float())


@pytest.mark.parametrize("scales", SCALE_LAYOUTS)
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 128), (256, 352, 160), (352, 128, 256)])
def test_d20_shuffled_scales_give_the_unshuffled_result(runner, scales, m, n, k):
    a, b = runner.exact_operands(m, n, k)
    layout = OperandLayout.of("row_major", scales)
    expected = runner.gemm(a, b)
    oracles.assert_same_bits(runner.gemm(a.relayout(layout), b.relayout(layout)), expected)


@pytest.mark.parametrize("scales", SCALE_LAYOUTS)
def test_d21_bytes_in_the_pads_change_nothing(runner, scales):
    layout = OperandLayout.of("row_major", scales)
    if oracles.needs_zero_pads(layout):
        # Some consumers read these pads, so packing must always have filled them with zeros.
        packed = layout.scales.pack(torch.full((256, 47), 127, dtype=torch.uint8))
        assert int((packed == 127).sum()) == 256 * 47
        assert int((packed == 0).sum()) == packed.numel() - 256 * 47
        return
    a, b = (q.relayout(layout) for q in runner.exact_operands(100, 250, 1504))
    clean = runner.gemm(a, b)
    dirty = runner.gemm(oracles.poison_pads(a), oracles.poison_pads(b))
    oracles.assert_same_bits(dirty, clean)
    assert not bool(clean.isnan().any())


def test_d22_pads_are_never_uninitialised_memory(runner, gaussian):
    x, w = gaussian(7, 256, seed=22), gaussian(24, 256, seed=23)
    layout = OperandLayout.of("tile_16x16", "scale_32x8")
    results = []
    for _ in range(50):
        for size in (1 << 8, 1 << 10, 1 << 12, 1 << 14):
            dirty = torch.full((size,), 0xFF, dtype=torch.uint8)
            del dirty
        q = mxgemm.quantize(x, layout=layout)
        assert int((q.scales != 0).sum()) == 7 * 8
        assert not q.codes.view(-1)[
            layout.codes.pack(torch.ones(7, 128, dtype=torch.uint8)).view(-1) == 0
        ].any()
        results.append(runner.gemm(mxgemm.quantize(x), mxgemm.quantize(w)))
    assert not bool(results[0].isnan().any())
    for other in results[1:]:
        oracles.assert_same_bits(other, results[0])
