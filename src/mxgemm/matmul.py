"""gemm(): check everything, choose, launch. Nothing is written before every check has passed."""

from __future__ import annotations

import torch

from mxgemm import arguments, dispatch
from mxgemm.backends.base import GemmPlan, Operand, PreparedOperand, as_operand, spec_of
from mxgemm.devices import DeviceSpec
from mxgemm.epilogue import Activation, Epilogue
from mxgemm.plain import PlainOperand
from mxgemm.problem import GemmProblem, Numerics
from mxgemm.tensor import CANONICAL, MXTensor


def gemm(
    a: Operand | torch.Tensor,
    b: MXTensor | PreparedOperand,
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
        a: the first operand, shape (M, K): quantized, or the form of it that a plan prepared, or
            a float32, bfloat16 or float16 tensor, which is multiplied as it is (of a backend that
            can; for decoding).
        b: the second operand, shape (N, K), or the form of it that a plan prepared.
        out: where D goes: float32, bfloat16 or float16 [M, N], rows contiguous; made when None.
        out_dtype: dtype of D when `out` is None; bfloat16 by default.
        alpha, beta: factors of the product and of C, finite in FP32.
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
    left, right = _operands(a, b)
    where = left.device
    spec = DeviceSpec.of(where) if device is None else _device(device, where)
    call = arguments.bind(
        (left.shape[0], right.shape[0]),
        where,
        prescale=left.prescale * right.prescale,
        operands=(left.buffers, right.buffers),
        out=out,
        out_dtype=out_dtype,
        alpha=alpha,
        beta=beta,
        c=c,
        bias=bias,
        activation=activation,
        aux_out=aux_out,
        dact=dact,
        aux_in=aux_in,
        bias_grad=bias_grad,
    )
    problem = problem_for(
        left,
        right,
        out_dtype=call.out_dtype,
        epilogue=call.epilogue,
        numerics=_numerics(numerics),
        device=spec,
    )
    plan, planned_a, planned_b = _plan(problem, left, right, backend, relayout=relayout)
    return plan.run(planned_a, planned_b, call.output(), call.args)


def problem_for(
    a: Operand | torch.Tensor,
    b: Operand,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    epilogue: Epilogue | None = None,
    numerics: Numerics = Numerics.DEFAULT,
    device: DeviceSpec | None = None,
) -> GemmProblem:
    """Return the problem that these operands pose, for `mxgemm.plan` and `mxgemm.explain`.

    Example:
        >>> import torch, mxgemm
        >>> a, b = mxgemm.quantize(torch.ones(2, 32)), mxgemm.quantize(torch.ones(3, 32))
        >>> str(mxgemm.problem_for(a, b))
        '2x3x32 -> bfloat16 on cpu, a mxfp4 row_major+row_major, b mxfp4 row_major+row_major'
    """
    a = as_operand(a)
    return GemmProblem(
        m=a.shape[0],
        n=b.shape[0],
        k=a.stored_k,
        device=DeviceSpec.of(a.device) if device is None else device,
        a=spec_of(a),
        b=spec_of(b),
        out_dtype=out_dtype,
        epilogue=epilogue if epilogue is not None else Epilogue(),
        numerics=numerics,
    )


def _plan(
    problem: GemmProblem,
    a: Operand,
    b: MXTensor | PreparedOperand,
    backend: str | None,
    *,
    relayout: bool,
) -> tuple[GemmPlan, Operand, Operand]:
    """Return the plan and the operands it is for; with `relayout`, canonical copies where nobody
    takes them as they are.
    """
    for side, operand in (("a", a), ("b", b)):
        if isinstance(operand, PreparedOperand):
            if backend not in (None, operand.backend):
                raise ValueError(
                    f"gemm on {backend}: {side} was prepared by {operand.backend}; name that "
                    "backend or none"
                )
            backend = operand.backend
    if isinstance(a, PreparedOperand) or isinstance(b, PreparedOperand):
        return dispatch.plan(problem, backend=backend), a, b
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


def _operands(
    a: Operand | torch.Tensor, b: MXTensor | PreparedOperand
) -> tuple[Operand, MXTensor | PreparedOperand]:
    """Return both, checked against each other."""
    left = as_operand(a)
    if not isinstance(left, MXTensor | PlainOperand | PreparedOperand):
        raise TypeError(
            f"gemm: a must be an MXTensor, a prepared operand or a torch.Tensor, got "
            f"{type(a).__name__}; mxgemm.quantize(x) makes one"
        )
    if not isinstance(b, MXTensor | PreparedOperand):
        raise TypeError(
            f"gemm: b must be an MXTensor or a prepared operand, got {type(b).__name__}; "
            f"mxgemm.quantize(w) makes one"
        )
    rotations = spec_of(left).rotation, spec_of(b).rotation
    if left.shape[1] != b.shape[1] or (
        left.stored_k != b.stored_k and rotations[0] == rotations[1]
    ):
        raise ValueError(
            f"gemm: a and b must share the contraction K, got {left.shape[1]} (stored "
            f"{left.stored_k}) and {b.shape[1]} (stored {b.stored_k})"
        )
    if rotations[0] != rotations[1]:
        raise ValueError(
            f"gemm: operands must carry the same rotation, else it does not cancel, got "
            f"{rotations[0]} and "
            f"{rotations[1]}; quantize both with one Rotation"
        )
    if left.device != b.device:
        raise ValueError(
            f"gemm: operands must share a device, got {left.device} and {b.device}; use .to()"
        )
    return left, b


def _numerics(value: str | Numerics) -> Numerics:
    try:
        return Numerics(value)
    except ValueError:
        raise ValueError(f"gemm: numerics must be default or strict, got {value!r}") from None


def _device(device: DeviceSpec | str, where: torch.device) -> DeviceSpec:
    spec = DeviceSpec.parse(device) if isinstance(device, str) else device
    if not isinstance(spec, DeviceSpec):
        raise TypeError(f"gemm: device must be a DeviceSpec or str, got {type(spec).__name__}")
    if spec.torch_device != where:
        raise ValueError(
            f"gemm: operands for {spec} must be on {spec.torch_device}, got {where}; use .to()"
        )
    return spec
