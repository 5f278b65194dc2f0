"""D[M, N] = alpha * (A[M, K] * sa) @ (B[N, K] * sb).T by Triton's dot_scaled, MXFP4 x MXFP4.

Operands   codes [rows, k/2] uint8, low nibble = even k; scales [rows, k/32] uint8 (E8M0)
Tile walk  one program a tile, groups of tile rows walked column by column (operand reuse in L2)
Numbers    native block-scaled multiplication where the target has one, else Triton's own decoding
           to bfloat16 in the kernel; FP32 accumulators
Limits     k a multiple of 32; what lies outside is masked: codes 0, scales 1
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 32


@triton.jit
def gemm_kernel(
    a_codes,
    a_scales,
    b_codes,
    b_scales,
    out,
    m,
    n,
    k,
    a_codes_pitch,
    a_scales_pitch,
    b_codes_pitch,
    b_scales_pitch,
    out_pitch,
    alpha,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Compute one tile of D; pitches are elements from row to row."""
    program = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(m, TILE_M), tl.cdiv(n, TILE_N)
    per_group = GROUP * tiles_n
    first = program // per_group * GROUP
    height = min(tiles_m - first, GROUP)
    tile_m = first + program % per_group % height
    tile_n = program % per_group // height

    rows = tile_m * TILE_M + tl.arange(0, TILE_M)
    columns = tile_n * TILE_N + tl.arange(0, TILE_N)
    packed = tl.arange(0, TILE_K // 2)
    blocks = tl.arange(0, TILE_K // 32)
    row_exists, column_exists = rows[:, None] < m, columns[:, None] < n
    a_at = a_codes + rows[:, None].to(tl.int64) * a_codes_pitch + packed[None, :]
    b_at = b_codes + columns[:, None].to(tl.int64) * b_codes_pitch + packed[None, :]
    a_scale_at = a_scales + rows[:, None].to(tl.int64) * a_scales_pitch + blocks[None, :]
    b_scale_at = b_scales + columns[:, None].to(tl.int64) * b_scales_pitch + blocks[None, :]

    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for start in range(0, k, TILE_K):
        has_code = packed[None, :] < (k - start) // 2
        has_block = blocks[None, :] < (k - start) // 32
        a = tl.load(a_at + start // 2, mask=row_exists & has_code, other=0)
        b = tl.load(b_at + start // 2, mask=column_exists & has_code, other=0)
        a_scale = tl.load(a_scale_at + start // 32, mask=row_exists & has_block, other=127)
        b_scale = tl.load(b_scale_at + start // 32, mask=column_exists & has_block, other=127)
        total = tl.dot_scaled(a, a_scale, "e2m1", b.T, b_scale, "e2m1", total)

    at = out + rows[:, None].to(tl.int64) * out_pitch + columns[None, :]
    inside = row_exists & (columns[None, :] < n)
    tl.store(at, (total * alpha).to(out.dtype.element_ty), mask=inside)
