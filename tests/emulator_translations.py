"""Which memory instructions' addresses may not be translated yet before each instruction of a
kernel, over all its paths: the rules of `mxgemm.emulator`'s ReplayHazard, read off the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mxgemm.emulator.instruction import Instruction, Kind, Role

SCALAR_LOAD = "s_load_"
VECTOR_LOADS = ("global_load_", "scratch_load_")
VECTOR_STORES = ("global_store_", "scratch_store_")
VECTOR = (*VECTOR_LOADS, *VECTOR_STORES)
WAIT_BY_THEMSELVES = (
    "s_barrier_signal",
    "s_barrier_wait",
    "s_branch",
    "s_cbranch_",
    "s_set_vgpr_msb",
    "s_setreg_",
)
EXEC, NULL = (Kind.SCALAR, 126), (Kind.SCALAR, 124)
WRITES_EXEC = ("v_cmpx_",)
MANY = 64  # more than any counter holds

Code = Sequence[Instruction]
Register = tuple[Kind, int]


@dataclass(frozen=True, slots=True)
class Since:
    """What has been issued, at least, on every path from a memory instruction to here: younger
    vector memory instructions; loads and stores, itself among them.
    """

    younger: int = 0
    loads: int = 0
    stores: int = 0

    def then(self, name: str) -> Since:
        """Return what it is after one more vector memory instruction."""
        return Since(
            min(self.younger + 1, MANY),
            min(self.loads + name.startswith(VECTOR_LOADS), MANY),
            min(self.stores + name.startswith(VECTOR_STORES), MANY),
        )

    def join(self, other: Since) -> Since:
        """Return what holds on both of two paths."""
        return Since(
            min(self.younger, other.younger),
            min(self.loads, other.loads),
            min(self.stores, other.stores),
        )


Pending = dict[int, Since]
"""By the pc of the memory instruction."""


def _is_scalar(code: Code, pc: int) -> bool:
    return code[pc].name.startswith(SCALAR_LOAD)


def _waits(instruction: Instruction) -> dict[str, int]:
    """Return how many operations a wait leaves outstanding, by counter."""
    if not instruction.name.startswith("s_wait_") or instruction.name == "s_wait_alu":
        return {}
    counters = instruction.name.removeprefix("s_wait_").split("_")
    value = instruction.operands[0].value
    left = [value] if len(counters) == 1 else [value >> 8, value & 63]
    return dict(zip(counters, left, strict=True))


def _is_proven(scalar: bool, since: Since, waits: dict[str, int]) -> bool:
    if scalar:
        return waits.get("xcnt") == 0 or waits.get("kmcnt") == 0
    return (
        since.younger >= waits.get("xcnt", MANY + 1)
        or since.loads > waits.get("loadcnt", MANY)
        or (since.stores > 0 and waits.get("storecnt") == 0)
    )


def _after(code: Code, pc: int, before: Pending, removed: int) -> Pending:
    instruction = code[pc]
    name = instruction.name
    if name.startswith(WAIT_BY_THEMSELVES):
        return {}
    if name.startswith((SCALAR_LOAD, *VECTOR)):
        group = of_group(code, pc, before)
        own = Since(0, name.startswith(VECTOR_LOADS), name.startswith(VECTOR_STORES))
        if not _is_scalar(code, pc):
            group = {p: since.then(name) for p, since in group.items()}
        return group | {pc: own}
    waits = {} if pc == removed else _waits(instruction)
    return {p: s for p, s in before.items() if not _is_proven(_is_scalar(code, p), s, waits)}


def of_group(code: Code, pc: int, pending: Pending) -> Pending:
    """Return what is left when the memory instruction at `pc` starts: only its own kind."""
    return {p: s for p, s in pending.items() if _is_scalar(code, p) == _is_scalar(code, pc)}


def untranslated(code: Code, removed: int = -1) -> list[Pending | None]:
    """Return, for every instruction, what may be untranslated before it, None where no path leads;
    the wait at `removed` waits for nothing.
    """
    before: list[Pending | None] = [None] * len(code)
    before[0] = {}
    changed = [0]
    while changed:
        pc = changed.pop()
        after = _after(code, pc, before[pc] or {}, removed)
        ways = [] if code[pc].name in {"s_endpgm", "s_branch"} else [pc + 1]
        if (target := code[pc].target) is not None:
            ways.append(target)
        for at in ways:
            known = before[at]
            joined = dict(known or {})
            for p, since in after.items():
                joined[p] = since.join(joined[p]) if p in joined else since
            if known is None or joined != known:
                before[at] = joined
                changed.append(at)
    return before


def registers(instruction: Instruction, role: Role) -> set[Register]:
    """Return the registers that an instruction, or either half of a pair, reads or writes."""
    return {
        (o.kind, o.index + n)
        for half in (instruction, instruction.second)
        if half
        for o in half.operands
        if o.role & role and o.kind in {Kind.VECTOR, Kind.SCALAR}
        for n in range(o.words)
    }


def _read_again(code: Code, pc: int) -> set[Register]:
    implied = set() if _is_scalar(code, pc) else {EXEC}
    return (registers(code[pc], Role.READ) | implied) - {NULL}


def _written(instruction: Instruction) -> set[Register]:
    name = instruction.name
    exec_too = name.startswith(WRITES_EXEC) or "saveexec" in name
    return registers(instruction, Role.WRITE) | ({EXEC} if exec_too else set())


def overwritten(code: Code, removed: int = -1) -> list[tuple[int, int]]:
    """Return (pc of the memory instruction, pc of the write) of every register that an instruction
    may overwrite too early.
    """
    return [
        (p, at)
        for at, pending in enumerate(untranslated(code, removed))
        if pending and not code[at].name.startswith(VECTOR)
        for p in (of_group(code, at, pending) if _is_scalar(code, at) else pending)
        if _written(code[at]) & _read_again(code, p)
    ]
