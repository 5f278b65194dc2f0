import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.rocdl import tdm_ops
from flydsl.expr.typing import Vector
from mxgemm.backends.flydsl_gfx1250.config import WMMA_ROWS
from mxgemm.backends.flydsl_gfx1250.registers import at_least_zero, at_most, lds_store
from mxgemm.backends.flydsl_gfx1250.tdm import Transfer, transfer_flags
import torch
ELEMENTS = {torch.float32: fx.Float32, torch.bfloat16: fx.BFloat16, torch.float16: fx.Float16}

class TileStore:
    def __init__(self, spec, lane, wave, m, n, alpha, beta, row, column):
        self.spec, self.lane, self.m, self.n, self.alpha, self.beta = spec, lane, m, n, alpha, beta
        self.row, self.column = row, column
        self.base = wave * spec.wave_store_bytes

    def _fragment_address(self, base, dtype, fragment_row, j):
        pitch = self.spec.io_pitch_bytes(dtype)
        lane_mod16, group = self.lane & 15, self.lane >> 4
        return base + (fragment_row + lane_mod16) * pitch + (j * WMMA_ROWS + group * 8) * dtype.itemsize

    def _put(self, base, dtype, fragment_row, j, value):
        at = self._fragment_address(base, dtype, fragment_row, j)
        if dtype is torch.float32:
            lds_store(at, value.shuffle(value, [0, 1, 2, 3]), fx.Float32, 4)
            lds_store(at + 16, value.shuffle(value, [4, 5, 6, 7]), fx.Float32, 4)
        else:
            lds_store(at, value.to(ELEMENTS[dtype]), ELEMENTS[dtype], 8)

    def transfer(self, base, dtype, pointer, row, rows):
        return Transfer(
            global_address=pointer + (fx.Int64(row) * fx.Int64(self.n) + fx.Int64(self.column)) * fx.Int64(dtype.itemsize),
            lds_address=base,
            columns=at_least_zero(at_most(self.n - self.column, self.spec.tile.wave_n)),
            rows=at_least_zero(self.m - row),
            tile_columns=self.spec.io_pitch_bytes(dtype) // dtype.itemsize,
            tile_rows=rows,
            row_pitch=fx.Int64(self.n),
            flags=transfer_flags(dtype.itemsize),
        )

    def run(self, totals, out, bias, c, aux, bias_grad, split, slice_row):
        spec, dtype = self.spec, self.spec.out_dtype
        out = out + fx.Int64(split) * fx.Int64(self.m) * fx.Int64(self.n) * fx.Int64(dtype.itemsize)
        for first in range(0, spec.tile.wave_m, spec.pass_rows):
            if first:
                tdm_ops.tensor_wait(0)
                rocdl.sched_barrier(0)
            for i in range(spec.pass_rows // WMMA_ROWS):
                for j in range(spec.tile.fragments_n):
                    v = totals[(first // WMMA_ROWS + i) * spec.tile.fragments_n + j]
                    if spec.epilogue.has_alpha:
                        v = v * self.alpha
                    self._put(self.base, dtype, i * WMMA_ROWS, j, v)
            rocdl.s_wait_dscnt(0)
            rocdl.sched_barrier(0)
            self.transfer(self.base, dtype, out, self.row + first, spec.pass_rows).store()
        tdm_ops.tensor_wait(0)
