"""Row-major bytes: the canonical layout of codes and of scales, optionally padded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mxgemm.layouts.base import Layout, round_up


@dataclass(frozen=True, kw_only=True)
class RowMajor(Layout):
    """Byte (r, c) at r * padded_columns + c."""

    name: ClassVar[str] = "row_major"
    holds: ClassVar[frozenset[str]] = frozenset({"codes", "scales"})

    def offset(self, row: int, column: int, *, rows: int, columns: int) -> int:
        """Return row * padded_columns + column."""
        return row * round_up(columns, self.column_multiple) + column

    def _permute(self, padded: torch.Tensor) -> torch.Tensor:
        return padded

    def _unpermute(self, storage: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        return storage.view(rows, columns)
