"""The compiled quantizer for CPU tensors: the reference's bits for every rule, rounding, rotation
and block shape; both halves of a pair from one read of the source where its form allows.
"""

from __future__ import annotations

import torch

from mxgemm import settings
from mxgemm.quantizers.options import ALONG_K, BLOCK, QuantizeOptions
from mxgemm.quantizers.scale_rules import ROUNDING_BIAS
from mxgemm.runtime import native_cpu as runtime

SEARCH_BIAS = -1
"""What stands for the search rule where the closed rules pass their bias."""

RECYCLED_BYTES = 1 << 20
"""Results from this size on take the memory of earlier ones that are gone; their first touch would
take longer than to quantize."""


def accepts(x: torch.Tensor, options: QuantizeOptions) -> bool:
    """Return whether `x` is in CPU memory and the extension is there; it knows every option."""
    del options
    return x.device.type == "cpu" and bool(runtime.available_isas())


def quantize_matrix(
    x: torch.Tensor, stored_k: int, options: QuantizeOptions, *, stream: int = ALONG_K
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return canonical packed codes and scale bytes of a matrix; arguments and results are those of
    `mxgemm.quantizers.reference.quantize_matrix`.
    """
    rows, k = x.shape
    codes, scales = _buffers(rows, stored_k)
    if codes.numel():
        runtime.module().quantize(
            runtime.kernels(settings.CPU_ISA.read()),
            _source(x),
            rows,
            k,
            stored_k,
            _numbers(options),
            stream,
            codes.data_ptr(),
            scales.data_ptr(),
            torch.get_num_threads(),
        )
    return codes, scales


def quantize_both(
    x: torch.Tensor, stored_k: int, stored_m: int, options: QuantizeOptions
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Return (codes, scales) of x [rows, k] along k and of x.T along rows, the latter with the
    contraction zero-filled to stored_m and Philox stream 1.
    """
    rows, k = x.shape
    along_k, along_m = _buffers(rows, stored_k), _buffers(k, stored_m)
    if along_k[0].numel() and along_m[0].numel():
        runtime.module().quantize_pair(
            runtime.kernels(settings.CPU_ISA.read()),
            _source(x),
            rows,
            k,
            stored_k,
            stored_m,
            _numbers(options),
            *(buffer.data_ptr() for buffer in (*along_k, *along_m)),
            torch.get_num_threads(),
        )
    return along_k, along_m


def _buffers(rows: int, stored_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    return _empty(rows, stored_k // 2), _empty(rows, stored_k // BLOCK)


def _empty(rows: int, columns: int) -> torch.Tensor:
    if rows * columns < RECYCLED_BYTES:
        return torch.empty((rows, columns), dtype=torch.uint8)
    tensor: torch.Tensor = runtime.module().empty(rows, columns)
    return tensor


def _source(x: torch.Tensor) -> tuple[int, int, int, int]:
    return x.data_ptr(), x.stride(0), x.stride(1), runtime.DTYPES[x.dtype]


def _numbers(options: QuantizeOptions) -> tuple[int, bool, int, int, int, bool, float]:
    rotation = options.rotation
    return (
        ROUNDING_BIAS.get(options.rule, SEARCH_BIAS),
        options.rounding == "stochastic",
        options.seed,
        rotation.size if rotation is not None else 0,
        rotation.signs if rotation is not None else 0,
        options.block_2d,
        options.prescale_factor,
    )
