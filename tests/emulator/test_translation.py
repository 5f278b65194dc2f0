"""What a memory instruction reads must stay until its address is known to be translated: each case
is a smallest program that must raise the hazard, and the same program with each thing that proves
the translation, which must run.
"""

import numpy as np
import pytest

import emulator_translations
from gfx1250_programs import LANES, assembly, run_wave
from mxgemm.emulator import EncodingHazard, Machine, ReplayHazard

pytestmark = pytest.mark.emulated

LANE = np.arange(LANES, dtype=np.uint32)
TIMINGS = ["early", "late", "random"]
GROUPS = "s_setreg_imm32_b32 hwreg(HW_REG_WAVE_MODE, 25, 1), 1\n"
"""The mode that compilers choose: the wave goes on while addresses are translated."""
POINTER = "s_load_b64 s[2:3], s[0:1], 0x0\ns_wait_kmcnt 0x0\n"
STORE, LOAD = "global_store_b32 v1, v2, s[2:3]\n", "global_load_b32 v3, v1, s[2:3]\n"
SCALAR_LOAD = "s_load_b32 s4, s[2:3], 0x0\n"
XCNT, KMCNT, LOADCNT, STORECNT = (
    f"s_wait_{counter} 0x0\n" for counter in ("xcnt", "kmcnt", "loadcnt", "storecnt")
)
BARRIER = "s_barrier_signal -1\ns_barrier_wait -1\n"
TAKEN = "s_branch .LBB0_1\n.LBB0_1:\n"
NOT_TAKEN = "s_cmp_eq_u32 0, 1\ns_cbranch_scc1 .LBB0_1\n.LBB0_1:\n"


def run(program: str, timing: str = "late") -> None:
    memory = np.arange(64, dtype=np.uint32)

    def prepare(machine: Machine):
        return [machine.memory.map(0x1000_0000, buffer=memory)]

    run_wave(
        GROUPS + POINTER + program + "s_wait_loadcnt 0x0\ns_wait_kmcnt 0x0\n",
        vectors=dict.fromkeys((1, 2, 4, 5, 6), LANE * 4),
        lds_bytes=256,
        timing=timing,
        prepare=prepare,
        arguments=[8],
    )


def fault(program: str, timing: str = "late") -> ReplayHazard:
    with pytest.raises(ReplayHazard) as caught:
        run(program, timing)
    return caught.value


OVERWRITES = {
    "stored data": (STORE, "v_mov_b32 v2, 0\n", "v2"),
    "a store's address": (STORE, "v_mov_b32 v1, 0\n", "v1"),
    "a store's scalar base": (STORE, "s_mov_b32 s3, 0\n", "s3"),
    "a load's address": (LOAD, "v_mov_b32 v1, 0\n", "v1"),
    "a 64-bit address": ("global_load_b32 v3, v[6:7], off\n", "v_mov_b32 v7, 0\n", "v7"),
    "the last register of wide data": (
        "global_store_b128 v1, v[4:7], s[2:3]\n",
        "v_mov_b32 v7, 0\n",
        "v7",
    ),
    "by the second half of a pair": (
        STORE,
        "v_dual_mov_b32 v8, 0 :: v_dual_mov_b32 v1, 0\n",
        "v1",
    ),
    "by an LDS load": (STORE, "ds_load_b32 v2, v4\n", "v2"),
    "EXEC": (STORE, "s_mov_b32 exec_lo, 1\n", "s126"),
    "EXEC, saved": (STORE, "s_and_saveexec_b32 s8, -1\n", "s126"),
    "EXEC, by a comparison": (STORE, "v_cmpx_eq_u32 v1, v1\n", "s126"),
    "a scalar load's base": (SCALAR_LOAD, "s_mov_b32 s2, 0\n", "s2"),
    "a scalar load's base, by another": (SCALAR_LOAD, "s_load_b32 s2, s[0:1], 0x0\n", "s2"),
}
# v[6:7] holds the buffer's address in the 64-bit case
ADDRESS = "v_mov_b32 v6, s2\nv_mov_b32 v7, s3\nds_store_b32 v4, v5\ns_wait_dscnt 0x0\n"


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("case", OVERWRITES.values(), ids=OVERWRITES)
def test_overwriting_what_may_be_read_again(case, timing):
    access, overwrite, resource = case
    caught = fault(ADDRESS + access + overwrite, timing)
    assert (caught.resource, caught.missing) == (resource, "s_wait_xcnt 0")
    assert caught.instruction == overwrite.strip()
    run(ADDRESS + access + XCNT + overwrite, timing)
    completed = KMCNT if access == SCALAR_LOAD else LOADCNT + STORECNT
    run(ADDRESS + access + completed + overwrite, timing)


VECTOR, SCALAR = STORE + "{}v_mov_b32 v2, 0\n", SCALAR_LOAD + "{}s_mov_b32 s2, 0\n"
PROOFS = {
    "barrier": (VECTOR, BARRIER),
    "branch": (VECTOR, TAKEN),
    "branch that is not taken": (VECTOR, NOT_TAKEN),
    "scalar load, after vector memory": (VECTOR, "s_load_b32 s8, s[0:1], 0x0\n"),
    "completion of a later load": (VECTOR, LOAD + LOADCNT),
    "barrier, scalar": (SCALAR, BARRIER),
    "setting a mode": (VECTOR, "s_set_vgpr_msb 0\n"),
    "setting a hardware register": (
        VECTOR,
        "s_setreg_imm32_b32 hwreg(HW_REG_WAVE_SCHED_MODE, 0, 2), 0\n",
    ),
    "branch, scalar": (SCALAR, TAKEN),
    "vector memory, after a scalar load": (SCALAR, "global_load_b32 v3, v[6:7], off\n"),
}
NO_PROOFS = {
    "a wait for all but one": (VECTOR, "s_wait_xcnt 0x1\n"),
    "stores out of order": (STORE + VECTOR, "s_wait_storecnt 0x1\n"),
    "completion of an earlier load": (LOAD + VECTOR, LOADCNT),
    "completion of an LDS access": (VECTOR, "ds_load_b32 v8, v4\ns_wait_dscnt 0x0\n"),
    "completion of a scalar load, after vector memory": (SCALAR_LOAD + VECTOR, KMCNT),
    "scalar memory out of order": ("s_load_b32 s8, s[2:3], 0x0\n" + SCALAR, "s_wait_xcnt 0x1\n"),
}


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("case", PROOFS.values(), ids=PROOFS)
def test_what_proves_a_translation(case, timing):
    program, proof = case
    fault(ADDRESS + program.format(""), timing)
    run(ADDRESS + program.format(proof), timing)


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("case", NO_PROOFS.values(), ids=NO_PROOFS)
def test_what_proves_no_translation(case, timing):
    program, other = case
    fault(ADDRESS + program.format(other), timing)


@pytest.mark.parametrize("count", range(4))
def test_vector_memory_is_translated_in_order(count):
    """Four stores of v4 .. v7; after a wait that leaves `count`, the last `count` are protected."""
    stores = "".join(f"global_store_b32 v1, v{4 + n}, s[2:3]\n" for n in range(4))
    wait = f"s_wait_xcnt {count:#x}\n"
    run(ADDRESS + stores + wait + f"v_mov_b32 v{7 - count}, 0\n")
    if count:
        caught = fault(ADDRESS + stores + wait + f"v_mov_b32 v{8 - count}, 0\n")
        assert caught.missing == f"s_wait_xcnt {count - 1}"


def test_a_full_store_counter_proves_nothing_about_the_youngest():
    assert fault(STORE * 80 + "v_mov_b32 v2, 0\n").missing == "s_wait_xcnt 0"
    oldest = "global_store_b32 v1, v4, s[2:3]\n"
    assert fault(oldest + STORE * 80 + "v_mov_b32 v4, 0\n").missing == "s_wait_xcnt 80"


FREE = {
    "reading a source again": STORE + "v_mov_b32 v8, v2\n",
    "a vector load into a source of earlier vector memory": STORE
    + "global_load_b32 v2, v1, s[2:3]\n",
    "a vector load into its own address": "global_load_b32 v1, v1, s[2:3]\n",
    "a scalar load of one register into its own address": "s_load_b32 s2, s[2:3], 0x0\n",
    "the sources of LDS accesses": "ds_store_b32 v1, v2\nv_mov_b32 v2, 0\nv_mov_b32 v1, 0\n",
    "EXEC after a scalar load": SCALAR_LOAD + "s_mov_b32 exec_lo, -1\n",
    "a tensor descriptor": "s_mov_b32 s8, 0\ntensor_load_to_lds s[8:11], s[12:19]\n"
    "s_mov_b32 s8, 0\ns_wait_tensorcnt 0x0\n",
}


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("program", FREE.values(), ids=FREE)
def test_what_needs_no_proof(program, timing):
    zeros = "".join(f"s_mov_b32 s{n}, 0\n" for n in range(8, 20))
    run(zeros + program, timing)


def test_scalar_load_into_its_own_address_must_be_aligned_to_its_size():
    load = "s_load_b64 s[2:3], s[2:3], {}\n"
    with pytest.raises(EncodingHazard, match="must be aligned to 8 bytes, is at 0x10000004"):
        run(load.format("0x4"))
    run(load.format("0x8"))
    run("s_load_b64 s[4:5], s[2:3], 0x4\n")
    run("s_load_b32 s2, s[2:3], 0x4\n")


def test_in_the_other_mode_only_memory_instructions_are_not_waited_for():
    loads = "s_load_b64 s[2:3], s[0:1], 0x0\n{}s_load_b32 s0, s[6:7], 0x0\ns_wait_kmcnt 0x0\n"
    scalars = {6: 0x1000_0000, 7: 0}

    def prepare(machine: Machine):
        region = machine.memory.map(0x1000_0000, buffer=np.zeros(8, np.uint32))
        return [region]

    options = {"scalars": scalars, "prepare": prepare, "arguments": [8]}
    with pytest.raises(ReplayHazard, match="s_wait_xcnt 0"):
        run_wave(loads.format(""), **options)
    run_wave(loads.format("s_nop 0\n"), **options)
    run_wave(POINTER + "v_mov_b32 v1, 0\n" + LOAD + "v_mov_b32 v1, 0\n" + LOADCNT, **options)


def overwrites(program: str) -> bool:
    text = assembly(GROUPS + POINTER + ADDRESS + program, arguments=[8])
    return bool(emulator_translations.overwritten(Machine("gfx1250").load(text).instructions))


def test_reading_the_code_finds_what_running_it_does():
    for access, overwrite, _ in OVERWRITES.values():
        assert overwrites(access + overwrite)
        assert not overwrites(access + XCNT + overwrite)
        assert not overwrites(access + LOADCNT + STORECNT + KMCNT + overwrite)
    for program, proof in PROOFS.values():
        assert overwrites(program.format(""))
        assert not overwrites(program.format(proof))
    for program, other in NO_PROOFS.values():
        assert overwrites(program.format(other))
    for program in FREE.values():
        assert not overwrites(program)
