"""MXTensor: an MXFP4 matrix as stored, with everything a consumer must know written on it.

It is no `torch.Tensor`: an operation that does not know it fails loudly instead of dequantizing. It
is a pytree, moves with `.to(device)`, and can be pickled and copied. This module knows storage and
tags; how values become codes is `quantize`'s.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mxgemm import layouts
from mxgemm.errors import LayoutMismatch
from mxgemm.formats import MXFP4, BlockFormat
from mxgemm.layouts import ROW_MAJOR, Layout
from mxgemm.numerics.hadamard import Rotation

CODES_PER_BYTE = 2


@dataclass(frozen=True)
class OperandLayout:
    """How one operand is stored: a layout for its codes and one for its scales. The default is
    canonical row-major.
    """

    codes: Layout = ROW_MAJOR
    scales: Layout = ROW_MAJOR

    def __post_init__(self) -> None:
        for role, layout in (("codes", self.codes), ("scales", self.scales)):
            if role not in layout.holds:
                raise LayoutMismatch(
                    f"OperandLayout: {layout} is a layout of {' and '.join(sorted(layout.holds))}, "
                    f"got it for {role}"
                )

    @classmethod
    def of(cls, codes: str = "row_major", scales: str = "row_major") -> OperandLayout:
        """Return the operand layout by two names of `mxgemm.layouts`."""
        return cls(layouts.get(codes), layouts.get(scales))

    def __str__(self) -> str:
        return f"{self.codes}+{self.scales}"


CANONICAL = OperandLayout()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MXTensor:
    """A quantized matrix of `shape` (rows, k), blocks of 32 along k.

    Attributes:
        codes: uint8 storage of the packed codes, contiguous, the byte matrix [rows, stored_k/2] in
            `layout.codes`; low nibble = even k.
        scales: uint8 storage of the scale bytes, contiguous, the byte matrix
            [rows, stored_k/32] in `layout.scales`.
        shape: logical (rows, k).
        stored_k: k rounded up to whole blocks (and whole rotations); elements past k are zeros and
            GEMMs contract over them.
        layout: the two layout tags.
        format: element and scale format.
        scale_rule: name of the rule that chose the scales; None when it came from elsewhere.
        rotation: the rotation along k that the values carry, None for none.
        prescale: factor that the elements carry relative to their scales, 1 or 3/4; consumers
            divide by it.

    Raises:
        TypeError: shape, layout or rotation of another type.
        LayoutMismatch: the buffers do not fit shape and layout.
        ValueError: stored_k does not fit k, or an unknown prescale.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    shape: tuple[int, int]
    stored_k: int
    layout: OperandLayout = CANONICAL
    format: BlockFormat = MXFP4
    scale_rule: str | None = None
    rotation: Rotation | None = None
    prescale: float = 1.0

    def __post_init__(self) -> None:
        _check_tags(self.shape, self.layout, self.rotation)
        rows, k = self.shape
        block = self.format.block
        if rows < 0 or k < 0 or self.stored_k % block or self.stored_k < k:
            raise ValueError(
                f"MXTensor: stored_k must be a multiple of {block} that holds k, got shape "
                f"{self.shape} and "
                f"stored_k {self.stored_k}"
            )
        if self.rotation is not None and self.stored_k % self.rotation.period:
            raise ValueError(
                f"MXTensor: stored_k must hold whole rotations of {self.rotation.period}, got "
                f"{self.stored_k}"
            )
        if self.prescale not in (1.0, 0.75):
            raise ValueError(f"MXTensor: prescale must be 1 or 0.75, got {self.prescale}")
        self.layout.codes.check(self.codes, rows, self.stored_k // CODES_PER_BYTE)
        self.layout.scales.check(self.scales, rows, self.stored_k // block)
        if not (self.codes.is_contiguous() and self.scales.is_contiguous()):
            # Kernels read both by the layout's offsets from the first byte.
            raise LayoutMismatch(
                f"MXTensor: codes and scales must be contiguous, got strides "
                f"{self.codes.stride()} and {self.scales.stride()}; call .contiguous() on them"
            )
        if self.codes.device != self.scales.device:
            raise ValueError(
                f"MXTensor: codes and scales must share a device, got {self.codes.device} and "
                f"{self.scales.device}"
            )

    @classmethod
    def from_parts(
        cls,
        codes: torch.Tensor,
        scales: torch.Tensor,
        *,
        layout: OperandLayout = CANONICAL,
        shape: tuple[int, int] | None = None,
        rotation: Rotation | None = None,
        scale_rule: str | None = None,
        prescale: float = 1.0,
    ) -> MXTensor:
        """Return an MXTensor over existing buffers, without copying them where they are contiguous.

        Args:
            codes: packed codes as uint8 or float4_e2m1fn_x2 (two codes an element either way).
            scales: E8M0 bytes as uint8 or float8_e8m0fnu.
            layout: how both are stored; it is never guessed.
            shape: logical (rows, k); may be left out for canonical codes [rows, k/2]. Where k is no
                whole number of blocks the codes past it must be zeros: GEMMs contract over them.
            rotation: rotation that the values carry.
            scale_rule: name of the rule that chose the scales, if known.
            prescale: factor that the elements carry relative to their scales.

        Raises:
            TypeError: a dtype that holds neither (FP32 scales are not reinterpreted), or another
                argument of the wrong type.
            LayoutMismatch: the buffers do not fit shape and layout.
        """
        codes = _as_bytes(codes, "codes", torch.float4_e2m1fn_x2)
        scales = _as_bytes(scales, "scales", torch.float8_e8m0fnu)
        _check_tags(shape or (0, 0), layout, rotation)
        if shape is None:
            if layout.codes != ROW_MAJOR or codes.dim() != 2:
                raise LayoutMismatch(
                    f"MXTensor: shape must be given unless codes are a row_major matrix, got "
                    f"{layout.codes} "
                    f"{tuple(codes.shape)}; pass shape=(rows, k)"
                )
            shape = (codes.shape[0], codes.shape[1] * CODES_PER_BYTE)
        block = MXFP4.block
        multiple = rotation.period if rotation is not None else block
        return cls(
            codes=codes,
            scales=scales,
            shape=shape,
            stored_k=layouts.base.round_up(shape[1], multiple),
            layout=layout,
            rotation=rotation,
            scale_rule=scale_rule,
            prescale=prescale,
        )

    @property
    def rows(self) -> int:
        """Number of rows: M of the first operand, N of the second."""
        return self.shape[0]

    @property
    def k(self) -> int:
        """Logical length of the contraction."""
        return self.shape[1]

    @property
    def device(self) -> torch.device:
        """The device of both buffers."""
        return self.codes.device

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """The memory that a product reads."""
        return self.codes, self.scales

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers, pads included."""
        return self.codes.numel() + self.scales.numel()

    @property
    def codes_float4(self) -> torch.Tensor:
        """The codes as a float4_e2m1fn_x2 view of the same memory."""
        return self.codes.view(torch.float4_e2m1fn_x2)

    @property
    def scales_e8m0(self) -> torch.Tensor:
        """The scales as a float8_e8m0fnu view of the same memory."""
        return self.scales.view(torch.float8_e8m0fnu)

    def canonical_codes(self) -> torch.Tensor:
        """Return the packed codes as uint8 [rows, stored_k/2], row-major; no copy when they are
        stored so.
        """
        if self.layout.codes == ROW_MAJOR:
            return self.codes
        return self.layout.codes.unpack(self.codes, self.rows, self.stored_k // CODES_PER_BYTE)

    def canonical_scales(self) -> torch.Tensor:
        """Return the scale bytes as uint8 [rows, stored_k/32], row-major; no copy when they are
        stored so.
        """
        if self.layout.scales == ROW_MAJOR:
            return self.scales
        return self.layout.scales.unpack(self.scales, self.rows, self.stored_k // self.format.block)

    def relayout(self, layout: OperandLayout) -> MXTensor:
        """Return the same values stored in `layout`; self when it already is."""
        if layout == self.layout:
            return self
        return dataclasses.replace(
            self,
            codes=layout.codes.pack(self.canonical_codes()),
            scales=layout.scales.pack(self.canonical_scales()),
            layout=layout,
        )

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> MXTensor:
        """Return the tensor on `device`; self when it is there already. There is no dtype to
        change.
        """
        device = torch.device(device)
        codes = self.codes.to(device, non_blocking=non_blocking)
        scales = self.scales.to(device, non_blocking=non_blocking)
        if codes is self.codes and scales is self.scales:
            return self
        return dataclasses.replace(self, codes=codes, scales=scales)

    def clone(self) -> MXTensor:
        """Return a copy with memory of its own, codes and scales both."""
        return dataclasses.replace(self, codes=self.codes.clone(), scales=self.scales.clone())

    def narrow(self, dim: int, start: int, length: int) -> MXTensor:
        """Return rows (dim 0, a view) or whole blocks along k (dim 1, a copy) start..start+length-1
        of a canonical tensor.

        Raises:
            ValueError: the range is outside, or cuts through a block or a rotation along k.
            LayoutMismatch: the tensor is not canonical.
        """
        if self.layout != CANONICAL:
            raise LayoutMismatch(
                f"narrow: takes a {CANONICAL} tensor, got {self.layout}; call .relayout(CANONICAL) "
                f"first"
            )
        if dim not in (0, 1) or start < 0 or length < 0 or start + length > self.shape[dim]:
            raise ValueError(
                f"narrow: range must lie inside shape {self.shape}, got dim {dim}, "
                f"{start}..{start + length}"
            )
        if dim == 0:
            codes, scales = self.codes[start : start + length], self.scales[start : start + length]
            return dataclasses.replace(self, codes=codes, scales=scales, shape=(length, self.k))
        step = self.rotation.period if self.rotation is not None else self.format.block
        if start % step or (length % step and start + length != self.k):
            raise ValueError(
                f"narrow: along k a range must start and end at multiples of {step}, got "
                f"{start}..{start + length}"
            )
        stored = layouts.base.round_up(length, step)
        half, block = CODES_PER_BYTE, self.format.block
        return dataclasses.replace(
            self,
            codes=self.codes[:, start // half : (start + stored) // half].contiguous(),
            scales=self.scales[:, start // block : (start + stored) // block].contiguous(),
            shape=(self.rows, length),
            stored_k=stored,
        )

    def split(self, size: int, dim: int = 0) -> tuple[MXTensor, ...]:
        """Return consecutive pieces of `size` along `dim`, the last one shorter, as torch.split
        does.
        """
        if size < 1 or dim not in (0, 1):
            raise ValueError(f"split: size must be at least 1 and dim 0 or 1, got {size} and {dim}")
        total = self.shape[dim]
        starts = range(0, max(total, 1), size)
        return tuple(self.narrow(dim, at, min(size, total - at)) for at in starts)

    def __repr__(self) -> str:
        extras = [str(self.layout)]
        if self.scale_rule is not None:
            extras.append(f"rule={self.scale_rule}")
        if self.rotation is not None:
            extras.append(str(self.rotation))
        if self.prescale != 1.0:
            extras.append(f"prescale={self.prescale:g}")
        size = f"{self.format.name} {self.rows}x{self.k} on {self.device}"
        return f"MXTensor({size}, {', '.join(extras)})"


@dataclass(frozen=True, slots=True)
class MXPair:
    """Both quantizations of one matrix x [M, K], for training: x along K, and x.T along M.

    `along_k` has shape (M, K), `along_m` has shape (K, M); the latter's stored contraction is M
    rounded up to whole blocks.
    """

    along_k: MXTensor
    along_m: MXTensor

    def to(self, device: torch.device | str) -> MXPair:
        """Return both on `device`."""
        return MXPair(self.along_k.to(device), self.along_m.to(device))


def _check_tags(shape: object, layout: object, rotation: object) -> None:
    sizes = shape if isinstance(shape, tuple) and len(shape) == 2 else (None,)
    if not all(isinstance(size, int | torch.SymInt) for size in sizes):
        raise TypeError(f"MXTensor: shape must be a tuple of two ints, got {shape!r}")
    if not isinstance(layout, OperandLayout):
        raise TypeError(
            f"MXTensor: layout must be an OperandLayout, got {type(layout).__name__}; "
            f"OperandLayout.of(codes, scales) makes one from names"
        )
    if not isinstance(rotation, Rotation | None):
        raise TypeError(
            f"MXTensor: rotation must be a Rotation or None, got {type(rotation).__name__}; "
            f"Rotation(size) makes one"
        )


def _as_bytes(buffer: torch.Tensor, role: str, view: torch.dtype) -> torch.Tensor:
    if not isinstance(buffer, torch.Tensor):
        raise TypeError(f"MXTensor: {role} must be a torch.Tensor, got {type(buffer).__name__}")
    if buffer.dtype not in (torch.uint8, view):
        raise TypeError(
            f"MXTensor: {role} must be torch.uint8 or {view}, got {buffer.dtype}; "
            + (
                "mxgemm.numerics.e8m0.from_floats checks and converts"
                if role == "scales"
                else "pack them first"
            )
        )
    return buffer.view(torch.uint8).contiguous()


def _flatten(tensor: MXTensor) -> tuple[list[Any], Any]:
    static = (tensor.shape, tensor.stored_k, tensor.layout, tensor.format)
    return [tensor.codes, tensor.scales], (
        *static,
        tensor.scale_rule,
        tensor.rotation,
        tensor.prescale,
    )


def _unflatten(buffers: Any, context: Any) -> MXTensor:
    # A tree map may put anything in the leaves (a device, None), so the buffers are not checked
    # here.
    tensor = object.__new__(MXTensor)
    shape, stored_k, layout, block_format, scale_rule, rotation, prescale = context
    for name, value in zip(
        (f.name for f in dataclasses.fields(MXTensor)),
        (*buffers, shape, stored_k, layout, block_format, scale_rule, rotation, prescale),
        strict=True,
    ):
        object.__setattr__(tensor, name, value)
    return tensor


pytree.register_pytree_node(
    MXTensor, _flatten, _unflatten, serialized_type_name="mxgemm.tensor.MXTensor"
)
pytree.register_pytree_node(
    MXPair,
    lambda pair: ([pair.along_k, pair.along_m], None),
    lambda children, _: MXPair(*children),
    serialized_type_name="mxgemm.tensor.MXPair",
)
