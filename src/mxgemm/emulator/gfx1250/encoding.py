"""The binary path: machine code to instructions.

Every encoding is a function from its dwords to named raw fields and modifiers; a row of the table
says which of those fields an instruction has. Source: AMD CDNA5 ISA reference guide, microcode
formats; checked against LLVM's assembler.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mxgemm.emulator.faults import DecodeError
from mxgemm.emulator.gfx1250.registers import (
    INLINE_FLOATS,
    NULL,
    VCC,
    constant,
    float_bits,
    matrix_words,
    scalar,
    vector,
)
from mxgemm.emulator.gfx1250.table import BY_OPCODE, DUAL, HALF_OPERANDS, LITERAL_SOURCE, ROWS
from mxgemm.emulator.instruction import Field, Instruction, Kind, Operand, Role, Row

_LITERAL, _LITERAL64 = 255, 254
_FIRST_VECTOR = 256


def _bits(word: int, high: int, low: int) -> int:
    return word >> low & ((1 << (high - low + 1)) - 1)


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


@dataclass
class _Raw:
    """What an encoding yields: operand codes by field name (9-bit source space), modifiers, and its
    length in dwords.
    """

    key: tuple[str, int]
    dwords: int
    codes: dict[str, int] = field(default_factory=dict)
    modifiers: dict[str, int] = field(default_factory=dict)
    negate: int = 0
    absolute: int = 0


Dwords = tuple[int, ...]


def _sop2(w: Dwords) -> _Raw:
    return _Raw(
        ("SOP2", _bits(w[0], 29, 23)),
        1,
        {"sdst": _bits(w[0], 22, 16), "src1": _bits(w[0], 15, 8), "src0": w[0] & 255},
    )


def _sop1(w: Dwords) -> _Raw:
    return _Raw(("SOP1", _bits(w[0], 15, 8)), 1, {"sdst": _bits(w[0], 22, 16), "src0": w[0] & 255})


def _sopc(w: Dwords) -> _Raw:
    return _Raw(("SOPC", _bits(w[0], 22, 16)), 1, {"src1": _bits(w[0], 15, 8), "src0": w[0] & 255})


def _sopk(w: Dwords) -> _Raw:
    register, immediate = _bits(w[0], 22, 16), w[0] & 0xFFFF
    codes = {"sdst": register, "src0": register, "simm": _signed(immediate, 16), "hwreg": immediate}
    raw = _Raw(("SOPK", _bits(w[0], 27, 23)), 1, codes)
    if raw.key in BY_OPCODE and BY_OPCODE[raw.key].name == "s_setreg_imm32_b32":
        raw.codes["literal"] = w[1]
        raw.dwords = 2
    return raw


def _sopp(w: Dwords) -> _Raw:
    immediate = w[0] & 0xFFFF
    codes = {
        "imm": immediate,
        "depctr": immediate,
        "barrier": immediate,
        "label": _signed(immediate, 16),
        "ignored": 0,
    }
    return _Raw(("SOPP", _bits(w[0], 22, 16)), 1, codes)


def _smem(w: Dwords) -> _Raw:
    codes = {
        "sdst": _bits(w[0], 12, 6),
        "base": _bits(w[0], 5, 0) * 2,
        "soffset": _bits(w[1], 31, 25),
    }
    return _Raw(
        ("SMEM", _bits(w[0], 18, 13)), 2, codes, {"offset0": _signed(_bits(w[1], 23, 0), 24)}
    )


def _vop1(w: Dwords) -> _Raw:
    destination = _bits(w[0], 24, 17)
    codes = {
        "dst": _FIRST_VECTOR + destination,
        "sdst": destination,
        "src0": w[0] & 511,
        "ignored": 0,
    }
    return _Raw(("VOP1", _bits(w[0], 16, 9)), 1, codes)


def _vop2(w: Dwords) -> _Raw:
    codes = {
        "dst": _FIRST_VECTOR + _bits(w[0], 24, 17),
        "src1": _FIRST_VECTOR + _bits(w[0], 16, 9),
        "src0": w[0] & 511,
        "src2": _LITERAL,
        "sdst": VCC,
        "mask": VCC,
    }
    return _Raw(("VOP2", _bits(w[0], 30, 25)), 1, codes)


def _vopc(w: Dwords) -> _Raw:
    codes = {"sdst": VCC, "src1": _FIRST_VECTOR + _bits(w[0], 16, 9), "src0": w[0] & 511}
    return _Raw(("VOPC", _bits(w[0], 24, 17)), 1, codes)


_CARRY_OUT = {
    "v_add_co_u32",
    "v_sub_co_u32",
    "v_subrev_co_u32",
    "v_add_co_ci_u32",
    "v_sub_co_ci_u32",
    "v_subrev_co_ci_u32",
}


def _vop3(w: Dwords) -> _Raw:
    destination = w[0] & 255
    third = _bits(w[1], 26, 18)
    codes = {
        "dst": _FIRST_VECTOR + destination,
        "sdst": destination,
        "src0": w[1] & 511,
        "src1": _bits(w[1], 17, 9),
        "src2": third,
        "mask": third,
    }
    raw = _Raw(("VOP3", _bits(w[0], 25, 16)), 2, codes, negate=_bits(w[1], 31, 29))
    row = BY_OPCODE.get(raw.key)
    if row and row.name in _CARRY_OUT:
        raw.codes["sdst"] = _bits(w[0], 14, 8)
        return raw
    if row and row.name == "v_bitop3_b32":  # the truth table is spread over the modifier fields
        raw.modifiers["bitop3"] = raw.negate | _bits(w[0], 10, 8) << 3 | _bits(w[1], 28, 27) << 6
        raw.negate = 0
        return raw
    raw.absolute = _bits(w[0], 10, 8)
    raw.modifiers |= {
        "op_sel": _bits(w[0], 14, 11),
        "clamp": _bits(w[0], 15, 15),
        "omod": _bits(w[1], 28, 27),
    }
    return raw


def _vop3p(w: Dwords) -> _Raw:
    codes = {
        "dst": _FIRST_VECTOR + (w[0] & 255),
        "src0": w[1] & 511,
        "src1": _bits(w[1], 17, 9),
        "src2": _bits(w[1], 26, 18),
    }
    modifiers = {
        "op_sel": _bits(w[0], 13, 11),
        "op_sel_hi": _bits(w[1], 28, 27) | _bits(w[0], 14, 14) << 2,
        "neg_lo": _bits(w[1], 31, 29),
        "neg_hi": _bits(w[0], 10, 8),
        "clamp": _bits(w[0], 15, 15),
    }
    return _Raw(("VOP3P", _bits(w[0], 22, 16)), 2, codes, modifiers)


def _vop3px2(w: Dwords) -> _Raw:
    matrix = _vop3p(w[2:])
    key = ("VOP3PX2", _bits(w[0], 22, 16) << 8 | _bits(w[2], 23, 16))
    codes = matrix.codes | {"scale0": w[1] & 511, "scale1": _bits(w[1], 17, 9)}
    modifiers = {
        "matrix_a_fmt": matrix.modifiers["op_sel"],
        "matrix_b_fmt": matrix.modifiers["op_sel_hi"],
        "neg_lo": matrix.modifiers["neg_lo"],
        "neg_hi": matrix.modifiers["neg_hi"],
        "clamp": matrix.modifiers["clamp"],
        "matrix_a_scale": _bits(w[0], 11, 11),
        "matrix_b_scale": _bits(w[1], 27, 27),
        "matrix_a_scale_fmt": _bits(w[1], 30, 29),
        "matrix_b_scale_fmt": _bits(w[0], 9, 8),
    }
    if not BY_OPCODE.get(key, ROWS["v_nop"]).name.endswith(
        "_f8f6f4"
    ):  # FP4 only: the fields are filler
        del modifiers["matrix_a_fmt"], modifiers["matrix_b_fmt"]
    return _Raw(key, 4, codes, modifiers)


def _vds(w: Dwords) -> _Raw:
    raw = _Raw(("VDS", _bits(w[0], 25, 18)), 2)
    raw.codes = {
        "addr": _FIRST_VECTOR + (w[1] & 255),
        "data0": _FIRST_VECTOR + _bits(w[1], 15, 8),
        "data1": _FIRST_VECTOR + _bits(w[1], 23, 16),
        "dst": _FIRST_VECTOR + _bits(w[1], 31, 24),
    }
    two = raw.key in BY_OPCODE and "2addr" in BY_OPCODE[raw.key].name
    raw.modifiers = (
        {"offset0": w[0] & 255, "offset1": _bits(w[0], 15, 8)}
        if two
        else {"offset0": w[0] & 0xFFFF}
    )
    return raw


def _vector_memory(encoding: str, w: Dwords) -> _Raw:
    codes = {
        "saddr": w[0] & 127,
        "dst": _FIRST_VECTOR + (w[1] & 255),
        "data0": _FIRST_VECTOR + _bits(w[1], 30, 23),
        "vaddr": _FIRST_VECTOR + (w[2] & 255),
    }
    if encoding == "VSCRATCH" and not _bits(w[1], 17, 17):
        codes["vaddr"] = NULL
    modifiers = {"offset0": _signed(_bits(w[2], 31, 8), 24), "scale_offset": _bits(w[1], 16, 16)}
    return _Raw((encoding, _bits(w[0], 21, 14)), 3, codes, modifiers)


def _vglobal(w: Dwords) -> _Raw:
    return _vector_memory("VGLOBAL", w)


def _vscratch(w: Dwords) -> _Raw:
    return _vector_memory("VSCRATCH", w)


def _vtensor(w: Dwords) -> _Raw:
    codes = {f"group{n}": _bits(w[2], 8 * n + 7, 8 * n) for n in range(4)}
    return _Raw(("VTENSOR", _bits(w[0], 21, 14)), 3, codes)


# (mask, value of the first dword under it, decoder): the first match is taken.
_ENCODINGS: tuple[tuple[int, int, Callable[[Dwords], _Raw]], ...] = (
    (0xFF800000, 0xBE800000, _sop1),
    (0xFF800000, 0xBF000000, _sopc),
    (0xFF800000, 0xBF800000, _sopp),
    (0xF0000000, 0xB0000000, _sopk),
    (0xC0000000, 0x80000000, _sop2),
    (0xFC000000, 0xF4000000, _smem),
    (0xFE000000, 0x7E000000, _vop1),
    (0xFE000000, 0x7C000000, _vopc),
    (0x80000000, 0x00000000, _vop2),
    (0xFC000000, 0xD4000000, _vop3),
    (0xFF7F0000, 0xCC350000, _vop3px2),
    (0xFF7F0000, 0xCC3A0000, _vop3px2),
    (0xFF000000, 0xCC000000, _vop3p),
    (0xFC000000, 0xD8000000, _vds),
    (0xFF000000, 0xEE000000, _vglobal),
    (0xFF000000, 0xED000000, _vscratch),
    (0xFC000000, 0xD0000000, _vtensor),
)


def _upper_half(raw: _Raw) -> bool:
    """Return whether an instruction on half registers names an upper one: not emulated."""
    if raw.key[0] == "VOP1":
        return any(code >= _FIRST_VECTOR + 128 for code in raw.codes.values())
    return bool(raw.modifiers.get("op_sel"))


class _Decoder:
    """Reads one function; tracks the upper register number bits in program order."""

    def __init__(self, code: bytes, base_address: int) -> None:
        self.words = struct.unpack(f"<{len(code) // 4}I", code[: len(code) // 4 * 4])
        self.base = base_address
        self.at = 0
        self.msb = 0
        self.literal_dwords = 0

    def run(self) -> tuple[Instruction, ...]:
        found: list[Instruction] = []
        starts: dict[int, int] = {}
        while self.at < len(self.words):
            starts[self.at] = len(found)
            found.append(self.one())
        return tuple(self.resolve(i, starts) for i in found)

    def one(self) -> Instruction:
        start, first = self.at, self.words[self.at]
        self.literal_dwords = 0
        if first >> 26 == 0b110010 or first >> 24 == 0xCF:
            return self.dual(start, first)
        for mask, value, decoder in _ENCODINGS:
            if first & mask == value:
                raw = decoder(self.window(start))
                break
        else:
            raise self.unknown(start)
        row = BY_OPCODE.get(raw.key)
        if row is None or (row.name in HALF_OPERANDS and _upper_half(raw)):
            raise self.unknown(start)
        instruction = self.build(row, raw, start)
        self.at = start + raw.dwords + self.literal_dwords
        if row.name == "s_set_vgpr_msb":
            self.msb = raw.codes["imm"] & 0xFF
        return matrix_words(instruction)

    def window(self, start: int) -> Dwords:
        return (*self.words[start : start + 4], 0, 0, 0)

    def unknown(self, start: int) -> DecodeError:
        words = " ".join(f"{w:08x}" for w in self.words[start : start + 4])
        place = f"decode at 0x{self.base + 4 * start:x}"
        return DecodeError(f"{place}: the instruction {words} is not known to the emulator")

    def build(self, row: Row, raw: _Raw, start: int) -> Instruction:
        operands = []
        for f in row.fields:
            operand = self.operand(f, raw, start + raw.dwords)
            source = {"src0": 0, "src1": 1, "src2": 2}.get(f.name)
            if source is not None:
                operand = replace(
                    operand,
                    negate=bool(raw.negate >> source & 1),
                    absolute=bool(raw.absolute >> source & 1),
                )
            operands.append(operand)
        if len(operands) == 1 and row.fields[0].name == "ignored":
            operands = []
        target = None
        if row.fields and row.fields[0].name == "label":
            operands, target = [], start + 1 + raw.codes["label"]
        if row.packed:  # the bit of a source that is not there is set, too
            raw.modifiers["op_sel_hi"] &= (1 << (len(row.fields) - 1)) - 1
        modifiers = tuple(sorted((k, v) for k, v in raw.modifiers.items() if v))
        return Instruction(
            row.name,
            tuple(operands),
            modifiers,
            target,
            None,
            self.msb,
            address=self.base + 4 * start,
        )

    def operand(self, f: Field, raw: _Raw, literal_at: int) -> Operand:
        code = raw.codes[f.name]
        if f.name in {"imm", "simm", "hwreg", "depctr", "barrier", "literal", "ignored", "label"}:
            return constant(code, f)
        if f.name == "vaddr" and raw.key[0] == "VGLOBAL" and raw.codes["saddr"] == NULL:
            f = Field(f.name, 2, f.role)  # a 64-bit address without a scalar base
        if f.name == "saddr":
            f = Field(f.name, 1 if raw.key[0] == "VSCRATCH" else 2, f.role)
        if code == NULL and f.name in {"saddr", "vaddr", "soffset", "group2", "group3"}:
            return Operand(Kind.NONE, role=Role.IGNORED)
        if code >= _FIRST_VECTOR:
            return vector(code - _FIRST_VECTOR, f, self.msb)
        return self.source(code, f, literal_at)

    def source(self, code: int, f: Field, literal_at: int) -> Operand:
        if code < 128:
            return scalar(code, f)
        if code <= 192:
            return constant(code - 128, f)
        if code <= 208:
            return constant(192 - code, f)
        if code in INLINE_FLOATS:
            return constant(float_bits(INLINE_FLOATS[code]), f)
        if code == _LITERAL:
            self.literal_dwords = max(self.literal_dwords, 1)
            return constant(_signed(self.words[literal_at], 32), f)
        if code == _LITERAL64:
            self.literal_dwords = 2
            return constant(self.words[literal_at] | self.words[literal_at + 1] << 32, f)
        raise self.unknown(literal_at - 1)

    def dual(self, start: int, first: int) -> Instruction:
        w = self.window(start)
        if first >> 24 == 0xCF:
            raws, dwords = _dual_three(w), 3
        else:
            raws, dwords = _dual_two(w), 2
        halves = []
        for number, raw in raws:
            if number not in DUAL:
                raise self.unknown(start)
            raw.dwords = dwords
            name = DUAL[number]
            if name in LITERAL_SOURCE:
                raw.codes["src2"] = _LITERAL
            if name == "v_bitop2_b32":
                raw.modifiers["bitop3"] = raw.codes["src2"] & 255
            halves.append(self.build(ROWS[name], raw, start))
        self.at = start + dwords + self.literal_dwords
        return replace(halves[0], second=halves[1])

    def resolve(self, instruction: Instruction, starts: dict[int, int]) -> Instruction:
        if instruction.target is None:
            return instruction
        if instruction.target not in starts:
            raise DecodeError(
                f"decode at 0x{instruction.address:x}: the branch does not lead to an instruction"
            )
        return replace(instruction, target=starts[instruction.target])


def _dual_two(w: Dwords) -> list[tuple[int, _Raw]]:
    destination = _bits(w[1], 31, 24)
    x = {
        "dst": _FIRST_VECTOR + destination,
        "src0": w[0] & 511,
        "src1": _FIRST_VECTOR + _bits(w[0], 16, 9),
        "mask": VCC,
        "src2": 0,
    }
    y = {
        "dst": _FIRST_VECTOR + (_bits(w[1], 23, 17) << 1 | (~destination & 1)),
        "src0": w[1] & 511,
        "src1": _FIRST_VECTOR + _bits(w[1], 16, 9),
        "mask": VCC,
        "src2": 0,
    }
    return [
        (_bits(w[0], 25, 22), _Raw(("VOPD", 0), 2, x)),
        (_bits(w[0], 21, 17), _Raw(("VOPD", 0), 2, y)),
    ]


def _dual_three(w: Dwords) -> list[tuple[int, _Raw]]:
    x = {
        "dst": _FIRST_VECTOR + _bits(w[2], 7, 0),
        "src0": w[0] & 511,
        "src1": _FIRST_VECTOR + _bits(w[1], 23, 16),
        "mask": _bits(w[1], 31, 24),
        "src2": _FIRST_VECTOR + _bits(w[1], 31, 24),
    }
    y = {
        "dst": _FIRST_VECTOR + _bits(w[2], 31, 24),
        "src0": w[1] & 511,
        "src1": _FIRST_VECTOR + _bits(w[2], 15, 8),
        "mask": _bits(w[2], 23, 16),
        "src2": _FIRST_VECTOR + _bits(w[2], 23, 16),
    }
    return [
        (_bits(w[0], 23, 18), _Raw(("VOPD3", 0), 3, x, negate=_bits(w[1], 11, 9))),
        (_bits(w[0], 17, 12), _Raw(("VOPD3", 0), 3, y, negate=_bits(w[1], 14, 12))),
    ]


def decode(code: bytes, base_address: int) -> tuple[Instruction, ...]:
    """Return the instructions of the machine code `code`, whose first byte is at `base_address`.

    Raises `DecodeError` for an instruction that is not in the table.
    """
    return _Decoder(code, base_address).run()
