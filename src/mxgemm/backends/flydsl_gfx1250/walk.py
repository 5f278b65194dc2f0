"""One workgroup's walk over several output tiles as one stream of data stages.

The copies of the next output tile follow those of this one without a gap, so that its first stages
are in LDS when the last K tile of this one is multiplied; D goes to LDS of its own and leaves from
there, a few rows in every other stage of the next tile. Between two tiles the matrix pipes lose the
time in which the accumulators are converted and stored to LDS. Where D is too large for LDS at
once, its first part is waited for there.

A wave counts loads and stores together and they end in order, so the departing rows are few and
come at fixed places: the waits of the K loop allow for one more transfer in flight.
"""

from dataclasses import dataclass, replace
from typing import Any

import flydsl.expr as fx

from mxgemm.backends.flydsl_gfx1250.config import SCALE_GROUP, KernelSpec
from mxgemm.backends.flydsl_gfx1250.kloop import (
    Copies,
    KLoop,
    TileReader,
    await_all,
    multiply,
    zeros,
)
from mxgemm.backends.flydsl_gfx1250.operand import Source
from mxgemm.backends.flydsl_gfx1250.registers import Parking, counted_loop, when
from mxgemm.backends.flydsl_gfx1250.store import Departure, TileStore
from mxgemm.backends.flydsl_gfx1250.tdm import Transfer


class WalkLoop(KLoop):
    """The K loop of one output tile within the stream.

    Args:
        spec, reader, copies, wave: as in `KLoop`.
        first: number in the stream of the tile's first K tile, a multiple of the scale group.
        groups: scale groups of an output tile.
        more: i1, whether another output tile follows.
        departure: copies of what the last output tile left in LDS.
    """

    def __init__(
        self,
        spec: KernelSpec,
        reader: TileReader,
        copies: Copies,
        wave: Any,
        *,
        first: Any,
        groups: Any,
        more: Any,
        departure: Departure,
    ) -> None:
        super().__init__(spec, reader, copies, wave)
        self.first, self.more, self.departure = first, more, departure
        self.stages, self.groups = copies.half.limit, groups
        self.in_flight += 1  # the departure, sent in every other stage
        self.depart_at = self.tile.wmmas * 5 // 8

    @property
    def next_first(self) -> Any:
        """Number in the stream of the next output tile's first K tile."""
        return self.first + self.groups * SCALE_GROUP

    def last_step(self, totals, stage, registers, blocks):
        """Multiply the last stage, of which `blocks` blocks exist, and read the codes of the next
        output tile's first; return totals, and position and registers of that one.
        """

        def due():
            return self._group_due(self.stages - 1, stage, ends_group=True)

        a, b = self.reader.fragments(registers, 0)
        a, b = self.reader.a.masked(a, blocks), self.reader.b.masked(b, blocks)
        await_all()
        reads = self.reader.reads(self._next(stage), 0)
        events = self._events(due, self.in_flight - 1)
        totals, results = multiply(self.tile, totals, a, b, reads, events)
        return totals, self._next(stage), self.reader.gather(results, registers)

    def _step_events(self, number, stage, odd: int):
        events = super()._step_events(number, stage, odd)
        if not odd:
            events[self.depart_at] = lambda _: self.departure.part(number >> 1).store()
        return events

    def _due(self, number, stage, odd: int) -> Transfer:
        if odd:
            return self._group_due(number, stage, ends_group=False)
        return self.copies.half.copy_on(number + self.ahead, stage, self.more)

    def _group_due(self, number, stage, *, ends_group: bool) -> Transfer:
        source, *where = self.copies.due(
            number, self.ahead, stage, ends_group=ends_group, first=self.first >> 3
        )
        return source.copy_on(*where, self.more)

    def _first_tile(self, number):
        return self.first + number


class Parked:
    """Copies whose fields that depend on the output tile are parked."""

    FIELDS = ("address", "columns", "rows", "limit")

    def __init__(self, parking: Parking, source: Source) -> None:
        self.source = source
        self.parked = {name: parking.put(getattr(source, name)) for name in self.FIELDS}

    def fetch(self) -> Source:
        """Return the copies."""
        return replace(self.source, **{name: fetch() for name, fetch in self.parked.items()})


class ParkedStore:
    """The ways out of a wave's output tiles, from parked values.

    Args:
        spec, args: as in `TileStore`.
        parking: where values are parked.
        walk_rows: columns of D from one output tile to the next.
        way_out: the other arguments of the first tile's `TileStore`.
    """

    def __init__(self, spec: KernelSpec, parking: Parking, args, walk_rows, **way_out) -> None:
        self.spec, self.args = spec, args
        self.lane, self.wave = way_out.pop("lane"), way_out.pop("wave")
        self.out = {name: parking.put(getattr(args, name)) for name in ("out", "out_pitch")}
        self.way_out = {name: parking.put(value) for name, value in way_out.items()}
        self.walk_rows = parking.put(walk_rows)

    def __call__(self, tile) -> TileStore:
        """Return the way out of output tile `tile`."""
        args = replace(self.args, **{name: fetch() for name, fetch in self.out.items()})
        way_out = {name: fetch() for name, fetch in self.way_out.items()}
        way_out["column"] += tile * self.walk_rows()
        return TileStore(self.spec, args, lane=self.lane, wave=self.wave, **way_out)


@dataclass(kw_only=True)
class Walk:
    """What does not change from one output tile of a workgroup to the next.

    Attributes:
        spec, reader, wave: as in `KLoop`.
        copies: of the first output tile.
        last_blocks: blocks that exist in the last data stage of an output tile.
        tiles: output tiles of this workgroup.
        store_at: returns the way out of output tile i.
        parking: for what a loop does not need.
    """

    spec: KernelSpec
    reader: TileReader
    copies: Copies
    wave: Any
    last_blocks: Any
    tiles: Any
    store_at: ParkedStore
    parking: Parking

    def run(self, registers) -> None:
        """Compute all output tiles; `registers` are those that `KLoop.begin` returns."""
        self.half = Parked(self.parking, self.copies.half)
        self.refill = Parked(self.parking, self.copies.refill)
        self.groups = self.parking.put(self.copies.scales.limit)
        self.blocks = self.parking.put(self.last_blocks)
        counted_loop(self.tiles, [fx.Int32(0), *registers], self._tile)
        await_all()
        self.store_at(self.tiles - 1).send_last_pass()

    def _tile(self, tile, state):
        """Compute output tile `tile`; return position and registers of the next one's first
        stage.
        """
        loop = self._loop(tile)
        carried = [*zeros(self.spec.tile), *state]
        pairs = (loop.stages - 1) >> 1
        carried = counted_loop(pairs, carried, self._pair_body(loop))

        def last_but_one(carried):
            totals, stage, registers = loop.step(*self._parts(carried), pairs * 2, odd=0)
            return [*totals, stage, *self.reader.as_even(registers)]

        carried = when(loop.stages - pairs * 2 > fx.Int32(1), carried, last_but_one)
        totals, stage, registers = loop.last_step(*self._parts(carried), self.blocks())
        self.store_at(tile).run(totals, None)
        # Scale words wait for the store: there are few registers that they can lie in.
        return [stage, *self.reader.with_scales(registers, loop.next_first)]

    def _pair_body(self, loop: WalkLoop):
        def body(pair, carried):
            even = pair * 2
            totals, stage, registers = loop.step(*self._parts(carried), even, odd=0)
            totals, stage, registers = loop.step(totals, stage, registers, even + 1, odd=1)
            return [*totals, stage, *registers]

        return body

    def _parts(self, carried):
        """Return totals, position of the stage, and registers."""
        count = self.spec.tile.wmmas
        return carried[:count], carried[count], carried[count + 1 :]

    def _loop(self, tile) -> WalkLoop:
        copies = replace(
            self.copies, half=self.half.fetch().moved(tile), refill=self.refill.fetch().moved(tile)
        )
        groups = self.groups()
        return WalkLoop(
            self.spec,
            self.reader,
            copies,
            self.wave,
            first=tile * groups * SCALE_GROUP,
            groups=groups,
            more=tile + 1 < self.tiles,
            departure=self.store_at(tile - 1).departure(tile > fx.Int32(0)),
        )
