"""cuda_hopper: MXFP4 on Hopper's FP8 tensor cores, exactly converted, with promoted accumulation.

An E2M1 code times a power of two is an E4M3 value over 15 powers of two, so the scales of a row are
folded into its bytes and one
power of two a row is left for the epilogue. The tensor core's accumulator keeps 14 bits and
truncates, so it is emptied into FP32
every 128 k, or every 32 in strict mode, where its sums are exact. Rows whose scales spread over
more than 14 powers are scaled
block by block instead. See docs/hopper.md.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import torch

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
from mxgemm.backends.cuda_hopper import config as cfg
from mxgemm.epilogue import EpilogueArgs
from mxgemm.errors import LayoutMismatch
from mxgemm.formats import MXFP4
from mxgemm.problem import GemmProblem, Numerics
from mxgemm.quantizers import Quantization
from mxgemm.tensor import CANONICAL, MXTensor

ARCH = "sm_90"
SIGNIFICAND_BITS = 14
PROMOTE_EVERY = 128
LARGEST_SIZE = (1 << 31) - 1
ADDRESS_ALIGNMENT = 16


class CudaHopper(Backend):
    """Own kernels, compiled on first use."""

    name: ClassVar[str] = "cuda_hopper"
    calls_torch: ClassVar[bool] = False
    prepared_sides: ClassVar[frozenset[Side]] = frozenset({"a", "b"})

    def probe(self) -> Rejection | None:
        return _probe()

    def check(self, problem: GemmProblem) -> Rejection | None:
        return _check_problem(problem, self.name)

    def accumulation(self, problem: GemmProblem) -> Accumulation:
        if problem.numerics is Numerics.STRICT:
            return Accumulation(exact_blocks=True)
        return Accumulation(
            significand_bits=SIGNIFICAND_BITS, truncates=True, promote_every=PROMOTE_EVERY
        )

    def plan(self, problem: GemmProblem) -> GemmPlan:
        config = cfg.choose(problem)
        return GemmPlan(
            backend=self,
            problem=problem,
            config=config,
            workspace_bytes=cfg.areas(problem, config).nbytes,
            summary=str(config),
        )

    def launch(
        self, plan: GemmPlan, a: Operand, b: Operand, out: torch.Tensor, args: EpilogueArgs
    ) -> None:
        config = plan.config
        assert isinstance(config, cfg.HopperConfig)
        index = plan.problem.device.index
        launcher = config.launchers.get(index)
        if launcher is None:
            from mxgemm.backends.cuda_hopper.launch import Launcher

            launcher = config.launchers[index] = Launcher(plan.problem, config, index)
        launcher(_payload(a), _payload(b), out, args)

    def prepare(self, plan: GemmPlan, operand: MXTensor, side: Side) -> PreparedOperand:
        """Return `a` folded (8 bits an element) and `b` packed (4.25 bits); `keep_folded` folds
        either.
        """
        if side == "a":
            return keep_folded(operand, "a")
        from mxgemm.backends.cuda_hopper import launch

        _check_operand(operand)
        with torch.cuda.device(operand.device):
            packed = launch.pack(operand, operand.stored_k)
        return _prepared(operand, "b", packed, packed.nbytes)

    def quantize(self, plan: GemmPlan, source: Quantization, side: Side) -> PreparedOperand:
        """Return `a` folded, from one kernel where `quantize_folded.takes` the matrix."""
        from mxgemm.backends.cuda_hopper import quantize_folded

        if side == "b" or not quantize_folded.takes(source):
            return self.prepare(plan, source.tensor(), side)
        with torch.cuda.device(source.matrix.device):
            folded = quantize_folded.run(source)
        return PreparedOperand.quantized(
            source, backend=self.name, side=side, payload=folded, nbytes=folded.nbytes
        )


class CudaHopperCublas(Backend):
    """The same fold, multiplied by cuBLAS row-wise without fast accumulation: a cross-check, taken
    only when named.
    """

    name: ClassVar[str] = "cuda_hopper_cublas"

    def automatic(self, problem: GemmProblem) -> bool:
        return False

    def probe(self) -> Rejection | None:
        return _probe()

    def check(self, problem: GemmProblem) -> Rejection | None:
        return _check_problem(problem, self.name) or _check_cublas(problem)

    def accumulation(self, problem: GemmProblem) -> Accumulation:
        return CudaHopper().accumulation(problem)

    def plan(self, problem: GemmProblem) -> GemmPlan:
        config = cfg.choose(problem)
        return GemmPlan(
            backend=self,
            problem=problem,
            config=config,
            workspace_bytes=cfg.areas(problem, config).nbytes,
            summary="fold, then cuBLAS row-wise E4M3 without fast accumulation",
        )

    def launch(
        self, plan: GemmPlan, a: Operand, b: Operand, out: torch.Tensor, args: EpilogueArgs
    ) -> None:
        from mxgemm.backends.cuda_hopper import cublas

        assert isinstance(a, MXTensor)
        assert isinstance(b, MXTensor)
        cublas.run(plan.problem, a, b, out)


def keep_folded(operand: MXTensor, side: Side) -> PreparedOperand:
    """Return `operand` folded: 8 bits an element, and no fold or decoding on any later call.

    `GemmPlan.prepare_b` packs weights in 4.25 bits; this is the faster and larger form of a weight
    that is used at large m.
    """
    from mxgemm.backends.cuda_hopper import launch

    _check_operand(operand)
    with torch.cuda.device(operand.device):
        folded = launch.fold_one(operand, operand.stored_k)
    return _prepared(operand, side, folded, folded.nbytes)


def _prepared(operand: MXTensor, side: Side, payload: object, nbytes: int) -> PreparedOperand:
    return PreparedOperand.of(
        operand, backend=CudaHopper.name, side=side, payload=payload, nbytes=nbytes
    )


def _payload(operand: Operand) -> Any:
    if isinstance(operand, PreparedOperand):
        return operand.payload
    _check_operand(operand)
    return operand


def _check_operand(operand: MXTensor) -> None:
    """Raise unless the kernels can read the codes 16 bytes at a time."""
    address = operand.codes.data_ptr()
    if address % ADDRESS_ALIGNMENT:
        raise LayoutMismatch(
            f"gemm on {CudaHopper.name}: codes must be {ADDRESS_ALIGNMENT}-byte aligned, "
            f"got address {address:#x}; call .clone()"
        )


@functools.cache
def _probe() -> Rejection | None:
    try:
        from cuda.bindings import driver  # noqa: F401

        from mxgemm.runtime import nvrtc

        nvrtc.version()
    except (ImportError, RuntimeError) as error:
        return Rejection(
            RejectionCode.IMPORT,
            f"needs cuda-bindings and NVRTC, which CUDA builds of PyTorch bring, got {error}",
        )
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Rejection(RejectionCode.DEVICE, "needs an NVIDIA Hopper GPU, torch sees none")
    found = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    if (9, 0) not in found:
        return Rejection(RejectionCode.ARCH, f"needs compute capability 9.0, got {sorted(found)}")
    return None


def _check_problem(problem: GemmProblem, name: str) -> Rejection | None:
    device = problem.device
    if device.kind != "cuda" or device.emulated:
        return Rejection(RejectionCode.DEVICE, f"needs an NVIDIA Hopper GPU, got {device}")
    if device.arch != ARCH:
        return Rejection(RejectionCode.ARCH, f"needs {ARCH}, got {device.arch}")
    for side, spec in (("a", problem.a), ("b", problem.b)):
        if spec.format != MXFP4:
            return Rejection(
                RejectionCode.FORMAT, f"{side} must be {MXFP4.name}, got {spec.format.name}"
            )
        if spec.prepared_by not in (None, CudaHopper.name):
            return Rejection(
                RejectionCode.LAYOUT,
                f"{side} must be an MXTensor or prepared by {CudaHopper.name}, "
                f"got a form prepared by {spec.prepared_by}",
            )
        if spec.layout != CANONICAL:
            return Rejection(
                RejectionCode.LAYOUT,
                f"{side} must be {CANONICAL}, got {spec.layout}; "
                "pass relayout=True or call .relayout()",
            )
    if problem.a.rotation != problem.b.rotation:
        return Rejection(
            RejectionCode.ROTATION,
            f"operands must carry the same rotation, got {problem.a.rotation} and "
            f"{problem.b.rotation}",
        )
    if max(problem.m, problem.n, problem.k) > LARGEST_SIZE:
        return Rejection(
            RejectionCode.SHAPE, f"{name} takes sizes up to {LARGEST_SIZE}, got {problem}"
        )
    return None


CUBLAS_MULTIPLE = 16


def _check_cublas(problem: GemmProblem) -> Rejection | None:
    if problem.a.prepared_by or problem.b.prepared_by:
        return Rejection(RejectionCode.LAYOUT, "operands must be MXTensors, got a prepared form")
    if problem.numerics is Numerics.STRICT:
        return Rejection(RejectionCode.NUMERICS, "cuBLAS promotes every 128 k, got numerics=strict")
    if problem.out_dtype is not torch.bfloat16:
        return Rejection(
            RejectionCode.DTYPE, f"row-wise cuBLAS writes bfloat16, got {problem.out_dtype}"
        )
    if not problem.epilogue.is_identity:
        return Rejection(RejectionCode.EPILOGUE, f"must be the identity, got {problem.epilogue}")
    if problem.n % CUBLAS_MULTIPLE:
        return Rejection(
            RejectionCode.SHAPE, f"n must be a multiple of {CUBLAS_MULTIPLE}, got {problem.n}"
        )
    return None
