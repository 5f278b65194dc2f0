"""A in high precision beside an MXFP4 B: every backend does it within the bound it declares or says
why not, and native_cpu does it on every instruction set, whatever the values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch

import cases
import conformance
import mxgemm
import oracles
from conformance import Target
from mxgemm import OperandSpec, accuracy, dispatch
from mxgemm.backends.base import Accumulation, GemmPlan, RejectionCode
from mxgemm.backends.native_cpu import NativeCpu, PlainConfig
from mxgemm.epilogue import IDENTITY, NO_ARGS, Epilogue, EpilogueArgs
from mxgemm.errors import UnsupportedProblem
from mxgemm.plain import FORMATS, PlainOperand
from mxgemm.runtime import native_cpu as runtime
from mxgemm.tensor import MXTensor

DTYPES = tuple(FORMATS)
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
SHAPES = ((1, 1, 32), (1, 70, 352), (5, 33, 96), (9, 17, 1056), (70, 40, 160), (16, 16, 50))
LARGEST_SCALED = 2.0**127

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
every_isa = pytest.mark.parametrize(
    "isa", [pytest.param(isa, marks=pytest.mark.native) for isa in runtime.available_isas()]
)


def normal(*size: int, dtype: torch.dtype = FP32, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def weight(n: int, k: int, low: int = 120, high: int = 130, seed: int = 1) -> MXTensor:
    generator = torch.Generator().manual_seed(seed)
    return oracles.random_operand(n, k, generator, scales=(low, high))


def plan_for(x: torch.Tensor, b: MXTensor, isa: str, **options: object) -> GemmPlan:
    problem = mxgemm.problem_for(x, b, **{"out_dtype": FP32, **options})
    return dataclasses.replace(NativeCpu().plan(problem), config=PlainConfig(isa))


def compute(
    x: torch.Tensor,
    b: MXTensor,
    isa: str,
    args: EpilogueArgs = NO_ARGS,
    *,
    prepare: bool = False,
    **options: object,
) -> torch.Tensor:
    plan = plan_for(x, b, isa, **options)
    operand = plan.prepare_b(b) if prepare else b
    if prepare:
        problem = dataclasses.replace(plan.problem, b=operand.spec)
        plan = dataclasses.replace(plan, problem=problem)
    out = torch.full((len(x), b.rows), torch.nan, dtype=plan.problem.out_dtype)
    return plan.run(PlainOperand(x), operand, out, args)


def assert_right(out: torch.Tensor, x: torch.Tensor, b: MXTensor) -> None:
    product, magnitude = accuracy.exact_product(x, b)
    bound = accuracy.product_bound(magnitude, b.stored_k, Accumulation())
    oracles.assert_within(out, product, bound)


@pytest.fixture
def threads() -> Iterator[None]:
    """Restore the number of threads after a test that changes it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.host
@every_dtype
@pytest.mark.parametrize("device", conformance.CANDIDATE_DEVICES)
def test_every_backend_takes_a_plain_a_or_rejects_its_format(
    dtype: torch.dtype, device: str
) -> None:
    plain = OperandSpec(FORMATS[dtype])
    problem = conformance.basic_problem(conformance.DeviceSpec.parse(device))
    for backend in dispatch.BACKENDS:
        if backend.check(problem) is not None:
            continue
        rejection = backend.check(dataclasses.replace(problem, a=plain))
        if backend.name in ("reference", "native_cpu"):
            assert rejection is None
            continue
        assert rejection is not None, backend.name
        assert rejection.code is RejectionCode.FORMAT
        assert f"a must be mxfp4, got {str(dtype)[6:]}" in rejection.detail


@pytest.mark.parametrize("target", conformance.runnable())
@every_dtype
@pytest.mark.parametrize("name", cases.EXACT_EPILOGUES + cases.ROUNDED_EPILOGUES, ids=str)
def test_every_backend_is_within_its_bound(target: Target, dtype: torch.dtype, name: str) -> None:
    m, n, k = 7, 40, 160
    x, b = normal(m, k, dtype=dtype), weight(n, k)
    generator = torch.Generator().manual_seed(3)
    epilogue, args = cases.make_epilogue(name, m, n, BF16, generator)
    problem = mxgemm.problem_for(x, b, out_dtype=BF16, epilogue=epilogue, device=target.spec())
    plan = conformance.plan_or_skip(target, problem)
    out, after = conformance.run(plan, PlainOperand(x), b, args)
    accumulation = target.backend.accumulation(problem)
    exact, bound = oracles.expected(x, b, epilogue, args, accumulation)
    oracles.assert_within(out, exact, bound)
    if after.bias_grad is not None:
        summed = Accumulation().gamma(m) * (exact.abs() + bound).sum(0) + bound.sum(0)
        oracles.assert_within(after.bias_grad, exact.sum(0), summed)


@pytest.mark.host
def test_the_public_call_takes_a_tensor() -> None:
    x, b = normal(3, 50, dtype=BF16), mxgemm.quantize(normal(9, 50), pad=True)
    right = accuracy.exact_product(x, b)[0].bfloat16()
    for backend in ("reference", None):
        out = mxgemm.gemm(x, b, backend=backend)
        assert out.dtype is BF16
        assert torch.equal(out, right)
    plan = mxgemm.plan(mxgemm.problem_for(x, b), backend="reference")
    assert torch.equal(plan(x, b), right)
    with pytest.raises(mxgemm.errors.LayoutMismatch, match="a must be bfloat16"):
        plan(x.float(), b)
    with pytest.raises(TypeError, match="a must be a strided tensor"):
        mxgemm.gemm(x.to_sparse(), b)
    with pytest.raises(ValueError, match="a must hold its own values"):
        mxgemm.gemm(torch._neg_view(x), b)
    with pytest.raises(UnsupportedProblem, match="FORMAT: a must be mxfp4, got bfloat16"):
        mxgemm.gemm(x, b, backend="reference_fp32")


@pytest.mark.host
def test_the_prescale_of_b_is_divided_out() -> None:
    x, w = normal(3, 64), normal(5, 64, seed=1)
    b = mxgemm.quantize(w, prescale=True)
    assert b.prescale == 0.75
    values = mxgemm.dequantize(b, torch.float64)
    magnitude = x.double().abs() @ values.abs().t()
    # FP32's 4/3 and the multiplication by it round once each.
    bound = accuracy.product_bound(magnitude, 64, Accumulation()) + 2**-23 * magnitude
    oracles.assert_within(mxgemm.gemm(x, b, out_dtype=FP32), x.double() @ values.t(), bound)


@every_isa
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_small_integers_are_summed_exactly(
    isa: str, dtype: torch.dtype, shape: tuple[int, int, int], threads: None
) -> None:
    m, n, k = shape
    generator = torch.Generator().manual_seed(m + k)
    # |x| < 8 and |q| <= 6 in halves: sums are multiples of 1/4 below 2^17 at K = 1056.
    x = torch.randint(-7, 8, (m, k + 3), generator=generator).to(dtype)[:, :k]
    b = weight(n, k, 126, 128)
    right = accuracy.exact_product(x, b)[0].float()
    for count in (1, 3):
        torch.set_num_threads(count)
        for prepare in (False, True):
            oracles.assert_same_bits(compute(x, b, isa, prepare=prepare), right)


@every_isa
@every_dtype
@pytest.mark.parametrize("m", [1, 2, 3, 6, 7, 8, 9, 23, 130])
def test_every_number_of_rows_is_within_the_bound(isa: str, dtype: torch.dtype, m: int) -> None:
    x, b = normal(m, 352, dtype=dtype), weight(37, 352, 100, 150)
    b.scales[9, 3] = 255
    outs = [compute(x, b, isa, prepare=prepare) for prepare in (False, True)]
    assert_right(outs[0], x, b)
    oracles.assert_same_bits(outs[0], outs[1])


@every_isa
@every_dtype
def test_threads_and_groups_of_rows_change_no_bit(
    isa: str, dtype: torch.dtype, threads: None
) -> None:
    x, b = normal(140, 8192, dtype=dtype), weight(20, 8192)
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results += [compute(x, b, isa, prepare=prepare) for prepare in (False, True)]
    assert_right(results[0], x, b)
    for result in results[1:]:
        oracles.assert_same_bits(result, results[0])


@every_isa
@every_dtype
def test_special_values_reach_their_rows_as_ieee_says(isa: str, dtype: torch.dtype) -> None:
    x, b = normal(8, 96, dtype=dtype), weight(40, 96)
    x[1, 5], x[2, 40], x[3, 95] = torch.inf, -torch.inf, torch.nan
    x[5], x[6] = 0.0, -0.0
    x[7, 1:] = 0
    b.scales[3, 1] = 255
    out = compute(x, b, isa)
    right = accuracy.exact_product(x, b)[0]
    assert torch.equal(out.isnan(), right.isnan())
    assert torch.equal(out.isinf(), right.isinf())
    assert_right(out, x, b)


@every_isa
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("m", [1, 9])
def test_the_whole_range_of_values_and_scales(isa: str, dtype: torch.dtype, m: int) -> None:
    """Rows near 2^127 and subnormal ones, columns of every scale: what overflows inside a block or
    is flushed by an instruction must not show where the result is an ordinary number.
    """
    rows = normal(m, 64, seed=4).to(dtype)
    tiny = torch.finfo(dtype).tiny
    for factor in (2.0**120, tiny * 2**30, tiny / 8, 2.0**-99, 2.0**-101):
        x = (rows * torch.tensor(factor, dtype=dtype)).to(dtype)
        b = oracles.random_operand(255, 64, torch.Generator().manual_seed(5))
        b = dataclasses.replace(b, scales=torch.arange(255).byte()[:, None].expand(255, 2).clone())
        product, magnitude = accuracy.exact_product(x, b)
        out = compute(x, b, isa)
        fits = magnitude <= torch.finfo(FP32).max
        bound = accuracy.product_bound(magnitude, 64, Accumulation())
        oracles.assert_within(torch.where(fits, out, 0.0), torch.where(fits, product, 0.0), bound)
        assert bool((fits & (product != 0)).any())


@every_isa
def test_outputs_may_be_strided_and_written_once(isa: str) -> None:
    x, b = normal(11, 128, dtype=BF16), weight(37, 128)
    frame = torch.full((11, 2, 40), torch.nan)
    plan_for(x, b, isa).run(PlainOperand(x), b, frame[:, 1, :37], NO_ARGS)
    assert_right(frame[:, 1, :37].contiguous(), x, b)
    assert bool(frame[:, 0].isnan().all())
    assert bool(frame[:, 1, 37:].isnan().all())


@every_isa
def test_bias_gradient_sums_every_row_once(isa: str, threads: None) -> None:
    x, b = normal(150, 8192), weight(18, 8192)
    x[3, 7] = LARGEST_SCALED
    epilogue = Epilogue(bias_grad=True)
    grads = []
    for count in (1, 2):
        torch.set_num_threads(count)
        args = EpilogueArgs(bias_grad=torch.full((18,), torch.nan))
        compute(x, b, isa, args, epilogue=epilogue)
        assert args.bias_grad is not None
        grads.append(args.bias_grad)
    exact, bound = oracles.expected(x, b, IDENTITY, NO_ARGS, Accumulation())
    summed = Accumulation().gamma(150) * (exact.abs() + bound).sum(0) + bound.sum(0)
    oracles.assert_within(grads[0], exact.sum(0), summed)
    oracles.assert_same_bits(grads[1], grads[0])
