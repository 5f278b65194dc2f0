"""The bars of the Hopper backend, measured on one GPU: rows as JSON lines, a table at the end.

    python benchmarks/hopper_bars.py --out rows.jsonl [--rounds 9] [--sections large,middle,...]

All candidates of a shape run interleaved, in an order that is shuffled every round, since on this
chip the same kernel differs by 20 % between cool and hot; what counts is the ratio of medians of
one run. `large` times calls with a flushed L2 cache (triton's do_bench), of the largest shapes one
call of each candidate after the other; `middle` and `small` time CUDA graphs that rotate over
several copies of the weight, so that nothing is resident. Every candidate's result is compared
with the FP64 product of some rows before it is timed.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
import triton

import mxgemm
from mxgemm.backends.base import Backend, Operand, PreparedOperand
from mxgemm.backends.cuda_hopper import CudaHopper, keep_folded, launch
from mxgemm.backends.triton_dot_scaled import TritonDotScaled
from mxgemm.epilogue import NO_ARGS
from mxgemm.matmul import problem_for
from mxgemm.problem import Numerics
from mxgemm.quantizers import cuda as quantizer
from mxgemm.quantizers.options import QuantizeOptions
from mxgemm.runtime import cuda_driver
from mxgemm.tensor import MXTensor

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
LARGE = [
    (4096, 4096, 4096),
    (2048, 4096, 14336),
    (8192, 8192, 8192),
    (8192, 28672, 8192),
    (8192, 8192, 28672),
]
ALTERNATING_FROM, ALTERNATING_ROUNDS = 8192**3, 60
"""Candidates of such a product of m, n and k alternate call by call, in so many rounds.

The chip lowers its clock within tens of milliseconds to what the power of its load allows: over
many calls of some milliseconds each candidate would be timed at a clock of its own, or at that of
the one before it.
"""

FLUSH_BYTES = 1 << 28

SMALL_M = (1, 8, 16, 32, 64)
MIDDLE_M = (128, 256, 512, 1024)
RAGGED = {
    "both_folded": (8192, 8192, (129, 193, 256, 300, 384, 600, 768, 1921, 2048)),
    "a_folded": (8192, 8192, (9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 700, 768, 900, 1024)),
    "unprepared": (8192, 8192, (9, 16, 17, 32, 33, 64, 65, 128)),
}
"""n, k and some m of a form: such as do not fill their tiles, each before one that does."""

WEIGHT = 8192
WEIGHT_COPIES = 5
CHECKED_ROWS = 64
ACCURACY_SIZE = 1024
ACCURACY_BARS = {Numerics.DEFAULT: 2e-4, Numerics.STRICT: 3e-6}
"""Of ||D - exact||_F / ||exact||_F in FP32, before any output rounding."""
LARGEST_ERROR = 4e-3
"""Of D against FP64, relative to |A| |B|: bfloat16 rounding and no more."""

Call = Callable[[], object]


def operands(m: int, n: int, k: int) -> tuple[MXTensor, MXTensor]:
    a = mxgemm.quantize(torch.randn(m, k, device="cuda", dtype=BF16))
    return a, mxgemm.quantize(torch.randn(n, k, device="cuda", dtype=BF16) * 0.02)


def matmul_call(a: torch.Tensor, b: torch.Tensor) -> Call:
    return lambda: a @ b.t()


def backend_call(
    backend: Backend,
    a: Operand,
    b: Operand,
    out: torch.Tensor,
    numerics: Numerics = Numerics.DEFAULT,
) -> Call:
    plan = backend.plan(problem_for(a, b, numerics=numerics))
    return lambda: plan.run(a, b, out, NO_ARGS)


def cublas_call(a: PreparedOperand, b: PreparedOperand) -> Call:
    """Row-wise E4M3 without fast accumulation on folded operands, their scales made beforehand."""
    left, right = a.payload, b.payload
    m, n = left.folded.shape[0], right.folded.shape[0]
    scale_a = torch.exp2(left.powers[:m].float())[:, None].contiguous()
    scale_b = torch.exp2(right.powers[:n].float())[None, :].contiguous()
    values_a, values_b = left.folded.view(FP8), right.folded.view(FP8).t()
    return lambda: torch._scaled_mm(
        values_a, values_b, scale_a, scale_b, out_dtype=BF16, use_fast_accum=False
    )


def error_of(out: torch.Tensor, a: MXTensor, b: MXTensor) -> float:
    rows = torch.randperm(a.rows)[:CHECKED_ROWS].tolist()
    some = MXTensor.from_parts(a.codes[rows].contiguous(), a.scales[rows].contiguous())
    left, right = (mxgemm.dequantize(t, torch.float64, rotate_to_source=False) for t in (some, b))
    exact, magnitude = left @ right.t(), left.abs() @ right.abs().t()
    return float(((out[rows].double() - exact).abs() / magnitude).max())


def time_call(call: Call, *, warmup_ms: int = 8, measured_ms: int = 25) -> float:
    median = triton.testing.do_bench(call, warmup=warmup_ms, rep=measured_ms, return_mode="median")
    return median * 1e3


def time_single(flushed: torch.Tensor, call: Call) -> float:
    """Return the microseconds of one call after `flushed` took the place of all else in L2."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flushed.zero_()
    start.record()
    call()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) * 1e3


def time_graph(calls: list[Call]) -> Callable[[], float]:
    """Return a function that replays a graph of the calls and returns microseconds a call."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls + calls:
            call()

    def once() -> float:
        times = []
        for _ in range(5):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            stop.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(stop) * 1e3 / (2 * len(calls)))
        return statistics.median(times)

    return once


class Report:
    def __init__(self, path: Path, rounds: int) -> None:
        self.path, self.rounds = path, rounds
        self.times: dict[str, list[float]] = {}
        """Of the last measurement, a round each."""

    def measure(
        self,
        section: str,
        shape: dict[str, int | str],
        timers: dict[str, Callable[[], float]],
        errors: dict[str, float],
        rounds: int | None = None,
    ) -> dict[str, float]:
        self.times = times = {name: [] for name in timers}
        for _ in range(rounds or self.rounds):
            for name in random.sample(list(timers), len(timers)):
                times[name].append(timers[name]())
        medians = {name: statistics.median(values) for name, values in times.items()}
        for name, values in times.items():
            row = {
                "section": section,
                **shape,
                "name": name,
                "us": round(medians[name], 3),
                "rounds": [round(value, 3) for value in values],
                "error": errors.get(name),
            }
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return medians

    def note(self, section: str, values: dict[str, object]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"section": section, **values}) + "\n")

    def table(self, title: str, medians: dict[str, float], bases: list[str]) -> None:
        """Print the last measurement: medians, their ratios, and in parentheses the median of the
        rounds' ratios, since the clock may step between one candidate's median round and another's.
        """
        print(f"== {title}", flush=True)
        for name, value in medians.items():
            ratios = [
                f"{medians[base] / value:6.3f}x {base} ({self.paired(base, name):.3f})"
                for base in bases
            ]
            print(f"  {name:28s} {value:9.2f} us  {'  '.join(ratios)}".rstrip(), flush=True)

    def paired(self, base: str, name: str) -> float:
        """Return the median over the rounds of the ratio of two candidates' times."""
        pairs = zip(self.times[base], self.times[name], strict=True)
        return statistics.median(before / after for before, after in pairs)


def checked(
    calls: dict[str, Call], a: MXTensor, b: MXTensor, out: torch.Tensor
) -> dict[str, float]:
    """Run every call once on a poisoned output and return its error."""
    errors = {}
    for name, call in calls.items():
        out.fill_(torch.nan)
        result = call()
        torch.cuda.synchronize()
        errors[name] = error_of(result, a, b)
        assert errors[name] <= LARGEST_ERROR, (name, errors[name])
    return errors


def large(report: Report) -> None:
    hopper, dot_scaled = CudaHopper(), TritonDotScaled()
    flushed = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for m, n, k in LARGE:
        a, b = operands(m, n, k)
        wide_a, wide_b = mxgemm.dequantize(a).to(BF16), mxgemm.dequantize(b).to(BF16)
        folded_a, folded_b = keep_folded(a, "a"), keep_folded(b, "b")
        out = torch.empty(m, n, dtype=BF16, device="cuda")
        calls: dict[str, Call] = {
            "bf16": matmul_call(wide_a, wide_b),
            "cublas_promoted": cublas_call(folded_a, folded_b),
            "both_packed": backend_call(hopper, a, b, out),
            "a_folded": backend_call(hopper, folded_a, b, out),
            "both_folded": backend_call(hopper, folded_a, folded_b, out),
        }
        calls["strict_both_packed"] = backend_call(hopper, a, b, out, numerics=Numerics.STRICT)
        if (m, n, k) == (4096, 4096, 4096):  # in alternation its slow calls would cool the chip
            calls["triton_dot_scaled"] = backend_call(dot_scaled, a, b, out)
        errors = checked(calls, a, b, out)
        alternating = m * n * k >= ALTERNATING_FROM
        timer = functools.partial(time_single, flushed) if alternating else time_call
        timers = {name: functools.partial(timer, call) for name, call in calls.items()}
        rounds = ALTERNATING_ROUNDS if alternating else report.rounds
        medians = report.measure("large", {"m": m, "n": n, "k": k}, timers, errors, rounds)
        bases = ["bf16", "cublas_promoted"]
        bases += ["triton_dot_scaled"] if "triton_dot_scaled" in medians else []
        report.table(f"{m}x{n}x{k}", medians, bases)
        del wide_a, wide_b, folded_a, folded_b, out, calls, timers
        torch.cuda.empty_cache()


def prepared(backend: Backend, weights: list[MXTensor]) -> list[PreparedOperand]:
    plan = backend.plan(problem_for(weights[0], weights[0]))
    return [plan.prepare_b(weight) for weight in weights]


def graphs(report: Report, section: str, sizes: tuple[int, ...], copy_rate: float) -> None:
    hopper = CudaHopper()
    weights = [operands(1, WEIGHT, WEIGHT)[1] for _ in range(WEIGHT_COPIES)]
    packed = prepared(hopper, weights)
    nbytes = packed[0].payload.tiles.nbytes  # what a call reads: codes and table offsets
    folded = [keep_folded(weight, "b") for weight in weights]
    wide = [mxgemm.dequantize(weight).to(BF16) for weight in weights]
    for m in sizes:
        a = operands(m, 32, WEIGHT)[0]
        wide_a, folded_a = mxgemm.dequantize(a).to(BF16), keep_folded(a, "a")
        out = torch.empty(m, WEIGHT, dtype=BF16, device="cuda")
        calls: dict[str, list[Call]] = {
            "bf16": [matmul_call(wide_a, weight) for weight in wide],
            "packed": [backend_call(hopper, a, w, out) for w in packed],
            "packed_a_folded": [backend_call(hopper, folded_a, w, out) for w in packed],
            "unprepared": [backend_call(hopper, a, w, out) for w in weights],
        }
        if m >= 16:
            calls["fp8"] = [cublas_call(folded_a, w) for w in folded]
        errors = checked({name: each[0] for name, each in calls.items()}, a, weights[0], out)
        timers = {name: time_graph(each) for name, each in calls.items()}
        medians = report.measure(section, {"m": m, "n": WEIGHT, "k": WEIGHT}, timers, errors)
        bases = ["bf16"] + (["fp8"] if "fp8" in medians else [])
        report.table(f"M={m}, N=K={WEIGHT}, packed weight {nbytes / 1e6:.2f} MB", medians, bases)
        for name in ("packed", "packed_a_folded"):
            share = nbytes / medians[name] * 1e-3 / copy_rate
            print(f"  {name}: {share:.3f} of copy bandwidth", flush=True)


def ragged(report: Report) -> None:
    """Rows that do not fill a tile should take no longer than those that do."""
    hopper = CudaHopper()
    for form, (n, k, sizes) in RAGGED.items():
        weights = [operands(1, n, k)[1] for _ in range(WEIGHT_COPIES)]
        right: list[Operand] = list(weights)
        if form == "both_folded":
            right = [keep_folded(weight, "b") for weight in weights]
        elif form == "a_folded":
            right = prepared(hopper, weights)
        timers, errors = {}, {}
        for m in sizes:
            a, out = operands(m, 32, k)[0], torch.empty(m, n, dtype=BF16, device="cuda")
            folded = keep_folded(a, "a")
            calls = [backend_call(hopper, folded, b, out) for b in right]
            errors |= checked({f"m={m}": calls[0]}, a, weights[0], out)
            timers[f"m={m}"] = time_graph(calls)
        shape = {"n": n, "k": k, "form": form}
        report.table(f"{form}, {n}x{k}", report.measure("ragged", shape, timers, errors), [])


def copy_rate() -> float:
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / time_call(lambda: target.copy_(source)) * 1e-3


def quantize_then_fold(plan: mxgemm.GemmPlan, x: torch.Tensor) -> object:
    return plan.prepare_a(mxgemm.quantize(x))


def memory(report: Report) -> None:
    """Fold and quantizers, as shares of copy bandwidth."""
    for rows, k in ((8192, 8192), (16384, 8192), (8192, 28672), (28672, 8192)):
        x = torch.randn(rows, k, device="cuda", dtype=BF16)
        options = QuantizeOptions()
        tensor = mxgemm.quantize(x)
        folded = launch.fold_one(tensor, k)
        plan = CudaHopper().plan(problem_for(tensor, tensor))
        stream = launch.cuda_driver.current_stream(0)
        where = (tensor, folded.folded.data_ptr(), folded.powers.data_ptr())
        source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        calls: dict[str, tuple[Call, float]] = {
            "copy": (functools.partial(target.copy_, source), 2 * source.numel()),
            "fold": (
                functools.partial(launch.fold, [where], k, 0, stream),
                rows * k * (1 + 17 / 32),
            ),
            "quantize_one_way": (
                functools.partial(quantizer.quantize_matrix, x, k, options),
                rows * k * (2 + 17 / 32),
            ),
            "quantize_both_ways": (
                functools.partial(quantizer.quantize_both, x, k, rows, options),
                rows * k * (2 + 17 / 16),
            ),
            "quantize_to_folded": (
                functools.partial(plan.quantize_a, x),
                rows * k * (2 + 1 + 1 / 32),
            ),
            "quantize_then_fold": (
                functools.partial(quantize_then_fold, plan, x),
                rows * k * (2 + 1 + 1 / 32),
            ),
        }
        timers = {name: functools.partial(time_call, call) for name, (call, _) in calls.items()}
        medians = report.measure("memory", {"rows": rows, "k": k}, timers, {})
        rates = {name: nbytes / medians[name] * 1e-3 for name, (_, nbytes) in calls.items()}
        print(f"== {rows}x{k}", flush=True)
        for name, rate in rates.items():
            print(
                f"  {name:20s} {medians[name]:8.2f} us {rate:7.0f} GB/s "
                f"{rate / rates['copy']:.3f} of copy",
                flush=True,
            )


def _blocks(k: int, powers: int) -> torch.Tensor:
    """Gaussian rows whose blocks of 32 are times 2^U(-powers, powers)."""
    values = torch.randn(ACCURACY_SIZE, k // 32, 32, device="cuda")
    exponents = torch.randint(-powers, powers + 1, (ACCURACY_SIZE, k // 32, 1), device="cuda")
    return (values * torch.exp2(exponents.float())).view(ACCURACY_SIZE, k)


def _outlier_entries(k: int) -> torch.Tensor:
    values, drawn = (torch.randn(ACCURACY_SIZE, k, device="cuda") for _ in range(2))
    return torch.where(drawn > 3.09, values * 100, values)  # one in a thousand


def _outlier_channels(k: int) -> torch.Tensor:
    values = torch.randn(ACCURACY_SIZE, k, device="cuda")
    values[:, torch.randperm(k, device="cuda")[: k // 256]] *= 1000
    return values


def _student(k: int) -> torch.Tensor:
    """Student's t with 2 degrees of freedom: outliers of any size."""
    squares = sum(torch.randn(ACCURACY_SIZE, k, device="cuda").square() for _ in range(2))
    return torch.randn(ACCURACY_SIZE, k, device="cuda") / (squares / 2).sqrt()


def _gauss(k: int) -> torch.Tensor:
    return torch.randn(ACCURACY_SIZE, k, device="cuda")


def _small_spread(k: int) -> torch.Tensor:
    return (torch.rand(ACCURACY_SIZE, k, device="cuda") / 2 + 0.5) * torch.sign(_gauss(k))


Source = Callable[[int], torch.Tensor]
DATA: dict[str, tuple[Source, Source, tuple[int, ...]]] = {
    "gauss": (_gauss, _gauss, (2048, 8192, 28672)),
    "gauss, all positive": (
        lambda k: _gauss(k).abs(),
        lambda k: _gauss(k).abs(),
        (2048, 8192, 28672),
    ),
    "uniform, small spread": (_small_spread, _small_spread, (8192,)),
    "0.1 % entries x 100": (_outlier_entries, _outlier_entries, (8192,)),
    "channels of A x 1000": (_outlier_channels, _gauss, (8192,)),
    "student t(2)": (_student, _student, (8192,)),
    "blocks x 2^U(-6, 6)": (lambda k: _blocks(k, 6), lambda k: _blocks(k, 6), (8192,)),
    "blocks x 2^U(-12, 12)": (lambda k: _blocks(k, 12), lambda k: _blocks(k, 12), (8192,)),
    "blocks of A x 2^U(-12, 12)": (lambda k: _blocks(k, 12), _gauss, (8192,)),
}
"""Sources of A and of B, and the k they are multiplied at."""


def accuracy(report: Report) -> None:
    """Error of FP32 output against FP64 of both numerics and every form of B, on every data set;"""
    hopper = CudaHopper()
    print(f"== error of D before output rounding, m = n = {ACCURACY_SIZE}", flush=True)
    for name, (source_a, source_b, sizes) in DATA.items():
        for k in sizes:
            a, b = mxgemm.quantize(source_a(k)), mxgemm.quantize(source_b(k))
            exact = _exact(a, b)
            out = torch.empty_like(exact, dtype=torch.float32)
            spread = [int((t.scales.amax(1).int() - t.scales.amin(1).int()).max()) for t in (a, b)]
            found = {}
            for numerics in Numerics:
                plan = hopper.plan(problem_for(a, b, out_dtype=torch.float32, numerics=numerics))
                plan.run(a, b, out.fill_(torch.nan), NO_ARGS)
                error = float((out.double() - exact).norm() / exact.norm())
                bar = ACCURACY_BARS[numerics]
                found[str(numerics)] = error
                verdict = "" if error <= bar else f"  MISSED, bar {bar:g}"
                print(
                    f"  {name:28s} k={k:5d} spread {spread[0]:2d} {spread[1]:2d} "
                    f"{numerics:8s} {error:9.2e}{verdict}",
                    flush=True,
                )
            report.note("accuracy", {"data": name, "k": k, "spread": spread, "errors": found})


def _exact(a: MXTensor, b: MXTensor) -> torch.Tensor:
    left, right = (mxgemm.dequantize(t, torch.float64, rotate_to_source=False) for t in (a, b))
    return left @ right.t()


def wide(report: Report) -> None:
    """What rows wider than the window cost: none, every row of A, every row of both."""
    hopper = CudaHopper()
    m, n, k = 4096, 4096, 4096
    a, b = operands(m, n, k)
    wide_a, wide_b = (MXTensor.from_parts(t.codes, t.scales.clone()) for t in (a, b))
    for tensor in (wide_a, wide_b):
        tensor.scales[:, ::7] -= 16
    out = torch.empty(m, n, dtype=BF16, device="cuda")
    pairs = {"narrow": (a, b), "wide_a": (wide_a, b), "wide_both": (wide_a, wide_b)}
    calls: dict[str, Call] = {}
    errors: dict[str, float] = {}
    for name, (x, y) in pairs.items():
        made = {name: backend_call(hopper, keep_folded(x, "a"), keep_folded(y, "b"), out)}
        errors |= checked(made, x, y, out)
        calls |= made
    calls["bf16"] = matmul_call(*(mxgemm.dequantize(t).to(BF16) for t in (a, b)))
    timers = {name: functools.partial(time_call, call) for name, call in calls.items()}
    medians = report.measure("wide", {"m": m, "n": n, "k": k}, timers, errors)
    report.table(f"{m}x{n}x{k}, both folded, rows wider than the window", medians, ["narrow"])


def overhead() -> None:
    """Host time of a call of a plan, nothing waited for."""
    hopper = CudaHopper()
    calls: dict[str, Call] = {}
    for m in (16, 1024):
        a, b = operands(m, 2048, 2048)
        packed = hopper.plan(problem_for(a, b)).prepare_b(b)
        folded_a, folded_b = keep_folded(a, "a"), keep_folded(b, "b")
        out = torch.empty(m, 2048, dtype=BF16, device="cuda")
        pairs = {"packed": (a, packed), "packed_a_folded": (folded_a, packed)}
        if m > 512:
            pairs = {"both_packed": (a, b), "both_folded": (folded_a, folded_b)}
        for name, (left, right) in pairs.items():
            calls[f"m={m} {name}"] = backend_call(hopper, left, right, out)
    for name, call in calls.items():
        total = host_time(call)
        # A function, since a mock that counts its calls takes longer than they do.
        with mock.patch.object(cuda_driver, "_cu_launch_kernel_ex", _launch_nothing):
            python = host_time(call)
        print(f"host time of a call, {name}: {total:.1f} us, {python:.1f} without the driver's")


def _launch_nothing() -> Callable[..., int]:
    return lambda *_: 0


def host_time(call: Call) -> float:
    """Return the microseconds of host time that a call takes."""
    call()
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(50):
            call()
        times.append((time.perf_counter() - start) / 50 * 1e6)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    everything = "overhead,accuracy,small,middle,ragged,memory,wide,large"
    parser.add_argument("--sections", default=everything)
    chosen = parser.parse_args()
    report = Report(chosen.out, chosen.rounds)
    rate = copy_rate()
    device = torch.cuda.get_device_name()
    print(f"{device}, torch {torch.__version__}, copy {rate:.0f} GB/s", flush=True)
    sections: dict[str, Callable[[], None]] = {
        "overhead": overhead,
        "accuracy": lambda: accuracy(report),
        "wide": lambda: wide(report),
        "small": lambda: graphs(report, "small", SMALL_M, rate),
        "middle": lambda: graphs(report, "middle", MIDDLE_M, rate),
        "ragged": lambda: ragged(report),
        "memory": lambda: memory(report),
        "large": lambda: large(report),
    }
    for section in chosen.sections.split(","):
        sections[section]()


if __name__ == "__main__":
    main()
