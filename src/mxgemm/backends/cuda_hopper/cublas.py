"""The fold followed by cuBLAS: row-wise scaled E4M3, accumulated without the fast mode that loses
percents on same-sign data.
"""

from __future__ import annotations

import torch

from mxgemm.backends.cuda_hopper import launch
from mxgemm.errors import UnsupportedProblem
from mxgemm.problem import GemmProblem
from mxgemm.tensor import MXTensor

WIDE_ROW = 0x4000
"""Power of a row that the fold left block-scaled; kWideRow of the kernels."""

EASY_POWER = 60
"""Row scales up to 2^60 either way cannot overflow or underflow on the way to the product."""


def run(problem: GemmProblem, a: MXTensor, b: MXTensor, out: torch.Tensor) -> None:
    """Compute D into `out`; waits for the fold, to see whether row-wise scales can express the
    operands.

    Raises:
        UnsupportedProblem: a row's scales spread over more than 14 powers, or are extreme.
    """
    with torch.cuda.device(out.device):
        left, right = launch.fold_one(a, problem.k), launch.fold_one(b, problem.k)
        for side, operand in (("a", left), ("b", right)):
            largest = int(operand.powers.abs().max())
            if largest > EASY_POWER:
                found = "a wide row" if largest == WIDE_ROW else largest
                raise UnsupportedProblem(
                    f"gemm on cuda_hopper_cublas: rows of {side} must have scales within 14 powers "
                    f"of two and row powers up to {EASY_POWER}, got {found}; use cuda_hopper"
                )
        product = torch._scaled_mm(
            left.folded.view(torch.float8_e4m3fn),
            right.folded.view(torch.float8_e4m3fn).t(),
            torch.exp2(left.powers[: problem.m].float())[:, None],
            torch.exp2(right.powers[: problem.n].float())[None, :],
            out_dtype=torch.bfloat16,
            use_fast_accum=False,
        )
        out.copy_(product)
