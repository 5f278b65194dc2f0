"""Broken copies of a compiled kernel, and proofs that some of them are not broken at all.

One change each: a wait or a barrier removed, an LDS offset shifted, a matrix operation's two scales
exchanged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import emulator_translations
from emulator_translations import registers
from mxgemm.emulator.instruction import Instruction, Kind, Role

COUNTED_WAIT = re.compile(
    r"^\ts_wait_(?P<counter>dscnt|tensorcnt|kmcnt|loadcnt|storecnt|xcnt|alu) (?P<value>.*)$"
)
SIGNAL, WAIT = re.compile(r"^\ts_barrier_signal "), re.compile(r"^\ts_barrier_wait ")
LDS_ACCESS = re.compile(r"^\tds_(load|store)_")
OFFSET = re.compile(r" offset:(\d+)")
SCALES = re.compile(r"^(\tv_wmma_scale\w* .*), (v\d+), (v\d+)( matrix_.*)?$")
SHIFTS = (4, 16)


@dataclass(frozen=True)
class Mutant:
    """One change: its kind, the instruction it is at, what was there, the changed file, and all
    the instructions that it changes.
    """

    kind: str
    pc: int
    line: str
    text: str
    changed: tuple[int, ...]

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


@dataclass(frozen=True)
class _Source:
    """The file's lines; `change` makes a mutant of them."""

    lines: list[str]

    def change(self, kind: str, n: int, pc: int, new: Mapping[int, str], *more: int) -> Mutant:
        text = "\n".join(new.get(at, line) for at, line in enumerate(self.lines))
        return Mutant(kind, pc, self.lines[n].strip(), text + "\n", (pc, *more))


_NOP = "\ts_nop 0"


def _removals(source: _Source, n: int, pc: int) -> Iterator[Mutant]:
    line = source.lines[n]
    if wait := COUNTED_WAIT.match(line):
        yield source.change(f"no-{wait['counter']}", n, pc, {n: _NOP})
    elif SIGNAL.match(line):
        yield source.change("no-signal", n, pc, {n: _NOP})
    elif WAIT.match(line):
        yield source.change("no-barrier-wait", n, pc, {n: _NOP})


def _changes(source: _Source, n: int, pc: int) -> Iterator[Mutant]:
    line = source.lines[n]
    if LDS_ACCESS.match(line):
        old = OFFSET.search(line)
        for shift in SHIFTS:
            offset = f" offset:{(int(old[1]) if old else 0) + shift}"
            new = OFFSET.sub(offset, line) if old else line + offset
            yield source.change(f"offset+{shift}", n, pc, {n: new})
    elif scales := SCALES.match(line):
        new = f"{scales[1]}, {scales[3]}, {scales[2]}{scales[4] or ''}"
        yield source.change("scales", n, pc, {n: new})


def mutants(text: str, symbol: str) -> Iterator[Mutant]:
    """Return every mutant of the kernel `symbol` in the assembly file `text`."""
    source = _Source(text.splitlines())
    code = list(_code_lines(source.lines, symbol))
    for n, pc in code:
        yield from _removals(source, n, pc)
        yield from _changes(source, n, pc)
    signals = [(n, pc) for n, pc in code if SIGNAL.match(source.lines[n])]
    waits = [(n, pc) for n, pc in code if WAIT.match(source.lines[n])]
    for (n, pc), (other, other_pc) in zip(signals, waits, strict=True):
        yield source.change("no-barrier", n, pc, {n: _NOP, other: _NOP}, other_pc)


# ---------------------------------------------------------------------------------------- redundant

_COUNTED = {
    "dscnt": ("ds_",),
    "tensorcnt": ("tensor_",),
    "kmcnt": ("s_load_",),
    "loadcnt": ("global_load_", "scratch_load_"),
    "storecnt": ("global_store_", "scratch_store_"),
    "vm_vsrc": (
        "ds_",
    ),  # memory instructions that have not read their registers; LDS only, see _memory_reads
}
KEEP_SCC = ("s_mov_b", "s_set_vgpr_msb", "s_delay_alu", "s_nop", "s_wait_", "v_")
_MANY = 64  # more than any counter holds
_HELD = 63
"""Operations that the counter of LDS holds. One more waits until the oldest is complete: a counter
that wrapped or stuck instead would let a wait for none pass too early.
"""
_NO_RESULT_WAIT, _NO_READ_WAIT = 15, 7

Code = Sequence[Instruction]
Ages = dict[int, int]
"""Issue pc of an LDS operation that may be outstanding -> the fewest of them issued since."""


def successors(code: Code, pc: int) -> list[int]:
    """Return where control may go after `pc`."""
    following = [] if code[pc].name in {"s_endpgm", "s_branch"} else [pc + 1]
    if (target := code[pc].target) is not None:
        following.append(target)
    return [f for f in following if f < len(code)]


def reachable(code: Code) -> set[int]:
    """Return the instructions that some path leads to."""
    found, pending = {0}, [0]
    while pending:
        new = set(successors(code, pending.pop())) - found
        found |= new
        pending += new
    return found


def as_nothing(code: Code, pcs: Collection[int]) -> Code:
    """Return the code with instructions at `pcs` that do nothing, as branches that are never taken
    do.
    """
    return [
        replace(i, name="s_nop", operands=(), target=None, text="") if pc in pcs else i
        for pc, i in enumerate(code)
    ]


def skipped_passes(code: Code, branch: int) -> tuple[int, int] | None:
    """Return the pc of the comparison that a branch around a loop depends on, and the scalar
    register that holds the number of passes; None if the branch is not taken exactly for less
    than one.
    """
    if code[branch].name != "s_cbranch_scc1":
        return None
    entered = {i.target for i in code}
    for pc in range(branch - 1, -1, -1):
        name, operands = code[pc].name, code[pc].operands
        if pc + 1 in entered or code[pc].target is not None:
            return None
        if name == "s_cmp_lt_i32":
            passes, least = operands
            counts = passes.kind is Kind.SCALAR and least.kind is Kind.CONSTANT
            return (pc, passes.index) if counts and least.value == 1 else None
        if not name.startswith(KEEP_SCC):
            return None
    return None


def waited_for(instruction: Instruction, counter: str) -> int | None:
    """Return how many operations of `counter` an instruction leaves outstanding at most; None if it
    is no wait for it.
    """
    if instruction.name == f"s_wait_{counter}":
        return instruction.operands[0].value
    if (
        counter == "vm_vsrc" and instruction.name == "s_wait_dscnt"
    ):  # complete operations have read their registers
        return instruction.operands[0].value
    if counter == "vm_vsrc" and instruction.name == "s_wait_alu":
        left = instruction.operands[0].value >> 2 & 7
        return None if left == _NO_READ_WAIT else left
    return None


def outstanding(code: Code, counter: str, removed: int = -1) -> list[Ages | None]:
    """Return, for every instruction, which LDS operations may be outstanding before it, over all
    paths, by `counter`: dscnt or vm_vsrc; `removed` waits for nothing.

    None where no path leads. Two paths join to what is outstanding on either, at its youngest. They
    complete in order, and at most `_HELD` are outstanding.
    """
    before: list[Ages | None] = [None] * len(code)
    before[0] = {}
    pending = [0]
    while pending:
        pc = pending.pop()
        after = dict(before[pc] or {})
        left = waited_for(code[pc], counter) if pc != removed else None
        if code[pc].name.startswith(_COUNTED[counter]):
            after = {p: age + 1 for p, age in after.items() if age + 1 < _HELD} | {pc: 0}
        elif left is not None:
            after = {p: age for p, age in after.items() if age < left}
        for successor in successors(code, pc):
            known = before[successor]
            joined = dict(known or {})
            for p, age in after.items():
                joined[p] = min(age, joined.get(p, _MANY))
            if known is None or joined != known:
                before[successor] = joined
                pending.append(successor)
    return before


def most_outstanding(code: Code, counter: str) -> list[int]:
    """Return the most operations of `counter` that can be outstanding before every instruction,
    over all paths.
    """
    before = [-1] * len(code)
    before[0] = 0
    pending = [0]
    while pending:
        pc = pending.pop()
        count, left = before[pc], waited_for(code[pc], counter)
        if code[pc].name.startswith(_COUNTED[counter]):
            count = min(count + 1, _MANY)
        elif left is not None:
            count = min(count, left)
        for successor in successors(code, pc):
            if count > before[successor]:
                before[successor] = count
                pending.append(successor)
    return before


def waits_for_nothing(code: Code, pc: int, counter: str) -> bool:
    """On every path comes an equal or stronger wait before it, or no operation at all."""
    left = waited_for(code[pc], counter)
    assert left is not None
    return most_outstanding(code, counter)[pc] <= left


def is_made_up_for(code: Code, pc: int, counter: str) -> bool:
    """Without the wait, no register is used before its load is waited for, none is overwritten
    before it is read, and every barrier and copy finds the same operations outstanding as with it.
    """
    with_it, without = outstanding(code, counter), outstanding(code, counter, removed=pc)
    for at, instruction in enumerate(code):
        ages = without[at] or {}
        used = registers(instruction, Role.READ | Role.WRITE)
        if any(used & registers(code[p], Role.WRITE) for p in ages):
            return False
        publishes = instruction.name.startswith(("s_barrier_signal", "tensor_", "s_endpgm"))
        if publishes and not set(ages) <= set(with_it[at] or {}):
            return False
    return overwrites_nothing_unread(code, pc, "vm_vsrc")


def overwrites_nothing_unread(code: Code, pc: int, counter: str) -> bool:
    """Without the wait, no instruction writes a register that a memory instruction before it may
    not have read.
    """
    without = outstanding(code, counter, removed=pc)
    return not any(
        registers(instruction, Role.WRITE) & registers(code[p], Role.READ)
        for instruction, ages in zip(code, without, strict=True)
        for p in ages or {}
    )


def publishes_what_nobody_reads(code: Code, pc: int, counter: str) -> bool:
    """After the barrier that follows, no LDS access comes before an equal or stronger wait and one
    more whole barrier.
    """
    left = waited_for(code[pc], counter)
    assert left is not None
    # A state is how far a path has come: 0 before the barrier's wait, 1 after it, 2 with the
    # stronger wait, 3 signalled again.
    pending, seen = [(s, 0) for s in successors(code, pc)], set()
    while pending:
        at, state = pending.pop()
        if (at, state) in seen:
            continue
        seen.add((at, state))
        name, again = code[at].name, waited_for(code[at], counter)
        if name.startswith("tensor_") or (state and name.startswith("ds_")):
            return False
        if again is not None and again <= left and state == 1:
            state = 2
        elif name == "s_barrier_wait" and state == 3:
            continue
        elif name == "s_barrier_wait" and state == 0:
            state = 1
        elif name == "s_barrier_signal" and state == 2:
            state = 3
        pending += [(s, state) for s in successors(code, at)]
    return True


def overwrites_nothing_untranslated(code: Code, pc: int) -> bool:
    """Without the wait, no instruction writes a register that a memory instruction before it may
    read again for the translation of its address.
    """
    return not emulator_translations.overwritten(code, removed=pc)


def why_redundant(code: Code, mutant: Mutant) -> str | None:
    """Return the name of the proof that the removed wait changes nothing, None if there is no
    proof.
    """
    instruction = code[mutant.pc]
    counter = instruction.name.removeprefix("s_wait_")
    if not instruction.name.startswith("s_wait_"):
        return None
    if counter == "xcnt":
        proven = overwrites_nothing_untranslated(code, mutant.pc)
        return overwrites_nothing_untranslated.__name__ if proven else None
    if counter == "alu":
        vector_memory = any(
            i.name.startswith(("global_load", "global_store", "scratch_")) for i in code
        )
        waits_for_results = instruction.operands[0].value >> 12 != _NO_RESULT_WAIT
        if vector_memory or waits_for_results:
            return None
        counter = "vm_vsrc"
    proofs = [waits_for_nothing]
    proofs += {
        "dscnt": [is_made_up_for],
        "tensorcnt": [publishes_what_nobody_reads],
        "vm_vsrc": [overwrites_nothing_unread],
    }.get(counter, [])
    return next((proof.__name__ for proof in proofs if proof(code, mutant.pc, counter)), None)
