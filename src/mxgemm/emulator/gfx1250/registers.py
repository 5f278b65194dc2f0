"""Names and numbers that both front ends share: special registers, constants, formats, and upper
register number bits.
"""

from __future__ import annotations

import math
import struct

from mxgemm.emulator.instruction import Field, Instruction, Kind, Operand

VCC, TTMP, NULL, M0, EXEC = 106, 108, 124, 125, 126
SCALAR_NAMES = {
    "vcc_lo": 106,
    "vcc_hi": 107,
    "null": NULL,
    "m0": M0,
    "exec_lo": 126,
    "exec_hi": 127,
}
PAIR_NAMES = {"vcc": 106, "exec": 126}

HARDWARE_REGISTERS = {"HW_REG_WAVE_MODE": 1, "HW_REG_WAVE_SCHED_MODE": 26, "HW_REG_IB_STS2": 28}

# Fields of s_wait_alu: offset, size; all ones means no wait.
DEPCTR_FIELDS = {
    "va_vdst": (12, 4),
    "va_sdst": (9, 3),
    "va_ssrc": (8, 1),
    "hold_cnt": (7, 1),
    "vm_vsrc": (2, 3),
    "va_vcc": (1, 1),
    "sa_sdst": (0, 1),
}
DEPCTR_NO_WAIT = 0xFF9F

MATRIX_FORMATS = ("FP8", "BF8", "FP6", "BF6", "FP4")
MATRIX_FORMAT_WORDS = (16, 16, 12, 12, 8)
SCALE_FORMATS = ("E8M0", "E5M3", "E4M3")

INLINE_FLOATS = {
    240: 0.5, 241: -0.5, 242: 1.0, 243: -1.0, 244: 2.0, 245: -2.0, 246: 4.0, 247: -4.0,
    248: 1 / (2 * math.pi),
}  # fmt: skip

_ALL_ONES = (1 << 64) - 1
_HIGHEST_ENCODED = 255

# Which two of the eight bits that s_set_vgpr_msb sets extend a field's register number; the rest
# are never extended.
_BANK = {"src0": 0, "vaddr": 0, "addr": 0, "src1": 1, "data0": 1, "src2": 2, "data1": 2, "dst": 3}


def float_bits(value: float) -> int:
    """Return the FP32 bits of `value`."""
    return int.from_bytes(struct.pack("<f", value), "little")


def constant(value: int, field: Field) -> Operand:
    """Return a constant operand: two's complement, cut to the field's width."""
    mask = _ALL_ONES if field.words > 1 else (1 << 32) - 1
    return Operand(Kind.CONSTANT, words=field.words, value=value & mask, role=field.role)


def vector(number: int, field: Field, msb: int) -> Operand:
    """Return a vector register: its 8-bit number extended by the bank that `msb` selects."""
    bank = _BANK.get(field.name)
    if bank is not None and number > _HIGHEST_ENCODED:
        raise ValueError(
            f"v{number}: a register number has 8 bits, the rest comes from s_set_vgpr_msb"
        )
    upper = 0 if bank is None else msb >> 2 * bank & 3
    return Operand(Kind.VECTOR, number + 256 * upper, field.words, role=field.role)


def scalar(number: int, field: Field) -> Operand:
    """Return a scalar register operand; reading `null` is the constant 0, writing it keeps the
    register.
    """
    return Operand(Kind.SCALAR, number, field.words, role=field.role)


def matrix_words(instruction: Instruction) -> Instruction:
    """Return `instruction` with the A and B widths that its formats imply, where it is a
    mixed-format matrix operation.
    """
    if not instruction.name.endswith("_f8f6f4"):
        return instruction
    modifiers = dict(instruction.modifiers)
    a, b = (MATRIX_FORMAT_WORDS[modifiers.get(key, 0)] for key in ("matrix_a_fmt", "matrix_b_fmt"))
    d, first, second, *rest = instruction.operands
    operands = (d, _with_words(first, a), _with_words(second, b), *rest)
    return _replace(instruction, operands)


def _with_words(operand: Operand, words: int) -> Operand:
    return Operand(operand.kind, operand.index, words, operand.value, operand.role)


def _replace(i: Instruction, operands: tuple[Operand, ...]) -> Instruction:
    return Instruction(i.name, operands, i.modifiers, i.target, i.second, i.msb, i.text, i.address)
