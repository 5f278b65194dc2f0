"""Scaled matrix operations against the formats' own values: every code, every scale byte, every mix
of formats.
"""

import itertools

import numpy as np
import pytest

from gfx1250_programs import run_wave
from mxgemm.emulator import EncodingHazard, ExecHazard, UnsupportedInstruction
from mxgemm.formats import E2M1, E2M3, E3M2, E4M3, E5M2, E8M0

pytestmark = pytest.mark.emulated

FORMATS = {"FP8": E4M3, "BF8": E5M2, "FP6": E2M3, "BF6": E3M2, "FP4": E2M1}
DEPTH = 128
A, B, C, D, SCALE_A, SCALE_B = 2, 18, 34, 42, 60, 62  # first registers


def chunk_shape(bits: int) -> tuple[int, int]:
    """Return registers and codes of a lane's K-contiguous chunk."""
    return (4, 128 // bits) if bits != 6 else (6, 32)


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return uint32 [registers, 32] for 16 rows of codes [16, 128].

    Written from the published layout: lane l holds row l % 16; its chunk c starts at k = (2 c + l /
    16) * codes per chunk; code p of a chunk is at bit p * bits.
    """
    registers, per_chunk = chunk_shape(bits)
    chunks = DEPTH // (2 * per_chunk)
    packed = np.zeros((chunks * registers, 32), np.uint32)
    for lane in range(32):
        for c in range(chunks):
            first = (2 * c + lane // 16) * per_chunk
            stream = sum(int(codes[lane % 16, first + p]) << bits * p for p in range(per_chunk))
            for r in range(registers):
                packed[c * registers + r, lane] = stream >> 32 * r & 0xFFFFFFFF
    return packed


def unpack_result(vectors: dict[int, np.ndarray], rows: int) -> np.ndarray:
    """Return FP32 [rows, 16]: register v, lane l hold m = (v / 8) 16 + (l / 16) 8 + v % 8, n = l %
    16.
    """
    result = np.zeros((rows, 16), np.float32)
    for v, lane in itertools.product(range(rows // 2), range(32)):
        result[v // 8 * 16 + lane // 16 * 8 + v % 8, lane % 16] = vectors[D + v].view(np.float32)[
            lane
        ]
    return result


def pack_result(values: np.ndarray) -> dict[int, np.ndarray]:
    vectors = {C + v: np.zeros(32, np.float32) for v in range(len(values) // 2)}
    for v, lane in itertools.product(range(len(values) // 2), range(32)):
        vectors[C + v][lane] = values[v // 8 * 16 + lane // 16 * 8 + v % 8, lane % 16]
    return vectors


def scale_registers(scales: np.ndarray, first: int, row: int = 0) -> dict[int, np.ndarray]:
    """Return the registers of uint8 scales [rows, blocks]: byte j of register j / 4 in the row's
    lane.
    """
    rows, blocks = scales.shape
    vectors = {}
    for r in range(blocks // 4):
        words = np.full(32, 0xFFFFFFFF, np.uint32)  # NaN where nothing may be read
        lanes = slice(0, 32) if rows == 32 else slice(16 * row, 16 * row + 16)
        words[lanes] = np.ascontiguousarray(scales[:, 4 * r : 4 * r + 4]).view(np.uint32)[:, 0]
        vectors[first + r] = words
    return vectors


def multiply(
    a, b, sa, sb, c=None, *, a_format="FP4", b_format="FP4", rows=16, row_a=0, row_b=0, modifiers=""
):
    """Run D = A B + C: codes a [rows, 128], b [16, 128], scales [.., 4 or 8]; FP32 [rows, 16]."""
    fa, fb = FORMATS[a_format], FORMATS[b_format]
    packed_a = np.concatenate([pack(a[r : r + 16], fa.bits) for r in range(0, rows, 16)])
    packed_b = pack(b, fb.bits)
    blocks = sa.shape[1]
    vectors = dict(enumerate(packed_a, A)) | dict(enumerate(packed_b, B))
    vectors |= scale_registers(sa, SCALE_A, row_a) | scale_registers(sb, SCALE_B, row_b)
    vectors |= pack_result(c) if c is not None else {}
    wide = "16" if blocks == 8 else ""
    name = f"v_wmma_scale{wide}_f32_{'32x16x128_f4' if rows == 32 else '16x16x128_f8f6f4'}"
    scales = (
        f"v[{SCALE_A}:{SCALE_A + 1}], v[{SCALE_B}:{SCALE_B + 1}]"
        if wide
        else f"v{SCALE_A}, v{SCALE_B}"
    )
    third = f"v[{C}:{C + rows // 2 - 1}]" if c is not None else "0"
    options = (
        ""
        if rows == 32
        else f" matrix_a_fmt:MATRIX_FMT_{a_format} matrix_b_fmt:MATRIX_FMT_{b_format}"
    )
    options += f" matrix_a_scale:MATRIX_SCALE_ROW{row_a}" if row_a else ""
    options += f" matrix_b_scale:MATRIX_SCALE_ROW{row_b}" if row_b else ""
    line = (
        f"{name} v[{D}:{D + rows // 2 - 1}], v[{A}:{A + len(packed_a) - 1}], "
        f"v[{B}:{B + len(packed_b) - 1}], {third}, {scales}"
        f"{options} {modifiers}"
    )
    return unpack_result(run_wave(line, vectors=vectors).vectors, rows)


def exact(a, b, sa, sb, c=None, *, a_format="FP4", b_format="FP4"):
    """Return the product in float64."""
    block = DEPTH // sa.shape[1]

    def values(operand, name, scale):
        powers = np.repeat(np.array(E8M0.values)[scale], block, 1)
        return np.array(FORMATS[name].values)[operand] * powers

    with np.errstate(invalid="ignore"):
        product = values(a, a_format, sa) @ values(b, b_format, sb).T
    return product if c is None else product + c


def codes(rng, rows, name):
    """Return random finite codes uint8 [rows, 128]."""
    f = FORMATS[name]
    finite = np.flatnonzero(np.isfinite(f.values)).astype(np.uint8)
    return rng.choice(finite, (rows, DEPTH))


def scales(rng, rows, low=127, high=127, blocks=4):
    return rng.integers(low, high + 1, (rows, blocks), dtype=np.uint8)


def test_all_pairs_of_fp4_codes():
    """A holds code i in row i at one k only, B code j in column j: D[i, j] is their product."""
    for k in (0, 31, 32, 77, 127):
        a, b = np.zeros((16, DEPTH), np.uint8), np.zeros((16, DEPTH), np.uint8)
        a[:, k] = b[:, k] = np.arange(16)
        one = np.full((16, 4), 127, np.uint8)
        want = np.outer(E2M1.values, E2M1.values)
        assert (multiply(a, b, one, one) == want).all(), k


@pytest.mark.parametrize("rows", [16, 32])
@pytest.mark.parametrize("blocks", [4, 8])
def test_fp4_is_exact_with_random_scales(rows, blocks):
    rng = np.random.default_rng(3 + rows + blocks)
    for _ in range(8):
        a, b = codes(rng, rows, "FP4"), codes(rng, 16, "FP4")
        sa, sb = scales(rng, rows, 124, 130, blocks), scales(rng, 16, 124, 130, blocks)
        c = rng.integers(-1000, 1000, (rows, 16)).astype(np.float32)
        assert (
            multiply(a, b, sa, sb, c, rows=rows) == exact(a, b, sa, sb, c).astype(np.float32)
        ).all()


@pytest.mark.parametrize(("a_format", "b_format"), list(itertools.product(FORMATS, FORMATS)))
def test_every_mix_of_formats(a_format, b_format):
    """Sums of 128 products round; the bound is that of FP32 additions in any order."""
    rng = np.random.default_rng(5)
    a, b = codes(rng, 16, a_format), codes(rng, 16, b_format)
    sa, sb = scales(rng, 16, 120, 130), scales(rng, 16, 120, 130)
    got = multiply(a, b, sa, sb, a_format=a_format, b_format=b_format)
    want = exact(a, b, sa, sb, a_format=a_format, b_format=b_format)
    magnitude = np.abs(np.array(FORMATS[a_format].values))[a] * np.repeat(
        np.array(E8M0.values)[sa], 32, 1
    )
    other = np.abs(np.array(FORMATS[b_format].values))[b] * np.repeat(
        np.array(E8M0.values)[sb], 32, 1
    )
    bound = 2.0**-24 * (DEPTH + 8) * (magnitude @ other.T)
    assert (np.abs(got - want) <= bound).all()


@pytest.mark.parametrize("name", FORMATS)
def test_every_code_of_every_format(name):
    """One code a k, B all ones on one row: D[0, 0] over single-code rows is the code's value."""
    f = FORMATS[name]
    one_code = f.values.index(1.0)
    for first in range(0, 1 << f.bits, 16):
        a, b = np.zeros((16, DEPTH), np.uint8), np.zeros((16, DEPTH), np.uint8)
        a[:, 5] = np.arange(first, first + 16)
        b[:, 5] = one_code
        unit = np.full((16, 4), 127, np.uint8)
        got = multiply(a, b, unit, unit, a_format=name, b_format=name)[:, 0]
        want = np.array(f.values[first : first + 16])
        assert np.array_equal(got, want + 0.0, equal_nan=True), hex(first)


def test_every_scale_byte():
    a, b = np.zeros((16, DEPTH), np.uint8), np.zeros((16, DEPTH), np.uint8)
    a[:, 40], b[:, 40] = 7, 2  # 6 * 1
    for first in range(0, 256, 16):
        sa = np.full((16, 4), 127, np.uint8)
        sa[:, 1] = np.arange(first, first + 16)
        sb = np.full((16, 4), 127, np.uint8)
        with np.errstate(over="ignore"):
            want = (6.0 * np.array(E8M0.values)[sa[:, 1]]).astype(np.float32)
        got = multiply(a, b, sa, sb)[:, 0]
        assert np.array_equal(got, want, equal_nan=True), first


def test_scales_that_overflow_together_are_applied_as_one_exponent():
    """2^127 * 2^-127: neither order of multiplication may lose the product; both ends of the range,
    and past it.
    """
    a, b = np.zeros((16, DEPTH), np.uint8), np.zeros((16, DEPTH), np.uint8)
    a[:, 0], b[:, 0] = 3, 3  # 1.5 * 1.5
    pairs = [
        (254, 0),
        (0, 254),
        (254, 254),
        (0, 0),
        (254, 1),
        (200, 55),
        (1, 127),
        (127, 254),
        (60, 60),
        (52, 53),
        (53, 53),
    ]
    for byte_a, byte_b in pairs:
        sa, sb = np.full((16, 4), byte_a, np.uint8), np.full((16, 4), byte_b, np.uint8)
        with np.errstate(over="ignore"):
            want = np.float32(2.25 * 2.0 ** (byte_a + byte_b - 254))
        assert multiply(a, b, sa, sb)[3, 7] == want, (byte_a, byte_b)


def test_scale_of_nan_poisons_exactly_the_rows_and_columns_it_belongs_to():
    rng = np.random.default_rng(8)
    a, b = codes(rng, 16, "FP4"), codes(rng, 16, "FP4")
    sa, sb = scales(rng, 16), scales(rng, 16)
    sa[3, 2] = sb[11, 0] = 255
    nan = np.isnan(multiply(a, b, sa, sb))
    want = np.zeros((16, 16), bool)
    want[3, :] = want[:, 11] = True
    assert (nan == want).all()


@pytest.mark.parametrize(("row_a", "row_b"), [(0, 1), (1, 0), (1, 1)])
def test_scales_come_from_the_selected_half_of_the_lanes(row_a, row_b):
    rng = np.random.default_rng(9)
    a, b = codes(rng, 16, "FP4"), codes(rng, 16, "FP4")
    sa, sb = scales(rng, 16, 125, 129), scales(rng, 16, 125, 129)
    got = multiply(a, b, sa, sb, row_a=row_a, row_b=row_b)
    assert (got == exact(a, b, sa, sb).astype(np.float32)).all()


def test_column_scales_of_a_32_row_operation_come_from_the_selected_half():
    rng = np.random.default_rng(10)
    a, b = codes(rng, 32, "FP4"), codes(rng, 16, "FP4")
    sa, sb = scales(rng, 32, 125, 129), scales(rng, 16, 125, 129)
    assert (
        multiply(a, b, sa, sb, rows=32, row_b=1) == exact(a, b, sa, sb).astype(np.float32)
    ).all()


@pytest.mark.parametrize("side", ["a", "b"])
def test_permuting_k_of_one_operand_inside_a_block_changes_the_result(side):
    """What no product of consistently permuted operands can show: that each operand's own K order
    is right.
    """
    rng = np.random.default_rng(11)
    a, b = codes(rng, 16, "FP4"), codes(rng, 16, "FP4")
    sa, sb = scales(rng, 16), scales(rng, 16)
    order = np.concatenate([rng.permutation(32) + 32 * block for block in range(4)])
    want = multiply(a, b, sa, sb)
    both = multiply(a[:, order], b[:, order], sa, sb)
    assert (both == want).all()
    one = multiply(a[:, order], b, sa, sb) if side == "a" else multiply(a, b[:, order], sa, sb)
    permuted = exact(a[:, order], b, sa, sb) if side == "a" else exact(a, b[:, order], sa, sb)
    assert (one == permuted.astype(np.float32)).all()
    assert (one != want).any()


@pytest.mark.parametrize("format_name", ["E5M3", "E4M3"])
def test_scales_with_a_mantissa(format_name):
    rng = np.random.default_rng(12)
    a, b = codes(rng, 16, "FP4"), codes(rng, 16, "FP4")
    exponent_bits, bias = (5, 15) if format_name == "E5M3" else (4, 7)
    top = (1 << (exponent_bits + 3)) - 2
    sa, sb = (rng.integers(0, top, (16, 4), dtype=np.uint8) for _ in range(2))

    def value(byte):
        exponent, fraction = byte >> 3, byte & 7
        return np.where(
            exponent == 0,
            fraction * 2.0 ** (1 - bias - 3),
            (8 + fraction) * 2.0 ** (exponent.astype(int) - bias - 3),
        )

    options = (
        f"matrix_a_scale_fmt:MATRIX_SCALE_FMT_{format_name} "
        f"matrix_b_scale_fmt:MATRIX_SCALE_FMT_{format_name}"
    )
    got = multiply(a, b, sa, sb, modifiers=options)
    table = np.array(E2M1.values)
    scaled_a, scaled_b = (
        table[a] * np.repeat(value(sa), 32, 1),
        table[b] * np.repeat(value(sb), 32, 1),
    )
    bound = 2.0**-23 * (np.abs(scaled_a) @ np.abs(scaled_b).T) * 5
    assert (np.abs(got - scaled_a @ scaled_b.T) <= bound).all()


def test_accumulator_may_be_negated_and_made_absolute():
    a = b = np.zeros((16, DEPTH), np.uint8)
    one = np.full((16, 4), 127, np.uint8)
    c = np.linspace(-8, 7, 256).reshape(16, 16).astype(np.float32)
    assert (multiply(a, b, one, one, c, modifiers="neg_lo:[0,0,1]") == -c).all()
    assert (multiply(a, b, one, one, c, modifiers="neg_hi:[0,0,1]") == np.abs(c)).all()
    assert (
        multiply(a, b, one, one, c, modifiers="neg_lo:[0,0,1] neg_hi:[0,0,1]") == -np.abs(c)
    ).all()


OPERANDS = {n: np.zeros(32, np.uint32) for n in range(2, 42)}
LINE = (
    "v_wmma_scale_f32_16x16x128_f8f6f4 v[2:9], v[10:17], v[18:25], v[26:33], {}, {} "
    "matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4"
)


def test_scale_may_be_scalar_or_one():
    state = run_wave(LINE.format("0", "s4"), vectors=OPERANDS, scalars={4: 0x0000007F})
    assert (state.vectors[2] == 0).all()
    with pytest.raises(UnsupportedInstruction, match="constant other than 0"):
        run_wave(LINE.format("1", "0"), vectors=OPERANDS)


def test_exec_must_be_all_ones():
    with pytest.raises(ExecHazard, match="got 0x7fffffff"):
        run_wave("s_mov_b32 exec_lo, 0x7fffffff\n" + LINE.format("v34", "v35"), vectors=OPERANDS)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (LINE.format("v34", "v35").replace("v[10:17]", "v[11:18]"), "even register"),
        (LINE.format("v34", "v35").replace("v[2:9]", "v[3:10]"), "even register"),
        (LINE.format("v300", "v35"), r"scales must be in v0\.\.v255"),
    ],
)
def test_operand_rules(line, match):
    with pytest.raises(EncodingHazard, match=match):
        run_wave(line, vectors=OPERANDS)
