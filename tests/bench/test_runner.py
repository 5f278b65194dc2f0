"""A run from suite to rows: statuses, order, interruption and resumption."""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from mxgemm import dispatch
from mxgemm.backends.base import Rejection, RejectionCode
from mxgemm.backends.reference import Reference
from mxgemm.bench import (
    cases,
    distributions,
    operands,
    quantizers,
    results,
    roofs,
    runner,
    variants,
)
from mxgemm.bench.distributions import DistributionUnavailable
from mxgemm.bench.errors import ResultsError, SuiteError
from mxgemm.bench.results import RowWriter
from mxgemm.bench.runner import Runner

pytestmark = pytest.mark.host
SQUARE = {"kind": "square", "sizes": [32, 64]}


@pytest.fixture(autouse=True)
def quick_roofs(monkeypatch):
    """Roofs are measured once elsewhere; here they are given."""
    given = roofs.Roofs({"copy": 10.0}, {"float32": 0.1})
    monkeypatch.setattr(roofs, "measure", lambda device, clock: given)


def suite(*tables, **settings):
    quick = {
        "baseline": "torch_fp32",
        "warm_up_seconds": 0.0,
        "sample_seconds": 0.0,
        "seconds_per_case": 0.0,
        "rounds": [3, 3],
    }
    return cases.parse({"suite": {**quick, **settings}, "cases": list(tables or (SQUARE,))}, "s")


def execute(path, made, *, resume=False, check=True):
    with contextlib.closing(RowWriter(path)) as writer:
        done = writer.open(resume=resume)
        outcome = Runner(made, check=check).execute(writer, done)
    return outcome, results.read(path)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.jsonl"


class Broken(Reference):
    """A backend with a defect that a test chooses."""

    name = "broken"
    defect = ""

    def automatic(self, problem):
        return False

    def check(self, problem):
        if self.defect == "rejects":
            return Rejection(RejectionCode.SHAPE, "m must be 7, got another; pad m")
        return super().check(problem)

    def launch(self, plan, a, b, out, args):
        if self.defect == "raises":
            raise RuntimeError("out of something")
        super().launch(plan, a, b, out, args)
        if self.defect == "wrong":
            out[1, 1] += 1


@pytest.fixture
def broken(monkeypatch):
    backend = Broken()
    monkeypatch.setattr(dispatch, "BACKENDS", (*dispatch.BACKENDS, backend))
    dispatch.cache.clear()
    yield backend
    dispatch.cache.clear()


def test_rows_hold_what_was_measured(path):
    made = suite(variants=["reference", "reference_fp32/scale_32x8"], stages=["gemm", "relayout"])
    outcome, found = execute(path, made)
    assert outcome.done == 2
    keys = {(r.variant, r.stage) for r in found.rows}
    assert keys == {
        ("torch_fp32", "gemm"),
        ("reference", "gemm"),
        ("reference_fp32/scale_32x8", "gemm"),
        ("reference_fp32/scale_32x8", "relayout"),
    }
    for row in found.rows:
        assert row.status == "timed", row.reason
        assert len(row.samples_ms) == 3
        assert row.median_ms > 0
        assert row.machine["threads"] >= 1
        assert row.versions["torch"] == torch.__version__
        assert row.roofs["gbps"] == {"copy": 10.0}
        if row.stage == "gemm":
            assert 0 <= row.oracle["worst"] <= 1
            assert row.speedup > 0
    assert {r.backend for r in found.rows} == {"peer", "reference", "reference_fp32"}


def test_wrong_result_is_not_timed(path, broken):
    broken.defect = "wrong"
    _, found = execute(path, suite(variants=["broken", "reference"]))
    wrong = [r for r in found.rows if r.variant == "broken"]
    assert {r.status for r in wrong} == {"wrong"}
    assert all("D[1, 1] is" in r.reason and not r.samples_ms for r in wrong)
    assert {r.status for r in found.rows if r.variant == "reference"} == {"timed"}


def test_check_can_be_left_out(path, broken):
    broken.defect = "wrong"
    _, found = execute(path, suite(variants=["broken"]), check=False)
    assert {r.status for r in found.rows} == {"timed"}
    assert all(r.oracle == {} for r in found.rows)


@pytest.mark.parametrize(
    ("defect", "status", "reason"),
    [
        ("rejects", "rejected", "SHAPE: m must be 7, got another; pad m"),
        ("raises", "failed", "RuntimeError: out of something"),
    ],
)
def test_refusal_or_error_is_a_row_under_its_own_name(path, broken, defect, status, reason):
    broken.defect = defect
    _, found = execute(path, suite(variants=["broken", "reference"]))
    rows = [r for r in found.rows if r.variant == "broken"]
    assert {(r.status, r.backend) for r in rows} == {(status, "broken")}
    assert all(reason in r.reason and r.median_ms is None for r in rows)


def test_variant_without_prepared_form_says_so(path):
    _, found = execute(path, suite(variants=["reference/prepared"]))
    rows = [r for r in found.rows if r.variant == "reference/prepared"]
    assert all("no prepared form" in r.reason for r in rows)


def test_too_slow_call_is_reported_not_timed(path):
    _, found = execute(path, suite(variants=["reference"], max_call_seconds=1e-9))
    assert {r.status for r in found.rows} == {"too_slow"}


def test_peer_of_another_device_is_rejected(path):
    _, found = execute(path, suite(variants=["torch_scaled_mm_fp8"]))
    rows = [r for r in found.rows if r.variant == "torch_scaled_mm_fp8"]
    assert {r.status for r in rows} == {"rejected"}
    assert "runs on cuda, got cpu" in rows[0].reason


@pytest.mark.parametrize("distribution", ["positive", "student_t", "outlier_channels", "minilm"])
def test_every_cpu_peer_is_right_on_every_distribution(path, distribution):
    names = ["torch_bf16", "dequantize_matmul", "torch_int_mm", "torch_bf16_prepacked"]
    table = {"kind": "gemm", "m": [5], "n": [40], "k": [96], "distributions": [distribution]}
    _, found = execute(path, suite(table, variants=names))
    for row in found.rows:
        allowed = {"timed"} if row.variant != "torch_bf16_prepacked" else {"timed", "rejected"}
        assert row.status in allowed, row.reason


def test_quantize_cases_time_quantizers_and_check_their_bytes(path, monkeypatch):
    table = {"kind": "quantize", "shapes": [[64, 96]]}
    names = ["quantize", "quantize_pair", "torch_copy"]
    made = suite(table, variants=names, baseline="torch_copy")
    _, found = execute(path, made)
    assert {(r.variant, r.status, r.stage) for r in found.rows} == {
        (name, "timed", "quantize") for name in names
    }
    wrong = quantizers.quantize
    monkeypatch.setattr(quantizers, "quantize", lambda x, pad: wrong(x * 1.5, pad=pad))
    _, found = execute(path.with_name("wrong.jsonl"), made)
    bad = {r.variant: r for r in found.rows}["quantize"]
    assert bad.status == "wrong"
    assert "differ from the reference quantizer's" in bad.reason


def test_padded_contraction_is_timed(path):
    table = {"kind": "gemm", "m": [3], "n": [8], "k": [50], "pad": True}
    _, found = execute(path, suite(table, variants=["reference"], stages=["gemm", "total"]))
    assert {r.status for r in found.rows} == {"timed"}


def test_interruption_keeps_finished_cases_and_resume_goes_on(path, monkeypatch):
    made = suite(variants=["reference"], visits=2)
    whole = runner.Runner.run_case
    calls = []

    def interrupted(self, case, visit=0):
        calls.append((case.m, visit))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(self, case, visit)

    monkeypatch.setattr(runner.Runner, "run_case", interrupted)
    with pytest.raises(KeyboardInterrupt):
        execute(path, made)
    assert len(results.read(path).written) == 4
    outcome, found = execute(path, made, resume=True)
    assert (outcome.resumed, outcome.done) == (2, 2)
    assert calls == [(32, 0), (64, 0), (32, 1), (32, 1), (64, 1)]
    assert all(row.rounds == (3, 3) for row in found.rows)


def test_full_disk_ends_the_run_and_keeps_what_was_written(path, monkeypatch):
    append = RowWriter.append

    def full(self, rows):
        if self.written:
            self.path = path.parent / "full"
            self.path.symlink_to("/dev/full")
        append(self, rows)

    monkeypatch.setattr(RowWriter, "append", full)
    with pytest.raises(ResultsError, match="No space left on device; 2 rows of this run are kept"):
        execute(path, suite(variants=["reference"]))
    assert len(results.read(path).written) == 2


def test_time_limit_begins_no_further_case(path):
    outcome, found = execute(path, suite(variants=["reference"], time_limit_seconds=0.0))
    assert (outcome.not_begun, found.written) == (2, ())


@pytest.fixture
def modelled(broken, monkeypatch):
    """A backend for an emulated device, with a model of time."""
    monkeypatch.setattr(Broken, "check", lambda self, problem: None)
    monkeypatch.setattr(Broken, "modelled_ms", lambda self, plan: 0.25, raising=False)
    monkeypatch.setattr(Broken, "model_ignores", "everything", raising=False)
    return broken


MODEL = "model of an emulated device, which ignores everything"
EMULATED = {"device": "gfx1250:emulated", "baseline": "broken"}


def test_emulated_device_without_a_model_is_rejected(path, broken, monkeypatch):
    monkeypatch.setattr(Broken, "check", lambda self, problem: None)
    names = ["broken", "reference", "torch_bf16", "quantize"]
    made = suite(variants=names, stages=["gemm", "quantize"], **EMULATED)
    _, found = execute(path, made)
    reasons = {r.variant: r.reason for r in found.rows}
    assert {r.status for r in found.rows} == {"rejected"}
    assert "modelled_ms" in reasons["broken"]
    assert "runs on cpu or cuda, got gfx1250:emulated" in reasons["torch_bf16"]
    assert "runs on a real device" in reasons["quantize"]


def test_modelled_row_is_marked_and_verified(path, modelled):
    _, found = execute(path, suite(variants=["broken"], **EMULATED))
    assert {(r.status, r.median_ms, r.device) for r in found.rows} == {
        ("modelled", 0.25, "gfx1250:emulated")
    }
    for row in found.rows:
        assert row.who == "broken (modelled)"
        assert 0 <= row.oracle["worst"] <= 1
        assert row.reason == f"{MODEL}; run and verified in the emulator"
        assert row.roofs == {}


def test_wrong_result_of_an_emulated_device_is_not_modelled(path, modelled):
    modelled.defect = "wrong"
    _, found = execute(path, suite(variants=["broken"], **EMULATED))
    assert {(r.status, r.median_ms) for r in found.rows} == {("wrong", None)}


def test_large_emulated_product_is_modelled_without_being_run(path, modelled, monkeypatch):
    monkeypatch.setattr(runner, "EMULATED_FLOPS", 2 * 32**3)
    monkeypatch.setattr(Broken, "launch", lambda *rest: pytest.fail("run to be modelled"))
    monkeypatch.setattr(Broken, "prepare", lambda *rest: pytest.fail("prepared to be modelled"))
    monkeypatch.setattr(distributions, "sample", lambda *rest: pytest.fail("drawn to be modelled"))
    names = ["broken", "broken/prepared"]
    made = suite(
        {"kind": "square", "sizes": [64]}, variants=names, stages=["gemm", "total"], **EMULATED
    )
    _, found = execute(path, made)
    by_stage = {(r.variant, r.stage): r for r in found.rows}
    for name in names:
        assert by_stage[name, "gemm"].reason == f"{MODEL}; not run"
        assert by_stage[name, "gemm"].oracle == {}
        assert "a model of the gemm alone, got total" in by_stage[name, "total"].reason
    assert by_stage["broken/prepared", "gemm"].speedup == 1.0


def test_slow_variant_is_not_called_again_on_greater_cases(path, broken, monkeypatch):
    calls, now = [], [0.0]

    def launch(self, plan, a, b, out, args):
        calls.append(plan.problem.m)
        now[0] += 0.05

    clock = SimpleNamespace(perf_counter=lambda: now[0], monotonic=time.monotonic)
    monkeypatch.setattr(runner, "time", clock)
    monkeypatch.setattr(Broken, "launch", launch)
    made = suite(
        {"kind": "square", "sizes": [64, 32, 96]},
        variants=["broken"],
        stages=["gemm", "total"],
        max_call_seconds=0.01,
    )
    _, found = execute(path, made)
    rows = {(r.m, r.stage): r for r in found.rows if r.variant == "broken"}
    assert {row.status for row in rows.values()} == {"too_slow"}
    # At 64 the total is expected to take as long as the product; at 32 an eighth, which is tried.
    assert calls == [64, 32]
    assert rows[64, "gemm"].reason == "a call takes 0.05 s, above 0.01 s"
    assert rows[96, "gemm"].reason.startswith("not tried: a call would take about 0.169 s")


def test_case_that_would_end_after_the_limit_is_not_begun(path, monkeypatch):
    # The run begins, the first case begins, it ends.
    clock = itertools.chain([0.0, 0.0], itertools.repeat(40.0))
    monkeypatch.setattr(runner.time, "monotonic", lambda: next(clock))
    outcome, _ = execute(path, suite(variants=["reference"], time_limit_seconds=70.0))
    assert (outcome.done, outcome.not_begun) == (1, 1)


@pytest.mark.parametrize(("bf16", "baseline"), [(0.2, "torch_bf16"), (0.05, "torch_fp32")])
def test_torch_as_baseline_is_what_the_machine_multiplies_faster(path, monkeypatch, bf16, baseline):
    given = roofs.Roofs({"copy": 10.0}, {"float32": 0.1, "bfloat16": bf16})
    monkeypatch.setattr(roofs, "measure", lambda device, clock: given)
    _, found = execute(path, suite(variants=["reference"], baseline="torch"))
    assert {r.baseline for r in found.rows} == {baseline}
    assert {r.variant for r in found.rows} == {"reference", "torch_fp32", "torch_bf16"}


def test_distribution_that_is_not_installed_is_a_row(path, monkeypatch):
    def missing():
        raise DistributionUnavailable("distribution minilm: needs the package")

    monkeypatch.setattr(distributions, "_minilm_weights", missing)
    operands.forget()
    table = {"kind": "square", "sizes": [32], "distributions": ["minilm"]}
    _, found = execute(path, suite(table, variants=["reference"]))
    assert {(r.status, r.reason) for r in found.rows} == {
        ("rejected", "distribution minilm: needs the package")
    }


def test_threads_are_pinned_stated_and_restored(path):
    before = torch.get_num_threads()
    _, found = execute(path, suite(variants=["reference"], threads=1))
    assert {r.machine["threads"] for r in found.rows} == {1}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("name", "message"),
    [("nobody", "variant: must be one of"), ("reference/upside_down", "must be 'prepared' or a")],
)
def test_unknown_variant_is_an_error(name, message):
    with pytest.raises(SuiteError, match=message):
        variants.get(name)


def test_unknown_device_is_an_error():
    with pytest.raises(ValueError, match="device: must be cpu, cuda"):
        Runner(suite(device="tpu"))


def test_stages_that_nobody_knows_are_an_error():
    with pytest.raises(SuiteError, match="needs a variant that knows one of the stages relayout"):
        Runner(suite(variants=["reference"], stages=["relayout"]))


def test_variant_forms():
    assert variants.get("reference/prepared").prepared
    layout = variants.get("reference/tile_16x16+scale_32x8").layout
    assert str(layout) == "tile_16x16+scale_32x8"
    assert variants.get("reference/tile_16x16").layout.codes.name == "tile_16x16"


def test_baseline_takes_part_even_when_it_is_not_named():
    made = replace(suite(), variants=("reference",))
    assert [v.name for v in Runner(made).variants] == ["reference", "torch_fp32"]
