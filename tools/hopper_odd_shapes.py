"""Runs every Hopper kernel on odd shapes and checks what comes out; made for compute-sanitizer.

    tools/check_cuda_hopper.sh [memcheck|racecheck|synccheck ...]

Operands are made and results are checked on the CPU, so that the device runs little else.
"""

from __future__ import annotations

import argparse
import itertools

import torch

import mxgemm
from mxgemm import accuracy
from mxgemm.backends.base import Operand
from mxgemm.backends.cuda_hopper import CudaHopper, keep_folded
from mxgemm.epilogue import NO_ARGS, Activation, Epilogue, EpilogueArgs
from mxgemm.matmul import problem_for
from mxgemm.problem import Numerics
from mxgemm.quantizers import cuda, reference
from mxgemm.quantizers.options import QuantizeOptions
from mxgemm.tensor import MXTensor

BACKEND = CudaHopper()
SHAPES = ((1, 1, 32), (3, 5, 96), (17, 72, 160), (65, 129, 224), (130, 260, 416), (200, 4300, 160))
SHAPES += ((512, 4270, 224), (600, 2000, 288))  # pairs of blocks: with two tiles, without rows
SHAPES += ((434, 4400, 160),)  # tall tiles whose last boxes end with the rows
SHAPES += ((1300, 264, 96),)  # a packed weight that is decoded for many tiles of rows
ROUNDING = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8}
SCALES = {"narrow": (125, 129), "wide": (100, 150)}
MATRICES = ((1, 32), (33, 96), (130, 320), (257, 2080))
ROTATION = mxgemm.Rotation(64, signs=0x123456789ABCDEF)
OPTIONS = (
    QuantizeOptions(),
    QuantizeOptions(rule="search"),
    QuantizeOptions(rule="search", block_2d=True),
    QuantizeOptions(rule="ceil", rounding="stochastic", rotation=ROTATION, prescale=True, seed=7),
)


def operand(rows: int, k: int, scales: tuple[int, int], generator: torch.Generator) -> MXTensor:
    codes = torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8, generator=generator)
    low, high = scales
    parts = torch.randint(low, high + 1, (rows, k // 32), dtype=torch.uint8, generator=generator)
    return MXTensor.from_parts(codes, parts)


def forms(tensor: MXTensor, side: str) -> dict[str, Operand]:
    """A device copy of `tensor` in every form that the side takes."""
    moved = tensor.to("cuda")
    found: dict[str, Operand] = {"canonical": moved, "folded": keep_folded(moved, side)}
    if side == "b":
        found["packed"] = BACKEND.plan(problem_for(moved, moved)).prepare_b(moved)
    return found


def products(generator: torch.Generator) -> int:
    count = 0
    for (m, n, k), (name, scales) in itertools.product(SHAPES, SCALES.items()):
        a, b = operand(m, k, scales, generator), operand(n, k, scales, generator)
        exact, magnitude = accuracy.exact_product(a, b)
        for (form_a, left), (form_b, right), numerics in itertools.product(
            forms(a, "a").items(), forms(b, "b").items(), Numerics
        ):
            for dtype in (torch.float32, torch.bfloat16):
                problem = problem_for(left, right, out_dtype=dtype, numerics=numerics)
                plan = BACKEND.plan(problem)
                out = torch.full((m, n), torch.nan, dtype=dtype).cuda()
                plan.run(left, right, out, NO_ARGS)
                bound = accuracy.product_bound(magnitude, k, BACKEND.accumulation(problem))
                bound = bound + exact.abs() * ROUNDING[dtype]
                excess = (out.cpu().double() - exact).abs() - bound
                case = (m, n, k, name, form_a, form_b, str(numerics), dtype)
                assert bool((excess <= 0).all()), f"{case}: {excess.max():.3g} over the bound"
                count += 1
    return count


def epilogues(generator: torch.Generator) -> int:
    """Every operand of the epilogue is read and written; the values are the test suite's matter."""
    count = 0
    for m, n, k in SHAPES:
        a, b = (operand(rows, k, SCALES["narrow"], generator) for rows in (m, n))
        matrix = torch.randn(m, n, generator=generator).cuda()
        vector = torch.randn(n, generator=generator).cuda()
        forward = Epilogue(
            has_alpha=True,
            bias=torch.float32,
            activation=Activation.GELU,
            aux_out=torch.float32,
            c=torch.float32,
            bias_grad=True,
        )
        backward = Epilogue(dact=Activation.GELU, aux_in=torch.float32, bias_grad=True)
        for right, epilogue in itertools.product(forms(b, "b").values(), (forward, backward)):
            aux = torch.full_like(matrix, torch.nan)
            grad = torch.full_like(vector, torch.nan)
            args = EpilogueArgs(bias_grad=grad, aux_in=matrix)
            if epilogue is forward:
                args = EpilogueArgs(
                    alpha=0.5, beta=2.0, c=matrix, bias=vector, aux_out=aux, bias_grad=grad
                )
            left = a.to("cuda")
            plan = BACKEND.plan(
                problem_for(left, right, out_dtype=torch.bfloat16, epilogue=epilogue)
            )
            out = torch.full((m, n), torch.nan, dtype=torch.bfloat16).cuda()
            plan.run(left, right, out, args)
            written = [out, grad, *([aux] if epilogue is forward else [])]
            assert not any(bool(part.cpu().isnan().any()) for part in written), (m, n, k, epilogue)
            count += 1
    return count


def quantizations(generator: torch.Generator) -> int:
    cuda.FEW_TILES = 1  # the kernel of large matrices for all of them
    count = 0
    for (rows, k), dtype, options in itertools.product(
        MATRICES, (torch.float32, torch.bfloat16, torch.float16), OPTIONS
    ):
        x = torch.randn(rows, k, generator=generator).to(dtype)
        multiple = options.contraction_multiple
        stored_k, stored_m = (-(-size // multiple) * multiple for size in (k, rows))
        found = cuda.quantize_both(x.cuda(), stored_k, stored_m, options)
        single = cuda.quantize_matrix(x.cuda(), stored_k, options)
        right = reference.quantize_both(x, stored_k, stored_m, options)
        for ours, theirs in zip((*found, single), (*right, right[0]), strict=True):
            same = all(torch.equal(x.cpu(), y) for x, y in zip(ours, theirs, strict=True))
            assert same, (rows, k, dtype, options)
            count += 1
    for (rows, k), dtype in itertools.product(MATRICES, (torch.float32, torch.bfloat16)):
        x = torch.randn(rows, k, generator=generator).to(dtype).cuda()
        packed = mxgemm.quantize(x)
        plan = BACKEND.plan(problem_for(packed, packed))
        ours, theirs = plan.quantize_a(x).payload, plan.prepare_a(packed).payload
        for part in ("folded", "powers", "scales"):
            assert torch.equal(getattr(ours, part).cpu(), getattr(theirs, part).cpu()), (rows, k)
        count += 1
    return count


PARTS = {"products": products, "epilogues": epilogues, "quantizations": quantizations}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=list(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    generator = torch.Generator().manual_seed(chosen.seed)
    for part in chosen.parts:
        print(f"{part}: {PARTS[part](generator)} right", flush=True)


if __name__ == "__main__":
    main()
