"""The definition, executable: dequantize, multiply in FP64 or per block in FP32, epilogue by
formula. Supports everything, slowly.

`reference` sums in FP64 and is what every other backend is compared with; `reference_fp32` sums
block after block in FP32, as a plain FP32 accumulator would, and shows that the derived bounds hold
for one.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from mxgemm import epilogue
from mxgemm.backends.base import (
    Accumulation,
    Backend,
    GemmPlan,
    Operand,
    Rejection,
    RejectionCode,
    no_prepared_forms,
    quantized_only,
)
from mxgemm.epilogue import EpilogueArgs
from mxgemm.numerics import e2m1, e8m0
from mxgemm.plain import PlainOperand
from mxgemm.problem import GemmProblem
from mxgemm.quantizers.reference import dequantize_matrix
from mxgemm.tensor import MXTensor


class _TorchReference(Backend):
    def probe(self) -> Rejection | None:
        return None

    def check(self, problem: GemmProblem) -> Rejection | None:
        if problem.device.emulated:
            return Rejection(
                RejectionCode.DEVICE, f"runs in torch on a real device, got {problem.device}"
            )
        return no_prepared_forms(problem)

    def plan(self, problem: GemmProblem) -> GemmPlan:
        return GemmPlan(backend=self, problem=problem, summary=f"torch, {self._how()}")

    def launch(
        self, plan: GemmPlan, a: Operand, b: Operand, out: torch.Tensor, args: EpilogueArgs
    ) -> None:
        assert isinstance(a, MXTensor | PlainOperand)
        assert isinstance(b, MXTensor)
        epilogue.apply(self._product(a, b), plan.problem.epilogue, args, out)

    def _how(self) -> str:
        raise NotImplementedError

    def _product(self, a: MXTensor | PlainOperand, b: MXTensor) -> torch.Tensor:
        raise NotImplementedError


class Reference(_TorchReference):
    """FP64 sums of exact products; the result rounds to FP32 and then to the output's dtype.

    Taken by itself for CPU tensors only, so that a device without a backend is an error and not a
    slow surprise.
    """

    name: ClassVar[str] = "reference"

    def automatic(self, problem: GemmProblem) -> bool:
        return problem.device.kind == "cpu"

    def accumulation(self, problem: GemmProblem) -> Accumulation:
        return Accumulation(significand_bits=53)

    def _how(self) -> str:
        return "FP64"

    def _product(self, a: MXTensor | PlainOperand, b: MXTensor) -> torch.Tensor:
        right = dequantize_matrix(b.canonical_codes(), b.canonical_scales(), torch.float64)
        if isinstance(a, PlainOperand):
            return a.values.double() @ right[:, : a.shape[1]].t()
        left = dequantize_matrix(a.canonical_codes(), a.canonical_scales(), torch.float64)
        return left @ right.t()


class ReferenceFP32(_TorchReference):
    """Blocks of 32 summed exactly, scaled by adding exponents, rounded to FP32 and added in
    ascending k in FP32.
    """

    name: ClassVar[str] = "reference_fp32"

    def automatic(self, problem: GemmProblem) -> bool:
        return False

    def check(self, problem: GemmProblem) -> Rejection | None:
        return super().check(problem) or quantized_only(problem)

    def accumulation(self, problem: GemmProblem) -> Accumulation:
        return Accumulation(exact_blocks=True)

    def _how(self) -> str:
        return "FP32 per block"

    def _product(self, a: MXTensor | PlainOperand, b: MXTensor) -> torch.Tensor:
        assert isinstance(a, MXTensor)
        block = a.format.block
        left = torch.unflatten(e2m1.decode(e2m1.unpack(a.canonical_codes())), -1, (-1, block))
        right = torch.unflatten(e2m1.decode(e2m1.unpack(b.canonical_codes())), -1, (-1, block))
        left_scale = e8m0.decode(a.canonical_scales(), torch.float64)
        right_scale = e8m0.decode(b.canonical_scales(), torch.float64)
        total = left.new_zeros(a.rows, b.rows)
        for i in range(left.shape[1]):
            # FP64 holds the product of two scales, so each block rounds to FP32 once.
            scale = left_scale[:, i, None] * right_scale[None, :, i]
            total += ((left[:, i] @ right[:, i].t()).double() * scale).float()
        return total
