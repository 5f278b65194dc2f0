"""Every scalar instruction that computes, and control flow, on edge values.

The expectations are written here from the ISA guide's text, in Python integers, apart from the
executor.
"""

import itertools

import pytest

from edge_values import EDGES, M32, M64, WIDE_EDGES, signed
from gfx1250_programs import run_wave
from mxgemm.emulator import UnsupportedInstruction

pytestmark = pytest.mark.emulated


def fields(value: int, where: int, bits: int, *, sign: bool) -> int:
    offset, width = where & (bits - 1), where >> 16 & 127
    shifted = (signed(value, bits) if sign else value) >> offset
    if width >= bits:
        return shifted & ((1 << bits) - 1)
    part = shifted & ((1 << width) - 1)
    return (signed(part, width) if sign and width else part) & ((1 << bits) - 1)


def overflows(value: int) -> bool:
    return not -(1 << 31) <= value < 1 << 31


# ------------------------------------------------------------------------------------------- scalar
# mnemonic -> (source widths, result width, f(*sources, scc) -> (result, scc after))


def keeps(f):
    return lambda *s, scc: (f(*s), scc)


def nonzero(f, bits=32):
    def g(*s, scc):
        result = f(*s) & ((1 << bits) - 1)
        return result, result != 0

    return g


def compares(f):
    return lambda a, b, scc: (None, f(a, b))


def ordered(f, key):
    return lambda a, b, scc: (a if f(key(a), key(b)) else b, f(key(a), key(b)))


def unsigned(value):
    return value


def shifted_add(n):
    return lambda a, b, scc: (((a << n) + b) & M32, (a << n) + b > M32)


SCALAR = {
    "s_add_co_u32": (1, lambda a, b, scc: ((a + b) & M32, a + b > M32)),
    "s_sub_co_u32": (1, lambda a, b, scc: ((a - b) & M32, b > a)),
    "s_add_co_i32": (1, lambda a, b, scc: ((a + b) & M32, overflows(signed(a) + signed(b)))),
    "s_sub_co_i32": (1, lambda a, b, scc: ((a - b) & M32, overflows(signed(a) - signed(b)))),
    "s_add_co_ci_u32": (1, lambda a, b, scc: ((a + b + scc) & M32, a + b + scc > M32)),
    "s_sub_co_ci_u32": (1, lambda a, b, scc: ((a - b - scc) & M32, b + scc > a)),
    "s_lshl1_add_u32": (1, shifted_add(1)),
    "s_lshl2_add_u32": (1, shifted_add(2)),
    "s_lshl3_add_u32": (1, shifted_add(3)),
    "s_lshl4_add_u32": (1, shifted_add(4)),
    "s_min_i32": (1, ordered(lambda a, b: a < b, signed)),
    "s_min_u32": (1, ordered(lambda a, b: a < b, unsigned)),
    "s_max_i32": (1, ordered(lambda a, b: a >= b, signed)),
    "s_max_u32": (1, ordered(lambda a, b: a >= b, unsigned)),
    "s_and_b32": (1, nonzero(lambda a, b: a & b)),
    "s_or_b32": (1, nonzero(lambda a, b: a | b)),
    "s_xor_b32": (1, nonzero(lambda a, b: a ^ b)),
    "s_xnor_b32": (1, nonzero(lambda a, b: ~(a ^ b))),
    "s_and_not1_b32": (1, nonzero(lambda a, b: a & ~b)),
    "s_or_not1_b32": (1, nonzero(lambda a, b: a | ~b)),
    "s_lshl_b32": (1, nonzero(lambda a, b: a << (b & 31))),
    "s_lshr_b32": (1, nonzero(lambda a, b: a >> (b & 31))),
    "s_ashr_i32": (1, nonzero(lambda a, b: signed(a) >> (b & 31))),
    "s_bfe_u32": (1, nonzero(lambda a, b: fields(a, b, 32, sign=False))),
    "s_bfe_i32": (1, nonzero(lambda a, b: fields(a, b, 32, sign=True))),
    "s_bfm_b32": (1, keeps(lambda a, b: ((1 << (a & 31)) - 1) << (b & 31) & M32)),
    "s_mul_i32": (1, keeps(lambda a, b: a * b & M32)),
    "s_mul_hi_u32": (1, keeps(lambda a, b: a * b >> 32)),
    "s_mul_hi_i32": (1, keeps(lambda a, b: signed(a) * signed(b) >> 32 & M32)),
    "s_cselect_b32": (1, lambda a, b, scc: (a if scc else b, scc)),
    "s_pack_ll_b32_b16": (1, keeps(lambda a, b: (a & 0xFFFF) | (b & 0xFFFF) << 16)),
    "s_pack_lh_b32_b16": (1, keeps(lambda a, b: (a & 0xFFFF) | (b & 0xFFFF0000))),
    "s_pack_hh_b32_b16": (1, keeps(lambda a, b: a >> 16 | (b & 0xFFFF0000))),
    "s_and_b64": (2, nonzero(lambda a, b: a & b, 64)),
    "s_or_b64": (2, nonzero(lambda a, b: a | b, 64)),
    "s_xor_b64": (2, nonzero(lambda a, b: a ^ b, 64)),
    "s_and_not1_b64": (2, nonzero(lambda a, b: a & ~b, 64)),
    "s_cselect_b64": (2, lambda a, b, scc: (a if scc else b, scc)),
    "s_add_nc_u64": (2, keeps(lambda a, b: (a + b) & M64)),
    "s_sub_nc_u64": (2, keeps(lambda a, b: (a - b) & M64)),
    "s_mul_u64": (2, keeps(lambda a, b: a * b & M64)),
    "s_lshl_b64": (3, nonzero(lambda a, b: a << (b & 63), 64)),
    "s_lshr_b64": (3, nonzero(lambda a, b: a >> (b & 63), 64)),
    "s_ashr_i64": (3, nonzero(lambda a, b: signed(a, 64) >> (b & 63), 64)),
    "s_bfe_u64": (3, nonzero(lambda a, b: fields(a, b, 64, sign=False), 64)),
    "s_bfe_i64": (3, nonzero(lambda a, b: fields(a, b, 64, sign=True), 64)),
    "s_cmp_eq_i32": (0, compares(lambda a, b: a == b)),
    "s_cmp_lg_i32": (0, compares(lambda a, b: a != b)),
    "s_cmp_gt_i32": (0, compares(lambda a, b: signed(a) > signed(b))),
    "s_cmp_ge_i32": (0, compares(lambda a, b: signed(a) >= signed(b))),
    "s_cmp_lt_i32": (0, compares(lambda a, b: signed(a) < signed(b))),
    "s_cmp_le_i32": (0, compares(lambda a, b: signed(a) <= signed(b))),
    "s_cmp_eq_u32": (0, compares(lambda a, b: a == b)),
    "s_cmp_lg_u32": (0, compares(lambda a, b: a != b)),
    "s_cmp_gt_u32": (0, compares(lambda a, b: a > b)),
    "s_cmp_ge_u32": (0, compares(lambda a, b: a >= b)),
    "s_cmp_lt_u32": (0, compares(lambda a, b: a < b)),
    "s_cmp_le_u32": (0, compares(lambda a, b: a <= b)),
    "s_bitcmp0_b32": (0, compares(lambda a, b: not a >> (b & 31) & 1)),
    "s_bitcmp1_b32": (0, compares(lambda a, b: bool(a >> (b & 31) & 1))),
    "s_cmp_eq_u64": (-2, compares(lambda a, b: a == b)),
    "s_cmp_lg_u64": (-2, compares(lambda a, b: a != b)),
}
"""1: 32 bits; 2: 64 bits; 3: 64 bits, second source 32; 0 and -2: comparisons of 32 and 64 bits."""

BIT_FIELDS = [4 << 16 | 12, 0, 32 << 16, 31 << 16 | 1, 64 << 16 | 5, 1 << 16 | 31, 63 << 16 | 3]


def scalar_program(name: str, kind: int) -> str:
    first = "s[4:5]" if kind in (2, 3, -2) else "s4"
    second = "s[6:7]" if kind in (2, -2) else "s6"
    destination = {1: "s8, ", 2: "s[8:9], ", 3: "s[8:9], "}.get(kind, "")
    return f"{name} {destination}{first}, {second}"


@pytest.mark.parametrize("name", SCALAR)
def test_scalar_operation_gives_result_and_condition(name):
    kind, expected = SCALAR[name]
    firsts = WIDE_EDGES if kind in (2, 3, -2) else EDGES
    seconds = WIDE_EDGES if kind in (2, -2) else EDGES + (BIT_FIELDS if "bfe" in name else [])
    for a, b, scc in itertools.product(firsts, seconds, (False, True)):
        scalars = {4: a & M32, 5: a >> 32, 6: b & M32, 7: b >> 32}
        state = run_wave(scalar_program(name, kind), scalars=scalars, scc=scc)
        result, after = expected(a, b, scc=scc)
        got = {1: state.scalars[8], 2: state.scalar64(8), 3: state.scalar64(8)}.get(kind)
        assert (got, state.scc) == (result, after), (hex(a), hex(b), scc)


def reversed_count(value: int) -> int:
    return 32 - value.bit_length() if value else M32


SCALAR_ONE = {
    "s_mov_b32": (1, keeps(lambda a: a)),
    "s_mov_b64": (2, keeps(lambda a: a)),
    "s_not_b32": (1, nonzero(lambda a: ~a)),
    "s_not_b64": (2, nonzero(lambda a: ~a, 64)),
    "s_abs_i32": (1, nonzero(lambda a: abs(signed(a)))),
    "s_sext_i32_i8": (1, keeps(lambda a: signed(a, 8) & M32)),
    "s_sext_i32_i16": (1, keeps(lambda a: signed(a, 16) & M32)),
    "s_ctz_i32_b32": (1, keeps(lambda a: (a & -a).bit_length() - 1 if a else M32)),
    "s_clz_i32_u32": (1, keeps(reversed_count)),
    "s_brev_b32": (1, keeps(lambda a: int(f"{a:032b}"[::-1], 2))),
    "s_bcnt1_i32_b32": (1, nonzero(lambda a: a.bit_count())),
}


@pytest.mark.parametrize("name", SCALAR_ONE)
def test_scalar_operation_of_one_source(name):
    words, expected = SCALAR_ONE[name]
    for a, scc in itertools.product(WIDE_EDGES if words == 2 else EDGES, (False, True)):
        program = f"{name} s[8:9], s[4:5]" if words == 2 else f"{name} s8, s4"
        state = run_wave(program, scalars={4: a & M32, 5: a >> 32}, scc=scc)
        got = state.scalar64(8) if words == 2 else state.scalars[8]
        assert (got, state.scc) == expected(a, scc=scc), hex(a)


UPDATES = [
    ("s_bitset1_b32 s8, s4", {8: 0x10, 4: 33}, 0x12, None),
    ("s_bitset0_b32 s8, s4", {8: 0xFF, 4: 3}, 0xF7, None),
    ("s_movk_i32 s8, 0x8000", {}, 0xFFFF8000, None),
    ("s_addk_co_i32 s8, 0x7fff", {8: 0x7FFFFFFF}, 0x80007FFE, True),
    ("s_addk_co_i32 s8, 0xffff", {8: 5}, 4, False),
    ("s_mulk_i32 s8, 0xfffe", {8: 3}, 0xFFFFFFFA, None),
    ("s_mov_b32 null, s4\ns_mov_b32 s8, null", {4: 7}, 0, None),
]


@pytest.mark.parametrize(("program", "scalars", "expected", "scc"), UPDATES)
def test_scalar_update(program, scalars, expected, scc):
    state = run_wave(program, scalars=scalars, scc=False)
    assert state.scalars[8] == expected
    assert state.scc == bool(scc)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("s_and_saveexec_b32", lambda a, e: a & e),
        ("s_or_saveexec_b32", lambda a, e: a | e),
        ("s_and_not1_saveexec_b32", lambda a, e: a & ~e & M32),
    ],
)
def test_exec_is_saved_and_combined(name, expected):
    for a, e in itertools.product((0, 0xF0F0, M32), (0xFF00, M32)):
        state = run_wave(f"s_mov_b32 exec_lo, s5\n{name} s8, s4", scalars={4: a, 5: e})
        assert (state.scalars[8], state.scalars[126], state.scc) == (
            e,
            expected(a, e),
            expected(a, e) != 0,
        )


# ------------------------------------------------------------------------------------------ control


@pytest.mark.parametrize(
    ("branch", "scalars", "scc", "taken"),
    [
        ("s_branch", {}, False, True),
        ("s_cbranch_scc0", {}, False, True),
        ("s_cbranch_scc0", {}, True, False),
        ("s_cbranch_scc1", {}, True, True),
        ("s_cbranch_scc1", {}, False, False),
        ("s_cbranch_vccz", {106: 0}, False, True),
        ("s_cbranch_vccz", {106: 4}, False, False),
        ("s_cbranch_vccnz", {106: 4}, False, True),
        ("s_cbranch_vccnz", {106: 0}, False, False),
        ("s_cbranch_execz", {126: 0}, False, True),
        ("s_cbranch_execz", {126: 1}, False, False),
        ("s_cbranch_execnz", {126: 1}, False, True),
        ("s_cbranch_execnz", {126: 0}, False, False),
    ],
)
def test_branches(branch, scalars, scc, taken):
    program = f"s_mov_b32 s8, 1\n{branch} .LBB0_1\ns_mov_b32 s8, 2\n.LBB0_1:\ns_nop 0"
    assert run_wave(program, scalars=scalars, scc=scc).scalars[8] == (1 if taken else 2)


def test_hardware_registers_are_read_and_written_by_field():
    program = (
        "s_setreg_imm32_b32 hwreg(HW_REG_WAVE_SCHED_MODE, 0, 2), 2\n"
        "s_setreg_b32 hwreg(HW_REG_WAVE_SCHED_MODE, 4, 4), s4\n"
        "s_getreg_b32 s8, hwreg(HW_REG_WAVE_SCHED_MODE, 0, 32)"
    )
    assert run_wave(program, scalars={4: 0xFA}).scalars[8] == 0xA2
    with pytest.raises(UnsupportedInstruction, match=r"s_setreg of MODE bits \[3:0\]"):
        run_wave("s_setreg_imm32_b32 hwreg(HW_REG_WAVE_MODE, 0, 4), 0")
    with pytest.raises(UnsupportedInstruction, match="s_getreg of hardware register 20"):
        run_wave("s_getreg_b32 s8, hwreg(20, 0, 32)")


def test_waits_on_two_counters_prove_both():
    for name in ("s_wait_loadcnt_dscnt", "s_wait_storecnt_dscnt"):
        run_wave(
            f"v_mov_b32 v1, 0\nds_store_b32 v1, v1\nds_load_b32 v2, v1\n{name} 0x0\n"
            "v_mov_b32 v3, v2",
            lds_bytes=4,
        )
    run_wave("s_wait_asynccnt 0x0")
    with pytest.raises(UnsupportedInstruction, match="only the workgroup's"):
        run_wave("s_barrier_signal 1")
