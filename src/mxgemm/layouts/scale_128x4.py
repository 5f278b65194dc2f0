"""Scales in tiles of 128 rows by 4 blocks, for NVIDIA sm_100 and later: cuBLAS's and CUTLASS's
128x4 (SWIZZLE_32_4_4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mxgemm.layouts.base import Layout, round_up

TILE_ROWS = 128
TILE_COLUMNS = 4


@dataclass(frozen=True, kw_only=True)
class Scale128x4(Layout):
    """Tiles of 512 bytes, row-major over the matrix; inside one, byte (r, c) at (r%32)*16 +
    ((r%128)//32)*4 + c%4.
    """

    name: ClassVar[str] = "scale_128x4"
    holds: ClassVar[frozenset[str]] = frozenset({"scales"})
    tile_rows: ClassVar[int] = TILE_ROWS
    tile_columns: ClassVar[int] = TILE_COLUMNS

    row_multiple: int = TILE_ROWS
    column_multiple: int = TILE_COLUMNS
    requires_zero_pads: bool = True

    def offset(self, row: int, column: int, *, rows: int, columns: int) -> int:
        """Return tile*512 + (r%32)*16 + ((r%128)//32)*4 + c%4."""
        tiles_across = round_up(columns, self.column_multiple) // TILE_COLUMNS
        tile = (row // TILE_ROWS) * tiles_across + column // TILE_COLUMNS
        return tile * 512 + (row % 32) * 16 + ((row % 128) // 32) * 4 + column % 4

    def _permute(self, padded: torch.Tensor) -> torch.Tensor:
        rows, columns = padded.shape
        # [row tile, quarter, row in quarter, column tile, column]
        split = padded.reshape(rows // TILE_ROWS, 4, 32, columns // TILE_COLUMNS, TILE_COLUMNS)
        return split.permute(0, 3, 2, 1, 4)

    def _unpermute(self, storage: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        split = storage.view(rows // TILE_ROWS, columns // TILE_COLUMNS, 32, 4, TILE_COLUMNS)
        return split.permute(0, 3, 2, 1, 4)
