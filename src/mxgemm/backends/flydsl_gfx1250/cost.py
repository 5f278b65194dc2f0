"""Which tile, how many parts of K, and whether workgroups walk: a small model of a workgroup's
clocks, and the choice by it.

Rates are those that AMD publishes or that follow from the instruction set; where neither says, an
assumption stands here with its name. No clock has been measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from mxgemm.backends.flydsl_gfx1250.config import (
    BLOCK,
    ROW_BYTES,
    SCALE_GROUP,
    TILE_K,
    WALK_STAGES,
    WORD_BYTES,
    KernelSpec,
    TileConfig,
)

WORKGROUP_PROCESSORS = 256
"""Active ones of an MI455X: 8 XCDs of 32."""
CLOCK_HZ = 2.4e9
"""Of the published peak rates."""
WMMA_CLOCKS = 4
"""Of one 16x16x128 FP4 instruction on a SIMD (LLVM's gfx1250 scheduling classes)."""
LDS_BYTES_A_CLOCK = 256
"""64 banks of 4 bytes; the TDM's accesses are assumed to pass beside those of lanes."""
L2_BYTES_A_CLOCK = 128
"""Assumed: what L2 gives or takes of one workgroup processor while all ask. It holds what all
processors store at once."""
HBM_BYTES_A_CLOCK = 38
"""23.3 TB/s at 2.4 GHz, shared by all workgroup processors."""
COPY_CLOCKS = 320
"""Latency of a copy (LLVM's VMEM latency; not published)."""
COPY_TILES = 0.75
"""K tiles from the sending of a copy to the wait for it, beside whole stages: 3/16 to 15/16."""
START_CLOCKS = 3000
"""Assumed: launch, first copies and the last store's latency."""
EPILOGUE_CLOCKS = 700
"""Assumed: what a wave of 128x128 outputs issues between its K loops, one instruction a clock: 512
zeros in pairs, conversions, LDS stores and switches of register banks.
"""
REDUCE_CLOCKS = 6000
"""Assumed: launch and latency of the kernel that sums splits."""
FP32_BYTES = 4
MAX_SPLITS = 32

CANDIDATES = (
    TileConfig(),
    TileConfig(tile_m=128, waves_m=1, waves_n=4, stage_tiles=2),
    TileConfig(tile_m=64, waves_m=1, waves_n=4, stage_tiles=4),
)
"""The tiles that ship, largest first."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A tile, the number of parts of K and the K tiles of each, the clocks that the model gives,
    and the workgroups along N of a walk, 0 for none.
    """

    tile: TileConfig
    splits: int
    split_tiles: int
    clocks: float = 0.0
    walk_columns: int = 0


def k_tile_bounds(tile: TileConfig) -> dict[str, float]:
    """Return the clocks of one K tile as each resource bounds them.

    matrix: the matrix pipes. lds: lanes' reads. fill: bytes from L2. copies: a data stage must
    arrive between its sending and the wait for it.
    """
    row_bytes = ROW_BYTES + WORD_BYTES
    fill = (tile.tile_m + tile.tile_n) * row_bytes / L2_BYTES_A_CLOCK
    away = COPY_TILES + (tile.num_stages - 2) * tile.stage_tiles
    return {
        "matrix": tile.wmmas * WMMA_CLOCKS,
        "lds": tile.num_waves * (tile.wave_m + tile.wave_n) * row_bytes / LDS_BYTES_A_CLOCK,
        "fill": fill,
        "copies": (COPY_CLOCKS + tile.stage_tiles * fill) / away,
    }


def k_tile_clocks(tile: TileConfig) -> float:
    """Return the clocks of one K tile: the slowest of its bounds."""
    return max(k_tile_bounds(tile).values())


def can_walk(k: int) -> bool:
    """Return whether workgroups can walk over K of this length: the last scale group must be long
    enough for the copies of the next tile's first one to arrive.
    """
    k_tiles = -(-k // TILE_K)
    return k_tiles >= WALK_STAGES and k_tiles % SCALE_GROUP != 1


def clocks(choice: Choice, m: int, n: int, k: int, out_dtype: torch.dtype = torch.float32) -> float:
    """Return the modelled clocks of a whole problem that is done as `choice` says."""
    tile, splits = choice.tile, choice.splits
    out_bytes = FP32_BYTES if splits > 1 else out_dtype.itemsize
    stages = -(-min(choice.split_tiles, -(-k // TILE_K)) // tile.stage_tiles)
    loop = stages * tile.stage_tiles * k_tile_clocks(tile)
    outputs = tile.tile_m * tile.tile_n
    between = max(outputs * out_bytes / LDS_BYTES_A_CLOCK, EPILOGUE_CLOCKS * outputs / 256**2)
    store = outputs * out_bytes / L2_BYTES_A_CLOCK
    rows, columns = -(-m // tile.tile_m), -(-n // tile.tile_n)
    if choice.walk_columns:
        left = KernelSpec(tile=tile, walks=True, out_dtype=out_dtype).pass_rows / tile.wave_m
        if left < 1:
            between += store * (1 - left) + COPY_CLOCKS
        tiles = -(-columns // choice.walk_columns)
        rounds = -(-rows * choice.walk_columns // WORKGROUP_PROCESSORS)
        busy = rounds * (START_CLOCKS + tiles * (loop + between) + store * left)
    else:
        rounds = -(-rows * columns * splits // WORKGROUP_PROCESSORS)
        busy = rounds * (START_CLOCKS + loop + between + store)
    hbm = HBM_BYTES_A_CLOCK * WORKGROUP_PROCESSORS
    operand_bytes = (m + n) * k * (1 / 2 + 1 / BLOCK)
    total = max(busy, (operand_bytes + m * n * out_bytes * splits) / hbm)
    if splits > 1:
        total += REDUCE_CLOCKS + m * n * FP32_BYTES * (splits + 1) / hbm
    return total


def candidates(
    m: int, n: int, k: int, out_dtype: torch.dtype = torch.float32, *, walks: bool = True
) -> list[Choice]:
    """Return every tile with every useful number of splits, and the walk where `walks` allows it,
    best first; ties to fewer splits.
    """
    k_tiles = -(-k // TILE_K)
    groups = -(-k_tiles // SCALE_GROUP)
    choices = set()
    for tile in CANDIDATES:
        for wanted in range(1, min(groups, MAX_SPLITS) + 1):
            split_tiles = -(-groups // wanted) * SCALE_GROUP
            splits = -(-k_tiles // split_tiles)
            choices.add(Choice(tile, splits, k_tiles if splits == 1 else split_tiles))
    large = CANDIDATES[0]
    rows, columns = -(-m // large.tile_m), -(-n // large.tile_n)
    at_once = max(1, WORKGROUP_PROCESSORS // rows)
    if walks and can_walk(k) and at_once < columns:
        tiles = -(-columns // at_once)
        choices.add(Choice(large, 1, k_tiles, walk_columns=-(-columns // tiles)))
    found = [replace(c, clocks=clocks(c, m, n, k, out_dtype)) for c in choices]
    return sorted(found, key=lambda c: (c.clocks, c.splits, -c.tile.tile_m, c.walk_columns))


def choose(
    m: int, n: int, k: int, out_dtype: torch.dtype = torch.float32, *, walks: bool = True
) -> Choice:
    """Return the best candidate for a problem; m, n and k may be 0, which no kernel runs for."""
    return candidates(max(m, 1), max(n, 1), max(k, BLOCK), out_dtype, walks=walks)[0]
