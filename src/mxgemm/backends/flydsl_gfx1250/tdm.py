"""Tensor Data Mover: one two-dimensional copy between global memory and LDS, as its descriptor
words.

A transfer is not per lane: the wave that executes it starts it and counts it in tensorcnt, and a
wave's transfers finish in order. Elements past the extents read as zero and are not written, which
is all the bounds checking that the kernels have.

Descriptor bits: CDNA5 ISA guide, "Tensor data mover descriptor", groups 0 and 1.
"""

from dataclasses import dataclass
from typing import Any

import flydsl.expr as fx
from flydsl.expr import rocdl

from mxgemm.backends.flydsl_gfx1250.registers import I32_BITS, high_word, low_word, words

VALID = 1
"""Group 0, count: one descriptor; 0 moves nothing and is counted all the same."""
TYPE_IMAGE = -(1 << 31)
"""Group 0, bits 127:126 = 2."""
ELEMENT_SHIFT, PAD_ENABLE, PAD_INTERVAL_SHIFT, PAD_AMOUNT_SHIFT = 16, 1 << 20, 22, 25
DWORD_BYTES = 4
HALF_BITS, HALF_MASK = 16, 0xFFFF


def transfer_flags(element_bytes: int, *, pad_every_bytes: int = 0, pad_bytes: int = 0) -> int:
    """Return the flags word (group 1, bits 31:0): element size, and LDS bytes left free after so
    many written.
    """
    flags = (element_bytes.bit_length() - 1) << ELEMENT_SHIFT
    if pad_bytes:
        interval = (pad_every_bytes // DWORD_BYTES).bit_length() - 2
        amount = pad_bytes // DWORD_BYTES - 1
        flags |= PAD_ENABLE | interval << PAD_INTERVAL_SHIFT | amount << PAD_AMOUNT_SHIFT
    return flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One copy of `tile_rows` rows of `tile_columns` elements; every field an Int32 or int unless
    said.

    Attributes:
        global_address: Int64, of the tile's first element.
        lds_address: byte address; rows lie there densely but for the padding in `flags`.
        columns, rows: elements that exist from the tile's start, not negative; what is past them
            reads as zero.
        tile_columns, tile_rows: size of the copy, up to 65,535.
        row_pitch: Int64 or unsigned Int32, elements from one row to the next in global memory.
        flags: see `transfer_flags`.
        valid: 1, or 0 to move nothing.
    """

    global_address: Any
    lds_address: Any
    columns: Any
    rows: Any
    tile_columns: Any
    tile_rows: Any
    row_pitch: Any
    flags: Any
    valid: Any = VALID

    def _groups(self) -> list[Any]:
        columns, rows = fx.Int32(self.columns), fx.Int32(self.rows)
        tile_columns = fx.Int32(self.tile_columns) << HALF_BITS
        group0 = words(
            self.valid,
            self.lds_address,
            low_word(self.global_address),
            high_word(self.global_address) | fx.Int32(TYPE_IMAGE),
        )
        group1 = words(
            self.flags,
            columns << HALF_BITS,
            _upper_half(columns) | rows << HALF_BITS,
            _upper_half(rows) | tile_columns,
            self.tile_rows,
            *self._pitch_words(),
            0,
        )
        unused = words(0, 0, 0, 0)
        return [group0, group1, unused, unused, words(0, 0, 0, 0, 0, 0, 0, 0)]

    def _pitch_words(self) -> list[Any]:
        if self.row_pitch.width == I32_BITS:
            return [self.row_pitch, 0]
        return [low_word(self.row_pitch), high_word(self.row_pitch) & fx.Int32(HALF_MASK)]

    def ready(self) -> "Descriptor":
        """Return the copy with its descriptor made, to be started later."""
        return Descriptor(self._groups())

    def load(self) -> None:
        """Start the copy from global memory to LDS."""
        self.ready().load()

    def store(self) -> None:
        """Start the copy from LDS to global memory; LDS padding is not skipped, so the tile's
        columns must include it.
        """
        self.ready().store()


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A copy in scalar registers."""

    groups: list[Any]

    def load(self) -> None:
        """Start it from global memory to LDS."""
        rocdl.tensor_load_to_lds(*self.groups, 0)

    def store(self) -> None:
        """Start it from LDS to global memory."""
        rocdl.tensor_store_from_lds(*self.groups, 0)


def _upper_half(value: Any) -> Any:
    return (value >> HALF_BITS) & fx.Int32(HALF_MASK)
