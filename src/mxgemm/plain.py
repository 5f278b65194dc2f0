"""PlainOperand: rows of A in high precision beside an MXFP4 B, for decoding where activations are
not quantized.

`mxgemm.gemm` and a plan make one from a torch tensor; nobody else needs to. This module knows what
such a tensor must be, not how it is multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mxgemm.epilogue import OUTPUT_DTYPES
from mxgemm.formats import MXFP4, PlainFormat
from mxgemm.layouts.base import round_up
from mxgemm.numerics.hadamard import Rotation
from mxgemm.tensor import CANONICAL, OperandLayout

FORMATS = {dtype: PlainFormat(str(dtype).removeprefix("torch.")) for dtype in OUTPUT_DTYPES}
"""The format of a plain operand of each dtype."""


@dataclass(frozen=True, slots=True, eq=False)
class PlainOperand:
    """A matrix of values as they are, with what a GEMM asks of an operand.

    Attributes:
        values: float32, bfloat16 or float16 [rows, k], contiguous along k.

    Raises:
        TypeError: no strided tensor, or another dtype.
        ValueError: another number of dimensions, gaps along k, or a tensor whose gradient would be
            lost.
    """

    values: torch.Tensor

    layout: ClassVar[OperandLayout] = CANONICAL
    rotation: ClassVar[Rotation | None] = None
    prescale: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        values = self.values
        if values.layout != torch.strided:
            raise TypeError(
                f"gemm: a must be a strided tensor, got {values.layout}; call .to_dense()"
            )
        if values.is_neg():  # its memory holds the values with the other sign
            raise ValueError(
                "gemm: a must hold its own values, got a view that negates them; call "
                ".resolve_neg()"
            )
        if values.dtype not in FORMATS:
            raise TypeError(
                f"gemm: a plain a must be one of {OUTPUT_DTYPES}, got {values.dtype}; "
                f"mxgemm.quantize(x) makes an MXTensor"
            )
        if values.dim() != 2:
            raise ValueError(f"gemm: a must have shape (M, K), got {tuple(values.shape)}")
        if values.shape[1] > 1 and values.stride(1) != 1:
            raise ValueError(
                f"gemm: a must be contiguous along K, got strides {values.stride()}; call "
                f".contiguous()"
            )
        if values.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                "gemm: a must not require a gradient, which gemm does not record, got one that "
                "does; call .detach() or enter torch.no_grad()"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, k)."""
        return self.values.shape[0], self.values.shape[1]

    @property
    def rows(self) -> int:
        """Number of rows: M."""
        return self.values.shape[0]

    @property
    def stored_k(self) -> int:
        """The contraction: k rounded up to whole blocks of B, whose elements past k are zeros."""
        return round_up(self.values.shape[1], MXFP4.block)

    @property
    def format(self) -> PlainFormat:
        """The format that the values' dtype is."""
        return FORMATS[self.values.dtype]

    @property
    def device(self) -> torch.device:
        """Where the values are."""
        return self.values.device

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """The memory that a product reads."""
        return (self.values,)

    def to(self, device: torch.device | str) -> PlainOperand:
        """Return the operand on `device`; self when it is there already."""
        moved = self.values.to(device)
        return self if moved is self.values else PlainOperand(moved)

    def relayout(self, layout: OperandLayout) -> PlainOperand:
        """Return self: values have one layout."""
        assert layout == CANONICAL
        return self
