"""gfx1250 (CDNA5, wave32): its instruction table, encodings, assembly syntax and calling
convention.
"""

from __future__ import annotations

from mxgemm.emulator.architecture import Architecture
from mxgemm.emulator.gfx1250.encoding import decode
from mxgemm.emulator.gfx1250.performance import RATES
from mxgemm.emulator.gfx1250.text import parse

MAX_GRID = (0x7FFF_FFFF, 0xFFFF, 0xFFFF)
"""Workgroups along each axis, as ROCm's runtime states it: a wave finds its workgroup's y and z in
16 bits each of TTMP7 (LLVM's AMDGPU backend, architected SGPRs)."""

ARCHITECTURE = Architecture(
    name="gfx1250",
    elf_machine_flag=0x49,
    lanes=32,
    max_lds_bytes=327_680,
    max_workgroup_items=1024,
    max_grid=MAX_GRID,
    max_cluster=16,
    parse=parse,
    decode=decode,
    rates=RATES,
)
