"""One operand on its way from global memory to the matrix instruction: what is copied, where it
lies in LDS, how lanes read it.

`Source` is a run of copies that differ by an index (the K tile, or the group of K tiles); a wave
picks its own among several once, before the loop. `FragmentReader` knows the LDS addresses of a
lane.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import flydsl.expr as fx

from mxgemm.backends.flydsl_gfx1250.config import (
    BLOCK,
    CHUNK_BYTES,
    PAIR_TILES,
    ROW_BYTES,
    SCALE_GROUP,
    SCALE_STAGES,
    TILE_K,
    WAVE_LANES,
    WMMA_ROWS,
    WORD_BYTES,
    CodesForm,
    OperandForm,
    ScalesForm,
)
from mxgemm.backends.flydsl_gfx1250.registers import at_least_zero, lds_load, low_word, pick
from mxgemm.backends.flydsl_gfx1250.tdm import Transfer, transfer_flags

BLOCKS_A_TILE = TILE_K // BLOCK
SCALE_ONES = 0x7F7F7F7F
"""Four E8M0 bytes of 1.0."""
BYTE_BITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Copies number 0, 1, 2, ... of one kind; fields are Int32 but `address` and `walk`, which are
    Int64. `step` and `row_pitch` may be.

    Attributes:
        address, step: of copy i, address + i * step.
        columns, column_step: extent of copy i, columns - i * column_step; likewise `rows`.
            tile_columns, tile_rows, row_pitch, flags: as in `Transfer`.
        lds_address: where copies go, before the stage is added.
        limit: copies that exist; later ones move nothing.
        walk: of the copies of the workgroup's next output tile, address + walk; their extents are
            columns - walk_columns and rows - walk_rows.
    """

    address: Any
    step: Any
    row_pitch: Any
    columns: Any
    column_step: Any
    rows: Any
    row_step: Any
    tile_columns: Any
    tile_rows: Any
    lds_address: Any
    flags: Any
    limit: Any
    walk: Any = field(default_factory=lambda: fx.Int64(0))
    walk_columns: Any = field(default_factory=lambda: fx.Int32(0))
    walk_rows: Any = field(default_factory=lambda: fx.Int32(0))

    def load(self, index: Any, stage_offset: Any) -> None:
        """Start copy `index` into the stage at `stage_offset`."""
        self.copy(index, stage_offset).load()

    def copy(self, index: Any, stage_offset: Any) -> Transfer:
        """Return copy `index` into the stage at `stage_offset`."""
        return self._transfer(index, stage_offset, index < self.limit)

    def copy_on(self, index: Any, stage_offset: Any, more: Any) -> Transfer:
        """Return copy `index`, which after the last one counts those of the next output tile;
        `more` says whether there is one.
        """
        past = index >= self.limit
        index = pick(past, index - self.limit, index)
        source = self.moved(pick(past, fx.Int32(1), fx.Int32(0)))
        return source._transfer(index, stage_offset, pick(past, more, fx.Boolean(1)))

    def moved(self, tiles: Any) -> "Source":
        """Return the copies of the workgroup's output tile `tiles` tiles on."""
        return replace(
            self,
            address=self.address + fx.Int64(tiles) * self.walk,
            columns=at_least_zero(self.columns - tiles * self.walk_columns),
            rows=at_least_zero(self.rows - tiles * self.walk_rows),
        )

    def _transfer(self, index: Any, stage_offset: Any, valid: Any) -> Transfer:
        return Transfer(
            global_address=self.address + fx.Int64(index) * fx.Int64(self.step),
            lds_address=self.lds_address + stage_offset,
            columns=self.columns - index * self.column_step,
            rows=self.rows - index * self.row_step,
            tile_columns=self.tile_columns,
            tile_rows=self.tile_rows,
            row_pitch=self.row_pitch,
            flags=self.flags,
            valid=pick(valid, fx.Int32(1), fx.Int32(0)),
        )


def pick_source(condition: Any, yes: Source, no: Source) -> Source:
    """Return the copies that a wave makes: `yes` where the scalar `condition` holds."""
    return Source(
        **{
            f.name: pick(condition, getattr(yes, f.name), getattr(no, f.name))
            for f in fields(Source)
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandView:
    """One operand's part in a workgroup's tile: rows `row0` .. of `rows`, K blocks 0 .. k_blocks of
    its K range.

    Attributes:
        form: how codes and scales lie in global memory and LDS.
        codes, scales: Int64 addresses of row 0 at the first K tile of the range.
        codes_stride, scales_stride: Int64 bytes, between rows where row-major, else between K
            tiles.
        row0, rows, k_blocks: Int32.
        tile_rows: rows of the tile.
        stage_tiles: K tiles of a data stage.
        walk: Int32, rows from one output tile of the workgroup to its next.
        codes_lds, scales_lds: byte offsets of its codes in a data stage and of its scales in a
            scale stage.
        scale_stage_bytes: between the scale stages.
    """

    form: OperandForm
    codes: Any
    codes_stride: Any
    scales: Any
    scales_stride: Any
    row0: Any
    rows: Any
    k_blocks: Any
    tile_rows: int
    stage_tiles: int
    codes_lds: int
    scales_lds: int
    scale_stage_bytes: int
    walk: Any

    @property
    def _k_tiles(self) -> Any:
        return (self.k_blocks + (BLOCKS_A_TILE - 1)) >> 2

    @property
    def stages(self) -> Any:
        """Data stages that the K range fills."""
        blocks = BLOCKS_A_TILE * self.stage_tiles
        return (self.k_blocks + (blocks - 1)) >> _log2(blocks)

    @property
    def pitch_bytes(self) -> int:
        """LDS bytes between rows of codes."""
        return self.form.codes.pitch_bytes(self.stage_tiles)

    def from_tile(self, first: Any) -> "OperandView":
        """Return the view whose K range begins `first` K tiles later, a multiple of the scale
        group; k_blocks stays.
        """
        scales_step = fx.Int64(WORD_BYTES)
        if self.form.scales is ScalesForm.K_MAJOR:
            scales_step = self.scales_stride
        elif self.form.scales is ScalesForm.TILE_32X4:
            scales_step = fx.Int64(WORD_BYTES * WAVE_LANES)
        codes_step = fx.Int64(ROW_BYTES * self.form.codes.group_rows)
        return replace(
            self,
            codes=self.codes + fx.Int64(first) * codes_step,
            scales=self.scales + fx.Int64(first) * scales_step,
        )

    def codes_source(self, part: Any, parts: int) -> Source:
        """Return the copies of part number `part` of `parts` equal parts of the tile's rows, one a
        data stage.
        """
        form, part_rows = self.form.codes, self.tile_rows // parts
        first = self.row0 + part * part_rows
        row_bytes = ROW_BYTES * self.stage_tiles
        tile_columns = row_bytes * form.group_rows
        return Source(
            address=self.codes + fx.Int64(first >> _log2(form.group_rows)) * self.codes_stride,
            step=fx.Int32(tile_columns),
            row_pitch=low_word(self.codes_stride),
            columns=self.k_blocks * (CHUNK_BYTES * form.group_rows),
            column_step=fx.Int32(tile_columns),
            rows=_groups(self.rows - first, form.group_rows),
            row_step=fx.Int32(0),
            tile_columns=fx.Int32(tile_columns),
            tile_rows=fx.Int32(part_rows // form.group_rows),
            lds_address=part * (part_rows * self.pitch_bytes) + self.codes_lds,
            flags=fx.Int32(
                transfer_flags(1, pad_every_bytes=row_bytes, pad_bytes=form.row_pad_bytes)
            ),
            limit=self.stages,
            walk=fx.Int64(self.walk >> _log2(form.group_rows)) * self.codes_stride,
            walk_rows=self.walk >> _log2(form.group_rows),
        )

    def scales_source(self) -> Source:
        """Return the copies of the scales of all the tile's rows, one a group of K tiles."""
        rows, limit = self.rows - self.row0, (self._k_tiles + (SCALE_GROUP - 1)) >> 3
        common = {"lds_address": fx.Int32(self.scales_lds), "limit": limit}
        group_bytes = SCALE_GROUP * WORD_BYTES
        if self.form.scales is ScalesForm.K_MAJOR:
            return Source(
                address=self.scales + fx.Int64(self.row0) * fx.Int64(WORD_BYTES),
                step=low_word(self.scales_stride) * SCALE_GROUP,
                row_pitch=low_word(self.scales_stride) >> 2,
                columns=_groups(rows, 1),
                column_step=fx.Int32(0),
                rows=self._k_tiles,
                row_step=fx.Int32(SCALE_GROUP),
                tile_columns=fx.Int32(self.tile_rows),
                tile_rows=fx.Int32(SCALE_GROUP),
                flags=fx.Int32(transfer_flags(WORD_BYTES)),
                walk=fx.Int64(self.walk) * fx.Int64(WORD_BYTES),
                walk_columns=self.walk,
                **common,
            )
        group_rows, columns, pad_bytes = 1, self.k_blocks, self.form.scales.row_pad_bytes
        if self.form.scales is ScalesForm.TILE_32X4:
            group_rows, columns = WAVE_LANES, self._k_tiles * (WORD_BYTES * WAVE_LANES)
        return Source(
            address=self.scales + fx.Int64(self.row0 >> _log2(group_rows)) * self.scales_stride,
            step=fx.Int32(group_bytes * group_rows),
            row_pitch=low_word(self.scales_stride),
            columns=columns,
            column_step=fx.Int32(group_bytes * group_rows),
            rows=_groups(rows, group_rows),
            row_step=fx.Int32(0),
            tile_columns=fx.Int32(group_bytes * group_rows),
            tile_rows=fx.Int32(self.tile_rows // group_rows),
            flags=fx.Int32(transfer_flags(1, pad_every_bytes=group_bytes, pad_bytes=pad_bytes)),
            walk=fx.Int64(self.walk >> _log2(group_rows)) * self.scales_stride,
            walk_rows=self.walk >> _log2(group_rows),
            **common,
        )


@dataclass(frozen=True, slots=True)
class Fragments:
    """Registers of one K tile of one operand: eight code words a fragment, one scale word two
    fragments.
    """

    codes: list[Any]
    scales: list[Any]


class FragmentReader:
    """A lane's reads of one operand: rows `first_row` .. of the tile, `count` fragments of 16 rows.

    Lane l holds of row l % 16 the chunks l / 16 and l / 16 + 2, and the scale word of row l of each
    two fragments (CDNA5 ISA guide, "4-bit A matrix 16x128", "Scale operands"). Scale words are read
    for two K tiles at once, the even one and the odd one after it.
    """

    def __init__(self, view: OperandView, first_row: Any, count: int, lane: Any) -> None:
        self.view, self.count = view, count
        half, lane_mod16 = lane >> 4, lane & 15
        codes, scales = view.form.codes, view.form.scales
        # A fragment begins at a multiple of 16 rows, two fragments at a multiple of 32.
        lane_bytes = CHUNK_BYTES if codes is CodesForm.TILE_16X16 else view.pitch_bytes
        chunk_bytes = CHUNK_BYTES * codes.group_rows
        self._chunk = view.codes_lds + first_row * view.pitch_bytes
        self._chunk += lane_mod16 * lane_bytes + half * chunk_bytes
        self._second_chunk = 2 * chunk_bytes
        self._tile_bytes = ROW_BYTES * codes.group_rows
        dense = (WORD_BYTES, WORD_BYTES, WORD_BYTES * view.tile_rows)
        lane_bytes, row_bytes, self._k_tile_bytes = {
            ScalesForm.ROW_MAJOR: (scales.stage_bytes(1), scales.stage_bytes(1), WORD_BYTES),
            ScalesForm.K_MAJOR: dense,
            ScalesForm.TILE_32X4: (WORD_BYTES, scales.stage_bytes(1), WORD_BYTES * WAVE_LANES),
        }[scales]
        self._word = view.scales_lds + first_row * row_bytes + lane * lane_bytes
        self._two_bytes = WAVE_LANES * row_bytes

    def code_reads(self, stage_offset: Any, tile: int) -> list[Any]:
        """Return one function a fragment that reads its eight code words of K tile number `tile` of
        the data stage at `stage_offset`.
        """
        address = self._chunk + stage_offset + tile * self._tile_bytes
        pitch = WMMA_ROWS * self.view.pitch_bytes

        def read(fragment: int) -> Any:
            first = lds_load(address + fragment * pitch, fx.Int32, 4)
            second = lds_load(address + (fragment * pitch + self._second_chunk), fx.Int32, 4)
            return first.shuffle(second, list(range(8)))

        return [lambda f=f: read(f) for f in range(self.count)]

    def scale_reads(self, k_tile: Any) -> list[Any]:
        """Return one function two fragments that reads its scale words of the even K tile `k_tile`
        and of the next.
        """
        stage = (k_tile >> 3) & (SCALE_STAGES - 1)
        address = self._word + stage * self.view.scale_stage_bytes
        address += (k_tile & (SCALE_GROUP - 1)) * self._k_tile_bytes

        def read(two: int) -> list[Any]:
            at = address + two * self._two_bytes
            if self.view.form.scales is ScalesForm.ROW_MAJOR:
                pair = lds_load(at, fx.Int32, PAIR_TILES)
                return [pair[tile] for tile in range(PAIR_TILES)]
            return [
                lds_load(at + tile * self._k_tile_bytes, fx.Int32, 1) for tile in range(PAIR_TILES)
            ]

        return [lambda two=two: read(two) for two in range(self.count // 2)]

    def masked(self, tile: Fragments, blocks: Any) -> Fragments:
        """Return `tile` with the scales of blocks at or past `blocks` set to 1.0.

        Layouts that pad K to whole tiles may hold anything there, NaN too. The codes of those
        blocks are zero, since the extents of their copies end with the last block.
        """
        if self.view.form.scales is ScalesForm.ROW_MAJOR:
            return tile
        whole = blocks >= fx.Int32(BLOCKS_A_TILE)
        bits = pick(whole, fx.Int32(0), at_least_zero(blocks) * BYTE_BITS)
        keep = pick(whole, fx.Int32(-1), (fx.Int32(1) << bits) - fx.Int32(1))
        ones = fx.Int32(SCALE_ONES) & (keep ^ fx.Int32(-1))
        return Fragments(tile.codes, [(word & keep) | ones for word in tile.scales])


def _groups(rows: Any, group_rows: int) -> Any:
    """Return how many groups hold `rows` rows, 0 where they are not more."""
    return at_least_zero(rows + (group_rows - 1)) >> _log2(group_rows)


def _log2(power_of_two: int) -> int:
    return power_of_two.bit_length() - 1
