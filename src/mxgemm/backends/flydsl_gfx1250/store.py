"""From accumulators to global memory: the fused epilogue of one wave, through its own piece of LDS.

A wave brings its piece out in passes of some rows. With no more than a factor alpha to apply,
fragments are converted, stored to LDS and copied out by the TDM. Otherwise a pass stores FP32
fragments to LDS and then walks over rows, a few columns a lane, so that every tensor of the
epilogue
is met in row order: its reads and writes are whole rows, a column's sum stays in one lane, and the
code of an activation exists once. Inputs come and outputs go by the TDM, whose extents are the only
bounds check. No other wave sees the piece, so there is no barrier here.
"""

from dataclasses import dataclass, replace
from typing import Any

import flydsl.expr as fx
import torch
from flydsl.expr import rocdl
from flydsl.expr.rocdl import tdm_ops
from flydsl.expr.typing import Vector

from mxgemm.backends.flydsl_gfx1250.activation import activate, derivative
from mxgemm.backends.flydsl_gfx1250.config import (
    DEPARTURE_ROWS,
    WAVE_LANES,
    WMMA_ROWS,
    KernelSpec,
)
from mxgemm.backends.flydsl_gfx1250.registers import (
    at_least_zero,
    at_most,
    counted_loop,
    lds_load,
    lds_store,
    narrow,
    pick,
    widen,
)
from mxgemm.backends.flydsl_gfx1250.tdm import Descriptor, Transfer, transfer_flags
from mxgemm.epilogue import Epilogue

ELEMENTS = {torch.float32: fx.Float32, torch.bfloat16: fx.BFloat16, torch.float16: fx.Float16}
"""FlyDSL's names of output dtypes."""
LANE_ROWS = 8
"""Consecutive values of one lane in a 16x16 result; here they are output columns."""
STORE_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputArgs:
    """The kernel's arguments that the epilogue uses: Int64 addresses and pitches in elements, and
    FP32 factors.
    """

    out: Any
    bias: Any
    c: Any
    aux: Any
    bias_grad: Any
    out_pitch: Any
    c_pitch: Any
    aux_pitch: Any
    alpha: Any
    beta: Any


def fuse(epilogue: Epilogue, args: OutputArgs, value, bias, aux, c):
    """Return D and z of one element, FP32; `bias`, `aux` and `c` are None where there are none."""
    z = value
    if epilogue.has_alpha:
        z = z * args.alpha
    if bias is not None:
        z = z + bias
    d = activate(z, epilogue.activation) if aux is None else z * derivative(aux, epilogue.dact)
    if c is not None:
        d = fx.fma(args.beta, c, d)
    return d, z


@dataclass(frozen=True, slots=True)
class Departure:
    """Copies of a pass in parts of some rows."""

    whole: Transfer
    spec: KernelSpec

    def part(self, part) -> Descriptor:
        """Return the copy of part `part`, of nothing after the last one."""
        first = part * DEPARTURE_ROWS
        pitch = self.whole.row_pitch * fx.Int64(DEPARTURE_ROWS * self.spec.out_dtype.itemsize)
        return replace(
            self.whole,
            global_address=self.whole.global_address + fx.Int64(part) * pitch,
            lds_address=self.whole.lds_address
            + first * self.spec.io_pitch_bytes(self.spec.out_dtype),
            rows=at_least_zero(self.whole.rows - first),
        ).ready()


class TileStore:
    """One wave's way out: rows `row` .. and columns `column` .. of an m x n output."""

    def __init__(
        self, spec: KernelSpec, args: OutputArgs, *, lane, wave, m, n, row, column
    ) -> None:
        self.spec, self.args, self.lane = spec, args, lane
        self.m, self.n, self.row, self.column = m, n, row, column
        self.columns = at_least_zero(n - column)
        self.columns = pick(
            self.columns < fx.Int32(spec.tile.wave_n), self.columns, fx.Int32(spec.tile.wave_n)
        )
        self.piece = wave * spec.wave_store_bytes + spec.store_offset
        self.width = spec.tile.wave_n // WAVE_LANES
        self.regions = spec.regions

    def run(self, totals, slice_row) -> None:
        """Write everything that the epilogue asks for.

        Args:
            totals: the wave's accumulators.
            slice_row: row of the bias gradient's partial sums that is this wave's.
        """
        if self.spec.is_direct:
            self._direct(totals)
        else:
            self._fused(totals, slice_row)

    def _direct(self, totals) -> None:
        for first in range(0, self.spec.tile.wave_m, self.spec.pass_rows):
            if first:
                self._settle()
            self._put_fragments(totals, first, self.spec.out_dtype)
            self._settle(transfers=False)
            if first != self._last_pass or not self.spec.walks:
                self._transfer("out", first).store()

    @property
    def _last_pass(self) -> int:
        return self.spec.tile.wave_m - self.spec.pass_rows

    def send_last_pass(self) -> None:
        """Start the copy of what a walk leaves in LDS, the last pass."""
        self._transfer("out", self._last_pass).store()

    def departure(self, exists) -> Departure:
        """Return the copies of the last pass, some rows at once; of nothing unless `exists`."""
        whole = self._transfer("out", self._last_pass)
        rows = pick(exists, at_most(whole.rows, self.spec.pass_rows), fx.Int32(0))
        return Departure(replace(whole, rows=rows, tile_rows=DEPARTURE_ROWS), self.spec)

    def _fused(self, totals, slice_row) -> None:
        epilogue, rows = self.spec.epilogue, self.spec.pass_rows
        bias = self._bias_row()
        sums = [fx.Float32(0.0)] * self.width
        for first in range(0, self.spec.tile.wave_m, rows):
            if first and self.regions["out"][0] == self.regions["values"][0]:
                self._settle()  # the values would overwrite what the last pass sends
            for name in ("aux_in", "c"):
                if getattr(epilogue, name) is not None:
                    self._transfer(name, first).load()
            self._put_fragments(totals, first, torch.float32)
            self._settle()
            sums = counted_loop(rows, sums, self._row_body(first, bias))
            self._settle(transfers=False)
            self._transfer("out", first).store()
            if epilogue.aux_out is not None:
                self._transfer("aux_out", first).store()
        if epilogue.bias_grad:
            self._store_sums(sums, slice_row)

    def _row_body(self, first, bias):
        """Return the loop body that finishes one row of the pass from row `first` of the piece."""
        epilogue = self.spec.epilogue

        def body(row, sums):
            values = self._lane_row("values", row)
            aux = self._lane_row("aux_in", row)
            c = self._lane_row("c", row)
            results = [
                fuse(epilogue, self.args, *element)
                for element in zip(values, bias, aux, c, strict=True)
            ]
            self._put_lane_row("out", row, [d for d, _ in results])
            if epilogue.aux_out is not None:
                self._put_lane_row("aux_out", row, [z for _, z in results])
            if not epilogue.bias_grad:
                return sums
            exists = self.row + first + row < self.m
            zero = fx.Float32(0.0)
            return [s + pick(exists, d, zero) for s, (d, _) in zip(sums, results, strict=True)]

        return body

    def _settle(self, *, transfers: bool = True) -> None:
        """Wait until this wave's LDS accesses, and its transfers, are done."""
        if transfers:
            tdm_ops.tensor_wait(0)
        rocdl.s_wait_dscnt(0)
        rocdl.sched_barrier(0)

    def _put_fragments(self, totals, first, dtype) -> None:
        """Store the fragments of the pass from row `first`, converted to `dtype`, to LDS."""
        pitch, lane_mod16, half = self.spec.io_pitch_bytes(dtype), self.lane & 15, self.lane >> 4
        base = self.piece + lane_mod16 * pitch + half * (LANE_ROWS * dtype.itemsize)
        count = STORE_BYTES // dtype.itemsize
        scale = self.spec.is_direct and self.spec.epilogue.has_alpha
        for i in range(self.spec.pass_rows // WMMA_ROWS):
            for j in range(self.spec.tile.fragments_n):
                at = (first // WMMA_ROWS + i) * self.spec.tile.fragments_n + j
                value = totals[at] * self.args.alpha if scale else totals[at]
                if dtype is not torch.float32:
                    value = value.to(ELEMENTS[dtype])
                address = base + WMMA_ROWS * (i * pitch + j * dtype.itemsize)
                for part in range(0, LANE_ROWS, count):
                    piece = value.shuffle(value, list(range(part, part + count)))
                    lds_store(address + part * dtype.itemsize, piece, ELEMENTS[dtype], count)

    def _transfer(self, name: str, first: int) -> Transfer:
        """Return the copy of the pass from row `first` between LDS and the tensor `name`."""
        tensor = "aux" if name.startswith("aux") else name
        pitch = getattr(self.args, f"{tensor}_pitch")
        offset, dtype = self.regions[name]
        row = self.row + first
        return self._rows_transfer(
            getattr(self.args, tensor) + fx.Int64(row) * pitch * fx.Int64(dtype.itemsize),
            self.piece + offset,
            dtype,
            rows=at_least_zero(self.m - row),
            tile_rows=self.spec.pass_rows,
            row_pitch=pitch,
        )

    def _rows_transfer(
        self, address, lds_address, dtype, *, rows, tile_rows, row_pitch
    ) -> Transfer:
        """Return a copy of the wave's columns; LDS padding is in the tile, cut by the extent."""
        return Transfer(
            global_address=address + fx.Int64(self.column) * fx.Int64(dtype.itemsize),
            lds_address=lds_address,
            columns=self.columns,
            rows=rows,
            tile_columns=self.spec.io_pitch_bytes(dtype) // dtype.itemsize,
            tile_rows=tile_rows,
            row_pitch=row_pitch,
            flags=transfer_flags(dtype.itemsize),
        )

    def _single_row(self, address, dtype) -> Transfer:
        offset, _ = self.regions["row"]
        return self._rows_transfer(
            address, self.piece + offset, dtype, rows=1, tile_rows=1, row_pitch=fx.Int64(0)
        )

    def _bias_row(self):
        """Return this lane's columns of the bias, None each where there is none."""
        dtype = self.spec.epilogue.bias
        if dtype is None:
            return [None] * self.width
        self._single_row(self.args.bias, dtype).load()
        self._settle()
        return self._load_lane(self.piece + self.regions["row"][0], dtype)

    def _store_sums(self, sums, slice_row) -> None:
        """Write this lane's column sums to row `slice_row` of the partial bias gradient."""
        self._store_lane(self.piece + self.regions["row"][0], sums, torch.float32)
        self._settle(transfers=False)
        pitch = fx.Int64(self.n) * fx.Int64(torch.float32.itemsize)
        address = self.args.bias_grad + fx.Int64(slice_row) * pitch
        self._single_row(address, torch.float32).store()

    def _lane_row(self, name: str, row):
        """Return this lane's columns of LDS row `row` of region `name` in FP32, None for none."""
        if name not in self.regions:
            return [None] * self.width
        offset, dtype = self.regions[name]
        return self._load_lane(self._row_address(offset, dtype, row), dtype)

    def _put_lane_row(self, name: str, row, values) -> None:
        offset, dtype = self.regions[name]
        self._store_lane(self._row_address(offset, dtype, row), values, dtype)

    def _row_address(self, offset: int, dtype, row):
        return self.piece + offset + row * self.spec.io_pitch_bytes(dtype)

    def _load_lane(self, row_address, dtype):
        address = row_address + self.lane * (self.width * dtype.itemsize)
        loaded = lds_load(address, ELEMENTS[dtype], self.width)
        values = [loaded[i] for i in range(self.width)]
        return values if dtype is torch.float32 else [widen(value) for value in values]

    def _store_lane(self, row_address, values, dtype) -> None:
        address = row_address + self.lane * (self.width * dtype.itemsize)
        element = ELEMENTS[dtype]
        if dtype is not torch.float32:
            values = [narrow(value, element) for value in values]
        lds_store(address, Vector.from_elements(values, element), element, self.width)
