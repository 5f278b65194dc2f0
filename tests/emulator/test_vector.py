"""Every vector instruction that computes, on edge values.

The expectations are written here from the ISA guide's text, in Python integers and NumPy, apart
from the executor.
"""

import itertools
import math
import struct

import numpy as np
import pytest

from edge_values import EDGES, FLOAT_VALUES, M32, M64, assert_same_floats, signed
from gfx1250_programs import LANES, run_wave
from mxgemm.emulator.gfx1250.table import DUAL, ROWS

pytestmark = pytest.mark.emulated


def unsigned(value):
    return value


# ---------------------------------------------------------------------------------- vector, integer


def u24(value: int) -> int:
    return value & 0xFFFFFF


def i24(value: int) -> int:
    return signed(value, 24)


def byte_of(high: int, low: int, choice: int) -> int:
    data = high << 32 | low
    if choice >= 13:
        return 0xFF
    if choice == 12:
        return 0
    if choice >= 8:
        return 0xFF if data >> (16 * (choice - 8) + 15) & 1 else 0
    return data >> 8 * choice & 0xFF


def permuted(a, b, c):
    return sum(byte_of(a, b, c >> 8 * n & 0xFF) << 8 * n for n in range(4))


def bfe_signed(a, b, c):
    width = c & 31
    return signed(a >> (b & 31), width) if width else 0


VECTOR = {
    "v_mov_b32": lambda a: a,
    "v_not_b32": lambda a: ~a,
    "v_add_nc_u32": lambda a, b: a + b,
    "v_sub_nc_u32": lambda a, b: a - b,
    "v_subrev_nc_u32": lambda a, b: b - a,
    "v_and_b32": lambda a, b: a & b,
    "v_or_b32": lambda a, b: a | b,
    "v_xor_b32": lambda a, b: a ^ b,
    "v_xnor_b32": lambda a, b: ~(a ^ b),
    "v_lshlrev_b32": lambda a, b: b << (a & 31),
    "v_lshrrev_b32": lambda a, b: b >> (a & 31),
    "v_ashrrev_i32": lambda a, b: signed(b) >> (a & 31),
    "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": lambda a, b: signed(a) * signed(b) >> 32,
    "v_mul_u32_u24": lambda a, b: u24(a) * u24(b),
    "v_mul_i32_i24": lambda a, b: i24(a) * i24(b),
    "v_max_u32": max,
    "v_min_u32": min,
    "v_max_i32": lambda a, b: max(signed(a), signed(b)),
    "v_min_i32": lambda a, b: min(signed(a), signed(b)),
    "v_med3_i32": lambda a, b, c: sorted(map(signed, (a, b, c)))[1],
    "v_lshl_add_u32": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32": lambda a, b, c: ((a + b) & M32) << (c & 31),
    "v_lshl_or_b32": lambda a, b, c: a << (b & 31) | c,
    "v_and_or_b32": lambda a, b, c: (a & b) | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_xor3_b32": lambda a, b, c: a ^ b ^ c,
    "v_add3_u32": lambda a, b, c: a + b + c,
    "v_xad_u32": lambda a, b, c: (a ^ b) + c,
    "v_mad_u32": lambda a, b, c: a * b + c,
    "v_mad_u32_u24": lambda a, b, c: u24(a) * u24(b) + c,
    "v_mad_i32_i24": lambda a, b, c: i24(a) * i24(b) + c,
    "v_bfi_b32": lambda a, b, c: (a & b) | (~a & c),
    "v_bfe_u32": lambda a, b, c: a >> (b & 31) & ((1 << (c & 31)) - 1),
    "v_bfe_i32": bfe_signed,
    "v_alignbit_b32": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_alignbyte_b32": lambda a, b, c: (a << 32 | b) >> 8 * (c & 3),
    "v_perm_b32": permuted,
}


def lanes(values):
    """Return the values in rows of 32 lanes, the last row filled up."""
    values = list(values)
    values += values[:1] * (-len(values) % LANES)
    return [values[i : i + LANES] for i in range(0, len(values), LANES)]


def check_lanes(name, program, expected, sources, dtype=np.uint32):
    for row in lanes(sources):
        vectors = {n + 1: np.array([s[n] for s in row], dtype) for n in range(len(row[0]))}
        got = run_wave(program, vectors=vectors).vectors[9]
        want = np.array([expected(*s) & M32 for s in row], np.uint32)
        wrong = np.flatnonzero(got != want)
        assert not wrong.size, (
            f"{name}{[hex(int(x)) for x in row[wrong[0]]]}: {got[wrong[0]]:x}, "
            f"not {want[wrong[0]]:x}"
        )


@pytest.mark.parametrize("name", VECTOR)
def test_vector_operation_on_edge_values(name):
    expected = VECTOR[name]
    sources = sum(f.name.startswith("src") for f in ROWS[name].fields)
    registers = ", ".join(f"v{n + 1}" for n in range(sources))
    edges = (
        EDGES
        if sources < 3
        else [0, 1, 7, 31, 0x80, 0x0C0D0803, 0x12345678, 0x7FFFFFFF, 0x80000000, M32]
    )
    check_lanes(name, f"{name} v9, {registers}", expected, itertools.product(edges, repeat=sources))


def test_truth_table_of_three_inputs():
    for table in (0x00, 0x01, 0x54, 0x6C, 0x80, 0xCA, 0xE8, 0xFF):

        def expected(a, b, c, table=table):
            return sum(
                (table >> ((a >> n & 1) << 2 | (b >> n & 1) << 1 | (c >> n & 1)) & 1) << n
                for n in range(32)
            )

        sources = [
            (0x0F0F0F0F, 0x33333333, 0x55555555),
            (M32, 0, 0x12345678),
            (0, 0, 0),
            (M32, M32, M32),
        ]
        check_lanes(
            "v_bitop3_b32", f"v_bitop3_b32 v9, v1, v2, v3 bitop3:{table}", expected, sources
        )


@pytest.mark.parametrize(("table", "expected"), [(0x54, "or"), (0x14, "xor"), (0x40, "and")])
def test_truth_table_of_two_inputs_in_a_pair(table, expected):
    f = {"or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "and": lambda a, b: a & b}[expected]
    program = f"v_dual_mov_b32 v10, v1 :: v_dual_bitop2_b32 v9, v1, v2 bitop3:{table:#x}"
    check_lanes("v_bitop2_b32", program, f, itertools.product(EDGES, repeat=2))


def test_both_halves_of_a_pair_read_before_either_writes():
    a, b = np.arange(LANES, dtype=np.uint32), np.arange(LANES, dtype=np.uint32) + 100
    state = run_wave("v_dual_mov_b32 v2, v1 :: v_dual_mov_b32 v1, v2", vectors={1: a, 2: b})
    assert (state.vectors[2] == a).all()
    assert (state.vectors[1] == b).all()


@pytest.mark.parametrize("name", sorted(set(DUAL.values()) - {"v_bitop2_b32"}))
def test_half_of_a_pair_does_what_the_instruction_does_alone(name):
    rng = np.random.default_rng(1)
    vectors = {n: rng.standard_normal(LANES).astype(np.float32) for n in (1, 2, 3, 9, 11)}
    sources = [f.name for f in ROWS[name].fields[1:] if f.name != "mask"]
    registers = ", ".join(f"v{n + 1}" for n in range(len(sources)))
    mask = ", vcc_lo" if name == "v_cndmask_b32" else ""
    half = name.replace("v_", "v_dual_", 1)
    scalars = {106: 0x0F0F1234}
    alone = run_wave(f"{name} v9, {registers}{mask}", vectors=vectors, scalars=scalars)
    for pair in (
        f"{half} v9, {registers} :: v_dual_mov_b32 v10, v1",
        f"v_dual_mov_b32 v10, v1 :: {half} v9, {registers}",
    ):
        state = run_wave(pair, vectors=vectors, scalars=scalars)
        assert (state.vectors[9] == alone.vectors[9]).all()


# ---------------------------------------------------------------------------------- vector, 64 bits

VECTOR_WIDE = {
    "v_mov_b64": ((2,), lambda a: a),
    "v_lshlrev_b64": ((1, 2), lambda a, b: b << (a & 63)),
    "v_lshrrev_b64": ((1, 2), lambda a, b: b >> (a & 63)),
    "v_ashrrev_i64": ((1, 2), lambda a, b: signed(b, 64) >> (a & 63)),
    "v_add_nc_u64": ((2, 2), lambda a, b: a + b),
    "v_sub_nc_u64": ((2, 2), lambda a, b: a - b),
    "v_mul_u64": ((2, 2), lambda a, b: a * b),
    "v_mad_nc_u64_u32": ((1, 1, 2), lambda a, b, c: a * b + c),
    "v_mad_nc_i64_i32": ((1, 1, 2), lambda a, b, c: signed(a) * signed(b) + signed(c, 64)),
    "v_lshl_add_u64": ((2, 1, 2), lambda a, b, c: (a << (b & 63)) + c),
}


@pytest.mark.parametrize("name", VECTOR_WIDE)
def test_vector_operation_of_64_bits(name):
    widths, expected = VECTOR_WIDE[name]
    edges = {
        1: [0, 1, 5, 31, 33, 63, 0x80000000, M32],
        2: [0, 1, M32, 1 << 32, 0x123456789ABCDEF0, 1 << 63, M64],
    }
    registers = [
        f"v[{2 * n + 2}:{2 * n + 3}]" if w == 2 else f"v{2 * n + 2}" for n, w in enumerate(widths)
    ]
    for row in lanes(itertools.product(*(edges[w] for w in widths))):
        vectors = {}
        for n in range(len(widths)):
            vectors[2 * n + 2] = np.array([s[n] & M32 for s in row], np.uint32)
            vectors[2 * n + 3] = np.array([s[n] >> 32 for s in row], np.uint32)
        got = run_wave(f"{name} v[10:11], {', '.join(registers)}", vectors=vectors).vector64(10)
        assert got.tolist() == [expected(*s) & M64 for s in row]


# ---------------------------------------------------------------------------- masks and comparisons

CARRIES = {
    "v_add_co_u32": (False, lambda a, b, c: a + b),
    "v_sub_co_u32": (False, lambda a, b, c: a - b),
    "v_subrev_co_u32": (False, lambda a, b, c: b - a),
    "v_add_co_ci_u32": (True, lambda a, b, c: a + b + c),
    "v_sub_co_ci_u32": (True, lambda a, b, c: a - b - c),
    "v_subrev_co_ci_u32": (True, lambda a, b, c: b - a - c),
}


@pytest.mark.parametrize("name", CARRIES)
def test_carries_go_through_lane_masks(name):
    takes, expected = CARRIES[name]
    mask = 0x5A5A1234
    program = f"{name} v9, s8, v1, v2{', s6' if takes else ''}"
    for row in lanes(itertools.product(EDGES, repeat=2)):
        vectors = {n + 1: np.array([s[n] for s in row], np.uint32) for n in range(2)}
        state = run_wave(program, vectors=vectors, scalars={6: mask})
        exact = [expected(*s, mask >> lane & 1) for lane, s in enumerate(row)]
        assert state.vectors[9].tolist() == [e & M32 for e in exact]
        assert state.scalars[8] == sum((not 0 <= e <= M32) << lane for lane, e in enumerate(exact))


INTEGER_RELATIONS = {
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ne": lambda a, b: a != b,
    "ge": lambda a, b: a >= b,
}


def unordered(a, b):
    return math.isnan(a) or math.isnan(b)


FLOAT_RELATIONS = {
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "lg": lambda a, b: a < b or a > b,
    "ge": lambda a, b: a >= b,
    "o": lambda a, b: not unordered(a, b),
    "u": unordered,
    "nge": lambda a, b: not a >= b,
    "nlg": lambda a, b: not (a < b or a > b),
    "ngt": lambda a, b: not a > b,
    "nle": lambda a, b: not a <= b,
    "neq": lambda a, b: a != b,
    "nlt": lambda a, b: not a < b,
}
FLOATS = [0.0, -0.0, 1.0, -1.0, 1.5, 3.0e38, -3.0e38, 1.0e-45, math.inf, -math.inf, math.nan]


def as_float(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


@pytest.mark.parametrize("kind", ["i32", "u32", "f32"])
def test_comparisons_give_lane_masks(kind):
    relations = FLOAT_RELATIONS if kind == "f32" else INTEGER_RELATIONS
    values = np.array(FLOATS, np.float32).view(np.uint32).tolist() if kind == "f32" else EDGES
    convert = {"i32": signed, "u32": unsigned, "f32": as_float}[kind]
    exec_mask = 0xFFFF0FF0
    for relation, expected in relations.items():
        for row in lanes(itertools.product(values, repeat=2)):
            vectors = {n + 1: np.array([s[n] for s in row], np.uint32) for n in range(2)}
            want = (
                sum(
                    bool(expected(convert(a), convert(b))) << lane
                    for lane, (a, b) in enumerate(row)
                )
                & exec_mask
            )
            before = f"s_mov_b32 exec_lo, {exec_mask:#x}\n"
            one = run_wave(f"{before}v_cmp_{relation}_{kind}_e64 s8, v1, v2", vectors=vectors)
            assert one.scalars[8] == want, relation
            assert (
                run_wave(
                    f"{before}v_cmp_{relation}_{kind} vcc_lo, v1, v2", vectors=vectors
                ).scalars[106]
                == want
            )
            assert (
                run_wave(f"{before}v_cmpx_{relation}_{kind} v1, v2", vectors=vectors).scalars[126]
                == want
            )


def test_select_takes_the_second_source_where_the_mask_is_set():
    a, b = np.arange(LANES, dtype=np.uint32), np.arange(LANES, dtype=np.uint32) + 100
    state = run_wave(
        "v_cndmask_b32_e64 v9, v1, v2, s6", vectors={1: a, 2: b}, scalars={6: 0xF000000F}
    )
    assert state.vectors[9].tolist() == [100 + n if n < 4 or n >= 28 else n for n in range(LANES)]


def test_inactive_lanes_keep_their_values():
    a, old = np.arange(LANES, dtype=np.uint32), np.full(LANES, 77, np.uint32)
    state = run_wave("s_mov_b32 exec_lo, 0xff\nv_mov_b32 v9, v1", vectors={1: a, 9: old})
    assert state.vectors[9].tolist() == [*range(8), *[77] * 24]


def test_lanes_are_read_and_written_by_number():
    a = np.arange(LANES, dtype=np.uint32) * 3
    assert run_wave("v_readfirstlane_b32 s8, v1", vectors={1: a}).scalars[8] == 0
    assert (
        run_wave("s_mov_b32 exec_lo, 0xf00\nv_readfirstlane_b32 s8, v1", vectors={1: a}).scalars[8]
        == 24
    )
    assert (
        run_wave("s_mov_b32 exec_lo, 0\nv_readfirstlane_b32 s8, v1", vectors={1: a}).scalars[8] == 0
    )
    assert run_wave("v_readlane_b32 s8, v1, s4", vectors={1: a}, scalars={4: 37}).scalars[8] == 15
    state = run_wave("v_writelane_b32 v1, s5, s4", vectors={1: a}, scalars={4: 5, 5: 99})
    assert state.vectors[1].tolist() == [99 if n == 5 else 3 * n for n in range(LANES)]


def test_bits_below_the_lane_are_counted():
    mask, base = np.full(LANES, 0xF0F0F0F1, np.uint32), np.full(LANES, 10, np.uint32)
    state = run_wave(
        "v_mbcnt_lo_u32_b32 v9, v1, v2\nv_mbcnt_hi_u32_b32 v10, v1, v9", vectors={1: mask, 2: base}
    )
    want = [10 + (0xF0F0F0F1 & ((1 << n) - 1)).bit_count() for n in range(LANES)]
    assert state.vectors[9].tolist() == want
    assert state.vectors[10].tolist() == want


# ------------------------------------------------------------------------------------- vector, FP32


def f32(value) -> np.float32:
    return np.float32(value)


def with_numbers(f):
    """minimumNumber, maximumNumber: a NaN loses against a number."""
    return lambda a, b: b if np.isnan(a) else a if np.isnan(b) else f(a, b)


def larger(a, b):
    if a == b:
        return b if np.signbit(a) else a
    return max(a, b)


def smaller(a, b):
    if a == b:
        return a if np.signbit(a) else b
    return min(a, b)


def nan_wins(f):
    return lambda a, b: a if np.isnan(a) else b if np.isnan(b) else f(a, b)


def fma(a, b, c):
    return f32(np.longdouble(a) * np.longdouble(b) + np.longdouble(c))


FLOAT_OPERATIONS = {
    "v_add_f32": lambda a, b: a + b,
    "v_sub_f32": lambda a, b: a - b,
    "v_subrev_f32": lambda a, b: b - a,
    "v_mul_f32": lambda a, b: a * b,
    "v_max_num_f32": with_numbers(larger),
    "v_min_num_f32": with_numbers(smaller),
    "v_maximum_f32": nan_wins(larger),
    "v_minimum_f32": nan_wins(smaller),
    "v_fma_f32": fma,
    "v_trunc_f32": np.trunc,
    "v_floor_f32": np.floor,
    "v_ceil_f32": np.ceil,
    "v_rndne_f32": np.rint,
    "v_exp_f32": lambda a: f32(np.exp2(np.float64(a))),
    "v_log_f32": lambda a: f32(np.log2(np.float64(a))),
    "v_rcp_f32": lambda a: f32(1 / np.float64(a)),
    "v_rcp_iflag_f32": lambda a: f32(1 / np.float64(a)),
    "v_rsq_f32": lambda a: f32(1 / np.sqrt(np.float64(a))),
    "v_sqrt_f32": lambda a: f32(np.sqrt(np.float64(a))),
    "v_tanh_f32": lambda a: f32(np.tanh(np.float64(a))),
    "v_fract_f32": lambda a: np.fmin(f32(a - np.floor(a)), np.nextafter(f32(1), f32(0))),
}


@pytest.mark.parametrize("name", FLOAT_OPERATIONS)
def test_float_operation_on_edge_values(name):
    sources = sum(f.name.startswith("src") for f in ROWS[name].fields)
    values = FLOAT_VALUES if sources < 3 else FLOAT_VALUES[[0, 1, 2, 3, 4, 8, 11, 12, 14, 15]]
    registers = ", ".join(f"v{n + 1}" for n in range(sources))
    with np.errstate(all="ignore"):
        for row in lanes(itertools.product(values, repeat=sources)):
            columns = [np.array([s[n] for s in row], np.float32) for n in range(sources)]
            got = (
                run_wave(f"{name} v9, {registers}", vectors=dict(enumerate(columns, 1)))
                .vectors[9]
                .view(np.float32)
            )
            want = np.array([FLOAT_OPERATIONS[name](*s) for s in row], np.float32)
            assert_same_floats(got, want, name, ulp=1 if name == "v_tanh_f32" else 0)


def test_float_sources_may_be_negated_and_made_absolute():
    a, b = np.resize(FLOAT_VALUES, LANES), np.resize(FLOAT_VALUES[::-1], LANES)
    with np.errstate(all="ignore"):
        state = run_wave("v_fma_f32 v9, -v1, |v2|, -|v1|", vectors={1: a, 2: b})
        want = np.array([fma(-x, abs(y), -abs(x)) for x, y in zip(a, b, strict=True)], np.float32)
    assert_same_floats(state.vectors[9].view(np.float32), want, "modifiers")


def test_accumulating_multiply_reads_its_destination():
    a, b, c = (np.full(LANES, v, np.float32) for v in (3.0, 5.0, 0.25))
    state = run_wave("v_fmac_f32 v9, v1, v2", vectors={1: a, 2: b, 9: c})
    assert (state.vectors[9].view(np.float32) == 15.25).all()


@pytest.mark.parametrize(
    ("line", "right"),
    [("v_fmaak_f32 v9, v1, v2, 0x3e800000", 15.25), ("v_fmamk_f32 v9, v1, 0x3e800000, v2", 5.75)],
)
def test_literal_is_addend_or_factor_of_a_multiply_add(line, right):
    a, b = (np.full(LANES, v, np.float32) for v in (3.0, 5.0))
    state = run_wave(line, vectors={1: a, 2: b})
    assert (state.vectors[9].view(np.float32) == right).all()


def test_exponent_is_added():
    state = run_wave(
        "v_ldexp_f32 v9, v1, v2",
        vectors={1: np.full(LANES, 1.5, np.float32), 2: np.arange(-16, 16, dtype=np.int32) * 10},
    )
    with np.errstate(all="ignore"):
        want = np.ldexp(np.float32(1.5), np.arange(-16, 16) * 10).astype(np.float32)
    assert_same_floats(state.vectors[9].view(np.float32), want, "v_ldexp_f32")


def test_packed_floats_choose_halves_and_signs():
    values = [np.arange(LANES, dtype=np.float32) + 100 * n for n in range(6)]
    vectors = dict(enumerate(values, 2))
    state = run_wave("v_pk_add_f32 v[10:11], v[2:3], v[4:5]", vectors=vectors)
    assert (state.vectors[10].view(np.float32) == values[0] + values[2]).all()
    assert (state.vectors[11].view(np.float32) == values[1] + values[3]).all()
    state = run_wave(
        "v_pk_mul_f32 v[10:11], v[2:3], v[4:5] op_sel:[1,0] op_sel_hi:[0,1]", vectors=vectors
    )
    assert (state.vectors[10].view(np.float32) == values[1] * values[2]).all()
    assert (state.vectors[11].view(np.float32) == values[0] * values[3]).all()
    state = run_wave(
        "v_pk_fma_f32 v[10:11], v[2:3], v[4:5], v[6:7] neg_lo:[1,0,0] neg_hi:[0,0,1]",
        vectors=vectors,
    )
    assert (state.vectors[10].view(np.float32) == values[4] - values[0] * values[2]).all()
    assert (state.vectors[11].view(np.float32) == values[1] * values[3] - values[5]).all()
