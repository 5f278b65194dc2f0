"""Scales in tiles of 32 rows by 8 blocks, for gfx950: one dword serves two 16-row tiles and two
K=128 steps.

Known as AITER's `e8m0_shuffle`, hipBLASLt's BLK32_UE8M0_32_8 and ROCm TransformerEngine's swizzled
scales; the latter pads rows to 256, hipBLASLt to 32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mxgemm.layouts.base import Layout, round_up

TILE_ROWS = 32
TILE_COLUMNS = 8


@dataclass(frozen=True, kw_only=True)
class Scale32x8(Layout):
    """Tiles row-major over the matrix; inside one, bytes 0..3 hold (0,0), (16,0), (0,4), (16,4) and
    dword l starts at (l%16, l//16).

    Consumers step K by 256, that is by whole tiles, so they read the padding columns: zeros are
    required there.
    """

    name: ClassVar[str] = "scale_32x8"
    holds: ClassVar[frozenset[str]] = frozenset({"scales"})
    tile_rows: ClassVar[int] = TILE_ROWS
    tile_columns: ClassVar[int] = TILE_COLUMNS

    row_multiple: int = TILE_ROWS
    column_multiple: int = TILE_COLUMNS
    requires_zero_pads: bool = True

    def offset(self, row: int, column: int, *, rows: int, columns: int) -> int:
        """Return tile*256 + (c%4)*64 + (r%16)*4 + ((c%8)//4)*2 + (r%32)//16."""
        tiles_across = round_up(columns, self.column_multiple) // TILE_COLUMNS
        tile = (row // TILE_ROWS) * tiles_across + column // TILE_COLUMNS
        return (
            tile * 256
            + (column % 4) * 64
            + (row % 16) * 4
            + ((column % 8) // 4) * 2
            + (row % 32) // 16
        )

    def _permute(self, padded: torch.Tensor) -> torch.Tensor:
        rows, columns = padded.shape
        # [row tile, row half, row in half, column tile, column half, column in half]
        split = padded.reshape(rows // TILE_ROWS, 2, 16, columns // TILE_COLUMNS, 2, 4)
        return split.permute(0, 3, 5, 2, 4, 1)

    def _unpermute(self, storage: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        split = storage.view(rows // TILE_ROWS, columns // TILE_COLUMNS, 4, 16, 2, 2)
        return split.permute(0, 5, 3, 1, 4, 2)
