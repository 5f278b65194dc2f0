"""Exact MXFP4 products on the CPU, in compiled kernels.

Inside a block every product is summed exactly in integers; each block (or a run of blocks whose
scales are close) is then added in FP32 with one rounding. Pieces of the result whose scales FP32
cannot hold are summed in FP64 instead. A plain A (float32, bfloat16 or float16) is multiplied by
the packed B in FP32. The kernels are in csrc/native_cpu; this module checks, plans and hands over
addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mxgemm import settings
from mxgemm.backends.base import (
    Accumulation,
    Backend,
    GemmPlan,
    Operand,
    PreparedOperand,
    Rejection,
    RejectionCode,
    Side,
)
from mxgemm.epilogue import NO_ARGS, Activation, EpilogueArgs
from mxgemm.formats import MXFP4
from mxgemm.plain import PlainOperand
from mxgemm.problem import GemmProblem, OperandSpec
from mxgemm.runtime import native_cpu as runtime
from mxgemm.tensor import CANONICAL, MXTensor

ACTIVATIONS = {
    Activation.NONE: 0,
    Activation.RELU: 1,
    Activation.GELU: 2,
    Activation.GELU_TANH: 3,
}

NO_PLANES = (None, None, None, None)
"""Bias, C, aux_out and aux_in of NO_ARGS."""

AUTOMATIC = 0
"""Path of a call: the kernels choose by the number of rows."""


@dataclass(frozen=True, slots=True)
class NativeConfig:
    """What one plan uses.

    Attributes:
        isa: the instruction set, "" for the best that the processor has.
        path: 0 lets the kernels choose by the number of rows; 1 few rows, 2 tiles, 3 FP64 sums, for
            tests and measurements.
    """

    isa: str
    path: int = AUTOMATIC

    def __str__(self) -> str:
        return runtime.description(self.isa)


@dataclass(frozen=True, slots=True)
class PlainConfig:
    """What a plan for a plain A uses.

    Attributes:
        isa: the instruction set, "" for the best that the processor has.
    """

    isa: str

    def __str__(self) -> str:
        return runtime.plain_description(self.isa)


class NativeCpu(Backend):
    """MXFP4 or a plain A times MXFP4 on x86-64, or on any processor by plain C++ kernels."""

    name: ClassVar[str] = "native_cpu"
    calls_torch: ClassVar[bool] = False
    prepared_sides: ClassVar[frozenset[Side]] = frozenset({"b"})

    def probe(self) -> Rejection | None:
        try:
            runtime.kernels(settings.CPU_ISA.read())
        except ImportError as error:
            return Rejection(
                RejectionCode.IMPORT,
                f"needs the compiled module mxgemm._native_cpu, got {error}; install mxgemm with a "
                f"C++17 compiler",
            )
        except ValueError as error:
            return Rejection(RejectionCode.SETTING, str(error))
        return None

    def check(self, problem: GemmProblem) -> Rejection | None:
        if problem.device.kind != "cpu":
            return Rejection(RejectionCode.DEVICE, f"runs on the cpu, got {problem.device}")
        for side, spec in (("a", problem.a), ("b", problem.b)):
            rejection = self._check_operand(side, spec)
            if rejection is not None:
                return rejection
        return None

    def _check_operand(self, side: str, spec: OperandSpec) -> Rejection | None:
        if side == "a" and spec.is_plain:
            return None
        if spec.format != MXFP4:
            return Rejection(
                RejectionCode.FORMAT, f"{side} must be {MXFP4.name}, got {spec.format.name}"
            )
        allowed = (None, self.name) if side == "b" else (None,)
        if spec.prepared_by not in allowed:
            return Rejection(
                RejectionCode.LAYOUT,
                f"{side} must be an MXTensor{' or prepared by ' + self.name if side == 'b' else ''}"
                f", got a form prepared by {spec.prepared_by}",
            )
        if spec.layout != CANONICAL:
            return Rejection(
                RejectionCode.LAYOUT,
                f"{side} must be {CANONICAL}, got {spec.layout}; pass relayout=True or call "
                f".relayout()",
            )
        return None

    def accumulation(self, problem: GemmProblem) -> Accumulation:
        return Accumulation(exact_blocks=not problem.a.is_plain)

    def plan(self, problem: GemmProblem) -> GemmPlan:
        isa = settings.CPU_ISA.read()
        config = PlainConfig(isa) if problem.a.is_plain else NativeConfig(isa)
        return GemmPlan(backend=self, problem=problem, config=config, summary=str(config))

    def prepare(self, plan: GemmPlan, operand: MXTensor, side: Side) -> PreparedOperand:
        payload = runtime.module().prepare(
            runtime.kernels(_isa(plan)),
            _matrix(operand),
            operand.rows,
            operand.stored_k // MXFP4.block,
            torch.get_num_threads(),
        )
        return PreparedOperand.of(
            operand, backend=self.name, side=side, payload=payload, nbytes=payload.nbytes
        )

    def launch(
        self, plan: GemmPlan, a: Operand, b: Operand, out: torch.Tensor, args: EpilogueArgs
    ) -> None:
        problem, config, native = plan.problem, plan.config, runtime.module()
        assert isinstance(config, NativeConfig | PlainConfig)
        epilogue, blocks = problem.epilogue, problem.k // MXFP4.block
        columns = b.payload if isinstance(b, PreparedOperand) else _matrix(b)
        planes: tuple[runtime.Plane | None, ...] = NO_PLANES
        if args is not NO_ARGS:
            planes = tuple(map(runtime.plane, (args.bias, args.c, args.aux_out, args.aux_in)))
        on_the_way_out = (
            runtime.plane(out),
            args.alpha,
            args.beta,
            ACTIVATIONS[epilogue.activation],
            ACTIVATIONS[epilogue.dact],
            *planes,
            0 if args.bias_grad is None else args.bias_grad.data_ptr(),
            torch.get_num_threads(),
        )
        kernels, m, n = runtime.kernels(config.isa), problem.m, problem.n
        if isinstance(a, PlainOperand):
            x = runtime.plane(a.values)
            native.weight_only(kernels, m, n, a.shape[1], blocks, x, columns, *on_the_way_out)
            return
        assert isinstance(config, NativeConfig)
        native.gemm(kernels, m, n, blocks, _matrix(a), columns, *on_the_way_out, config.path)


def _isa(plan: GemmPlan) -> str:
    assert isinstance(plan.config, NativeConfig | PlainConfig)
    return plan.config.isa


def _matrix(tensor: Operand) -> tuple[int, int, int, int]:
    """Return the addresses and row strides in bytes of canonical codes and scales."""
    assert isinstance(tensor, MXTensor)
    # Both are contiguous: MXTensor refuses others.
    k = tensor.stored_k
    return tensor.codes.data_ptr(), k // 2, tensor.scales.data_ptr(), k // MXFP4.block
