"""Scales in tiles of 32 rows by 4 blocks, for gfx1250: one dword is the four scales of one row's
K=128 step.

Known as AITER's gfx1250 `n32k4` scale shuffle and FlyDSL's 32x4 pre-shuffle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mxgemm.layouts.base import Layout, round_up

TILE_ROWS = 32
TILE_COLUMNS = 4


@dataclass(frozen=True, kw_only=True)
class Scale32x4(Layout):
    """Byte (r, c) of a padded matrix with S columns at (r//32)*32*S + (c//4)*128 + (r%32)*4 +
    c%4.
    """

    name: ClassVar[str] = "scale_32x4"
    holds: ClassVar[frozenset[str]] = frozenset({"scales"})
    tile_rows: ClassVar[int] = TILE_ROWS
    tile_columns: ClassVar[int] = TILE_COLUMNS

    row_multiple: int = TILE_ROWS
    column_multiple: int = TILE_COLUMNS

    def offset(self, row: int, column: int, *, rows: int, columns: int) -> int:
        """Return (r//32)*32*S + (c//4)*128 + (r%32)*4 + c%4."""
        padded_columns = round_up(columns, self.column_multiple)
        return (row // 32) * 32 * padded_columns + (column // 4) * 128 + (row % 32) * 4 + column % 4

    def _permute(self, padded: torch.Tensor) -> torch.Tensor:
        rows, columns = padded.shape
        tiles = padded.reshape(rows // TILE_ROWS, TILE_ROWS, columns // TILE_COLUMNS, TILE_COLUMNS)
        return tiles.permute(0, 2, 1, 3)

    def _unpermute(self, storage: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        tiles = storage.view(rows // TILE_ROWS, columns // TILE_COLUMNS, TILE_ROWS, TILE_COLUMNS)
        return tiles.permute(0, 2, 1, 3)
