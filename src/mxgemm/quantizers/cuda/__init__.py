"""The quantizer on NVIDIA GPUs: the reference's bits under every option, both directions from one
read of x.

Kernels are compiled once per set of options. Needs compute capability 9.0, which is what they were
written and measured for.
"""

from __future__ import annotations

import functools
import struct
from pathlib import Path

import torch

from mxgemm.quantizers.options import ALONG_K, ALONG_M, BLOCK, QuantizeOptions
from mxgemm.quantizers.scale_rules import ROUNDING_BIAS, SEARCH
from mxgemm.runtime.nvrtc import HOPPER, Source

CAPABILITY = (9, 0)
INPUT_CODES = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
SOURCE = Path(__file__).parent / "quantize.cu"
THREADS = 256
TILE = 128
CODES_PITCH = TILE // 2 + 16
ROWS_ELEMENTS = THREADS * 4 * 8
"""Elements that a block of quantize_rows takes."""

QUANTIZE = struct.Struct("@5Pq2Q2I5i4x")
"""`Quantize` of quantize.cu, field by field; 4x is the padding that C adds."""

Buffers = tuple[torch.Tensor, torch.Tensor]


def accepts(x: torch.Tensor, options: QuantizeOptions) -> bool:
    """Return whether the kernels take this matrix: on a Hopper GPU, all options but the search rule
    over 32 x 32 tiles, whose order of summation is sequential.
    """
    if not x.is_cuda or torch.version.hip is not None:
        return False
    return not (options.block_2d and options.rule == SEARCH) and _available(x.device.index)


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
    """Return the translation unit for these options."""
    rotation = options.rotation
    return Source(
        SOURCE,
        (
            ("MX_INPUT", INPUT_CODES[dtype]),
            ("MX_BIAS", ROUNDING_BIAS.get(options.rule, -1)),
            ("MX_STOCHASTIC", int(options.rounding == "stochastic")),
            ("MX_ROTATION", rotation.size if rotation is not None else 0),
            ("MX_SIGNS", int(rotation is not None and rotation.signs != 0)),
            ("MX_BLOCK_2D", int(options.block_2d)),
            ("MX_PRESCALE", int(options.prescale)),
            ("MX_ALONG", along_k + 2 * along_m),
        ),
    )


def shared_bytes(dtype: torch.dtype) -> int:
    """Return the dynamic shared memory of quantize_tiles: a tile, its codes and its scales."""
    pitch = TILE * dtype.itemsize + 16
    return TILE * (pitch + CODES_PITCH + TILE // BLOCK)


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
    pitch = x.stride(0) * x.itemsize
    aligned = x.data_ptr() % 16 == 0 and pitch % 16 == 0
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
        aligned and k % (16 // x.itemsize) == 0,
    )
    unit = source(x.dtype, options, along_k=along_k is not None, along_m=along_m is not None)
    device = x.device.index
    grid = (-(-max(k, stored_k) // TILE), -(-max(rows, stored_m) // TILE))
    name, shared = "quantize_tiles", shared_bytes(x.dtype)
    if along_k is not None and aligned and _is_plain(x, options, stored_k):
        name = "quantize_pairs"
        if along_m is None:
            name, shared, grid = "quantize_rows", 0, (-(-rows * k // ROWS_ELEMENTS), 1)
    kernel = cuda_driver.load(
        unit, name, arch=HOPPER, device=device, threads=THREADS, shared_bytes=shared
    )
    with torch.cuda.device(x.device):
        kernel.launch(grid, cuda_driver.current_stream(device), [values.address])


def _is_plain(x: torch.Tensor, options: QuantizeOptions, stored_k: int) -> bool:
    """Whether quantize_rows and quantize_pairs do this."""
    return (
        x.dtype is torch.bfloat16
        and x.is_contiguous()
        and x.shape[1] == stored_k
        and options == QuantizeOptions(rule=options.rule)
        and options.rule != SEARCH
    )
