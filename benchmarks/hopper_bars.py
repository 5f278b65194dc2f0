"""The bars of the Hopper backend, measured on one GPU: rows as JSON lines, a table at the end.

    python benchmarks/hopper_bars.py --out rows.jsonl [--rounds 9] [--sections large,middle,...]

All candidates of a shape run interleaved, in an order that is shuffled every round, since on this
chip the same kernel differs by 20 % between cool and hot; what counts is the ratio of medians of
one run. `large` times single calls with a flushed L2 cache (triton's do_bench); `middle` and
`small` time CUDA graphs that rotate over several copies of the weight, so that nothing is resident.
Every candidate's result is compared with the FP64 product of some rows before it is timed.
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
from mxgemm.tensor import MXTensor

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
LARGE = [
    (4096, 4096, 4096),
    (2048, 4096, 14336),
    (8192, 8192, 8192),
    (8192, 28672, 8192),
    (8192, 8192, 28672),
]
SMALL_M = (1, 8, 16, 32, 64)
MIDDLE_M = (128, 256, 512, 1024)
WEIGHT = 8192
WEIGHT_COPIES = 5
CHECKED_ROWS = 64
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


def time_call(call: Call) -> float:
    return triton.testing.do_bench(call, warmup=8, rep=25, return_mode="median") * 1e3


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
        self.rows: list[dict[str, object]] = []

    def measure(
        self,
        section: str,
        shape: dict[str, int],
        timers: dict[str, Callable[[], float]],
        errors: dict[str, float],
    ) -> dict[str, float]:
        times: dict[str, list[float]] = {name: [] for name in timers}
        for _ in range(self.rounds):
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
            self.rows.append(row)
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return medians

    def table(self, title: str, medians: dict[str, float], bases: list[str]) -> None:
        print(f"== {title}", flush=True)
        for name, value in medians.items():
            ratios = "  ".join(f"{medians[base] / value:6.3f}x {base}" for base in bases)
            print(f"  {name:28s} {value:9.2f} us  {ratios}", flush=True)


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
        if (m, n, k) in ((8192, 8192, 8192), (4096, 4096, 4096)):
            calls["triton_dot_scaled"] = backend_call(dot_scaled, a, b, out)
        errors = checked(calls, a, b, out)
        timers = {name: functools.partial(time_call, call) for name, call in calls.items()}
        medians = report.measure("large", {"m": m, "n": n, "k": k}, timers, errors)
        bases = ["bf16", "cublas_promoted"]
        bases += ["triton_dot_scaled"] if "triton_dot_scaled" in medians else []
        report.table(f"{m}x{n}x{k}", medians, bases)
        del wide_a, wide_b, folded_a, folded_b, out, calls, timers
        torch.cuda.empty_cache()


def graphs(report: Report, section: str, sizes: tuple[int, ...], copy_rate: float) -> None:
    hopper = CudaHopper()
    weights = [operands(1, WEIGHT, WEIGHT)[1] for _ in range(WEIGHT_COPIES)]
    plan = hopper.plan(problem_for(weights[0], weights[0]))
    packed = [plan.prepare_b(weight) for weight in weights]
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


def copy_rate() -> float:
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / time_call(lambda: target.copy_(source)) * 1e-3


def memory(report: Report) -> None:
    """Fold and quantizers, as shares of copy bandwidth."""
    for rows, k in ((8192, 8192), (16384, 8192), (8192, 28672), (28672, 8192)):
        x = torch.randn(rows, k, device="cuda", dtype=BF16)
        options = QuantizeOptions()
        tensor = mxgemm.quantize(x)
        folded = launch.fold_one(tensor, k)
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


def overhead() -> None:
    """Host time of a call of a plan, nothing waited for."""
    a, b = operands(16, 2048, 2048)
    hopper = CudaHopper()
    packed = hopper.plan(problem_for(a, b)).prepare_b(b)
    out = torch.empty(16, 2048, dtype=BF16, device="cuda")
    for name, left in (("packed", a), ("packed_a_folded", keep_folded(a, "a"))):
        call = backend_call(hopper, left, packed, out)
        best = []
        for _ in range(20):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(50):
                call()
            best.append((time.perf_counter() - start) / 50 * 1e6)
        print(f"host time of a call, {name}: {statistics.median(best):.1f} us", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sections", default="overhead,small,middle,memory,large")
    chosen = parser.parse_args()
    report = Report(chosen.out, chosen.rounds)
    rate = copy_rate()
    device = torch.cuda.get_device_name()
    print(f"{device}, torch {torch.__version__}, copy {rate:.0f} GB/s", flush=True)
    sections: dict[str, Callable[[], None]] = {
        "overhead": overhead,
        "small": lambda: graphs(report, "small", SMALL_M, rate),
        "middle": lambda: graphs(report, "middle", MIDDLE_M, rate),
        "memory": lambda: memory(report),
        "large": lambda: large(report),
    }
    for section in chosen.sections.split(","):
        sections[section]()


if __name__ == "__main__":
    main()
