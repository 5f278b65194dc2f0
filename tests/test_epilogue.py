"""The epilogue's definition, which every backend is compared with: against formulas of its own."""

import itertools
import math

import pytest
import torch

from mxgemm.epilogue import (
    IDENTITY,
    Activation,
    Epilogue,
    EpilogueArgs,
    activate,
    apply,
    derivative,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
POINTS = [0.0, -0.0, 1e-8, -1e-8, 0.1, -0.1, 0.5, 1.0, -1.0, 2.5, -2.5, 6.0, -6.0, 30.0, -30.0]


def normal_cdf(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2


def tanh_argument(z: float) -> float:
    return math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)


FORMULA = {
    Activation.NONE: lambda z: z,
    Activation.RELU: lambda z: max(z, 0.0),
    Activation.GELU: lambda z: z * normal_cdf(z),
    Activation.GELU_TANH: lambda z: z * (1 + math.tanh(tanh_argument(z))) / 2,
}
activations = pytest.mark.parametrize("activation", list(Activation))


@activations
def test_activate_is_its_formula(activation):
    z = torch.tensor(POINTS, dtype=torch.float64)
    expected = torch.tensor([FORMULA[activation](v) for v in POINTS], dtype=torch.float64)
    # FP64 functions, each good to a few of its units; the tails are differences of numbers near 1.
    assert torch.allclose(activate(z, activation), expected, rtol=1e-13, atol=1e-13)


@activations
def test_derivative_is_the_slope_of_the_activation(activation):
    z = torch.tensor([v for v in POINTS if v != 0], dtype=torch.float64)
    step = 1e-5
    slope = (activate(z + step, activation) - activate(z - step, activation)) / (2 * step)
    # Central differences: step^2 / 6 times a third derivative below 5, and rounding of 60 / step.
    smooth = z.abs() > step
    bound = step**2 * 5 + 60 * 2.0**-52 / step
    error = (derivative(z, activation) - slope).abs()
    assert bool((error[smooth] <= bound).all())


def test_relu_at_zero_and_nan():
    z = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf])
    assert torch.equal(
        activate(z, Activation.RELU)[[0, 1, 3, 4]], torch.tensor([0.0, 0, math.inf, 0])
    )
    slope = derivative(z, Activation.RELU)
    assert slope[[0, 1, 3, 4]].tolist() == [0, 0, 1, 0]
    assert activate(z, Activation.RELU)[2].isnan()
    assert slope[2].isnan()


@activations
def test_nan_stays_nan(activation):
    z = torch.tensor([math.nan])
    assert activate(z, activation).isnan().all()
    if activation is not Activation.NONE:
        assert derivative(z, activation).isnan().all()


def matrix(seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return small integers, exact in every dtype and in every sum here."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, (3, 5), generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=["fp32", "fp64"])
def test_forward_order_is_alpha_bias_aux_activation_c(wide, dtype):
    product, c, bias = matrix(0, wide), matrix(1, dtype), matrix(2)[0].to(dtype)
    aux, bias_grad, out = (
        torch.empty(3, 5, dtype=dtype),
        torch.empty(5),
        torch.empty(3, 5, dtype=dtype),
    )
    epilogue = Epilogue(
        has_alpha=True,
        bias=dtype,
        activation=Activation.RELU,
        aux_out=dtype,
        c=dtype,
        bias_grad=True,
    )
    args = EpilogueArgs(alpha=0.5, beta=2.0, bias=bias, c=c, aux_out=aux, bias_grad=bias_grad)
    apply(product, epilogue, args, out)
    for m, n in itertools.product(range(3), range(5)):
        z = 0.5 * product[m, n].item() + bias[n].item()
        assert aux[m, n].item() == z
        assert out[m, n].item() == max(z, 0) + 2 * c[m, n].item()
    assert torch.equal(bias_grad, out.float().sum(dim=0))


@activations
def test_backward_multiplies_by_the_slope_at_aux(activation):
    if activation is Activation.NONE:
        return
    product, aux = matrix(3, torch.float64), matrix(4)
    c, out, bias_grad = matrix(5), torch.empty(3, 5), torch.empty(5)
    epilogue = Epilogue(
        has_alpha=True, dact=activation, aux_in=torch.float32, c=torch.float32, bias_grad=True
    )
    args = EpilogueArgs(alpha=2.0, beta=1.0, c=c, aux_in=aux, bias_grad=bias_grad)
    apply(product, epilogue, args, out)
    expected = 2 * product * derivative(aux.double(), activation) + c
    assert torch.equal(out, expected.float())
    assert torch.equal(bias_grad, expected.sum(dim=0).float())


def test_bias_gradient_is_summed_before_output_rounding():
    # 1 + 2^-9 is not bfloat16: the rounded outputs sum to 3, the values themselves do not.
    product = torch.full((3, 1), 1 + 2.0**-9)
    out, bias_grad = torch.empty(3, 1, dtype=torch.bfloat16), torch.empty(1)
    apply(product, Epilogue(bias_grad=True), EpilogueArgs(bias_grad=bias_grad), out)
    assert out.unique().tolist() == [1.0]
    assert bias_grad.item() == 3 + 3 * 2.0**-9


def test_c_may_be_the_output():
    out = matrix(6)
    expected = matrix(7) + 3 * matrix(6)
    apply(matrix(7), Epilogue(c=torch.float32), EpilogueArgs(beta=3.0, c=out), out)
    assert torch.equal(out, expected)


CONTRADICTIONS = {
    "aux-in-alone": ({"aux_in": torch.float32}, "aux_in is for dact"),
    "dact-alone": ({"dact": Activation.RELU}, "dact relu needs aux_in"),
    "dact-bias": (
        {"dact": Activation.GELU, "aux_in": torch.float32, "bias": torch.float32}, "choose one",
    ),
    "dact-activation": (
        {"dact": Activation.GELU, "aux_in": torch.float32, "activation": Activation.RELU}, "choose",
    ),
    "dact-aux-out": (
        {"dact": Activation.GELU, "aux_in": torch.float32, "aux_out": torch.float32}, "choose one",
    ),
    **{
        f"{name}-dtype": ({name: torch.float64}, f"{name} must be one of .*got torch.float64")
        for name in ("bias", "aux_out", "aux_in", "c")
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradicting_fields_are_refused(case):
    fields, message = CONTRADICTIONS[case]
    with pytest.raises(ValueError, match=message):
        Epilogue(**fields)


def test_identity_is_recognised_and_epilogues_print_themselves():
    assert IDENTITY.is_identity
    assert Epilogue() == IDENTITY
    assert str(IDENTITY) == "identity"
    everything = Epilogue(
        has_alpha=True,
        bias=torch.bfloat16,
        activation=Activation.GELU,
        aux_out=torch.float16,
        c=torch.float32,
        bias_grad=True,
    )
    assert not everything.is_identity
    assert str(everything) == "alpha+bias:bfloat16+aux_out:float16+c:float32+gelu+bias_grad"
    assert str(Epilogue(dact=Activation.RELU, aux_in=torch.float16)) == "drelu:float16"
