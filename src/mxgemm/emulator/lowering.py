"""From instructions to the executor's program: the only place that knows how the compiled part
wants to be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxgemm.emulator.architecture import Architecture
from mxgemm.emulator.faults import LoadError
from mxgemm.emulator.instruction import Instruction, Kind, Operand, Role
from mxgemm.emulator.metadata import KernelInfo
from mxgemm.errors import BackendUnavailable

_NEGATE, _ABSOLUTE = 1, 2


def native() -> Any:
    """Return the compiled executor. Raises `BackendUnavailable` where it was not built."""
    try:
        from mxgemm import _emulator
    except ImportError as error:
        raise BackendUnavailable(
            f"emulator: the compiled module mxgemm._emulator cannot be imported ({error}); build "
            "the package with a C++ "
            "compiler"
        ) from error
    return _emulator


def lower(architecture: Architecture, info: KernelInfo, instructions: Sequence[Instruction]) -> Any:
    """Return the executor's program. Raises `LoadError` if a register is outside what the metadata
    allocates.
    """
    for pc, instruction in enumerate(instructions):
        _check_registers(info, pc, instruction)
    return native().make_program(architecture.name, [_lower(i) for i in instructions])


def _check_registers(info: KernelInfo, pc: int, instruction: Instruction) -> None:
    for half in (instruction, instruction.second):
        for operand in half.operands if half else ():
            if (
                operand.kind is Kind.VECTOR
                and operand.index + operand.words > info.vector_registers
            ):
                raise LoadError(
                    f"load of {info.name}: instruction {pc} `{instruction}` uses "
                    f"v{operand.index + operand.words - 1}, "
                    f"the metadata allocates {info.vector_registers} vector registers"
                )


def _lower(instruction: Instruction) -> dict[str, Any]:
    operands = [_tuple(operand, operand.role) for operand in instruction.operands]
    # A destination that is also read, or partly kept, is one more source after the written ones.
    operands += [
        _tuple(o, o.role & Role.READ)
        for o in instruction.operands
        if o.role & Role.WRITE and o.role & (Role.READ | Role.KEEP)
    ]
    lowered: dict[str, Any] = {
        "operation": instruction.name,
        "text": str(instruction),
        "target": instruction.target or 0,
        "operands": operands,
        "modifiers": dict(instruction.modifiers) | {"msb": instruction.msb},
    }
    if instruction.second:
        lowered["second"] = _lower(instruction.second)
    return lowered


def _tuple(operand: Operand, role: Role) -> tuple[int, int, int, int, int, int]:
    modifiers = (_NEGATE if operand.negate else 0) | (_ABSOLUTE if operand.absolute else 0)
    return (int(operand.kind), int(role), operand.words, modifiers, operand.index, operand.value)
