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
    if block_2d and rule == "search":
        pytest.skip("FORMAT: the search rule over 32 x 32 tiles is left to the reference")
    options = QuantizeOptions(
        rule=rule,
        rounding=rounding,
        rotation=rotation,
        block_2d=block_2d,
        prescale=prescale,
        seed=0x0123456789ABCDEF if rounding == "stochastic" else 0,
    )
    if not torch.cuda.is_available():
        pytest.skip("DEVICE: needs an NVIDIA Hopper GPU, torch sees none")
    x = matrix(kind, rows, k, dtype)
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
