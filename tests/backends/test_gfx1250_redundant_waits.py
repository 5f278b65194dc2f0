"""The proofs that a wait of a shipped gfx1250 kernel changes nothing hold where they should, and
nowhere else.
"""

import numpy as np
import pytest

import emulator_mutants
from backends.gfx1250_kernels import needs_compiler
from mxgemm.emulator.instruction import Instruction, Kind, Operand

pytest.importorskip("mxgemm._emulator")

from backends import gfx1250_footprints as footprints
from backends import test_flydsl_gfx1250_mutants as shipped

pytestmark = [pytest.mark.emulated, needs_compiler]

WALKS = [kind for kind in shipped.KINDS if kind.startswith("walk-")]
SCALAR_5, ONE, TWO = Operand(Kind.SCALAR, 5), *(Operand(Kind.CONSTANT, value=n) for n in (1, 2))


def footprint(**changes):
    found = footprints.Footprint()
    for name, value in changes.items():
        if isinstance(value, slice):
            getattr(found, name)[value] = True
        else:
            setattr(found, name, value)
    return found


@pytest.mark.parametrize("kind", WALKS)
def test_only_the_last_barrier_wait_orders_nothing(kind):
    code = shipped.original(kind)
    waits = [pc for pc, i in enumerate(code.instructions) if i.name == "s_barrier_wait"]
    launches = shipped.launches(kind)
    *others, last = (footprints.last_copies_are_apart(code, pc, launches) for pc in waits)
    assert last
    assert not any(others)


@pytest.mark.parametrize("kind", WALKS)
def test_footprints_are_what_the_emulator_counts(kind):
    code, launch = shipped.original(kind), shipped.launches(kind)[0]
    waves = footprints.footprints(launch, code, set())
    counters = launch.counters(code, seed=0)
    lengths = [
        sum(end - at for wave in waves for at, end in getattr(wave, rows))
        for rows in ("loaded", "stored")
    ]
    assert lengths == [counters.tensor_load_bytes, counters.tensor_store_bytes]
    written = np.any([wave.written for wave in waves], axis=0)
    assert counters.lds_high_water == np.flatnonzero(written)[-1] + 1


OWN = {"last_read": slice(0, 64), "last_stored": [(100, 200)]}
APART = {"written": slice(64, 128), "loaded": [(0, 100)], "stored": [(200, 300)]}


def test_waves_that_touch_different_bytes_are_apart():
    own = footprint(written=slice(0, 64), stored=[(100, 200)], **OWN)
    assert footprints.are_apart([own, footprint(**APART)])


@pytest.mark.parametrize(
    "meets", [{"written": slice(63, 64)}, {"loaded": [(199, 300)]}, {"stored": [(0, 101)]}]
)
def test_waves_that_touch_one_byte_are_not_apart(meets):
    waves = [footprint(**OWN), footprint(**APART | meets)]
    assert not footprints.are_apart(waves)
    assert not footprints.are_apart(waves[::-1])


def loop_guard(*between, compared="s_cmp_lt_i32", least=ONE, branch="s_cbranch_scc1"):
    """Return code that skips what follows for less than one pass in s5, and the branch's pc."""
    code = [Instruction(compared, (SCALAR_5, least)), *between]
    return [*code, Instruction(branch, (), target=9), *[Instruction("s_nop", ())] * 9], len(code)


def test_guard_of_a_loop_is_found():
    assert emulator_mutants.skipped_passes(*loop_guard()) == (0, 5)
    between = Instruction("s_set_vgpr_msb", ()), Instruction("s_mov_b32", ())
    assert emulator_mutants.skipped_passes(*loop_guard(*between)) == (0, 5)


@pytest.mark.parametrize(
    "guard",
    [
        loop_guard(least=TWO),
        loop_guard(compared="s_cmp_gt_i32"),
        loop_guard(branch="s_cbranch_scc0"),
        loop_guard(Instruction("s_add_co_i32", ())),
        loop_guard(Instruction("s_cbranch_scc0", (), target=1)),
    ],
)
def test_other_branches_guard_no_loop(guard):
    assert emulator_mutants.skipped_passes(*guard) is None


def test_branch_that_is_never_taken_leads_nowhere():
    code, branch = loop_guard()
    code[2:4] = [Instruction("s_branch", (), target=3), Instruction("s_endpgm", ())]
    assert 9 in emulator_mutants.reachable(code)
    assert emulator_mutants.reachable(emulator_mutants.as_nothing(code, {branch})) == {0, 1, 2, 3}
