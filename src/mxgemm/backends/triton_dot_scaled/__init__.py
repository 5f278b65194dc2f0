"""triton_dot_scaled: the portable form, Triton's own block-scaled multiplication.

Native FP4 units do it on sm_100 and later and on gfx950; elsewhere Triton decodes to bfloat16
inside the kernel, which on Hopper runs at about a sixth of `cuda_hopper`. Taken only when named: it
serves as an independent witness and as a peer in benchmarks. An epilogue other than alpha is done
by torch on the FP32 product. Where Triton decodes to bfloat16, whose range ends there, scale bytes
outside 2..252 give other values.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
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
    canonical_only,
)
from mxgemm.epilogue import Epilogue, EpilogueArgs
from mxgemm.formats import MXFP4
from mxgemm.problem import GemmProblem, Numerics
from mxgemm.tensor import MXTensor

ARCHES = ("sm_90", "sm_100", "sm_103", "gfx950", "gfx1250")
SIGNIFICAND_BITS = 22
"""Of the tensor cores' FP32 accumulators, which truncate; measured on Hopper only."""


@dataclass(frozen=True, slots=True)
class TileConfig:
    """One program's tile, and how Triton runs it."""

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 128
    group: int = 8
    num_warps: int = 8
    num_stages: int = 3

    @property
    def constants(self) -> dict[str, int]:
        """The kernel's compile-time values."""
        return {
            "TILE_M": self.tile_m,
            "TILE_N": self.tile_n,
            "TILE_K": self.tile_k,
            "GROUP": self.group,
        }

    @property
    def options(self) -> dict[str, int | bool]:
        """How Triton compiles it. Fusion is said because Triton's default for it changes in 3.10;
        nothing here is added to a product outside the multiplication.
        """
        return {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": True,
        }


class TritonDotScaled(Backend):
    """tl.dot_scaled on both packed operands."""

    name: ClassVar[str] = "triton_dot_scaled"

    def automatic(self, problem: GemmProblem) -> bool:
        return False

    def probe(self) -> Rejection | None:
        return _probe()

    def check(self, problem: GemmProblem) -> Rejection | None:
        device = problem.device
        if device.kind == "cpu" or device.emulated:
            return Rejection(RejectionCode.DEVICE, f"needs a GPU, got {device}")
        if device.arch not in ARCHES:
            return Rejection(
                RejectionCode.ARCH, f"needs one of {', '.join(ARCHES)}, got {device.arch}"
            )
        for side, spec in (("a", problem.a), ("b", problem.b)):
            if spec.format != MXFP4:
                return Rejection(
                    RejectionCode.FORMAT, f"{side} must be {MXFP4.name}, got {spec.format.name}"
                )
        if problem.numerics is Numerics.STRICT:
            return Rejection(
                RejectionCode.NUMERICS,
                "Triton scales in bfloat16, which has no 2^-127 and overflows early, "
                "got numerics=strict",
            )
        return canonical_only(problem)

    def accumulation(self, problem: GemmProblem) -> Accumulation:
        return Accumulation(significand_bits=SIGNIFICAND_BITS, truncates=True)

    def plan(self, problem: GemmProblem) -> GemmPlan:
        large = problem.m > 128 and problem.n > 128
        config = TileConfig(tile_n=256) if large else TileConfig(tile_m=64, num_warps=4)
        fused = _is_fused(problem.epilogue)
        return GemmPlan(
            backend=self,
            problem=problem,
            config=config,
            workspace_bytes=0 if fused else 4 * problem.m * problem.n,
            summary=f"dot_scaled, tile {config.tile_m}x{config.tile_n}x{config.tile_k}"
            + ("" if fused else ", epilogue in torch"),
        )

    def launch(
        self, plan: GemmPlan, a: Operand, b: Operand, out: torch.Tensor, args: EpilogueArgs
    ) -> None:
        assert isinstance(a, MXTensor)
        assert isinstance(b, MXTensor)
        assert isinstance(plan.config, TileConfig)
        if _is_fused(plan.problem.epilogue):
            _multiply(plan.config, a, b, out, args.alpha)
            return
        product = torch.empty(out.shape, dtype=torch.float32, device=out.device)
        _multiply(plan.config, a, b, product, 1.0)
        epilogue.apply(product, plan.problem.epilogue, args, out)


def _is_fused(described: Epilogue) -> bool:
    return described in (Epilogue(), Epilogue(has_alpha=True))


def _multiply(
    config: TileConfig, a: MXTensor, b: MXTensor, out: torch.Tensor, alpha: float
) -> None:
    from mxgemm.backends.triton_dot_scaled.kernel import gemm_kernel

    m, n = out.shape
    tiles = -(-m // config.tile_m) * -(-n // config.tile_n)
    with torch.cuda.device(out.device):
        gemm_kernel[(tiles,)](
            a.codes,
            a.scales,
            b.codes,
            b.scales,
            out,
            m,
            n,
            a.stored_k,
            a.codes.stride(0),
            a.scales.stride(0),
            b.codes.stride(0),
            b.scales.stride(0),
            out.stride(0),
            alpha,
            **config.constants,
            **config.options,
        )


@functools.cache
def _probe() -> Rejection | None:
    try:
        import triton
    except ImportError as error:
        return Rejection(RejectionCode.IMPORT, f"needs triton, got {error}")
    if not torch.cuda.is_available():
        return Rejection(RejectionCode.DEVICE, f"needs a GPU for triton {triton.__version__}")
    return None
