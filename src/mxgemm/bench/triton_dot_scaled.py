"""D = A @ B.T by Triton's `tl.dot_scaled`, the MXFP4 product that Triton users can write today.

D[M,N] = (A[M,K] * sa) @ (B[N,K] * sb).T      e2m1 x e2m1, FP32 accumulate, bfloat16 out
Operands   codes uint8 [rows, K/2] row-major, low nibble = even k; scales uint8 [rows, K/32]
Tile walk  one program a tile, groups of GROUP_M tiles of rows for reuse in L2
Limits     any M and N; K a multiple of 32 (the last tile of K is masked)

Chips without FP4 units widen the elements inside the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from mxgemm.tensor import MXTensor

BLOCK = tl.constexpr(32)
NEUTRAL_SCALE = tl.constexpr(127)
DECODE_ROWS = 64


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Sizes of a tile and of the pipeline; the best of a sweep on an H200 for large and small M."""

    tile_m: int
    tile_n: int
    tile_k: int
    num_warps: int
    num_stages: int
    group_m: int = 8

    def __str__(self) -> str:
        return f"{self.tile_m}x{self.tile_n}x{self.tile_k}, {self.num_warps} warps"


LARGE = TileConfig(128, 128, 128, num_warps=8, num_stages=3)
SMALL = TileConfig(16, 64, 256, num_warps=4, num_stages=4)


def config(m: int) -> TileConfig:
    """Return the tile configuration for M rows."""
    return SMALL if m <= DECODE_ROWS else LARGE


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    a_ptr, a_scale_ptr, b_ptr, b_scale_ptr, out_ptr, M, N, K,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Compute one tile of D."""
    num_m, num_n = tl.cdiv(M, TILE_M), tl.cdiv(N, TILE_N)
    per_group = GROUP_M * num_n
    first_m = tl.program_id(0) // per_group * GROUP_M
    rows_in_group = min(num_m - first_m, GROUP_M)
    within = tl.program_id(0) % per_group
    m = (first_m + within % rows_in_group) * TILE_M + tl.arange(0, TILE_M)
    n = within // rows_in_group * TILE_N + tl.arange(0, TILE_N)
    # Rows past the end are read from row 0 on and never stored.
    row_a, row_b = (m % M).to(tl.int64), (n % N).to(tl.int64)
    half = tl.arange(0, TILE_K // 2)
    block = tl.arange(0, TILE_K // BLOCK)
    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for start in range(0, K, TILE_K):
        byte = start // 2 + half
        column = start // BLOCK + block
        in_k, in_blocks = byte < K // 2, column < K // BLOCK
        a = tl.load(a_ptr + row_a[:, None] * (K // 2) + byte[None, :], mask=in_k[None, :], other=0)
        b = tl.load(b_ptr + row_b[None, :] * (K // 2) + byte[:, None], mask=in_k[:, None], other=0)
        a_scale = tl.load(
            a_scale_ptr + row_a[:, None] * (K // BLOCK) + column[None, :],
            mask=in_blocks[None, :],
            other=NEUTRAL_SCALE,
        )
        b_scale = tl.load(
            b_scale_ptr + row_b[:, None] * (K // BLOCK) + column[None, :],
            mask=in_blocks[None, :],
            other=NEUTRAL_SCALE,
        )
        total = tl.dot_scaled(a, a_scale, "e2m1", b, b_scale, "e2m1", total)
    where = out_ptr + m[:, None].to(tl.int64) * N + n[None, :]
    tl.store(where, total.to(out_ptr.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


def launch(a: MXTensor, b: MXTensor, out: torch.Tensor) -> torch.Tensor:
    """Compute D into `out`, bfloat16 [M, N], from canonical operands, and return it."""
    m, n, k = a.rows, b.rows, a.stored_k
    tile = config(m)
    grid = (triton.cdiv(m, tile.tile_m) * triton.cdiv(n, tile.tile_n),)
    kernel: Any = _kernel
    kernel[grid](
        a.codes, a.scales, b.codes, b.scales, out, m, n, k,
        TILE_M=tile.tile_m, TILE_N=tile.tile_n, TILE_K=tile.tile_k, GROUP_M=tile.group_m,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return out
