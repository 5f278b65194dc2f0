"""Layouts: literal offsets from the published geometries, inverse, addresses, pads, and what they
refuse.
"""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mxgemm import layouts
from mxgemm.errors import LayoutMismatch
from mxgemm.layouts import (
    ALIASES,
    REGISTRY,
    RowMajor,
    Scale32x4,
    Scale32x8,
    Scale128x4,
    ScaleKMajor,
    Tile16x16,
)

# Row, column, offset. Each list is for one matrix size, worked out from the published formulas.
GOLDEN = {
    # 3 rows x 5 columns, plain.
    ("row_major", 3, 5): [(0, 0, 0), (0, 4, 4), (1, 0, 5), (2, 3, 13)],
    # 40 rows x 80 bytes -> 48 x 96; a row of tiles is 16 * 96 = 1536 bytes, a tile 256.
    ("tile_16x16", 40, 80): [
        (0, 0, 0), (0, 15, 15), (1, 0, 16), (15, 15, 255),
        (0, 16, 256), (0, 31, 271), (2, 17, 289), (0, 32, 512), (0, 48, 768), (5, 79, 1119),
        (16, 0, 1536), (17, 33, 2065), (32, 0, 3072), (39, 79, 4223),
    ],
    # 40 rows x 10 blocks -> 64 x 16; a tile is 256 bytes, two tiles across.
    # Bytes 0..3 hold (0,0), (16,0), (0,4), (16,4); dword 1 is row 1; dword 16 is column 1.
    ("scale_32x8", 40, 10): [
        (0, 0, 0), (16, 0, 1), (0, 4, 2), (16, 4, 3), (1, 0, 4), (15, 0, 60), (0, 1, 64),
        (0, 3, 192), (31, 7, 255), (0, 8, 256), (5, 9, 340), (17, 9, 325), (32, 0, 512),
        (39, 9, 860), (38, 5, 602),
    ],
    # 40 rows x 10 blocks -> 64 x 12; a row of tiles is 32 * 12 = 384 bytes, a tile 128.
    ("scale_32x4", 40, 10): [
        (0, 0, 0), (0, 1, 1), (0, 3, 3), (1, 0, 4), (31, 3, 127), (0, 4, 128), (3, 6, 142),
        (0, 8, 256), (31, 9, 381), (32, 0, 384), (39, 9, 669),
    ],
    # 150 rows x 6 blocks -> 256 x 8; a tile is 512 bytes, two tiles across.
    ("scale_128x4", 150, 6): [
        (0, 0, 0), (0, 3, 3), (32, 0, 4), (64, 0, 8), (96, 3, 15), (1, 0, 16), (31, 0, 496),
        (127, 3, 511), (0, 4, 512), (33, 5, 533), (128, 0, 1024), (149, 5, 1873),
    ],
    # 5 rows x 10 blocks -> 5 x 12: dword of (K tile t, row r) at 4 * (5 t + r).
    ("scale_k_major", 5, 10): [
        (0, 0, 0), (0, 3, 3), (1, 0, 4), (4, 3, 19), (0, 4, 20), (2, 6, 30), (0, 8, 40), (4, 9, 57),
    ],
}  # fmt: skip

PADDED_GOLDEN = [
    # The padding of the instance moves whole tiles: products' own multiples.
    (ALIASES["rocm_te_plain_scales"], 3, 5, [(0, 4, 4), (1, 0, 8), (2, 3, 19)], (256, 8)),
    (ALIASES["rocm_te_swizzled_scales"], 40, 10, [(32, 0, 512), (39, 9, 860)], (256, 16)),
    (RowMajor(column_multiple=4), 2, 6, [(1, 0, 8), (1, 5, 13)], (2, 8)),
    (ScaleKMajor(row_multiple=16), 5, 10, [(0, 4, 64), (4, 9, 145)], (3, 16, 4)),
    (Scale32x4(column_multiple=8), 33, 1, [(32, 0, 256), (0, 0, 0)], (64, 8)),
]

INSTANCES = [
    *(cls() for cls in REGISTRY.values()),
    RowMajor(row_multiple=256, column_multiple=8),
    Tile16x16(row_multiple=64, column_multiple=64),
    Scale32x8(row_multiple=256),
    Scale32x4(row_multiple=64, column_multiple=8),
    Scale128x4(column_multiple=12),
    ScaleKMajor(row_multiple=16, column_multiple=8),
]

instances = pytest.mark.parametrize("layout", INSTANCES, ids=str)
matrix_rows, matrix_columns = st.integers(0, 300), st.integers(0, 40)


def numbered(rows: int, columns: int) -> torch.Tensor:
    """Return a byte matrix whose low digits of the index differ between neighbours everywhere."""
    index = torch.arange(rows * columns).view(rows, columns)
    return (index * 37 % 251 + 1).to(torch.uint8)


@pytest.mark.parametrize(("name", "rows", "columns"), GOLDEN, ids=lambda v: str(v))
def test_offset_is_the_published_one(name, rows, columns):
    layout = layouts.get(name)
    for row, column, offset in GOLDEN[name, rows, columns]:
        assert layout.offset(row, column, rows=rows, columns=columns) == offset, (row, column)


@pytest.mark.parametrize(("name", "rows", "columns"), GOLDEN, ids=lambda v: str(v))
def test_pack_puts_bytes_at_the_published_offsets(name, rows, columns):
    for row, column, offset in GOLDEN[name, rows, columns]:
        one = torch.zeros(rows, columns, dtype=torch.uint8)
        one[row, column] = 0xAB
        storage = layouts.get(name).pack(one).flatten()
        assert storage.nonzero().flatten().tolist() == [offset], (row, column)


@pytest.mark.parametrize(("layout", "rows", "columns", "golden", "shape"), PADDED_GOLDEN)
def test_offset_and_shape_with_a_products_padding(layout, rows, columns, golden, shape):
    assert layout.storage_shape(rows, columns) == shape
    packed = layout.pack(numbered(rows, columns)).flatten()
    for row, column, offset in golden:
        assert layout.offset(row, column, rows=rows, columns=columns) == offset
        assert packed[offset] == numbered(rows, columns)[row, column]


def test_every_registered_layout_has_golden_offsets():
    assert {name for name, _, _ in GOLDEN} == set(REGISTRY)


@instances
@given(rows=matrix_rows, columns=matrix_columns)
def test_unpack_inverts_pack(layout, rows, columns):
    canonical = numbered(rows, columns)
    storage = layout.pack(canonical)
    assert tuple(storage.shape) == layout.storage_shape(rows, columns)
    assert storage.is_contiguous()
    assert torch.equal(layout.unpack(storage, rows, columns), canonical)


@instances
@given(rows=st.integers(1, 140), columns=st.integers(1, 18))
def test_offsets_are_distinct_inside_and_where_pack_puts_the_byte(layout, rows, columns):
    canonical = numbered(rows, columns)
    storage = layout.pack(canonical).flatten()
    offsets = torch.tensor(
        [
            [layout.offset(r, c, rows=rows, columns=columns) for c in range(columns)]
            for r in range(rows)
        ]
    )
    assert int(offsets.min()) >= 0
    assert int(offsets.max()) < storage.numel()
    assert offsets.unique().numel() == rows * columns
    assert torch.equal(storage[offsets], canonical)


@instances
@given(rows=st.integers(1, 140), columns=st.integers(1, 18))
def test_pack_fills_pads_with_zeros_and_unpack_never_reads_them(layout, rows, columns):
    canonical = numbered(rows, columns)
    storage = layout.pack(canonical)
    # The test bytes are never 0, so what is 0 is a pad.
    assert int((storage != 0).sum()) == rows * columns
    poisoned = torch.where(storage == 0, 0xFF, storage).to(torch.uint8)
    assert torch.equal(layout.unpack(poisoned, rows, columns), canonical)


@instances
def test_pack_reads_any_strides(layout):
    wide = numbered(80, 90)
    for view in (wide.t(), wide[::2, 1::3], wide[3:70, 5:50], wide[:1].expand(33, 90)):
        assert torch.equal(layout.pack(view), layout.pack(view.contiguous()))


@instances
def test_pack_refuses_what_is_no_byte_matrix(layout):
    for wrong in (
        torch.zeros(4, 4, dtype=torch.int8),
        torch.zeros(4, 4),
        torch.zeros(16, dtype=torch.uint8),
        torch.zeros(2, 4, 4, dtype=torch.uint8),
    ):
        with pytest.raises(LayoutMismatch, match="takes a uint8 matrix"):
            layout.pack(wrong)


@instances
def test_unpack_refuses_storage_of_another_size_or_dtype(layout):
    storage = layout.pack(numbered(33, 9))
    for wrong in (storage[:-1], storage.to(torch.int16), storage.flatten()):
        with pytest.raises(LayoutMismatch, match="is stored as uint8"):
            layout.unpack(wrong, 33, 9)
    with pytest.raises(LayoutMismatch, match="is stored as uint8"):
        layout.unpack(storage, 300, 9)


@pytest.mark.parametrize("cls", REGISTRY.values(), ids=REGISTRY)
@pytest.mark.parametrize("axis", ["row", "column"])
@pytest.mark.parametrize("multiple", [0, -1, -32])
def test_padding_must_be_positive(cls, axis, multiple):
    with pytest.raises(ValueError, match=f"{axis}_multiple must be a positive multiple"):
        cls(**{f"{axis}_multiple": multiple})


@pytest.mark.parametrize("cls", REGISTRY.values(), ids=REGISTRY)
def test_padding_must_hold_whole_tiles(cls):
    for axis, tile in (("row", cls.tile_rows), ("column", cls.tile_columns)):
        if tile > 1:
            with pytest.raises(ValueError, match=f"{axis}_multiple must be a positive multiple"):
                cls(**{f"{axis}_multiple": tile // 2})


def test_equality_is_geometry_and_padding():
    every = [*INSTANCES, *ALIASES.values()]
    for x, y in itertools.product(every, every):
        same = type(x) is type(y) and (x.row_multiple, x.column_multiple) == (
            y.row_multiple,
            y.column_multiple,
        )
        assert (x == y) == same
        assert (hash(x) == hash(y)) or not same


def test_names_are_found_and_print_their_padding():
    for name, cls in REGISTRY.items():
        assert layouts.get(name) == cls()
        assert str(cls()).startswith(name)
    for name, layout in ALIASES.items():
        assert layouts.get(name) is layout
    assert str(Scale32x8(row_multiple=256)) == "scale_32x8[256x8]"
    assert str(RowMajor()) == "row_major"


def test_an_unknown_name_is_refused_with_the_list():
    with pytest.raises(ValueError, match=r"must be one of .*scale_32x8.*got 'swizzled'"):
        layouts.get("swizzled")


def test_layouts_whose_consumers_read_pads_say_so():
    # scale_32x8: kernels step K by 256. scale_128x4: hardware fetches whole tiles.
    assert {name for name, cls in REGISTRY.items() if cls().requires_zero_pads} == {
        "scale_32x8",
        "scale_128x4",
    }


def test_offsets_beyond_two_to_the_31_do_not_wrap():
    rows, columns = 1 << 20, 1 << 12
    layout = Scale32x8()
    last = layout.offset(rows - 1, columns - 1, rows=rows, columns=columns)
    assert last == rows * columns - 1
    assert layouts.get("row_major").offset(rows - 1, 0, rows=rows, columns=columns) == (
        (rows - 1) * columns
    )
