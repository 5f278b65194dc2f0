"""Codes in tiles of 16 rows by 16 bytes (16 rows x one block of 32), each tile row-major and
contiguous.

Known as the 16x16 weight shuffle of AITER and FlyDSL (`aiter_shuffled_codes`): one 16-byte chunk is
one scale block of one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mxgemm.layouts.base import Layout, round_up

TILE_ROWS = 16
TILE_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Tile16x16(Layout):
    """Byte (r, c) of a padded matrix with B columns at (r//16)*16*B + (c//16)*256 + (r%16)*16 +
    c%16.

    AITER asks for B % 32 == 0 (K % 64), hence the default column multiple.
    """

    name: ClassVar[str] = "tile_16x16"
    holds: ClassVar[frozenset[str]] = frozenset({"codes"})
    tile_rows: ClassVar[int] = TILE_ROWS
    tile_columns: ClassVar[int] = 2 * TILE_BYTES

    row_multiple: int = TILE_ROWS
    column_multiple: int = 2 * TILE_BYTES

    def offset(self, row: int, column: int, *, rows: int, columns: int) -> int:
        """Return the offset as AITER states it, by halves of a 32-byte step."""
        padded_columns = round_up(columns, self.column_multiple)
        return (
            (row // 16) * 16 * padded_columns
            + (column // 32) * 512
            + ((column % 32) // 16) * 256
            + (row % 16) * 16
            + column % 16
        )

    def _permute(self, padded: torch.Tensor) -> torch.Tensor:
        rows, columns = padded.shape
        tiles = padded.reshape(rows // TILE_ROWS, TILE_ROWS, columns // TILE_BYTES, TILE_BYTES)
        return tiles.permute(0, 2, 1, 3)

    def _unpermute(self, storage: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        tiles = storage.view(rows // TILE_ROWS, columns // TILE_BYTES, TILE_ROWS, TILE_BYTES)
        return tiles.permute(0, 2, 1, 3)
