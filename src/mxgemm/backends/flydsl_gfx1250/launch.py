"""From a plan to a finished output: which kernels run, in which order, on which values."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import torch

from mxgemm.backends.base import Rejection, RejectionCode
from mxgemm.backends.flydsl_gfx1250 import cost
from mxgemm.backends.flydsl_gfx1250.config import (
    CHUNK_BYTES,
    REDUCE_THREADS,
    SCALE_GROUP,
    SLICE_ROWS,
    TILE_K,
    WALK_STAGES,
    WAVE_LANES,
    WORD_BYTES,
    KernelSpec,
    OperandForm,
    ScalesForm,
    SplitSumSpec,
    TileConfig,
)
from mxgemm.backends.flydsl_gfx1250.places import Place
from mxgemm.epilogue import IDENTITY, EpilogueArgs
from mxgemm.problem import GemmProblem, OperandSpec
from mxgemm.runtime.flydsl_compile import CompiledKernel, compile_kernel
from mxgemm.tensor import MXTensor, OperandLayout

PACKAGE = "mxgemm.backends.flydsl_gfx1250"
TILED = OperandLayout.of("tile_16x16", "scale_k_major")
"""The prepared form."""
FP32_BYTES = 4
GRID_LIMIT = 65_535
"""Workgroups along the second and third axis of a grid, whose numbers a wave gets in 16 bits each.
The first axis takes more than any problem has.
"""
ROWS_LIMIT = GRID_LIMIT * min(REDUCE_THREADS, *(tile.tile_n for tile in cost.CANDIDATES))
"""Rows of either operand: those of B lie along the second axis of a GEMM's grid, in tiles, and
along that of a small kernel, in its lanes."""
K_LIMIT = 1 << 28
"""Contraction: the byte extents of a copy are 31-bit numbers."""


@dataclass(frozen=True, slots=True)
class GemmConfig:
    """How a problem is done.

    Attributes:
        tile: sizes.
        splits, split_tiles: parts of K, K tiles of each.
        walk_columns: workgroups along N, each of which walks over every so many output tiles; 0 for
            one output tile each.
    """

    tile: TileConfig
    splits: int
    split_tiles: int
    walk_columns: int = 0

    def validate(self, problem: GemmProblem) -> Rejection | None:
        """Return why `problem`, which the backend accepts, cannot be done so, or None.

        The fields may hold anything; the reason says what each must be.
        """
        rejection = self._unknown() or self.spec(problem).validate()
        if rejection is not None:
            return rejection
        k_tiles, columns = (  # of one even where there is nothing, and no kernel runs
            max(1, -(-size // tile))
            for size, tile in ((problem.k, TILE_K), (problem.n, self.tile.tile_n))
        )
        whole, parts = self.splits == 1, f"{self.splits} parts of {self.split_tiles} K tiles"
        wanted = None
        if not 1 <= self.splits <= cost.MAX_SPLITS:
            wanted = f"K in 1 to {cost.MAX_SPLITS} parts, got {self.splits}"
        elif not (self.splits - 1) * self.split_tiles < k_tiles <= self.splits * self.split_tiles:
            wanted = f"parts that cover {k_tiles} K tiles, none of them empty, got {parts}"
        elif self.split_tiles > K_LIMIT // TILE_K:
            wanted = f"parts of up to {K_LIMIT // TILE_K} K tiles, the longest K, got {parts}"
        elif not whole and self.split_tiles % SCALE_GROUP:
            wanted = f"parts of a multiple of {SCALE_GROUP} K tiles, got {parts}"
        elif not 0 <= self.walk_columns <= columns:
            wanted = f"0 to {columns} workgroups along N, got {self.walk_columns}"
        elif self.walk_columns and not whole:
            wanted = f"K in one part for a walk, got {parts}"
        elif self.walk_columns and not cost.can_walk(problem.k):
            wanted = (
                f"{WALK_STAGES} or more K tiles for a walk, and not 1 more than a multiple of "
                f"{SCALE_GROUP}, got {k_tiles}"
            )
        if wanted is None:
            return None
        return Rejection(RejectionCode.SHAPE, f"{self}: needs {wanted}")

    def _unknown(self) -> Rejection | None:
        """Return what is no tile that ships, or no number, or None."""
        # By `repr`, as kernels are named: 256.0 is equal to 256 and makes another kernel.
        if repr(self.tile) not in map(repr, cost.CANDIDATES):
            shipped = ", ".join(map(str, cost.CANDIDATES))
            return Rejection(
                RejectionCode.SHAPE, f"needs one of the tiles {shipped}, got {self.tile!r}"
            )
        numbers = self.splits, self.split_tiles, self.walk_columns
        if any(type(number) is not int for number in numbers):
            return Rejection(
                RejectionCode.SHAPE,
                f"needs ints as splits, split_tiles and walk_columns, got {numbers}",
            )
        return None

    def spec(self, problem: GemmProblem) -> KernelSpec:
        """Return the GEMM kernel: that of the whole, or of the parts of K."""
        whole = self.splits == 1
        a, b = (_form(spec) for spec in (problem.a, problem.b))
        return KernelSpec(
            tile=self.tile,
            a=a,
            b=b,
            out_dtype=problem.out_dtype if whole else torch.float32,
            epilogue=problem.epilogue if whole else IDENTITY,
            walks=self.walk_columns > 0,
        )

    def __str__(self) -> str:
        parts = f", K in {self.splits} parts" if self.splits > 1 else ""
        walk = f", {self.walk_columns} workgroups along N" if self.walk_columns else ""
        return f"{self.tile}{parts}{walk}"


def workspace_bytes(problem: GemmProblem, config: GemmConfig) -> int:
    """Return the bytes of partial products and of the bias gradient's parts."""
    total = 0
    slices = -(-problem.m // config.tile.tile_m) * config.tile.waves_m
    if config.splits > 1:
        total += config.splits * problem.m * problem.n * FP32_BYTES
        slices = -(-problem.m // SLICE_ROWS)
    if problem.epilogue.bias_grad:
        total += (slices + 1) * problem.n * FP32_BYTES
    return total


@functools.lru_cache(maxsize=256)
def load(function: str, argument: object) -> CompiledKernel:
    """Return the kernel of "module:function" in this folder, compiled for `argument`."""
    return compile_kernel(f"{PACKAGE}.{function}", argument)


def gemm(
    place: Place,
    problem: GemmProblem,
    config: GemmConfig,
    operands: tuple[MXTensor, MXTensor],
    out: torch.Tensor,
    args: EpilogueArgs,
) -> None:
    """Compute D into `out`: the GEMM, then the sum of its parts where K is split, then the bias
    gradient's.
    """
    if config.splits > 1:
        slices = _split_gemm(place, problem, config, operands, out, args)
    else:
        rows = -(-problem.m // config.tile.tile_m) * config.tile.waves_m
        slices = _bias_grad_parts(problem, rows, out)
        _run_gemm(place, problem, config, operands, out, args, slices)
    if args.bias_grad is not None and slices is not None:
        sums = torch.empty(problem.n, device=out.device)
        grid = (-(-problem.n // REDUCE_THREADS), 1, 1)
        kernel = load("reduce:build_bias_grad_sum", None)
        place.run(kernel, grid, [sums, slices, problem.n, slices.shape[0]])
        args.bias_grad.copy_(sums)


def _split_gemm(
    place: Place,
    problem: GemmProblem,
    config: GemmConfig,
    operands: tuple[MXTensor, MXTensor],
    out: torch.Tensor,
    args: EpilogueArgs,
) -> torch.Tensor | None:
    """Compute D into `out` through partial products; return the bias gradient's parts."""
    m, n = problem.m, problem.n
    parts = torch.empty(config.splits, m, n, device=out.device)
    _run_gemm(place, problem, config, operands, parts.flatten(0, 1), EpilogueArgs(), None)
    slices = _bias_grad_parts(problem, -(-m // SLICE_ROWS), out)
    aux = args.aux_in if args.aux_in is not None else args.aux_out
    tensors = [out, parts, args.bias, args.c, aux, slices]
    pitches = [_pitch(t) for t in (out, args.c, aux)]
    kernel = load("reduce:build_split_sum", SplitSumSpec(problem.out_dtype, problem.epilogue))
    grid = (-(-m // SLICE_ROWS), -(-n // REDUCE_THREADS), 1)
    numbers = [m, n, config.splits, args.alpha, args.beta]
    place.run(kernel, grid, [*tensors, *pitches, *numbers])
    return slices


def _form(spec: OperandSpec) -> OperandForm:
    form = OperandForm.of(TILED if spec.prepared_by is not None else spec.layout)
    assert form is not None
    return form


def _run_gemm(
    place: Place,
    problem: GemmProblem,
    config: GemmConfig,
    operands: tuple[MXTensor, MXTensor],
    out: torch.Tensor,
    args: EpilogueArgs,
    slices: torch.Tensor | None,
) -> None:
    a, b = (_dense(operand) for operand in operands)
    aux = args.aux_in if args.aux_in is not None else args.aux_out
    pointers = [out, a.codes, a.scales, b.codes, b.scales, args.bias, args.c, aux, slices]
    strides = [*_strides(a), *_strides(b), _pitch(out), _pitch(args.c), _pitch(aux)]
    k_blocks = problem.k // a.format.block
    columns = -(-problem.n // config.tile.tile_n)
    walk = config.walk_columns or columns
    walks = [walk * config.tile.tile_n, -(-columns // walk)]
    numbers = [problem.m, problem.n, k_blocks, config.split_tiles, *walks, args.alpha, args.beta]
    grid = (-(-problem.m // config.tile.tile_m), walk, config.splits)
    kernel = load("kernel:build_gemm", config.spec(problem))
    place.run(kernel, grid, [*pointers, *strides, *numbers])


def _dense(operand: MXTensor) -> MXTensor:
    """Return `operand` with contiguous buffers, a copy only where they are not."""
    codes, scales = operand.codes.contiguous(), operand.scales.contiguous()
    return dataclasses.replace(operand, codes=codes, scales=scales)


def _strides(operand: MXTensor) -> tuple[int, int]:
    """Return the bytes between rows, or groups of rows, of codes and of scales as the kernel takes
    them.
    """
    form = OperandForm.of(operand.layout)
    assert form is not None
    rows, columns = operand.shape[0], operand.stored_k // operand.format.block
    code_bytes = operand.layout.codes.padded(rows, columns * CHUNK_BYTES)[1]
    scale_rows, scale_bytes = operand.layout.scales.padded(rows, columns)
    scale_stride = {
        ScalesForm.ROW_MAJOR: scale_bytes,
        ScalesForm.K_MAJOR: scale_rows * WORD_BYTES,
        ScalesForm.TILE_32X4: scale_bytes * WAVE_LANES,
    }[form.scales]
    return code_bytes * form.codes.group_rows, scale_stride


def _pitch(tensor: torch.Tensor | None) -> int:
    """Return the elements between rows, 0 for no tensor."""
    return 0 if tensor is None else tensor.stride(0)


def _bias_grad_parts(problem: GemmProblem, count: int, out: torch.Tensor) -> torch.Tensor | None:
    if not problem.epilogue.bias_grad:
        return None
    return torch.empty(count, problem.n, device=out.device)


def reorder(place: Place, operand: MXTensor) -> MXTensor:
    """Return a canonical `operand` in the prepared form, by two device kernels, or by none where it
    is empty.
    """
    rows, blocks = operand.shape[0], operand.stored_k // operand.format.block
    if not rows or not blocks:
        return operand.relayout(TILED)
    layout, device = TILED, operand.codes.device
    code_bytes = blocks * CHUNK_BYTES
    padded_rows, padded_bytes = layout.codes.padded(rows, code_bytes)
    codes = torch.empty(
        layout.codes.storage_shape(rows, code_bytes), dtype=torch.uint8, device=device
    )
    chunks = padded_bytes // CHUNK_BYTES
    source, row_groups = _dense(operand), -(-rows // REDUCE_THREADS)
    place.run(
        load("reorder:build_reorder_codes", None),
        (chunks, row_groups, 1),
        [codes, source.codes, code_bytes, rows, blocks, padded_rows, chunks],
    )
    scales = torch.empty(
        layout.scales.storage_shape(rows, blocks), dtype=torch.uint8, device=device
    )
    place.run(
        load("reorder:build_reorder_scales", None),
        (scales.shape[0], row_groups, 1),
        [scales, source.scales, blocks, rows, blocks],
    )
    return dataclasses.replace(operand, codes=codes, scales=scales, layout=layout)
