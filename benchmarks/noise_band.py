"""Does the noise band hold? Runs of the same code, and runs with a variant slowed on purpose.

    python benchmarks/noise_band.py --repeats 20 -o folder

Each repeat is one run of a small suite that also times exact copies and slowed copies of a variant.
Every visit of a run is a process of its own, because where code and buffers lie in memory shifts a
ratio for as long as a process lives. Then every run is compared with the one before it (false
alarms), with the slowed copy put in the place of the original (10 % across runs), and within itself
(5 %). Runs that are in the folder already are kept, so that the script may be stopped.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from mxgemm.bench import cases, compare, results, roofs, variants
from mxgemm.bench.peers import PEERS
from mxgemm.bench.runner import Runner
from mxgemm.bench.variants import Variant, Work

SUITE = {
    "suite": {
        "threads": 1,
        "baseline": "torch_fp32",
        "warm_up_seconds": 0.03,
        "sample_seconds": 0.002,
        "seconds_per_case": 0.3,
        "rounds": [9, 60],
        "max_call_seconds": 1.0,
    },
    "cases": [
        {"kind": "square", "sizes": [256, 320, 384]},
        {"kind": "gemm", "pass": "decode", "m": [1, 4, 8], "n": [1024], "k": [1024]},
    ],
}
COPIES = {"copy": 1.0, "slowed_5": 1.05, "slowed_10": 1.10}


class Slowed(Variant):
    """A variant whose every call lasts `factor` times as long."""

    def __init__(self, subject: Variant, name: str, factor: float) -> None:
        self.subject, self.name, self.factor = subject, name, factor
        self.backend, self.computes = subject.backend, subject.computes

    def stages(self, case):
        return self.subject.stages(case)

    def work(self, case, operands, stage, device) -> Work:
        work = self.subject.work(case, operands, stage, device)

        def make():
            call = work.make()

            def slowed():
                begun = time.perf_counter()
                result = call()
                until = begun + (time.perf_counter() - begun) * self.factor
                while time.perf_counter() < until:
                    pass
                return result

            return slowed if self.factor != 1 else call

        return replace(work, make=make)


def one_visit(path: Path, visit: int, subject: str) -> None:
    """Make one visit of the suite with the copies and append its rows."""
    suite = cases.parse(SUITE, "noise_band")
    for name, factor in COPIES.items():
        PEERS[name] = Slowed(variants.get(subject), name, factor)
    # Nothing here is compared with a roof.
    roofs.measure = lambda device, clock: roofs.Roofs({"none": 1.0}, {"float32": 1.0})
    names = (suite.baseline, subject, *COPIES)
    suite = replace(suite, variants=names, visits=visit + 1)
    writer = results.RowWriter(path)
    done = writer.open(resume=True)
    Runner(suite).execute(writer, done)


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
    false = sum(_alarms(plain(old), plain(new)) for old, new in pairs)
    across = sum(_catches(plain(old), with_slowed(new, subject), subject) for old, new in pairs)
    within = sum(bool(compare.within(rows, subject, "slowed_5").slower(1.0)) for rows in runs)
    copies = sum(bool(compare.within(rows, subject, "copy").slower(1.0)) for rows in runs)
    print(f"same code, across runs: {false} of {len(pairs)} raise an alarm")
    print(f"slowed by 10 %, across runs: {across} of {len(pairs)} caught")
    print(f"same code, within a run: {copies} of {len(runs)} raise an alarm")
    print(f"slowed by 5 %, within a run: {within} of {len(runs)} caught")
    for old, new in pairs:
        found = compare.across(plain(old), plain(new))
        bands = [found.band(mean) for mean in found.means if mean.variant == subject]
        print(
            "same code:", "; ".join(f"{m:.3f} ({low:.3f} to {high:.3f})" for low, m, high in bands)
        )


def _alarms(old, new) -> bool:
    return bool(compare.across(old, new).slower(compare.FAIL_BELOW_ACROSS))


def _catches(old, new, subject: str) -> bool:
    found = compare.across(old, new).slower(compare.FAIL_BELOW_ACROSS)
    return any(change.variant == subject for change in found)


def main() -> None:
    """Make the visits that are not there yet and judge the runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--visits", type=int, default=8)
    parser.add_argument("--subject", default="native_cpu", help="variant that is copied and slowed")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--judge", type=Path, nargs="*", help="judge these folders, run nothing")
    parser.add_argument("--one", nargs=2, metavar=("PATH", "VISIT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one_visit(Path(args.one[0]), int(args.one[1]), args.subject)
        return
    if not args.judge:
        make(args)
    folders = args.judge or [args.output]
    judge([complete(folder, args.visits) for folder in folders], args.subject)


def make(args: argparse.Namespace) -> None:
    """Make the visits that are not in the folder yet."""
    args.output.mkdir(parents=True, exist_ok=True)
    paths = [args.output / f"run_{index:02}.jsonl" for index in range(args.repeats + 1)]
    for path, visit in itertools.product(paths, range(args.visits)):
        done = results.read(path).written if path.exists() else ()
        if visit not in {row.visit for row in done}:
            one = ["--subject", args.subject, "--one", str(path), str(visit)]
            command = [sys.executable, __file__, "-o", str(args.output), *one]
            subprocess.run(command, check=True)  # noqa: S603


def complete(folder: Path, visits: int) -> list:
    """Return the rows of each run in a folder that has all its visits."""
    files = [results.read_some(path) for path in sorted(folder.glob("run_*.jsonl"))]
    return [file.rows for file in files if len({row.visit for row in file.written}) == visits]


if __name__ == "__main__":
    main()
