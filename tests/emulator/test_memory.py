"""LDS, global, scratch and scalar memory: addresses, widths, lanes, bounds, counters."""

import numpy as np
import pytest

from gfx1250_programs import LANES, assembly, run_wave
from mxgemm.emulator import AccessError, Machine, UnsupportedInstruction

pytestmark = pytest.mark.emulated

LANE = np.arange(LANES, dtype=np.uint32)
BASE = 0x1234_5678_0000


def words(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 32, (count, LANES), dtype=np.uint32)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_lds_store_and_load_of_dwords(count):
    data = words(1, count)
    stop = "" if count == 1 else f":{9 + count}"
    first, second = ("v10", "v20") if count == 1 else (f"v[10{stop}]", f"v[20:{19 + count}]")
    program = (
        f"ds_store_b{32 * count} v1, {first} offset:64\ns_wait_dscnt 0x0\n"
        f"ds_load_b{32 * count} {second}, v1 offset:64\n"
        "s_wait_dscnt 0x0"
    )
    state = run_wave(program, vectors={1: LANE * 16} | dict(enumerate(data, 10)), lds_bytes=1024)
    for n in range(count):
        assert (state.vectors[20 + n] == data[n]).all()
    lds = state.lds[64:].view(np.uint32)
    assert all((lds[4 * LANE + n][:LANES] == data[n]).all() for n in range(count))
    assert state.result.counters.lds_high_water == 64 + 31 * 16 + 4 * count
    assert (
        state.result.counters.lds_written_bytes
        == state.result.counters.lds_read_bytes
        == 128 * count
    )


@pytest.mark.parametrize(
    ("suffix", "bytes_", "unit"),
    [("b32", 4, 4), ("b64", 8, 8), ("stride64_b32", 4, 256), ("stride64_b64", 8, 512)],
)
def test_lds_pairs_of_addresses(suffix, bytes_, unit):
    data = words(2, 4)
    w = bytes_ // 4

    def reg(first):
        return f"v{first}" if w == 1 else f"v[{first}:{first + 1}]"

    program = (
        f"ds_store_2addr_{suffix} v1, {reg(10)}, {reg(12)} offset0:1 offset1:3\ns_wait_dscnt 0x0\n"
        f"ds_load_2addr_{suffix} v[20:{19 + 2 * w}], v1 offset0:3 offset1:1\ns_wait_dscnt 0x0"
    )
    vectors = {1: LANE * 2048} | dict(enumerate(data, 10))
    state = run_wave(program, vectors=vectors, lds_bytes=2048 * LANES + 2048)
    lds = state.lds.view(np.uint32)
    for lane in range(LANES):
        for n in range(w):
            assert lds[(2048 * lane + unit) // 4 + n] == data[n][lane]
            assert lds[(2048 * lane + 3 * unit) // 4 + n] == data[2 + n][lane]
    for n in range(w):
        assert (state.vectors[20 + n] == data[2 + n]).all()
        assert (state.vectors[20 + w + n] == data[n]).all()


@pytest.mark.parametrize(
    ("load", "bits", "sign"),
    [("u8", 8, False), ("i8", 8, True), ("u16", 16, False), ("i16", 16, True)],
)
def test_lds_narrow_accesses(load, bits, sign):
    data = words(3, 1)[0]
    program = f"ds_store_b{bits} v1, v2\ns_wait_dscnt 0x0\nds_load_{load} v9, v1\ns_wait_dscnt 0x0"
    state = run_wave(program, vectors={1: LANE * (bits // 8) + 1, 2: data}, lds_bytes=256)
    low = data & ((1 << bits) - 1)
    want = (
        low.astype(f"u{bits // 8}").view(f"i{bits // 8}").astype(np.int32).view(np.uint32)
        if sign
        else low
    )
    assert (state.vectors[9] == want).all()


def test_inactive_lanes_do_not_touch_lds():
    program = "s_mov_b32 exec_lo, 0xff\nds_store_b32 v1, v2"
    state = run_wave(program, vectors={1: LANE * 4, 2: LANE}, lds_bytes=128)
    assert state.lds.view(np.uint32).tolist() == [*range(8), *[0xFFFFFFFF] * 24]


def test_lds_access_outside_the_workgroups_lds():
    with pytest.raises(
        AccessError,
        match=r"pc 0 `ds_load_b128 .*16 bytes at 0x1f8 by lane 31, the workgroup has 0x200",
    ):
        run_wave("ds_load_b128 v[4:7], v1 offset:8", vectors={1: LANE * 16}, lds_bytes=512)


@pytest.mark.parametrize(
    ("pitch", "bytes_", "cycles", "conflicts"),
    [
        (4, 4, 1, 0),
        (8, 8, 1, 0),
        (16, 16, 2, 0),
        (256, 4, 32, 31),
        (64, 16, 8, 6),
        (80, 16, 2, 0),
        (0, 4, 1, 0),
    ],
)
def test_bank_conflicts_are_counted(pitch, bytes_, cycles, conflicts):
    """64 banks of 4 bytes: rows of 64 bytes put four of 16 lanes on the same banks, rows of 80
    bytes none.
    """
    last = "v4" if bytes_ == 4 else f"v[4:{3 + bytes_ // 4}]"
    program = f"ds_load_b{8 * bytes_} {last}, v1\ns_wait_dscnt 0x0"
    lds = 31 * pitch + bytes_
    checks_off = run_wave(program, vectors={1: LANE * pitch}, lds_bytes=lds, checks=no_checks())
    counters = checks_off.result.counters
    assert (counters.lds_cycles, counters.lds_conflict_cycles) == (cycles, conflicts)


def no_checks():
    from mxgemm.emulator import Checks

    return Checks(races=False, registers=False)


def buffer_of(count: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32)


def with_pointer(array: np.ndarray):
    def prepare(machine: Machine):
        return [machine.memory.map(BASE, buffer=array)]

    return {"prepare": prepare, "arguments": [8]}


POINTER = "s_load_b64 s[2:3], s[0:1], 0x0\ns_wait_kmcnt 0x0\n"


@pytest.mark.parametrize("bits", [32, 64, 96, 128])
def test_global_load_and_store_with_a_scalar_base(bits):
    count = bits // 32
    source = buffer_of(4 * LANES * 2 + 4)
    before, expected = source.copy(), source.copy()
    registers = "v10" if count == 1 else f"v[10:{9 + count}]"
    program = (
        f"{POINTER}global_load_b{bits} {registers}, v1, s[2:3] offset:16\ns_wait_loadcnt 0x0\n"
        f"global_store_b{bits} v2, {registers}, s[2:3]"
    )
    vectors = {1: LANE * 16, 2: (LANE + LANES) * 16}
    state = run_wave(program, vectors=vectors, **with_pointer(source))
    for lane in range(LANES):
        expected[4 * (lane + LANES) : 4 * (lane + LANES) + count] = before[
            4 * lane + 4 : 4 * lane + 4 + count
        ]
    assert (source == expected).all()
    assert state.result.counters.global_written_bytes == bits // 8 * LANES


def test_global_address_forms():
    source = buffer_of(256)
    address = BASE + LANE.astype(np.uint64) * 8
    vectors = {
        2: address.astype(np.uint32),
        3: (address >> np.uint64(32)).astype(np.uint32),
        1: LANE,
    }
    state = run_wave(
        "global_load_b32 v9, v[2:3], off offset:4\ns_wait_loadcnt 0x0",
        vectors=vectors,
        **with_pointer(source),
    )
    assert (state.vectors[9] == source[1 : 2 * LANES + 1 : 2]).all()
    program = f"{POINTER}global_load_b64 v[10:11], v1, s[2:3] scale_offset\ns_wait_loadcnt 0x0"
    state = run_wave(program, vectors=vectors, **with_pointer(source))
    assert (state.vectors[10] == source[: 2 * LANES : 2]).all()
    negative = {1: (LANE.astype(np.int32) - 4).view(np.uint32)}
    program = f"{POINTER}global_load_u8 v10, v1, s[2:3] offset:4\ns_wait_loadcnt 0x0"
    state = run_wave(program, vectors=negative, **with_pointer(source))
    assert (state.vectors[10] == source.view(np.uint8)[:LANES]).all()


@pytest.mark.parametrize(
    ("kind", "dtype"), [("u8", np.uint8), ("i8", np.int8), ("u16", np.uint16), ("i16", np.int16)]
)
def test_global_narrow_accesses(kind, dtype):
    size = np.dtype(dtype).itemsize
    source = buffer_of(64)
    before = source.copy()
    program = (
        f"{POINTER}global_load_{kind} v10, v1, s[2:3]\ns_wait_loadcnt 0x0\n"
        f"global_store_b{8 * size} v1, v10, s[2:3] offset:128"
    )
    state = run_wave(program, vectors={1: LANE * size}, **with_pointer(source))
    assert (state.vectors[10].view(np.int32) == before.view(dtype)[:LANES].astype(np.int32)).all()
    assert (
        source.view(dtype)[128 // size : 128 // size + LANES] == before.view(dtype)[:LANES]
    ).all()


def test_access_past_2_31_bytes_of_a_sparse_region():
    size, far = 1 << 36, (1 << 33) + 4096

    def prepare(machine: Machine):
        region = machine.memory.map(BASE, size)
        machine.memory.write(region.base + far, np.arange(LANES, dtype=np.uint32))
        return [region]

    address = BASE + far + LANE.astype(np.uint64) * 4
    vectors = {2: address.astype(np.uint32), 3: (address >> np.uint64(32)).astype(np.uint32)}
    state = run_wave(
        "global_load_b32 v9, v[2:3], off\ns_wait_loadcnt 0x0",
        vectors=vectors,
        prepare=prepare,
        arguments=[8],
    )
    assert (state.vectors[9] == LANE).all()


def test_access_outside_a_region_names_the_instruction_and_the_address():
    source = buffer_of(32)
    with pytest.raises(
        AccessError,
        match=r"pc 2 `global_load_b32 .*read of 4 bytes at 0x123456780080 is not inside",
    ) as caught:
        run_wave(
            f"{POINTER}global_load_b32 v9, v1, s[2:3] offset:4\ns_wait_loadcnt 0x0",
            vectors={1: LANE * 4},
            **with_pointer(source),
        )
    assert caught.value.pc == 2


def test_write_to_a_read_only_buffer():
    source = buffer_of(32)
    source.setflags(write=False)
    with pytest.raises(AccessError, match="read-only"):
        run_wave(
            f"{POINTER}global_store_b32 v1, v1, s[2:3]",
            vectors={1: LANE * 4},
            **with_pointer(source),
        )


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 16])
def test_scalar_loads(count):
    source = buffer_of(32)
    registers = "s20" if count == 1 else f"s[20:{19 + count}]"
    program = f"{POINTER}s_load_b{32 * count} {registers}, s[2:3], s9 offset:0x8\ns_wait_kmcnt 0x0"
    state = run_wave(program, scalars={9: 16}, **with_pointer(source))
    assert state.scalars[20 : 20 + count] == source[6 : 6 + count].tolist()


@pytest.mark.parametrize(
    ("kind", "dtype"), [("u8", np.uint8), ("i8", np.int8), ("u16", np.uint16), ("i16", np.int16)]
)
def test_narrow_scalar_loads(kind, dtype):
    source = np.array([0x8081F2F3], np.uint32)
    state = run_wave(
        f"{POINTER}s_load_{kind} s20, s[2:3], 0x2\ns_wait_kmcnt 0x0", **with_pointer(source)
    )
    want = source.view(dtype)[2 // np.dtype(dtype).itemsize]
    assert np.uint32(state.scalars[20]).view(np.int32) == np.int32(want)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_scratch_holds_values_lane_by_lane(count):
    data = words(4, count)
    source, target = ("v10", "v20") if count == 1 else (f"v[10:{9 + count}]", f"v[20:{19 + count}]")
    program = (
        f"scratch_store_b{32 * count} off, {source}, off offset:8\ns_wait_storecnt 0x0\n"
        f"scratch_load_b{32 * count} {target}, off, s5\ns_wait_loadcnt 0x0"
    )
    state = run_wave(program, vectors=dict(enumerate(data, 10)), scalars={5: 8}, scratch_bytes=24)
    assert all((state.vectors[20 + n] == data[n]).all() for n in range(count))


@pytest.mark.parametrize("timing", ["early", "late", "random"])
def test_scratch_is_read_and_written_in_the_order_of_the_program(timing):
    """Compilers put no wait between a spill and the load that takes it back."""
    program = (
        "scratch_store_b32 off, v1, off offset:4\nscratch_load_b32 v3, off, off offset:4\n"
        "scratch_store_b32 off, v2, off offset:4\ns_wait_loadcnt 0x0\ns_wait_storecnt 0x0"
    )
    first, second = np.arange(32, dtype=np.uint32), np.arange(100, 132, dtype=np.uint32)
    state = run_wave(program, vectors={1: first, 2: second}, scratch_bytes=24, timing=timing)
    assert (state.vectors[3] == first).all()


def test_scratch_outside_the_kernels_allocation_and_unmodelled_forms():
    with pytest.raises(AccessError, match="scratch access of 4 bytes at 24, a lane has 24"):
        run_wave("scratch_store_b32 off, v0, off offset:24", scratch_bytes=24)
    with pytest.raises(UnsupportedInstruction, match="vector address"):
        run_wave("scratch_load_b32 v9, v0, off", scratch_bytes=24)


def test_initial_registers_give_ids_and_the_argument_address():
    lines = (
        "v_mov_b32 v9, v0\ns_mov_b32 s20, ttmp9\ns_mov_b32 s21, ttmp7\n"
        "s_lshr_b32 s22, ttmp8, 25\ns_load_b32 s23, s[0:1], 0x0"
    )
    text = assembly(lines + "\ns_wait_kmcnt 0x0", arguments=[4], block=96)
    machine = Machine()
    machine.load(text)
    seen = {}

    def end(wave) -> None:
        seen[(*wave.workgroup, wave.index)] = (
            [wave.scalar(n) for n in range(20, 24)],
            wave.vector(9)[[0, 31]].tolist(),
        )

    machine.hook("end", end)
    machine.launch((2, 3, 1), args=[-5])
    assert len(seen) == 18
    for (x, y, _, wave), (scalars, ids) in seen.items():
        assert scalars == [x, y, wave, 0xFFFFFFFB]
        assert ids == [32 * wave, 32 * wave + 31]


def test_last_wave_of_a_ragged_block_has_fewer_lanes():
    machine = Machine()
    machine.load(assembly("s_mov_b32 s20, exec_lo", block=40))
    masks = []
    machine.hook("end", lambda wave: masks.append((wave.index, wave.scalar(20))))
    machine.launch((1,))
    assert sorted(masks) == [(0, 0xFFFFFFFF), (1, 0xFF)]


def test_a_load_leaves_the_registers_of_inactive_lanes_alone():
    program = (
        "ds_store_b32 v1, v2\ns_wait_dscnt 0x0\ns_mov_b32 exec_lo, 0xffff\nds_load_b32 v3, v1\n"
        "s_wait_dscnt 0x0\ns_mov_b32 exec_lo, -1"
    )
    data, kept = words(9, 2)
    state = run_wave(program, vectors={1: LANE * 4, 2: data, 3: kept}, lds_bytes=128, timing="late")
    assert (state.vectors[3] == np.where(LANE < 16, data, kept)).all()
