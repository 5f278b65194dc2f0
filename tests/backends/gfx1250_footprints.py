"""A proof that the barrier wait before a kernel's last copies orders nothing: which bytes each wave
writes and those copies read, observed in the launches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import emulator_translations
from backends.gfx1250_launches import Launch
from emulator_mutants import Code, as_nothing, successors
from mxgemm import emulator
from mxgemm.emulator.instruction import Instruction, Kind

LDS_BYTES = 320 * 1024
STORED_BYTES = {f"ds_store_b{8 * n}": n for n in (1, 2, 4, 8, 12, 16)}
LOAD, STORE = "tensor_load_to_lds", "tensor_store_from_lds"
FOLLOWS = ("s_", "v_", STORE)
"""How what may follow the wait begins; a barrier's signal and wait may not, nor may what reads or
writes scalar memory."""
FOLLOWS_NOT = ("s_barrier_", "s_load_", "s_store_", "s_atomic_", "s_buffer_")
OTHER_MEMORY = ("global_", "scratch_", "flat_", "buffer_", "ds_", "tensor_")
COUNTED = ("global_prefetch_", "ds_load_", "ds_store_", LOAD, STORE)
"""Of those, what changes no memory, and what `Footprint` counts."""
Rows = list[tuple[int, int]]
"""First byte, and one past the last."""


@dataclass(frozen=True)
class Copy:
    """A plain two-dimensional tensor copy."""

    lds: int
    lds_bytes: int
    rows: Rows

    @classmethod
    def of(cls, wave: Any, instruction: Instruction) -> "Copy | None":
        """Return the copy that a wave is about to issue, None for one that is switched off."""
        first, second = (
            _number(wave, operand.index, operand.words) for operand in _two(instruction)
        )
        if first & 3 == 0:
            return None
        gathers, repeats, depth = first >> 31 & 1, second >> 19 & 1, second >> 144 & 0xFFFF
        assert (gathers, repeats, depth) == (0, 0, 0), f"{instruction}: no plain copy"
        size = 1 << (second >> 16 & 3)
        columns, rows = second >> 112 & 0xFFFF, second >> 128 & 0xFFFF
        inside = [min(columns, second >> 48 & 2**32 - 1), min(rows, second >> 80 & 2**32 - 1)]
        pitch = (second >> 160 & 2**48 - 1) * size
        at = first >> 64 & 2**57 - 1
        length = columns * rows * size
        if second >> 20 & 1:
            length += length // (4 << ((second >> 22 & 7) + 1)) * 4 * ((second >> 25 & 127) + 1)
        found = [(at + n * pitch, at + n * pitch + inside[0] * size) for n in range(inside[1])]
        return cls(first >> 32 & 2**32 - 1, length, found if inside[0] else [])


def _two(instruction: Instruction):
    two, more = instruction.operands[:2], instruction.operands[2:]
    assert all(o.kind is Kind.NONE for o in more), f"{instruction}: more than two dimensions"
    return two


def _number(wave: Any, register: int, words: int) -> int:
    return sum(wave.scalar(register + n) << 32 * n for n in range(words))


def _none() -> npt.NDArray[np.bool_]:
    return np.zeros(LDS_BYTES, bool)


@dataclass
class Footprint:
    """What one wave touches in a launch: bytes of LDS that it writes, bytes of memory that its
    copies load or store, and what the copies at chosen places read of the one and store of the
    other.
    """

    written: npt.NDArray[np.bool_] = field(default_factory=_none)
    loaded: Rows = field(default_factory=list)
    stored: Rows = field(default_factory=list)
    last_read: npt.NDArray[np.bool_] = field(default_factory=_none)
    last_stored: Rows = field(default_factory=list)

    def add(self, wave: Any, instruction: Instruction, *, is_last: bool) -> None:
        """Count what a wave is about to execute; lanes that EXEC leaves out are counted too."""
        name = instruction.name
        if name.startswith("ds_store"):
            size = STORED_BYTES[name]
            modifiers = dict(instruction.modifiers)
            offset = modifiers.pop("offset0", 0)
            assert not modifiers, f"{instruction}: where it stores is not known"
            at = wave.vector(instruction.operands[0].index).astype(np.int64) + offset
            self.written[(at[:, None] + np.arange(size)).ravel()] = True
        elif name in (LOAD, STORE) and (copy := Copy.of(wave, instruction)):
            in_lds = slice(copy.lds, copy.lds + copy.lds_bytes)
            if name == LOAD:
                self.written[in_lds] = True
                self.loaded += copy.rows
            else:
                self.stored += copy.rows
            if is_last:
                self.last_read[in_lds] = True
                self.last_stored += copy.rows


def following(code: Code, pc: int) -> set[int]:
    """Return all that may be executed after `pc`."""
    found: set[int] = set()
    pending = successors(code, pc)
    while pending:
        at = pending.pop()
        if at not in found:
            found.add(at)
            pending += successors(code, at)
    return found


def footprints(launch: Launch, code: emulator.Kernel, last: set[int]) -> list[Footprint]:
    """Return what every wave of a launch of one workgroup touches."""
    assert tuple(launch.grid) == (1, 1, 1)
    waves = [Footprint() for _ in range(launch.kernel.threads // 32)]

    def look(wave: Any, pc: int) -> None:
        name = code.instructions[pc].name
        if name.startswith(("ds_store", "tensor_")):
            waves[wave.index].add(wave, code.instructions[pc], is_last=pc in last)

    failure, _ = launch.outcome(code, 0, look)
    assert failure is None
    return waves


def _pairs(waves: Sequence[Footprint]) -> Iterator[tuple[Footprint, Footprint]]:
    return ((a, b) for a in waves for b in waves if a is not b)


def _overlap(some: Rows, others: Rows) -> bool:
    if not some or not others:
        return False
    first, second = np.array(some), np.array(others)
    return bool(
        ((first[:, None, 0] < second[None, :, 1]) & (second[None, :, 0] < first[:, None, 1])).any()
    )


def are_apart(waves: Sequence[Footprint]) -> bool:
    """Return whether the last copies of a wave read no LDS that another writes, and write no memory
    that another stores.
    """
    return not any(
        (own.last_read & other.written).any()
        or _overlap(own.last_stored, other.loaded + other.stored)
        for own, other in _pairs(waves)
    )


def last_copies_are_apart(code: emulator.Kernel, pc: int, launches: Sequence[Launch]) -> bool:
    """The barrier wait at `pc` orders no two accesses that touch the same bytes.

    A barrier's wait orders what a wave does after it behind what the others did before their
    signal, and nothing else. On every path from `pc` to the end there is no other barrier and no
    access but tensor copies from LDS (read off the code). In every launch these read no byte of LDS
    that another wave writes, and write no byte of memory that another wave copies, at any time, so
    that no order between waves is asked for (observed in the emulator: addresses in this code come
    from the wave, the lane and the launch's arguments, never from timing or from data). The kernel
    has no other access to memory by which waves could meet. Last, the wait is not what keeps
    registers for the translation of an address.
    """
    instructions = code.instructions
    after = following(instructions, pc)
    quiet = all(
        instructions[at].name.startswith(FOLLOWS)
        and not instructions[at].name.startswith(FOLLOWS_NOT)
        for at in after
    )
    meets = any(
        i.name.startswith(OTHER_MEMORY) and not i.name.startswith(COUNTED) for i in instructions
    )
    if not quiet or meets or instructions[pc].name != "s_barrier_wait":
        return False
    if emulator_translations.overwritten(as_nothing(instructions, {pc})):
        return False
    last = {at for at in after if instructions[at].name == STORE}
    return all(are_apart(footprints(launch, code, last)) for launch in launches)
