"""The defining quantizer in torch operations, on any device: every other quantizer gives its bits.

Works in chunks of rows, so that a matrix of any size needs a bounded amount of extra memory.
"""

from __future__ import annotations

import torch

from mxgemm.numerics import e2m1, e8m0, philox, rounding
from mxgemm.numerics.hadamard import rotate
from mxgemm.quantizers.options import ALONG_K, ALONG_M, BLOCK, QuantizeOptions
from mxgemm.quantizers.scale_rules import scale_bytes

CHUNK_ELEMENTS = 1 << 23
"""Elements quantized at once: about 0.5 GiB of temporaries."""


def accepts(x: torch.Tensor, options: QuantizeOptions) -> bool:
    """Return whether this quantizer takes the matrix: the reference takes any."""
    return True


def quantize_both(
    x: torch.Tensor, stored_k: int, stored_m: int, options: QuantizeOptions
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Return codes and scales of x along K, and of x.T along M; see `quantize_matrix`."""
    return (
        quantize_matrix(x, stored_k, options, stream=ALONG_K),
        quantize_matrix(x.t(), stored_m, options, stream=ALONG_M),
    )


def quantize_matrix(
    x: torch.Tensor, stored_k: int, options: QuantizeOptions, *, stream: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return canonical packed codes and scale bytes of a matrix.

    Args:
        x: float32, bfloat16 or float16 [rows, k], any strides.
        stored_k: k rounded up to options.contraction_multiple; the columns past k are zeros.
        options: the numerics.
        stream: Philox stream of the random words, 0 along K, 1 for the along-M half of a pair.

    Returns:
        codes uint8 [rows, stored_k/2] and scales uint8 [rows, stored_k/32].
    """
    rows, k = x.shape
    codes = x.new_empty((rows, stored_k // 2), dtype=torch.uint8)
    scales = x.new_empty((rows, stored_k // BLOCK), dtype=torch.uint8)
    if rows == 0 or stored_k == 0:
        return codes, scales
    step = max(BLOCK, CHUNK_ELEMENTS // stored_k // BLOCK * BLOCK)
    for start in range(0, rows, step):
        stop = min(rows, start + step)
        chunk = torch.nn.functional.pad(x[start:stop].float(), (0, stored_k - k)).contiguous()
        words = None
        if options.rounding == "stochastic":
            count = (stop - start) * stored_k
            words = philox.words(options.seed, stream, start * stored_k, count, x.device)
        codes[start:stop], scales[start:stop] = _quantize_chunk(chunk, options, words)
    return codes, scales


def _quantize_chunk(
    x: torch.Tensor, options: QuantizeOptions, words: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    if options.rotation is not None:
        x = rotate(x, options.rotation)
    byte = _tile_bytes(x, options.rule) if options.block_2d else _block_bytes(x, options.rule)
    blocks = torch.unflatten(x, -1, (-1, BLOCK))
    # 2^(127 - byte) for the finite bytes; a NaN block is replaced below.
    scale = e8m0.power_of_two(e8m0.BIAS - byte.clamp(max=254))
    y = (blocks * scale[..., None]).flatten(-2)
    if options.prescale:
        y = y * y.new_tensor(options.prescale_factor)
    codes = rounding.nearest_even(y) if words is None else rounding.stochastic(y, words)
    is_nan = (byte == e8m0.NAN)[..., None]
    codes = torch.where(is_nan, 0, torch.unflatten(codes, -1, (-1, BLOCK))).flatten(-2)
    return e2m1.pack(codes), byte.to(torch.uint8)


def _block_bytes(x: torch.Tensor, rule: str) -> torch.Tensor:
    """Return int32 [rows, blocks], one scale per block of a row."""
    return scale_bytes(x.reshape(-1, BLOCK), rule).view(x.shape[0], -1)


def _tile_bytes(x: torch.Tensor, rule: str) -> torch.Tensor:
    """Return int32 [rows, blocks], one scale per 32 x 32 tile, repeated for the tile's rows; a
    partial tile ends with zeros.
    """
    rows, k = x.shape
    padded = torch.nn.functional.pad(x, (0, 0, 0, -rows % BLOCK))
    tiles = padded.view(-1, BLOCK, k // BLOCK, BLOCK).transpose(1, 2)
    byte = scale_bytes(tiles.reshape(-1, BLOCK * BLOCK), rule).view(-1, k // BLOCK)
    return byte.repeat_interleave(BLOCK, dim=0)[:rows]


def dequantize_matrix(
    codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return code value times scale of canonical buffers, exactly in FP64; FP32 may overflow to Inf
    (byte 253 and up).

    Args:
        codes: uint8 [rows, stored_k/2].
        scales: uint8 [rows, stored_k/32].
        dtype: torch.float32 or torch.float64.
    """
    blocks = torch.unflatten(e2m1.decode(e2m1.unpack(codes), dtype), -1, (-1, BLOCK))
    return (blocks * e8m0.decode(scales, dtype)[..., None]).flatten(-2)
