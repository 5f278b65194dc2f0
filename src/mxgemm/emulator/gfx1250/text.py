"""The text path: assembly lines, as LLVM prints them, to instructions.

Vector registers above 255 are printed as their 8-bit number with the absolute one in a comment; the
absolute number is computed from the code, as the hardware does, and must agree with the comment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from mxgemm.emulator.faults import DecodeError
from mxgemm.emulator.gfx1250.registers import (
    DEPCTR_FIELDS,
    DEPCTR_NO_WAIT,
    HARDWARE_REGISTERS,
    MATRIX_FORMATS,
    PAIR_NAMES,
    SCALAR_NAMES,
    SCALE_FORMATS,
    TTMP,
    constant,
    float_bits,
    matrix_words,
    scalar,
    vector,
)
from mxgemm.emulator.gfx1250.table import ROWS
from mxgemm.emulator.instruction import Field, Instruction, Kind, Operand, Role, Row

_SUFFIX = re.compile(r"_(e32|e64)$")
_REGISTER = re.compile(r"(v|s|ttmp)(?:(\d+)|\[(\d+):(\d+)\])")
_COMMENT = re.compile(r"/\*v(?:(\d+)|\[(\d+):\d+\])\*/")
_MODIFIER = re.compile(r"\s+(?P<key>[a-z][a-z0-9_]*)(?::(?P<value>\[[^\]]*\]|-?[\w.]+))?$")
_NUMBER = re.compile(r"-?(0x[0-9a-f]+|\d+)", re.IGNORECASE)
_FLOAT = re.compile(r"-?\d+\.\d*(e[-+]?\d+)?", re.IGNORECASE)

_HINTS = {"nv", "th", "scope", "matrix_a_reuse", "matrix_b_reuse"}  # no effect on results
_MODIFIERS = {
    "offset", "offset0", "offset1", "bitop3", "op_sel", "op_sel_hi", "neg_lo", "neg_hi", "clamp",
    "mul", "div", "matrix_a_fmt", "matrix_b_fmt", "matrix_a_scale", "matrix_b_scale",
    "matrix_a_scale_fmt", "matrix_b_scale_fmt", "scale_offset",
}  # fmt: skip
_NAMED_VALUES = {
    "matrix_fmt": MATRIX_FORMATS,
    "matrix_scale": ("ROW0", "ROW1"),
    "matrix_scale_fmt": SCALE_FORMATS,
}


def parse(lines: Sequence[str]) -> tuple[Instruction, ...]:
    """Return the instructions of one function's lines; labels end with a colon, anything else is an
    instruction.

    Raises `DecodeError` with the line for an instruction or a form that is not in the table.
    """
    labels: dict[str, int] = {}
    texts: list[str] = []
    for line in lines:
        if line.endswith(":"):
            labels[line[:-1]] = len(texts)
        else:
            texts.append(line)
    msb = 0
    found = []
    for pc, text in enumerate(texts):
        try:
            instruction = _instruction(text, msb, labels)
        except (KeyError, ValueError, IndexError) as error:
            raise DecodeError(
                f"instruction {pc} `{text}`: not known to the emulator ({error})"
            ) from error
        if instruction.name == "s_set_vgpr_msb":
            msb = instruction.operands[0].value & 0xFF
        found.append(instruction)
    return tuple(found)


def _instruction(text: str, msb: int, labels: dict[str, int]) -> Instruction:
    if "::" in text:
        first, second = (_single(half.strip(), msb, labels, dual=True) for half in text.split("::"))
        return replace(first, second=second, text=text)
    return matrix_words(_single(text, msb, labels))


def _single(text: str, msb: int, labels: dict[str, int], *, dual: bool = False) -> Instruction:
    mnemonic, _, rest = text.partition(" ")
    name = _SUFFIX.sub("", mnemonic)
    if dual:
        name = name.replace("v_dual_", "v_", 1)
    if name not in ROWS:
        raise KeyError(name)
    row = ROWS[name]
    if [f.name for f in row.fields] == ["ignored"]:
        return Instruction(name, (), msb=msb, text=text)
    if [f.name for f in row.fields] == ["label"]:
        return Instruction(name, (), target=labels[rest.strip()], msb=msb, text=text)
    if name == "s_wait_alu":
        return Instruction(name, (constant(_depctr(rest), row.fields[0]),), msb=msb, text=text)
    rest, modifiers = _split_modifiers(rest)
    words = _split_operands(rest)
    if dual and name == "v_cndmask_b32" and len(words) == len(row.fields) - 1:
        words.append("vcc_lo")
    operands = _operands(row, words, modifiers, msb)
    if row.packed and "op_sel_hi" not in modifiers:
        modifiers["op_sel_hi"] = (1 << (len(row.fields) - 1)) - 1
    kept = tuple(sorted((k, v) for k, v in modifiers.items() if v))
    return Instruction(name, operands, kept, msb=msb, text=text)


def _operands(
    row: Row, words: list[str], modifiers: dict[str, int], msb: int
) -> tuple[Operand, ...]:
    fields = list(row.fields)
    if row.name.startswith("tensor_"):
        words = [*words, *["off"] * (len(fields) - len(words))]
    if [f.name for f in fields[-1:]] == ["soffset"] and _NUMBER.fullmatch(words[-1]):
        modifiers["offset0"] = int(words[-1], 0)
        words = [*words[:-1], "off"]
    if len(words) != len(fields):
        raise ValueError(f"{len(fields)} operands expected, got {len(words)}")
    return tuple(_operand(word, f, msb) for word, f in zip(words, fields, strict=True))


def _operand(word: str, f: Field, msb: int) -> Operand:
    if f.name == "hwreg":
        return constant(_hardware_register(word), f)
    if f.name == "barrier":
        return constant(int(word, 0) & 0xFFFF, f)
    if f.name == "simm":  # printed unsigned, means 16 bits with sign
        value = int(word, 0) & 0xFFFF
        return constant(value - 0x10000 if value >> 15 else value, f)
    if f.name in {"imm", "literal"}:
        return constant(int(word, 0), f)
    if word == "off" or (word == "null" and f.name in {"soffset", "saddr", "group2", "group3"}):
        return Operand(Kind.NONE, role=Role.IGNORED)
    negate = absolute = False
    if not _NUMBER.fullmatch(word) and not _FLOAT.fullmatch(word):
        if word.startswith("-"):
            word, negate = word[1:], True
        if word.startswith("|"):
            word, absolute = word.strip("|"), True
        if word.startswith("abs("):
            word, absolute = word[4:-1], True
    return replace(_plain_operand(word, f, msb), negate=negate, absolute=absolute)


def _plain_operand(word: str, f: Field, msb: int) -> Operand:
    comment = _COMMENT.search(word)
    word = _COMMENT.sub("", word).strip().removesuffix(".l")
    register = _REGISTER.fullmatch(word)
    if register:
        kind, one, first, last = register.groups()
        number = int(one if one is not None else first)
        words = 1 if one is not None else int(last) - number + 1
        if f.words not in (1, words):
            raise ValueError(f"{word}: {f.words} registers expected")
        f = Field(f.name, words, f.role)
        if kind != "v":
            return scalar(number + (TTMP if kind == "ttmp" else 0), f)
        operand = vector(number, f, msb)
        written = int(comment[1] or comment[2]) if comment else number
        if operand.index != written:
            raise ValueError(
                f"{word} is v{operand.index} here by s_set_vgpr_msb, the text says v{written}"
            )
        return operand
    if word in SCALAR_NAMES:
        return scalar(SCALAR_NAMES[word], f)
    if word in PAIR_NAMES:
        return scalar(PAIR_NAMES[word], Field(f.name, 2, f.role))
    if _NUMBER.fullmatch(word):
        return constant(int(word, 0), f)
    return constant(float_bits(float(word)), f)


def _split_operands(text: str) -> list[str]:
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    if current.strip():
        parts.append(current.strip())
    return parts


def _split_modifiers(text: str) -> tuple[str, dict[str, int]]:
    modifiers: dict[str, int] = {}
    text = " " + text.strip()
    while match := _MODIFIER.search(text):
        key, value = match["key"], match["value"]
        if key in _HINTS:
            pass
        elif key in _MODIFIERS and (value is not None or key in {"clamp", "scale_offset"}):
            _set_modifier(modifiers, key, value)
        else:
            break
        text = text[: match.start()]
    return text.strip(), modifiers


def _set_modifier(modifiers: dict[str, int], key: str, value: str | None) -> None:
    if key == "offset":
        modifiers["offset0"] = int(value or "", 0)
    elif key == "mul":
        modifiers["omod"] = {"2": 1, "4": 2}[value or ""]
    elif key == "div":
        modifiers["omod"] = 3
    elif value is None:
        modifiers[key] = 1
    elif value.startswith("["):
        modifiers[key] = sum(int(bit) << n for n, bit in enumerate(value[1:-1].split(",")))
    elif key.startswith("matrix_"):
        group = re.sub(r"_[ab]_", "_", key)
        modifiers[key] = _NAMED_VALUES[group].index(value.removeprefix(group.upper() + "_"))
    else:
        modifiers[key] = int(value, 0)


def _hardware_register(text: str) -> int:
    inside = text.removeprefix("hwreg(").removesuffix(")").split(",")
    name, offset, size = (
        [part.strip() for part in inside] if len(inside) == 3 else (inside[0].strip(), "0", "32")
    )
    number = HARDWARE_REGISTERS[name] if name in HARDWARE_REGISTERS else int(name, 0)
    return number | int(offset) << 6 | (int(size) - 1) << 11


def _depctr(text: str) -> int:
    if _NUMBER.fullmatch(text.strip()):
        return int(text, 0)
    value = DEPCTR_NO_WAIT
    for name, count in re.findall(r"depctr_(\w+)\((\d+)\)", text):
        offset, size = DEPCTR_FIELDS[name]
        value &= ~(((1 << size) - 1) << offset)
        value |= int(count) << offset
    return value
