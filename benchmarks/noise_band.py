"""Does the noise band hold? Runs of the same code, and runs with a variant slowed on purpose.

    python benchmarks/noise_band.py --repeats 20 -o folder

Each repeat is one run of a small suite in a fresh process, which also times exact copies and slowed
copies of a variant. Then every run is compared with the one before it (false alarms), with the
slowed copy put in the place of the original (10 % across runs), and within itself (5 %).
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from mxgemm.bench import cases, compare, results, variants
from mxgemm.bench.peers import PEERS
from mxgemm.bench.variants import Variant, Work

SUITE = {
    "suite": {
        "threads": 1,
        "baseline": "torch_fp32",
        "variants": ["torch_fp32", "torch_bf16", "reference_fp32"],
        "warm_up_seconds": 0.05,
        "sample_seconds": 0.0005,
        "seconds_per_case": 1.5,
        "rounds": [15, 200],
        "visits": 4,
    },
    "cases": [
        {"kind": "square", "sizes": [32, 64, 96]},
        {"kind": "gemm", "pass": "decode", "m": [1, 4], "n": [64], "k": [128]},
    ],
}
SUBJECT = "reference_fp32"
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


def one_run(path: Path) -> None:
    """Run the suite with the copies and write its rows."""
    from mxgemm.bench.runner import Runner

    suite = cases.parse(SUITE, "noise_band")
    subject = variants.get(SUBJECT)
    for name, factor in COPIES.items():
        PEERS[name] = Slowed(subject, name, factor)
    suite = replace(suite, variants=(*suite.variants, *COPIES))
    writer = results.RowWriter(path)
    writer.open(resume=False)
    Runner(suite).execute(writer)


def plain(rows):
    """Return the rows of the suite's own variants."""
    return [row for row in rows if row.variant not in COPIES]


def with_slowed(rows, name: str):
    """Return the rows with the slowed copy under the subject's name."""
    others = [row for row in plain(rows) if row.variant != SUBJECT]
    return others + [replace(row, variant=SUBJECT) for row in rows if row.variant == name]


def judge(runs: list) -> None:
    """Print how often what was found."""
    pairs = list(itertools.pairwise(runs))
    false = sum(_alarms(plain(old), plain(new)) for old, new in pairs)
    across = sum(_catches(plain(old), with_slowed(new, "slowed_10")) for old, new in pairs)
    within = sum(bool(compare.within(rows, SUBJECT, "slowed_5").slower(1.0)) for rows in runs)
    copies = sum(bool(compare.within(rows, SUBJECT, "copy").slower(1.0)) for rows in runs)
    print(f"same code, across runs: {false} of {len(pairs)} raise an alarm")
    print(f"slowed by 10 %, across runs: {across} of {len(pairs)} caught")
    print(f"same code, within a run: {copies} of {len(runs)} raise an alarm")
    print(f"slowed by 5 %, within a run: {within} of {len(runs)} caught")
    for old, new in pairs:
        found = compare.across(plain(old), plain(new))
        slow = compare.across(plain(old), with_slowed(new, "slowed_10"))
        bands = [found.band(mean) for mean in found.means if mean.variant == SUBJECT]
        slows = [slow.band(mean) for mean in slow.means if mean.variant == SUBJECT]
        print(_bands("same", bands), _bands("10 % slower", slows), f"{found.deviation:.2%}")


def _bands(name: str, bands) -> str:
    return f"{name}: " + ", ".join(
        f"{mid:.3f} ({low:.3f} to {high:.3f})" for low, mid, high in bands
    )


def _alarms(old, new) -> bool:
    return bool(compare.across(old, new).slower(compare.FAIL_BELOW_ACROSS))


def _catches(old, new) -> bool:
    found = compare.across(old, new).slower(compare.FAIL_BELOW_ACROSS)
    return any(change.variant == SUBJECT for change in found)


def main() -> None:
    """Make the runs that are not there yet and judge them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one_run(args.one)
        return
    args.output.mkdir(parents=True, exist_ok=True)
    paths = [args.output / f"run_{index:02}.jsonl" for index in range(args.repeats + 1)]
    for path in paths:
        if not path.exists():
            command = [sys.executable, __file__, "-o", str(args.output), "--one", str(path)]
            subprocess.run(command, check=True)  # noqa: S603
    judge([results.read_some(path).rows for path in paths])


if __name__ == "__main__":
    main()
