"""Every hazard has a smallest program that must raise it, and the same program put right, which
must run.
"""

import numpy as np
import pytest

from gfx1250_programs import LANES, assembly, run_wave
from mxgemm.emulator import (
    BarrierHazard,
    Checks,
    Deadlock,
    ExpertWait,
    Machine,
    MatrixDistance,
    MissingWait,
    RaceHazard,
    RegisterBank,
    UninitialisedRead,
)

pytestmark = pytest.mark.emulated

LANE = np.arange(LANES, dtype=np.uint32)
TIMINGS = ["early", "late", "random"]
POINTER = "s_load_b64 s[2:3], s[0:1], 0x0\ns_wait_kmcnt 0x0\n"


def with_buffer(count=64):
    memory = np.arange(count, dtype=np.uint32)

    def prepare(machine: Machine):
        return [machine.memory.map(0x1000_0000, buffer=memory)]

    return {"prepare": prepare, "arguments": [8]}


# ------------------------------------------------------------------------------------ missing waits

WRITE_LDS = "v_lshlrev_b32 v1, 2, v0\nds_store_b32 v1, v0\ns_wait_dscnt 0x0\n"

WAITS = {
    "lds load, used": (
        WRITE_LDS + "ds_load_b32 v2, v1\n{}v_mov_b32 v3, v2",
        "s_wait_dscnt 0x0\n",
        "v2",
        "s_wait_dscnt 0",
    ),
    "lds load, overwritten": (
        WRITE_LDS + "ds_load_b32 v2, v1\n{}v_mov_b32 v2, 0",
        "s_wait_dscnt 0x0\n",
        "v2",
        "s_wait_dscnt 0",
    ),
    "the older of two": (
        WRITE_LDS + "ds_load_b32 v2, v1\nds_load_b32 v4, v1\n{}v_mov_b32 v3, v2",
        "s_wait_dscnt 0x1\n",
        "v2",
        "s_wait_dscnt 1",
    ),
    "the younger of two": (
        WRITE_LDS + "ds_load_b32 v2, v1\nds_load_b32 v4, v1\ns_wait_dscnt 0x1\n{}v_mov_b32 v3, v4",
        "s_wait_dscnt 0x0\n",
        "v4",
        "s_wait_dscnt 0",
    ),
    "last register of a load": (
        "ds_store_b128 v1, v[4:7]\ns_wait_dscnt 0x0\nds_load_b128 v[8:11], v1\n{}v_mov_b32 v3, v11",
        "s_wait_dscnt 0x0\n",
        "v11",
        "s_wait_dscnt 0",
    ),
    "scalar load, used": (
        "s_load_b64 s[4:5], s[0:1], 0x0\n{}s_mov_b32 s6, s5",
        "s_wait_kmcnt 0x0\n",
        "s5",
        "s_wait_kmcnt 0",
    ),
    "scalar load, not all waited for": (
        (
            "s_load_b32 s4, s[0:1], 0x0\ns_load_b32 s5, s[0:1], 0x4\ns_wait_kmcnt 0x1\n"
            "{}s_mov_b32 s6, s4"
        ),
        "s_wait_kmcnt 0x0\n",
        "s4",
        "s_wait_kmcnt 0",
    ),
    "global load, used": (
        POINTER + "global_load_b32 v2, v0, s[2:3] scale_offset\n{}v_mov_b32 v3, v2",
        "s_wait_loadcnt 0x0\n",
        "v2",
        "s_wait_loadcnt 0",
    ),
}


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("case", WAITS.values(), ids=WAITS)
def test_register_of_an_outstanding_load(case, timing):
    program, wait, resource, missing = case
    options = dict(
        vectors=dict.fromkeys((1, 4, 5, 6, 7), LANE * 16),
        lds_bytes=2048,
        timing=timing,
        **with_buffer(),
    )
    with pytest.raises(MissingWait) as caught:
        run_wave(program.format(""), **options)
    assert (caught.value.resource, caught.value.missing) == (resource, missing)
    assert caught.value.pc == program.format("").count("\n")
    run_wave(program.format(wait), **options)


# -------------------------------------------------------------------------------------------- races

TWO_WAVES = 64
FILL_AND_READ_OTHERS = """
	v_lshlrev_b32 v1, 2, v0
	ds_store_b32 v1, v0
	{wait}
	{barrier}
	v_xor_b32 v2, 0x80, v1
	ds_load_b32 v3, v2
	s_wait_dscnt 0x0
"""
WAIT, BARRIER = "s_wait_dscnt 0x0", "s_barrier_signal -1\ns_barrier_wait -1"


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("seed", range(4))
def test_read_of_another_waves_store_needs_wait_and_barrier(timing, seed):
    options = {"block": TWO_WAVES, "lds_bytes": 256, "timing": timing, "seed": seed}
    state = run_wave(FILL_AND_READ_OTHERS.format(wait=WAIT, barrier=BARRIER), **options)
    assert (state.vectors[3] == LANE + 32).all()
    with pytest.raises((RaceHazard, UninitialisedRead)):
        run_wave(FILL_AND_READ_OTHERS.format(wait=WAIT, barrier=""), **options)
    with pytest.raises(
        (RaceHazard, UninitialisedRead),
        match=r"wait for the access at pc 1 before the barrier|a write",
    ):
        run_wave(FILL_AND_READ_OTHERS.format(wait="", barrier=BARRIER), **options)


SAME_VALUE = """
	v_mov_b32 v1, 0
	v_mov_b32 v2, 7
	ds_store_b32 v1, v2
	s_wait_dscnt 0x0
"""


def test_unordered_writes_of_the_same_value_are_a_race():
    with pytest.raises(
        RaceHazard, match="write of LDS is not ordered after the write by wave"
    ) as caught:
        run_wave(SAME_VALUE, block=TWO_WAVES, lds_bytes=4)
    assert caught.value.resource == "LDS bytes [0x0, 0x4)"
    assert caught.value.missing == "a barrier between the access at pc 2 and this one"
    run_wave(SAME_VALUE, block=LANES, lds_bytes=4)
    run_wave(SAME_VALUE, block=TWO_WAVES, lds_bytes=4, checks=Checks(races=False))


OVERWRITE = """
	v_lshlrev_b32 v1, 2, v0
	ds_store_b32 v1, v0
	s_wait_dscnt 0x0
	s_barrier_signal -1
	s_barrier_wait -1
	v_xor_b32 v2, 0x80, v1
	ds_load_b32 v3, v2
	{wait}
	{barrier}
	ds_store_b32 v1, v1
	s_wait_dscnt 0x0
"""


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("seed", range(4))
def test_overwriting_what_another_wave_reads_needs_wait_and_barrier(timing, seed):
    options = {"block": TWO_WAVES, "lds_bytes": 256, "timing": timing, "seed": seed}
    state = run_wave(OVERWRITE.format(wait=WAIT, barrier=BARRIER), **options)
    assert (state.vectors[3] == LANE + 32).all()
    for fault in ({"wait": WAIT, "barrier": ""}, {"wait": "", "barrier": BARRIER}):
        with pytest.raises(RaceHazard):
            run_wave(OVERWRITE.format(**fault) + "s_wait_dscnt 0x0", **options)


def test_bytes_of_one_dword_are_apart():
    """Each lane of both waves stores its own byte; only a shared byte is a race."""
    own = (
        "ds_store_b8 v0, v0\ns_wait_dscnt 0x0\n"
        + BARRIER
        + "\nv_lshlrev_b32 v1, 2, v0\nv_and_b32 v1, 0x3c, v1\n"
    )
    state = run_wave(own + "ds_load_b32 v3, v1\ns_wait_dscnt 0x0", block=TWO_WAVES, lds_bytes=64)
    assert state.vectors[3][0] == 0x03020100
    with pytest.raises(RaceHazard, match="write"):
        run_wave(
            "v_min_u32 v1, 31, v0\nds_store_b8 v1, v0\ns_wait_dscnt 0x0",
            block=TWO_WAVES,
            lds_bytes=64,
        )


READERS_IN_TWO_GENERATIONS = """
	v_lshlrev_b32 v1, 2, v0
	ds_store_b32 v1, v0
	s_wait_dscnt 0x0
	s_barrier_signal -1
	s_barrier_wait -1
	v_and_b32 v2, 0x7f, v1
	ds_load_b32 v3, v2
	s_wait_dscnt 0x0
	s_barrier_signal -1
	s_barrier_wait -1
	s_lshr_b32 s9, ttmp8, 25
	s_cmp_eq_u32 s9, {late_reader}
	s_cbranch_scc0 .LBB0_1
	ds_load_b32 v3, v2
	s_wait_dscnt 0x0
.LBB0_1:
	s_cmp_eq_u32 s9, {writer}
	s_cbranch_scc0 .LBB0_2
	ds_store_b32 v2, v1
	s_wait_dscnt 0x0
.LBB0_2:
	s_nop 0
"""


@pytest.mark.parametrize("seed", range(6))
def test_readers_of_different_generations_are_all_remembered(seed):
    options = {"block": 96, "lds_bytes": 512, "seed": seed}
    run_wave(READERS_IN_TWO_GENERATIONS.format(late_reader=1, writer=1), **options)
    with pytest.raises(RaceHazard):
        run_wave(READERS_IN_TWO_GENERATIONS.format(late_reader=2, writer=1), **options)


def copy_words(lds: int, register: int, *, tile: int = 128) -> dict[int, int]:
    """Return the scalar registers of a one-row copy descriptor from 0x1000_0000."""
    value = 1 | lds << 32 | 0x1000_0000 << 64 | 2 << 126
    value |= (tile << 48 | 1 << 80 | tile << 112 | 1 << 128) << 128
    return {register + n: value >> 32 * n & 0xFFFFFFFF for n in range(12)}


COPY_THEN_READ = """
	tensor_load_to_lds s[64:67], s[68:75]
	{wait}
	{barrier}
	v_and_b32 v1, 31, v0
	v_lshlrev_b32 v1, 2, v1
	ds_load_b32 v3, v1
	s_wait_dscnt 0x0
"""


@pytest.mark.parametrize("timing", TIMINGS)
def test_wave_must_wait_for_its_own_copy(timing):
    options = dict(scalars=copy_words(0, 64), lds_bytes=128, timing=timing, **with_buffer())
    state = run_wave(COPY_THEN_READ.format(wait="s_wait_tensorcnt 0x0", barrier=""), **options)
    assert (state.vectors[3] == LANE).all()
    with pytest.raises(RaceHazard, match="this wave's own outstanding operation at pc 0") as caught:
        run_wave(COPY_THEN_READ.format(wait="", barrier=BARRIER), **options)
    assert caught.value.missing == "s_wait_tensorcnt 0"


FIRST_WAVE_COPIES = (
    "s_lshr_b32 s9, ttmp8, 25\ns_cmp_lg_u32 s9, 0\ns_cbranch_scc1 .LBB0_1\n{copy}.LBB0_1:\n"
)


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("seed", range(4))
def test_copy_reaches_other_waves_by_wait_then_barrier(timing, seed):
    copy = "tensor_load_to_lds s[64:67], s[68:75]\n"
    read = "v_and_b32 v1, 31, v0\nv_lshlrev_b32 v1, 2, v1\nds_load_b32 v3, v1\ns_wait_dscnt 0x0"
    done = "s_wait_tensorcnt 0x0\n"
    options = dict(
        scalars=copy_words(0, 64),
        lds_bytes=128,
        block=TWO_WAVES,
        timing=timing,
        seed=seed,
        **with_buffer(),
    )
    right = FIRST_WAVE_COPIES.format(copy=copy + done) + BARRIER + "\n" + read
    assert (run_wave(right, **options).vectors[3] == LANE).all()
    wait_after_barrier = FIRST_WAVE_COPIES.format(copy=copy) + BARRIER + "\n" + done + read
    no_barrier = FIRST_WAVE_COPIES.format(copy=copy + done) + read
    for wrong in (wait_after_barrier, no_barrier):
        with pytest.raises((RaceHazard, UninitialisedRead)):
            run_wave(wrong, **options)


def test_copies_of_one_wave_into_the_same_bytes_need_a_wait():
    two = (
        "tensor_load_to_lds s[64:67], s[68:75]\n{}tensor_load_to_lds s[80:83], s[84:91]\n"
        "s_wait_tensorcnt 0x0"
    )
    options = dict(scalars=copy_words(0, 64) | copy_words(64, 80), lds_bytes=256, **with_buffer())
    with pytest.raises(RaceHazard, match="own outstanding"):
        run_wave(two.format(""), **options)
    run_wave(two.format("s_wait_tensorcnt 0x0\n"), **options)
    apart = dict(options, scalars=copy_words(0, 64) | copy_words(128, 80))
    run_wave(two.format(""), **apart)


def test_store_to_lds_must_be_complete_before_a_copy_reads_it():
    program = (
        WRITE_LDS.replace("s_wait_dscnt 0x0\n", "{}")
        + "tensor_store_from_lds s[64:67], s[68:75]\ns_wait_tensorcnt 0x0"
    )
    options = dict(scalars=copy_words(0, 64), lds_bytes=128, **with_buffer())
    with pytest.raises(RaceHazard, match="own outstanding operation at pc 1"):
        run_wave(program.format(""), **options)
    run_wave(program.format("s_wait_dscnt 0x0\n"), **options)


# ------------------------------------------------------------------------------------ uninitialised


HALF_WRITTEN = """
	v_min_u32 v1, 15, v0
	v_lshlrev_b32 v1, 2, v1
	ds_store_b32 v1, v0
	s_wait_dscnt 0x0
	v_lshlrev_b32 v2, 2, v0
	ds_load_b32 v3, v2
	s_wait_dscnt 0x0
"""


def test_reads_of_what_was_never_written():
    with pytest.raises(UninitialisedRead, match="v7; missing: a write"):
        run_wave("v_mov_b32 v1, v7")
    with pytest.raises(UninitialisedRead, match="lanes 0xffffff00 never wrote"):
        run_wave(
            "s_mov_b32 exec_lo, 0xff\nv_mov_b32 v7, 0\ns_mov_b32 exec_lo, -1\nv_mov_b32 v1, v7"
        )
    with pytest.raises(UninitialisedRead, match="s7"):
        run_wave("s_mov_b32 s1, s7")
    with pytest.raises(UninitialisedRead, match=r"LDS bytes \[0x40, 0x44\)"):
        run_wave(HALF_WRITTEN, lds_bytes=256)
    run_wave("s_mov_b32 exec_lo, 0xff\nv_mov_b32 v7, 0\nv_mov_b32 v1, v7")


# ------------------------------------------------------------------------------------------- matrix
# distance

OPERANDS = {n: np.zeros(LANES, np.uint32) for n in (*range(2, 60), *range(100, 116))}
FP4 = (
    "v_wmma_scale_f32_16x16x128_f8f6f4 {d}, {a}, {b}, 0, v50, v51 matrix_a_fmt:MATRIX_FMT_FP4 "
    "matrix_b_fmt:MATRIX_FMT_FP4"
)
FP8 = "v_wmma_scale_f32_16x16x128_f8f6f4 {d}, {a}, {b}, 0, v50, v51"
TALL = "v_wmma_scale_f32_32x16x128_f4 {d}, {a}, {b}, 0, v50, v51"
SHAPES = {
    "fp4": (FP4, 8, 8, 8, 2, 1),
    "fp8": (FP8, 8, 16, 16, 4, 3),
    "tall": (TALL, 16, 16, 8, 4, 3),
}


def span(first, words):
    return f"v[{first}:{first + words - 1}]"


def matrix(shape, d=2, a=18, b=34):
    line, dw, aw, bw, _, _ = SHAPES[shape]
    return line.format(d=span(d, dw), a=span(a, aw), b=span(b, bw))


@pytest.mark.parametrize("shape", SHAPES)
def test_vector_use_of_matrix_registers_needs_distance(shape):
    need = SHAPES[shape][5]
    uses = {
        "v_mov_b32 v99, v2": "read",
        "v_mov_b32 v3, 0": "overwrite",
        "v_mov_b32 v19, 0": "overwrite",
        "v_mov_b32 v35, 0": "overwrite",
    }
    for use, what in uses.items():
        for between in range(need + 1):
            program = matrix(shape) + "\nv_nop" * between + "\n" + use
            if between == need:
                run_wave(program, vectors=OPERANDS)
                continue
            with pytest.raises(MatrixDistance, match=what) as caught:
                run_wave(program, vectors=OPERANDS)
            assert caught.value.missing == f"{need - between} v_nop"


@pytest.mark.parametrize("shape", SHAPES)
def test_matrix_source_from_a_matrix_result_needs_distance(shape):
    need = SHAPES[shape][4]
    for between in range(need + 1):
        program = matrix(shape, d=34) + "\nv_mov_b32 v99, 0" * between + "\n" + matrix(shape, d=100)
        if between == need:
            run_wave(program, vectors=OPERANDS)
        else:
            with pytest.raises(MatrixDistance, match="matrix source is an unfinished result"):
                run_wave(program, vectors=OPERANDS)


def test_accumulating_into_the_same_registers_needs_no_distance():
    program = matrix("fp8").replace(", 0, v50", ", v[2:9], v50")
    run_wave(program + "\n" + program, vectors=OPERANDS)


# ------------------------------------------------------------------------------------------- expert
# scheduling

EXPERT = "s_setreg_imm32_b32 hwreg(HW_REG_WAVE_SCHED_MODE, 0, 2), 2\n"
FOUR = "v_mov_b32 v1, 0\nv_mov_b32 v2, 0\nv_mov_b32 v3, 0\nv_mov_b32 v4, 0\n"


def test_memory_use_of_a_vector_result_needs_a_wait():
    store = "ds_store_b32 v1, v2"
    run_wave(FOUR + store, lds_bytes=4)
    run_wave(EXPERT + FOUR + "s_wait_alu depctr_va_vdst(2)\n" + store, lds_bytes=4)
    for wait in ("", "s_wait_alu depctr_va_vdst(3)\n"):
        with pytest.raises(
            ExpertWait, match=r"v2; missing: s_wait_alu depctr_va_vdst\(2\)|v1; missing"
        ):
            run_wave(EXPERT + FOUR + wait + store, lds_bytes=4)


def test_pipes_complete_out_of_order_with_one_another():
    """One wait that leaves one outstanding proves the older of two main results, but not a lone
    transcendental one.
    """
    program = (
        EXPERT
        + "v_exp_f32 v1, 0\nv_mov_b32 v2, 0\nv_mov_b32 v3, 0\ns_wait_alu depctr_va_vdst({})\n"
        "ds_store_b32 v2, v1"
    )
    run_wave(program.format(0), lds_bytes=4)
    with pytest.raises(ExpertWait, match="v1"):
        run_wave(program.format(1), lds_bytes=4)


def test_overwriting_a_memory_source_needs_a_wait():
    program = (
        EXPERT
        + "v_mov_b32 v1, 0\nv_mov_b32 v2, 0\ns_wait_alu depctr_va_vdst(0)\nds_store_b32 v1, v2\n"
        "{}v_mov_b32 v2, 1"
    )
    run_wave(program.format("s_wait_alu depctr_vm_vsrc(0)\n"), lds_bytes=4)
    run_wave(program.format("s_wait_dscnt 0x0\n"), lds_bytes=4)
    with pytest.raises(ExpertWait, match=r"v2; missing: s_wait_alu depctr_vm_vsrc\(0\)"):
        run_wave(program.format(""), lds_bytes=4)


# ------------------------------------------------------------------------------------------ control


def test_register_bank_must_be_the_same_on_every_way():
    program = (
        "s_cmp_eq_u32 s0, s0\ns_cbranch_scc1 .LBB0_1\ns_set_vgpr_msb 0x40\n"
        "v_mov_b32 v1 /*v257*/, 0\n.LBB0_1:\nv_mov_b32 v2 /*v258*/, 0"
    )
    with pytest.raises(
        RegisterBank,
        match="bits are 0x0 here, the code before this instruction in program order sets 0x40",
    ):
        run_wave(program)


ONE_WAVE_STAYS_AWAY = (
    "s_lshr_b32 s9, ttmp8, 25\ns_cmp_eq_u32 s9, 0\ns_cbranch_scc1 .LBB0_1\n"
    "s_barrier_signal -1\n.LBB0_1:\ns_barrier_wait -1"
)


def test_barrier_that_cannot_complete_is_a_deadlock():
    with pytest.raises(Deadlock, match="wave 0 at pc 4, 1 at pc 4") as caught:
        run_wave(ONE_WAVE_STAYS_AWAY, block=TWO_WAVES)
    assert caught.value.missing == "s_barrier_signal by another wave"


ONE_WAVE_LEAVES = """
	s_lshr_b32 s9, ttmp8, 25
	s_cmp_eq_u32 s9, 1
	s_cbranch_scc1 .LBB0_1
	s_barrier_signal -1
	s_barrier_wait -1
.LBB0_1:
	s_nop 0
"""


def test_wave_that_ends_leaves_the_barrier():
    run_wave(ONE_WAVE_LEAVES, block=TWO_WAVES)


def test_signalling_twice():
    with pytest.raises(BarrierHazard, match="signalled the barrier twice"):
        run_wave("s_barrier_signal -1\ns_barrier_signal -1\ns_barrier_wait -1", block=TWO_WAVES)


# ----------------------------------------------------------------------------------------- clusters

CLUSTER = """
	s_bfe_u32 s20, ttmp6, 0x40000
	s_bfe_u32 s21, ttmp6, 0x4000c
	s_getreg_b32 s22, hwreg(HW_REG_IB_STS2, 6, 4)
	s_mov_b32 s23, ttmp9
	{}
"""


def cluster_launch(lines, *, memory=None, **options):
    machine = Machine()
    machine.load(assembly(CLUSTER.format(lines), arguments=[8] if memory is not None else []))
    seen = []
    machine.hook(
        "end",
        lambda wave: seen.append(
            (wave.workgroup[0], [wave.scalar(n) for n in range(20, 24)], wave.lds)
        ),
    )
    scalars = options.pop("scalars", {})
    machine.hook("start", lambda wave: [wave.set_scalar(n, v) for n, v in scalars.items()])
    args = [machine.memory.map(0x1000_0000, buffer=memory)] if memory is not None else []
    machine.launch((4,), cluster=(2,), args=args, **options)
    return sorted(seen, key=lambda item: item[0])


def test_cluster_members_know_their_place():
    for group, (x, size, clustered, base), _ in cluster_launch("s_nop 0"):
        assert (x, size, base) == (group % 2, 1, group // 2)
        assert clustered != 0


def test_cluster_barrier_waits_for_every_workgroup():
    cluster_launch("s_barrier_signal -3\ns_barrier_wait -3")
    alone = (
        "s_cmp_eq_u32 s20, 1\ns_cbranch_scc1 .LBB0_1\ns_barrier_signal -3\n.LBB0_1:\n"
        "s_barrier_wait -3"
    )
    with pytest.raises(Deadlock):
        cluster_launch(alone)


@pytest.mark.parametrize("timing", TIMINGS)
def test_multicast_delivers_to_every_member_that_asks(timing):
    memory = np.arange(64, dtype=np.uint32)
    words = copy_words(0, 64)
    words[68] |= 0b11
    copy = "tensor_load_to_lds s[64:67], s[68:75]\ns_wait_tensorcnt 0x0"
    options = {"scalars": words, "lds_bytes": 128, "timing": timing}
    seen = cluster_launch(copy, memory=memory, **options)
    for _, _, lds in seen:
        assert (lds.view(np.uint32) == memory[:32]).all()
