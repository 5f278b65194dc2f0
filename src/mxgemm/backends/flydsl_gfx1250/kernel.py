"""The MXFP4 GEMM kernel.

D[M,N] = epilogue((A[M,K] * sa) @ (B[N,K] * sb).T)      MXFP4 x MXFP4, FP32 accumulate, gfx1250 wave32 WMMA
"""

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import gpu, rocdl
from flydsl.expr.rocdl import tdm_ops
from flydsl.expr.typing import T, Vector

from mxgemm.backends.flydsl_gfx1250.config import BLOCK, SCALE_GROUP, TILE_K, KernelSpec
from mxgemm.backends.flydsl_gfx1250.operand import (
    FragmentReader,
    Fragments,
    OperandView,
    pick_source,
)
from mxgemm.backends.flydsl_gfx1250.registers import address, at_most, pick, wave_index
from mxgemm.backends.flydsl_gfx1250.store import OutputArgs, TileStore

BLOCKS_A_TILE = TILE_K // BLOCK
WORKGROUP = -1
"""Barrier id of the workgroup (S_BARRIER_SIGNAL)."""
ACCUMULATOR = 8
"""FP32 values of a lane in one 16x16 result."""


def signal() -> None:
    """Tell the workgroup that this wave has arrived, without waiting."""
    rocdl.sched_barrier(0)
    rocdl.s_barrier_signal(WORKGROUP)
    rocdl.sched_barrier(0)


def arrive() -> None:
    """Wait until every wave has signalled."""
    rocdl.sched_barrier(0)
    rocdl.s_barrier_wait(WORKGROUP)
    rocdl.sched_barrier(0)


def multiply(spec, totals, a, b, reads=(), events=None):
    """Return the totals after one K tile, and the results of `reads`, issued evenly between the matrix instructions.

    Rows of fragments are walked to and fro, so that neighbouring instructions share an operand.

    Args:
        spec: the kernel's spec.
        totals: list of accumulators, fragments_m x fragments_n.
        a, b: Fragments of the tile.
        reads: functions, each one or two LDS loads.
        events: function by instruction number, called after it with the number of reads issued so far.
    """
    tile, events = spec.tile, events or {}
    totals, results, slot = list(totals), [], 0
    for i in range(tile.fragments_m):
        for step in range(tile.fragments_n):
            j = tile.fragments_n - 1 - step if i % 2 else step
            at = i * tile.fragments_n + j
            totals[at] = Vector(
                rocdl.wmma_scale_f32_16x16x128_f8f6f4(
                    T.vec(ACCUMULATOR, T.f32),
                    b.codes[j],
                    a.codes[i],
                    totals[at],
                    b.scales[j // 2],
                    a.scales[i // 2],
                    scaleAType=j % 2,
                    scaleBType=i % 2,
                )
            )
            slot += 1
            due = -(-len(reads) * slot // tile.wmmas)
            results += [read() for read in reads[len(results) : due]]
            if slot in events:
                events[slot](len(results))
            if slot % tile.fragments_n == 0:
                rocdl.sched_barrier(0)
    return totals, results


class TileReader:
    """Reads of both operands' fragments of one K tile, in the order in which `multiply` will need them."""

    def __init__(self, a: FragmentReader, b: FragmentReader) -> None:
        self.a, self.b = a, b

    def reads(self, stage_offset, k_tile):
        """Return the functions that read K tile `k_tile` from the data stage at `stage_offset`."""
        a_codes, b_codes = self.a.code_reads(stage_offset), self.b.code_reads(stage_offset)
        scales = [*self.b.scale_reads(k_tile), *self.a.scale_reads(k_tile)]
        return [*b_codes, *scales, *a_codes]

    def gather(self, results):
        """Return the Fragments of A and of B that the results of `reads` are."""
        m, n = self.a.count, self.b.count
        b_codes, scales, a_codes = results[:n], results[n:-m], results[-m:]
        a = Fragments(list(a_codes), list(scales[n // 2 :]))
        return a, Fragments(list(b_codes), list(scales[: n // 2]))


def build_gemm(spec: KernelSpec):
    """Return the jitted launcher of the kernel for `spec`."""
    tile = spec.tile
    stages, last_stage = tile.num_stages, (tile.num_stages - 1) * spec.stage_bytes
    release, publish = tile.wmmas * 3 // 16, tile.wmmas * 7 // 8
    refill_slot = tile.wmmas * 5 // 16

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
        alpha: fx.Float32,
        beta: fx.Float32,
    ):
        fx.SharedAllocator(static=False).allocate(spec.lds_bytes)
        lane, wave = fx.Int32(fx.thread_idx.x) & 31, wave_index()
        tile_x, tile_y, split = (fx.Int32(i) for i in fx.block_idx)
        first_tile = split * split_tiles
        blocks = k_blocks - first_tile * BLOCKS_A_TILE
        blocks = pick(blocks < split_tiles * BLOCKS_A_TILE, blocks, split_tiles * BLOCKS_A_TILE)
        k_tiles = (blocks + (BLOCKS_A_TILE - 1)) >> 2
        a_view = OperandView(
            form=spec.a, codes=address(a_codes), codes_stride=a_codes_stride,
            scales=address(a_scales), scales_stride=a_scales_stride, row0=tile_x * tile.tile_m,
            rows=m, k_blocks=blocks, tile_rows=tile.tile_m, codes_lds=spec.stages_offset,
            scales_lds=0,
        ).from_tile(first_tile)
        b_view = OperandView(
            form=spec.b, codes=address(b_codes), codes_stride=b_codes_stride,
            scales=address(b_scales), scales_stride=b_scales_stride, row0=tile_y * tile.tile_n,
            rows=n, k_blocks=blocks, tile_rows=tile.tile_n, codes_lds=spec.stages_offset + spec.a_stage_bytes,
            scales_lds=spec.b_scales_offset,
        ).from_tile(first_tile)
        wave_row = (wave // tile.waves_n) * tile.wave_m
        wave_column = (wave % tile.waves_n) * tile.wave_n
        reader = TileReader(
            FragmentReader(a_view, wave_row, tile.fragments_m, lane),
            FragmentReader(b_view, wave_column, tile.fragments_n, lane),
        )
        odd, upper = (wave & 1) == fx.Int32(1), wave >= fx.Int32(2)
        half = pick_source(upper, b_view.codes_source(wave & 1, 2), a_view.codes_source(wave & 1, 2))
        scales = pick_source(odd, b_view.scales_source(), a_view.scales_source())
        whole = pick_source(odd, b_view.codes_source(fx.Int32(0), 1), a_view.codes_source(fx.Int32(0), 1))
        refill = pick_source(upper, scales, whole)
        scale_stage_bytes = pick(
            odd, fx.Int32(b_view.scale_stage_bytes), fx.Int32(a_view.scale_stage_bytes)
        )

        # Prologue
        scales.load(wave >> 1, (wave >> 1) * scale_stage_bytes)
        for stage in fx.range_constexpr(stages):
            half.load(fx.Int32(stage), fx.Int32(stage * spec.stage_bytes))
        tdm_ops.tensor_wait(stages - 1)
        signal()
        arrive()
        a, b = reader.gather([read() for read in reader.reads(fx.Int32(0), fx.Int32(0))])
        tdm_ops.tensor_wait(stages - 2)
        signal()
        totals = [Vector.filled(ACCUMULATOR, 0.0, fx.Float32)] * tile.wmmas
        stage = fx.Int32(0)
        flat_a, flat_b = a.flat(), b.flat()

        # Steady state
        pairs = (k_tiles - 1) >> 1
        for pair in range(pairs):
            k_tile = fx.Int32(pair) * 2
            totals, stage, flat_a, flat_b = advance(spec, reader, totals, stage, k_tile, flat_a, flat_b, half, None, None, release, refill_slot, publish)
            totals, stage, flat_a, flat_b = advance(spec, reader, totals, stage, k_tile + 1, flat_a, flat_b, half, refill, (upper, scale_stage_bytes), release, refill_slot, publish)

        # Drain
        done = pairs * 2
        if k_tiles - done > fx.Int32(1):
            totals, stage, flat_a, flat_b = advance(spec, reader, totals, stage, done, flat_a, flat_b, half, None, None, release, refill_slot, publish)
        a, b = Fragments.of(flat_a), Fragments.of(flat_b)
        left = blocks - (k_tiles - 1) * BLOCKS_A_TILE
        a, b = reader.a.masked(a, left), reader.b.masked(b, left)
        totals, _ = multiply(spec, totals, a, b)
        arrive()

        # Epilogue
        tdm_ops.tensor_wait(0)
        rocdl.s_wait_dscnt(0)
        gpu.barrier()
        split_bytes = fx.Int64(split) * fx.Int64(m) * out_pitch * fx.Int64(4)
        args = OutputArgs(
            out=address(out) + split_bytes,
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
        store = TileStore(
            spec, args, lane=lane, wave=wave, m=m, n=n,
            row=a_view.row0 + wave_row, column=b_view.row0 + wave_column,
        )
        store.run(totals, tile_x * tile.waves_m + wave // tile.waves_n)

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
        alpha: fx.Float32,
        beta: fx.Float32,
        stream: fx.Stream,
    ):
        mxfp4_gemm(
            out, a_codes, a_scales, b_codes, b_scales, bias, c, aux, bias_grad, a_codes_stride, a_scales_stride,
            b_codes_stride, b_scales_stride, out_pitch, c_pitch, aux_pitch, m, n, k_blocks, split_tiles, alpha, beta,
        ).launch(grid=(1, 1, 1), block=(tile.num_threads, 1, 1), stream=stream)

    launch.compile_hints["llvm_options"] = {"amdgpu-expert-scheduling-mode": True}
    pointers = [flyc.from_c_void_p(fx.Int8, 0, assumed_align=1) for _ in range(9)]
    placeholders = [*pointers, *[fx.Int64(0)]*7, *[1]*4, 1.0, 1.0, fx.Stream(None)]
    return launch, placeholders, tile.num_threads, spec.lds_bytes


def advance(spec, reader, totals, stage, k_tile, flat_a, flat_b, half, refill, refill_how, release, refill_slot, publish):
    """Multiply K tile `k_tile` while the next tile's fragments are read and a later one is sent for."""
    stages = spec.tile.num_stages
    next_stage = pick(stage == fx.Int32((stages - 1) * spec.stage_bytes), fx.Int32(0), stage + spec.stage_bytes)

    def give_back(reads):
        assert reads <= spec.tile.fragments_n
        rocdl.s_wait_dscnt(2 * reads)
        signal()

    def send(_):
        arrive()
        if refill is None:
            half.load(k_tile + stages, stage)
        else:
            is_refill = (k_tile & (SCALE_GROUP - 1)) == fx.Int32(SCALE_GROUP - 1)
            upper, scale_stage_bytes = refill_how
            group = (k_tile >> 3) + 2
            index = pick(upper, group, k_tile + stages)
            offset = pick(upper, (group & 1) * scale_stage_bytes, stage)
            pick_source(is_refill, refill, half).load(pick(is_refill, index, k_tile + stages), pick(is_refill, offset, stage))

    def announce(_):
        tdm_ops.tensor_wait(stages - 2)
        signal()

    arrive()
    totals, results = multiply(
        spec, totals, Fragments.of(flat_a), Fragments.of(flat_b), reader.reads(next_stage, k_tile + 1),
        {release: give_back, refill_slot: send, publish: announce},
    )
    a, b = reader.gather(results)
    return totals, next_stage, a.flat(), b.flat()
