"""What a launch leaves behind: counters, and the trace of what happened when."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Sums over the workgroups of a launch.

    executed: uint64 [instructions of the kernel], how often each pc was executed.
    lds_cycles, lds_conflict_cycles: passes of the 64-bank LDS pipe, and those of them that bank
    conflicts added.
    lds_high_water: one past the highest LDS byte touched.
    tensor bytes count what was moved, not what was out of range.
    """

    executed: NDArray[np.uint64]
    instructions: int
    lds_read_bytes: int
    lds_written_bytes: int
    lds_cycles: int
    lds_conflict_cycles: int
    tensor_load_bytes: int
    tensor_store_bytes: int
    global_read_bytes: int
    global_written_bytes: int
    lds_high_water: int
    barriers: int


class EventKind(IntEnum):
    """What a trace event says."""

    ISSUE = 0
    RETIRE = 1
    SIGNAL = 2
    BARRIER = 3
    END = 4


class Trace:
    """Events in the order they happened, as arrays of equal length.

    tick: instructions issued so far in the cluster. issue_tick: of a retirement, when the operation
    was issued.
    workgroup: position in launch order. wave: number in its workgroup. pc, kind: see `EventKind`.
    """

    def __init__(self, words: NDArray[np.uint32], waves_per_workgroup: int) -> None:
        wide = words[:, :4].copy().view(np.uint64)
        self.tick = wide[:, 0]
        self.issue_tick = wide[:, 1]
        self.workgroup = words[:, 4] + words[:, 5] // waves_per_workgroup
        self.wave = words[:, 5] % waves_per_workgroup
        self.pc = words[:, 6].copy()
        self.kind = words[:, 7].copy()

    def __len__(self) -> int:
        return len(self.tick)


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """Counters, and the trace where the launch asked for one."""

    counters: Counters
    trace: Trace | None
