"""The text path, the binary path and LLVM agree on every instruction of the table."""

import itertools
import re

import pytest

from gfx1250_programs import NAME, assemble, assembly, encode, needs_llvm
from mxgemm.emulator import DecodeError, LoadError, Machine
from mxgemm.emulator.gfx1250.encoding import decode
from mxgemm.emulator.gfx1250.table import BY_OPCODE, DUAL, LITERAL_SOURCE, ROWS
from mxgemm.emulator.gfx1250.text import parse
from mxgemm.emulator.instruction import Field, Row

pytestmark = needs_llvm

SCALAR_ENCODINGS = {"SOP1", "SOP2", "SOPC", "SOPK", "SOPP", "SMEM", "VTENSOR"}


HALF_REGISTERS = {
    "v_mov_b16": {"dst", "src0"},
    "v_cvt_f16_f32": {"dst"},
    "v_cvt_f32_f16": {"src0"},
}


def registers(letter: str, first: int, words: int) -> str:
    return f"{letter}{first}" if words == 1 else f"{letter}[{first}:{first + words - 1}]"


def sample_operand(row: Row, field: Field, position: int, scalar: bool) -> str:
    words, number = field.words, 20 * position + 4
    if row.name.endswith("f8f6f4") and field.name in {"src0", "src1"}:
        words = 16
    fixed = {
        "imm": "7",
        "simm": "7",
        "literal": "0x12345",
        "hwreg": "hwreg(HW_REG_WAVE_SCHED_MODE, 0, 2)",
        "depctr": "depctr_va_vdst(3) depctr_vm_vsrc(2)",
        "barrier": "-1",
        "soffset": "0x24",
        "mask": "s3",
        "vaddr": registers("v", number, 1),
        "saddr": registers("s", number, 1 if row.name.startswith("scratch") else 2),
    }
    if row.name in LITERAL_SOURCE:
        fixed["src2"] = "0x40490fdb"
    if field.name in fixed:
        return fixed[field.name]
    if field.name.startswith("group"):
        return registers("s", 8 * position, words)
    letter = "s" if scalar or field.name in {"sdst", "base"} else "v"
    half = ".l" if field.name in HALF_REGISTERS.get(row.name, ()) else ""
    return registers(letter, number, words) + half


def sample(row: Row) -> str:
    encodings = {encoding for encoding, _ in row.forms}
    names = [f.name for f in row.fields]
    if names == ["ignored"]:
        return row.name + (" instid0(VALU_DEP_1)" if row.name == "s_delay_alu" else "")
    scalar = bool(encodings & SCALAR_ENCODINGS)
    operands = [sample_operand(row, f, n, scalar) for n, f in enumerate(row.fields)]
    if row.name in {"v_writelane_b32", "v_readlane_b32"}:
        operands[-1] = "s5"
    if row.name == "v_writelane_b32":
        operands[1] = "s4"
    if row.name == "s_barrier_signal":
        operands = ["-1"]
    suffix = (
        " offset:16"
        if row.name.startswith(("global_", "scratch_")) and "prefetch" not in row.name
        else ""
    )
    suffix = " offset0:3 offset1:200" if "2addr" in row.name else suffix
    suffix = " bitop3:0x6c" if row.name == "v_bitop3_b32" else suffix
    return f"{row.name} {', '.join(operands)}{suffix}"


def agree(line: str, code: bytes | str) -> None:
    assert isinstance(code, bytes), f"LLVM refuses `{line}`: {code}"
    assert decode(code, 0) == parse([line]), line


SINGLE = [row for row in ROWS.values() if row.forms and [f.name for f in row.fields] != ["label"]]


@pytest.fixture(scope="module")
def encoded() -> dict[str, bytes | str]:
    lines = [sample(row) for row in SINGLE]
    return dict(zip(lines, encode(lines), strict=True))


@pytest.mark.parametrize("row", SINGLE, ids=lambda row: row.name)
def test_row_decodes_to_what_its_text_says(row, encoded):
    line = sample(row)
    agree(line, encoded[line])


@pytest.mark.parametrize("line", ["v_mov_b16 v4.h, v24.l", "v_cvt_f32_f16 v4, v24.h"])
def test_upper_register_halves_are_refused(line):
    (code,) = encode([line])
    with pytest.raises(DecodeError, match="not known"):
        decode(code, 0)
    with pytest.raises(DecodeError, match="not known"):
        parse([line])


def test_row_has_the_opcode_of_llvm_in_both_vector_encodings():
    rows = [row for row in SINGLE if len(row.forms) == 2]
    lines = [sample(row).replace(row.name, row.name + "_e64", 1) for row in rows]
    for row, line, code in zip(rows, lines, encode(lines), strict=True):
        assert isinstance(code, bytes), f"LLVM refuses `{line}`: {code}"
        assert len(code) == 8, line
        assert decode(code, 0) == parse([line])
        assert BY_OPCODE["VOP3", int.from_bytes(code[:4], "little") >> 16 & 1023] is row


VARIANTS = [
    "v_and_b32_e32 v1, 0x12345, v2",
    "v_and_b32_e32 v1, -16, v2",
    "v_and_b32_e32 v1, 64, v2",
    "v_and_b32_e32 v1, vcc_lo, v2",
    "v_and_b32_e32 v1, exec_lo, v2",
    "v_and_b32_e32 v1, m0, v2",
    "v_and_b32_e64 v1, s2, s3",
    "v_mul_f32_e32 v1, 0.5, v2",
    "v_mul_f32_e32 v1, -4.0, v2",
    "v_mul_f32_e32 v1, 0x40490fdb, v2",
    "v_fma_f32 v1, -v2, |v3|, -|v4|",
    "v_fma_f32 v1, v2, v3, 1.0",
    "v_fmaak_f32 v1, s2, v3, 0xbf800000",
    "v_fmaak_f32 v1, 0x40490fdb, v3, 0x40490fdb",
    "v_fmamk_f32 v1, v2, 0x3f800000, v3",
    "v_cndmask_b32_e32 v1, v2, v3, vcc_lo",
    "v_cndmask_b32_e64 v1, v2, v3, s7",
    "v_cmp_lt_i32_e32 vcc_lo, v1, v2",
    "v_sub_co_ci_u32_e64 v1, null, v2, v3, vcc_lo",
    "v_add_co_u32 v1, s7, v2, v3",
    "v_bitop3_b32 v1, v2, v3, v4 bitop3:0xff",
    "v_bitop3_b32 v1, v2, v3, v4 bitop3:1",
    "v_pk_fma_f32 v[2:3], v[4:5], v[6:7], v[8:9] op_sel:[1,0,0] op_sel_hi:[0,1,1] neg_lo:[1,0,0]",
    "v_pk_mul_f32 v[2:3], v[4:5], v[6:7] op_sel_hi:[0,1]",
    "s_mov_b32 s1, 0xffffff80",
    "s_mov_b32 s1, -1",
    "s_mov_b64 s[2:3], -1",
    "s_mov_b64 s[2:3], 0x123456789",
    "s_add_nc_u64 s[2:3], s[4:5], 0x12345",
    "s_and_b64 s[2:3], s[4:5], 0xffffffff",
    "s_and_b32 s1, ttmp6, 15",
    "s_bfe_u32 s12, ttmp9, 0x4000c",
    "s_movk_i32 s1, 0x8000",
    "s_load_b96 s[4:6], s[0:1], -8",
    "s_load_b64 s[4:5], s[0:1], s7 offset:0x10",
    "s_load_b256 s[4:11], s[0:1], 0x0 nv",
    "s_barrier_signal -3",
    "s_barrier_wait -3",
    "s_barrier_wait 0xffff",
    ("s_wait_alu depctr_va_vdst(0) depctr_va_sdst(1) depctr_va_ssrc(0) depctr_hold_cnt(0) "
    "depctr_vm_vsrc(3)"),
    "s_wait_alu 0x1234",
    "s_setreg_imm32_b32 hwreg(HW_REG_WAVE_MODE, 25, 1), 1",
    "s_getreg_b32 s12, hwreg(HW_REG_IB_STS2, 6, 4)",
    "ds_load_b128 v[4:7], v1 offset:65520",
    "ds_load_b32 v4, v1",
    "ds_load_tr6_b96 v[4:6], v1 offset:65535",
    "global_load_b64 v[4:5], v[2:3], off offset:-8",
    "global_load_b32 v4, v1, s[2:3] offset:8388607 scale_offset",
    "global_store_b32 v[2:3], v5, off",
    "global_prefetch_b8 v0, s[64:65] scope:SCOPE_SE",
    "scratch_store_b32 off, v3, off offset:8",
    "scratch_load_b32 v3, off, off offset:12 th:TH_LOAD_LU",
    "scratch_load_b32 v3, off, s5 offset:12",
    "tensor_load_to_lds s[0:3], s[8:15]",
    "tensor_store_from_lds s[0:3], s[8:15], s[16:19], s[20:23]",
    "v_nop",
    "s_endpgm",
]  # fmt: skip


def test_operand_forms_decode_to_what_their_text_says():
    for line, code in zip(VARIANTS, encode(VARIANTS), strict=True):
        agree(line, code)


def matrix_lines():
    words = {"FP8": 16, "BF8": 16, "FP6": 12, "BF6": 12, "FP4": 8}
    for a, b in itertools.product(words, words):
        for scale16 in (False, True):
            name = f"v_wmma_scale{'16' if scale16 else ''}_f32_16x16x128_f8f6f4"
            scales = "v[200:201], v[202:203]" if scale16 else "v200, v203"
            yield (
                f"{name} v[0:7], {registers('v', 8, words[a])}, {registers('v', 40, words[b])}, "
                f"v[80:87], {scales} "
                f"matrix_a_fmt:MATRIX_FMT_{a} matrix_b_fmt:MATRIX_FMT_{b}"
            )
    base = "v_wmma_scale_f32_16x16x128_f8f6f4 v[0:7], v[8:15], v[16:23], 0, v24, v25"
    fp4 = f"{base} matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4"
    yield fp4.replace("v24, v25", "s24, 0")
    for side in "ab":
        yield f"{fp4} matrix_{side}_scale:MATRIX_SCALE_ROW1"
        yield f"{fp4} matrix_{side}_reuse"
        for scale in ("E5M3", "E4M3"):
            yield f"{fp4} matrix_{side}_scale_fmt:MATRIX_SCALE_FMT_{scale}"
    yield f"{fp4} neg_lo:[0,0,1] neg_hi:[0,0,1]"
    tall = "v_wmma_scale_f32_32x16x128_f4 v[0:15], v[16:31], v[32:39], v[0:15], v40, v41"
    yield tall
    yield f"{tall} matrix_b_scale:MATRIX_SCALE_ROW1"


def test_matrix_forms_decode_to_what_their_text_says():
    lines = list(matrix_lines())
    for line, code in zip(lines, encode(lines), strict=True):
        agree(line, code)


def filled(code: bytes, filler: int) -> bytes:
    word = int.from_bytes(code[4:8], "little") & ~(0x1FF << 18) | filler << 18
    return code[:4] + word.to_bytes(4, "little") + code[8:]


def test_matrix_scale_half_may_hold_any_filler():
    line = next(matrix_lines())
    (code,) = encode([line])
    assert isinstance(code, bytes)
    assert decode(filled(code, 0x80), 0) == decode(filled(code, 0x100), 0) == parse([line])


def dual_lines():
    operands = {
        "v_mov_b32": "{d}, {a}",
        "v_bitop2_b32": "{d}, {a}, {b} bitop3:0x54",
        "v_fma_f32": "{d}, {a}, {b}, {c}",
        "v_fmaak_f32": "{d}, {a}, {b}, 0x1234",
        "v_fmamk_f32": "{d}, {a}, 0x1234, {b}",
    }
    first = {"d": "v0", "a": "v4", "b": "v8", "c": "v12"}
    second = {"d": "v3", "a": "v5", "b": "v9", "c": "v13"}
    for x, y in itertools.product(DUAL.values(), DUAL.values()):
        halves = [
            f"{name.replace('v_', 'v_dual_', 1)} "
            f"{operands.get(name, '{d}, {a}, {b}').format(**registers)}"
            for name, registers in ((x, first), (y, second))
        ]
        yield " :: ".join(halves)
    yield "v_dual_mov_b32 v217, s1 :: v_dual_lshlrev_b32 v2, 2, v1"
    yield "v_dual_mov_b32 v0, 0x1234 :: v_dual_mov_b32 v3, 0x1234"
    yield "v_dual_cndmask_b32 v0, v4, v8, s3 :: v_dual_mov_b32 v3, v5"
    yield "v_dual_add_f32 v0, -v4, -v8 :: v_dual_fma_f32 v3, -v5, v9, -v13"


def test_dual_pairs_decode_to_what_their_text_says():
    lines = list(dual_lines())
    decoded = 0
    for line, code in zip(lines, encode(lines), strict=True):
        if isinstance(code, bytes):
            assert decode(code, 0) == parse([line]), line
            decoded += 1
    assert decoded > 0.7 * len(lines)  # LLVM refuses some first halves, as the hardware does


HIGH = """
	s_set_vgpr_msb 0x44
	v_or_b32_e32 v224 /*v480*/, s0, v3 /*v259*/
	s_set_vgpr_msb 0x4441
	v_dual_mov_b32 v0 /*v256*/, v183 /*v439*/ :: v_dual_mov_b32 v71 /*v327*/, v182 /*v438*/
	s_set_vgpr_msb 0x4140
	ds_load_b128 v[2:5] /*v[258:261]*/, v4
	s_set_vgpr_msb 0x4005
	{tall}
	s_set_vgpr_msb 0x5c4
	v_mov_b32_e32 v255 /*v1023*/, v1
"""
TALL = (
    "v_wmma_scale_f32_32x16x128_f4 v[242:257], v[2:17] /*v[258:273]*/, v[38:45] /*v[294:301]*/, "
    "v[34:49], v12, v2"
)


def test_high_registers_take_their_upper_bits_from_the_mode(tmp_path):
    text = assembly(HIGH.format(tall=TALL))
    kernel = Machine().load(assemble(text, tmp_path), text=text)
    indices = [[o.index for o in i.operands if o.kind == 1] for i in kernel.instructions]
    assert indices[1] == [480, 259]
    assert indices[7] == [242, 258, 294, 34, 12, 2]
    assert indices[9] == [1023, 1]


def test_text_whose_comment_contradicts_the_mode_is_refused():
    with pytest.raises(
        DecodeError, match=re.escape("v3 is v3 here by s_set_vgpr_msb, the text says v259")
    ):
        Machine().load(assembly("v_mov_b32 v1, v3 /*v259*/"))


LOOP = """
	s_mov_b32 s2, 0
.LBB0_1:
	s_add_co_i32 s2, s2, 1
	s_cmp_lt_i32 s2, 10
	s_cbranch_scc0 .LBB0_2
	s_branch .LBB0_1
.LBB0_2:
	s_nop 0
"""


def test_branches_lead_to_the_same_instruction_in_both_paths(tmp_path):
    text = assembly(LOOP)
    kernel = Machine().load(assemble(text, tmp_path), text=text)
    assert [i.target for i in kernel.instructions] == [None, None, None, 5, 1, None, None]


def test_code_object_and_text_of_different_kernels_are_refused_together(tmp_path):
    code = assemble(assembly("s_mov_b32 s2, 0"), tmp_path)
    with pytest.raises(LoadError, match="instruction 0 is"):
        Machine().load(code, text=assembly("s_mov_b32 s2, 1"))
    with pytest.raises(LoadError, match="has 2 instructions, the text 3"):
        Machine().load(code, text=assembly(["s_mov_b32 s2, 0", "s_nop 0"]))


def test_metadata_is_the_same_from_both_containers(tmp_path):
    text = assembly(
        "s_nop 0",
        arguments=[8, 4, 8, 16],
        block=256,
        registers=200,
        scratch_bytes=24,
        static_lds=512,
    )
    from_text, from_binary = Machine().load(text), Machine().load(assemble(text, tmp_path))
    assert from_binary.info == from_text.info
    assert from_binary.info.name == NAME
    assert [(a.offset, a.size) for a in from_binary.info.arguments] == [
        (0, 8),
        (8, 4),
        (16, 8),
        (32, 16),
    ]
