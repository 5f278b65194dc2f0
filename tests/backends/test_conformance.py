"""What every backend must do, the same for all: exact where exactness is possible, within the
derived bound elsewhere.

Parametrized over dispatch.BACKENDS x devices; a backend that is added is tested by being listed.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

import cases
import conformance
import mxgemm
import oracles
from conformance import Target
from mxgemm import accuracy
from mxgemm.epilogue import NO_ARGS
from mxgemm.numerics import e2m1
from mxgemm.problem import Numerics
from mxgemm.quantizers import quantize
from mxgemm.tensor import CANONICAL, MXTensor

every_target = pytest.mark.parametrize("target", conformance.runnable())


@pytest.fixture(autouse=True)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the instruction set of the target in force, if it names one."""
    call = getattr(request.node, "callspec", None)
    target = call.params.get("target") if call is not None else None
    if isinstance(target, Target) and target.isa:
        monkeypatch.setenv("MXGEMM_CPU_ISA", target.isa)


@every_target
def test_the_target_named_is_the_one_that_runs(target: Target) -> None:
    plan = target.backend.plan(conformance.basic_problem(target.spec()))
    assert plan.summary.startswith(target.isa)


def cases_of(which: list[cases.Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", which, ids=str)


@pytest.mark.parametrize("target", conformance.all_targets(), ids=str)
def test_every_target_is_planned_and_runs_or_says_why_not(target: Target) -> None:
    """The rest of the suite runs for the targets that pass here; a skip says why one is absent."""
    plan = target.backend.plan(conformance.basic_problem(target.spec()))
    assert plan.backend is target.backend
    assert plan.summary
    absence = target.absence()
    if absence is not None:
        pytest.skip(f"{target}: {absence}")


@every_target
@cases_of(cases.exact_cases())
def test_exact_regime_is_bit_for_bit(target: Target, case: cases.Case) -> None:
    device = target.spec()
    if case not in conformance.cases_for(target, [case]):
        pytest.skip(f"SHAPE: {case} is left to the emulator's own suite")
    m, n, k = case.shape
    generator = torch.Generator().manual_seed(hash(case.shape) & 0xFFFF)
    epilogue, args = cases.make_epilogue(case.epilogue, m, n, case.out_dtype, generator)
    probe = conformance.basic_problem(device)
    a, b = oracles.exact_operands(m, n, k, target.backend.accumulation(probe), seed=m * 7 + n)
    stored_a, stored_b = a.relayout(case.layout), b.relayout(case.layout)
    problem = conformance.problem_of(stored_a, stored_b, device, case.out_dtype, epilogue)
    plan = conformance.plan_or_skip(target, problem)
    out, after = conformance.run(plan, stored_a, stored_b, args)
    conformance.check_exact(out, after, a, b, epilogue, args)


@every_target
@cases_of(cases.random_cases())
def test_random_regime_is_within_the_derived_bound(target: Target, case: cases.Case) -> None:
    device = target.spec()
    if case not in conformance.cases_for(target, [case]):
        pytest.skip(f"SHAPE: {case} is left to the emulator's own suite")
    m, n, k = case.shape
    generator = torch.Generator().manual_seed(m + 31 * n)
    epilogue, args = cases.make_epilogue(case.epilogue, m, n, case.out_dtype, generator)
    a = quantize(torch.randn(m, k, generator=generator), pad=True)
    # Outliers in a few channels, so that scales spread as those of real activations do.
    weights = torch.randn(n, k, generator=generator)
    weights[:, ::37] *= 100
    b = quantize(weights, pad=True)
    problem = conformance.problem_of(a, b, device, case.out_dtype, epilogue)
    plan = conformance.plan_or_skip(target, problem)
    out, after = conformance.run(plan, a, b, args)
    exact, bound = oracles.expected(a, b, epilogue, args, target.backend.accumulation(problem))
    oracles.assert_within(out, exact, bound)
    if after.aux_out is not None:
        forward = dataclasses.replace(
            epilogue, activation=type(epilogue.activation).NONE, c=None, bias_grad=False
        )
        z, z_bound = oracles.expected(
            a, b, forward, dataclasses.replace(args, c=None), target.backend.accumulation(problem)
        )
        oracles.assert_within(after.aux_out, z, z_bound)
    conformance.check_bias_grad(after, a, b, epilogue, args, plan)


@every_target
@pytest.mark.parametrize("k", [*range(32, 321, 32), 1664, 1792, 1824, 1856])
def test_every_k_is_exact(target: Target, k: int) -> None:
    device = target.spec()
    if target.emulated and k > 320:
        pytest.skip("SHAPE: left to the emulator's own suite")
    check_plain(target, device, 33, 65, k)


@every_target
@pytest.mark.parametrize("m", [*range(1, 34), 63, 64, 65, 127, 128, 129, 255, 256, 257])
def test_every_small_m_is_exact(target: Target, m: int) -> None:
    device = target.spec()
    if target.emulated and m not in (1, 17, 33):
        pytest.skip("SHAPE: left to the emulator's own suite")
    check_plain(target, device, m, 40, 96)
    if not target.emulated:
        check_plain(target, device, 40, m, 96)


def check_plain(target: Target, device: object, m: int, n: int, k: int) -> None:
    probe = conformance.basic_problem(device)
    a, b = oracles.exact_operands(m, n, k, target.backend.accumulation(probe), seed=m + n + k)
    plan = conformance.plan_or_skip(target, conformance.problem_of(a, b, device))
    out, after = conformance.run(plan, a, b)
    conformance.check_exact(out, after, a, b, plan.problem.epilogue, NO_ARGS)


@every_target
def test_scales_are_addressed_per_row_and_block(target: Target) -> None:
    """Codes are all 1, and the scale of row r, block i is 2^((r + 3i) mod 7 - 3): one wrong address
    changes a sum.
    """
    device = target.spec()
    rows, k = 48, 512
    blocks = torch.arange(k // 32)
    scales = (124 + (torch.arange(rows)[:, None] + 3 * blocks[None, :]) % 7).to(torch.uint8)
    codes = torch.full((rows, k // 2), 0x22, dtype=torch.uint8)
    a = MXTensor.from_parts(codes, scales)
    b = MXTensor.from_parts(codes, scales.flip(0).contiguous())
    plan = conformance.plan_or_skip(
        target, conformance.problem_of(a, b, device, numerics=Numerics.STRICT)
    )
    out, _ = conformance.run(plan, a, b)
    conformance.check_exact(out, NO_ARGS, a, b, plan.problem.epilogue, NO_ARGS)


@every_target
def test_strict_numerics_pass_the_24_bit_regime(target: Target) -> None:
    from mxgemm.backends.base import Accumulation

    device = target.spec()
    m, n, k = (17, 33, 256) if target.emulated else (65, 130, 2048)
    a, b = oracles.exact_operands(m, n, k, Accumulation(), seed=5)
    problem = conformance.problem_of(a, b, device, numerics=Numerics.STRICT)
    plan = conformance.plan_or_skip(target, problem)
    out, _ = conformance.run(plan, a, b)
    conformance.check_exact(out, NO_ARGS, a, b, problem.epilogue, NO_ARGS)


@every_target
def test_extreme_scales_are_exact_where_fp32_is(target: Target) -> None:
    """Scale bytes 0..254, one per row, so that all products of an element have one exponent.

    Where every partial sum is an FP32 number the result is exact; below, each block may round once;
    above, partial sums may overflow on the way.
    """
    device = target.spec()
    m, n, k = (16, 32, 64) if target.emulated else (96, 160, 128)
    generator = torch.Generator().manual_seed(1)
    a = oracles.random_operand(m, k, generator, scales=(0, 254), per_row=True)
    b = oracles.random_operand(n, k, generator, scales=(0, 254), per_row=True)
    a.scales[0], a.scales[1], b.scales[0], b.scales[1] = 0, 254, 0, 254
    problem = conformance.problem_of(a, b, device, numerics=Numerics.STRICT)
    plan = conformance.plan_or_skip(target, problem)
    out, _ = conformance.run(plan, a, b)
    product, magnitude = accuracy.exact_product(a, b)
    is_exact = accuracy.in_range(a, b)
    oracles.assert_same_bits(
        torch.where(is_exact, out, 0.0), torch.where(is_exact, product, 0.0).float()
    )
    bound = accuracy.product_bound(magnitude, k, target.backend.accumulation(problem))
    fits = magnitude <= torch.finfo(torch.float32).max
    oracles.assert_within(torch.where(fits, out, 0.0), torch.where(fits, product, 0.0), bound)
    assert bool(out.isinf().any())
    assert bool(((out != 0) & (out.abs() < torch.finfo(torch.float32).tiny)).any())


SUMS_EXTREMES_IN_FP64 = {"reference", "native_cpu"}
SUMS_BLOCKS_IN_FP32 = {"reference_fp32", "flydsl_gfx1250"}
"""In ascending k, from +0, each block's sum rounded once before."""
SCALES_IN_BFLOAT16 = {"triton_dot_scaled"}
"""Where bfloat16 has no exact 0.5 * scale or no 6 * scale, an operand's values are others."""


def operands_at_the_ends_of_fp32() -> tuple[MXTensor, MXTensor]:
    """Return rows of two blocks that add, cancel and vanish, under scales from where their product
    overflows to where it underflows, and columns of ones.
    """
    values = torch.zeros(11, 64)
    values[0, 0], values[1, 0] = 6, -6
    values[2, :2] = torch.tensor([6.0, -6.0])  # cancels in its block
    values[3, 0], values[3, 32] = 6, -6  # across blocks
    values[4, 0], values[4, 32] = 6, -0.5
    values[5] = -0.0
    values[6, 0], values[7, 32] = -0.5, -0.5
    values[8, 0], values[8, 32] = 1.5, 1.5
    values[9, :4], values[9, 32:35] = 6, -6  # overflows on the way
    left, right = (254, 191, 127, 0), (254, 190, 128, 125, 107, 105, 103, 0)
    magnitudes = torch.bucketize(values.abs(), e2m1.decode(torch.arange(8, dtype=torch.uint8)))
    codes = (magnitudes | values.signbit().int() << 3).to(torch.uint8)
    rows = e2m1.pack(codes).repeat(len(left), 1)
    a_scales = torch.tensor(left, dtype=torch.uint8).repeat_interleave(len(values))
    b_scales = torch.tensor(right, dtype=torch.uint8)
    ones = torch.full((len(right), 32), 0x22, dtype=torch.uint8)
    return (
        MXTensor.from_parts(rows, a_scales[:, None].repeat(1, 2)),
        MXTensor.from_parts(ones, b_scales[:, None].repeat(1, 2)),
    )


def sum_of_blocks_in_fp32(a: MXTensor, b: MXTensor) -> torch.Tensor:
    left, right = (mxgemm.dequantize(x, torch.float64) for x in (a, b))
    total = torch.zeros(a.rows, b.rows)
    for at in range(0, a.shape[1], 32):
        total += (left[:, at : at + 32] @ right[:, at : at + 32].t()).float()
    return total


@every_target
@pytest.mark.parametrize("numerics", list(Numerics))
def test_ends_of_fp32_are_reached_as_documented(target: Target, numerics: Numerics) -> None:
    """Exact within FP32's range; beyond it as the backend sums: in FP64, in FP32 with infinities
    that may meet and zeros that lose their sign, or, where the order is another, within that.
    """
    a, b = operands_at_the_ends_of_fp32()
    problem = conformance.problem_of(a, b, target.spec(), numerics=numerics)
    plan = conformance.plan_or_skip(target, problem)
    out, _ = conformance.run(plan, a, b)
    product, magnitude = accuracy.exact_product(a, b)
    inside = accuracy.in_range(a, b)
    assert 0.3 < inside.double().mean() < 0.9
    promised = torch.ones_like(inside)
    if target.backend.name in SCALES_IN_BFLOAT16:
        left, right = (((x.scales >= 2) & (x.scales <= 252)).all(1) for x in (a, b))
        promised = left[:, None] & right
        inside &= promised
        assert inside.any()
    oracles.assert_same_bits(torch.where(inside, out, 0), torch.where(inside, product, 0).float())
    if target.backend.name in SUMS_EXTREMES_IN_FP64:
        # A sum that is exactly zero has the sign of no term.
        oracles.assert_same_bits(out, product.float())
    elif target.backend.name in SUMS_BLOCKS_IN_FP32:
        oracles.assert_same_bits(out, sum_of_blocks_in_fp32(a, b))
    overflows = magnitude > torch.finfo(torch.float32).max
    bounded = promised & ~overflows
    bound = accuracy.product_bound(magnitude, 64, target.backend.accumulation(problem))
    oracles.assert_within(torch.where(bounded, out, 0), torch.where(bounded, product, 0), bound)
    wrong_infinity = out.isinf() & (product.sign() == -out.sign())
    assert not bool((wrong_infinity & overflows & promised).any())


@every_target
def test_zero_sums_are_positive_zeros_within_the_range_of_fp32(target: Target) -> None:
    codes = torch.full((16, 32), 0x88, dtype=torch.uint8)  # -0
    codes[1::2] = 0x2A  # -1, 1
    a = MXTensor.from_parts(codes, torch.full((16, 2), 127, dtype=torch.uint8))
    b = MXTensor.from_parts(codes & 0x77, torch.full((16, 2), 127, dtype=torch.uint8))
    plan = conformance.plan_or_skip(target, conformance.problem_of(a, b, target.spec()))
    out, _ = conformance.run(plan, a, b)
    assert bool((out == 0).all())
    assert not bool(out.signbit().any())


@every_target
def test_scales_that_differ_within_a_row_by_everything(target: Target) -> None:
    """Random scale bytes over the whole range per block: within the bound, infinite only where the
    sum may overflow.
    """
    device = target.spec()
    m, n, k = (16, 32, 64) if target.emulated else (64, 96, 352)
    generator = torch.Generator().manual_seed(2)
    a = oracles.random_operand(m, k, generator, scales=(0, 254))
    b = oracles.random_operand(n, k, generator, scales=(0, 120))
    problem = conformance.problem_of(a, b, device, numerics=Numerics.STRICT)
    plan = conformance.plan_or_skip(target, problem)
    out, _ = conformance.run(plan, a, b)
    product, magnitude = accuracy.exact_product(a, b)
    fits = magnitude <= torch.finfo(torch.float32).max
    bound = accuracy.product_bound(magnitude, k, target.backend.accumulation(problem))
    oracles.assert_within(torch.where(fits, out, 0.0), torch.where(fits, product, 0.0), bound)


@every_target
@pytest.mark.parametrize("numerics", list(Numerics))
def test_nan_scale_reaches_its_row_or_column_and_nothing_else(
    target: Target, numerics: Numerics
) -> None:
    device = target.spec()
    m, n, k = 18, 35, 96
    probe = conformance.basic_problem(device)
    a, b = oracles.exact_operands(m, n, k, target.backend.accumulation(probe), seed=9)
    a.scales[3, 1] = 255
    a.codes[3, 16:32] = 0
    b.scales[34, 0] = 255
    plan = conformance.plan_or_skip(target, conformance.problem_of(a, b, device, numerics=numerics))
    out, _ = conformance.run(plan, a, b)
    nan = torch.zeros(m, n, dtype=torch.bool)
    nan[3], nan[:, 34] = True, True
    assert torch.equal(out.isnan(), nan)
    conformance.check_exact(out, NO_ARGS, a, b, plan.problem.epilogue, NO_ARGS)


@every_target
def test_zero_rows_and_negative_zeros_give_zeros(target: Target) -> None:
    device = target.spec()
    a = MXTensor.from_parts(
        torch.full((5, 32), 0x88, dtype=torch.uint8), torch.full((5, 2), 127, dtype=torch.uint8)
    )
    b = quantize(torch.randn(7, 64, generator=torch.Generator().manual_seed(3)))
    plan = conformance.plan_or_skip(target, conformance.problem_of(a, b, device))
    out, _ = conformance.run(plan, a, b)
    assert bool((out == 0).all())


@every_target
def test_swapping_operands_transposes_the_result(target: Target) -> None:
    device = target.spec()
    probe = conformance.basic_problem(device)
    a, b = oracles.exact_operands(21, 50, 160, target.backend.accumulation(probe), seed=4)
    plan = conformance.plan_or_skip(target, conformance.problem_of(a, b, device))
    swapped = conformance.plan_or_skip(target, conformance.problem_of(b, a, device))
    oracles.assert_same_bits(
        conformance.run(plan, a, b)[0], conformance.run(swapped, b, a)[0].t().contiguous()
    )


@every_target
def test_permuting_blocks_of_k_changes_nothing(target: Target) -> None:
    device = target.spec()
    probe = conformance.basic_problem(device)
    a, b = oracles.exact_operands(20, 30, 256, target.backend.accumulation(probe), seed=6)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    plan = conformance.plan_or_skip(target, conformance.problem_of(a, b, device))
    oracles.assert_same_bits(
        conformance.run(plan, a, b)[0],
        conformance.run(plan, _permuted(a, order), _permuted(b, order))[0],
    )


def _permuted(tensor: MXTensor, order: torch.Tensor) -> MXTensor:
    codes = tensor.codes.view(tensor.rows, -1, 16)[:, order].reshape(tensor.rows, -1)
    return MXTensor.from_parts(codes, tensor.scales[:, order].contiguous())


@every_target
def test_order_inside_a_block_matters(target: Target) -> None:
    """A and B permuted differently inside a block must give another result; else elements are not
    paired.
    """
    device = target.spec()
    probe = conformance.basic_problem(device)
    a, b = oracles.exact_operands(16, 16, 128, target.backend.accumulation(probe), seed=8)
    codes = e2m1.unpack(b.codes).view(16, 4, 32).flip(-1).reshape(16, 128)
    reversed_b = MXTensor.from_parts(e2m1.pack(codes), b.scales)
    plan = conformance.plan_or_skip(target, conformance.problem_of(a, b, device))
    straight, crossed = conformance.run(plan, a, b)[0], conformance.run(plan, a, reversed_b)[0]
    assert not torch.equal(straight, crossed)
    conformance.check_exact(crossed, NO_ARGS, a, reversed_b, plan.problem.epilogue, NO_ARGS)


@every_target
@pytest.mark.parametrize("layout", [each for each in cases.LAYOUTS if each != CANONICAL], ids=str)
def test_poisoned_pads_change_nothing(target: Target, layout: object) -> None:
    device = target.spec()
    m, n, k = (20, 30, 96) if target.emulated else (77, 45, 1504)
    probe = conformance.basic_problem(device)
    a, b = oracles.exact_operands(m, n, k, target.backend.accumulation(probe), seed=12)
    a, b = a.relayout(layout), b.relayout(layout)
    plan = conformance.plan_or_skip(target, conformance.problem_of(a, b, device))
    assert oracles.has_pads(layout, m, a.stored_k)
    clean = conformance.run(plan, a, b)[0]
    if oracles.needs_zero_pads(layout) and not target.backend.name.startswith("reference"):
        pytest.skip(f"LAYOUT: {layout} requires zero pads of its consumers")
    dirty = conformance.run(plan, oracles.poison_pads(a), oracles.poison_pads(b))[0]
    oracles.assert_same_bits(dirty, clean)


@every_target
@pytest.mark.parametrize("out_dtype", cases.OUT_DTYPES, ids=lambda d: str(d)[6:])
def test_two_runs_agree_bit_for_bit(target: Target, out_dtype: torch.dtype) -> None:
    device = target.spec()
    m, n, k = (17, 40, 160) if target.emulated else (70, 200, 3200)
    generator = torch.Generator().manual_seed(0)
    a = quantize(torch.randn(m, k, generator=generator))
    b = quantize(torch.randn(n, k, generator=generator))
    plan = conformance.plan_or_skip(target, conformance.problem_of(a, b, device, out_dtype))
    first = conformance.run(plan, a, b)[0]
    for _ in range(3):
        oracles.assert_same_bits(conformance.run(plan, a, b)[0], first)


@every_target
def test_thread_count_changes_no_bit(target: Target) -> None:
    device = target.spec()
    if device.kind != "cpu":
        pytest.skip("DEVICE: threads are the CPU's")
    generator = torch.Generator().manual_seed(0)
    a = quantize(torch.randn(130, 1600, generator=generator))
    b = quantize(torch.randn(300, 1600, generator=generator))
    plan = conformance.plan_or_skip(target, conformance.problem_of(a, b, device))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(conformance.run(plan, a, b)[0])
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        oracles.assert_same_bits(result, results[0])


@every_target
@pytest.mark.parametrize("m", [1, 5, 48, 64, 200])
def test_prepared_weight_gives_the_same_bits_for_every_m(target: Target, m: int) -> None:
    device = target.spec()
    if "b" not in target.backend.prepared_sides:
        pytest.skip(f"LAYOUT: {target.backend.name} has no prepared form")
    probe = conformance.basic_problem(device)
    a, b = oracles.exact_operands(m, 96, 416, target.backend.accumulation(probe), seed=m)
    maker = conformance.plan_or_skip(target, conformance.problem_of(a.narrow(0, 0, 1), b, device))
    prepared = maker.prepare_b(b.to(device.torch_device))
    plan = conformance.plan_or_skip(target, conformance.problem_of(a, prepared, device))
    out, _ = conformance.run(plan, a, prepared)
    conformance.check_exact(out, NO_ARGS, a, b, plan.problem.epilogue, NO_ARGS)


@every_target
@pytest.mark.parametrize("side", ["a", "b"])
def test_quantizing_to_the_own_form_is_quantizing_then_preparing(target: Target, side: str) -> None:
    device = target.spec()
    if side not in target.backend.prepared_sides:
        pytest.skip(f"LAYOUT: {target.backend.name} has no prepared form of {side}")
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(72, 416, generator=generator).to(device.torch_device)
    operand = mxgemm.quantize(x, rule="ceil", prescale=True)
    maker = conformance.plan_or_skip(target, conformance.problem_of(operand, operand, device))
    forms = (
        getattr(maker, f"prepare_{side}")(operand),
        getattr(maker, f"quantize_{side}")(x, rule="ceil", prescale=True),
    )
    assert forms[0].spec == forms[1].spec
    assert forms[0].prescale == forms[1].prescale == operand.prescale
    results = []
    for form in forms:
        a, b = (form, operand) if side == "a" else (operand, form)
        plan = conformance.plan_or_skip(target, conformance.problem_of(a, b, device))
        results.append(conformance.run(plan, a, b)[0])
    oracles.assert_same_bits(*results)


@every_target
def test_problems_for_other_devices_are_rejected_with_a_reason(target: Target) -> None:
    accepted = 0
    for device in conformance.CANDIDATE_DEVICES:
        rejection = target.backend.check(
            conformance.basic_problem(conformance.DeviceSpec.parse(device))
        )
        accepted += rejection is None
        assert rejection is None or len(rejection.detail) > 10
    assert accepted
