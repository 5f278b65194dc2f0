"""MXTensor: what its buffers must be, how it moves, copies, maps and is cut."""

import copy
import dataclasses
import pickle

import pytest
import torch
from torch.utils import _pytree as pytree

import mxgemm
import oracles
from mxgemm import CANONICAL, MXPair, MXTensor, OperandLayout, Rotation
from mxgemm.errors import LayoutMismatch
from mxgemm.layouts import REGISTRY, Scale32x8, Tile16x16

SWIZZLED = OperandLayout(Tile16x16(), Scale32x8(row_multiple=256))
FIELDS = [field.name for field in dataclasses.fields(MXTensor)]
STATIC = [name for name in FIELDS if name not in ("codes", "scales")]


def example(rows: int = 40, k: int = 128, **options) -> MXTensor:
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(rows * k))
    return mxgemm.quantize(x, **options)


EXAMPLES = {
    "plain": lambda: example(),
    "all-tags": lambda: example(
        rule="search", rotation=Rotation(64, 5), prescale=True, layout=SWIZZLED
    ),
    "padded-k": lambda: example(3, 50, pad=True),
    "empty": lambda: example(0, 64),
}
examples = pytest.mark.parametrize("make", EXAMPLES.values(), ids=EXAMPLES)


def assert_equal(x: MXTensor, y: MXTensor) -> None:
    for name in STATIC:
        assert getattr(x, name) == getattr(y, name), name
    assert torch.equal(x.codes, y.codes)
    assert torch.equal(x.scales, y.scales)


def shares_memory(x: MXTensor, y: MXTensor) -> tuple[bool, bool]:
    return (
        x.codes.data_ptr() == y.codes.data_ptr(),
        x.scales.data_ptr() == y.scales.data_ptr(),
    )


@examples
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_keeps_everything(make, protocol):
    q = make()
    back = pickle.loads(pickle.dumps(q, protocol))
    assert isinstance(back, MXTensor)
    assert_equal(back, q)


@examples
def test_copy_shares_and_deepcopy_and_clone_do_not(make):
    q = make()
    assert_equal(copy.copy(q), q)
    for other in (copy.deepcopy(q), q.clone()):
        assert_equal(other, q)
        if q.rows:
            assert shares_memory(other, q) == (False, False)
    if q.rows:
        assert shares_memory(copy.copy(q), q) == (True, True)


def test_torch_save_and_load_keep_everything(tmp_path):
    q = EXAMPLES["all-tags"]()
    torch.save(q, tmp_path / "q.pt")
    assert_equal(torch.load(tmp_path / "q.pt", weights_only=False), q)


def test_a_pair_pickles_copies_and_moves():
    pair = mxgemm.quantize_pair(torch.randn(40, 64), rotation=Rotation(16))
    for other in (pickle.loads(pickle.dumps(pair)), copy.deepcopy(pair), pair.to("cpu")):
        assert isinstance(other, MXPair)
        assert_equal(other.along_k, pair.along_k)
        assert_equal(other.along_m, pair.along_m)
    assert pair.to("meta").along_m.device.type == "meta"


@examples
def test_pytree_flattens_to_codes_and_scales_and_back(make):
    q = make()
    leaves, spec = pytree.tree_flatten(q)
    assert [leaf is buffer for leaf, buffer in zip(leaves, (q.codes, q.scales), strict=True)] == [
        True,
        True,
    ]
    assert_equal(pytree.tree_unflatten(leaves, spec), q)
    nested = {"w": [q, MXPair(q, q)]}
    leaves, spec = pytree.tree_flatten(nested)
    assert len(leaves) == 6
    assert_equal(pytree.tree_unflatten(leaves, spec)["w"][1].along_m, q)


def test_tree_map_reaches_the_buffers_and_takes_any_result():
    q = EXAMPLES["all-tags"]()
    cloned = pytree.tree_map(torch.clone, q)
    assert_equal(cloned, q)
    assert shares_memory(cloned, q) == (False, False)
    devices = pytree.tree_map(lambda leaf: leaf.device, q)
    assert (devices.codes, devices.scales) == (q.device, q.device)


def test_to_the_same_device_is_self_and_to_another_moves_both():
    q = EXAMPLES["all-tags"]()
    assert q.to("cpu") is q
    moved = q.to("meta")
    assert (moved.codes.device.type, moved.scales.device.type) == ("meta", "meta")
    for name in STATIC:
        assert getattr(moved, name) == getattr(q, name)


def test_views_of_the_framework_dtypes_share_memory():
    q = example()
    assert q.codes_float4.dtype == torch.float4_e2m1fn_x2
    assert q.scales_e8m0.dtype == torch.float8_e8m0fnu
    assert q.codes_float4.shape == q.codes.shape
    assert q.codes_float4.data_ptr() == q.codes.data_ptr()
    assert q.scales_e8m0.data_ptr() == q.scales.data_ptr()
    back = MXTensor.from_parts(q.codes_float4, q.scales_e8m0, scale_rule="even")
    assert_equal(back, q)
    assert shares_memory(back, q) == (True, True)


def test_scales_as_e8m0_have_the_values_that_we_decode():
    q = example()
    assert torch.equal(q.scales_e8m0.float(), torch.exp2(q.scales.float() - 127))


@pytest.mark.parametrize("scales", [n for n, c in REGISTRY.items() if "scales" in c.holds])
@pytest.mark.parametrize("codes", [n for n, c in REGISTRY.items() if "codes" in c.holds])
def test_relayout_there_and_back_is_the_same_tensor(codes, scales):
    q = example(rotation=Rotation(32, 9), prescale=True)
    layout = OperandLayout.of(codes, scales)
    packed = q.relayout(layout)
    assert packed.layout == layout
    assert_equal(packed.relayout(CANONICAL), q)
    assert torch.equal(mxgemm.dequantize(packed), mxgemm.dequantize(q))
    assert packed.relayout(layout) is packed
    assert_equal(packed.relayout(SWIZZLED).relayout(layout), packed)


@pytest.mark.parametrize("scales", [n for n, c in REGISTRY.items() if "scales" in c.holds])
@pytest.mark.parametrize("codes", [n for n, c in REGISTRY.items() if "codes" in c.holds])
def test_pads_are_never_read_back(codes, scales):
    q = example(37, 96)
    packed = q.relayout(OperandLayout.of(codes, scales))
    poisoned = oracles.poison_pads(packed)
    assert oracles.has_pads(packed.layout, 37, 96) == (poisoned.nbytes > q.nbytes)
    assert torch.equal(poisoned.canonical_codes(), q.codes)
    assert torch.equal(poisoned.canonical_scales(), q.scales)
    assert torch.equal(mxgemm.dequantize(poisoned), mxgemm.dequantize(q))


def test_nbytes_counts_pads():
    assert example(40, 128).nbytes == 40 * 64 + 40 * 4
    assert example(40, 128, layout=SWIZZLED).nbytes == 48 * 64 + 256 * 8


@pytest.mark.parametrize("start", [0, 7, 39, 40])
@pytest.mark.parametrize("length", [0, 1, 25])
def test_narrow_of_rows_is_a_view_of_them(start, length):
    q = example(rotation=Rotation(16), rule="ceil")
    if start + length > q.rows:
        with pytest.raises(ValueError, match="range must lie inside"):
            q.narrow(0, start, length)
        return
    part = q.narrow(0, start, length)
    assert part.shape == (length, 128)
    assert (part.rotation, part.scale_rule) == (q.rotation, q.scale_rule)
    values = mxgemm.dequantize(q)[start : start + length]
    assert torch.equal(mxgemm.dequantize(part), values)
    if length:
        assert part.codes.data_ptr() == q.codes[start:].data_ptr()


@pytest.mark.parametrize(("start", "length"), [(0, 128), (0, 32), (32, 64), (96, 32), (64, 0)])
def test_narrow_along_k_takes_whole_blocks(start, length):
    q = example()
    part = q.narrow(1, start, length)
    assert (part.shape, part.stored_k) == ((40, length), length)
    assert torch.equal(mxgemm.dequantize(part), mxgemm.dequantize(q)[:, start : start + length])


def test_narrow_along_k_keeps_the_partial_last_block():
    q = example(3, 50, pad=True)
    part = q.narrow(1, 32, 18)
    assert (part.shape, part.stored_k) == ((3, 18), 32)
    assert torch.equal(mxgemm.dequantize(part), mxgemm.dequantize(q)[:, 32:])


@pytest.mark.parametrize(("start", "length"), [(16, 32), (0, 16), (1, 127), (32, 33)])
def test_narrow_along_k_refuses_to_cut_a_block(start, length):
    with pytest.raises(ValueError, match="multiples of 32"):
        example().narrow(1, start, length)


def test_narrow_along_k_refuses_to_cut_a_rotation():
    q = example(rotation=Rotation(64))
    assert q.narrow(1, 64, 64).stored_k == 64
    with pytest.raises(ValueError, match="multiples of 64"):
        q.narrow(1, 32, 64)


@pytest.mark.parametrize(
    ("dim", "start", "length"), [(2, 0, 1), (-1, 0, 32), (0, -1, 2), (0, 0, -1), (1, 0, 160)]
)
def test_narrow_refuses_ranges_outside(dim, start, length):
    with pytest.raises(ValueError, match="range must lie inside shape"):
        example().narrow(dim, start, length)


def test_narrow_refuses_a_tensor_that_is_not_canonical():
    with pytest.raises(LayoutMismatch, match=r"call \.relayout\(CANONICAL\) first"):
        example(layout=SWIZZLED).narrow(0, 0, 1)


@pytest.mark.parametrize(("rows", "size"), [(40, 16), (40, 40), (40, 41), (1, 3), (0, 5)])
def test_split_of_rows_is_torch_splits(rows, size):
    q = example(rows, 64)
    expected = torch.split(mxgemm.dequantize(q), size)
    parts = q.split(size)
    assert len(parts) == len(expected)
    for part, values in zip(parts, expected, strict=True):
        assert torch.equal(mxgemm.dequantize(part), values)
        assert part.shape == tuple(values.shape)


def test_torchs_own_split_takes_it():
    q = example()
    assert [part.rows for part in torch.split(q, 16)] == [16, 16, 8]


def test_split_along_k():
    q = example(5, 160)
    expected = torch.split(mxgemm.dequantize(q), 64, dim=1)
    parts = q.split(64, dim=1)
    assert [part.k for part in parts] == [64, 64, 32]
    for part, values in zip(parts, expected, strict=True):
        assert torch.equal(mxgemm.dequantize(part), values)


@pytest.mark.parametrize(
    ("size", "dim", "message"),
    [
        (0, 0, "at least 1"),
        (-4, 0, "at least 1"),
        (16, 1, "multiples of 32"),
        (1, 2, "dim"),
        (1, -1, "dim"),
    ],
)
def test_split_refuses(size, dim, message):
    with pytest.raises(ValueError, match=message):
        example().split(size, dim)


def test_torch_functions_fail_loudly():
    q = example()
    for function in (torch.relu, lambda x: torch.chunk(x, 2), lambda x: x + 1, lambda x: x @ x):
        with pytest.raises((TypeError, AttributeError)):
            function(q)


def test_fields_cannot_be_changed():
    q = example()
    with pytest.raises(dataclasses.FrozenInstanceError):
        q.shape = (1, 1)
    with pytest.raises((AttributeError, TypeError)):
        q.something = 1


def test_identity_is_equality_so_that_tensors_can_be_keys():
    q, other = example(), example()
    assert q != other
    assert len({q, q, other}) == 2


def test_repr_names_every_tag():
    assert repr(EXAMPLES["plain"]()) == (
        "MXTensor(mxfp4 40x128 on cpu, row_major+row_major, rule=even)"
    )
    assert repr(EXAMPLES["all-tags"]()) == (
        "MXTensor(mxfp4 40x128 on cpu, tile_16x16+scale_32x8[256x8], rule=search, "
        "hadamard64/signs=0x5, prescale=0.75)"
    )


def parts(rows: int = 4, k: int = 64) -> dict[str, torch.Tensor]:
    return {
        "codes": torch.zeros(rows, k // 2, dtype=torch.uint8),
        "scales": torch.full((rows, k // 32), 127, dtype=torch.uint8),
    }


def test_from_parts_takes_the_shape_from_canonical_codes():
    q = MXTensor.from_parts(**parts())
    assert (q.shape, q.stored_k, q.layout) == ((4, 64), 64, CANONICAL)


def test_from_parts_copies_only_buffers_that_are_not_contiguous():
    wide = torch.randint(0, 256, (4, 64), dtype=torch.uint8)
    scales = parts()["scales"]
    strided = MXTensor.from_parts(wide[:, :32], scales)
    assert torch.equal(strided.codes, wide[:, :32])
    assert strided.codes.is_contiguous()
    assert strided.scales.data_ptr() == scales.data_ptr()
    assert MXTensor.from_parts(wide[1:3], scales.repeat(1, 2)[1:3]).codes.data_ptr() == (
        wide[1:3].data_ptr()
    )
    with pytest.raises(LayoutMismatch, match="must be contiguous"):
        MXTensor(codes=wide[:, :32], scales=scales, shape=(4, 64), stored_k=64)


def test_every_piece_is_contiguous():
    q = example()
    for piece in (*q.split(7), *q.split(64, dim=1), q.relayout(SWIZZLED)):
        assert piece.codes.is_contiguous()
        assert piece.scales.is_contiguous()


def test_from_parts_with_a_shape_pads_k_to_blocks_and_rotations():
    assert MXTensor.from_parts(**parts(), shape=(4, 50)).stored_k == 64
    q = MXTensor.from_parts(**parts(), shape=(4, 20), rotation=Rotation(64))
    assert (q.k, q.stored_k) == (20, 64)
    packed = MXTensor.from_parts(
        torch.zeros(48, 64, dtype=torch.uint8),
        torch.zeros(256, 8, dtype=torch.uint8),
        layout=SWIZZLED,
        shape=(40, 128),
    )
    assert (packed.shape, packed.stored_k) == ((40, 128), 128)


U8 = torch.uint8
WRONG_PARTS = {
    "codes-int8": ({"codes": torch.zeros(4, 32, dtype=torch.int8)}, TypeError, "codes must be"),
    "codes-float": ({"codes": torch.zeros(4, 32)}, TypeError, "codes must be torch.uint8 or"),
    "codes-e8m0": (
        {"codes": torch.zeros(4, 32, dtype=U8).view(torch.float8_e8m0fnu)}, TypeError, "codes must",
    ),
    "scales-float": ({"scales": torch.ones(4, 2)}, TypeError, r"scales must be .*from_floats"),
    "scales-int32": ({"scales": torch.ones(4, 2, dtype=torch.int32)}, TypeError, "scales must be"),
    "scales-fp4": (
        {"scales": torch.zeros(4, 2, dtype=U8).view(torch.float4_e2m1fn_x2)}, TypeError, "scales",
    ),
    "unpacked-codes": (
        {"codes": torch.zeros(4, 64, dtype=U8)}, LayoutMismatch, r"4x4 byte matrix .*\(4, 2\)",
    ),
    "scales-rows": ({"scales": torch.zeros(5, 2, dtype=U8)}, LayoutMismatch, r"\(5, 2\)"),
    "scales-columns": ({"scales": torch.zeros(4, 3, dtype=U8)}, LayoutMismatch, r"\(4, 3\)"),
    "scales-flat": ({"scales": torch.zeros(8, dtype=U8)}, LayoutMismatch, r"\(8,\)"),
    "codes-3d": ({"codes": torch.zeros(2, 2, 32, dtype=U8)}, LayoutMismatch, "shape must be given"),
    "no-shape-for-tiles": ({"layout": SWIZZLED}, LayoutMismatch, "shape must be given"),
    "half-a-block": (
        {"codes": torch.zeros(4, 8, dtype=U8), "scales": torch.zeros(4, 1, dtype=U8)},
        LayoutMismatch, "4x16 byte matrix",
    ),
    "wrong-shape": ({"shape": (4, 128)}, LayoutMismatch, "4x64 byte matrix"),
    "negative": ({"shape": (-1, 64)}, ValueError, "stored_k must be a multiple"),
    "layout-of-another": (
        {"layout": SWIZZLED, "shape": (4, 64)}, LayoutMismatch, "pack it with this layout",
    ),
    "prescale": ({"prescale": 0.5}, ValueError, "prescale must be 1 or 0.75"),
    "rotation": (
        {"codes": torch.zeros(4, 16, dtype=U8), "scales": torch.zeros(4, 1, dtype=U8),
         "rotation": Rotation(64)}, LayoutMismatch, "4x32 byte matrix",
    ),
    "codes-numpy": ({"codes": torch.zeros(4, 32, dtype=U8).numpy()}, TypeError, "got ndarray"),
    "layout-name": ({"layout": "row_major"}, TypeError, r"layout must be .* got str; .*\.of\("),
    "rotation-size": ({"rotation": 16}, TypeError, "rotation must be a Rotation or None, got int"),
    "shape-list": ({"shape": [4, 64]}, TypeError, r"two ints, got \[4, 64\]"),
    "shape-3d": ({"shape": (2, 2, 64)}, TypeError, "two ints"),
    "shape-floats": ({"shape": (4.0, 64.0)}, TypeError, "two ints"),
    "devices": (
        {"scales": torch.empty(4, 2, dtype=U8, device="meta")}, ValueError, "share a device",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_PARTS)
def test_from_parts_refuses(case):
    changes, error, message = WRONG_PARTS[case]
    with pytest.raises(error, match=message):
        MXTensor.from_parts(**{**parts(), **changes})


def test_stored_k_must_hold_k_and_whole_rotations():
    given = {**parts(), "shape": (4, 64)}
    for stored in (32, 48, 80):
        with pytest.raises(ValueError, match="stored_k must be a multiple of 32 that holds k"):
            MXTensor(**given, stored_k=stored)
    with pytest.raises(ValueError, match="whole rotations of 64"):
        MXTensor(**given, stored_k=96, rotation=Rotation(64))


def test_codes_and_scales_layouts_cannot_be_exchanged():
    for wrong in ({"codes": Scale32x8()}, {"scales": Tile16x16()}):
        with pytest.raises(LayoutMismatch, match="is a layout of"):
            OperandLayout(**wrong)
    with pytest.raises(ValueError, match="must be one of"):
        OperandLayout.of("row_major", "unknown")
