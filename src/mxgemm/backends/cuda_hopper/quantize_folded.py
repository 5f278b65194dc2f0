"""Host side of quantize_folded.cu: high precision straight to folded rows."""

from __future__ import annotations

import struct

import torch

from mxgemm.backends.cuda_hopper import config as cfg
from mxgemm.backends.cuda_hopper.launch import FoldedRows
from mxgemm.quantizers import Quantization
from mxgemm.quantizers import cuda as quantizer
from mxgemm.runtime import cuda_driver
from mxgemm.runtime.nvrtc import HOPPER

QUANTIZE_FOLDED = struct.Struct("@4Pq2i")
"""`QuantizeFolded` of quantize_folded.cu, field by field."""


def takes(source: Quantization) -> bool:
    """Return whether the kernel does this: the options that block_codes.cuh covers, on a row that
    a block holds.
    """
    x = source.matrix
    return (
        quantizer.accepts(x, source.options)
        and x.shape[1] > 0
        and quantizer.is_plain(x, source.options)
        and cfg.quantizing_warps(x.dtype, x.shape[1]) is not None
    )


def run(source: Quantization) -> FoldedRows:
    """Return the matrix folded, in torch's current stream; its device must be the current one."""
    x = source.matrix
    rows, k = x.shape
    padded = cfg.round_up(rows, cfg.POWERS_MULTIPLE)
    folded = FoldedRows(
        torch.empty((rows, k), dtype=torch.uint8, device=x.device),
        torch.empty(padded, dtype=torch.int16, device=x.device),
        torch.empty((rows, k // cfg.BLOCK), dtype=torch.uint8, device=x.device),
    )
    if rows == 0:
        return folded
    arguments = cuda_driver.Packed(
        QUANTIZE_FOLDED,
        x.data_ptr(),
        folded.folded.data_ptr(),
        folded.scales.data_ptr(),
        folded.powers.data_ptr(),
        quantizer.row_bytes(x),
        rows,
        k,
    )
    device = x.device.index
    warps = cfg.quantizing_warps(x.dtype, k)
    assert warps is not None
    block_warps = max(warps, cfg.FOLD_WARPS)
    kernel = cuda_driver.load(
        cfg.quantize_folded_source(x.dtype, source.options.rule, warps),
        "quantize_folded",
        arch=HOPPER,
        device=device,
        threads=32 * block_warps,
    )
    stream = cuda_driver.current_stream(device)
    kernel.launch((padded * warps // block_warps, 1), stream, [arguments.address])
    return folded
