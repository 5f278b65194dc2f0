"""Two small kernels before the GEMM: plain codes to `tile_16x16`, plain scales to `scale_k_major`.

A GEMM reads plain operands as they are; these make the forms that it reads with less LDS and in
longer runs of memory, once for a weight. One lane moves one unit: a block's 16 bytes of codes, or a
K tile's four scales of a row. Units that do not exist become zero. K lies along x, the only axis of
a grid with room for the longest.
"""

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr.typing import Vector

from mxgemm.backends.flydsl_gfx1250.config import CHUNK_BYTES, REDUCE_THREADS, WMMA_ROWS, WORD_BYTES
from mxgemm.backends.flydsl_gfx1250.registers import address, global_load, global_store

BYTE_BITS = 8


def build_reorder_codes(_: None):
    """Return launcher, placeholders, threads and LDS bytes of the kernel that packs `tile_16x16`.

    Grid (padded chunks, padded rows / 256 rounded up): a lane is a row, a workgroup's x a chunk.
    """

    @flyc.kernel(known_block_size=[REDUCE_THREADS, 1, 1])
    def mxfp4_reorder_codes(
        packed: fx.Pointer,
        plain: fx.Pointer,
        plain_pitch: fx.Int64,
        rows: fx.Int32,
        chunks: fx.Int32,
        padded_rows: fx.Int32,
        padded_chunks: fx.Int32,
    ):
        chunk = fx.Int32(fx.block_idx.x)
        row = fx.Int32(fx.block_idx.y) * REDUCE_THREADS + fx.Int32(fx.thread_idx.x)
        if row < padded_rows:
            unit = Vector.filled(CHUNK_BYTES, 0, fx.Int8)
            if row < rows and chunk < chunks:
                at = fx.Int64(row) * plain_pitch + fx.Int64(chunk) * fx.Int64(CHUNK_BYTES)
                unit = global_load(address(plain) + at, fx.Int8, CHUNK_BYTES)
            group = fx.Int64(row >> 4) * fx.Int64(padded_chunks) + fx.Int64(chunk)
            at = (group * fx.Int64(WMMA_ROWS) + fx.Int64(row & (WMMA_ROWS - 1))) * fx.Int64(
                CHUNK_BYTES
            )
            global_store(address(packed) + at, unit, fx.Int8)

    @flyc.jit
    def launch(
        packed: fx.Pointer,
        plain: fx.Pointer,
        plain_pitch: fx.Int64,
        rows: fx.Int32,
        chunks: fx.Int32,
        padded_rows: fx.Int32,
        padded_chunks: fx.Int32,
        stream: fx.Stream,
    ):
        mxfp4_reorder_codes(
            packed, plain, plain_pitch, rows, chunks, padded_rows, padded_chunks
        ).launch(grid=(1, 1, 1), block=(REDUCE_THREADS, 1, 1), stream=stream)

    pointers = [flyc.from_c_void_p(fx.Int8, 0, assumed_align=1) for _ in range(2)]
    return launch, [*pointers, fx.Int64(0), 1, 1, 1, 1, fx.Stream(None)], REDUCE_THREADS, 0


def build_reorder_scales(_: None):
    """Return launcher, placeholders, threads and LDS bytes of the kernel that packs
    `scale_k_major`.

    Grid (K tiles, rows / 256 rounded up): a lane is a row, a workgroup's x a K tile.
    """

    @flyc.kernel(known_block_size=[REDUCE_THREADS, 1, 1])
    def mxfp4_reorder_scales(
        packed: fx.Pointer,
        plain: fx.Pointer,
        plain_pitch: fx.Int64,
        rows: fx.Int32,
        blocks: fx.Int32,
    ):
        k_tile = fx.Int32(fx.block_idx.x)
        row = fx.Int32(fx.block_idx.y) * REDUCE_THREADS + fx.Int32(fx.thread_idx.x)
        if row < rows:
            first = k_tile * WORD_BYTES
            at = fx.Int64(row) * plain_pitch + fx.Int64(first)
            word = fx.Int32(global_load(address(plain) + at, fx.Uint8))
            for i in fx.range_constexpr(1, WORD_BYTES):  # every K tile has its first block
                byte = fx.Int32(0)
                if first + i < blocks:
                    byte = fx.Int32(global_load(address(plain) + at + fx.Int64(i), fx.Uint8))
                word = word | (byte << (i * BYTE_BITS))
            at = (fx.Int64(k_tile) * fx.Int64(rows) + fx.Int64(row)) * fx.Int64(WORD_BYTES)
            global_store(address(packed) + at, word, fx.Int32)

    @flyc.jit
    def launch(
        packed: fx.Pointer,
        plain: fx.Pointer,
        plain_pitch: fx.Int64,
        rows: fx.Int32,
        blocks: fx.Int32,
        stream: fx.Stream,
    ):
        mxfp4_reorder_scales(packed, plain, plain_pitch, rows, blocks).launch(
            grid=(1, 1, 1), block=(REDUCE_THREADS, 1, 1), stream=stream
        )

    pointers = [flyc.from_c_void_p(fx.Int8, 0, assumed_align=1) for _ in range(2)]
    return launch, [*pointers, fx.Int64(0), 1, 1, fx.Stream(None)], REDUCE_THREADS, 0
