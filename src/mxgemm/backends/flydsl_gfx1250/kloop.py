"""The K loop of a workgroup: reads, copies, waits and barriers around the matrix instructions.

`kernel` draws its timeline. A step works on one data stage, which holds one, two or four K tiles.
"""

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.rocdl import experimental, tdm_ops
from flydsl.expr.typing import T, Vector

from mxgemm.backends.flydsl_gfx1250.config import (
    BLOCK,
    PAIR_TILES,
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
from mxgemm.backends.flydsl_gfx1250.registers import pick
from mxgemm.backends.flydsl_gfx1250.tdm import Transfer

WORKGROUP = -1
"""The workgroup's own barrier (CDNA5 ISA guide, S_BARRIER_SIGNAL)."""
ACCUMULATOR = 8
"""FP32 values of a lane in one 16x16 result."""
LOWER_REGISTERS = 256
"""Vector registers from 0 on that scale words can lie in (CDNA5 ISA guide, "VGPR MSB")."""
BLOCKS_A_TILE = TILE_K // BLOCK
EVENTS = (2, 3, 15)
"""When in a K tile release is signalled, a copy is sent and publish is signalled: sixteenths."""


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


def zeros(tile):
    """Return accumulators of 0; many of them are asked to leave the lower registers free."""
    zero = Vector.filled(ACCUMULATOR, 0.0, fx.Float32)
    if tile.wmmas * ACCUMULATOR < LOWER_REGISTERS:
        return [zero] * tile.wmmas
    places = [LOWER_REGISTERS + ACCUMULATOR * at for at in range(tile.wmmas)]
    return [Vector(experimental.sched_vgpr(zero, place, soft=True)) for place in places]


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


@dataclass(frozen=True, slots=True)
class Registers:
    """What a loop carries of both operands: the codes of the K tile to be multiplied next, and the
    scale words of the pair of K tiles that it belongs to, even ones and odd ones.
    """

    a_codes: list[Any]
    b_codes: list[Any]
    a_words: list[list[Any]]
    b_words: list[list[Any]]

    def flat(self) -> list[Any]:
        """Return all values."""
        return list(chain(self.a_codes, self.b_codes, *self.a_words, *self.b_words))

    @classmethod
    def of(cls, flat: list[Any], m: int, n: int) -> "Registers":
        """Return the inverse of `flat` for m fragments of A and n of B."""
        flat, parts = list(flat), []
        for count in (m, n, m // 2, m // 2, n // 2, n // 2):
            parts.append(flat[:count])
            flat = flat[count:]
        return cls(parts[0], parts[1], parts[2:4], parts[4:6])


class TileReader:
    """Reads of both operands' fragments of one K tile, in the order in which they are needed.

    B's codes come first: their loads cannot be merged, so that the release wait, which falls among
    them, can count what was issued since.
    """

    def __init__(self, a: FragmentReader, b: FragmentReader) -> None:
        self.a, self.b = a, b

    def reads(self, stage_offset, tile: int, pair=None):
        """Return the functions that read K tile number `tile` of the data stage at `stage_offset`,
        and the scales from the even K tile `pair` on where it is one.
        """
        return [
            *self.b.code_reads(stage_offset, tile),
            *([] if pair is None else self._scale_reads(pair)),
            *self.a.code_reads(stage_offset, tile),
        ]

    def _scale_reads(self, pair):
        return [*self.b.scale_reads(pair), *self.a.scale_reads(pair)]

    def gather(self, results, old=None):
        """Return the flat Registers that results of `reads` are, with the scales of `old` where
        they hold none.
        """
        m, n = self.a.count, self.b.count
        b_codes, scales, a_codes = results[:n], results[n:-m], results[-m:]
        if scales:
            return Registers(a_codes, b_codes, *self._words(scales)).flat()
        old = self.registers(old)
        return Registers(a_codes, b_codes, old.a_words, old.b_words).flat()

    def _words(self, scales):
        """Return the scale words of A and of B, even and odd ones, that `_scale_reads` gave."""
        b_words, a_words = scales[: self.b.count // 2], scales[self.b.count // 2 :]
        return tuple([list(w) for w in zip(*words, strict=True)] for words in (a_words, b_words))

    def with_scales(self, flat, pair):
        """Return `flat` with the scales, read now, of the even K tile `pair` and the next."""
        registers, scales = self.registers(flat), [read() for read in self._scale_reads(pair)]
        return Registers(registers.a_codes, registers.b_codes, *self._words(scales)).flat()

    def registers(self, flat) -> Registers:
        """Return the Registers that a loop carries as `flat`."""
        return Registers.of(flat, self.a.count, self.b.count)

    def fragments(self, flat, tile: int):
        """Return the Fragments of A and of B in `flat`, which hold a K tile of this number."""
        registers, odd = self.registers(flat), tile % PAIR_TILES
        return (
            Fragments(registers.a_codes, registers.a_words[odd]),
            Fragments(registers.b_codes, registers.b_words[odd]),
        )

    def as_even(self, flat):
        """Return `flat` of an odd K tile in the place of an even one."""
        registers = self.registers(flat)
        a_words, b_words = registers.a_words[::-1], registers.b_words[::-1]
        return Registers(registers.a_codes, registers.b_codes, a_words, b_words).flat()


@dataclass(frozen=True, slots=True)
class Copies:
    """What this wave copies, all of one operand.

    Attributes:
        half: half of the operand's codes, the upper one in odd waves.
        scales: its scales.
        refill: what is copied in the last stage of a scale group: the codes whole in even waves,
            scales in odd ones.
        refills_scales: i1.
        scale_stage_bytes: between the scale stages.
        group_stages: data stages of a scale group.
    """

    half: Source
    scales: Source
    refill: Source
    refills_scales: Any
    scale_stage_bytes: int
    group_stages: int

    @classmethod
    def of(cls, wave, a: OperandView, b: OperandView) -> "Copies":
        """Return the copies of wave number `wave` of four."""
        takes_b, part = wave >= fx.Int32(2), wave & 1
        is_odd = part == fx.Int32(1)
        half = pick_source(takes_b, b.codes_source(part, 2), a.codes_source(part, 2))
        scales = pick_source(takes_b, b.scales_source(), a.scales_source())
        return cls(
            half=half,
            scales=scales,
            refill=pick_source(is_odd, scales, replace(half, tile_rows=half.tile_rows * 2)),
            refills_scales=is_odd,
            scale_stage_bytes=a.scale_stage_bytes,
            group_stages=SCALE_GROUP // a.stage_tiles,
        )

    def due(self, number, ahead: int, stage, *, ends_group: bool = False, first=0):
        """Return copies, which of them is due in data stage `number`, and where it goes.

        Args:
            number: of the stage at `stage`, which may be filled.
            ahead: the codes due are those of stage `number + ahead`.
            ends_group: whether `number` is the last of its scale group, wherever in it.
            first: number of the scale group of stage 0.
        """
        last = self.group_stages - 1
        group = (number >> last.bit_length()) + SCALE_STAGES
        scale_stage = ((group + first) & (SCALE_STAGES - 1)) * self.scale_stage_bytes
        index = pick(self.refills_scales, group, number + ahead)
        offset = pick(self.refills_scales, scale_stage, stage)
        if ends_group:
            return self.refill, index, offset
        is_last = (number & last) == fx.Int32(last)
        source = pick_source(is_last, self.refill, self.half)
        return source, pick(is_last, index, number + ahead), pick(is_last, offset, stage)


class KLoop:
    """One workgroup's walk over K: the pipelines of the timeline above, a data stage a step."""

    def __init__(self, spec: KernelSpec, reader: TileReader, copies: Copies, wave) -> None:
        self.tile, self.stage_bytes = spec.tile, spec.stage_bytes
        self.reader, self.copies, self.wave = reader, copies, wave
        self.ahead = spec.tile.num_stages
        self.in_flight = self.ahead - 2
        self.release_at, self.send_at, self.publish_at = (
            spec.tile.wmmas * sixteenths // 16 for sixteenths in EVENTS
        )

    def begin(self):
        """Send what fills all stages and return the registers of K tile 0."""
        group = self.wave & 1
        self.copies.scales.load(group, group * self.copies.scale_stage_bytes)
        for stage in range(self.ahead):
            self.copies.half.load(fx.Int32(stage), fx.Int32(stage * self.stage_bytes))
        self._publish(self.ahead - 1)
        await_all()
        reads = self.reader.reads(fx.Int32(0), 0, fx.Int32(0))
        registers = self.reader.gather([read() for read in reads])
        self._publish(self.ahead - 2)
        return registers

    def step(self, totals, stage, registers, number, *, odd: int):
        """Multiply the K tiles of data stage number `number`, at `stage`, and send a later stage.

        Returns totals, and position and registers of the next stage. `odd` is `number` modulo 2:
        only odd ones can be the last of their scale group.
        """
        events = self._step_events(number, stage, odd)
        totals, registers = self._multiply_stage(totals, stage, registers, number, odd, events)
        return totals, self._next(stage), registers

    def last_but_one(self, totals, stage, registers, number):
        """Multiply the even stage `number` and return totals, and position and registers of the
        last one; nothing is left to send.
        """
        if self.tile.stage_tiles > 1:
            totals, registers = self._multiply_stage(totals, stage, registers, number, 0, {})
            return totals, self._next(stage), registers
        # Scales of the odd tile are read again: to keep them from the loop costs spills.
        reads = self.reader.reads(self._next(stage), 0, number)
        totals, registers = self._multiply_reading(totals, registers, 0, reads, None)
        return totals, self._next(stage), self.reader.as_even(registers)

    def last(self, totals, stage, registers, number, blocks):
        """Multiply the last stage, `number`, of which `blocks` blocks exist; return the totals."""
        for tile in range(self.tile.stage_tiles):
            a, b = self.reader.fragments(registers, tile)
            a, b = self.reader.a.masked(a, blocks), self.reader.b.masked(b, blocks)
            blocks = blocks - BLOCKS_A_TILE
            is_last = tile == self.tile.stage_tiles - 1
            reads = [] if is_last else self._reads_within(stage, tile + 1, number)
            totals, results = multiply(self.tile, totals, a, b, reads)
            if not is_last:
                registers = self.reader.gather(results, registers)
        return totals

    def _multiply_stage(self, totals, stage, registers, number, odd: int, events):
        """Multiply every K tile of a stage, with `events` in its last one; in each, read the next
        one.
        """
        last = self.tile.stage_tiles - 1
        for tile in range(last):
            reads = self._reads_within(stage, tile + 1, number)
            totals, registers = self._multiply_reading(totals, registers, tile, reads, None)
        if events:
            await_all()
        odd_tile = odd or last
        pair = self._first_tile(number + 1) if odd_tile else None
        reads = self.reader.reads(self._next(stage), 0, pair)
        return self._multiply_reading(totals, registers, odd_tile, reads, events)

    def _reads_within(self, stage, tile: int, number):
        """Return the reads of K tile number `tile`, not the first, of data stage `number`."""
        pair = None if tile % PAIR_TILES else self._first_tile(number) + tile
        return self.reader.reads(stage, tile, pair)

    def _multiply_reading(self, totals, registers, odd: int, reads, events):
        a, b = self.reader.fragments(registers, odd)
        totals, results = multiply(self.tile, totals, a, b, reads, events)
        return totals, self.reader.gather(results, registers)

    def _step_events(self, number, stage, odd: int):
        """Return what happens between the matrix instructions of a step, by number in the last
        K tile of data stage `number`.
        """
        return self._events(lambda: self._due(number, stage, odd), self.in_flight)

    def _events(self, due, in_flight: int):
        made = []

        def send(_):
            await_all()
            made[0].load()

        return {
            1: lambda _: made.append(due().ready()),
            self.release_at: self._release,
            self.send_at: send,
            self.publish_at: lambda _: self._publish(in_flight),
        }

    def _due(self, number, stage, odd: int) -> Transfer:
        """Return the copy that is due in data stage `number` at `stage`."""
        if not odd:
            return self.copies.half.copy(number + self.ahead, stage)
        ends_group = self.tile.group_stages == 2
        source, *where = self.copies.due(number, self.ahead, stage, ends_group=ends_group)
        return source.copy(*where)

    def _first_tile(self, number):
        """Return which K tile of the scale stages is the first of data stage `number`."""
        return number * self.tile.stage_tiles

    def _next(self, stage):
        last_stage = fx.Int32((self.ahead - 1) * self.stage_bytes)
        return pick(stage == last_stage, fx.Int32(0), stage + self.stage_bytes)

    def _publish(self, in_flight: int) -> None:
        """Signal that this wave's part of the next stage is in LDS, later ones in flight."""
        tdm_ops.tensor_wait(in_flight)
        signal()

    def _release(self, reads: int) -> None:
        """Signal that this wave has read its part of the last stage; `reads` came after them."""
        assert reads <= self.tile.fragments_n
        rocdl.s_wait_dscnt(2 * reads)
        signal()
