"""Workgroups of one launch are not ordered: none may read or overwrite what another wrote."""

import numpy as np
import pytest

from gfx1250_programs import LANES, assembly
from mxgemm.emulator import Checks, LaunchResult, Machine, RaceHazard

pytestmark = pytest.mark.emulated

BASE = 0x1000_0000
POINTER = "s_load_b64 s[2:3], s[0:1], 0x0\ns_wait_kmcnt 0x0\n"
STORE = "global_store_b32 v1, v0, s[2:3]\n"
BYTE = "global_store_b8 v1, v0, s[2:3]\n"
LOAD = "global_load_b32 v2, v1, s[2:3]\ns_wait_loadcnt 0x0\n"
OWN_WORDS = "s_lshl_b32 s8, ttmp9, 7\nv_lshl_add_u32 v1, v0, 2, s8\n"
SAME_WORDS = "v_lshlrev_b32 v1, 2, v0\n"
OWN_BYTES = "v_lshl_add_u32 v1, v0, 1, ttmp9\n"
SECOND_ONLY = "s_cmp_eq_u32 ttmp9, 0\ns_cbranch_scc1 .LBB0_1\n{}.LBB0_1:\n"
FIRST_ONLY = "s_cmp_lg_u32 ttmp9, 0\ns_cbranch_scc1 .LBB0_2\n{}.LBB0_2:\n"


def run(program: str, *, grid: int = 2, threads: int = 1, **options) -> LaunchResult:
    machine = Machine("gfx1250")
    machine.load(assembly(POINTER + program, arguments=[8]))
    region = machine.memory.map(BASE, buffer=np.zeros(512, np.uint8))
    return machine.launch((grid, 1, 1), (LANES,), [region], threads=threads, **options)


@pytest.mark.parametrize("timing", ["early", "late", "random"])
@pytest.mark.parametrize("threads", [1, 2])
def test_two_workgroups_must_not_write_one_byte(timing, threads):
    options = {"timing": timing, "threads": threads}
    with pytest.raises(RaceHazard, match="write of global memory that another workgroup") as caught:
        run(SAME_WORDS + STORE, **options)
    assert caught.value.instruction == STORE.strip()
    assert caught.value.resource.startswith("global byte 0x100000")
    run(OWN_WORDS + STORE, **options)
    run(OWN_BYTES + BYTE, **options)
    run(SAME_WORDS + STORE + STORE, grid=1, **options)


def test_a_workgroup_must_not_read_what_another_wrote():
    write_then_read = FIRST_ONLY.format(STORE) + SECOND_ONLY.format(LOAD)
    with pytest.raises(RaceHazard, match="read of global memory that another workgroup") as caught:
        run(SAME_WORDS + write_then_read)
    assert caught.value.workgroup == (1, 0, 0)
    run(OWN_WORDS + write_then_read)
    run(OWN_WORDS + STORE + LOAD)
    run(SAME_WORDS + LOAD)


def test_scalar_loads_and_tensor_copies_take_part():
    scalar = FIRST_ONLY.format(STORE) + SECOND_ONLY.format(
        "s_load_b32 s4, s[2:3], 0x8\ns_wait_kmcnt 0x0\n"
    )
    with pytest.raises(RaceHazard, match="read of global memory"):
        run(SAME_WORDS + scalar)
    value = 1 | BASE << 64 | 2 << 126
    value |= (64 << 48 | 1 << 80 | 64 << 112 | 1 << 128) << 128
    descriptor = "".join(
        f"s_mov_b32 s{64 + n}, {value >> 32 * n & 0xFFFFFFFF:#x}\n" for n in range(12)
    )
    fill = "v_lshlrev_b32 v3, 2, v0\nds_store_b32 v3, v0\ns_wait_dscnt 0x0\n"
    copy = "tensor_store_from_lds s[64:67], s[68:75]\ns_wait_tensorcnt 0x0\n"
    with pytest.raises(RaceHazard, match="write of global memory"):
        run(descriptor + fill + copy, lds_bytes=128)
    run(descriptor + fill + FIRST_ONLY.format(copy), lds_bytes=128)


def test_launches_follow_one_another():
    others = OWN_WORDS + "v_xor_b32 v1, 0x80, v1\n"
    machine = Machine("gfx1250")
    write = machine.load(assembly(POINTER + OWN_WORDS + STORE, arguments=[8]))
    read = machine.load(assembly(POINTER + others + LOAD, arguments=[8]))
    region = machine.memory.map(BASE, buffer=np.zeros(512, np.uint8))
    for kernel in (write, read, write):
        machine.launch((2, 1, 1), (LANES,), [region], kernel=kernel)
    with pytest.raises(RaceHazard):
        run(OWN_WORDS + STORE + "v_xor_b32 v1, 0x80, v1\n" + LOAD)


def test_the_check_can_be_left_out():
    run(SAME_WORDS + STORE, checks=Checks(races=False))
