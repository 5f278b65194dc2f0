"""What happens to a product on its way out: one formula, its description, its tensors, and its
definition in torch.

    z = alpha * (A @ B.T) + bias;   aux = z;   D = act(z) + beta * C           forward
    z = alpha * (A @ B.T);                     D = z * act'(aux) + beta * C    backward (`dact`)
    bias_grad[n] = sum over m of D[m, n]

all in FP32 (or wider) and rounded once to the output's dtype. `bias_grad` is that of the layer
below: D is its dY, taken in FP32 before rounding, so that no quantized or rotated value enters it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch

OUTPUT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Activation(StrEnum):
    """An elementwise function and its derivative."""

    NONE = "none"
    RELU = "relu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """The description of an epilogue: hashable, no tensors, no values; dtypes are those of the
    tensors that take part.

    Attributes:
        has_alpha: alpha may differ from 1.
        bias: dtype of the bias [N], None for none. Forward only.
        activation: act.
        aux_out: dtype of the tensor [M, N] that receives z, None for none. Forward only.
        dact: the activation whose derivative multiplies z, NONE for a forward epilogue.
        aux_in: dtype of the tensor [M, N] that holds the forward's z; with `dact` only, and needed
            by it.
        c: dtype of C [M, N] when beta differs from 0, None when it is 0.
        bias_grad: a float32 [N] receives the column sums of D.

    Raises:
        ValueError: fields that contradict each other, or a dtype that is not float32, bfloat16 or
        float16.
    """

    has_alpha: bool = False
    bias: torch.dtype | None = None
    activation: Activation = Activation.NONE
    aux_out: torch.dtype | None = None
    dact: Activation = Activation.NONE
    aux_in: torch.dtype | None = None
    c: torch.dtype | None = None
    bias_grad: bool = False

    def __post_init__(self) -> None:
        for name in ("bias", "aux_out", "aux_in", "c"):
            dtype = getattr(self, name)
            if dtype is not None and dtype not in OUTPUT_DTYPES:
                raise ValueError(f"epilogue: {name} must be one of {OUTPUT_DTYPES}, got {dtype}")
        if self.dact is Activation.NONE:
            if self.aux_in is not None:
                raise ValueError(
                    "epilogue: aux_in is for dact, got it without; name the activation in dact"
                )
            return
        if self.aux_in is None:
            raise ValueError(
                f"epilogue: dact {self.dact} needs aux_in, the z that the forward pass wrote"
            )
        forward = (
            self.activation is not Activation.NONE
            or self.bias is not None
            or self.aux_out is not None
        )
        if forward:
            raise ValueError(
                "epilogue: dact is the backward form, got it with bias, activation or aux_out; "
                "choose one"
            )

    @property
    def is_identity(self) -> bool:
        """Whether D is just A @ B.T."""
        return self == IDENTITY

    def __str__(self) -> str:
        parts = ["alpha"] if self.has_alpha else []
        parts += [
            f"{name}:{str(dtype)[6:]}"
            for name in ("bias", "aux_out", "c")
            if (dtype := getattr(self, name))
        ]
        parts += [str(self.activation)] if self.activation is not Activation.NONE else []
        parts += (
            [f"d{self.dact}:{str(self.aux_in)[6:]}"] if self.dact is not Activation.NONE else []
        )
        parts += ["bias_grad"] if self.bias_grad else []
        return "+".join(parts) or "identity"


IDENTITY = Epilogue()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpilogueArgs:
    """The values and tensors of one call; which are there is what the problem's `Epilogue` says.

    Attributes:
        alpha: factor of the product, the operands' prescale already folded in.
        beta: factor of C.
        bias: [N].
        c: [M, N], may be the output itself.
        aux_out: [M, N], written.
        aux_in: [M, N], read.
        bias_grad: float32 [N], written.
    """

    alpha: float = 1.0
    beta: float = 0.0
    bias: torch.Tensor | None = None
    c: torch.Tensor | None = None
    aux_out: torch.Tensor | None = None
    aux_in: torch.Tensor | None = None
    bias_grad: torch.Tensor | None = None


NO_ARGS = EpilogueArgs()

GELU_TANH_SCALE = math.sqrt(2 / math.pi)
GELU_TANH_CUBIC = 0.044715


def activate(z: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Return act(z) elementwise, in z's dtype.

    relu keeps NaN; gelu is z * Phi(z) with the exact normal distribution; gelu_tanh is its tanh
    approximation.
    """
    match activation:
        case Activation.NONE:
            return z
        case Activation.RELU:
            return torch.relu(z)
        case Activation.GELU:
            return torch.nn.functional.gelu(z)
        case Activation.GELU_TANH:
            return torch.nn.functional.gelu(z, approximate="tanh")


def derivative(z: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Return act'(z) elementwise, in z's dtype; relu's derivative is 0 at 0 and NaN at NaN."""
    match activation:
        case Activation.NONE:
            return torch.ones_like(z)
        case Activation.RELU:
            return torch.where(z.isnan(), z, (z > 0).to(z.dtype))
        case Activation.GELU:
            density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
            return 0.5 * (1 + torch.erf(z / math.sqrt(2))) + z * density
        case Activation.GELU_TANH:
            inner = GELU_TANH_SCALE * (z + GELU_TANH_CUBIC * z**3)
            tanh = torch.tanh(inner)
            slope = GELU_TANH_SCALE * (1 + 3 * GELU_TANH_CUBIC * z * z)
            return 0.5 * (1 + tanh) + 0.5 * z * (1 - tanh * tanh) * slope


def apply(product: torch.Tensor, epilogue: Epilogue, args: EpilogueArgs, out: torch.Tensor) -> None:
    """Write D into `out` by the definition: what every fused epilogue is compared with.

    Args:
        product: A @ B.T, float32 or float64 [M, N]; the arithmetic is done in its dtype, then
            rounded to FP32 and once more to out's dtype.
        epilogue: what to do.
        args: the values and tensors, as `epilogue` says.
        out: float32, bfloat16 or float16 [M, N]; may be args.c.
    """
    wide = product.dtype
    z = product * args.alpha if epilogue.has_alpha else product
    if args.bias is not None:
        z = z + args.bias.to(wide)
    if args.aux_in is not None:
        d = z * derivative(args.aux_in.to(wide), epilogue.dact)
    else:
        if args.aux_out is not None:
            args.aux_out.copy_(z.float())
        d = activate(z, epilogue.activation)
    if args.c is not None:
        d = d + args.beta * args.c.to(wide)
    if args.bias_grad is not None:
        args.bias_grad.copy_(d.sum(dim=0))
    out.copy_(d.float())
