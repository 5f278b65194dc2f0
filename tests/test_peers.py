"""Bit agreement with other implementations of the format, and where each is known to differ.

The versions are those of the `peers` extra; docs/reference/peers.md holds the differences as a
table. Compared are finite blocks with a nonzero maximum and scale bytes 1..254, where all agree.
"""

import warnings

import numpy as np
import pytest
import torch

import mxgemm
from exact import code_value, power
from mxgemm import MXTensor
from mxgemm.numerics import e2m1, e8m0, rounding

CLOSED = ("floor", "even", "ceil", "rceil")
ml_dtypes = pytest.importorskip("ml_dtypes")
gguf = pytest.importorskip("gguf")
GGUF_MXFP4 = gguf.GGMLQuantizationType.MXFP4


@pytest.fixture(scope="module")
def torchao():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")

    def quantize(x: torch.Tensor, rule: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale bytes [rows, K/32] and packed codes [rows, K/2]."""
        mode = module.ScaleCalculationMode(rule)
        scales, codes = module.to_mx(x, torch.float4_e2m1fn_x2, 32, scaling_mode=mode)
        rows, k = x.shape
        return scales.view(torch.uint8).view(rows, k // 32), codes.view(torch.uint8).view(
            rows, k // 2
        )

    return quantize


def one_value(value: float) -> torch.Tensor:
    x = torch.zeros(1, 32)
    x[0, 0] = value
    return x


def sixteen_bit(dtype: torch.dtype) -> torch.Tensor:
    values = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(dtype).float()
    return values[values.isfinite()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_ml_dtypes_casts_every_finite_value_to_the_same_code(dtype):
    values = sixteen_bit(dtype)
    theirs = values.numpy().astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    assert np.array_equal(rounding.nearest_even(values).numpy(), theirs)


def test_ml_dtypes_casts_float32_beside_every_tie_to_the_same_code():
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=np.float32).view(np.uint32)
    near = (ties[:, None] + np.arange(-1000, 1001)).astype(np.uint32).view(np.float32).flatten()
    values = np.concatenate((near, -near))
    theirs = values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    assert np.array_equal(rounding.nearest_even(torch.from_numpy(values)).numpy(), theirs)


def test_ml_dtypes_decodes_every_scale_byte_to_the_same_value():
    every = np.arange(256, dtype=np.uint8)
    theirs = every.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    ours = e8m0.decode(torch.from_numpy(every), torch.float64).numpy()
    assert np.array_equal(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("rule", CLOSED)
def test_torchao_quantizes_random_blocks_to_the_same_bits(torchao, rule, dtype):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(512, 256, generator=generator) ** 3
    x = x * torch.exp2(torch.randint(-100, 100, (512, 1), generator=generator).float())
    x[0, :8] = torch.tensor([6.0, -0.0, 0.25, -0.25, 0.75, 1.25, 2.5, 5.0])
    x = x.to(dtype)
    q = mxgemm.quantize(x, rule=rule)
    assert int(q.scales.min()) >= 1
    assert int(q.scales.max()) <= 254
    scales, codes = torchao(x, rule)
    assert torch.equal(q.scales, scales)
    assert torch.equal(q.codes, codes)


@pytest.mark.parametrize("rule", CLOSED)
def test_torchao_gives_every_bfloat16_maximum_the_same_scale(torchao, rule):
    amax = sixteen_bit(torch.bfloat16)
    amax = amax[amax != 0]
    x = torch.zeros(len(amax), 32)
    x[:, 5], x[:, 6] = amax, amax / 3
    q = mxgemm.quantize(x, rule=rule)
    scales, codes = torchao(x, rule)
    compared = (q.scales[:, 0] >= 1) & (q.scales[:, 0] <= 254)
    assert compared.float().mean() > 0.98
    assert torch.equal(q.scales[compared], scales[compared])
    assert torch.equal(q.codes[compared], codes[compared])


@pytest.mark.parametrize("rule", CLOSED)
def test_torchao_differs_in_zero_tiny_and_infinite_blocks(torchao, rule):
    def first(x: torch.Tensor) -> tuple[int, int]:
        scales, codes = torchao(x, rule)
        return scales.item(), codes[0, 0].item() & 0xF

    assert first(one_value(0.0)) == (0, 0)
    # Values in blocks with byte 0 are halved, and lost under rceil.
    halved = (0, 0) if rule == "rceil" else (0, 2)
    assert first(one_value(2.0**-126)) == halved
    assert mxgemm.quantize(one_value(2.0**-126), rule=rule).codes[0, 0] == 4
    assert first(one_value(float("inf"))) == ((254 if rule == "rceil" else 253), 7)
    assert first(one_value(float("nan")))[0] == 255


def test_ml_dtypes_differs_for_nan_zero_scales_and_halves():
    elements = np.array([np.nan, np.inf, -np.inf], dtype=np.float32)
    assert elements.astype(ml_dtypes.float4_e2m1fn).view(np.uint8).tolist() == [8, 7, 15]
    scales = np.array([0, -1, 1.4, 1.5, 3e38], dtype=np.float32)
    assert scales.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8).tolist() == [
        255,
        255,
        127,
        128,
        255,
    ]


def gguf_block(scale: int, codes: list[int]) -> np.ndarray:
    """Return a block of 17 bytes: the scale, then element j low and j + 16 high."""
    pairs = [codes[j] | codes[j + 16] << 4 for j in range(16)]
    return np.array([[scale, *pairs]], dtype=np.uint8)


def ours_from_gguf(block: np.ndarray) -> MXTensor:
    """Return the block as canonical storage: elements 2j and 2j + 1 in one byte."""
    data = torch.from_numpy(block[:, 1:].copy())
    codes = torch.cat((data & 0xF, data >> 4), dim=1)
    return MXTensor.from_parts(e2m1.pack(codes), torch.from_numpy(block[:, :1].copy()))


def test_gguf_decodes_every_code_under_every_finite_scale_to_the_same_value():
    blocks = np.concatenate(
        [gguf_block(scale, [(j + 5 * scale) % 16 for j in range(32)]) for scale in range(1, 255)]
    )
    with np.errstate(over="ignore"):  # bytes 253 and 254 reach 2^128, which is Inf in FP32
        theirs = gguf.quants.dequantize(blocks, GGUF_MXFP4)
    for block, row in zip(blocks, theirs, strict=True):
        ours = mxgemm.dequantize(ours_from_gguf(block[None]), torch.float64)[0]
        expected = [
            float(code_value((j + 5 * int(block[0])) % 16) * power(int(block[0]) - 127))
            for j in range(32)
        ]
        assert ours.tolist() == expected
        assert np.array_equal(ours.float().numpy(), row)


def test_d14_gguf_blocks_hold_split_halves():
    codes = [j % 8 for j in range(32)]
    block = gguf_block(127, codes)
    values = gguf.quants.dequantize(block, GGUF_MXFP4)[0]
    assert values.tolist() == [float(code_value(code)) for code in codes]
    assert np.array_equal(mxgemm.dequantize(ours_from_gguf(block))[0].numpy(), values)
    # The same bytes read as adjacent pairs are other values.
    adjacent = MXTensor.from_parts(
        torch.from_numpy(block[:, 1:].copy()), torch.full((1, 1), 127, dtype=torch.uint8)
    )
    assert not np.array_equal(mxgemm.dequantize(adjacent)[0].numpy(), values)


def gguf_quantized(x: np.ndarray) -> tuple[int, int]:
    with np.errstate(all="ignore"):
        raw = gguf.quants.quantize(x[None].astype(np.float32), GGUF_MXFP4)
    return int(raw[0, 0]), int(raw[0, 1]) & 0xF


@pytest.mark.parametrize(
    ("value", "theirs"),
    [
        (0.0, (0, 0)),
        (2.0**-126, (255, 0)),
        (2.0**-127, (254, 0)),
        (np.nan, (0, 0)),
        (np.inf, (0, 0)),
    ],
)
def test_gguf_differs_in_zero_tiny_and_nonfinite_blocks(value, theirs):
    assert gguf_quantized(one_value(value)[0].numpy()) == theirs


def test_gguf_differs_by_taking_the_lower_of_two_equally_near_codes():
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    row = np.array([6.0, *ties, *[0.0] * 24])
    raw = gguf.quants.quantize(row[None].astype(np.float32), GGUF_MXFP4)
    assert (raw[0, 1:9] & 0xF).tolist() == [7, 0, 1, 2, 3, 4, 5, 6]
    q = mxgemm.quantize(torch.from_numpy(row[None]).float(), rule="floor")
    assert e2m1.unpack(q.codes)[0, :8].tolist() == [7, 0, 2, 2, 4, 4, 6, 6]


def test_torchs_own_e8m0_cast_differs_and_is_not_used():
    values = torch.tensor([0.0, 2.0**-149, 2.0**-127, 1.4, 1.5, 3e38, -1.0])
    theirs = values.to(torch.float8_e8m0fnu).view(torch.uint8)
    assert theirs.tolist() == [0, 0, 0, 127, 128, 255, 127]
