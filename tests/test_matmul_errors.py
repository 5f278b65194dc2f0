"""gemm(): what is refused, with which words, before anything is written; and the defined results at
the edges.
"""

import dataclasses
import math

import pytest
import torch

import mxgemm
from mxgemm import GemmPlan, MXTensor, PreparedOperand, Rotation, dispatch
from mxgemm.backends.base import Accumulation, Backend
from mxgemm.backends.reference import Reference
from mxgemm.errors import LayoutMismatch, UnsupportedProblem

M, N, K = 5, 6, 64
FP32, BF16 = torch.float32, torch.bfloat16
UNTOUCHED = 123.0


def operand(rows: int, k: int = K, seed: int = 0, **options) -> MXTensor:
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(seed))
    return mxgemm.quantize(x, **options)


def exact(a: MXTensor, b: MXTensor) -> torch.Tensor:
    return mxgemm.dequantize(a, torch.float64) @ mxgemm.dequantize(b, torch.float64).t()


def full(*shape: int, dtype: torch.dtype = FP32, **options) -> torch.Tensor:
    return torch.full(shape, UNTOUCHED, dtype=dtype, **options)


A, B = operand(M, seed=1), operand(N, seed=2)
OUT = lambda: full(M, N)  # noqa: E731

# What is asked, the error, and what its message says. Values that are callables are made anew.
REFUSED = {
    "a-list": ({"a": [1.0]}, TypeError, r"a must be an MXTensor, .*torch.Tensor.*quantize"),
    "a-none": ({"a": None}, TypeError, "a must be an MXTensor, .*torch.Tensor, got NoneType"),
    "a-int8": ({"a": torch.ones(M, K).char()}, TypeError, "a plain a must be .* got torch.int8"),
    "a-vector": ({"a": torch.ones(K)}, ValueError, r"a must have shape \(M, K\), got \(64,\)"),
    "a-gaps": ({"a": torch.ones(K, M).t()}, ValueError, "a must be contiguous along K"),
    "a-gradient": (
        {"a": torch.ones(M, K, requires_grad=True)},
        ValueError,
        r"a must not require a gradient.*detach\(\)",
    ),
    "a-plain-k": ({"a": torch.ones(M, K - 1)}, ValueError, r"got 63 \(stored 64\) and 64"),
    "a-plain-b-rotated": (
        {"a": torch.ones(M, K), "b": operand(N, rotation=Rotation(16))},
        ValueError,
        "same rotation.* got None and hadamard16",
    ),
    "b-tensor": ({"b": torch.ones(N, K)}, TypeError, "b must be an MXTensor or a prepared operand"),
    "k": ({"b": operand(N, 96)}, ValueError, r"share the contraction K, got 64 .* and 96"),
    "k-pads": (
        {"b": operand(N, 50, pad=True)},
        ValueError,
        r"got 64 \(stored 64\) and 50 \(stored 64\)",
    ),
    "rotated-b": (
        {"b": operand(N, rotation=Rotation(16))},
        ValueError,
        "same rotation.* got None and hadamard16",
    ),
    "other-signs": (
        {"a": operand(M, rotation=Rotation(32, 1)), "b": operand(N, rotation=Rotation(32, 2))},
        ValueError,
        "same rotation",
    ),
    "other-size": (
        {"a": operand(M, rotation=Rotation(32)), "b": operand(N, rotation=Rotation(16))},
        ValueError,
        "same rotation",
    ),
    "b-elsewhere": ({"b": B.to("meta")}, ValueError, "must share a device, got cpu and meta"),
    "unknown-device-type": (
        {"a": A.to("meta"), "b": B.to("meta"), "out": None},
        ValueError,
        "must be cpu or cuda",
    ),
    "alpha-nan": ({"alpha": math.nan}, ValueError, "alpha must be finite in FP32, got nan"),
    "alpha-inf": ({"alpha": -math.inf}, ValueError, "alpha must be finite in FP32, got -inf"),
    "alpha-too-large": ({"alpha": 1e39}, ValueError, r"alpha must be finite in FP32, got 1e\+39"),
    "alpha-too-large-with-prescale": (
        {"a": operand(M, prescale=True), "alpha": 3e38},
        ValueError,
        "alpha must be finite in FP32",
    ),
    "alpha-beyond-float": ({"alpha": 10**400}, ValueError, "alpha must be finite in FP32, got 10"),
    "alpha-tensor": (
        {"alpha": torch.tensor(2.0)},
        TypeError,
        "alpha must be a Python number, got Tensor",
    ),
    "alpha-text": ({"alpha": "2"}, TypeError, "alpha must be a Python number, got str"),
    "alpha-complex": ({"alpha": 1j}, TypeError, "alpha must be a Python number"),
    "beta-nan": ({"beta": math.nan, "c": OUT}, ValueError, "beta must be finite in FP32, got nan"),
    "beta-inf": ({"beta": math.inf, "c": OUT}, ValueError, "beta must be finite in FP32"),
    "beta-alone": (
        {"beta": 1.0, "out": None},
        ValueError,
        "beta=1 needs c, or out to accumulate into",
    ),
    "c-without-beta": ({"c": OUT}, ValueError, "c is added with beta, got beta=0"),
    "out-dtype-int": (
        {"out": None, "out_dtype": torch.int32},
        TypeError,
        "output dtype must be one of",
    ),
    "out-dtype-double": ({"out": None, "out_dtype": torch.float64}, TypeError, "got torch.float64"),
    "out-dtype-text": ({"out": None, "out_dtype": "bf16"}, TypeError, "got bf16"),
    "out-dtype-other": ({"out_dtype": BF16}, ValueError, r"out_dtype must be out's torch.float32"),
    "backend": ({"backend": "fastest"}, ValueError, r"must be one of .*reference.* got 'fastest'"),
    "activation": (
        {"activation": "silu"},
        ValueError,
        "activation must be one of none, relu.*'silu'",
    ),
    "dact": ({"dact": "silu", "aux_in": OUT}, ValueError, "dact must be one of"),
    "dact-alone": ({"dact": "relu"}, ValueError, "needs aux_in"),
    "aux-in-alone": ({"aux_in": OUT}, ValueError, "aux_in is for dact"),
    "dact-and-bias": (
        {"dact": "relu", "aux_in": OUT, "bias": lambda: full(N)},
        ValueError,
        "choose one",
    ),
    "dact-and-activation": (
        {"dact": "relu", "aux_in": OUT, "activation": "relu"},
        ValueError,
        "choose one",
    ),
    "dact-and-aux-out": (
        {"dact": "relu", "aux_in": OUT, "aux_out": OUT},
        ValueError,
        "choose one",
    ),
    "numerics": (
        {"numerics": "exact"},
        ValueError,
        "numerics must be default or strict, got 'exact'",
    ),
    "device-text": ({"device": "gfx000"}, ValueError, "device: must be .*got 'gfx000'"),
    "device-type": ({"device": 3}, TypeError, "device must be a DeviceSpec or str, got int"),
    "device-torch": ({"device": torch.device("cpu")}, TypeError, "got device"),
    "device-elsewhere": ({"device": "sm_90"}, ValueError, "must be on cuda:0, got cpu"),
    "emulated-on-reference": (
        {"device": "gfx1250:emulated", "backend": "reference"},
        UnsupportedProblem,
        "reference.*DEVICE",
    ),
}

WRONG_TENSORS = {
    "list": (lambda shape: [[0.0]], TypeError, "must be a torch.Tensor, got list"),
    "shape": (lambda shape: full(*[s + 1 for s in shape]), ValueError, r"must have shape .* got"),
    "transposed-or-2d": (lambda shape: full(*shape[::-1], 1), ValueError, "must have shape"),
    "double": (lambda shape: full(*shape, dtype=torch.float64), TypeError, "must be one of"),
    "int": (lambda shape: full(*shape, dtype=torch.int32), TypeError, "must be one of"),
    "elsewhere": (lambda shape: full(*shape, device="meta"), ValueError, "must be on cpu"),
    "negated": (
        lambda shape: torch._neg_view(full(*shape)),
        ValueError,
        "must hold its own values",
    ),
    "strided": (
        lambda shape: full(*shape[:-1], 2 * shape[-1])[..., ::2],
        ValueError,
        "must be contiguous along N",
    ),
}

ROLES = {
    "out": ((M, N), {}),
    "c": ((M, N), {"beta": 1.0}),
    "bias": ((N,), {}),
    "aux_out": ((M, N), {}),
    "aux_in": ((M, N), {"dact": "relu"}),
    "bias_grad": ((N,), {}),
}
"""Tensor arguments with their shape and what else a call needs for them."""


def made(value):
    return value() if callable(value) else value


def assert_refused(arguments: dict, error: type[Exception], message: str) -> None:
    """Call gemm, expect the error, and see that no tensor argument was written."""
    call = {"a": A, "b": B, "out": OUT, **arguments}
    call = {name: made(value) for name, value in call.items()}
    buffers = {
        name: (value, value.clone())
        for name, value in call.items()
        if isinstance(value, torch.Tensor)
    }
    with pytest.raises(error, match=message):
        mxgemm.gemm(**call)
    for name, (value, before) in buffers.items():
        if value.device.type == "cpu":
            assert torch.equal(value, before), name


@pytest.mark.parametrize("case", REFUSED)
def test_gemm_refuses(case):
    assert_refused(*REFUSED[case])


@pytest.mark.parametrize("wrong", WRONG_TENSORS)
@pytest.mark.parametrize("role", ROLES)
def test_gemm_refuses_a_wrong_tensor_in_every_role(role, wrong):
    shape, extra = ROLES[role]
    make, error, message = WRONG_TENSORS[wrong]
    assert_refused({role: make(shape), **extra}, error, f"{role} {message}")


def test_gemm_refuses_a_bias_gradient_that_is_not_float32():
    assert_refused({"bias_grad": full(N, dtype=BF16)}, TypeError, "bias_grad must be one of")


@pytest.mark.parametrize("role", ["out", "aux_out"])
def test_gemm_refuses_rows_that_overlap_where_it_writes(role):
    for overlapping in (full(N).expand(M, N), full(M * N).as_strided((M, N), (N - 1, 1))):
        assert_refused({role: overlapping}, ValueError, f"rows of {role} must not overlap")


def test_gemm_reads_c_and_aux_in_with_any_row_stride():
    row = torch.arange(float(N))
    expected = exact(A, B) + row
    got = mxgemm.gemm(A, B, out_dtype=FP32, beta=1.0, c=row.expand(M, N))
    assert torch.equal(got, expected.float())
    got = mxgemm.gemm(A, B, out_dtype=FP32, dact="relu", aux_in=(row - 3).expand(M, N))
    assert torch.equal(got, (exact(A, B) * (row > 3)).float())


@pytest.mark.parametrize("role", ROLES)
def test_gemm_refuses_a_sparse_tensor_in_every_role(role):
    shape, extra = ROLES[role]
    with pytest.raises(TypeError, match=f"{role} must be a strided tensor"):
        mxgemm.gemm(A, B, **{role: full(*shape).to_sparse(), **extra})


def made_in_inference_mode(*shape: int) -> torch.Tensor:
    with torch.inference_mode():
        return full(*shape)


@pytest.mark.parametrize("role", ["out", "aux_out", "bias_grad"])
def test_gemm_refuses_to_write_an_inference_tensor_before_it_writes_another(role):
    tensor = made_in_inference_mode(*ROLES[role][0])
    assert_refused({role: tensor}, ValueError, f"{role} must not be an inference tensor")
    with torch.inference_mode():
        mxgemm.gemm(A, B, **{role: tensor})
    assert not torch.equal(tensor, torch.full_like(tensor, UNTOUCHED))


def test_gemm_records_no_gradient_and_writes_what_requires_one():
    plain = {"bias": torch.ones(N), "c": torch.ones(M, N), "out": OUT(), "aux_out": OUT()}
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in plain.items()}
    expected = mxgemm.gemm(A, B, beta=2.0, **plain)
    result = mxgemm.gemm(A, B, beta=2.0, **leaves)
    assert torch.equal(result, expected)
    assert torch.equal(leaves["aux_out"], plain["aux_out"])
    assert result.is_leaf
    bias = torch.ones(N, requires_grad=True)
    assert not mxgemm.gemm(A, B, bias=bias).requires_grad


@pytest.mark.parametrize("dtype", [BF16, torch.float64])
def test_gemm_without_contraction_does_not_depend_on_the_default_dtype(dtype):
    empty = mxgemm.quantize(torch.zeros(2, 0))
    c = torch.full((2, 2), 1.001)
    torch.set_default_dtype(dtype)
    try:
        result = mxgemm.gemm(empty, empty, c=c, beta=1.0, out_dtype=FP32)
    finally:
        torch.set_default_dtype(FP32)
    assert torch.equal(result, c)


def matrices(count: int) -> list[torch.Tensor]:
    """Return count [M, N] views of one buffer that overlap by all but one row each."""
    buffer = full(M + count, N)
    return [buffer[i : M + i] for i in range(count)]


OVERLAPS = {
    "c-shifted-on-out": lambda m: {"out": m[0], "c": m[1], "beta": 1.0},
    "c-broadcast-row-of-out": lambda m: {"out": m[0], "c": m[0][1].expand(M, N), "beta": 1.0},
    "c-of-other-dtype-on-out": lambda m: {
        "out": m[0].view(BF16)[:, :N],
        "c": m[0].view(torch.float16)[:, :N],
        "beta": 1.0,
    },
    "aux-out-on-out": lambda m: {"out": m[0], "aux_out": m[0]},
    "aux-out-shifted-on-out": lambda m: {"out": m[1], "aux_out": m[0]},
    "aux-out-on-c": lambda m: {"c": m[0], "aux_out": m[1], "beta": 1.0},
    "bias-on-out": lambda m: {"out": m[0], "bias": m[0][M - 1]},
    "bias-on-aux-out": lambda m: {"aux_out": m[0], "bias": m[0][2]},
    "aux-in-on-out": lambda m: {"out": m[0], "aux_in": m[0], "dact": "relu"},
    "bias-grad-on-out": lambda m: {"out": m[0], "bias_grad": m[0][0]},
    "bias-grad-on-bias": lambda m: {"bias": m[0][0], "bias_grad": m[0][0]},
    "bias-grad-on-c": lambda m: {"c": m[0], "beta": 1.0, "bias_grad": m[0][3]},
    "bias-grad-on-aux-in": lambda m: {"aux_in": m[0], "dact": "relu", "bias_grad": m[0][3]},
}


@pytest.mark.parametrize("case", OVERLAPS)
def test_gemm_refuses_memory_that_is_written_and_used_twice(case):
    assert_refused(OVERLAPS[case](matrices(2)), ValueError, "must not overlap .*pass a copy")


def test_gemm_refuses_columns_of_one_buffer_that_meet():
    buffer = full(M, 2 * N - 1)
    assert_refused(
        {"out": buffer[:, :N], "aux_out": buffer[:, N - 1 :]}, ValueError, "must not overlap"
    )
    wrapping = full(M * (N + 2) + N)
    assert_refused(
        {
            "out": wrapping.as_strided((M, N), (N + 2, 1)),
            "aux_out": wrapping.as_strided((M, N), (N + 2, 1), N),
        },
        ValueError,
        "must not overlap",
    )


def test_gemm_accepts_neighbouring_rows_and_columns_of_one_buffer():
    product = exact(A, B).float()
    columns = full(M, 3 * N + 2)
    out, aux, c = columns[:, :N], columns[:, N + 1 : 2 * N + 1], columns[:, 2 * N + 1 : 3 * N + 1]
    mxgemm.gemm(A, B, out=out, aux_out=aux, c=c, beta=1.0)
    assert torch.equal(aux, product)
    assert torch.equal(out, (exact(A, B) + UNTOUCHED).float())
    assert bool((columns[:, N] == UNTOUCHED).all())
    assert bool((columns[:, 2 * N + 1 :] == UNTOUCHED).all())
    rows = full(2 * M, N)
    mxgemm.gemm(A, B, out=rows[:M], aux_out=rows[M:])
    assert torch.equal(rows, product.repeat(2, 1))
    vectors = full(2 * N)
    mxgemm.gemm(A, B, out_dtype=FP32, bias=vectors[:N], bias_grad=vectors[N:])
    assert bool((vectors[:N] == UNTOUCHED).all())
    assert not bool((vectors[N:] == UNTOUCHED).any())


def test_c_may_be_out_itself_and_is_out_when_left_out():
    expected = (exact(A, B) + 2 * UNTOUCHED).float()
    explicit, implicit = OUT(), OUT()
    assert mxgemm.gemm(A, B, out=explicit, c=explicit, beta=2.0) is explicit
    mxgemm.gemm(A, B, out=implicit, beta=2.0)
    assert torch.equal(explicit, expected)
    assert torch.equal(implicit, expected)


def test_out_is_fully_written_and_nothing_beside_it():
    buffer = full(M + 2, N + 2)
    buffer[1:-1, 1:-1] = math.nan
    out = buffer[1:-1, 1:-1]
    assert mxgemm.gemm(A, B, out=out) is out
    assert torch.equal(out, exact(A, B).float())
    frame = buffer.clone()
    frame[1:-1, 1:-1] = UNTOUCHED
    assert bool((frame == UNTOUCHED).all())


@pytest.mark.parametrize(("m", "n"), [(0, N), (M, 0), (0, 0)])
def test_empty_m_or_n_gives_an_empty_result(m, n):
    a, b = operand(m), operand(n)
    out = mxgemm.gemm(a, b)
    assert (out.shape, out.dtype) == ((m, n), BF16)
    bias_grad = full(n)
    given = torch.empty(m, n)
    back = mxgemm.gemm(
        a, b, out=given, bias=full(n), beta=1.0, aux_out=torch.empty(m, n), bias_grad=bias_grad
    )
    assert back is given
    assert torch.equal(bias_grad, torch.zeros(n))


def test_zero_k_gives_zeros_bias_and_beta_c():
    a, b = operand(M, 0), operand(N, 0)
    assert torch.equal(mxgemm.gemm(a, b, out_dtype=FP32), torch.zeros(M, N))
    out = OUT()
    bias = torch.arange(float(N))
    mxgemm.gemm(a, b, out=out, beta=0.5, bias=bias, alpha=3.0)
    assert torch.equal(out, (bias + UNTOUCHED / 2).expand(M, N))
    out = full(M, N, dtype=BF16)
    mxgemm.gemm(a, b, out=out)
    assert torch.equal(out, torch.zeros(M, N, dtype=BF16))


def test_gemm_defaults_to_bfloat16_and_takes_outs_dtype():
    assert mxgemm.gemm(A, B).dtype == BF16
    for dtype in (FP32, BF16, torch.float16):
        assert mxgemm.gemm(A, B, out_dtype=dtype).dtype == dtype
        assert mxgemm.gemm(A, B, out=full(M, N, dtype=dtype)).dtype == dtype
        assert mxgemm.gemm(A, B, out=full(M, N, dtype=dtype), out_dtype=dtype).dtype == dtype


def test_prescale_is_folded_into_alpha_for_each_operand():
    a, b = operand(M, seed=1, prescale=True), operand(N, seed=2, prescale=True)
    as_stored = [dataclasses.replace(q, prescale=1.0) for q in (a, b)]
    assert torch.equal(
        mxgemm.gemm(a, b, out_dtype=FP32, alpha=9.0),
        mxgemm.gemm(*as_stored, out_dtype=FP32, alpha=16.0),
    )
    assert torch.equal(
        mxgemm.gemm(a, as_stored[1], out_dtype=FP32, alpha=3.0),
        mxgemm.gemm(*as_stored, out_dtype=FP32, alpha=4.0),
    )


def test_a_plan_refuses_rotations_that_do_not_cancel():
    problem = mxgemm.problem_for(operand(M, rotation=Rotation(16)), B)
    with pytest.raises(UnsupportedProblem, match=r"ROTATION: .*hadamard16 and None"):
        mxgemm.plan(problem)
    with pytest.raises(UnsupportedProblem, match="gemm on reference: ROTATION"):
        mxgemm.plan(problem, backend="reference")
    assert {v.rejection.code for v in mxgemm.explain(problem)} == {"ROTATION"}


def test_a_plan_refuses_operands_on_another_device():
    plan = mxgemm.plan(mxgemm.problem_for(A, B, out_dtype=FP32))
    with pytest.raises(LayoutMismatch, match=r"on cpu, got .* on meta"):
        plan(A, B.to("meta"))


class Preparing(Backend):
    """A backend with a prepared form: the dequantized matrix."""

    name = "preparing"
    prepared_sides = frozenset({"a", "b"})

    def probe(self):
        return None

    def check(self, problem):
        return None

    def accumulation(self, problem):
        return Accumulation()

    def plan(self, problem):
        return GemmPlan(backend=self, problem=problem)

    def prepare(self, plan, operand, side):
        return PreparedOperand(
            backend=self.name,
            side=side,
            shape=operand.shape,
            stored_k=operand.stored_k,
            source=mxgemm.OperandSpec.of(operand),
            prescale=operand.prescale,
            payload=mxgemm.dequantize(operand, torch.float64, rotate_to_source=False),
            nbytes=8 * operand.rows * operand.k,
            device=operand.device,
        )

    def launch(self, plan, a, b, out, args):
        left, right = (
            q.payload if isinstance(q, PreparedOperand) else mxgemm.dequantize(q, torch.float64)
            for q in (a, b)
        )
        out.copy_((left @ right.t()).float())


@pytest.fixture
def preparing(monkeypatch):
    monkeypatch.setattr(dispatch, "BACKENDS", (Preparing(), Reference()))
    dispatch.cache.clear()
    yield mxgemm.plan(mxgemm.problem_for(A, B, out_dtype=FP32))
    dispatch.cache.clear()


def test_a_prepared_operand_goes_to_the_backend_that_made_it(preparing):
    prepared = preparing.prepare_b(B)
    expected = exact(A, B).float()
    assert torch.equal(mxgemm.gemm(A, prepared, out_dtype=FP32), expected)
    assert torch.equal(mxgemm.gemm(A, prepared, out_dtype=FP32, backend="preparing"), expected)
    other_m = operand(2, seed=9)
    assert torch.equal(mxgemm.gemm(other_m, prepared, out_dtype=FP32), exact(other_m, B).float())
    for b in (B, prepared):
        assert torch.equal(mxgemm.gemm(preparing.prepare_a(A), b, out_dtype=FP32), expected)


def test_a_prepared_operand_is_refused_elsewhere(preparing):
    prepared_a, prepared_b = preparing.prepare_a(A), preparing.prepare_b(B)
    assert_refused(
        {"b": prepared_b, "backend": "reference"}, ValueError, "b was prepared by preparing"
    )
    assert_refused(
        {"a": prepared_a, "backend": "reference"}, ValueError, "a was prepared by preparing"
    )
    assert_refused(
        {"a": prepared_b, "out": full(N, N)}, LayoutMismatch, "a must be prepared by prepare_a"
    )
    assert_refused(
        {"b": prepared_a, "out": full(M, M)}, LayoutMismatch, "b must be prepared by prepare_b"
    )
    assert_refused(
        {"a": operand(M, 96), "b": prepared_b}, ValueError, "share the contraction K, got 96"
    )
    assert_refused(
        {"a": operand(M, rotation=Rotation(16)), "b": prepared_b}, ValueError, "same rotation"
    )
    with pytest.raises(LayoutMismatch, match="b must be mxfp4 row_major"):
        preparing(A, prepared_b)


def test_a_prepared_operand_names_the_backend_when_that_is_gone(preparing, monkeypatch):
    prepared = preparing.prepare_b(B)
    monkeypatch.setattr(dispatch, "BACKENDS", (Reference(),))
    dispatch.cache.clear()
    assert_refused({"b": prepared}, ValueError, "must be one of reference, got 'preparing'")


def test_reference_says_that_it_reads_no_prepared_form(preparing):
    prepared = preparing.prepare_b(B)
    rejection = Reference().check(mxgemm.problem_for(A, prepared))
    assert str(rejection) == "LAYOUT: b must be an MXTensor, got a form prepared by preparing"
