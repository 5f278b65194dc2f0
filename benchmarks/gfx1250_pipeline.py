"""Draws the gfx1250 kernel's pipeline from the emulator's trace of one workgroup: docs/gfx1250.svg.

    python benchmarks/gfx1250_pipeline.py docs/gfx1250.svg

The x axis is program order (instructions issued, averaged over the four waves), not time. A fill
ends where the program first waits for it, which is the latest moment it may end.
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
    figure, (by_stage, by_wave) = plt.subplots(
        2, 1, figsize=(11, 5.4), sharex=True, height_ratios=(5, 4), constrained_layout=True
    )
    fills = defaultdict(list)
    for wave, transfers in copies.items():
        for number, start, end in transfers:
            what = sent(number, wave)
            if what is None:
                continue
            fills[what].append((start, end))
            color = SCALES if what[0] == "scales" else FILL
            by_wave.barh(wave, 12, left=start, height=0.55, color=color)
            by_wave.text(start + 14, wave, what[1], fontsize=6, va="center", color=color)
    for (kind, index), parts in fills.items():
        start, end = min(s for s, _ in parts), max(e for _, e in parts)
        lane = index % STAGES if kind == "tile" else STAGES + index % 2
        color = SCALES if kind == "scales" else FILL
        by_stage.barh(lane - 0.18, end - start, left=start, height=0.3, color=color)
        by_stage.text(start + 4, lane - 0.18, index, fontsize=6, va="center", color="white")
    for tile in range(K_TILES):
        parts = [(s, e) for wave in reads.values() for i, s, e in wave if i // TILE_READS == tile]
        if parts:
            start, end = min(s for s, _ in parts), max(e for _, e in parts)
            by_stage.barh(tile % STAGES + 0.18, end - start, left=start, height=0.3, color=READ)
            by_stage.text(start + 4, tile % STAGES + 0.18, tile, fontsize=6, va="center")
    by_stage.set_yticks(
        range(STAGES + 2), ["codes 0", "codes 1", "codes 2", "scales 0", "scales 1"]
    )
    by_stage.invert_yaxis()
    by_stage.set_title(
        "LDS stages: blue and purple = copy in flight (K tile, scale group), yellow = being read",
        fontsize=9,
    )
    by_wave.set_yticks(range(WAVES), [f"wave {w}" for w in range(WAVES)])
    by_wave.invert_yaxis()
    by_wave.set_title(
        "Transfers sent: blue = codes of a K tile, purple = a scale group", fontsize=9
    )
    by_wave.set_xlabel("instructions issued by a wave (program order, not time)", fontsize=8)
    figure.savefig(path)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
