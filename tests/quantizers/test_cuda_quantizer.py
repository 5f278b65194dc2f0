"""The CUDA quantizer gives the reference's bits, under every option, from any strides."""

from __future__ import annotations

import pytest
import torch

import cases
from mxgemm.layouts.base import round_up
from mxgemm.numerics.hadamard import Rotation
from mxgemm.quantizers import cuda, reference
from mxgemm.quantizers.options import ROUNDINGS, QuantizeOptions
from mxgemm.quantizers.scale_rules import RULES

pytestmark = pytest.mark.cuda

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROTATIONS = (
    None,
    Rotation(16),
    Rotation(32, signs=0xDEADBEEF),
    Rotation(64, signs=0x123456789ABCDEF),
)
SIZES = ((1, 64), (33, 128), (128, 256), (130, 320), (257, 192), (64, 2112))
KINDS = ("gaussian", "wide", "ties", "edges")
COMBINATIONS = cases.pairwise(
    (DTYPES, RULES, ROUNDINGS, ROTATIONS, (False, True), (False, True), SIZES, KINDS)
)


def matrix(kind: str, rows: int, k: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * k)
    x = torch.randn(rows, k, generator=generator)
    if kind == "wide":
        x = x * torch.exp2(torch.randint(-30, 30, (rows, k), generator=generator).float())
    if kind == "ties":
        x = torch.randint(-24, 25, (rows, k), generator=generator) / 4
    if kind == "edges":
        x[torch.rand(rows, k, generator=generator) < 0.3] = -0.0
        x[:, :32] = 0
        x[0, -1] = torch.nan
        x[-1, k // 2] = -torch.inf
        x[rows // 2] *= 1e-38
    return x.to(dtype)


def needs_device(x: torch.Tensor, options: QuantizeOptions) -> None:
    if not cuda.accepts(x, options):
        pytest.skip("DEVICE: the kernels do not take this here")


@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda c: "-".join(map(str, c)))
def test_both_directions_are_the_reference_bit_for_bit(combination) -> None:
    dtype, rule, rounding, rotation, block_2d, prescale, (rows, k), kind = combination
    options = QuantizeOptions(
        rule=rule,
        rounding=rounding,
        rotation=rotation,
        block_2d=block_2d,
        prescale=prescale,
        seed=0x0123456789ABCDEF if rounding == "stochastic" else 0,
    )
    assert_the_reference(matrix(kind, rows, k, dtype), options)


# The kernels of the plain options: whole tiles and parts of them, more tiles than blocks, one row.
PLAIN_SIZES = (
    (1, 32),
    (3, 96),
    (128, 128),
    (129, 4096),
    (1000, 1056),
    (2053, 160),
    (4128, 2080),
    (3080, 4128),
)
PLAIN = cases.pairwise((DTYPES, [rule for rule in RULES if rule != "search"], PLAIN_SIZES, KINDS))


@pytest.mark.parametrize("combination", PLAIN, ids=lambda c: "-".join(map(str, c)))
def test_the_plain_kernels_are_the_reference_bit_for_bit(combination, monkeypatch) -> None:
    monkeypatch.setattr(cuda, "FEW_TILES", 1)
    dtype, rule, (rows, k), kind = combination
    assert_the_reference(matrix(kind, rows, k, dtype), QuantizeOptions(rule=rule))


LEADERS = (4.0, 5.5, 6.0, 6.5, 7.0, 7.96875)
"""Largest magnitudes of a block: either side of where the rules change the scale."""


@pytest.mark.parametrize("exponent", [-6, 0, 9])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "search"])
def test_every_16_bit_value_gets_the_reference_code(
    rule: str, dtype: torch.dtype, exponent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All values of nine binades, in blocks with every leader, at three places of the exponent."""
    monkeypatch.setattr(cuda, "FEW_TILES", 1)
    sixteen = torch.float16 if dtype is torch.float16 else torch.bfloat16
    values = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(sixteen)
    values = values[(values.abs() >= 2**-6) & (values.abs() < 8)].float()
    blocks = []
    for leader in LEADERS:
        inside = values[values.abs() <= leader]
        inside = inside[: len(inside) // 31 * 31].view(-1, 31)
        blocks.append(torch.nn.functional.pad(inside, (0, 1), value=leader))
    x = torch.cat(blocks) * 2.0**exponent
    assert_the_reference(
        x[: len(x) // 4 * 4].reshape(-1, 128).to(dtype), QuantizeOptions(rule=rule)
    )


def assert_the_reference(x: torch.Tensor, options: QuantizeOptions) -> None:
    if not torch.cuda.is_available():
        pytest.skip("DEVICE: needs an NVIDIA Hopper GPU, torch sees none")
    rows, k = x.shape
    moved = x.cuda()
    needs_device(moved, options)
    multiple = options.contraction_multiple
    stored_k, stored_m = round_up(k, multiple), round_up(rows, multiple)
    right = reference.quantize_both(x, stored_k, stored_m, options)
    found = cuda.quantize_both(moved, stored_k, stored_m, options)
    single = cuda.quantize_matrix(moved, stored_k, options)
    transposed = cuda.quantize_matrix(moved.t(), stored_m, options, stream=1)
    strided = cuda.quantize_matrix(torch.cat((moved, moved), 1)[:, :k], stored_k, options)
    for buffers, expected in (
        (found[0], right[0]),
        (found[1], right[1]),
        (single, right[0]),
        (transposed, right[1]),
        (strided, right[0]),
    ):
        for part, other in zip(buffers, expected, strict=True):
            differ = (part.cpu() != other).nonzero()
            assert not len(differ), f"{len(differ)} bytes differ, first at {differ[0].tolist()}"
