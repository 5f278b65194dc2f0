"""The MXFP4 GEMM kernel of gfx1250.

D[M,N] = epilogue((A[M,K] * sa) @ (B[N,K] * sb).T)   MXFP4 x MXFP4, FP32 sums, wave32 scaled WMMA

Operands   codes uint8, two E2M1 codes a byte, low nibble = even k, as plain rows [rows, K/2] or
           in `tile_16x16`; scales E8M0 bytes, one per 32 k, as plain rows [rows, K/32],
           `scale_k_major` or `scale_32x4`. Nothing is copied before the kernel; `config` says how
           each form lies in LDS.
Tile walk  grid (ceil(M/tile_m), ceil(N/tile_n), parts of K); K in tiles of 128. B's rows are the
           matrix instruction's A operand, so that a lane holds eight neighbouring columns of D.
Roles      All four waves compute, each a wave_m x wave_n piece. Waves 0 and 1 copy the halves of
           A's codes, waves 2 and 3 those of B's. In every eighth K tile waves 0 and 1 copy A and B
           whole, while waves 2 and 3 copy the scales of the group of eight K tiles after next.
Pipelines  codes      3 stages; filled by the TDM (tensorcnt, then the *publish* barrier), emptied
                      by LDS reads into registers (dscnt, then the *release* barrier)
           scales     2 stages of 8 K tiles, filled and emptied under the same waits and barriers
           registers  2 sets; tile k+1 is read while tile k multiplies
Timeline   prologue   send scale groups 0 and 1 and K tiles 0, 1, 2; read tile 0
           K tile k   pass publish(k+1); multiply, with the reads of tile k+1 spread in between.
                      At 3/16 all reads of tile k are done: signal release. At 5/16 pass release,
                      send tile k+3 into the stage of tile k. At 7/8 tile k+2 is there: signal
                      publish
           drain      the last one or two tiles multiply without sending; scales past K masked
           Both barriers are split, so that no wave waits for another's last instruction. Each wave
           sends one transfer a K tile, two tiles before it waits for it, so one count fits all.
LDS        scales of A | scales of B | 3 x (codes of A | codes of B); the same for every K. The
           epilogue reuses it.
Limits     K % 32 == 0, any M, N >= 1; the copies' extents are the only bounds checks. A part of a
           split K is a whole number of scale groups.
"""

from dataclasses import dataclass
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import gpu, rocdl
from flydsl.expr.rocdl import tdm_ops
from flydsl.expr.typing import T, Vector

from mxgemm.backends.flydsl_gfx1250.config import (
    BLOCK,
    SCALE_GROUP,
    SCALE_STAGES,
    TILE_K,
    KernelSpec,
)
from mxgemm.backends.flydsl_gfx1250.operand import (
    FragmentReader,
    Fragments,
    OperandView,
    Source,
    pick_source,
)
from mxgemm.backends.flydsl_gfx1250.registers import address, pick, wave_index
from mxgemm.backends.flydsl_gfx1250.store import OutputArgs, TileStore

WORKGROUP = -1
"""The workgroup's own barrier (CDNA5 ISA guide, S_BARRIER_SIGNAL)."""
ACCUMULATOR = 8
"""FP32 values of a lane in one 16x16 result."""
BLOCKS_A_TILE = TILE_K // BLOCK
FP32_BYTES = 4


def signal() -> None:
    """Tell the workgroup that this wave has arrived, without waiting."""
    rocdl.sched_barrier(0)
    rocdl.s_barrier_signal(WORKGROUP)
    rocdl.sched_barrier(0)


def await_all() -> None:
    """Wait until every wave has signalled."""
    rocdl.sched_barrier(0)
    rocdl.s_barrier_wait(WORKGROUP)
    rocdl.sched_barrier(0)


def multiply(tile, totals, a, b, reads=(), events=None):
    """Return the totals after one K tile, and the results of `reads`, issued evenly in between.

    Rows of fragments are walked to and fro, so that neighbouring instructions share an operand.

    Args:
        tile: the TileConfig.
        totals: accumulators, fragments_m x fragments_n.
        a, b: Fragments of the K tile.
        reads: functions, each one or two LDS loads.
        events: function by instruction number, called after it with the number of reads issued.
    """
    totals, results, done = list(totals), [], 0
    for i in range(tile.fragments_m):
        columns = range(tile.fragments_n)
        for j in reversed(columns) if i % 2 else columns:
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
            done += 1
            due = -(-len(reads) * done // tile.wmmas)
            results += [read() for read in reads[len(results) : due]]
            if events is not None and done in events:
                events[done](len(results))
        # Regions keep the order written here; inside one the compiler may still move.
        rocdl.sched_barrier(0)
    return totals, results


class TileReader:
    """Reads of both operands' fragments of one K tile, in the order in which they are needed.

    B's codes come first: their loads cannot be merged, so that the release wait, which falls among
    them, can count what was issued since.
    """

    def __init__(self, a: FragmentReader, b: FragmentReader) -> None:
        self.a, self.b = a, b

    def reads(self, stage_offset, k_tile):
        """Return the functions that read K tile `k_tile` from the data stage at `stage_offset`."""
        scales = [*self.b.scale_reads(k_tile), *self.a.scale_reads(k_tile)]
        return [*self.b.code_reads(stage_offset), *scales, *self.a.code_reads(stage_offset)]

    def gather(self, results):
        """Return the registers that results of `reads` are: A's codes and scales, then B's."""
        m, n = self.a.count, self.b.count
        b_codes, scales, a_codes = results[:n], results[n:-m], results[-m:]
        return [*a_codes, *scales[n // 2 :], *b_codes, *scales[: n // 2]]

    def fragments(self, registers):
        """Return the Fragments of A and of B that `registers` hold."""
        size = self.a.count + self.a.count // 2
        return Fragments.of(registers[:size]), Fragments.of(registers[size:])


@dataclass(frozen=True, slots=True)
class Copies:
    """What this wave copies.

    Attributes:
        half: half of an operand's codes, in every K tile but the last of a scale group.
        refill: in that one, an operand's codes whole, or its scales.
        scales: the scales that this wave copies in the prologue.
        copies_scales: i1, whether `refill` is scales.
        scale_stage_bytes: between the scale stages of the operand of `refill`.
    """

    half: Source
    refill: Source
    scales: Source
    copies_scales: Any
    scale_stage_bytes: Any

    @classmethod
    def of(cls, wave, a: OperandView, b: OperandView) -> "Copies":
        """Return the copies of wave number `wave` of four."""
        odd, upper = (wave & 1) == fx.Int32(1), wave >= fx.Int32(2)
        all_rows = fx.Int32(0)
        scales = pick_source(odd, b.scales_source(), a.scales_source())
        whole = pick_source(odd, b.codes_source(all_rows, 1), a.codes_source(all_rows, 1))
        return cls(
            half=pick_source(upper, b.codes_source(wave & 1, 2), a.codes_source(wave & 1, 2)),
            refill=pick_source(upper, scales, whole),
            scales=scales,
            copies_scales=upper,
            scale_stage_bytes=pick(
                odd, fx.Int32(b.scale_stage_bytes), fx.Int32(a.scale_stage_bytes)
            ),
        )

    def send(self, k_tile, ahead: int, stage, *, may_refill: bool) -> None:
        """Start this wave's copy of K tile `k_tile + ahead` into the data stage at `stage`, or what
        it copies instead where `k_tile` is the last of its scale group.
        """
        index, offset, source = k_tile + ahead, stage, self.half
        if may_refill:
            is_last = (k_tile & (SCALE_GROUP - 1)) == fx.Int32(SCALE_GROUP - 1)
            group = (k_tile >> 3) + SCALE_STAGES
            scale_stage = (group & (SCALE_STAGES - 1)) * self.scale_stage_bytes
            index = pick(is_last, pick(self.copies_scales, group, index), index)
            offset = pick(is_last, pick(self.copies_scales, scale_stage, stage), stage)
            source = pick_source(is_last, self.refill, self.half)
        source.load(index, offset)


class KLoop:
    """One workgroup's walk over K: the pipelines of the timeline above, a K tile a step."""

    def __init__(self, spec: KernelSpec, reader: TileReader, copies: Copies, wave) -> None:
        self.tile, self.stage_bytes = spec.tile, spec.stage_bytes
        self.reader, self.copies, self.wave = reader, copies, wave
        self.ahead = spec.tile.num_stages
        self.release_at = spec.tile.wmmas * 3 // 16
        self.send_at = spec.tile.wmmas * 5 // 16
        self.publish_at = spec.tile.wmmas * 7 // 8

    def begin(self):
        """Send what fills all stages and return the registers of K tile 0."""
        group = self.wave >> 1
        self.copies.scales.load(group, group * self.copies.scale_stage_bytes)
        for stage in range(self.ahead):
            self.copies.half.load(fx.Int32(stage), fx.Int32(stage * self.stage_bytes))
        self._publish(self.ahead - 1)
        await_all()
        reads = self.reader.reads(fx.Int32(0), fx.Int32(0))
        registers = self.reader.gather([read() for read in reads])
        self._publish(self.ahead - 2)
        return registers

    def step(self, totals, stage, registers, k_tile, *, may_refill: bool):
        """Multiply K tile `k_tile`, whose data stage is at `stage`, and send a later one.

        Returns totals, and stage and registers of the next K tile. `may_refill` says whether
        `k_tile` can be the last of its scale group, which only odd ones are.
        """
        await_all()

        def send(_):
            await_all()
            self.copies.send(k_tile, self.ahead, stage, may_refill=may_refill)

        events = {
            self.release_at: self._release,
            self.send_at: send,
            self.publish_at: lambda _: self._publish(self.ahead - 2),
        }
        totals, registers = self._multiply_reading_next(totals, stage, registers, k_tile, events)
        return totals, self._next(stage), registers

    def last_but_one(self, totals, stage, registers, k_tile):
        """Multiply K tile `k_tile` and return totals and the registers of the last one; nothing is
        left to send.
        """
        return self._multiply_reading_next(totals, stage, registers, k_tile, None)

    def last(self, totals, registers, blocks):
        """Multiply the last K tile, of which `blocks` blocks exist; return the totals."""
        a, b = self.reader.fragments(registers)
        a, b = self.reader.a.masked(a, blocks), self.reader.b.masked(b, blocks)
        return multiply(self.tile, totals, a, b)[0]

    def _multiply_reading_next(self, totals, stage, registers, k_tile, events):
        reads = self.reader.reads(self._next(stage), k_tile + 1)
        a, b = self.reader.fragments(registers)
        totals, results = multiply(self.tile, totals, a, b, reads, events)
        return totals, self.reader.gather(results)

    def _next(self, stage):
        last_stage = fx.Int32((self.ahead - 1) * self.stage_bytes)
        return pick(stage == last_stage, fx.Int32(0), stage + self.stage_bytes)

    def _publish(self, in_flight: int) -> None:
        """Signal that this wave's part of the next K tile is in LDS, later ones in flight."""
        tdm_ops.tensor_wait(in_flight)
        signal()

    def _release(self, reads: int) -> None:
        """Signal that this wave has read its part of the last K tile; `reads` came after them."""
        assert reads <= self.tile.fragments_n
        rocdl.s_wait_dscnt(2 * reads)
        signal()


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
            codes_lds=spec.stages_offset,
            scales_lds=0,
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
            codes_lds=spec.stages_offset + spec.a_stage_bytes,
            scales_lds=spec.b_scales_offset,
        ).from_tile(first_tile)
        wave_x, wave_y = wave // tile.waves_n, wave % tile.waves_n
        row, column = wave_x * tile.wave_m, wave_y * tile.wave_n
        reader = TileReader(
            FragmentReader(a_view, row, tile.fragments_m, lane),
            FragmentReader(b_view, column, tile.fragments_n, lane),
        )
        loop = KLoop(spec, reader, Copies.of(wave, a_view, b_view), wave)
        step, last_but_one = loop.step, loop.last_but_one
        k_tiles = (blocks + (BLOCKS_A_TILE - 1)) >> 2

        # Prologue
        registers = loop.begin()
        totals = [Vector.filled(ACCUMULATOR, 0.0, fx.Float32)] * tile.wmmas
        stage = fx.Int32(0)

        # Steady state: two K tiles, one for each set of registers.
        pairs = (k_tiles - 1) >> 1
        for pair in range(pairs):
            even = fx.Int32(pair) * 2
            totals, stage, registers = step(totals, stage, registers, even, may_refill=False)
            totals, stage, registers = step(totals, stage, registers, even + 1, may_refill=True)

        # Drain: one or two K tiles, all in LDS.
        await_all()
        if k_tiles - pairs * 2 > fx.Int32(1):
            totals, registers = last_but_one(totals, stage, registers, pairs * 2)
        totals = loop.last(totals, registers, blocks - (k_tiles - 1) * BLOCKS_A_TILE)

        # Epilogue: LDS is free when every wave has read its last fragments. Copies past the last K
        # tile may still be counted, but move nothing.
        rocdl.s_wait_dscnt(0)
        gpu.barrier()
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
        store = TileStore(
            spec,
            args,
            lane=lane,
            wave=wave,
            m=m,
            n=n,
            row=a_view.row0 + row,
            column=b_view.row0 + column,
        )
        store.run(totals, tile_x * tile.waves_m + wave_x)

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
            alpha,
            beta,
        ).launch(grid=(1, 1, 1), block=(tile.num_threads, 1, 1), stream=stream)

    launch.compile_hints["llvm_options"] = {"amdgpu-expert-scheduling-mode": True}
    pointers = [flyc.from_c_void_p(fx.Int8, 0, assumed_align=1) for _ in range(9)]
    placeholders = [*pointers, *[fx.Int64(0)] * 7, *[1] * 4, 1.0, 1.0, fx.Stream(None)]
    return launch, placeholders, tile.num_threads, spec.lds_bytes
