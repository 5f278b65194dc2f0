"""Every configuration of the gfx1250 GEMM kernel that a plan can choose, by kind, and what the
compiler makes of it: registers, scratch memory, instructions beside the matrix ones.

`PYTHONPATH=src:tests python tests/backends/gfx1250_configurations.py [COUNT]` compiles them all, or
the first COUNT, two at a time, and writes docs/measurements/gfx1250_configurations.tsv.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path

import torch

import cases
from backends.gfx1250_kernels import LARGE
from mxgemm.backends.flydsl_gfx1250 import cost, launch
from mxgemm.backends.flydsl_gfx1250.config import (
    CodesForm,
    KernelSpec,
    OperandForm,
    ScalesForm,
    TileConfig,
    is_direct,
)
from mxgemm.epilogue import IDENTITY, OUTPUT_DTYPES, Activation, Epilogue
from mxgemm.runtime.flydsl_compile import RESOURCES, CompiledKernel

REPORT = Path(__file__).parents[2] / "docs/measurements/gfx1250_configurations.tsv"
HEADER = (
    "tile\ta\tb\tout\tepilogue\twalks\tvgprs\tsgprs\tvgpr_spills\tsgpr_spills\tscratch_bytes"
    "\tothers_per_wmma"
)
OTHERS_PER_WMMA = 3
WMMA = "v_wmma_scale_f32_16x16x128_f8f6f4"

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
FORMS = tuple(OperandForm(codes, scales) for codes in CodesForm for scales in ScalesForm)
PLAIN, PREPARED = OperandForm(), OperandForm(CodesForm.TILE_16X16, ScalesForm.K_MAJOR)
ALPHA = Epilogue(has_alpha=True)
FUSED = (
    Epilogue(bias=BF16),
    Epilogue(bias=F32, activation=Activation.GELU),
    Epilogue(bias=F16, activation=Activation.GELU_TANH, aux_out=BF16),
    Epilogue(activation=Activation.RELU, aux_out=F32, bias_grad=True),
    Epilogue(c=F32),
    Epilogue(has_alpha=True, c=BF16),
    Epilogue(
        has_alpha=True,
        bias=BF16,
        activation=Activation.GELU,
        aux_out=BF16,
        c=BF16,
        bias_grad=True,
    ),
    Epilogue(
        has_alpha=True,
        bias=F32,
        activation=Activation.GELU_TANH,
        aux_out=F32,
        c=F32,
        bias_grad=True,
    ),
    Epilogue(dact=Activation.RELU, aux_in=F16),
    Epilogue(dact=Activation.GELU, aux_in=BF16, bias_grad=True),
    Epilogue(has_alpha=True, dact=Activation.GELU_TANH, aux_in=F32, c=F32, bias_grad=True),
)
"""Kinds of epilogue: every field in every dtype, alone and together."""
SHAPES = (*((tile, False) for tile in cost.CANDIDATES), (LARGE, True))
"""Tiles, and whether workgroups walk."""


def _spec(
    shape: tuple[TileConfig, bool],
    a: OperandForm,
    b: OperandForm,
    out_dtype: torch.dtype,
    epilogue: Epilogue,
) -> KernelSpec:
    tile, walks = shape
    return KernelSpec(tile=tile, a=a, b=b, out_dtype=out_dtype, epilogue=epilogue, walks=walks)


def configurations() -> list[KernelSpec]:
    """Return the representatives, then what holds every pair of tile, output, epilogue and whether
    operands are prepared, which the way out depends on, then the product of tiles and operand
    forms, which the K loop depends on.
    """
    pairs = tuple(itertools.product((PLAIN, PREPARED), repeat=2))
    rows = list(itertools.product(SHAPES[-1:], pairs, (BF16, F16), (ALPHA,)))
    rows += cases.pairwise((SHAPES[:-1], pairs, OUTPUT_DTYPES, (IDENTITY, ALPHA, *FUSED)))
    rows += itertools.product(SHAPES, itertools.product(FORMS, FORMS), (F32,), (IDENTITY,))
    specs = [_spec(shape, a, b, out, epilogue) for shape, (a, b), out, epilogue in rows]
    return list(dict.fromkeys([*representatives(), *specs]))


def representatives() -> list[KernelSpec]:
    """Return a few that hold every pair of values of tile, forms, output and kind of epilogue."""
    factors = (SHAPES, CodesForm, ScalesForm, CodesForm, ScalesForm, OUTPUT_DTYPES)
    kinds = (IDENTITY, FUSED[1], FUSED[6], FUSED[7], FUSED[-1])
    rows = cases.pairwise((*(tuple(factor) for factor in factors), kinds))
    return [
        _spec(
            shape,
            OperandForm(a_codes, a_scales),
            OperandForm(b_codes, b_scales),
            out,
            # A walk has no fused epilogue; its pairs with those are none.
            epilogue if not shape[1] or is_direct(epilogue) else ALPHA,
        )
        for shape, a_codes, a_scales, b_codes, b_scales, out, epilogue in rows
    ]


def body(kernel: CompiledKernel) -> list[str]:
    """Return instructions and labels of the kernel in order, without comments."""
    text = kernel.assembly.split("@function", 1)[1].split(".Lfunc_end0", 1)[0]
    lines = (line.split(";")[0].strip() for line in text.splitlines())
    return [line for line in lines if line and (not line.startswith(".") or line.endswith(":"))]


def steady_loop(kernel: CompiledKernel) -> list[str]:
    """Return the instructions from a label to the conditional branch that goes back to it; of the
    inner loop where a workgroup walks.
    """
    lines, labels = body(kernel), {}
    loops = []
    for at, line in enumerate(lines):
        if line.endswith(":"):
            labels[line[:-1]] = at
        target = line.split()[-1]
        if line.startswith("s_cbranch") and target in labels:
            inside = [x for x in lines[labels[target] : at + 1] if not x.endswith(":")]
            if any("wmma" in x for x in inside):
                loops.append(inside)
    assert len(loops) in (1, 2)
    return min(loops, key=len)


@dataclass(frozen=True)
class Made:
    """What the compiler made of a configuration: its own counts, and instructions of the steady
    loop beside each matrix instruction.
    """

    vgprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    scratch_bytes: int
    others_per_wmma: float

    @classmethod
    def of(cls, kernel: CompiledKernel) -> Made:
        counts = Counter(line.split()[0] for line in steady_loop(kernel))
        others = (counts.total() - counts[WMMA]) / counts[WMMA]
        return cls(*(kernel.resources[name] for name in RESOURCES), round(others, 3))

    def __str__(self) -> str:
        return "\t".join(str(value) for value in astuple(self))


def made(spec: KernelSpec) -> Made:
    """Compile `spec` and return what became of it; spills must not hide in the listing either."""
    kernel = launch.load("kernel:build_gemm", spec)
    found = Made.of(kernel)
    assert found.scratch_bytes or "scratch_" not in kernel.assembly
    return found


def name(spec: KernelSpec) -> str:
    """Return the first columns of the report."""
    out = str(spec.out_dtype)[6:]
    fields = (spec.tile, spec.a, spec.b, out, spec.epilogue, "walks" if spec.walks else "")
    return "\t".join(str(field) for field in fields)


def rewrite(count: int | None) -> None:
    """Write the report of the first `count` configurations, all by default."""
    specs = configurations()[:count]
    with ThreadPoolExecutor(2) as pool:
        lines = [f"{name(s)}\t{m}" for s, m in zip(specs, pool.map(made, specs), strict=True)]
    REPORT.write_text("\n".join([HEADER, *lines]) + "\n")


if __name__ == "__main__":
    rewrite(int(sys.argv[1]) if len(sys.argv) > 1 else None)
