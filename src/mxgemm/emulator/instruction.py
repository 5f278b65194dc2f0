"""The decoded instruction: what both the text path and the binary path produce, and all that
execution ever sees.

Nothing here knows of encodings or of one architecture. Vector register numbers are absolute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, IntFlag


class Kind(IntEnum):
    """What an operand is; the executor uses the same numbers."""

    NONE = 0
    VECTOR = 1
    SCALAR = 2
    CONSTANT = 3


class Role(IntFlag):
    """What the instruction does with an operand's registers."""

    IGNORED = 0
    READ = 1
    WRITE = 2
    KEEP = 4  # with WRITE: only some bits of the register are written, the rest stays


@dataclass(frozen=True, slots=True)
class Operand:
    """`words` 32-bit registers from `index`, or a constant: `value`, 64 bits, two's complement."""

    kind: Kind
    index: int = 0
    words: int = 1
    value: int = 0
    role: Role = Role.READ
    negate: bool = False
    absolute: bool = False

    def __str__(self) -> str:
        """Return the operand as assembly would name it, special registers by number."""
        if self.kind is Kind.NONE:
            return "off"
        if self.kind is Kind.CONSTANT:
            return hex(self.value)
        letter = "v" if self.kind is Kind.VECTOR else "s"
        name = (
            f"{letter}{self.index}"
            if self.words == 1
            else f"{letter}[{self.index}:{self.index + self.words - 1}]"
        )
        name = f"|{name}|" if self.absolute else name
        return f"-{name}" if self.negate else name


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, or a dual-issue pair (`second`).

    `name` carries no encoding suffix. `target` is the index of a branch's target instruction. `msb`
    holds the upper register number bits that the program has set before this instruction, in
    program order. The text and the place it came from take no part in comparisons.
    """

    name: str
    operands: tuple[Operand, ...]
    modifiers: tuple[tuple[str, int], ...] = ()
    target: int | None = None
    second: Instruction | None = None
    msb: int = 0
    text: str = field(default="", compare=False)
    address: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """Return the assembly line, or where the instruction came from machine code, one made from
        its operands.
        """
        if self.text:
            return self.text
        modifiers = "".join(f" {key}:{value}" for key, value in self.modifiers)
        target = [f"-> {self.target}"] if self.target is not None else []
        line = f"{self.name} {', '.join([*map(str, self.operands), *target])}{modifiers}".strip()
        return f"{line} :: {self.second}" if self.second else line


@dataclass(frozen=True, slots=True)
class Field:
    """One operand of an instruction's assembly form: its name in the encoding, its width and its
    role.
    """

    name: str
    words: int = 1
    role: Role = Role.READ

    @classmethod
    def parse(cls, text: str) -> Field:
        """Return the field for `name[+|~][:words]`.

        `+` marks a destination that is also read, `~` one of which the unwritten bits stay.
        """
        name, _, words = text.partition(":")
        extra = {"+": Role.READ, "~": Role.KEEP}.get(name[-1], Role.IGNORED)
        name = name.rstrip("+~")
        role = Role.WRITE if name in {"dst", "sdst"} else Role.READ
        return cls(name, int(words or 1), role | extra)


@dataclass(frozen=True, slots=True)
class Row:
    """One instruction of an architecture: mnemonic, operands in assembly order, and every encoding
    it has.
    """

    name: str
    fields: tuple[Field, ...]
    forms: tuple[tuple[str, int], ...]  # (encoding, opcode)
    packed: bool = False  # op_sel_hi is all ones unless written
