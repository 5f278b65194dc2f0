"""Which tile and how many splits of K: a small model of a workgroup's clocks, and the choice by it.

The model is for ranking only. Rates are those that AMD publishes or that follow from the
instruction set; where neither says, an assumption stands here with its name.
"""

from __future__ import annotations

from dataclasses import dataclass

from mxgemm.backends.flydsl_gfx1250.config import (
    BLOCK,
    ROW_BYTES,
    SCALE_GROUP,
    TILE_K,
    WORD_BYTES,
    TileConfig,
)

WORKGROUP_PROCESSORS = 256
"""Active ones of an MI455X: 8 XCDs of 32."""
WMMA_CLOCKS = 4
"""Of one 16x16x128 FP4 instruction on a SIMD (LLVM's gfx1250 scheduling classes)."""
LDS_BYTES_A_CLOCK = 256
"""64 banks of 4 bytes."""
FILL_BYTES_A_CLOCK = 128
"""Assumed: what L2 gives one workgroup processor while all read."""
HBM_BYTES_A_CLOCK = 38
"""23.3 TB/s at 2.4 GHz, shared by all workgroup processors."""
START_CLOCKS = 3000
"""Assumed: launch, first copies and the last store of a workgroup."""
REDUCE_CLOCKS = 6000
"""Assumed: launch and latency of the kernel that sums splits."""
FP32_BYTES = 4
MAX_SPLITS = 32

CANDIDATES = (
    TileConfig(),
    TileConfig(tile_m=128, waves_m=1, waves_n=4, stage_tiles=2),
    TileConfig(tile_m=64, waves_m=1, waves_n=4, stage_tiles=2),
)
"""The tiles that ship, largest first."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A tile, the number of parts of K and the K tiles of each, and the clocks that the model
    gives.
    """

    tile: TileConfig
    splits: int
    split_tiles: int
    clocks: float
    walk_columns: int = 0


def k_tile_clocks(tile: TileConfig) -> float:
    """Return the clocks of one K tile: the slowest of matrix pipes, LDS reads and L2."""
    matrix = tile.wmmas * WMMA_CLOCKS
    row_bytes = ROW_BYTES + WORD_BYTES
    lds = tile.num_waves * (tile.wave_m + tile.wave_n) * row_bytes / LDS_BYTES_A_CLOCK
    fill = (tile.tile_m + tile.tile_n) * row_bytes / FILL_BYTES_A_CLOCK
    return max(matrix, lds, fill)


def clocks(tile: TileConfig, m: int, n: int, k: int, splits: int, split_tiles: int) -> float:
    """Return the modelled clocks of a whole problem with FP32 output."""
    workgroups = -(-m // tile.tile_m) * -(-n // tile.tile_n) * splits
    rounds = -(-workgroups // WORKGROUP_PROCESSORS)
    store = tile.tile_m * tile.tile_n * FP32_BYTES / HBM_BYTES_A_CLOCK
    busy = rounds * (START_CLOCKS + split_tiles * k_tile_clocks(tile) + store)
    operand_bytes = (m + n) * k * (1 / 2 + 1 / BLOCK)
    memory = operand_bytes / (HBM_BYTES_A_CLOCK * WORKGROUP_PROCESSORS)
    total = max(busy, memory)
    if splits > 1:
        traffic = m * n * FP32_BYTES * (splits + 1)
        total += REDUCE_CLOCKS + traffic / (HBM_BYTES_A_CLOCK * WORKGROUP_PROCESSORS)
    return total


def candidates(m: int, n: int, k: int) -> list[Choice]:
    """Return every tile with every useful number of splits, best first; ties to fewer splits."""
    k_tiles = -(-k // TILE_K)
    groups = -(-k_tiles // SCALE_GROUP)
    choices = {}
    for tile in CANDIDATES:
        for wanted in range(1, min(groups, MAX_SPLITS) + 1):
            split_tiles = -(-groups // wanted) * SCALE_GROUP
            splits = -(-k_tiles // split_tiles)
            tiles = min(split_tiles, k_tiles)
            cost = clocks(tile, m, n, k, splits, tiles)
            choices[tile, splits] = Choice(
                tile, splits, tiles if splits == 1 else split_tiles, cost
            )
    return sorted(choices.values(), key=lambda c: (c.clocks, c.splits, -c.tile.tile_m))


def choose(m: int, n: int, k: int) -> Choice:
    """Return the best candidate for a problem; m, n and k may be 0, which no kernel runs for."""
    return candidates(max(m, 1), max(n, 1), max(k, BLOCK))[0]
