"""The gfx1250 kernels that the tests compile, few enough for CI: every tile, form, dtype and kind
of epilogue occurs.
"""

import functools

import pytest
import torch

from mxgemm.backends.flydsl_gfx1250 import FlyDSLGfx1250, cost, launch
from mxgemm.backends.flydsl_gfx1250.config import KernelSpec, OperandForm
from mxgemm.runtime.flydsl_compile import CompiledKernel
from mxgemm.tensor import OperandLayout

LARGE, MEDIUM, SMALL = cost.CANDIDATES
PLAIN = OperandLayout.of()
TILED = OperandLayout.of("tile_16x16", "scale_k_major")
WORDS = OperandLayout.of("row_major", "scale_32x4")
AITER = OperandLayout.of("tile_16x16", "scale_32x4")

needs_compiler = pytest.mark.skipif(
    (reason := FlyDSLGfx1250().probe()) is not None, reason=str(reason)
)


def form(layout: OperandLayout) -> OperandForm:
    found = OperandForm.of(layout)
    assert found is not None
    return found


SHIPPED = {
    "large-plain-f32": KernelSpec(tile=LARGE, out_dtype=torch.float32),
    "large-tiled-bf16": KernelSpec(
        tile=LARGE, a=form(TILED), b=form(TILED), out_dtype=torch.bfloat16
    ),
    "medium-words-f16": KernelSpec(
        tile=MEDIUM, a=form(WORDS), b=form(AITER), out_dtype=torch.float16
    ),
    "small-plain-bf16": KernelSpec(tile=SMALL, out_dtype=torch.bfloat16),
    "walk-plain-f32": KernelSpec(tile=LARGE, out_dtype=torch.float32, walks=True),
    "walk-tiled-bf16": KernelSpec(
        tile=LARGE, a=form(TILED), b=form(TILED), out_dtype=torch.bfloat16, walks=True
    ),
}


@functools.cache
def compiled(name: str) -> CompiledKernel:
    return launch.load("kernel:build_gemm", SHIPPED[name])
