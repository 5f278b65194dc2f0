"""The quantizer on NVIDIA GPUs: the reference's bits under every option, both directions from one
read of x.

Kernels are compiled once per set of options. Needs compute capability 9.0, which is what they were
written and measured for.
"""

from __future__ import annotations

import functools
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from mxgemm.quantizers.options import ALONG_K, ALONG_M, BLOCK, QuantizeOptions
from mxgemm.quantizers.scale_rules import ROUNDING_BIAS, SEARCH
from mxgemm.runtime.nvrtc import HOPPER, Source

if TYPE_CHECKING:
    from mxgemm.runtime.cuda_driver import Packed

CAPABILITY = (9, 0)
INPUT_CODES = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
HERE = Path(__file__).parent
THREADS = 256
TILE = 128
CODES_PITCH = TILE // 2 + 16
ROWS_ELEMENTS = THREADS * 4 * 8
"""Elements that a block of quantize_rows takes."""

PAIRS_SIDE = 256
PAIRS_BOX = (PAIRS_SIDE, 64)
PAIRS_RING = 7
PAIRS_THREADS = 512
PAIRS_GROUP = 16
"""Tiles of quantize_pairs that lie below one another before it goes on along K."""
FEW_TILES = 64
"""With fewer tiles quantize_pairs would leave too many multiprocessors idle."""

VECTOR_BYTES = 16

QUANTIZE = struct.Struct("@5Pq2Q2I5i4x")
"""`Quantize` of quantize.cu, field by field; 4x is the padding that C adds."""

Buffers = tuple[torch.Tensor, torch.Tensor]


def accepts(x: torch.Tensor, options: QuantizeOptions) -> bool:
    """Return whether the kernels take this matrix: on a Hopper GPU, under every option."""
    return x.is_cuda and torch.version.hip is None and _available(x.device.index)


@functools.cache
def _available(device: int) -> bool:
    if torch.cuda.get_device_capability(device) != CAPABILITY:
        return False
    try:
        from mxgemm.runtime import nvrtc

        nvrtc.version()
    except (ImportError, RuntimeError):
        return False
    return True


def quantize_matrix(
    x: torch.Tensor, stored_k: int, options: QuantizeOptions, *, stream: int = ALONG_K
) -> Buffers:
    """Return x quantized along K; a transposed view is read in place, along its rows."""
    rows, k = x.shape
    out = _buffers(x, rows, stored_k)
    if rows == 0 or stored_k == 0:
        return out
    if k and x.stride(1) != 1 and x.stride(0) == 1:
        _launch(x.t(), None, out, options, stream_m=stream)
    else:
        _launch(x, out, None, options, stream=stream)
    return out


def quantize_both(
    x: torch.Tensor, stored_k: int, stored_m: int, options: QuantizeOptions
) -> tuple[Buffers, Buffers]:
    """Return x quantized along K, and x.T along M, from one read of x."""
    rows, k = x.shape
    along_k, along_m = _buffers(x, rows, stored_k), _buffers(x, k, stored_m)
    if rows and k:
        _launch(x, along_k, along_m, options)
    return along_k, along_m


def _buffers(x: torch.Tensor, rows: int, stored: int) -> Buffers:
    codes = torch.empty((rows, stored // 2), dtype=torch.uint8, device=x.device)
    return codes, torch.empty((rows, stored // BLOCK), dtype=torch.uint8, device=x.device)


def source(dtype: torch.dtype, options: QuantizeOptions, *, along_k: bool, along_m: bool) -> Source:
    """Return the translation unit of quantize_tiles for these options."""
    rotation = options.rotation
    return Source(
        HERE / "quantize.cu",
        (
            *block_defines(dtype, options.rule),
            ("MX_STOCHASTIC", int(options.rounding == "stochastic")),
            ("MX_ROTATION", rotation.size if rotation is not None else 0),
            ("MX_SIGNS", int(rotation is not None and rotation.signs != 0)),
            ("MX_BLOCK_2D", int(options.block_2d)),
            ("MX_PRESCALE", int(options.prescale)),
            ("MX_ALONG", along_k + 2 * along_m),
        ),
    )


def plain_source(dtype: torch.dtype, rule: str) -> Source:
    """Return the translation unit of quantize_rows and quantize_pairs."""
    shape = ("MX_GROUP", PAIRS_GROUP), ("MX_PAIRS_THREADS", PAIRS_THREADS)
    return Source(HERE / "quantize_plain.cu", (*block_defines(dtype, rule), *shape))


def block_defines(dtype: torch.dtype, rule: str) -> tuple[tuple[str, int], ...]:
    """Return what block_codes.cuh wants to know."""
    return ("MX_INPUT", INPUT_CODES[dtype]), ("MX_BIAS", ROUNDING_BIAS.get(rule, -1))


def is_plain(x: torch.Tensor, options: QuantizeOptions) -> bool:
    """Return whether block_codes.cuh covers the options, and rows of x [rows, k] are whole blocks
    that can be read in vectors.
    """
    return (
        options == QuantizeOptions(rule=options.rule)
        and options.rule != SEARCH
        and x.stride(1) == 1
        and x.shape[1] % BLOCK == 0
        and x.data_ptr() % VECTOR_BYTES == 0
        and row_bytes(x) % VECTOR_BYTES == 0
    )


def row_bytes(x: torch.Tensor) -> int:
    """Return the bytes from row to row; a single row may have any stride."""
    return (x.stride(0) if x.shape[0] > 1 else x.shape[1]) * x.itemsize


def _launch(
    x: torch.Tensor,
    along_k: Buffers | None,
    along_m: Buffers | None,
    options: QuantizeOptions,
    *,
    stream: int = ALONG_K,
    stream_m: int = ALONG_M,
) -> None:
    """Quantize x [rows, k]; the axis K becomes contiguous first where it is not."""
    from mxgemm.runtime import cuda_driver

    if x.shape[1] > 1 and x.stride(1) != 1:
        x = x.contiguous()
    rows, k = x.shape
    stored_k = along_k[0].shape[1] * 2 if along_k is not None else 0
    stored_m = along_m[0].shape[1] * 2 if along_m is not None else 0
    pitch = row_bytes(x)
    aligned = x.data_ptr() % VECTOR_BYTES == 0 and pitch % VECTOR_BYTES == 0
    outputs = [*(along_k or (None, None)), *(along_m or (None, None))]
    values = cuda_driver.Packed(
        QUANTIZE,
        x.data_ptr(),
        *(0 if out is None else out.data_ptr() for out in outputs),
        pitch,
        options.seed,
        options.rotation.signs if options.rotation is not None else 0,
        stream,
        stream_m,
        rows,
        k,
        stored_k,
        stored_m,
        aligned and k % (VECTOR_BYTES // x.itemsize) == 0,
    )
    with torch.cuda.device(x.device):
        if is_plain(x, options):
            if along_m is None and x.is_contiguous():
                _launch_rows(x, options.rule, values)
                return
            if along_m is not None and x.itemsize == 2 and _pairs_tiles(k, stored_m) >= FEW_TILES:
                _launch_pairs(x, options.rule, values, stored_m)
                return
        unit = source(x.dtype, options, along_k=along_k is not None, along_m=along_m is not None)
        grid = (-(-max(k, stored_k) // TILE), -(-max(rows, stored_m) // TILE))
        _start(unit, "quantize_tiles", x, shared_bytes(x.dtype), grid, [values.address])


def shared_bytes(dtype: torch.dtype) -> int:
    """Return the dynamic shared memory of quantize_tiles: a tile, its codes and its scales."""
    pitch = TILE * dtype.itemsize + 16
    return TILE * (pitch + CODES_PITCH + TILE // BLOCK)


def _launch_rows(x: torch.Tensor, rule: str, values: Packed) -> None:
    grid = (-(-x.numel() // ROWS_ELEMENTS), 1)
    _start(plain_source(x.dtype, rule), "quantize_rows", x, 0, grid, [values.address])


def _pairs_tiles(k: int, stored_m: int) -> int:
    """Return how many tiles quantize_pairs makes of a matrix."""
    return -(-stored_m // PAIRS_SIDE) * -(-k // PAIRS_SIDE)


def _launch_pairs(x: torch.Tensor, rule: str, values: Packed, stored_m: int) -> None:
    from mxgemm.runtime import cuda_driver

    rows, k = x.shape
    blocks = min(_pairs_tiles(k, stored_m), cuda_driver.multiprocessors(x.device.index))
    tile_map = cuda_driver.tensor_map(x.data_ptr(), x.dtype, rows, k, row_bytes(x), PAIRS_BOX)
    shared = PAIRS_RING * PAIRS_BOX[0] * PAIRS_BOX[1] * x.itemsize
    addresses = [int(tile_map.getPtr()), values.address]
    unit = plain_source(x.dtype, rule)
    _start(unit, "quantize_pairs", x, shared, (blocks, 1), addresses, threads=PAIRS_THREADS)


def _start(
    unit: Source,
    name: str,
    x: torch.Tensor,
    shared: int,
    grid: tuple[int, int],
    addresses: list[int],
    *,
    threads: int = THREADS,
) -> None:
    from mxgemm.runtime import cuda_driver

    device = x.device.index
    kernel = cuda_driver.load(
        unit, name, arch=HOPPER, device=device, threads=threads, shared_bytes=shared
    )
    kernel.launch(grid, cuda_driver.current_stream(device), addresses)
