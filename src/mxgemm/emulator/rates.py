"""The rates that the performance model assumes, as data with their sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mxgemm.emulator.instruction import Instruction


@dataclass(frozen=True, slots=True)
class Rate:
    """One assumed number."""

    name: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What the model knows of a device. `units` sorts mnemonics by prefix; `matrix_cycles` is the
    pipe's occupancy.
    """

    table: tuple[Rate, ...]
    units: Mapping[
        str, str
    ]  # mnemonic prefix -> "matrix", "lds", "tensor", "load", "store", "scalar_load"; longest match
    counters: Mapping[str, str]  # unit -> name of its wait counter
    matrix_cycles: Callable[[Instruction], int]

    def __getitem__(self, name: str) -> float:
        """Return the value of the rate called `name`."""
        return next(rate.value for rate in self.table if rate.name == name)

    def unit(self, instruction: Instruction) -> str | None:
        """Return which unit an instruction keeps busy besides its issue slot."""
        matches = [prefix for prefix in self.units if instruction.name.startswith(prefix)]
        return self.units[max(matches, key=len)] if matches else None
