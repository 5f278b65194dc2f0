"""How the conformance suite meets a backend: on which device, with which problems, and how one case
is run and judged.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch

import cases
import oracles
from mxgemm import dispatch
from mxgemm import epilogue as epilogues
from mxgemm.backends.base import Backend, GemmPlan, Rejection, RejectionCode
from mxgemm.devices import DeviceSpec
from mxgemm.epilogue import IDENTITY, Epilogue, EpilogueArgs
from mxgemm.matmul import problem_for
from mxgemm.plain import PlainOperand
from mxgemm.problem import GemmProblem, Numerics
from mxgemm.runtime import native_cpu
from mxgemm.tensor import MXTensor

CANDIDATE_DEVICES = ("cpu", "sm_90", "sm_100", "gfx950", "gfx1250", "gfx1250:emulated")


@dataclass(frozen=True)
class Target:
    """A backend on a kind of device that its check accepts."""

    backend: Backend
    device: str
    isa: str = ""
    """Instruction set that native_cpu is told to use; empty for the best."""

    def __str__(self) -> str:
        return f"{self.backend.name}@{self.device}" + (f":{self.isa}" if self.isa else "")

    @property
    def emulated(self) -> bool:
        """Whether machine code runs in the emulator, so that problems must be few and small."""
        return self.device.endswith(":emulated")

    def spec(self) -> DeviceSpec:
        """Return the device as this machine has it, or the one that is asked for where it has
        none.
        """
        wanted = DeviceSpec.parse(self.device)
        if wanted.kind == "cpu" or wanted.emulated or not torch.cuda.is_available():
            return wanted
        here = DeviceSpec.of("cuda")
        return here if here.arch == wanted.arch else wanted

    def absence(self) -> Rejection | None:
        """Return why the target cannot run on this machine, or None."""
        spec = self.spec()
        real_gpu = spec.kind != "cpu" and not spec.emulated
        if real_gpu and not (torch.cuda.is_available() and DeviceSpec.of("cuda").arch == spec.arch):
            return Rejection(RejectionCode.DEVICE, f"needs {self.device}, this machine has none")
        return dispatch.probe(self.backend)


def basic_problem(device: DeviceSpec) -> GemmProblem:
    """Return the problem that every backend must accept: small, canonical, FP32 out, no
    epilogue.
    """
    return GemmProblem(m=16, n=16, k=128, device=device)


def all_targets() -> list[Target]:
    """Return every backend on every kind of device that it accepts."""
    return [
        Target(backend, device)
        for backend in dispatch.BACKENDS
        for device in CANDIDATE_DEVICES
        if backend.check(basic_problem(DeviceSpec.parse(device))) is None
    ]


def runnable() -> list[object]:
    """Return the targets that can run here, as pytest params with their tier's marker."""
    return [
        pytest.param(each, id=str(each), marks=tier(each))
        for target in all_targets()
        if target.absence() is None
        for each in by_instruction_set(target)
    ]


def by_instruction_set(target: Target) -> list[Target]:
    """Return the target, or one for each instruction set of this processor where it has several."""
    if target.backend.name != "native_cpu":
        return [target]
    return [dataclasses.replace(target, isa=isa) for isa in native_cpu.available_isas()]


def tier(target: Target) -> pytest.MarkDecorator:
    """Return the marker of the tier that `target` belongs to."""
    if target.emulated:
        return pytest.mark.emulated
    if target.device == "cpu":
        return (
            pytest.mark.host if target.backend.name.startswith("reference") else pytest.mark.native
        )
    return pytest.mark.rocm if target.device.startswith("gfx") else pytest.mark.cuda


def problem_of(
    a: MXTensor,
    b: MXTensor,
    device: DeviceSpec,
    out_dtype: torch.dtype = torch.float32,
    epilogue: Epilogue = IDENTITY,
    numerics: Numerics = Numerics.DEFAULT,
) -> GemmProblem:
    """Return the problem of these operands on `device`."""
    return problem_for(
        a, b, out_dtype=out_dtype, epilogue=epilogue, numerics=numerics, device=device
    )


def plan_or_skip(target: Target, problem: GemmProblem) -> GemmPlan:
    """Return the target's plan, or skip with its Rejection."""
    rejection: Rejection | None = target.backend.check(problem)
    if rejection is not None:
        pytest.skip(str(rejection))
    return target.backend.plan(problem)


def run(
    plan: GemmPlan, a: MXTensor, b: MXTensor, args: EpilogueArgs = epilogues.NO_ARGS
) -> tuple[torch.Tensor, EpilogueArgs]:
    """Return D and the epilogue's tensors after the call, on the CPU; outputs are pre-filled with
    NaN, C is `out` where dtypes allow.

    A result must be written in full, and nothing but the result: the output's rows are a slice of a
    larger buffer whose rest is checked.
    """
    problem = plan.problem
    device = problem.device.torch_device
    moved = EpilogueArgs(
        **{
            field.name: _to(getattr(args, field.name), device)
            for field in dataclasses.fields(EpilogueArgs)
        }
    )
    frame = torch.full(
        (problem.m + 2, problem.n + 8), torch.nan, dtype=problem.out_dtype, device=device
    )
    out = frame[1:-1, : problem.n]
    if moved.c is not None and moved.c.dtype == problem.out_dtype:
        out.copy_(moved.c)
        moved = dataclasses.replace(moved, c=out)
    plan.run(_operand(a, device), _operand(b, device), out, moved)
    outside = torch.cat((frame[0], frame[-1], frame[:, problem.n :].flatten()))
    assert bool(outside.isnan().all()), "wrote outside the output"
    return out.cpu(), EpilogueArgs(
        **{
            field.name: _to(getattr(moved, field.name), torch.device("cpu"))
            for field in dataclasses.fields(EpilogueArgs)
        }
    )


def check_exact(
    out: torch.Tensor,
    after: EpilogueArgs,
    a: MXTensor,
    b: MXTensor,
    epilogue: Epilogue,
    args: EpilogueArgs,
) -> None:
    """Fail unless D and aux_out are bit for bit the once-rounded exact result; the bias gradient
    within its bound.
    """
    from mxgemm.accuracy import exact_product

    right = torch.empty_like(out)
    copies = dataclasses.replace(
        args,
        aux_out=None if args.aux_out is None else args.aux_out.clone(),
        bias_grad=None,
    )
    product, _ = exact_product(a, b)
    epilogues.apply(product, dataclasses.replace(epilogue, bias_grad=False), copies, right)
    oracles.assert_same_bits(out, right)
    if after.aux_out is not None and copies.aux_out is not None:
        oracles.assert_same_bits(after.aux_out, copies.aux_out)
    check_bias_grad(after, a, b, epilogue, args, None)


def check_bias_grad(
    after: EpilogueArgs,
    a: MXTensor,
    b: MXTensor,
    epilogue: Epilogue,
    args: EpilogueArgs,
    plan: GemmPlan | None,
) -> None:
    """Fail unless the bias gradient is the column sum of the exact D within the sum's bound."""
    if after.bias_grad is None:
        return
    from mxgemm.backends.base import Accumulation

    accumulation = Accumulation() if plan is None else plan.backend.accumulation(plan.problem)
    exact, bound = oracles.expected(a, b, epilogue, args, accumulation)
    summed = Accumulation().gamma(max(a.rows, 1)) * (exact.abs() + bound).sum(0) + bound.sum(0)
    oracles.assert_within(after.bias_grad, exact.sum(0), summed)


def cases_for(target: Target, which: list[cases.Case]) -> list[cases.Case]:
    """Return the cases that a target runs: all, or the small ones in the emulator."""
    if not target.emulated:
        return which
    return [case for case in which if case.shape[0] * case.shape[1] * case.shape[2] <= 1 << 17]


def _to(value: object, device: torch.device) -> object:
    return value.to(device, copy=True) if isinstance(value, torch.Tensor) else value


def _operand(operand: object, device: torch.device) -> object:
    return operand.to(device) if isinstance(operand, MXTensor | PlainOperand) else operand
