"""The MXFP4 GEMM kernel of gfx1250.

D[M,N] = epilogue((A[M,K] * sa) @ (B[N,K] * sb).T)   MXFP4 x MXFP4, FP32 sums, wave32 scaled WMMA

Operands   codes uint8, two E2M1 codes a byte, low nibble = even k, as plain rows [rows, K/2] or
           in `tile_16x16`; scales E8M0 bytes, one per 32 k, as plain rows [rows, K/32],
           `scale_k_major` or `scale_32x4`. Nothing is copied before the kernel; `config` says how
           each form lies in LDS.
Tile walk  grid (ceil(M/tile_m), ceil(N/tile_n), parts of K); K in tiles of 128. B's rows are the
           matrix instruction's A operand, so that a lane holds eight neighbouring columns of D.
           Where a kernel `walks`, the grid is (ceil(M/tile_m), workgroups along N) and each takes
           every so many output tiles as one stream; `walk` says how.
Roles      All four waves compute, each a wave_m x wave_n piece. Waves 0 and 1 copy the halves of
           A's codes, waves 2 and 3 those of B's. In the last stage of every group of eight K
           tiles waves 0 and 2 copy both halves, while waves 1 and 3 copy the scales of the group
           after next.
Pipelines  codes      3 stages of one K tile, of two or four where the tile is small; filled by the
                      TDM (tensorcnt, then the *publish* barrier), emptied by LDS reads into
                      registers (dscnt, then the *release* barrier)
           scales     2 stages of 8 K tiles, filled and emptied under the same waits and barriers
           registers  2 sets; a K tile is read while the one before multiplies. Scale words are
                      read for two K tiles at once
Timeline   prologue   send scale groups 0 and 1 and stages 0, 1, 2; read the first K tile
           stage s    in its last K tile: pass publish(s+1); multiply, with the reads of stage
                      s+1 spread in between. At 2/16 all reads of stage s are done: signal
                      release. At 3/16 pass release, send stage s+3 in the place of s. At 15/16
                      stage s+2 is there: signal publish
           drain      the last one or two stages multiply without sending; scales past K masked
           Both barriers are split, so that no wave waits for another's last instruction. Each wave
           sends one transfer a stage, two stages before it waits for it, so one count fits all.
LDS        2 x (scales of A | scales of B) | 3 x (codes of A | codes of B); the same for every K.
           The epilogue reuses it, but in a walk has its own behind it.
Limits     K % 32 == 0, any M, N >= 1; the copies' extents are the only bounds checks. A part of a
           split K is a whole number of scale groups.
"""

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import gpu, rocdl

from mxgemm.backends.flydsl_gfx1250.config import KernelSpec
from mxgemm.backends.flydsl_gfx1250.kloop import (
    BLOCKS_A_TILE,
    Copies,
    KLoop,
    TileReader,
    await_all,
    zeros,
)
from mxgemm.backends.flydsl_gfx1250.operand import FragmentReader, OperandView
from mxgemm.backends.flydsl_gfx1250.registers import (
    Parking,
    address,
    computed_here,
    pick,
    wave_index,
)
from mxgemm.backends.flydsl_gfx1250.store import OutputArgs, TileStore
from mxgemm.backends.flydsl_gfx1250.walk import ParkedStore, Walk

FP32_BYTES = 4


def build_gemm(spec: KernelSpec):
    """Return launcher, placeholders, threads and LDS bytes of the kernel for `spec`."""
    tile = spec.tile

    @flyc.kernel(known_block_size=[tile.num_threads, 1, 1])
    def mxfp4_gemm(
        out: fx.Pointer,
        a_codes: fx.Pointer,
        a_scales: fx.Pointer,
        b_codes: fx.Pointer,
        b_scales: fx.Pointer,
        bias: fx.Pointer,
        c: fx.Pointer,
        aux: fx.Pointer,
        bias_grad: fx.Pointer,
        a_codes_stride: fx.Int64,
        a_scales_stride: fx.Int64,
        b_codes_stride: fx.Int64,
        b_scales_stride: fx.Int64,
        out_pitch: fx.Int64,
        c_pitch: fx.Int64,
        aux_pitch: fx.Int64,
        m: fx.Int32,
        n: fx.Int32,
        k_blocks: fx.Int32,
        split_tiles: fx.Int32,
        walk_rows: fx.Int32,
        walk_tiles: fx.Int32,
        alpha: fx.Float32,
        beta: fx.Float32,
    ):
        fx.SharedAllocator(static=False).allocate(spec.lds_bytes)
        lane, wave = fx.Int32(fx.thread_idx.x) & 31, wave_index()
        tile_x, tile_y, split = (fx.Int32(i) for i in fx.block_idx)
        first_tile = split * split_tiles
        blocks = fx.min(k_blocks - first_tile * BLOCKS_A_TILE, split_tiles * BLOCKS_A_TILE)
        a_view = OperandView(
            form=spec.a,
            codes=address(a_codes),
            codes_stride=a_codes_stride,
            scales=address(a_scales),
            scales_stride=a_scales_stride,
            row0=tile_x * tile.tile_m,
            rows=m,
            k_blocks=blocks,
            tile_rows=tile.tile_m,
            stage_tiles=tile.stage_tiles,
            codes_lds=spec.stages_offset,
            scales_lds=0,
            scale_stage_bytes=spec.scale_stage_bytes,
            walk=fx.Int32(0),
        ).from_tile(first_tile)
        b_view = OperandView(
            form=spec.b,
            codes=address(b_codes),
            codes_stride=b_codes_stride,
            scales=address(b_scales),
            scales_stride=b_scales_stride,
            row0=tile_y * tile.tile_n,
            rows=n,
            k_blocks=blocks,
            tile_rows=tile.tile_n,
            stage_tiles=tile.stage_tiles,
            codes_lds=spec.stages_offset + spec.a_stage_bytes,
            scales_lds=spec.b_scales_offset,
            scale_stage_bytes=spec.scale_stage_bytes,
            walk=walk_rows if spec.walks else fx.Int32(0),
        ).from_tile(first_tile)
        wave_x, wave_y = wave // tile.waves_n, wave % tile.waves_n
        row, column = wave_x * tile.wave_m, wave_y * tile.wave_n
        reader = TileReader(
            FragmentReader(a_view, row, tile.fragments_m, lane),
            FragmentReader(b_view, column, tile.fragments_n, lane),
        )
        copies = Copies.of(wave, a_view, b_view)
        part_bytes = fx.Int64(m) * out_pitch * fx.Int64(FP32_BYTES)
        args = OutputArgs(
            out=address(out) + fx.Int64(split) * part_bytes,
            bias=address(bias),
            c=address(c),
            aux=address(aux),
            bias_grad=address(bias_grad),
            out_pitch=out_pitch,
            c_pitch=c_pitch,
            aux_pitch=aux_pitch,
            alpha=alpha,
            beta=beta,
        )

        way_out = {
            "lane": lane,
            "wave": wave,
            "m": m,
            "n": n,
            "row": a_view.row0 + row,
            "column": b_view.row0 + column,
        }
        loop = KLoop(spec, reader, copies, wave)
        step, last_but_one = loop.step, loop.last_but_one
        stages = a_view.stages
        last_blocks = blocks - (stages - 1) * (BLOCKS_A_TILE * tile.stage_tiles)

        # Prologue
        registers = loop.begin()
        if fx.const_expr(spec.walks):
            is_short = b_view.row0 + (walk_tiles - 1) * walk_rows >= n
            parking = Parking()
            walk = Walk(
                spec=spec,
                reader=reader,
                copies=copies,
                wave=wave,
                last_blocks=last_blocks,
                tiles=pick(is_short, walk_tiles - 1, walk_tiles),
                store_at=ParkedStore(spec, parking, args, walk_rows, **way_out),
                parking=parking,
            )
            walk.run(registers)
        else:
            totals = zeros(tile)
            stage = fx.Int32(0)

            # Steady state: two stages, so that an operand has two sets of registers.
            pairs = (stages - 1) >> 1
            for pair in range(pairs):
                even = fx.Int32(pair) * 2
                totals, stage, registers = step(totals, stage, registers, even, odd=0)
                totals, stage, registers = step(totals, stage, registers, even + 1, odd=1)

            # Drain: one or two stages, all in LDS.
            await_all()
            if stages - pairs * 2 > fx.Int32(1):
                totals, stage, registers = last_but_one(totals, stage, registers, pairs * 2)
            totals = loop.last(totals, stage, registers, stages - 1, last_blocks)
            computed_here(totals)

            # Epilogue: LDS is free when every wave has read its last fragments. Copies past the
            # last stage may still be counted, but move nothing.
            rocdl.s_wait_dscnt(0)
            gpu.barrier()
            TileStore(spec, args, **way_out).run(totals, tile_x * tile.waves_m + wave_x)

    @flyc.jit
    def launch(
        out: fx.Pointer,
        a_codes: fx.Pointer,
        a_scales: fx.Pointer,
        b_codes: fx.Pointer,
        b_scales: fx.Pointer,
        bias: fx.Pointer,
        c: fx.Pointer,
        aux: fx.Pointer,
        bias_grad: fx.Pointer,
        a_codes_stride: fx.Int64,
        a_scales_stride: fx.Int64,
        b_codes_stride: fx.Int64,
        b_scales_stride: fx.Int64,
        out_pitch: fx.Int64,
        c_pitch: fx.Int64,
        aux_pitch: fx.Int64,
        m: fx.Int32,
        n: fx.Int32,
        k_blocks: fx.Int32,
        split_tiles: fx.Int32,
        walk_rows: fx.Int32,
        walk_tiles: fx.Int32,
        alpha: fx.Float32,
        beta: fx.Float32,
        stream: fx.Stream,
    ):
        mxfp4_gemm(
            out,
            a_codes,
            a_scales,
            b_codes,
            b_scales,
            bias,
            c,
            aux,
            bias_grad,
            a_codes_stride,
            a_scales_stride,
            b_codes_stride,
            b_scales_stride,
            out_pitch,
            c_pitch,
            aux_pitch,
            m,
            n,
            k_blocks,
            split_tiles,
            walk_rows,
            walk_tiles,
            alpha,
            beta,
        ).launch(grid=(1, 1, 1), block=(tile.num_threads, 1, 1), stream=stream)

    launch.compile_hints["llvm_options"] = {
        "amdgpu-expert-scheduling-mode": True,
        # First to what has few registers to choose from, not to what is live longest.
        "greedy-regclass-priority-trumps-globalness": True,
    }
    pointers = [flyc.from_c_void_p(fx.Int8, 0, assumed_align=1) for _ in range(9)]
    placeholders = [*pointers, *[fx.Int64(0)] * 7, *[1] * 6, 1.0, 1.0, fx.Stream(None)]
    return launch, placeholders, tile.num_threads, spec.lds_bytes
