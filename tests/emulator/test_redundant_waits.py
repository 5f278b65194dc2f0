"""The proof that later waits make up for a wait for LDS holds where they do, and nowhere else."""

import pytest

from emulator_mutants import is_made_up_for
from gfx1250_programs import assembly, run_wave
from mxgemm.emulator import Machine, MissingWait

pytestmark = pytest.mark.emulated

WAIT = "s_wait_dscnt 0x0\n"
LOAD, USE, STORE = "ds_load_b32 v2, v1\n", "v_mov_b32 v3, v2\n", "ds_store_b32 v1, v0\n"
BRANCH, TARGET = "s_cbranch_scc1 .LBB0_1\n", ".LBB0_1:\n"
SEND = "tensor_store_from_lds s[64:67], s[68:75]\n"


def first_is_made_up_for(program):
    """Return whether the program's first wait for LDS is proven to be redundant."""
    code = Machine().load(assembly(program)).instructions
    pc = next(pc for pc, i in enumerate(code) if i.name == "s_wait_dscnt")
    return is_made_up_for(code, pc, "dscnt")


@pytest.mark.parametrize(
    "program",
    [
        LOAD + WAIT + WAIT + USE,
        LOAD + WAIT + STORE + "s_wait_dscnt 0x1\n" + USE + WAIT,
        LOAD + WAIT + BRANCH + TARGET + WAIT + USE,
        LOAD + WAIT + BRANCH + WAIT + USE + TARGET + WAIT + USE,
        STORE + WAIT + WAIT + "s_barrier_signal -1\ns_barrier_wait -1\n",
        STORE + WAIT + WAIT + SEND,
        STORE + WAIT + "s_wait_alu depctr_vm_vsrc(0)\nv_mov_b32 v0, 0\n" + WAIT,
        STORE + WAIT + WAIT,
    ],
)
def test_wait_that_a_later_one_makes_up_for_is_redundant(program):
    assert first_is_made_up_for(program)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(LOAD + WAIT + USE + WAIT, id="used"),
        pytest.param(LOAD + WAIT + "v_mov_b32 v2, 0\n" + WAIT, id="overwritten"),
        pytest.param(LOAD + WAIT + "s_wait_dscnt 0x1\n" + USE + WAIT, id="weaker wait"),
        pytest.param(LOAD + WAIT + BRANCH + WAIT + TARGET + USE + WAIT, id="on one path only"),
        pytest.param(TARGET + USE + LOAD + WAIT + BRANCH + WAIT, id="used in the next pass"),
        pytest.param(STORE + WAIT + "s_barrier_signal -1\n" + WAIT, id="signalled"),
        pytest.param(STORE + WAIT + SEND + WAIT, id="copied"),
        pytest.param(STORE + WAIT + "v_mov_b32 v0, 0\n" + WAIT, id="not read"),
        pytest.param(STORE + WAIT, id="end"),
    ],
)
def test_wait_before_something_that_needs_it_is_not_redundant(program):
    assert not first_is_made_up_for(program)


@pytest.mark.parametrize("timing", ["early", "late", "random"])
def test_only_a_full_counter_makes_up_for_a_wait_before_a_use(timing):
    prepared = "v_lshlrev_b32 v1, 2, v0\n" + STORE + WAIT
    full, one_less = LOAD + 63 * STORE, LOAD + 62 * STORE
    assert first_is_made_up_for(full + WAIT + USE + WAIT)
    assert not first_is_made_up_for(one_less + WAIT + USE + WAIT)
    run_wave(prepared + full + USE + WAIT, lds_bytes=128, timing=timing)
    with pytest.raises(MissingWait):
        run_wave(prepared + one_less + USE + WAIT, lds_bytes=128, timing=timing)
