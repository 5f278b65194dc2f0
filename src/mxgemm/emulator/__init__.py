"""Runs a compiled AMD kernel's real machine code on the CPU, adversarially about time.

Asynchronous operations complete as early or as late as the program's waits allow, destinations are
poisoned at issue, waves interleave by seed, and what the hardware does not guarantee is a typed
`Hazard` even when the values come out right. Depends on `mxgemm.formats` and `mxgemm.errors` only;
no torch.
"""

from mxgemm.emulator.faults import (
    AccessError,
    BarrierHazard,
    Deadlock,
    DecodeError,
    DescriptorHazard,
    EmulatorError,
    EncodingHazard,
    ExecHazard,
    ExecutionError,
    ExecutionHazard,
    ExpertWait,
    InstructionLimit,
    LaunchError,
    LoadError,
    MatrixDistance,
    MissingWait,
    RaceHazard,
    RegisterBank,
    ReplayHazard,
    UninitialisedRead,
    UnsupportedInstruction,
)
from mxgemm.emulator.machine import Checks, Kernel, Machine
from mxgemm.emulator.memory import Memory, Region
from mxgemm.emulator.result import Counters, EventKind, LaunchResult, Trace

__all__ = [
    "AccessError",
    "BarrierHazard",
    "Checks",
    "Counters",
    "Deadlock",
    "DecodeError",
    "DescriptorHazard",
    "EmulatorError",
    "EncodingHazard",
    "EventKind",
    "ExecHazard",
    "ExecutionError",
    "ExecutionHazard",
    "ExpertWait",
    "InstructionLimit",
    "Kernel",
    "LaunchError",
    "LaunchResult",
    "LoadError",
    "Machine",
    "MatrixDistance",
    "Memory",
    "MissingWait",
    "RaceHazard",
    "Region",
    "RegisterBank",
    "ReplayHazard",
    "Trace",
    "UninitialisedRead",
    "UnsupportedInstruction",
]
