"""flydsl_gfx1250: the MXFP4 GEMM for AMD's MI455X, written in FlyDSL and run there or in the
emulator.

Reads plain operands as they are, and without a copy `tile_16x16` codes, `scale_k_major` and
`scale_32x4` scales. `docs/gfx1250.md` draws the kernel.
"""

from __future__ import annotations

import importlib.util
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
from mxgemm.backends.flydsl_gfx1250 import cost, launch
from mxgemm.backends.flydsl_gfx1250.config import (
    CodesForm,
    OperandForm,
    ScalesForm,
    is_direct,
)
from mxgemm.backends.flydsl_gfx1250.places import place_for
from mxgemm.epilogue import EpilogueArgs
from mxgemm.errors import UnsupportedProblem
from mxgemm.formats import MXFP4
from mxgemm.problem import GemmProblem, Numerics, OperandSpec
from mxgemm.runtime import flydsl_compile, rocm_linker
from mxgemm.tensor import CANONICAL, MXTensor

ARCH = "gfx1250"


class FlyDSLGfx1250(Backend):
    """TDM copies, scaled WMMA and a fused epilogue; split contraction for few outputs."""

    name: ClassVar[str] = "flydsl_gfx1250"
    prepared_sides: ClassVar[frozenset[Side]] = frozenset({"a", "b"})
    model_ignores: ClassVar[str] = "the operands' layouts and the epilogue"
    """In what launches of one tile may differ without `modelled_ms` knowing."""

    def probe(self) -> Rejection | None:
        """Return why kernels cannot be compiled, or cannot be run, here."""
        version = flydsl_compile.installed_version()
        first, last = flydsl_compile.VERSIONS
        if version is None:
            return Rejection(
                RejectionCode.IMPORT, "needs flydsl, got none; pip install flydsl==0.5.0"
            )
        if not first <= flydsl_compile.release(version) < last:
            window = " .. ".join(".".join(map(str, v)) for v in (first, last))
            return Rejection(
                RejectionCode.VERSION, f"needs flydsl {window} (exclusive), got {version}"
            )
        try:
            rocm_linker.find()
        except rocm_linker.NoLinker as error:
            code = RejectionCode.SETTING if settings.ROCM_PATH.read() else RejectionCode.IMPORT
            return Rejection(code, str(error))
        if torch.version.hip is None and importlib.util.find_spec("mxgemm._emulator") is None:
            return Rejection(
                RejectionCode.IMPORT,
                "needs PyTorch for ROCm or mxgemm's compiled emulator, got neither",
            )
        return None

    def check(self, problem: GemmProblem) -> Rejection | None:
        """Return why the kernel cannot do `problem`: device, format, layout or sizes."""
        device = problem.device
        if device.arch != ARCH:
            return Rejection(RejectionCode.ARCH, f"needs {ARCH}, got {device}")
        if problem.numerics is Numerics.STRICT and not device.emulated:
            return Rejection(
                RejectionCode.NUMERICS,
                "strict needs a published order of sums; the matrix unit's is not",
            )
        for side, spec in (("a", problem.a), ("b", problem.b)):
            rejection = self._check_operand(side, spec)
            if rejection is not None:
                return rejection
        if max(problem.m, problem.n) > launch.ROWS_LIMIT or problem.k >= launch.K_LIMIT:
            return Rejection(
                RejectionCode.SHAPE,
                f"needs m and n up to {launch.ROWS_LIMIT} and k below {launch.K_LIMIT}, "
                f"got m={problem.m} n={problem.n} k={problem.k}",
            )
        return None

    def _check_operand(self, side: str, spec: OperandSpec) -> Rejection | None:
        if spec.format != MXFP4:
            return Rejection(RejectionCode.FORMAT, f"{side} must be mxfp4, got {spec.format.name}")
        if spec.prepared_by is not None:
            if spec.prepared_by == self.name:
                return None
            return Rejection(
                RejectionCode.LAYOUT,
                f"{side} must be an MXTensor or prepared here, got one of {spec.prepared_by}",
            )
        if OperandForm.of(spec.layout) is None:
            codes, scales = (" or ".join(form) for form in (CodesForm, ScalesForm))
            return Rejection(
                RejectionCode.LAYOUT,
                f"{side} must have codes {codes} and scales {scales}, got {spec.layout}; "
                "pass relayout=True or call .relayout()",
            )
        return None

    def accumulation(self, problem: GemmProblem) -> Accumulation:
        """Return FP32 sums; the order inside the matrix unit is not published, the bound holds for
        any.
        """
        return Accumulation()

    def plan(self, problem: GemmProblem) -> GemmPlan:
        """Return the plan with the best tile and split by `cost`."""
        sizes = problem.m, problem.n, problem.k
        walks = is_direct(problem.epilogue)
        return self.plan_with(problem, cost.choose(*sizes, problem.out_dtype, walks=walks))

    def plan_with(self, problem: GemmProblem, choice: cost.Choice) -> GemmPlan:
        """Return the plan with this tile and split, for tuning and tests.

        Args:
            problem: what is to be done.
            choice: one of `cost.CANDIDATES` as the tile, no other was ever compiled and looked
                into; 1 to `cost.MAX_SPLITS` parts of K, of which more than one are of a multiple
                of 8 K tiles and none is empty; workgroups along N, where the tile is the largest,
                K in one part of 10 K tiles or more and the epilogue at most a factor alpha.

        Raises:
            TypeError: `choice` is no `cost.Choice`.
            UnsupportedProblem: the backend rejects the problem, or no kernel does it so.
        """
        if not isinstance(choice, cost.Choice):
            raise TypeError(
                f"plan on {self.name}: choice must be a cost.Choice, got {type(choice).__name__}"
            )
        config = launch.GemmConfig(
            choice.tile, choice.splits, choice.split_tiles, choice.walk_columns
        )
        rejection = self.check(problem) or config.validate(problem)
        if rejection is not None:
            raise UnsupportedProblem(f"plan on {self.name}: {rejection}, for {problem}")
        return GemmPlan(
            backend=self,
            problem=problem,
            config=config,
            workspace_bytes=launch.workspace_bytes(problem, config),
            summary=f"{config}{', emulated' if problem.device.emulated else ''}",
        )

    def modelled_ms(self, plan: GemmPlan) -> float:
        """Return the time of a launch on an MI455X by the model of `cost`, in milliseconds."""
        config, problem = plan.config, plan.problem
        assert isinstance(config, launch.GemmConfig)
        choice = cost.Choice(
            config.tile, config.splits, config.split_tiles, walk_columns=config.walk_columns
        )
        clocks = cost.clocks(choice, problem.m, problem.n, problem.k, problem.out_dtype)
        return 1e3 * clocks / cost.CLOCK_HZ

    def launch(
        self, plan: GemmPlan, a: Operand, b: Operand, out: torch.Tensor, args: EpilogueArgs
    ) -> None:
        """Run the plan's kernels."""
        assert isinstance(plan.config, launch.GemmConfig)
        place = place_for(plan.problem.device)
        operands = _stored(a), _stored(b)
        launch.gemm(place, plan.problem, plan.config, operands, out, args)

    def prepare(self, plan: GemmPlan, operand: MXTensor, side: Side) -> PreparedOperand:
        """Return `operand` with `tile_16x16` codes and `scale_k_major` scales, packed on the
        device.
        """
        if operand.layout != CANONICAL:
            operand = operand.relayout(CANONICAL)
        packed = launch.reorder(place_for(plan.problem.device), operand)
        return PreparedOperand.of(
            operand, backend=self.name, side=side, payload=packed, nbytes=packed.nbytes
        )


def _stored(operand: Operand) -> MXTensor:
    if isinstance(operand, MXTensor):
        return operand
    assert isinstance(operand, PreparedOperand)
    assert isinstance(operand.payload, MXTensor)
    return operand.payload
