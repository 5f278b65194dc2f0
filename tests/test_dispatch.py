"""Selection, reasons and the plan cache, seen with a toy backend: what it takes to add one."""

from __future__ import annotations

import logging

import pytest
import torch

import oracles
from mxgemm import dispatch, matmul
from mxgemm.backends.base import Accumulation, Backend, GemmPlan, Rejection, RejectionCode
from mxgemm.devices import DeviceSpec
from mxgemm.epilogue import Activation, Epilogue
from mxgemm.errors import BackendUnavailable, LayoutMismatch, UnsupportedProblem
from mxgemm.problem import GemmProblem
from mxgemm.quantizers import dequantize, quantize
from mxgemm.tensor import CANONICAL, OperandLayout


class Toy(Backend):
    """The whole of a backend: FP32 torch matmul on the CPU, no epilogue."""

    name = "toy"

    def probe(self):
        return None

    def check(self, problem):
        if problem.device.kind != "cpu":
            return Rejection(RejectionCode.DEVICE, f"cpu only, got {problem.device}")
        if not problem.epilogue.is_identity:
            return Rejection(RejectionCode.EPILOGUE, f"identity only, got {problem.epilogue}")
        return None

    def accumulation(self, problem):
        return Accumulation()

    def plan(self, problem):
        return GemmPlan(backend=self, problem=problem, summary="toy")

    def launch(self, plan, a, b, out, args):
        out.copy_(dequantize(a) @ dequantize(b).t())


class Broken(Toy):
    name = "broken"

    def probe(self):
        return Rejection(
            RejectionCode.IMPORT, "needs the module unobtainium, which is not installed"
        )


@pytest.fixture
def listed(monkeypatch):
    """Put backends before the real ones; leave clean caches behind."""

    def put(*backends: Backend) -> None:
        monkeypatch.setattr(dispatch, "BACKENDS", (*backends, *dispatch.BACKENDS))
        dispatch.cache.clear()

    yield put
    dispatch.cache.clear()


def operands(m: int = 3, n: int = 4, k: int = 64):
    return oracles.exact_operands(m, n, k, Accumulation(), seed=0)


def test_toy_backend_is_taken_by_being_listed_first(listed, caplog) -> None:
    listed(Toy())
    a, b = operands()
    with caplog.at_level(logging.INFO, logger="mxgemm"):
        out = matmul.gemm(a, b, out_dtype=torch.float32)
        matmul.gemm(a, b, out_dtype=torch.float32)
    operand = "mxfp4 row_major+row_major"
    message = f"3x4x64 -> float32 on cpu, a {operand}, b {operand}: toy (toy)"
    assert [record.getMessage() for record in caplog.records] == [message]
    oracles.assert_same_bits(out, matmul.gemm(a, b, out_dtype=torch.float32, backend="reference"))


def test_what_the_toy_rejects_goes_to_the_next_that_accepts(listed) -> None:
    listed(Toy())
    a, b = operands()
    problem = matmul.problem_for(a, b, epilogue=Epilogue(activation=Activation.RELU))
    assert dispatch.plan(problem).backend.name != "toy"


def test_named_backend_is_never_replaced(listed) -> None:
    listed(Toy())
    a, b = operands()
    with pytest.raises(UnsupportedProblem, match=r"gemm on toy: EPILOGUE: identity only, got relu"):
        matmul.gemm(a, b, activation="relu", backend="toy")


def test_backend_that_cannot_run_is_passed_over_and_named_it_raises(listed) -> None:
    listed(Broken(), Toy())
    a, b = operands()
    assert dispatch.plan(matmul.problem_for(a, b)).backend.name == "toy"
    with pytest.raises(BackendUnavailable, match=r"IMPORT: needs the module unobtainium"):
        matmul.gemm(a, b, backend="broken")


def test_unknown_backend_raises_with_the_list() -> None:
    a, b = operands()
    with pytest.raises(ValueError, match=r"backend: must be one of .*reference.*, got 'refrence'"):
        matmul.gemm(a, b, backend="refrence")


def test_d61_argument_wins_over_the_environment(listed, monkeypatch) -> None:
    listed(Toy())
    a, b = operands()
    problem = matmul.problem_for(a, b)
    monkeypatch.setenv("MXGEMM_BACKEND", "reference")
    assert dispatch.plan(problem).backend.name == "reference"
    assert dispatch.plan(problem, backend="toy").backend.name == "toy"
    monkeypatch.setenv("MXGEMM_BACKEND", "no-such")
    with pytest.raises(ValueError, match="got 'no-such'"):
        dispatch.plan(problem)


def test_nobody_takes_it_raises_with_every_reason() -> None:
    _a, _b = operands()
    problem = GemmProblem(m=3, n=4, k=64, device=DeviceSpec("rocm", "gfx942"))
    with pytest.raises(UnsupportedProblem) as caught:
        dispatch.plan(problem)
    for backend in dispatch.BACKENDS:
        assert f"\n  {backend.name}: " in str(caught.value)


def test_explain_gives_a_verdict_for_each_and_launches_nothing(listed) -> None:
    listed(Broken(), Toy())
    a, b = operands()
    verdicts = {v.backend.name: v for v in dispatch.explain(matmul.problem_for(a, b))}
    assert str(verdicts["broken"].rejection).startswith("IMPORT: ")
    assert verdicts["broken"].plan is None
    assert verdicts["toy"].plan is not None
    assert set(verdicts) == {backend.name for backend in dispatch.BACKENDS}


def test_probe_is_asked_once_until_the_cache_is_cleared(listed, monkeypatch) -> None:
    toy, asked = Toy(), []
    monkeypatch.setattr(Toy, "probe", lambda self: asked.append(self))
    listed(toy)
    a, b = operands()
    for m in (1, 2, 3):
        dispatch.plan(matmul.problem_for(a.narrow(0, 0, m), b))
    assert asked == [toy]
    dispatch.cache.clear()
    dispatch.plan(matmul.problem_for(a, b))
    assert asked == [toy, toy]


def test_a_backend_that_becomes_usable_is_seen(listed, monkeypatch) -> None:
    toy = Toy()
    listed(toy)
    monkeypatch.setattr(Toy, "probe", lambda self: Rejection(RejectionCode.SETTING, "no tool"))
    problem = matmul.problem_for(*operands())
    with pytest.raises(BackendUnavailable, match="no tool"):
        dispatch.plan(problem)
    monkeypatch.setattr(Toy, "probe", lambda self: None)
    assert dispatch.plan(problem).backend is toy


class CanonicalOnly(Toy):
    name = "canonical_only"

    def check(self, problem):
        from mxgemm.backends.base import canonical_only

        return canonical_only(problem) or super().check(problem)


def test_layout_mismatch_is_a_rejection_and_relayout_opts_in(listed) -> None:
    listed(CanonicalOnly())
    a, b = operands()
    swizzled = b.relayout(OperandLayout.of("tile_16x16", "scale_32x8"))
    with pytest.raises(
        UnsupportedProblem, match=r"LAYOUT: b must be row_major\+row_major.*relayout=True"
    ):
        matmul.gemm(a, swizzled, backend="canonical_only")
    out = matmul.gemm(a, swizzled, backend="canonical_only", relayout=True)
    oracles.assert_same_bits(out, matmul.gemm(a, b, backend="reference"))


def test_plan_refuses_operands_it_was_not_made_for() -> None:
    a, b = operands()
    plan = dispatch.plan(matmul.problem_for(a, b, out_dtype=torch.float32))
    out = torch.empty(3, 4)
    oracles.assert_same_bits(plan(a, b, out=out), matmul.gemm(a, b, out_dtype=torch.float32))
    with pytest.raises(LayoutMismatch, match=r"a must be .* with 3 rows"):
        plan(a.narrow(0, 0, 2), b)
    with pytest.raises(LayoutMismatch, match=r"b must be"):
        plan(a, b.relayout(OperandLayout.of("row_major", "scale_32x8")))


def test_backend_without_prepared_form_says_so() -> None:
    a, b = operands()
    plan = dispatch.plan(matmul.problem_for(a, b), backend="reference")
    with pytest.raises(UnsupportedProblem, match=r"prepare_b on reference: .* no prepared form"):
        plan.prepare_b(b)


def test_a_refused_quantization_says_so_and_draws_no_seed() -> None:
    a, b = operands()
    plan = dispatch.plan(matmul.problem_for(a, b), backend="reference")
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    with pytest.raises(
        UnsupportedProblem,
        match=r"quantize_a on reference: .* no prepared form .*float32 \(3, 64\)",
    ):
        plan.quantize_a(torch.ones(3, 64), rounding="stochastic", generator=generator)
    assert torch.equal(generator.get_state(), before)


def test_names_are_unique_and_the_last_word_is_the_reference() -> None:
    names = [backend.name for backend in dispatch.BACKENDS]
    assert len(set(names)) == len(names)
    assert names[-2:] == ["reference", "reference_fp32"]
    assert quantize(torch.ones(1, 32)).layout == CANONICAL
