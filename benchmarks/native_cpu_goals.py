"""What native_cpu is expected to reach, as ratios within one run, and the table that says where it
stands.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from mxgemm.runtime import native_cpu as runtime

NOISY = 0.15
"""Spread of a ratio's middle rounds, as a part of it, above which the table says so."""

AMX = "_amx"
"""What names of contenders end in that may use AMX."""

PREPACKED = ("onednn_bf16_prepacked", "onednn_fp32_prepacked")


@dataclass(frozen=True)
class Ratio:
    """A ratio of one case: ours over theirs in rate, one value a round."""

    group: str
    shape: str
    threads: int
    ours: str
    theirs: str
    rounds: tuple[float, ...]
    note: str = ""

    @property
    def value(self) -> float:
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """Distance between the quartiles as a part of the median."""
        if len(self.rounds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return (high - low) / self.value


def overhead_ratio(shape: str, threads: int, seconds: Iterable[float]) -> Ratio:
    """Return 5 us over what a prepared plan's call on one row took."""
    return Ratio("overhead", shape, threads, "plan.run", "5 us", tuple(5e-6 / s for s in seconds))


def read_ratios(files: Sequence[Path]) -> list[Ratio]:
    """Return every ratio of the cases in files of rows, whose runs may each have been a part."""
    cases: dict[tuple[str, str, int], dict[str, Any]] = {}
    for line in itertools.chain.from_iterable(
        file.read_text(encoding="utf-8").splitlines() for file in files
    ):
        row = json.loads(line)
        key = (row["group"], row["shape"], row["threads"])
        cases.setdefault(key, {})[row["contender"]] = row
    found = []
    for (group, shape, threads), rows in cases.items():
        if group == "overhead":
            seconds = [1e-6 * us for us in rows["plan.run"]["rounds_us"]]
            found.append(overhead_ratio(shape, threads, seconds))
            continue
        for ours, theirs in itertools.permutations(rows.values(), 2):
            work = ours["rate"] * ours["median_us"] / (theirs["rate"] * theirs["median_us"])
            pairs = zip(ours["rounds_us"], theirs["rounds_us"], strict=True)
            names = (ours["contender"], theirs["contender"])
            rounds = tuple(work * t / o for o, t in pairs)
            found.append(Ratio(group, shape, threads, *names, rounds, theirs["note"]))
    return found


@dataclass(frozen=True)
class Goal:
    """One line of the table: the least of the ratios that it names must reach the floor."""

    text: str
    group: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    floor: float | None
    bar: float
    stretch: float
    shapes: tuple[str, ...] = ()
    threads: tuple[int, ...] = ()

    def covers(self, ratio: Ratio) -> bool:
        return (
            ratio.group == self.group
            and ratio.ours in self.ours
            and ratio.theirs.removesuffix(AMX) in self.theirs
            and (not self.shapes or ratio.shape in self.shapes)
            and (not self.threads or ratio.threads in self.threads)
        )


HEAVY_TAILS = ("student_t4", "squared_relu", "outlier_channels")
MANY_ROWS = ("64x4096x4096", "128x4096x4096")
NATIVE, BF16_MM = ("native",), ("torch_bf16_mm",)
PREPARED, M8, M1 = ("native_prepared",), ("8x4096x4096",), ("1x4096x4096",)
READS = ("read_loop", "read_loop_ahead")
COPY, PAIR = ("torch_copy",), ("quantize_pair",)
GOALS = (
    Goal("nothing packed / torch bf16 mm", "gaussian", NATIVE, BF16_MM, 2.2, 2.4, 2.8),
    Goal("nothing packed / multiply loop", "gaussian", NATIVE, ("multiply_loop",), 0.88, 0.95, 1.1),
    Goal("nothing packed / torch._int_mm", "gaussian", NATIVE, ("torch_int_mm",), 1.1, 1.15, 1.4),
    Goal(
        "prepared / prepacked, M >= 64", "prepared", PREPARED, PREPACKED, 2.1, 2.2, 2.7, MANY_ROWS
    ),
    Goal("any scales / torch bf16 mm", "irregular", ("any_scales",), BF16_MM, 1.55, 1.6, 2.0),
    Goal("heavy tails / torch bf16 mm", "irregular", HEAVY_TAILS, BF16_MM, 1.55, 1.8, 2.2),
    Goal("M = 1 / faster read loop", "dram", PREPARED, READS, 0.85, 0.9, 0.97, M1, (2,)),
    Goal("prepared / prepacked, M = 8", "prepared", PREPARED, PREPACKED, 2.3, 3.0, 4.0, M8),
    Goal("row quantize / torch copy", "quantize", ("quantize",), COPY, 1.5, 1.6, 1.9),
    Goal("row + column quantize / torch copy", "quantize", PAIR, COPY, 0.45, 0.7, 1.2),
    Goal("5 us / overhead of plan.run", "overhead", ("plan.run",), ("5 us",), None, 0.5, 1.0),
)
"""Peers are those of a processor with VNNI and bfloat16 instructions; `remarks` says what this one
lacks.
"""


def remarks() -> list[str]:
    """Return which lines mean something else on this processor, and why."""
    flags = torch.backends.cpu.get_cpu_capability()
    found = []
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        found.append("no bfloat16 kernels in oneDNN here: prepacked is FP32, torch bf16 mm is slow")
    if "avx512_vnni" not in runtime.available_isas():
        found.append(
            "no VNNI: the multiply loop is AVX2's vpmaddubsw + vpaddw, torch._int_mm is slow"
        )
    return [*found, f"torch's kernels are for {flags}"]


@dataclass(frozen=True)
class Line:
    """One goal for one number of threads."""

    goal: str
    threads: int
    value: float
    shape: str
    floor: float | None
    bar: float
    stretch: float
    verdict: str
    noisy: bool
    note: str


def table(ratios: Sequence[Ratio]) -> list[Line]:
    """Return every goal that was measured, by its least ratio for each number of threads."""
    lines = []
    for goal in GOALS:
        covered = [ratio for ratio in ratios if goal.covers(ratio)]
        for threads in sorted({ratio.threads for ratio in covered}):
            least = min((r for r in covered if r.threads == threads), key=lambda r: r.value)
            lines.append(
                Line(
                    goal=goal.text,
                    threads=threads,
                    value=round(least.value, 3),
                    shape=least.shape,
                    floor=goal.floor,
                    bar=goal.bar,
                    stretch=goal.stretch,
                    verdict=verdict(goal, least.value),
                    noisy=least.spread > NOISY,
                    note=" ".join(filter(None, (least.theirs, least.note))),
                )
            )
    return lines


def verdict(goal: Goal, value: float) -> str:
    if value >= goal.stretch:
        return "stretch"
    if value >= goal.bar:
        return "bar"
    if goal.floor is not None and value >= goal.floor:
        return "floor"
    return "below"


def show(lines: Sequence[Line], remarks: Sequence[str] = ()) -> None:
    """Print the table: the least ratio of each goal, and what it reaches."""
    print(f"\n{'goal':36} thr  least  floor   bar  stretch  reached")
    for line in lines:
        floor = "    -" if line.floor is None else f"{line.floor:5.2f}"
        mark = " noisy" if line.noisy else ""
        print(
            f"{line.goal:36} {line.threads:3} {line.value:6.2f}  {floor} {line.bar:5.2f} "
            f"{line.stretch:8.2f}  {line.verdict:8}{mark} {line.shape}, {line.note}"
        )
    for remark in remarks:
        print(f"  {remark}")


def as_json(lines: Sequence[Line]) -> dict[str, object]:
    return {"goals": [asdict(line) for line in lines], "remarks": remarks()}
