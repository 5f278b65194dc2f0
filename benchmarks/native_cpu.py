"""Measures native_cpu against torch and against the processor's own ceilings.

Contenders of one case run in one process, their rounds interleaved; a row holds the median of the
rounds and all of them. A contender whose call would take longer than `--limit` seconds is measured
once on fewer rows, which its row says.

    python benchmarks/native_cpu.py --output benchmarks/results/native_cpu.jsonl
    python benchmarks/native_cpu.py --only gaussian --threads 2 --rounds 7

Ends with a table of what is expected and what was reached; a whole run takes some minutes. Where
oneDNN may use AMX, its contenders' names end in _amx; with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 it
does what a processor without AMX can do.

On a machine that others use, `--clock cpu` measures the process's CPU time per thread instead of
elapsed time: what is left of the noise is what others do to the caches and the memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import native_cpu_goals
import torch
from native_cpu_goals import Ratio

import mxgemm
from mxgemm.backends.base import GemmPlan, PreparedOperand
from mxgemm.backends.native_cpu import NativeCpu
from mxgemm.epilogue import NO_ARGS
from mxgemm.matmul import problem_for
from mxgemm.plain import PlainOperand
from mxgemm.runtime import native_cpu as runtime
from mxgemm.tensor import MXTensor

SQUARES = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (512, 4096, 4096))
DRAM_BYTES = 640 << 20
"""Of rotating weights, and of what the read loop reads: more than the largest caches hold."""

FEWEST_ROWS, MANY_ROWS = 32, 128
"""Rows on which torch's product is measured where all of them would take too long."""

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def amx_suffix() -> str:
    """Return what is added to the names of oneDNN's contenders where they may use AMX.

    ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 holds oneDNN to what a processor without AMX has.
    """
    most = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    allowed = most in ("", "ALL", "DEFAULT") or "AMX" in most
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return native_cpu_goals.AMX if allowed and " amx_tile " in flags else ""


BF16_MM, INT_MM = f"torch_bf16_mm{amx_suffix()}", f"torch_int_mm{amx_suffix()}"


@dataclass
class Contender:
    """One way to do a case: the call, and what it does, in operations or bytes."""

    name: str
    call: Callable[[], object]
    work: float
    unit: str = "GOP/s"
    note: str = ""
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def rate(self) -> float:
        return self.work / self.median / 1e9


@dataclass
class Case:
    """Contenders measured together, and the ratios that are asked for: (ours, theirs)."""

    group: str
    shape: str
    contenders: list[Contender]
    ratios: list[tuple[str, str]]


def time_once(call: Callable[[], object], at_least: float, clock: str) -> float:
    now = CLOCKS[clock]
    calls, start = 0, now()
    while True:
        call()
        calls += 1
        elapsed = now() - start
        if elapsed >= at_least:
            return elapsed / calls / (torch.get_num_threads() if clock == "cpu" else 1)


def measure(case: Case, rounds: int, clock: str) -> None:
    for contender in case.contenders:
        contender.call()
    for _ in range(rounds):
        for contender in case.contenders:
            contender.seconds.append(time_once(contender.call, 0.03, clock))


def operations(shape: tuple[int, int, int]) -> float:
    return 2.0 * shape[0] * shape[1] * shape[2]


def native_plan(
    a: MXTensor | torch.Tensor, b: MXTensor, prepared: PreparedOperand | None = None
) -> GemmPlan:
    plan = NativeCpu().plan(problem_for(a, b, out_dtype=torch.bfloat16))
    if prepared is None:
        return plan
    return dataclasses.replace(plan, problem=dataclasses.replace(plan.problem, b=prepared.spec))


def gemm_contender(
    name: str, a: MXTensor | torch.Tensor, b: MXTensor, *, prepare: bool = False
) -> Contender:
    operand = native_plan(a, b).prepare_b(b) if prepare else b
    plan = native_plan(a, b, operand if isinstance(operand, PreparedOperand) else None)
    rows = PlainOperand(a) if isinstance(a, torch.Tensor) else a
    out = torch.empty((rows.rows, b.rows), dtype=torch.bfloat16)
    return Contender(
        name,
        lambda: plan.run(rows, operand, out, NO_ARGS),
        operations((rows.rows, b.rows, b.stored_k)),
    )


def mm_contender(
    name: str, x: torch.Tensor, w: torch.Tensor, limit: float, mm: Callable[..., object] = torch.mm
) -> Contender:
    """torch's x @ w.T; on fewer rows where the whole would take longer than `limit` seconds."""
    rows = min(x.shape[0], FEWEST_ROWS)
    mm(x[:rows], w.t())
    start = time.perf_counter()
    mm(x[:rows], w.t())
    per_row = (time.perf_counter() - start) / rows
    fitting = [count for count in (x.shape[0], MANY_ROWS) if count * per_row <= limit]
    kept = x[: max((count for count in fitting if count <= x.shape[0]), default=rows)]
    note = "" if len(kept) == len(x) else f"measured on {len(kept)} rows"
    work = operations((kept.shape[0], w.shape[0], w.shape[1]))
    return Contender(name, lambda: mm(kept, w.t()), work, note=note)


def prepacked_contender(x: torch.Tensor, w: torch.Tensor) -> Contender:
    """oneDNN's linear with a reordered weight: bfloat16 where it has kernels, else float32."""
    bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    dtype = torch.bfloat16 if bf16 else torch.float32
    x, w = x.to(dtype), w.to(dtype)
    packed = torch.ops.mkldnn._reorder_linear_weight(w, x.shape[0])
    call = torch.ops.mkldnn._linear_pointwise
    return Contender(
        f"onednn_{'bf16' if bf16 else 'fp32'}_prepacked{amx_suffix()}",
        lambda: call(x, packed, None, "none", [], ""),
        operations((x.shape[0], w.shape[0], w.shape[1])),
    )


def multiply_contender() -> Contender:
    iterations, threads = 2_000_000, torch.get_num_threads()
    kernels, native = runtime.kernels(""), runtime.module()
    count = native.multiply_loop(kernels, iterations, threads)
    return Contender(
        "multiply_loop",
        lambda: native.multiply_loop(kernels, iterations, threads),
        2.0 * count,
    )


def gaussian(limit: float) -> Iterator[Case]:
    for m, n, k in SQUARES:
        x, w = torch.randn(m, k), torch.randn(n, k)
        a, b = mxgemm.quantize(x), mxgemm.quantize(w)
        contenders = [
            gemm_contender("native", a, b),
            gemm_contender("native_prepared", a, b, prepare=True),
            prepacked_contender(x, w),
            mm_contender("torch_fp32_mm", x, w, limit),
            mm_contender(BF16_MM, x.bfloat16(), w.bfloat16(), limit),
            mm_contender(
                INT_MM,
                torch.randint(-96, 97, (m, k), dtype=torch.int8),
                torch.randint(-96, 97, (n, k), dtype=torch.int8),
                limit,
                torch._int_mm,
            ),
            multiply_contender(),
        ]
        names = [each.name for each in contenders[2:]]
        ratios = [("native", name) for name in names]
        ratios.append(("native_prepared", contenders[2].name))
        yield Case("gaussian", f"{m}x{n}x{k}", contenders, ratios)


def prepared(limit: float) -> Iterator[Case]:
    del limit
    for m in (8, 16, 32, 64, 128):
        x, w = torch.randn(m, 4096), torch.randn(4096, 4096)
        a, b = mxgemm.quantize(x), mxgemm.quantize(w)
        contenders = [gemm_contender("native_prepared", a, b, prepare=True)]
        contenders.append(prepacked_contender(x, w))
        yield Case(
            "prepared", f"{m}x4096x4096", contenders, [("native_prepared", contenders[1].name)]
        )


def canonical(limit: float) -> Iterator[Case]:
    """Few rows times a weight that nobody prepared."""
    del limit
    for m in (1, 2, 4, 8):
        x, w = torch.randn(m, 4096), torch.randn(4096, 4096)
        a, b = mxgemm.quantize(x), mxgemm.quantize(w)
        contenders = [
            gemm_contender("native", a, b),
            gemm_contender("native_prepared", a, b, prepare=True),
            prepacked_contender(x, w),
        ]
        ratios = [(name, contenders[2].name) for name in ("native", "native_prepared")]
        yield Case("canonical", f"{m}x4096x4096", contenders, ratios)


def plain(limit: float) -> Iterator[Case]:
    """bfloat16 rows times a packed weight."""
    for m in (1, 4, 16, 128, 512):
        x, w = torch.randn(m, 4096).bfloat16(), torch.randn(4096, 4096)
        b = mxgemm.quantize(w)
        contenders = [
            gemm_contender("native_plain", x, b),
            gemm_contender("native_plain_prepared", x, b, prepare=True),
            gemm_contender("native_plain_fp32", x.float(), b, prepare=True),
            prepacked_contender(x, w),
            mm_contender("torch_fp32_mm", x.float(), w, limit),
        ]
        ratios = [(ours.name, other.name) for ours in contenders[:3] for other in contenders[3:]]
        yield Case("plain", f"{m}x4096x4096 bf16", contenders, ratios)


def data_of(kind: str, rows: int, k: int) -> MXTensor:
    generator = torch.Generator().manual_seed(rows + k)
    x = torch.randn(rows, k, generator=generator)
    if kind == "any_scales":
        tensor = mxgemm.quantize(x)
        shape = tensor.scales.shape
        scales = torch.randint(107, 148, shape, generator=generator, dtype=torch.uint8)
        return dataclasses.replace(tensor, scales=scales)
    if kind == "student_t4":
        chi = torch.randn(4, rows, k, generator=generator).square().sum(0)
        x = x / (chi / 4).sqrt()
    elif kind == "squared_relu":
        x = x.relu().square()
    elif kind == "outlier_channels":
        x[:, torch.randperm(k, generator=generator)[: k // 100]] *= 30
    return mxgemm.quantize(x)


def irregular(limit: float) -> Iterator[Case]:
    for m, n, k in ((1024, 1024, 1024), (512, 4096, 4096)):
        x, w = torch.randn(m, k), torch.randn(n, k)
        contenders = [
            gemm_contender(kind, data_of(kind, m, k), data_of(kind, n, k))
            for kind in (
                "gaussian",
                "any_scales",
                "student_t4",
                "squared_relu",
                "outlier_channels",
            )
        ]
        ratios = [
            (each.name, other)
            for each in contenders
            for other in (BF16_MM, "torch_fp32_mm", "gaussian")
            if each.name != other
        ]
        contenders.append(mm_contender(BF16_MM, x.bfloat16(), w.bfloat16(), limit))
        contenders.append(mm_contender("torch_fp32_mm", x, w, limit))
        yield Case("irregular", f"{m}x{n}x{k}", contenders, ratios)


def dram(limit: float) -> Iterator[Case]:
    del limit
    n = k = 4096
    b = mxgemm.quantize(torch.randn(n, k))
    size = native_plan(b, b).prepare_b(b).nbytes
    copies = [native_plan(b, b).prepare_b(b) for _ in range(DRAM_BYTES // size)]
    kernels, native, threads = runtime.kernels(""), runtime.module(), torch.get_num_threads()
    buffer = native.empty(1, DRAM_BYTES).fill_(1)  # as the weights, in large pages
    for m in (1, 8):
        a = mxgemm.quantize(torch.randn(m, k))
        plan, out = native_plan(a, b, copies[0]), torch.empty((m, n), dtype=torch.bfloat16)

        def sweep(plan: GemmPlan = plan, a: MXTensor = a, out: torch.Tensor = out) -> None:
            for copy in copies:
                plan.run(a, copy, out, NO_ARGS)

        x16 = PlainOperand(torch.randn(m, k).bfloat16())
        plan16 = native_plan(x16.values, b, copies[0])

        def sweep16(
            plan: GemmPlan = plan16, x: PlainOperand = x16, out: torch.Tensor = out
        ) -> None:
            for copy in copies:
                plan.run(x, copy, out, NO_ARGS)

        contenders = [
            Contender("native_prepared", sweep, float(size * len(copies)), "GB/s"),
            Contender("native_plain", sweep16, float(size * len(copies)), "GB/s"),
        ]
        ratios = []
        for name, asks_ahead in (("read_loop", False), ("read_loop_ahead", True)):

            def read(*, asks_ahead: bool = asks_ahead) -> None:
                address = buffer.data_ptr()
                native.read_loop(kernels, address, buffer.numel(), asks_ahead, threads)

            contenders.append(Contender(name, read, float(buffer.numel()), "GB/s"))
            ratios += [(each.name, name) for each in contenders[:2]]
        yield Case("dram", f"{m}x{n}x{k}", contenders, ratios)


def quantizers(limit: float) -> Iterator[Case]:
    del limit
    for rows in (4096, 8192):
        x = torch.randn(rows, rows).bfloat16()
        target, size = torch.empty_like(x), 2.0 * x.numel()
        contenders = [
            Contender("quantize", lambda x=x: mxgemm.quantize(x), size, "GB/s"),
            Contender("quantize_pair", lambda x=x: mxgemm.quantize_pair(x), size, "GB/s"),
            Contender("torch_copy", lambda x=x, y=target: y.copy_(x), size, "GB/s"),
            # As the quantizers do, this one makes its result.
            Contender("torch_clone", x.clone, size, "GB/s"),
        ]
        ratios = [
            (ours, theirs)
            for ours in ("quantize", "quantize_pair")
            for theirs in ("torch_copy", "torch_clone")
        ]
        yield Case("quantize", f"{rows}x{rows} bf16", contenders, ratios)


def overhead(limit: float) -> Iterator[Case]:
    del limit
    a, b = mxgemm.quantize(torch.randn(1, 32)), mxgemm.quantize(torch.randn(16, 32))
    ready = native_plan(a, b).prepare_b(b)
    plan, out = native_plan(a, b, ready), torch.empty((1, 16), dtype=torch.bfloat16)
    contenders = [
        Contender("plan.run", lambda: plan.run(a, ready, out, NO_ARGS), 1.0, "Gcall/s"),
        Contender("plan()", lambda: plan(a, ready, out=out), 1.0, "Gcall/s"),
    ]
    yield Case("overhead", "1x16x32", contenders, [])


GROUPS = {
    "gaussian": gaussian,
    "prepared": prepared,
    "canonical": canonical,
    "plain": plain,
    "irregular": irregular,
    "dram": dram,
    "quantize": quantizers,
    "overhead": overhead,
}


def machine() -> dict[str, object]:
    name = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "isa": runtime.description(""),
        "torch": torch.__version__,
    }


def rows_of(case: Case, threads: int, clock: str) -> Iterator[dict[str, object]]:
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    shared = {"date": now, **machine(), "threads": threads, "clock": clock}
    shared["load"] = round(os.getloadavg()[0], 2)
    shared |= {"group": case.group, "shape": case.shape}
    for each in case.contenders:
        yield {
            **shared,
            "contender": each.name,
            "median_us": round(each.median * 1e6, 2),
            "rate": round(each.rate, 3),
            "unit": each.unit,
            "note": each.note,
            "rounds_us": [round(1e6 * s, 2) for s in each.seconds],
        }


def ratios_of(case: Case, threads: int) -> list[Ratio]:
    """Return the ratios of a case, round by round: contenders of a round met the same machine."""
    by_name = {each.name: each for each in case.contenders}
    found = []
    for name, other in case.ratios:
        ours, theirs = by_name[name], by_name[other]
        pairs = zip(ours.seconds, theirs.seconds, strict=True)
        rounds = tuple(ours.work / theirs.work * t / o for o, t in pairs)
        found.append(Ratio(case.group, case.shape, threads, name, other, rounds, theirs.note))
    if case.group == "overhead":
        seconds = by_name["plan.run"].seconds
        found.append(native_cpu_goals.overhead_ratio(case.shape, threads, seconds))
    return found


def report(case: Case, ratios: list[Ratio], threads: int) -> None:
    print(f"\n{case.group} {case.shape}, {threads} threads, load {os.getloadavg()[0]:.1f}")
    for each in case.contenders:
        rate = f"{each.rate:9.1f} {each.unit} {each.note}"
        print(f"  {each.name:24} {each.median * 1e6:12.1f} us {rate}")
    for ratio in ratios:
        print(f"  {ratio.ours} / {ratio.theirs}: {ratio.value:.2f} (spread {ratio.spread:.0%})")


def warn_of_noise(clock: str) -> None:
    """Say that others use the machine, before they spoil a run."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        advice = "" if clock == "cpu" else "; wait, or pass --clock cpu"
        print(f"noisy: load {load:.1f} on {cores} cores{advice}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", choices=GROUPS, action="append", help="groups to run; all by default"
    )
    parser.add_argument(
        "--threads", type=int, action="append", help="thread counts; 1 and 2 by default"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument(
        "--limit", type=float, default=0.5, help="longest call of torch's, in seconds"
    )
    parser.add_argument("--output", type=Path, help="JSONL file to append rows to")
    parser.add_argument("--json", action="store_true", help="print the table as JSON as well")
    parser.add_argument(
        "--table",
        type=Path,
        nargs="+",
        help="measure nothing, print the table of files of rows, each perhaps of a part of a run",
    )
    options = parser.parse_args()
    if options.table:
        native_cpu_goals.show(native_cpu_goals.table(native_cpu_goals.read_ratios(options.table)))
        return
    warn_of_noise(options.clock)
    ratios: list[Ratio] = []
    for threads in options.threads or (1, 2):
        torch.set_num_threads(threads)
        for group in options.only or GROUPS:
            for case in GROUPS[group](options.limit):
                measure(case, options.rounds, options.clock)
                of_case = ratios_of(case, threads)
                report(case, of_case, threads)
                ratios += of_case
                if options.output:
                    with options.output.open("a", encoding="utf-8") as file:
                        file.writelines(
                            json.dumps(row) + "\n" for row in rows_of(case, threads, options.clock)
                        )
    lines = native_cpu_goals.table(ratios)
    native_cpu_goals.show(lines, native_cpu_goals.remarks())
    if options.json:
        print(json.dumps(native_cpu_goals.as_json(lines)))


if __name__ == "__main__":
    main()
