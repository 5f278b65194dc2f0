"""High precision to MXFP4 and back: one entry point whatever the device.

A quantizer is a module with the members of `Quantizer`; one for a device is a file here and a place
in `QUANTIZERS` before the reference, and gives the reference's bits.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Protocol, TypedDict

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


class QuantizeKeywords(TypedDict, total=False):
    """The keywords of a quantization whose result has no layout of its own; see `quantize`."""

    rule: str
    rounding: str
    rotation: Rotation | None
    block_2d: bool
    prescale: bool
    generator: torch.Generator | None
    pad: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """A quantization along the last axis that was asked for, checked.

    Attributes:
        matrix: float32, bfloat16 or float16 [rows, k], any strides.
        stored_k: k rounded up to whole blocks and rotations.
        options: the numerics, with a seed where rounding needs one.
    """

    matrix: torch.Tensor
    stored_k: int
    options: QuantizeOptions

    def tensor(self, layout: OperandLayout = CANONICAL) -> MXTensor:
        """Return it done: the matrix as MXFP4."""
        matrix, stored_k, options = self.matrix, self.stored_k, self.options
        buffers = _quantizer(matrix, options).quantize_matrix(matrix, stored_k, options)
        rows, k = matrix.shape
        return _tensor(buffers, (rows, k), stored_k, options, layout)


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
    _check_layout(layout)
    asked = quantization(
        x,
        "quantize",
        rule=rule,
        rounding=rounding,
        rotation=rotation,
        block_2d=block_2d,
        prescale=prescale,
        generator=generator,
        pad=pad,
    )
    return asked.tensor(layout)


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
    _check_layout(layout)
    asked = quantization(
        x,
        "quantize_pair",
        rule=rule,
        rounding=rounding,
        rotation=rotation,
        block_2d=block_2d,
        prescale=prescale,
        generator=generator,
        pad=pad,
    )
    matrix, stored_k, options = asked.matrix, asked.stored_k, asked.options
    rows, k = matrix.shape
    stored_m = round_up(rows, options.contraction_multiple)
    quantizer = _quantizer(matrix, options)
    along_k, along_m = quantizer.quantize_both(matrix, stored_k, stored_m, options)
    return MXPair(
        _tensor(along_k, (rows, k), stored_k, options, layout),
        _tensor(along_m, (k, rows), stored_m, options, layout),
    )


def quantization(
    x: torch.Tensor,
    what: str,
    *,
    rule: str = DEFAULT_RULE,
    rounding: str = "nearest_even",
    rotation: Rotation | None = None,
    block_2d: bool = False,
    prescale: bool = False,
    generator: torch.Generator | None = None,
    pad: bool = False,
) -> Quantization:
    """Return what a call asks for, checked; `what` names the call in messages.

    The seed of stochastic rounding is drawn after every check, so that a refused call does not
    advance the generator.

    Raises:
        TypeError, ValueError: as `quantize`.
    """
    options = _options(
        rule=rule,
        rounding=rounding,
        rotation=rotation,
        block_2d=block_2d,
        prescale=prescale,
        generator=generator,
    )
    check_flag("pad", pad)
    matrix = _as_matrix(x, what)
    k, multiple = matrix.shape[1], options.contraction_multiple
    if k % multiple and not pad:
        raise ValueError(
            f"{what}: K must be a multiple of {multiple}, got {k}; "
            "pass pad=True to fill the last block with zeros"
        )
    if options.rounding == "stochastic":
        options = dataclasses.replace(options, seed=philox.seed_from(generator))
    return Quantization(matrix=matrix, stored_k=round_up(k, multiple), options=options)


def _check_layout(layout: OperandLayout) -> None:
    """Raise TypeError unless it is an OperandLayout."""
    if not isinstance(layout, OperandLayout):
        raise TypeError(
            f"quantize: layout must be an OperandLayout, got {type(layout).__name__}; "
            f"OperandLayout.of(codes, scales) makes one from names"
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
    generator: torch.Generator | None,
) -> QuantizeOptions:
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
    x = x.detach().resolve_neg()  # a view that negates has memory of the other sign
    # reshape(-1, K) cannot infer the rows of a tensor without elements.
    return x if x.dim() == 2 else x.reshape(x.shape[:-1].numel(), x.shape[-1])


__all__ = [
    "BLOCK",
    "INPUT_DTYPES",
    "QUANTIZERS",
    "RULES",
    "Quantization",
    "QuantizeKeywords",
    "QuantizeOptions",
    "Quantizer",
    "dequantize",
    "quantization",
    "quantize",
    "quantize_pair",
]
