"""The instructions of gfx1250 that are emulated, as data: opcode, mnemonic, operands.

One line per instruction under its encoding. Operands are named as in the encodings and listed in
assembly order, `:n` gives
32-bit words where it is not one, `+` marks a destination that is also read, `~` one of which only
half is written. A line without operands takes its encoding's usual ones. The executor's function
has the mnemonic as its name.

Source: AMD CDNA5 ISA reference guide, July 2026, instruction listings; every line is checked
against LLVM's assembler.
"""

from __future__ import annotations

from collections.abc import Iterator

from mxgemm.emulator.instruction import Field, Row

# VOP1 and VOP2 instructions also exist in the VOP3 encoding, comparisons too.
_VOP3_OFFSET = {"VOP1": 0x180, "VOP2": 0x100, "VOPC": 0x000}

_USUAL = {
    "SOP1": "sdst src0",
    "SOP2": "sdst src0 src1",
    "SOPC": "src0 src1",
    "SOPK": "sdst simm",
    "SOPP": "imm",
    "SMEM": "sdst base:2 soffset",
    "VOP1": "dst src0",
    "VOP2": "dst src0 src1",
    "VOP3": "dst src0 src1 src2",
    "VOP3P": "dst:2 src0:2 src1:2",
    "VOPC": "sdst src0 src1",
}

_LISTING = {
    "SOP2": """
        0x00 s_add_co_u32
        0x01 s_sub_co_u32
        0x02 s_add_co_i32
        0x03 s_sub_co_i32
        0x04 s_add_co_ci_u32
        0x05 s_sub_co_ci_u32
        0x08 s_lshl_b32
        0x09 s_lshl_b64             sdst:2 src0:2 src1
        0x0a s_lshr_b32
        0x0b s_lshr_b64             sdst:2 src0:2 src1
        0x0c s_ashr_i32
        0x0d s_ashr_i64             sdst:2 src0:2 src1
        0x0e s_lshl1_add_u32
        0x0f s_lshl2_add_u32
        0x10 s_lshl3_add_u32
        0x11 s_lshl4_add_u32
        0x12 s_min_i32
        0x13 s_min_u32
        0x14 s_max_i32
        0x15 s_max_u32
        0x16 s_and_b32
        0x17 s_and_b64              sdst:2 src0:2 src1:2
        0x18 s_or_b32
        0x19 s_or_b64               sdst:2 src0:2 src1:2
        0x1a s_xor_b32
        0x1b s_xor_b64              sdst:2 src0:2 src1:2
        0x20 s_xnor_b32
        0x22 s_and_not1_b32
        0x23 s_and_not1_b64         sdst:2 src0:2 src1:2
        0x24 s_or_not1_b32
        0x26 s_bfe_u32
        0x27 s_bfe_i32
        0x28 s_bfe_u64              sdst:2 src0:2 src1
        0x29 s_bfe_i64              sdst:2 src0:2 src1
        0x2a s_bfm_b32
        0x2c s_mul_i32
        0x2d s_mul_hi_u32
        0x2e s_mul_hi_i32
        0x30 s_cselect_b32
        0x31 s_cselect_b64          sdst:2 src0:2 src1:2
        0x32 s_pack_ll_b32_b16
        0x33 s_pack_lh_b32_b16
        0x34 s_pack_hh_b32_b16
        0x53 s_add_nc_u64           sdst:2 src0:2 src1:2
        0x54 s_sub_nc_u64           sdst:2 src0:2 src1:2
        0x55 s_mul_u64              sdst:2 src0:2 src1:2
    """,
    "SOP1": """
        0x00 s_mov_b32
        0x01 s_mov_b64              sdst:2 src0:2
        0x04 s_brev_b32
        0x08 s_ctz_i32_b32
        0x0a s_clz_i32_u32
        0x0e s_sext_i32_i8
        0x0f s_sext_i32_i16
        0x10 s_bitset0_b32          sdst+ src0
        0x12 s_bitset1_b32          sdst+ src0
        0x15 s_abs_i32
        0x18 s_bcnt1_i32_b32
        0x1e s_not_b32
        0x1f s_not_b64              sdst:2 src0:2
        0x20 s_and_saveexec_b32
        0x22 s_or_saveexec_b32
        0x30 s_and_not1_saveexec_b32
        0x4e s_barrier_signal       src0
    """,
    "SOPC": """
        0x00 s_cmp_eq_i32
        0x01 s_cmp_lg_i32
        0x02 s_cmp_gt_i32
        0x03 s_cmp_ge_i32
        0x04 s_cmp_lt_i32
        0x05 s_cmp_le_i32
        0x06 s_cmp_eq_u32
        0x07 s_cmp_lg_u32
        0x08 s_cmp_gt_u32
        0x09 s_cmp_ge_u32
        0x0a s_cmp_lt_u32
        0x0b s_cmp_le_u32
        0x0c s_bitcmp0_b32
        0x0d s_bitcmp1_b32
        0x10 s_cmp_eq_u64           src0:2 src1:2
        0x11 s_cmp_lg_u64           src0:2 src1:2
    """,
    "SOPK": """
        0x00 s_movk_i32
        0x0f s_addk_co_i32          sdst+ simm
        0x10 s_mulk_i32             sdst+ simm
        0x11 s_getreg_b32           sdst hwreg
        0x12 s_setreg_b32           hwreg src0
        0x13 s_setreg_imm32_b32     hwreg literal
    """,
    "SOPP": """
        0x00 s_nop
        0x03 s_sleep
        0x05 s_clause
        0x06 s_set_vgpr_msb
        0x07 s_delay_alu            ignored
        0x08 s_wait_alu             depctr
        0x14 s_barrier_wait         barrier
        0x20 s_branch               label
        0x21 s_cbranch_scc0         label
        0x22 s_cbranch_scc1         label
        0x23 s_cbranch_vccz         label
        0x24 s_cbranch_vccnz        label
        0x25 s_cbranch_execz        label
        0x26 s_cbranch_execnz       label
        0x30 s_endpgm               ignored
        0x35 s_setprio
        0x40 s_wait_loadcnt
        0x41 s_wait_storecnt
        0x45 s_wait_xcnt
        0x46 s_wait_dscnt
        0x47 s_wait_kmcnt
        0x48 s_wait_loadcnt_dscnt
        0x49 s_wait_storecnt_dscnt
        0x4a s_wait_asynccnt
        0x4b s_wait_tensorcnt
    """,
    "SMEM": """
        0x00 s_load_b32
        0x01 s_load_b64             sdst:2 base:2 soffset
        0x02 s_load_b128            sdst:4 base:2 soffset
        0x03 s_load_b256            sdst:8 base:2 soffset
        0x04 s_load_b512            sdst:16 base:2 soffset
        0x05 s_load_b96             sdst:3 base:2 soffset
        0x08 s_load_i8
        0x09 s_load_u8
        0x0a s_load_i16
        0x0b s_load_u16
    """,
    "VOP1": """
        0x00 v_nop                  ignored
        0x01 v_mov_b32
        0x02 v_readfirstlane_b32    sdst src0
        0x05 v_cvt_f32_i32
        0x06 v_cvt_f32_u32
        0x07 v_cvt_u32_f32
        0x08 v_cvt_i32_f32
        0x0a v_cvt_f16_f32          dst~ src0
        0x0b v_cvt_f32_f16
        0x11 v_cvt_f32_ubyte0
        0x1c v_mov_b16              dst~ src0
        0x1d v_mov_b64              dst:2 src0:2
        0x1e v_tanh_f32
        0x20 v_fract_f32
        0x21 v_trunc_f32
        0x22 v_ceil_f32
        0x23 v_rndne_f32
        0x24 v_floor_f32
        0x25 v_exp_f32
        0x27 v_log_f32
        0x2a v_rcp_f32
        0x2b v_rcp_iflag_f32
        0x2e v_rsq_f32
        0x33 v_sqrt_f32
        0x37 v_not_b32
        0x72 v_cvt_f32_bf16
    """,
    "VOP2": """
        0x01 v_cndmask_b32          dst src0 src1 mask
        0x03 v_add_f32
        0x04 v_sub_f32
        0x05 v_subrev_f32
        0x08 v_mul_f32
        0x09 v_mul_i32_i24
        0x0b v_mul_u32_u24
        0x11 v_min_i32
        0x12 v_max_i32
        0x13 v_min_u32
        0x14 v_max_u32
        0x15 v_min_num_f32
        0x16 v_max_num_f32
        0x18 v_lshlrev_b32
        0x19 v_lshrrev_b32
        0x1a v_ashrrev_i32
        0x1b v_and_b32
        0x1c v_or_b32
        0x1d v_xor_b32
        0x1e v_xnor_b32
        0x1f v_lshlrev_b64          dst:2 src0 src1:2
        0x20 v_add_co_ci_u32        dst sdst src0 src1 mask
        0x21 v_sub_co_ci_u32        dst sdst src0 src1 mask
        0x22 v_subrev_co_ci_u32     dst sdst src0 src1 mask
        0x25 v_add_nc_u32
        0x26 v_sub_nc_u32
        0x27 v_subrev_nc_u32
        0x28 v_add_nc_u64           dst:2 src0:2 src1:2
        0x29 v_sub_nc_u64           dst:2 src0:2 src1:2
        0x2a v_mul_u64              dst:2 src0:2 src1:2
        0x2b v_fmac_f32             dst+ src0 src1
        0x2c v_fmamk_f32            dst src0 src2 src1
        0x2d v_fmaak_f32            dst src0 src1 src2
    """,
    "VOP3": """
        0x20a v_mad_i32_i24
        0x20b v_mad_u32_u24
        0x210 v_bfe_u32
        0x211 v_bfe_i32
        0x212 v_bfi_b32
        0x213 v_fma_f32
        0x216 v_alignbit_b32
        0x217 v_alignbyte_b32
        0x220 v_med3_i32
        0x234 v_bitop3_b32
        0x235 v_mad_u32
        0x240 v_xor3_b32
        0x244 v_perm_b32
        0x245 v_xad_u32
        0x246 v_lshl_add_u32
        0x247 v_add_lshl_u32
        0x252 v_lshl_add_u64        dst:2 src0:2 src1 src2:2
        0x255 v_add3_u32
        0x256 v_lshl_or_b32
        0x257 v_and_or_b32
        0x258 v_or3_b32
        0x2fa v_mad_nc_u64_u32      dst:2 src0 src1 src2:2
        0x2fb v_mad_nc_i64_i32      dst:2 src0 src1 src2:2
        0x300 v_add_co_u32          dst sdst src0 src1
        0x301 v_sub_co_u32          dst sdst src0 src1
        0x302 v_subrev_co_u32       dst sdst src0 src1
        0x31c v_ldexp_f32           dst src0 src1
        0x31f v_mbcnt_lo_u32_b32    dst src0 src1
        0x320 v_mbcnt_hi_u32_b32    dst src0 src1
        0x32c v_mul_lo_u32          dst src0 src1
        0x32d v_mul_hi_u32          dst src0 src1
        0x32e v_mul_hi_i32          dst src0 src1
        0x33d v_lshrrev_b64         dst:2 src0 src1:2
        0x33e v_ashrrev_i64         dst:2 src0 src1:2
        0x360 v_readlane_b32        sdst src0 src1
        0x361 v_writelane_b32       dst src0 src1
        0x365 v_minimum_f32         dst src0 src1
        0x366 v_maximum_f32         dst src0 src1
        0x36d v_cvt_pk_bf16_f32     dst src0 src1
        0x36f v_cvt_pk_f16_f32      dst src0 src1
    """,
    "VOP3P": """
        0x1f v_pk_fma_f32           dst:2 src0:2 src1:2 src2:2
        0x28 v_pk_mul_f32
        0x29 v_pk_add_f32
    """,
    # The low seven bits of the scale half's opcode, then the matrix half's: 0x35 is block 32, 0x3a
    # block 16.
    "VOP3PX2": """
        0x3533 v_wmma_scale_f32_16x16x128_f8f6f4   dst:8 src0 src1 src2:8 scale0 scale1
        0x3a33 v_wmma_scale16_f32_16x16x128_f8f6f4 dst:8 src0 src1 src2:8 scale0:2 scale1:2
        0x3588 v_wmma_scale_f32_32x16x128_f4       dst:16 src0:16 src1:8 src2:16 scale0 scale1
        0x3a88 v_wmma_scale16_f32_32x16x128_f4     dst:16 src0:16 src1:8 src2:16 scale0:2 scale1:2
    """,
    "VDS": """
        0x0d ds_store_b32                   addr data0
        0x0e ds_store_2addr_b32             addr data0 data1
        0x0f ds_store_2addr_stride64_b32    addr data0 data1
        0x1e ds_store_b8                    addr data0
        0x1f ds_store_b16                   addr data0
        0x36 ds_load_b32                    dst addr
        0x37 ds_load_2addr_b32              dst:2 addr
        0x38 ds_load_2addr_stride64_b32     dst:2 addr
        0x39 ds_load_i8                     dst addr
        0x3a ds_load_u8                     dst addr
        0x3b ds_load_i16                    dst addr
        0x3c ds_load_u16                    dst addr
        0x4d ds_store_b64                   addr data0:2
        0x4e ds_store_2addr_b64             addr data0:2 data1:2
        0x4f ds_store_2addr_stride64_b64    addr data0:2 data1:2
        0x76 ds_load_b64                    dst:2 addr
        0x77 ds_load_2addr_b64              dst:4 addr
        0x78 ds_load_2addr_stride64_b64     dst:4 addr
        0xde ds_store_b96                   addr data0:3
        0xdf ds_store_b128                  addr data0:4
        0xfa ds_load_tr4_b64                dst:2 addr
        0xfb ds_load_tr6_b96                dst:3 addr
        0xfc ds_load_tr16_b128              dst:4 addr
        0xfd ds_load_tr8_b64                dst:2 addr
        0xfe ds_load_b96                    dst:3 addr
        0xff ds_load_b128                   dst:4 addr
    """,
    "VGLOBAL": """
        0x10 global_load_u8                 dst vaddr saddr
        0x11 global_load_i8                 dst vaddr saddr
        0x12 global_load_u16                dst vaddr saddr
        0x13 global_load_i16                dst vaddr saddr
        0x14 global_load_b32                dst vaddr saddr
        0x15 global_load_b64                dst:2 vaddr saddr
        0x16 global_load_b96                dst:3 vaddr saddr
        0x17 global_load_b128               dst:4 vaddr saddr
        0x18 global_store_b8                vaddr data0 saddr
        0x19 global_store_b16               vaddr data0 saddr
        0x1a global_store_b32               vaddr data0 saddr
        0x1b global_store_b64               vaddr data0:2 saddr
        0x1c global_store_b96               vaddr data0:3 saddr
        0x1d global_store_b128              vaddr data0:4 saddr
        0x5d global_prefetch_b8             vaddr saddr
    """,
    "VSCRATCH": """
        0x14 scratch_load_b32               dst vaddr saddr
        0x15 scratch_load_b64               dst:2 vaddr saddr
        0x16 scratch_load_b96               dst:3 vaddr saddr
        0x17 scratch_load_b128              dst:4 vaddr saddr
        0x1a scratch_store_b32              vaddr data0 saddr
        0x1b scratch_store_b64              vaddr data0:2 saddr
        0x1c scratch_store_b96              vaddr data0:3 saddr
        0x1d scratch_store_b128             vaddr data0:4 saddr
    """,
    "VTENSOR": """
        0xc4 tensor_load_to_lds             group0:4 group1:8 group2:4 group3:4
        0xc5 tensor_store_from_lds          group0:4 group1:8 group2:4 group3:4
    """,
}

# Comparisons: relation number within a type's block, and each type's first opcode. The form that
# writes EXEC is 0x80 above.
_INTEGER_RELATIONS = {"lt": 1, "eq": 2, "le": 3, "gt": 4, "ne": 5, "ge": 6}
_FLOAT_RELATIONS = {
    "lt": 1, "eq": 2, "le": 3, "gt": 4, "lg": 5, "ge": 6, "o": 7, "u": 8,
    "nge": 9, "nlg": 10, "ngt": 11, "nle": 12, "neq": 13, "nlt": 14,
}  # fmt: skip
_COMPARED_TYPES = {
    "f32": (0x10, _FLOAT_RELATIONS),
    "i32": (0x40, _INTEGER_RELATIONS),
    "u32": (0x48, _INTEGER_RELATIONS),
}
_EXEC_FORM = 0x80

# Instructions whose 16-bit operands are register halves; only the lower ones are emulated.
HALF_OPERANDS = frozenset({"v_mov_b16", "v_cvt_f16_f32", "v_cvt_f32_f16"})

# Halves of a dual-issue pair: number -> instruction; the first half has four bits for it, with
# three dwords six.
DUAL = {
    0: "v_fmac_f32",
    1: "v_fmaak_f32",
    2: "v_fmamk_f32",
    3: "v_mul_f32",
    4: "v_add_f32",
    5: "v_sub_f32",
    6: "v_subrev_f32",
    8: "v_mov_b32",
    9: "v_cndmask_b32",
    10: "v_max_num_f32",
    11: "v_min_num_f32",
    16: "v_add_nc_u32",
    17: "v_lshlrev_b32",
    18: "v_bitop2_b32",
    19: "v_fma_f32",
    20: "v_sub_nc_u32",
    21: "v_lshrrev_b32",
    22: "v_ashrrev_i32",
    23: "v_max_i32",
    24: "v_min_i32",
}
# Their src2 is always the literal after the instruction.
LITERAL_SOURCE = frozenset({"v_fmamk_f32", "v_fmaak_f32"})

_DUAL_ONLY = {"v_bitop2_b32": "dst src0 src1"}


def _fields(text: str) -> tuple[Field, ...]:
    return tuple(Field.parse(word) for word in text.split())


def _forms(encoding: str, opcode: int, name: str) -> tuple[tuple[str, int], ...]:
    only = {"v_nop", "v_readfirstlane_b32"} | LITERAL_SOURCE
    if encoding not in _VOP3_OFFSET or name in only:
        return ((encoding, opcode),)
    return ((encoding, opcode), ("VOP3", opcode + _VOP3_OFFSET[encoding]))


def _listed() -> Iterator[Row]:
    for encoding, text in _LISTING.items():
        for line in text.strip().splitlines():
            opcode, name, *operands = line.split()
            fields = _fields(" ".join(operands) or _USUAL[encoding])
            forms = _forms(encoding, int(opcode, 16), name)
            yield Row(name, fields, forms, packed=encoding == "VOP3P")


def _comparisons() -> Iterator[Row]:
    for kind, (first, relations) in _COMPARED_TYPES.items():
        for relation, number in relations.items():
            for prefix, offset, operands in (
                ("v_cmp", 0, "sdst src0 src1"),
                ("v_cmpx", _EXEC_FORM, "src0 src1"),
            ):
                name = f"{prefix}_{relation}_{kind}"
                yield Row(name, _fields(operands), _forms("VOPC", first + number + offset, name))


def _dual_only() -> Iterator[Row]:
    for name, operands in _DUAL_ONLY.items():
        yield Row(name, _fields(operands), ())


ROWS: dict[str, Row] = {
    row.name: row for source in (_listed(), _comparisons(), _dual_only()) for row in source
}

BY_OPCODE: dict[tuple[str, int], Row] = {form: row for row in ROWS.values() for form in row.forms}
