"""What every layout is: a permutation of a padded byte matrix, its inverse and its address
formula.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from mxgemm.errors import LayoutMismatch


def round_up(value: int, multiple: int) -> int:
    """Return the least multiple of `multiple` that is >= value."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class Layout(ABC):
    """A geometry with its padding; two layouts are equal when both are.

    `pack` zero-fills what padding adds. `requires_zero_pads` says whether some consumer reads those
    bytes as data; where it is False nothing in them may change any result.
    """

    name: ClassVar[str]
    holds: ClassVar[frozenset[str]]
    """Which byte matrices the geometry is meant for: "codes", "scales" or both."""
    tile_rows: ClassVar[int] = 1
    tile_columns: ClassVar[int] = 1

    row_multiple: int = 1
    column_multiple: int = 1
    requires_zero_pads: bool = False

    def __post_init__(self) -> None:
        for axis, multiple, tile in (
            ("row", self.row_multiple, self.tile_rows),
            ("column", self.column_multiple, self.tile_columns),
        ):
            if multiple < 1 or multiple % tile:
                raise ValueError(
                    f"layout {self.name}: {axis}_multiple must be a positive multiple of {tile}, "
                    f"got {multiple}"
                )

    def __str__(self) -> str:
        if (self.row_multiple, self.column_multiple) == (self.tile_rows, self.tile_columns):
            return self.name
        return f"{self.name}[{self.row_multiple}x{self.column_multiple}]"

    def padded(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the matrix size with padding."""
        return round_up(rows, self.row_multiple), round_up(columns, self.column_multiple)

    def storage_shape(self, rows: int, columns: int) -> tuple[int, ...]:
        """Return the shape of the storage tensor that holds a rows x columns byte matrix."""
        return self.padded(rows, columns)

    def pack(self, canonical: torch.Tensor) -> torch.Tensor:
        """Return the storage of a byte matrix, contiguous, pads zero.

        Args:
            canonical: uint8 [rows, columns], any strides.

        Raises:
            LayoutMismatch: not a uint8 matrix.
        """
        if canonical.dtype != torch.uint8 or canonical.dim() != 2:
            raise LayoutMismatch(
                f"pack {self.name}: takes a uint8 matrix, got {canonical.dtype} "
                f"{tuple(canonical.shape)}; "
                "view packed codes or scales as uint8 [rows, columns] (flatten leading dimensions "
                "first)"
            )
        rows, columns = canonical.shape
        padded_rows, padded_columns = self.padded(rows, columns)
        fill = (0, padded_columns - columns, 0, padded_rows - rows)
        padded = torch.nn.functional.pad(canonical, fill) if any(fill) else canonical
        return self._permute(padded).reshape(self.storage_shape(rows, columns)).contiguous()

    def unpack(self, storage: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """Return the byte matrix uint8 [rows, columns] that `storage` holds: the inverse of `pack`;
        pads are dropped.

        Raises:
            LayoutMismatch: `storage` has not the dtype and shape that this layout gives such a
            matrix.
        """
        self.check(storage, rows, columns)
        padded_rows, padded_columns = self.padded(rows, columns)
        canonical = self._unpermute(storage.reshape(-1), padded_rows, padded_columns)
        return canonical.reshape(padded_rows, padded_columns)[:rows, :columns].contiguous()

    def check(self, storage: torch.Tensor, rows: int, columns: int) -> None:
        """Raise LayoutMismatch unless `storage` can hold a rows x columns byte matrix in this
        layout.
        """
        expected = self.storage_shape(rows, columns)
        if storage.dtype != torch.uint8 or tuple(storage.shape) != expected:
            raise LayoutMismatch(
                f"{self}: a {rows}x{columns} byte matrix is stored as uint8 {expected}, "
                f"got {storage.dtype} {tuple(storage.shape)}; pack it with this layout"
            )

    @abstractmethod
    def offset(self, row: int, column: int, *, rows: int, columns: int) -> int:
        """Return the byte offset of (row, column) in the storage of a rows x columns matrix, from
        the published geometry.
        """

    @abstractmethod
    def _permute(self, padded: torch.Tensor) -> torch.Tensor:
        """Return the bytes of a padded matrix in storage order, any shape."""

    @abstractmethod
    def _unpermute(self, storage: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """Return the padded matrix, any shape that flattens row-major, from flat storage."""
