"""gemm(): check everything, choose, launch. Nothing is written before every check has passed."""

from __future__ import annotations

import math

import torch

from mxgemm import dispatch
from mxgemm.backends.base import GemmPlan, Operand, PreparedOperand
from mxgemm.devices import DeviceSpec
from mxgemm.epilogue import OUTPUT_DTYPES, Activation, Epilogue, EpilogueArgs
from mxgemm.problem import GemmProblem, Numerics, OperandSpec
from mxgemm.tensor import CANONICAL, MXTensor


def gemm(
    a: MXTensor,
    b: Operand,
    *,
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
    backend: str | None = None,
    numerics: str | Numerics = Numerics.DEFAULT,
    device: DeviceSpec | str | None = None,
    relayout: bool = False,
) -> torch.Tensor:
    """Return D = act(alpha * A @ B.T + bias) + beta * C, or the backward form; see
    `mxgemm.epilogue`.

    Args:
        a: the first operand, shape (M, K).
        b: the second operand, shape (N, K), or the form of it that a plan prepared.
        out: where D goes: float32, bfloat16 or float16 [M, N], rows contiguous; made when None.
        out_dtype: dtype of D when `out` is None; bfloat16 by default.
        alpha, beta: finite factors of the product and of C.
        c: [M, N] added with beta; `out` itself when None and beta is not 0.
        bias: [N].
        activation: "none", "relu", "gelu" (erf) or "gelu_tanh".
        aux_out: [M, N], receives z = alpha * A @ B.T + bias for the backward pass.
        dact: backward form: the activation whose derivative at `aux_in` multiplies the product.
        aux_in: [M, N], the z that the forward pass wrote.
        bias_grad: float32 [N], receives the column sums of D.
        backend: name of the backend to use; never replaced by another. None lets the first that
            accepts take it.
        numerics: "default" (the backend's declared accumulation) or "strict" (at least FP32's).
        device: where to run when that is not where the operands are: "gfx1250:emulated".
        relayout: convert operands to canonical layout where the chosen backend takes no other.

    Returns:
        `out`.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: shapes, devices or values that do not fit.
        LayoutMismatch: an operand's layout is not what the backend takes.
        UnsupportedProblem, BackendUnavailable: nobody, or not the named backend, can do it; every
        reason is in the message.

    Example:
        >>> import torch, mxgemm
        >>> a, b = mxgemm.quantize(torch.ones(2, 32)), mxgemm.quantize(torch.ones(3, 32))
        >>> mxgemm.gemm(a, b, out_dtype=torch.float32).tolist()
        [[32.0, 32.0, 32.0], [32.0, 32.0, 32.0]]
    """
    _check_operands(a, b)
    _check_factors(alpha, beta)
    _check_out(a, b, out, out_dtype)
    if beta != 0 and c is None:
        if out is None:
            raise ValueError(f"gemm: beta={beta:g} needs c, or out to accumulate into, got neither")
        c = out
    if c is not None and beta == 0:
        raise ValueError("gemm: c is added with beta, got beta=0; pass beta, or leave c out")
    shape = (a.rows, b.shape[0])
    tensors = {"c": c, "bias": bias, "aux_out": aux_out, "aux_in": aux_in, "bias_grad": bias_grad}
    _check_tensors(tensors, shape, a.device)
    _check_overlap(out, c, aux_out)
    factor = alpha / (a.prescale * b.prescale)
    epilogue = Epilogue(
        has_alpha=factor != 1.0,
        bias=_dtype(bias),
        activation=_activation(activation, "activation"),
        aux_out=_dtype(aux_out),
        dact=_activation(dact, "dact"),
        aux_in=_dtype(aux_in),
        c=_dtype(c),
        bias_grad=bias_grad is not None,
    )
    spec = DeviceSpec.of(a.device) if device is None else _device(device, a.device)
    dtype = out.dtype if out is not None else out_dtype or torch.bfloat16
    problem = problem_for(
        a, b, out_dtype=dtype, epilogue=epilogue, numerics=_numerics(numerics), device=spec
    )
    plan, a, b = _plan(problem, a, b, backend, relayout=relayout)
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=a.device)
    args = EpilogueArgs(
        alpha=factor,
        beta=beta,
        bias=bias,
        c=c,
        aux_out=aux_out,
        aux_in=aux_in,
        bias_grad=bias_grad,
    )
    return plan.run(a, b, out, args)


def problem_for(
    a: Operand,
    b: Operand,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    epilogue: Epilogue | None = None,
    numerics: Numerics = Numerics.DEFAULT,
    device: DeviceSpec | None = None,
) -> GemmProblem:
    """Return the problem that these operands pose, for `mxgemm.plan` and `mxgemm.explain`."""
    return GemmProblem(
        m=a.shape[0],
        n=b.shape[0],
        k=a.stored_k,
        device=DeviceSpec.of(a.device) if device is None else device,
        a=_spec(a),
        b=_spec(b),
        out_dtype=out_dtype,
        epilogue=epilogue if epilogue is not None else Epilogue(),
        numerics=numerics,
    )


def _plan(
    problem: GemmProblem, a: MXTensor, b: Operand, backend: str | None, *, relayout: bool
) -> tuple[GemmPlan, MXTensor, Operand]:
    """Return the plan and the operands it is for; with `relayout`, canonical copies where nobody
    takes them as they are.
    """
    if isinstance(b, PreparedOperand):
        if backend not in (None, b.backend):
            raise ValueError(
                f"gemm on {backend}: b was prepared by {b.backend}; name that backend or none"
            )
        return dispatch.plan(problem, backend=b.backend), a, b
    if not relayout or (a.layout == CANONICAL and b.layout == CANONICAL):
        return dispatch.plan(problem, backend=backend), a, b
    if dispatch.accepts(problem, backend=backend):
        return dispatch.plan(problem, backend=backend), a, b
    a, b = a.relayout(CANONICAL), b.relayout(CANONICAL)
    canonical = problem_for(
        a,
        b,
        out_dtype=problem.out_dtype,
        epilogue=problem.epilogue,
        numerics=problem.numerics,
        device=problem.device,
    )
    return dispatch.plan(canonical, backend=backend), a, b


def _spec(operand: Operand) -> OperandSpec:
    return operand.spec if isinstance(operand, PreparedOperand) else OperandSpec.of(operand)


def _check_operands(a: MXTensor, b: Operand) -> None:
    if not isinstance(a, MXTensor):
        raise TypeError(
            f"gemm: a must be an MXTensor, got {type(a).__name__}; mxgemm.quantize(x) makes one"
        )
    if not isinstance(b, MXTensor | PreparedOperand):
        raise TypeError(
            f"gemm: b must be an MXTensor or a prepared operand, got {type(b).__name__}; "
            f"mxgemm.quantize(w) makes one"
        )
    if a.shape[1] != b.shape[1] or a.stored_k != b.stored_k:
        raise ValueError(
            f"gemm: a and b must share the contraction K, got {a.shape[1]} (stored {a.stored_k}) "
            f"and "
            f"{b.shape[1]} (stored {b.stored_k})"
        )
    rotations = a.rotation, _spec(b).rotation
    if rotations[0] != rotations[1]:
        raise ValueError(
            f"gemm: operands must carry the same rotation, else it does not cancel, got "
            f"{rotations[0]} and "
            f"{rotations[1]}; quantize both with one Rotation"
        )
    if a.device != b.device:
        raise ValueError(
            f"gemm: operands must share a device, got {a.device} and {b.device}; use .to()"
        )


def _check_factors(alpha: float, beta: float) -> None:
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not math.isfinite(value):
            raise ValueError(f"gemm: {name} must be finite, got {value}")


def _check_out(
    a: MXTensor, b: Operand, out: torch.Tensor | None, out_dtype: torch.dtype | None
) -> None:
    dtype = out_dtype if out is None else out.dtype
    if dtype is not None and dtype not in OUTPUT_DTYPES:
        raise TypeError(f"gemm: output dtype must be one of {OUTPUT_DTYPES}, got {dtype}")
    if out is None:
        return
    if out_dtype not in (None, out.dtype):
        raise ValueError(
            f"gemm: out_dtype must be out's {out.dtype}, got {out_dtype}; leave it out"
        )
    _check_tensors({"out": out}, (a.rows, b.shape[0]), a.device)


def _check_tensors(
    tensors: dict[str, torch.Tensor | None], shape: tuple[int, int], device: torch.device
) -> None:
    """Raise unless each tensor is [N] (bias, bias_grad) or [M, N] on `device` with rows that are
    contiguous.
    """
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"gemm: {name} must be a torch.Tensor, got {type(tensor).__name__}")
        expected = shape[1:] if name in ("bias", "bias_grad") else shape
        if tuple(tensor.shape) != expected:
            raise ValueError(f"gemm: {name} must have shape {expected}, got {tuple(tensor.shape)}")
        dtypes = (torch.float32,) if name == "bias_grad" else OUTPUT_DTYPES
        if tensor.dtype not in dtypes:
            raise TypeError(f"gemm: {name} must be one of {dtypes}, got {tensor.dtype}")
        if tensor.device != device:
            raise ValueError(
                f"gemm: {name} must be on {device} like the operands, got {tensor.device}"
            )
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ValueError(
                f"gemm: {name} must be contiguous along N, got strides {tensor.stride()}; call "
                f".contiguous()"
            )
        if name in ("out", "aux_out") and shape[0] > 1 and tensor.stride(0) < shape[1]:
            raise ValueError(
                f"gemm: rows of {name} must not overlap, got strides {tensor.stride()} for "
                f"{shape[1]} columns"
            )


def _check_overlap(
    out: torch.Tensor | None, c: torch.Tensor | None, aux_out: torch.Tensor | None
) -> None:
    """Raise where a tensor that is written shares memory with another one, except that C may be
    `out` itself.
    """
    for name, tensor, other in (("c", c, out), ("aux_out", aux_out, out), ("aux_out", aux_out, c)):
        if tensor is None or other is None or not tensor.numel():
            continue
        is_out = name == "c" and _same_view(tensor, other)
        first, second = _span(tensor), _span(other)
        if not is_out and first[0] < second[1] and second[0] < first[1]:
            raise ValueError(
                f"gemm: {name} must not overlap another tensor of the call unless c is out itself; "
                f"pass a copy"
            )


def _same_view(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.data_ptr() == y.data_ptr() and x.stride() == y.stride() and x.dtype == y.dtype


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the half-open range of addresses from a tensor's first to its last element."""
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def _activation(value: str | Activation, name: str) -> Activation:
    try:
        return Activation(value)
    except ValueError:
        known = ", ".join(Activation)
        raise ValueError(f"gemm: {name} must be one of {known}, got {value!r}") from None


def _numerics(value: str | Numerics) -> Numerics:
    try:
        return Numerics(value)
    except ValueError:
        raise ValueError(f"gemm: numerics must be default or strict, got {value!r}") from None


def _device(device: DeviceSpec | str, where: torch.device) -> DeviceSpec:
    spec = DeviceSpec.parse(device) if isinstance(device, str) else device
    if spec.torch_device != where:
        raise ValueError(
            f"gemm: operands for {spec} must be on {spec.torch_device}, got {where}; use .to()"
        )
    return spec


def _dtype(tensor: torch.Tensor | None) -> torch.dtype | None:
    return None if tensor is None else tensor.dtype
