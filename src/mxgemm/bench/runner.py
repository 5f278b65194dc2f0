"""The order of a run: for each case verify every contender, then time them interleaved, then write.

A contender that cannot, errs or is wrong becomes a row that says so; only what concerns the whole
run (a full disk, a lost device, Ctrl-C) ends it, and every case that was finished is kept.
"""

from __future__ import annotations

import collections
import datetime as dt
import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from mxgemm import devices
from mxgemm.bench import environment, error_bound, operands, roofs, timing, variants
from mxgemm.bench.cases import ANCHOR, TORCH, TORCH_BASELINES, Case, Suite
from mxgemm.bench.errors import BenchError, SuiteError, Unavailable
from mxgemm.bench.results import (
    FAILED,
    MODELLED,
    REJECTED,
    TIMED,
    TOO_SLOW,
    WRONG,
    Row,
    RowWriter,
    with_speedups,
)
from mxgemm.bench.variants import Variant, Work
from mxgemm.errors import BackendUnavailable, Hazard, LayoutMismatch, UnsupportedProblem

REFUSALS = (Unavailable, UnsupportedProblem, BackendUnavailable, LayoutMismatch)
ERRORS = (RuntimeError, ValueError, TypeError, MemoryError, ImportError, AttributeError, Hazard)
"""What a contender may raise without ending the run: torch reports shapes, dtypes and memory so,
and another version of a peer's library lacks what this one was written for."""

HOPELESS = 3.0
"""A first call that takes this many times `max_call_seconds` on a CPU is not repeated: faulting
pages in does not take that long. On CUDA it may be the compiler."""

CERTAIN = 2.0
"""A case is not tried where the rate of a smaller one that was too slow leads to this many times
`max_call_seconds`."""

RECENT_CASES = 3
"""A next case is expected to take as long as the longest of so many; the very first compiles."""

EMULATED_FLOPS = 2 << 30
"""Products up to this size are run in the emulator and verified, which takes a few seconds."""


class DeviceLost(BenchError):
    """The device answers no more after a contender's error; later rows would be meaningless."""


@dataclass(slots=True)
class Entry:
    """One row in the making: its contender while it is still to be timed."""

    variant: Variant
    stage: str
    row: Row
    work: Work | None = None
    contender: timing.Contender | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Whom a run tells how it goes.

    Attributes:
        case: (index, case) when a case begins.
        rows: the case's rows, once they are written.
    """

    case: Callable[[int, Case], None] = lambda index, case: None
    rows: Callable[[list[Row]], None] = lambda rows: None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: visits of cases done now, found done before, not begun for lack of time."""

    done: int
    resumed: int
    not_begun: int


class Runner:
    """Runs a suite on one device and appends its rows.

    Attributes:
        suite: what.
        check: verify results before they are timed.
        device: where.
    """

    def __init__(self, suite: Suite, *, check: bool = True) -> None:
        self.suite = suite
        self.check = check
        self.device = devices.DeviceSpec.parse(suite.device)
        baselines = TORCH_BASELINES if suite.baseline == TORCH else (suite.baseline,)
        names = dict.fromkeys((*suite.variants, *baselines))
        self.variants = [variants.get(name) for name in names]
        self.baseline = baselines[0]
        self.run = uuid.uuid4().hex[:12]
        self.where = self.device.torch_device
        self.clock = timing.clock_for(suite.timer, self.where.type)
        self.roofs: roofs.Roofs | None = None
        self.facts: dict[str, Any] = {}
        self.first: dict[tuple[str, str, str], Row] = {}
        if not any(self._keys(case) for case in suite.cases):
            raise SuiteError(
                f"suite {suite.name}: needs a variant that knows one of the stages "
                f"{', '.join(suite.stages)} in one of its cases, got {', '.join(names)}"
            )
        self.slow: dict[tuple[str, str], list[tuple[Case, float]]] = {}

    def execute(
        self, writer: RowWriter, done: tuple[Row, ...] = (), progress: Progress | None = None
    ) -> Outcome:
        """Run every case that `done` does not hold completely, and append its rows.

        Raises:
            ResultsError: rows cannot be written.
            DeviceLost: the device is gone.
            KeyboardInterrupt: passed on; finished cases are written.
        """
        progress = progress or Progress()
        begun = time.monotonic()
        finished = {(row.key, row.visit) for row in done}
        self.first.update({row.key: row for row in done if row.visit == 0})
        counts = {"done": 0, "resumed": 0, "not_begun": 0}
        recent: collections.deque[float] = collections.deque([0.0], RECENT_CASES)
        with machine_state(self.suite.threads):
            self._measure_machine()
            visits = itertools.product(range(self.suite.visits), self.suite.cases)
            for index, (visit, case) in enumerate(visits):
                if {(key, visit) for key in self._keys(case)} <= finished:
                    counts["resumed"] += 1
                    continue
                case_begun = time.monotonic()
                if case_begun - begun + max(recent) > self.suite.time_limit_seconds:
                    counts["not_begun"] += 1
                    continue
                progress.case(index, case)
                rows = self.run_case(case, visit)
                writer.append(rows)
                progress.rows(rows)
                recent.append(time.monotonic() - case_begun)
                counts["done"] += 1
        operands.forget()
        return Outcome(**counts)

    def run_case(self, case: Case, visit: int = 0) -> list[Row]:
        """Return the rows of one visit of a case; after the first, only of what can be timed."""
        if not self.facts:
            self._measure_machine()
        data = operands.Operands(case, self.where)
        entries = [
            self._entry(case, data, variant, stage)
            for variant in self.variants
            for stage in self._stages(variant, case)
            if self._worthwhile((case.key, variant.name, stage))
        ]
        timed = [entry for entry in entries if entry.contender is not None]
        if timed:
            timing.interleave(
                [entry.contender for entry in timed if entry.contender is not None],
                self.clock,
                sample_seconds=self.suite.sample_seconds,
                budget_seconds=self.suite.seconds_per_case,
                rounds=self.suite.rounds,
                seed=self.suite.seed,
            )
        clocks = environment.clocks(self.device)
        now = _now()
        rows = [replace(r, clocks=clocks, time=now, visit=visit) for r in self._finish(entries)]
        self.first.update({row.key: row for row in rows if row.key not in self.first})
        return rows

    def _measure_machine(self) -> None:
        machine = environment.machine(self.device)
        if not self.device.emulated:
            self.roofs = roofs.measure(self.device, self.clock)
        self.facts = {
            "machine": machine,
            "versions": environment.versions(),
            "roofs": {"gbps": self.roofs.gbps, "tflops": self.roofs.tflops} if self.roofs else {},
        }
        if self.suite.baseline == TORCH and self.roofs is not None:
            rates = self.roofs.tflops
            fast_bf16 = rates.get("bfloat16", 0.0) > rates.get("float32", 0.0)
            self.baseline = "torch_bf16" if fast_bf16 else "torch_fp32"

    def _stages(self, variant: Variant, case: Case) -> tuple[str, ...]:
        wanted = self.suite.stages if not case.is_quantize else ("quantize",)
        return tuple(stage for stage in variant.stages(case) if stage in (*wanted, ANCHOR))

    def _keys(self, case: Case) -> set[tuple[str, str, str]]:
        keys = {
            (case.key, variant.name, stage)
            for variant in self.variants
            for stage in self._stages(variant, case)
        }
        return {key for key in keys if self._worthwhile(key)}

    def _worthwhile(self, key: tuple[str, str, str]) -> bool:
        """Return whether a row is still open: not after a first visit that said why not."""
        return key not in self.first or self.first[key].status == TIMED

    def _entry(self, case: Case, data: operands.Operands, variant: Variant, stage: str) -> Entry:
        """Return an entry that is ready to be timed, or finished with the reason why not."""
        row = self._blank(case, variant, stage)
        entry = Entry(variant, stage, row)
        try:
            self._make_ready(entry, case, data)
        except REFUSALS as error:
            return self._ended(entry, REJECTED, str(error))
        except ERRORS as error:
            self._still_there(error, variant)
            return self._ended(entry, FAILED, f"{type(error).__name__}: {error}")
        return entry

    def _make_ready(self, entry: Entry, case: Case, data: operands.Operands) -> None:
        if text := self._slow_before(entry, case):
            self._ended(entry, TOO_SLOW, text)
            return
        work = entry.variant.work(case, data, entry.stage, self.device)
        entry.work = work
        entry.row = replace(
            entry.row, plan=work.plan, layout=work.layout, bytes_moved=work.bytes_moved
        )
        if work.modelled_ms is not None:
            self._model(entry, work, case, data)
            return
        contender = timing.Contender([work.make()])
        begun = time.perf_counter()
        result = contender.call()
        seconds = time.perf_counter() - begun
        if self.where.type == "cpu" and seconds > HOPELESS * self.suite.max_call_seconds:
            self._too_slow(entry, case, seconds)
            return
        known = self.first.get(entry.row.key)
        if known is not None:
            entry.row = replace(entry.row, oracle=known.oracle, source_error=known.source_error)
        elif self.check and not self._verify(entry, work, result, data):
            return
        seconds = timing.estimate(contender, self.clock)
        if seconds > self.suite.max_call_seconds:
            self._too_slow(entry, case, seconds)
            return
        cache_bytes = self.facts["machine"]["cache_bytes"]
        count = timing.num_buffers(case.cache, work.bytes_moved, cache_bytes, seconds)
        contender.calls = [*contender.calls, *(work.make() for _ in range(count - 1))]
        timing.warm_up(contender, self.suite.warm_up_seconds, self.clock)
        entry.contender = contender

    def _model(self, entry: Entry, work: Work, case: Case, data: operands.Operands) -> None:
        """Make a modelled row, of which the emulator computes and verifies what is small."""
        small = case.flops <= EMULATED_FLOPS
        checked = small and self.check
        entry.row = replace(
            entry.row,
            status=MODELLED,
            reason=f"model of an emulated device, which ignores {work.model_ignores}; "
            f"{'run and verified in the emulator' if checked else 'not run'}",
        )
        if checked:
            self._verify(entry, work, work.make()(), data)

    def _slow_before(self, entry: Entry, case: Case) -> str:
        """Return why the entry would be too slow by what its variant took before, "" if unknown.

        A whole way holds its product; a rate grows with the number of rows.
        """
        limit = self.suite.max_call_seconds
        for stage in {entry.stage, "gemm"} if entry.row.flops else ():
            for other, seconds in self.slow.get((entry.variant.name, stage), ()):
                expected = seconds * case.flops / other.flops
                if other.m <= case.m and expected > CERTAIN * limit:
                    return (
                        f"not tried: a call would take about {expected:.3g} s, above {limit:g} s, "
                        f"by the {seconds:.3g} s of m={other.m} n={other.n} k={other.k}"
                    )
        return ""

    def _too_slow(self, entry: Entry, case: Case, seconds: float) -> None:
        limit = self.suite.max_call_seconds
        self._ended(entry, TOO_SLOW, f"a call takes {seconds:.3g} s, above {limit:g} s")
        if entry.row.flops:
            self.slow.setdefault((entry.variant.name, entry.stage), []).append((case, seconds))

    def _verify(self, entry: Entry, work: Work, result: object, data: operands.Operands) -> bool:
        """Return whether a call's result is right; a wrong one ends the entry."""
        if work.check is not None and (text := work.check(result)):
            self._ended(entry, WRONG, text)
            return False
        if work.check is not None:
            entry.row = replace(entry.row, oracle={"worst": 0.0, "relative_error": 0.0})
        if work.expected is None or not isinstance(result, torch.Tensor):
            return True
        verdict = error_bound.verify(result, work.expected())
        if not verdict.passed:
            self._ended(entry, WRONG, verdict.detail)
            return False
        oracle = {"worst": verdict.worst, "relative_error": verdict.relative_error}
        error = data.source_error(result) if result.is_floating_point() else None
        entry.row = replace(entry.row, oracle=oracle, source_error=error)
        return True

    def _ended(self, entry: Entry, status: str, reason: str) -> Entry:
        entry.row = replace(entry.row, status=status, reason=" ".join(reason.split())[:500])
        entry.work = None
        return entry

    def _still_there(self, error: Exception, variant: Variant) -> None:
        """Raise DeviceLost where an error took the device with it."""
        if self.where.type != "cuda":
            return
        try:
            torch.cuda.synchronize(self.where)
        except RuntimeError:
            raise DeviceLost(
                f"bench: {variant.name} lost the device: {error}; finished cases are kept, "
                "leave it out and pass --resume"
            ) from error

    def _blank(self, case: Case, variant: Variant, stage: str) -> Row:
        return Row(
            run=self.run,
            time="",
            suite=self.suite.name,
            case=case.key,
            pass_name=case.pass_name,
            name=case.name,
            m=case.m,
            n=case.n,
            k=case.k,
            out_dtype=case.out_dtype,
            distribution=case.distribution,
            seed=case.seed,
            cache=case.cache,
            variant=variant.name,
            backend=variant.backend,
            computes=variant.computes,
            stage=stage,
            status=TIMED,
            baseline=self.baseline,
            flops=case.flops if stage in ("gemm", "total") else 0,
            **self.facts,
        )

    def _finish(self, entries: list[Entry]) -> tuple[Row, ...]:
        """Return the rows with times and, against the baseline's same rounds, speed-ups."""
        rows = []
        for entry in entries:
            row, contender = entry.row, entry.contender
            if row.status == MODELLED and entry.work is not None:
                row = row.with_samples((entry.work.modelled_ms or 0.0,), (1,))
            if contender is not None:
                samples = tuple(round(1e3 * sample, 7) for sample in contender.samples)
                row = replace(
                    row,
                    calls_per_sample=contender.calls_per_sample,
                    buffers=len(contender.calls),
                    timer=contender.timer,
                    disturbed=contender.disturbed,
                ).with_samples(samples, (len(samples),))
            rows.append(row)
        return with_speedups(rows)


@contextmanager
def machine_state(threads: int) -> Iterator[None]:
    """Pin torch's threads (0 leaves them) and full-precision CUDA products, and restore both."""
    before = torch.get_num_threads()
    matmul = torch.backends.cuda.matmul
    reduced = matmul.allow_bf16_reduced_precision_reduction, matmul.allow_tf32
    if threads:
        torch.set_num_threads(threads)
    matmul.allow_bf16_reduced_precision_reduction, matmul.allow_tf32 = False, False
    try:
        yield
    finally:
        torch.set_num_threads(before)
        matmul.allow_bf16_reduced_precision_reduction, matmul.allow_tf32 = reduced


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
