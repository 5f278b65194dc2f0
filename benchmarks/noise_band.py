"""Does the noise band hold? Runs of the same code, and runs with a variant slowed on purpose.

    python benchmarks/noise_band.py --repeats 20 -o folder
    python benchmarks/noise_band.py --repeats 20 --device cuda -o folder

Each repeat is one run of a small suite that also times exact copies and slowed copies of a variant.
On a CPU a run is a process of its own and every visit is forked from it, because where code and
buffers lie in memory shifts a ratio for as long as a process lives; on CUDA every run is forked.
Then every run is compared with
the one before it (false alarms), with the slowed copy put in the place of the original (10 % across
runs), and within itself (5 %). Runs that are in the folder already are kept, so that the script may
be stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from mxgemm.bench import cases, compare, environment, results, roofs, spread, variants
from mxgemm.bench.anchors import FROZEN
from mxgemm.bench.cases import ANCHOR
from mxgemm.bench.peers import PEERS
from mxgemm.bench.runner import Runner
from mxgemm.bench.variants import Call, Variant, Work
from mxgemm.runtime import native_cpu

CPU = {
    "suite": {
        "threads": 1,
        "cache": "warm",
        "baseline": "torch_fp32",
        "variants": ["native_cpu", "multiply_loop", "read_loop"],
        "warm_up_seconds": 0.01,
        "sample_seconds": 0.0005,
        "seconds_per_case": 0.4,
        "rounds": [9, 60],
        "max_call_seconds": 1.0,
    },
    "cases": [
        {"kind": "square", "sizes": [256, 320, 384]},
        {"kind": "gemm", "pass": "decode", "m": [1, 4, 8], "n": [1024], "k": [1024]},
    ],
}
CUDA = {
    "suite": {
        "device": "cuda",
        "timer": "events",
        "baseline": "torch_bf16",
        "variants": ["cuda_hopper"],
        "warm_up_seconds": 0.02,
        "sample_seconds": 0.002,
        "seconds_per_case": 0.15,
        "rounds": [7, 60],
        "max_call_seconds": 1.0,
    },
    "cases": [
        {"kind": "square", "sizes": [8192]},
        {"kind": "gemm", "pass": "middle", "m": [4096, 8192], "n": [14336], "k": [8192]},
    ],
}
SUITES = {"cpu": CPU, "cuda": CUDA}
COPIES = {"copy": 1.0, "slowed_5": 1.05, "slowed_10": 1.10}
SPANS, SPIN_CYCLES = 9, 150_000


class Slowed(Variant):
    """A variant whose every call lasts `factor` times as long."""

    def __init__(self, subject: Variant, name: str, factor: float) -> None:
        self.subject, self.name, self.factor = subject, name, factor
        self.backend, self.computes = subject.backend, subject.computes

    def stages(self, case):
        return self.subject.stages(case)

    def work(self, case, operands, stage, device) -> Work:
        work = self.subject.work(case, operands, stage, device)
        if self.factor == 1:
            return work
        slow = slowed_on_cuda if device.kind == "cuda" else slowed_on_cpu
        return replace(work, make=lambda: slow(work.make(), self.factor))


def slowed_on_cpu(call: Call, factor: float) -> Call:
    """Return a call that waits after the work until `factor` times its time is over."""

    def slowed():
        begun = time.perf_counter()
        result = call()
        until = begun + (time.perf_counter() - begun) * factor
        while time.perf_counter() < until:
            pass
        return result

    return slowed


def slowed_on_cuda(call: Call, factor: float) -> Call:
    """Return a call followed by a kernel that does nothing for the rest of `factor` times the
    work's own time; its rate is taken between calls, as the clock depends on the load.
    """
    spans = []
    for _ in range(SPANS):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        call()
        marks[1].record()
        torch.cuda._sleep(SPIN_CYCLES)
        marks[2].record()
        spans.append(marks)
    torch.cuda.synchronize()
    work, spin = (
        statistics.median(marks[i].elapsed_time(marks[i + 1]) for marks in spans) for i in (0, 1)
    )
    cycles = round((factor - 1) * work / spin * SPIN_CYCLES)

    def slowed():
        result = call()
        torch.cuda._sleep(cycles)
        return result

    return slowed


def frozen(folder: Path) -> list[str]:
    """Return the anchors that need a file: this build's compiled module as the folder keeps it."""
    try:
        built = Path(native_cpu.module().__file__)
    except ImportError:
        return []
    kept = folder / built.name
    if not kept.exists():
        shutil.copyfile(built, kept)
    return [f"{FROZEN}{kept}"]


def forked(path: Path, visits: int, device: str, subject: str) -> None:
    """Make the run's visits up to that many in a process of their own."""
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=visit_until, args=(path, visits, device, subject))
    child.start()
    child.join()
    if child.exitcode:
        sys.exit(child.exitcode)


def visit_until(path: Path, visits: int, device: str, subject: str) -> None:
    """Make the run's visits up to that many, with the copies, and append their rows."""
    suite = cases.parse(SUITES[device], "noise_band")
    anchors = frozen(path.parent) if device == "cpu" else []
    for name, factor in COPIES.items():
        PEERS[name] = Slowed(variants.get(subject), name, factor)
    # Nothing here is compared with a roof or a clock rate.
    roofs.measure = lambda device, clock: roofs.Roofs({"none": 1.0}, {"float32": 1.0})
    environment.clocks = lambda device: {}
    names = dict.fromkeys((suite.baseline, *suite.variants, *anchors, subject, *COPIES))
    suite = replace(suite, variants=tuple(names), visits=visits)
    with contextlib.closing(results.RowWriter(path)) as writer:
        Runner(suite).execute(writer, writer.open(resume=True))


def plain(rows):
    """Return the rows of the suite's own variants."""
    return [row for row in rows if row.variant not in COPIES]


def with_slowed(rows, subject: str):
    """Return the rows with the copy slowed by 10 % under the subject's name."""
    others = [row for row in plain(rows) if row.variant != subject]
    return others + [replace(row, variant=subject) for row in rows if row.variant == "slowed_10"]


def judge(chains: list[list], subject: str) -> None:
    """Print how often what was found; neighbours in a chain of runs are compared."""
    runs = list(itertools.chain.from_iterable(chains))
    pairs = list(itertools.chain.from_iterable(map(itertools.pairwise, chains)))
    first = runs[0]
    anchors = sorted({row.variant for row in first if row.stage == ANCHOR})
    for anchor in (None, first[0].baseline, *anchors):
        judge_across(pairs, subject, anchor)
    for name, factor in COPIES.items():
        found = [compare.within(rows, subject, name) for rows in runs]
        slower = sum(bool(each.slower(compare.FAIL_BELOW_WITHIN)) for each in found)
        ratios = [each.band(mean)[1] for each in found for mean in each.means]
        print(
            f"within a run, {name} ({factor:g}): {slower} of {len(runs)} called slower; "
            f"ratios {min(ratios):.4f} to {max(ratios):.4f}"
        )
    for old, new in pairs:
        found = compare.across(plain(old), plain(new))
        print("same code:", "; ".join(mean_text(found, m) for m in found.means))


def mean_text(found: compare.Comparison, mean: compare.Change) -> str:
    low, ratio, high = found.band(mean)
    return f"{mean.case} {ratio:.3f} ({low:.3f} to {high:.3f}) over {mean.against}"


def judge_across(pairs, subject: str, anchor: str | None) -> None:
    """Print alarms and catches over one reference, or over the best of all."""
    false = sum(bool(slower(plain(old), plain(new), anchor)) for old, new in pairs)
    caught = [slower(plain(old), with_slowed(new, subject), anchor) for old, new in pairs]
    hits = sum(any(change.variant == subject for change in found) for found in caught)
    print(
        f"across runs over {anchor or 'the best reference'}: same code raises {false} alarms in "
        f"{len(pairs)}, slowed by 10 % is caught in {hits}; visits differ by "
        f"{', '.join(f'{name} {value:.1%}' for name, value in differences(pairs, subject, anchor))}"
    )


def slower(old, new, anchor: str | None):
    return compare.across(old, new, anchor=anchor).slower(compare.FAIL_BELOW_ACROSS)


def differences(pairs, subject: str, anchor: str | None):
    """Return by how much a run's visits differ in the subject's mean speed-up, by pass."""
    centers: dict[str, list[list[float]]] = {}
    for old, _ in pairs:
        rows = plain(old)
        for mean in compare.across(rows, rows, anchor=anchor).means:
            if mean.variant == subject:
                visits = visit_means(rows, subject, mean.case, mean.against)
                centers.setdefault(mean.case, []).append(visits)
    return [(name, spread.pooled(groups).sigma) for name, groups in centers.items()]


def visit_means(rows, subject: str, pass_name: str, against: str) -> list[float]:
    """Return the mean log speed-up of a pass in each visit."""
    found = {(row.case, row.variant): row.by_visit() for row in rows if row.pass_name == pass_name}
    cases = [case for case, variant in found if variant == subject]
    ratios = [
        [
            spread.paired(base, mine).center
            for base, mine in zip(found[case, against], found[case, subject], strict=True)
        ]
        for case in cases
    ]
    return [statistics.fmean(visit) for visit in zip(*ratios, strict=True)]


def main() -> None:
    """Make the visits that are not there yet and judge the runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--visits", type=int, default=8)
    parser.add_argument("--device", choices=SUITES, default="cpu")
    parser.add_argument("--subject", help="variant that is copied and slowed (default: by device)")
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--judge", type=Path, nargs="*", help="judge these folders, run nothing")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.subject = args.subject or SUITES[args.device]["suite"]["variants"][0]
    if args.one:
        for visits in range(1, args.visits + 1):
            forked(args.one, visits, args.device, args.subject)
        return
    if not args.judge:
        make(args)
    folders = args.judge or [args.output]
    judge([complete(folder, args.visits) for folder in folders], args.subject)


def make(args: argparse.Namespace) -> None:
    """Make the runs that are not in the folder yet, as long as the time limit lets."""
    begun = time.monotonic()
    args.output.mkdir(parents=True, exist_ok=True)
    same = ["--subject", args.subject, "--device", args.device, "--visits", str(args.visits)]
    for index in range(args.repeats + 1):
        if time.monotonic() - begun > args.time_limit:
            break
        path = args.output / f"run_{index:02}.jsonl"
        if path.exists() and num_visits(results.read(path)) == args.visits:
            continue
        if args.device == "cuda":
            forked(path, args.visits, args.device, args.subject)
            continue
        command = [sys.executable, __file__, "-o", str(args.output), *same, "--one", str(path)]
        subprocess.run(command, check=True)  # noqa: S603  our own script


def complete(folder: Path, visits: int) -> list:
    """Return the rows of each run in a folder that has all its visits."""
    files = [results.read_some(path) for path in sorted(folder.glob("run_*.jsonl"))]
    return [file.rows for file in files if num_visits(file) == visits]


def num_visits(file: results.RowsFile) -> int:
    return len({row.visit for row in file.written})


if __name__ == "__main__":
    main()
