"""GemmProblem: everything a backend needs to say yes or no and to plan, as one hashable value
without tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch

from mxgemm.devices import DeviceSpec
from mxgemm.epilogue import IDENTITY, OUTPUT_DTYPES, Epilogue
from mxgemm.formats import MXFP4, BlockFormat
from mxgemm.numerics.hadamard import Rotation
from mxgemm.tensor import CANONICAL, MXTensor, OperandLayout


class Numerics(StrEnum):
    """What the accumulation must keep: the backend's declared one, or at least plain FP32's."""

    DEFAULT = "default"
    STRICT = "strict"


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """One operand as backends see it.

    Attributes:
        format: element and scale format.
        layout: how codes and scales are stored.
        rotation: the rotation that the values carry along the contraction.
        prepared_by: name of the backend whose prepared form this is, None for an MXTensor.
    """

    format: BlockFormat = MXFP4
    layout: OperandLayout = CANONICAL
    rotation: Rotation | None = None
    prepared_by: str | None = None

    @classmethod
    def of(cls, tensor: MXTensor) -> OperandSpec:
        """Return the spec of a tensor."""
        return cls(tensor.format, tensor.layout, tensor.rotation)

    def describes(self, tensor: MXTensor) -> bool:
        """Return whether this is the spec of `tensor`; cheaper than to make that one and compare,
        because the two mostly share their parts.
        """
        return (
            self.prepared_by is None
            and (self.format is tensor.format or self.format == tensor.format)
            and (self.layout is tensor.layout or self.layout == tensor.layout)
            and (self.rotation is tensor.rotation or self.rotation == tensor.rotation)
        )

    def __str__(self) -> str:
        parts = [
            self.format.name,
            f"prepared by {self.prepared_by}" if self.prepared_by else str(self.layout),
        ]
        return " ".join(parts + ([str(self.rotation)] if self.rotation is not None else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmProblem:
    """D[M, N] = epilogue(A[M, K] @ B[N, K].T).

    Attributes:
        m, n: rows of A and of B.
        k: the stored contraction, a multiple of 32.
        a, b: the operands.
        out_dtype: dtype of D: float32, bfloat16 or float16.
        epilogue: what happens on the way out.
        numerics: what the accumulation must keep.
        device: where it runs.

    Raises:
        ValueError: a negative size, k that is no multiple of the block, or another dtype.
    """

    m: int
    n: int
    k: int
    device: DeviceSpec
    a: OperandSpec = OperandSpec()
    b: OperandSpec = OperandSpec()
    out_dtype: torch.dtype = torch.float32
    epilogue: Epilogue = IDENTITY
    numerics: Numerics = Numerics.DEFAULT

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k) < 0 or self.k % self.a.format.block:
            raise ValueError(
                f"GemmProblem: sizes must not be negative and k a multiple of "
                f"{self.a.format.block}, "
                f"got m={self.m} n={self.n} k={self.k}"
            )
        if self.out_dtype not in OUTPUT_DTYPES:
            raise ValueError(
                f"GemmProblem: out_dtype must be one of {OUTPUT_DTYPES}, got {self.out_dtype}"
            )

    @property
    def flops(self) -> int:
        """Multiplications and additions of the product: 2 M N K."""
        return 2 * self.m * self.n * self.k

    def __str__(self) -> str:
        size = f"{self.m}x{self.n}x{self.k} -> {str(self.out_dtype)[6:]}"
        text = f"{size} on {self.device}, a {self.a}, b {self.b}"
        if not self.epilogue.is_identity:
            text += f", {self.epilogue}"
        return text + (f", {self.numerics}" if self.numerics is not Numerics.DEFAULT else "")
