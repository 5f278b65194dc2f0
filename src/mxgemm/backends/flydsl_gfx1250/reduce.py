"""Two small kernels after the GEMM: sum a split contraction's parts, and sum a bias gradient's
parts.

Both add in ascending order of the part, one column a lane, so that a result does not depend on
which workgroup finished first.

    split_sum       D = epilogue(sum over s of parts[s])     parts: float32 [splits, M, N]
    bias_grad_sum   bias_grad[n] = sum over r of parts[r, n]  parts: float32 [slices, N]
"""

import flydsl.compiler as flyc
import flydsl.expr as fx
import torch

from mxgemm.backends.flydsl_gfx1250.config import REDUCE_THREADS, SLICE_ROWS, SplitSumSpec
from mxgemm.backends.flydsl_gfx1250.registers import (
    address,
    global_load,
    global_store,
    narrow,
    widen,
)
from mxgemm.backends.flydsl_gfx1250.store import ELEMENTS, OutputArgs, fuse

FP32_BYTES = 4


def _element(base, pitch, row, column, dtype):
    """Return element (row, column) of a row-major tensor in FP32; None for dtype None."""
    if dtype is None:
        return None
    value = global_load(_at(base, pitch, row, column, dtype.itemsize), ELEMENTS[dtype])
    return value if dtype is torch.float32 else widen(value)


def _put(base, pitch, row, column, dtype, value):
    """Store an FP32 value to element (row, column) of a row-major tensor of `dtype`."""
    value = value if dtype is torch.float32 else narrow(value, ELEMENTS[dtype])
    global_store(_at(base, pitch, row, column, dtype.itemsize), value, ELEMENTS[dtype])


def _at(base, pitch, row, column, itemsize: int):
    return base + (fx.Int64(row) * pitch + fx.Int64(column)) * fx.Int64(itemsize)


def build_split_sum(spec: SplitSumSpec):
    """Return launcher, placeholders, threads and LDS bytes of the kernel for `spec`.

    Grid (M / 64 rounded up, N / 256 rounded up): a workgroup's x is a slice of rows, of which a
    problem may have more than the other axes have room for; a lane is a column.
    """
    epilogue = spec.epilogue

    @flyc.kernel(known_block_size=[REDUCE_THREADS, 1, 1])
    def mxfp4_split_sum(
        out: fx.Pointer,
        parts: fx.Pointer,
        bias: fx.Pointer,
        c: fx.Pointer,
        aux: fx.Pointer,
        bias_grad: fx.Pointer,
        out_pitch: fx.Int64,
        c_pitch: fx.Int64,
        aux_pitch: fx.Int64,
        m: fx.Int32,
        n: fx.Int32,
        splits: fx.Int32,
        alpha: fx.Float32,
        beta: fx.Float32,
    ):
        slice_number = fx.Int32(fx.block_idx.x)
        column = fx.Int32(fx.block_idx.y) * REDUCE_THREADS + fx.Int32(fx.thread_idx.x)
        args = OutputArgs(
            out=address(out),
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
        width = fx.Int64(n)
        if column < n:
            bias_value = _element(args.bias, width, 0, column, epilogue.bias)
            first = slice_number * SLICE_ROWS
            last = fx.min(first + SLICE_ROWS, m)
            total = fx.Float32(0.0)
            for row in range(first, last):
                value = fx.Float32(0.0)
                for part in range(splits):
                    base = address(parts) + fx.Int64(part) * fx.Int64(m) * width * fx.Int64(
                        FP32_BYTES
                    )
                    value = value + _element(base, width, row, column, torch.float32)
                d, z = fuse(
                    epilogue,
                    args,
                    value,
                    bias_value,
                    _element(args.aux, aux_pitch, row, column, epilogue.aux_in),
                    _element(args.c, c_pitch, row, column, epilogue.c),
                )
                _put(args.out, out_pitch, row, column, spec.out_dtype, d)
                if fx.const_expr(epilogue.aux_out is not None):
                    _put(args.aux, aux_pitch, row, column, epilogue.aux_out, z)
                total = total + d
            if fx.const_expr(epilogue.bias_grad):
                _put(args.bias_grad, width, slice_number, column, torch.float32, total)

    @flyc.jit
    def launch(
        out: fx.Pointer,
        parts: fx.Pointer,
        bias: fx.Pointer,
        c: fx.Pointer,
        aux: fx.Pointer,
        bias_grad: fx.Pointer,
        out_pitch: fx.Int64,
        c_pitch: fx.Int64,
        aux_pitch: fx.Int64,
        m: fx.Int32,
        n: fx.Int32,
        splits: fx.Int32,
        alpha: fx.Float32,
        beta: fx.Float32,
        stream: fx.Stream,
    ):
        mxfp4_split_sum(
            out,
            parts,
            bias,
            c,
            aux,
            bias_grad,
            out_pitch,
            c_pitch,
            aux_pitch,
            m,
            n,
            splits,
            alpha,
            beta,
        ).launch(grid=(1, 1, 1), block=(REDUCE_THREADS, 1, 1), stream=stream)

    pointers = [flyc.from_c_void_p(fx.Int8, 0, assumed_align=1) for _ in range(6)]
    placeholders = [*pointers, *[fx.Int64(0)] * 3, 1, 1, 1, 1.0, 1.0, fx.Stream(None)]
    return launch, placeholders, REDUCE_THREADS, 0


def build_bias_grad_sum(_: None):
    """Return launcher, placeholders, threads and LDS bytes of the kernel."""

    @flyc.kernel(known_block_size=[REDUCE_THREADS, 1, 1])
    def mxfp4_bias_grad_sum(out: fx.Pointer, parts: fx.Pointer, n: fx.Int32, slices: fx.Int32):
        column = fx.Int32(fx.block_idx.x) * REDUCE_THREADS + fx.Int32(fx.thread_idx.x)
        if column < n:
            total = fx.Float32(0.0)
            for row in range(slices):
                total = total + _element(address(parts), fx.Int64(n), row, column, torch.float32)
            _put(address(out), fx.Int64(n), 0, column, torch.float32, total)

    @flyc.jit
    def launch(
        out: fx.Pointer, parts: fx.Pointer, n: fx.Int32, slices: fx.Int32, stream: fx.Stream
    ):
        mxfp4_bias_grad_sum(out, parts, n, slices).launch(
            grid=(1, 1, 1), block=(REDUCE_THREADS, 1, 1), stream=stream
        )

    pointers = [flyc.from_c_void_p(fx.Int8, 0, assumed_align=1) for _ in range(2)]
    return launch, [*pointers, 1, 1, fx.Stream(None)], REDUCE_THREADS, 0
