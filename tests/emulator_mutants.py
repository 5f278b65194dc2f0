"""Broken copies of a compiled kernel, and the check that some of them are not broken at all.

One change each: a wait or a barrier removed, an LDS offset shifted, a matrix operation's two scales exchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mxgemm.emulator.instruction import Instruction

COUNTED_WAIT = re.compile(r"^\ts_wait_(?P<counter>dscnt|tensorcnt|kmcnt|loadcnt|storecnt|alu) (?P<value>.*)$")
SIGNAL, WAIT = re.compile(r"^\ts_barrier_signal "), re.compile(r"^\ts_barrier_wait ")
LDS_ACCESS = re.compile(r"^\tds_(load|store)_")
OFFSET = re.compile(r" offset:(\d+)")
SCALES = re.compile(r"^(\tv_wmma_scale\w* .*), (v\d+), (v\d+)( matrix_.*)?$")
SHIFTS = (4, 16)


@dataclass(frozen=True)
class Mutant:
    """One change: its kind, the instruction it is at, what was there, and the whole changed file."""

    kind: str
    pc: int
    line: str
    text: str

    @property
    def name(self) -> str:
        """A readable test id."""
        return f"{self.kind}-pc{self.pc}"


def _code_lines(lines: Sequence[str], symbol: str) -> Iterator[tuple[int, int]]:
    """Return (line, pc) of every instruction of the kernel."""
    start = next(n for n, line in enumerate(lines) if line.startswith(f"{symbol}:"))
    pc = 0
    for n in range(start + 1, len(lines)):
        code = lines[n].split(";")[0].strip()
        if code.startswith(".Lfunc_end"):
            return
        if code and not code.startswith(".") and not code.endswith(":"):
            yield n, pc
            pc += 1


def mutants(text: str, symbol: str) -> Iterator[Mutant]:
    """Return every mutant of the kernel `symbol` in the assembly file `text`."""
    lines = text.splitlines()
    code = list(_code_lines(lines, symbol))

    def changed(kind: str, n: int, pc: int, **replaced: str) -> Mutant:
        new = list(lines)
        for at, line in replaced.items():
            new[int(at[1:])] = line
        return Mutant(kind, pc, lines[n].strip(), "\n".join(new) + "\n")

    nop = "\ts_nop 0"
    signals = [(n, pc) for n, pc in code if SIGNAL.match(lines[n])]
    waits = [(n, pc) for n, pc in code if WAIT.match(lines[n])]
    for n, pc in code:
        line = lines[n]
        if wait := COUNTED_WAIT.match(line):
            yield changed(f"no-{wait['counter']}", n, pc, **{f"_{n}": nop})
        elif SIGNAL.match(line):
            yield changed("no-signal", n, pc, **{f"_{n}": nop})
        elif WAIT.match(line):
            yield changed("no-barrier-wait", n, pc, **{f"_{n}": nop})
        elif LDS_ACCESS.match(line):
            old = OFFSET.search(line)
            for shift in SHIFTS:
                offset = f" offset:{(int(old[1]) if old else 0) + shift}"
                new = OFFSET.sub(offset, line) if old else line + offset
                yield changed(f"offset+{shift}", n, pc, **{f"_{n}": new})
        elif scales := SCALES.match(line):
            new = f"{scales[1]}, {scales[3]}, {scales[2]}{scales[4] or ''}"
            yield changed("scales", n, pc, **{f"_{n}": new})
    for (n, pc), (other, _) in zip(signals, waits, strict=True):
        yield changed("no-barrier", n, pc, **{f"_{n}": nop, f"_{other}": nop})


# ----------------------------------------------------------------------------------------------------- redundant

_COUNTED = {
    "dscnt": ("ds_",),
    "tensorcnt": ("tensor_",),
    "kmcnt": ("s_load_",),
    "loadcnt": ("global_load_", "scratch_load_"),
    "storecnt": ("global_store_", "scratch_store_"),
}
_MANY = 64  # more than any counter holds


def most_outstanding(code: Sequence[Instruction], counter: str) -> list[int]:
    """Return, for every instruction, the most operations of `counter` that can be outstanding before it, over all paths.

    A maximum over paths: an issue adds one, a wait for n leaves at most n.
    """
    before = [-1] * len(code)
    before[0] = 0
    pending = [0]
    while pending:
        pc = pending.pop()
        instruction, count = code[pc], before[pc]
        if instruction.name.startswith(_COUNTED[counter]):
            count = min(count + 1, _MANY)
        elif instruction.name == f"s_wait_{counter}":
            count = min(count, instruction.operands[0].value)
        following = [] if instruction.name in {"s_endpgm", "s_branch"} else [pc + 1]
        if instruction.target is not None:
            following.append(instruction.target)
        for successor in following:
            if successor < len(code) and count > before[successor]:
                before[successor] = count
                pending.append(successor)
    return before


def wait_is_redundant(code: Sequence[Instruction], pc: int) -> bool:
    """Return whether the wait at `pc` can be proven to wait for nothing.

    True if on every path no more than the waited-for number of operations is outstanding when it is reached, so that an equal
    or stronger wait, or the absence of operations, comes before it on each.
    """
    instruction = code[pc]
    counter = instruction.name.removeprefix("s_wait_")
    if counter not in _COUNTED:
        return False
    return most_outstanding(code, counter)[pc] <= instruction.operands[0].value
