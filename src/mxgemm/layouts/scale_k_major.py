"""Scales by K tiles: the four scales of one K=128 tile form a dword, and one tile's dwords of all
rows lie together.

A kernel that walks K then brings one contiguous piece per step. This is the iteration-major order
of gfx1250 GEMM kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mxgemm.layouts.base import Layout, round_up

TILE_COLUMNS = 4


@dataclass(frozen=True, kw_only=True)
class ScaleKMajor(Layout):
    """Storage [columns/4, rows, 4]; byte (r, c) of a matrix with R padded rows at (c//4)*4*R +
    r*4 + c%4.
    """

    name: ClassVar[str] = "scale_k_major"
    holds: ClassVar[frozenset[str]] = frozenset({"scales"})
    tile_columns: ClassVar[int] = TILE_COLUMNS

    column_multiple: int = TILE_COLUMNS

    def storage_shape(self, rows: int, columns: int) -> tuple[int, ...]:
        """Return (columns/4, rows, 4), both padded."""
        padded_rows, padded_columns = self.padded(rows, columns)
        return padded_columns // TILE_COLUMNS, padded_rows, TILE_COLUMNS

    def offset(self, row: int, column: int, *, rows: int, columns: int) -> int:
        """Return (c//4)*4*R + r*4 + c%4."""
        padded_rows = round_up(rows, self.row_multiple)
        return (column // 4) * 4 * padded_rows + row * 4 + column % 4

    def _permute(self, padded: torch.Tensor) -> torch.Tensor:
        rows, columns = padded.shape
        return padded.reshape(rows, columns // TILE_COLUMNS, TILE_COLUMNS).permute(1, 0, 2)

    def _unpermute(self, storage: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        return storage.view(columns // TILE_COLUMNS, rows, TILE_COLUMNS).permute(1, 0, 2)
