"""Tensor copies between global memory and LDS against a reference in NumPy, from descriptors built
by their bit layout.
"""

import itertools

import numpy as np
import pytest

from gfx1250_programs import run_wave
from mxgemm.emulator import AccessError, DescriptorHazard, Machine, UnsupportedInstruction

pytestmark = pytest.mark.emulated

BASE = 0x0040_0000_0000
GROUPS = 64  # first scalar register of the descriptor: 4, 8, 4, 4
ALL_FOUR = "s[64:67], s[68:75], s[76:79], s[80:83]"


def descriptor(
    address,
    lds,
    tile,
    extent,
    strides=(),
    element_bytes=1,
    *,
    pad=None,
    mask=0,
    count=1,
    kind=2,
    gather=None,
    index_bits=16,
    iterate=None,
    atomic=False,
):
    """Return the 20 dwords of groups 0..3; tile, extent and strides with the fastest dimension
    first, strides without it.
    """
    tile, extent = [*tile, 0, 0, 0, 0][:5], [*extent, 0, 0, 0, 0][:5]
    strides = [*strides, 0, 0, 0, 0][:4]
    g0 = count | lds << 32 | address << 64 | kind << 126
    g0 |= (gather is not None) << 31 | (index_bits == 32) << 30
    interval, amount = pad or (8, 4)
    g1 = (
        mask
        | (element_bytes.bit_length() - 1) << 16
        | atomic << 18
        | (iterate is not None) << 19
        | (pad is not None) << 20
    )
    g1 |= ((interval // 4).bit_length() - 2) << 22 | (amount // 4 - 1) << 25
    g1 |= extent[0] << 48 | extent[1] << 80
    g1 |= tile[0] << 112 | tile[1] << 128 | tile[2] << 144 | strides[0] << 160 | strides[1] << 208
    g2 = extent[2] | extent[3] << 32 | strides[2] << 64 | tile[3] << 112
    g3 = strides[3] | extent[4] << 48 | tile[4] << 80
    if iterate:
        lds_step, global_step, repeats = iterate
        g2 = extent[2] | lds_step << 32 | global_step << 64 | (repeats - 1) << 112
        g3 = 0
    if gather is not None:
        per_group = 128 // index_bits
        g2 = sum(int(row) << index_bits * n for n, row in enumerate(gather[:per_group]))
        g3 = sum(int(row) << index_bits * n for n, row in enumerate(gather[per_group:]))
    value = g0 | g1 << 128 | g2 << 384 | g3 << 512
    return {GROUPS + n: value >> 32 * n & 0xFFFFFFFF for n in range(20)}


def run(operation, memory, words, lds_bytes, *, groups=ALL_FOUR, before="", **options):
    def prepare(machine: Machine):
        return [machine.memory.map(BASE, buffer=memory)]

    program = f"{before}{operation} {groups}\ns_wait_tensorcnt 0x0"
    return run_wave(
        program, scalars=words, lds_bytes=lds_bytes, prepare=prepare, arguments=[8], **options
    )


def expected_lds(
    memory, lds_bytes, start, tile, extent, strides, element_bytes, pad=None, lds=None
):
    """Return LDS after a load: elements in order of the tile, zero outside the extent, gaps where
    padded.
    """
    lds = np.full(lds_bytes, 0xFF, np.uint8) if lds is None else lds
    tile, strides = [max(1, t) if n else t for n, t in enumerate(tile)], [1, *strides]
    written, at = 0, start
    for index in itertools.product(*(range(t) for t in reversed(tile))):
        coordinates = index[::-1]
        inside = all(c < e for c, e in zip(coordinates, extent, strict=False))
        source = sum(c * s for c, s in zip(coordinates, strides, strict=False)) * element_bytes
        for byte in range(element_bytes):
            lds[at] = memory[source + byte] if inside else 0
            at, written = at + 1, written + 1
            if pad and written % pad[0] == 0:
                at += pad[1]
    return lds


def data(count, seed=1):
    return np.random.default_rng(seed).integers(1, 256, count, dtype=np.uint8)


CASES = {
    "one row": {"tile": [48], "extent": [48], "strides": []},
    "two dimensions": {"tile": [16, 5], "extent": [16, 5], "strides": [40]},
    "two-byte elements": {"tile": [16, 5], "extent": [16, 5], "strides": [40], "element_bytes": 2},
    "four-byte elements": {"tile": [8, 5], "extent": [8, 5], "strides": [20], "element_bytes": 4},
    "eight-byte elements": {"tile": [4, 5], "extent": [4, 5], "strides": [10], "element_bytes": 8},
    "three dimensions": {"tile": [8, 3, 4], "extent": [8, 3, 4], "strides": [16, 100]},
    "four dimensions": {"tile": [4, 3, 2, 3], "extent": [4, 3, 2, 3], "strides": [8, 32, 100]},
    "five dimensions": {
        "tile": [4, 2, 2, 3, 2],
        "extent": [4, 2, 2, 3, 2],
        "strides": [8, 24, 50, 170],
    },
    "rows past the end": {"tile": [16, 8], "extent": [16, 5], "strides": [40]},
    "columns past the end": {"tile": [16, 4], "extent": [11, 4], "strides": [40]},
    "both past the end": {"tile": [8, 4, 3], "extent": [5, 2, 2], "strides": [16, 100]},
    "nothing inside": {"tile": [16, 4], "extent": [16, 0], "strides": [40]},
    "a pad after each row": {"tile": [64, 4], "extent": [64, 3], "strides": [80], "pad": (64, 16)},
    "a pad inside rows": {"tile": [64, 3], "extent": [50, 3], "strides": [80], "pad": (32, 4)},
    "a pad across rows": {"tile": [24, 6], "extent": [24, 6], "strides": [30], "pad": (16, 8)},
    "the smallest pad": {"tile": [16, 4], "extent": [16, 4], "strides": [16], "pad": (8, 4)},
}


@pytest.mark.parametrize("timing", ["early", "late", "random"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_load_fills_lds(case, timing):
    memory, size = data(1024), 2048
    words = descriptor(BASE, 128, **case)
    state = run("tensor_load_to_lds", memory, words, size, timing=timing)
    element_bytes = case.get("element_bytes", 1)
    want = expected_lds(
        memory,
        size,
        128,
        case["tile"],
        case["extent"],
        case["strides"],
        element_bytes,
        case.get("pad"),
    )
    assert (state.lds == want).all()
    inside = np.prod([max(0, min(t, e)) for t, e in zip(case["tile"], case["extent"], strict=True)])
    assert state.result.counters.tensor_load_bytes == inside * element_bytes


def test_two_groups_are_enough_for_two_dimensions():
    memory = data(512)
    words = descriptor(BASE, 0, [16, 4], [16, 4], [32])
    state = run("tensor_load_to_lds", memory, words, 64, groups="s[64:67], s[68:75]")
    assert (state.lds == expected_lds(memory, 64, 0, [16, 4], [16, 4], [32], 1)).all()


FILL = (
    "s_mov_b32 s40, 0\n.LBB0_1:\nv_mov_b32 v5, s40\nv_lshl_add_u32 v5, v0, 2, v5\n"
    "ds_store_b32 v5, v5\ns_add_co_u32 s40, s40, 0x80\ns_cmp_lt_u32 s40, 0x400\n"
    "s_cbranch_scc1 .LBB0_1\ns_wait_dscnt 0x0\n"
)
"""Fills 1 KB of LDS with each dword's own address."""


@pytest.mark.parametrize("timing", ["early", "late", "random"])
@pytest.mark.parametrize(
    "case",
    [c for c in CASES.values() if "pad" not in c],
    ids=[n for n, c in CASES.items() if "pad" not in c],
)
def test_store_writes_what_is_inside(case, timing):
    memory = data(1024)
    before = memory.copy()
    words = descriptor(BASE, 256, **case)
    run("tensor_store_from_lds", memory, words, 1024, before=FILL, timing=timing)
    lds = np.arange(0, 1024, 4, dtype=np.uint32).view(np.uint8)
    element_bytes, strides = case.get("element_bytes", 1), [1, *case["strides"]]
    want, at = before.copy(), 256
    for index in itertools.product(*(range(t) for t in reversed(case["tile"]))):
        coordinates = index[::-1]
        target = sum(c * s for c, s in zip(coordinates, strides, strict=True)) * element_bytes
        if all(c < e for c, e in zip(coordinates, case["extent"], strict=True)):
            want[target : target + element_bytes] = lds[at : at + element_bytes]
        at += element_bytes
    assert (memory == want).all()


def test_store_ignores_padding():
    memory = np.zeros(256, np.uint8)
    words = descriptor(BASE, 0, [64, 2], [64, 2], [64], pad=(64, 16))
    run("tensor_store_from_lds", memory, words, 1024, before=FILL)
    assert (memory[:128].view(np.uint32) == np.arange(0, 128, 4)).all()


def test_iteration_repeats_the_tile_at_steps_in_elements():
    memory = data(1024)
    words = descriptor(BASE, 64, [8, 2], [8, 2], [16], 2, iterate=(40, 100, 3))
    state = run("tensor_load_to_lds", memory, words, 512)
    want = np.full(512, 0xFF, np.uint8)
    for n in range(3):
        expected_lds(memory[200 * n :], 512, 64 + 80 * n, [8, 2], [8, 2], [16], 2, lds=want)
    assert (state.lds == want).all()


@pytest.mark.parametrize(
    ("bits", "rows"), [(16, [3, 3, 7, 9, 9, 12, 14, 15, 15, 15]), (32, [0, 5, 6, 11, 13])]
)
def test_gather_takes_rows_by_number(bits, rows):
    memory = data(2048)
    words = descriptor(BASE, 0, [16, len(rows), 9], [16, 14], [100], gather=rows, index_bits=bits)
    state = run("tensor_load_to_lds", memory, words, 256)
    want = np.full(256, 0xFF, np.uint8)
    for n, row in enumerate(rows):
        want[16 * n : 16 * n + 16] = memory[100 * row : 100 * row + 16] if row < 14 else 0
    assert (state.lds == want).all()


def test_null_and_empty_transfers_move_nothing_and_count():
    memory = data(64)
    for words in (
        descriptor(BASE, 0, [16], [16], count=0),
        descriptor(BASE, 0, [0, 4], [16, 4], [16]),
    ):
        state = run("tensor_load_to_lds", memory, words, 64)
        assert (state.lds == 0xFF).all()
        assert state.result.counters.tensor_load_bytes == 0


def test_execution_mask_is_ignored():
    memory = data(64)
    state = run(
        "tensor_load_to_lds",
        memory,
        descriptor(BASE, 0, [64], [64]),
        64,
        before="s_mov_b32 exec_lo, 0\n",
    )
    assert (state.lds == memory).all()


@pytest.mark.parametrize(
    ("words", "error", "match"),
    [
        (descriptor(BASE, 0, [16], [16], kind=1), DescriptorHazard, "type must be 2, got 1"),
        (
            descriptor(BASE, 0, [6, 2], [6, 2], [6], pad=(8, 4)),
            DescriptorHazard,
            "whole dwords, got 6 bytes",
        ),
        (
            descriptor(BASE, 0, [16], [16], mask=3),
            DescriptorHazard,
            "mask must be 0 outside a cluster",
        ),
        (
            descriptor(BASE, 0, [16, 17], [16, 99], [16], gather=[0] * 16),
            DescriptorHazard,
            "gather of 17 rows",
        ),
        (descriptor(BASE, 0, [16], [16], atomic=True), UnsupportedInstruction, "atomic barrier"),
        (
            descriptor(BASE, 500, [16], [16]),
            AccessError,
            "16 LDS bytes at 0x1f4, the workgroup has 0x200",
        ),
        (
            descriptor(BASE, 0, [16, 9], [16, 9], [128]),
            AccessError,
            "read of 16 bytes at 0x4000000400 is not inside",
        ),
    ],
)
def test_descriptors_that_are_not_allowed(words, error, match):
    with pytest.raises(error, match=match):
        run("tensor_load_to_lds", data(1024), words, 512)
