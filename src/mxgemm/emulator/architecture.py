"""What an architecture's folder hands to the rest of the emulator, and the one place where
architectures are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from mxgemm.emulator.faults import LoadError
from mxgemm.emulator.instruction import Instruction
from mxgemm.emulator.rates import Rates

_FOLDERS = {"gfx1250": "mxgemm.emulator.gfx1250"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Architecture:
    """Static facts and the two front ends.

    `max_grid` is in workgroups along each axis. `parse(lines)` and `decode(code, base_address)`
    return the same instructions for the same kernel.
    """

    name: str
    elf_machine_flag: int
    lanes: int
    max_lds_bytes: int
    max_workgroup_items: int
    max_grid: tuple[int, int, int]
    max_cluster: int
    parse: Callable[[Sequence[str]], tuple[Instruction, ...]]
    decode: Callable[[bytes, int], tuple[Instruction, ...]]
    rates: Rates


def find(name: str) -> Architecture:
    """Return the architecture called `name`. Raises `LoadError` for one that is not emulated."""
    if name not in _FOLDERS:
        raise LoadError(f"Machine({name!r}): the architecture must be one of {sorted(_FOLDERS)}")
    architecture: Architecture = import_module(_FOLDERS[name]).ARCHITECTURE
    return architecture
