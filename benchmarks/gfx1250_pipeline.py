"""Draws the gfx1250 kernel's pipeline from the emulator's trace of one workgroup: docs/gfx1250.svg.

    python benchmarks/gfx1250_pipeline.py docs/gfx1250.svg

The x axis is program order (instructions issued, averaged over the four waves), not time, and
stretched at the start, where all stages are filled at once. A fill ends where the program first
waits for it, which is the latest moment it may end.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
import torch

from mxgemm.backends.flydsl_gfx1250 import FlyDSLGfx1250, cost, places
from mxgemm.devices import DeviceSpec
from mxgemm.emulator import EventKind, Machine
from mxgemm.epilogue import NO_ARGS
from mxgemm.problem import GemmProblem
from mxgemm.tensor import MXTensor

mpl.use("Agg")
import matplotlib.pyplot as plt

M, N, K_TILES = 256, 256, 20
WAVES, STAGES, GROUP = 4, 3, 8
TILE_READS = 32
"""LDS code loads of a wave in one K tile."""
FILL, READ, SCALES = "#4477aa", "#ccbb44", "#aa3377"
START, BREAK, END = 60, 200, 4250
"""Of the x axis: the part before the break is stretched."""


def traced() -> tuple[object, tuple[object, ...]]:
    """Return the trace of one workgroup and the kernel's instructions."""
    generator = torch.Generator().manual_seed(0)

    def operand(rows: int) -> MXTensor:
        k = 128 * K_TILES
        codes = torch.randint(0, 256, (rows, k // 2), generator=generator, dtype=torch.uint8)
        scales = torch.full((rows, k // 32), 127, dtype=torch.uint8)
        return MXTensor(codes=codes, scales=scales, shape=(rows, k), stored_k=k)

    device = DeviceSpec.parse("gfx1250:emulated")
    problem = GemmProblem(m=M, n=N, k=128 * K_TILES, device=device)
    plan = FlyDSLGfx1250().plan_with(problem, cost.Choice(cost.CANDIDATES[0], 1, K_TILES, 0.0))
    seen = []
    options = places.Emulation(trace=True, observe=lambda *pair: seen.append(pair))
    with places.emulation(options):
        plan.run(operand(M), operand(N), torch.empty(M, N), NO_ARGS)
    kernel, result = seen[0]
    return result.trace, Machine("gfx1250").load(kernel.code_object).instructions


def spans(trace, code) -> tuple[dict, dict]:
    """Return {wave: [(number, issue, end)]} of the tensor loads and of the LDS code loads."""
    copies, reads = defaultdict(list), defaultdict(list)
    for event in range(len(trace)):
        if trace.kind[event] != EventKind.RETIRE:
            continue
        name = code[int(trace.pc[event])].name
        target = {"tensor_load_to_lds": copies, "ds_load_b128": reads}.get(name)
        if target is not None:
            wave = target[int(trace.wave[event])]
            ends = int(trace.tick[event]) / WAVES
            wave.append((len(wave), int(trace.issue_tick[event]) / WAVES, ends))
    return copies, reads


def sent(number: int, wave: int) -> tuple[str, int] | None:
    """Return what transfer `number` of a wave is: ("tile", t), ("scales", group), or None past
    K.
    """
    if number == 0:
        return "scales", wave % 2
    tile = number - 1
    if wave % 2 and tile >= STAGES and (tile - STAGES) % GROUP == GROUP - 1:
        group = (tile - STAGES) // GROUP + 2
        return ("scales", group) if group * GROUP < K_TILES else None
    return ("tile", tile) if tile < K_TILES else None


def draw(path: Path) -> None:
    """Write the figure."""
    copies, reads = spans(*traced())
    figure, axes = plt.subplots(
        2,
        2,
        figsize=(13, 5.6),
        sharex="col",
        sharey="row",
        height_ratios=(5, 4),
        width_ratios=(4, 9),
        layout="constrained",
    )
    figure.get_layout_engine().set(wspace=0.01)
    for (by_stage, by_wave), limits in zip(axes.T, ((START, BREAK), (BREAK, END)), strict=True):
        draw_stages(by_stage, limits, copies, reads)
        draw_transfers(by_wave, limits, copies)
        by_wave.set_xlim(*limits)
    for row, title in zip(axes, TITLES, strict=True):
        row[0].invert_yaxis()
        row[0].set_title(title, fontsize=9, loc="left")
        row[1].tick_params(left=False)
    axes[1][0].set_xlabel("the start, stretched", fontsize=8)
    axes[1][1].set_xlabel("instructions issued by a wave (program order, not time)", fontsize=8)
    figure.savefig(path)


TITLES = (
    "LDS stages: blue and purple = copy in flight (K tile, scale group), yellow = codes being read",
    "Transfers sent: blue = codes of a K tile, purple = a scale group",
)


def draw_stages(axes, limits, copies, reads) -> None:
    """Draw what each stage is filled with and read for, and when, between the limits."""
    fills = defaultdict(list)
    for wave, transfers in copies.items():
        for number, *span in transfers:
            fills[sent(number, wave)].append(span)
    for what, parts in fills.items():
        if what is not None:
            kind, index = what
            lane = index % STAGES if kind == "tile" else STAGES + index % 2
            color = SCALES if kind == "scales" else FILL
            bar(axes, limits, lane - 0.19, parts, index, color, "white")
    for tile in range(K_TILES):
        parts = [(s, e) for wave in reads.values() for i, s, e in wave if i // TILE_READS == tile]
        bar(axes, limits, tile % STAGES + 0.19, parts, tile, READ, "black")
    names = [f"codes {i}" for i in range(STAGES)] + ["scales 0", "scales 1"]
    axes.set_yticks(range(len(names)), names)


def bar(axes, limits, lane, parts, label, color, label_color) -> None:
    """Draw the part of a bar that is between the limits, with its label where it begins."""
    start, end = min(s for s, _ in parts), max(e for _, e in parts)
    shown = max(start, limits[0]), min(end, limits[1])
    if shown[0] >= shown[1]:
        return
    axes.barh(lane, shown[1] - shown[0], left=shown[0], height=0.34, color=color)
    at = {"xytext": (3, 0), "textcoords": "offset points", "fontsize": 7, "va": "center"}
    axes.annotate(str(label), (shown[0], lane), color=label_color, **at)


def draw_transfers(axes, limits, copies) -> None:
    """Draw when each wave sends which transfer, between the limits."""
    for wave, transfers in copies.items():
        for number, start, _ in transfers:
            what = sent(number, wave)
            if what is None or not limits[0] <= start < limits[1]:
                continue
            color = SCALES if what[0] == "scales" else FILL
            axes.plot([start, start], [wave - 0.3, wave + 0.3], color=color, linewidth=1.6)
            side = -1 if what[0] == "scales" else 1  # their lines are neighbours at the start
            axes.annotate(
                str(what[1]),
                (start, wave),
                xytext=(2 * side, 0),
                textcoords="offset points",
                fontsize=7,
                va="center",
                ha="left" if side > 0 else "right",
                color=color,
            )
    axes.set_yticks(range(WAVES), [f"wave {w}" for w in range(WAVES)])


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
