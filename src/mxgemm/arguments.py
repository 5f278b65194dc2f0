"""The arguments of one GEMM call: checked against its shape, described as an Epilogue, bound to an
EpilogueArgs.

`gemm()` and a plan that is called share this, so that both refuse the same mistakes with the same
words, before anything is written.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from mxgemm.epilogue import (
    IDENTITY,
    NO_ARGS,
    OUTPUT_DTYPES,
    Activation,
    Epilogue,
    EpilogueArgs,
)

Buffers = tuple[torch.Tensor, ...]
LARGEST_FP32 = torch.finfo(torch.float32).max
WRITTEN = ("out", "aux_out", "bias_grad")
"""The tensors of a call that receive results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What one call asks for, checked.

    Attributes:
        shape: (M, N).
        device: where the output is made.
        out: the caller's output, or None.
        out_dtype: dtype of the output.
        epilogue: the description.
        args: the values and tensors.
    """

    shape: tuple[int, int]
    device: torch.device
    out: torch.Tensor | None
    out_dtype: torch.dtype
    epilogue: Epilogue
    args: EpilogueArgs

    def output(self) -> torch.Tensor:
        """Return the caller's output, or a new one."""
        if self.out is not None:
            return self.out
        return torch.empty(self.shape, dtype=self.out_dtype, device=self.device)


def bind(
    shape: tuple[int, int],
    device: torch.device,
    *,
    prescale: float = 1.0,
    operands: tuple[Buffers, Buffers] = ((), ()),
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str | Activation = Activation.NONE,
    aux_out: torch.Tensor | None = None,
    dact: str | Activation = Activation.NONE,
    aux_in: torch.Tensor | None = None,
    bias_grad: torch.Tensor | None = None,
) -> Call:
    """Return the call that these arguments of `mxgemm.gemm` describe.

    Args:
        shape: (M, N).
        device: the operands' device.
        prescale: product of the operands' prescales, which alpha is divided by.
        operands: the memory of A and of B that is read.
        out, out_dtype, alpha, beta, c, bias, activation, aux_out, dact, aux_in, bias_grad: see
            `mxgemm.gemm`.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: shapes, devices, strides or values that do not fit, or tensors that overlap.
    """
    factor, beta = _factor("alpha", alpha, divided_by=prescale), _factor("beta", beta)
    dtype = _out_dtype(out, out_dtype)
    if beta != 0 and c is None:
        if out is None:
            raise ValueError(f"gemm: beta={beta:g} needs c, or out to accumulate into, got neither")
        c = out
    if c is not None and beta == 0:
        raise ValueError("gemm: c is added with beta, got beta=0; pass beta, or leave c out")
    tensors = {
        "out": out,
        "c": c,
        "aux_out": aux_out,
        "aux_in": aux_in,
        "bias": bias,
        "bias_grad": bias_grad,
    }
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    for name, tensor in given.items():
        _check_tensor(name, tensor, shape, device)
        if name in WRITTEN:
            _check_apart(name, tensor, operands)
    if len(given) > 1:
        _check_overlap(given)
    act, slope = _activation(activation, "activation"), _activation(dact, "dact")
    beside_out = len(given) - ("out" in given)
    if beside_out == 0 and factor == 1.0 and act is slope is Activation.NONE:
        # The most frequent call is also the one whose checks weigh most beside its work.
        epilogue, args = IDENTITY, NO_ARGS
    else:
        epilogue = Epilogue(
            has_alpha=factor != 1.0,
            bias=_dtype(bias),
            activation=act,
            aux_out=_dtype(aux_out),
            dact=slope,
            aux_in=_dtype(aux_in),
            c=_dtype(c),
            bias_grad=bias_grad is not None,
        )
        args = EpilogueArgs(
            alpha=factor,
            beta=beta,
            bias=bias,
            c=c,
            aux_out=aux_out,
            aux_in=aux_in,
            bias_grad=bias_grad,
        )
    return Call(shape=shape, device=device, out=out, out_dtype=dtype, epilogue=epilogue, args=args)


def _factor(name: str, value: float, *, divided_by: float = 1.0) -> float:
    """Return value / divided_by, which the epilogue multiplies by in FP32."""
    if not isinstance(value, int | float):
        raise TypeError(f"gemm: {name} must be a Python number, got {type(value).__name__}")
    # Compared before the division: an int may be too large to become a float.
    if not abs(value) <= LARGEST_FP32 * divided_by:
        raise ValueError(f"gemm: {name} must be finite in FP32, got {value}")
    return value / divided_by


def _out_dtype(out: torch.Tensor | None, out_dtype: torch.dtype | None) -> torch.dtype:
    if out is not None:
        if not isinstance(out, torch.Tensor):
            raise TypeError(f"gemm: out must be a torch.Tensor, got {type(out).__name__}")
        if out_dtype not in (None, out.dtype):
            raise ValueError(
                f"gemm: out_dtype must be out's {out.dtype}, got {out_dtype}; leave it out"
            )
        return out.dtype
    if out_dtype is None:
        return torch.bfloat16
    if out_dtype not in OUTPUT_DTYPES:
        raise TypeError(f"gemm: output dtype must be one of {OUTPUT_DTYPES}, got {out_dtype}")
    return out_dtype


def _check_tensor(
    name: str, tensor: torch.Tensor, shape: tuple[int, int], device: torch.device
) -> None:
    """Raise unless `tensor` is [N] (bias, bias_grad) or [M, N] on `device` with contiguous rows
    that do not overlap.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"gemm: {name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise TypeError(
            f"gemm: {name} must be a strided tensor, got {tensor.layout}; call .to_dense()"
        )
    if tensor.is_neg():  # its memory holds the values with the other sign
        raise ValueError(
            f"gemm: {name} must hold its own values, got a view that negates them; call "
            f".resolve_neg()"
        )
    expected = shape[1:] if name in ("bias", "bias_grad") else shape
    if tuple(tensor.shape) != expected:
        raise ValueError(f"gemm: {name} must have shape {expected}, got {tuple(tensor.shape)}")
    dtypes = (torch.float32,) if name == "bias_grad" else OUTPUT_DTYPES
    if tensor.dtype not in dtypes:
        raise TypeError(f"gemm: {name} must be one of {dtypes}, got {tensor.dtype}")
    if tensor.device != device:
        raise ValueError(f"gemm: {name} must be on {device} like the operands, got {tensor.device}")
    contiguous = tensor.is_contiguous()
    if not contiguous and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(
            f"gemm: {name} must be contiguous along N, got strides {tensor.stride()}; call "
            f".contiguous()"
        )
    if name in WRITTEN and tensor.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(
            f"gemm: {name} must not be an inference tensor outside of inference mode, where torch "
            f"forbids to write it; call .clone()"
        )
    is_written = name in ("out", "aux_out")
    if not contiguous and is_written and shape[0] > 1 and tensor.stride(0) < shape[1]:
        raise ValueError(
            f"gemm: rows of {name} must not overlap, got strides {tensor.stride()} for {shape[1]} "
            f"columns"
        )


def _check_overlap(tensors: dict[str, torch.Tensor]) -> None:
    """Raise where a tensor that is written shares memory with another one, except that C may be
    `out` itself.
    """
    given = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
    for written, other in itertools.product(WRITTEN, given):
        if written not in given or other == written:
            continue
        first, second = given[written], given[other]
        is_out = (written, other) == ("out", "c") and _same_view(first, second)
        if not is_out and _overlap(first, second):
            raise ValueError(
                f"gemm: {other} must not overlap {written}, which is written, unless c is out "
                f"itself, got both in one memory; pass a copy"
            )


def _check_apart(name: str, written: torch.Tensor, operands: tuple[Buffers, Buffers]) -> None:
    """Raise where a tensor that is written shares memory with an operand."""
    start = written.data_ptr()
    end = start + span_bytes(written)
    for side, buffers in zip("ab", operands, strict=True):
        for buffer in buffers:
            # Most lie behind or far before; each comparison is part of every call.
            first = buffer.data_ptr()
            if first < end and start < first + span_bytes(buffer) and _overlap(written, buffer):
                raise ValueError(
                    f"gemm: {name} must not overlap {side}, which is read, got both in one "
                    f"memory; pass another {name}"
                )


def _same_view(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.data_ptr() == y.data_ptr() and x.stride() == y.stride() and x.dtype == y.dtype


def _overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Return whether two tensors with contiguous rows share a byte; of matrices with different row
    strides, and of tensors of other dimensions, whether their address ranges do.
    """
    if x.data_ptr() > y.data_ptr():
        x, y = y, x
    distance = y.data_ptr() - x.data_ptr()
    if distance >= span_bytes(x):
        return False
    pitch = x.stride(0) * x.element_size() if x.dim() == 2 else 0
    if not pitch or y.dim() != 2 or y.stride(0) * y.element_size() != pitch:
        return True
    # Columns of one buffer: both repeat at the same pitch, so one period decides.
    column = distance % pitch
    return column < _row_bytes(x) or column + _row_bytes(y) > pitch


def _row_bytes(tensor: torch.Tensor) -> int:
    return tensor.shape[-1] * tensor.element_size()


def span_bytes(tensor: torch.Tensor) -> int:
    """Return the number of bytes from a tensor's first to the end of its last element."""
    if tensor.is_contiguous():
        return tensor.nbytes
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return (last + 1) * tensor.element_size()


def _activation(value: str | Activation, name: str) -> Activation:
    if isinstance(value, Activation):
        return value
    try:
        return Activation(value)
    except ValueError:
        known = ", ".join(Activation)
        raise ValueError(f"gemm: {name} must be one of {known}, got {value!r}") from None


def _dtype(tensor: torch.Tensor | None) -> torch.dtype | None:
    return None if tensor is None else tensor.dtype
