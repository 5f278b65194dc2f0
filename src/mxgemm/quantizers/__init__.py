"""High precision to MXFP4 and back: one entry point whatever the device.

A quantizer is a module with the members of `Quantizer`; one for a device is a file here and a place
in `QUANTIZERS` before the reference, and gives the reference's bits.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch

from mxgemm.layouts.base import round_up
from mxgemm.numerics import philox
from mxgemm.numerics.hadamard import Rotation, rotate_back
from mxgemm.quantizers import cuda, native_cpu, reference
from mxgemm.quantizers.options import ALONG_K, BLOCK, QuantizeOptions, check_flag
from mxgemm.quantizers.scale_rules import DEFAULT_RULE, RULES
from mxgemm.tensor import CANONICAL, MXPair, MXTensor, OperandLayout

INPUT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Buffers = tuple[torch.Tensor, torch.Tensor]
"""Canonical codes uint8 [rows, stored_k/2] and scales uint8 [rows, stored_k/32]."""


class Quantizer(Protocol):
    """What a module that quantizes on some device offers; x is float32, bfloat16 or float16 [M, K]
    with any strides.
    """

    def accepts(self, x: torch.Tensor, options: QuantizeOptions) -> bool:
        """Return whether it takes this matrix in this process."""

    def quantize_matrix(
        self, x: torch.Tensor, stored_k: int, options: QuantizeOptions, *, stream: int = ALONG_K
    ) -> Buffers:
        """Return x quantized along K, filled with zeros to stored_k."""

    def quantize_both(
        self, x: torch.Tensor, stored_k: int, stored_m: int, options: QuantizeOptions
    ) -> tuple[Buffers, Buffers]:
        """Return x quantized along K, and x.T along M, from one read where the device can."""


QUANTIZERS: tuple[Quantizer, ...] = (cuda, native_cpu, reference)
"""Every quantizer, fastest first on the tensors that it accepts; all give the same bits, and the
reference takes any.
"""


def quantize(
    x: torch.Tensor,
    *,
    rule: str = DEFAULT_RULE,
    rounding: str = "nearest_even",
    rotation: Rotation | None = None,
    block_2d: bool = False,
    prescale: bool = False,
    layout: OperandLayout = CANONICAL,
    generator: torch.Generator | None = None,
    pad: bool = False,
) -> MXTensor:
    """Return `x` as MXFP4 with blocks of 32 along its last axis.

    Args:
        x: float32, bfloat16 or float16 [..., K], any strides; leading dimensions are flattened to
            rows.
        rule: scale rule: floor, even, ceil, rceil or search (see `mxgemm.quantizers.scale_rules`).
        rounding: "nearest_even", or "stochastic": unbiased for elements up to 6 times their scale,
            which holds for whole blocks under ceil, rceil or with `prescale`.
        rotation: Hadamard along K before the scales are chosen; recorded on the result.
        block_2d: one scale per 32 x 32 tile, so that x and x.T quantize to the same values.
        prescale: multiply elements by 3/4 after the scale was chosen; recorded, and undone by
            consumers.
        layout: how codes and scales are stored.
        generator: source of the stochastic rounding's seed; the same state gives the same codes on
            every device.
        pad: allow K that is no whole number of blocks (or rotations): the last one is filled with
            zeros.

    Returns:
        MXTensor of shape (rows, K). A block that holds NaN or Inf gets scale 255 (NaN); a block of
        zeros gets scale 1.

    Raises:
        TypeError: x is not a tensor of a supported dtype, or an option has another type.
        ValueError: an unknown rule or rounding, a generator without stochastic rounding, a scalar,
        or K that needs `pad`.

    Example:
        >>> import torch, mxgemm
        >>> mxgemm.quantize(torch.ones(4, 64)).scales[0].tolist()
        [125, 125]
    """
    options = _options(
        rule=rule,
        rounding=rounding,
        rotation=rotation,
        block_2d=block_2d,
        prescale=prescale,
        layout=layout,
        generator=generator,
    )
    check_flag("pad", pad)
    matrix = _as_matrix(x, "quantize")
    k = matrix.shape[1]
    stored_k = round_up(k, options.contraction_multiple)
    if stored_k != k and not pad:
        raise ValueError(
            f"quantize: K must be a multiple of {options.contraction_multiple}, got {k}; "
            "pass pad=True to fill the last block with zeros"
        )
    options = _seeded(options, generator)
    buffers = _quantizer(matrix, options).quantize_matrix(matrix, stored_k, options)
    return _tensor(buffers, (matrix.shape[0], k), stored_k, options, layout)


def quantize_pair(
    x: torch.Tensor,
    *,
    rule: str = DEFAULT_RULE,
    rounding: str = "nearest_even",
    rotation: Rotation | None = None,
    block_2d: bool = False,
    prescale: bool = False,
    layout: OperandLayout = CANONICAL,
    generator: torch.Generator | None = None,
    pad: bool = False,
) -> MXPair:
    """Return both quantizations that training needs of `x` [..., K] -> [M, K]: x along K, and x.T
    along M.

    Arguments are those of `quantize`. The second half's contraction is M; its last block is filled
    with zeros without being asked, because a number of tokens need not be a multiple of 32. Both
    halves come from the high-precision source; with stochastic rounding they use independent random
    words of one seed.

    Raises:
        TypeError, ValueError: as `quantize`.

    Example:
        >>> import torch, mxgemm
        >>> pair = mxgemm.quantize_pair(torch.ones(5, 64))
        >>> pair.along_k.shape, pair.along_m.shape, pair.along_m.stored_k
        ((5, 64), (64, 5), 32)
    """
    options = _options(
        rule=rule,
        rounding=rounding,
        rotation=rotation,
        block_2d=block_2d,
        prescale=prescale,
        layout=layout,
        generator=generator,
    )
    check_flag("pad", pad)
    matrix = _as_matrix(x, "quantize_pair")
    rows, k = matrix.shape
    multiple = options.contraction_multiple
    if k % multiple and not pad:
        raise ValueError(
            f"quantize_pair: K must be a multiple of {multiple}, got {k}; "
            "pass pad=True to fill the last block with zeros"
        )
    options = _seeded(options, generator)
    quantizer = _quantizer(matrix, options)
    stored_k, stored_m = round_up(k, multiple), round_up(rows, multiple)
    along_k, along_m = quantizer.quantize_both(matrix, stored_k, stored_m, options)
    return MXPair(
        _tensor(along_k, (rows, k), stored_k, options, layout),
        _tensor(along_m, (k, rows), stored_m, options, layout),
    )


def dequantize(
    tensor: MXTensor, dtype: torch.dtype = torch.float32, *, rotate_to_source: bool = True
) -> torch.Tensor:
    """Return the values of `tensor`, [rows, k].

    Args:
        tensor: any MXTensor; pads and columns past k are dropped.
        dtype: float64 (exact), float32 (exact unless it overflows to Inf at scale bytes 253 and
            254), bfloat16 or float16 (rounded once from float32). A prescale or a rotation that is
            undone rounds in float64 or float32 first.
        rotate_to_source: undo the rotation, in FP32, so that the values compare with what was
            quantized; False returns the values as the GEMM sees them.

    Raises:
        TypeError: not an MXTensor, or another dtype.

    Example:
        >>> import torch, mxgemm
        >>> x = torch.tensor([[0.5, 1.2, 6.0, -3.0] * 8])
        >>> mxgemm.dequantize(mxgemm.quantize(x))[0, :4].tolist()
        [0.5, 1.0, 6.0, -3.0]
    """
    if not isinstance(tensor, MXTensor):
        raise TypeError(f"dequantize: takes an MXTensor, got {type(tensor).__name__}")
    if dtype not in (torch.float64, *INPUT_DTYPES):
        raise TypeError(
            f"dequantize: dtype must be one of {(torch.float64, *INPUT_DTYPES)}, got {dtype}"
        )
    wide = dtype if dtype == torch.float64 else torch.float32
    values = reference.dequantize_matrix(tensor.canonical_codes(), tensor.canonical_scales(), wide)
    if tensor.prescale != 1.0:
        values = values / tensor.prescale
    if tensor.rotation is not None and rotate_to_source:
        values = rotate_back(values, tensor.rotation)
    return values[:, : tensor.k].to(dtype)


def _quantizer(x: torch.Tensor, options: QuantizeOptions) -> Quantizer:
    return next(each for each in QUANTIZERS if each.accepts(x, options))


def _tensor(
    buffers: Buffers,
    shape: tuple[int, int],
    stored_k: int,
    options: QuantizeOptions,
    layout: OperandLayout,
) -> MXTensor:
    tensor = MXTensor(
        codes=buffers[0],
        scales=buffers[1],
        shape=shape,
        stored_k=stored_k,
        scale_rule=options.rule,
        rotation=options.rotation,
        prescale=options.prescale_factor,
    )
    return tensor.relayout(layout)


def _options(
    *,
    rule: str,
    rounding: str,
    rotation: Rotation | None,
    block_2d: bool,
    prescale: bool,
    layout: OperandLayout,
    generator: torch.Generator | None,
) -> QuantizeOptions:
    if not isinstance(layout, OperandLayout):
        raise TypeError(
            f"quantize: layout must be an OperandLayout, got {type(layout).__name__}; "
            f"OperandLayout.of(codes, scales) makes one from names"
        )
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"quantize: generator must be a torch.Generator, got {type(generator).__name__}"
        )
    if generator is not None and rounding != "stochastic":
        raise ValueError(
            f"quantize: a generator is for rounding='stochastic', got rounding={rounding!r}; leave "
            f"it out"
        )
    return QuantizeOptions(
        rule=rule, rounding=rounding, rotation=rotation, block_2d=block_2d, prescale=prescale
    )


def _seeded(options: QuantizeOptions, generator: torch.Generator | None) -> QuantizeOptions:
    """Return `options` with a seed drawn where rounding needs one; called after every check, so
    that a refused call does not advance the generator.
    """
    if options.rounding != "stochastic":
        return options
    return dataclasses.replace(options, seed=philox.seed_from(generator))


def _as_matrix(x: torch.Tensor, what: str) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{what}: takes a torch.Tensor, got {type(x).__name__}")
    if x.layout != torch.strided or x.is_nested:
        found = "a nested tensor" if x.is_nested else str(x.layout)
        raise TypeError(f"{what}: takes a dense tensor, got {found}; convert first")
    if x.dtype not in INPUT_DTYPES:
        raise TypeError(
            f"{what}: dtype must be one of {INPUT_DTYPES}, got {x.dtype}; convert first"
        )
    if x.dim() == 0:
        raise ValueError(f"{what}: takes at least one dimension, got a scalar")
    x = x.detach()
    # reshape(-1, K) cannot infer the rows of a tensor without elements.
    return x if x.dim() == 2 else x.reshape(x.shape[:-1].numel(), x.shape[-1])


__all__ = [
    "BLOCK",
    "INPUT_DTYPES",
    "QUANTIZERS",
    "RULES",
    "QuantizeOptions",
    "Quantizer",
    "dequantize",
    "quantize",
    "quantize_pair",
]
