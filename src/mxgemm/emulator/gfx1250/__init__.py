"""gfx1250 (CDNA5, wave32): its instruction table, encodings, assembly syntax and calling
convention.
"""

from __future__ import annotations

from mxgemm.emulator.architecture import Architecture
from mxgemm.emulator.gfx1250.encoding import decode
from mxgemm.emulator.gfx1250.performance import RATES
from mxgemm.emulator.gfx1250.table import COUNTERS, ROWS
from mxgemm.emulator.gfx1250.text import parse

ARCHITECTURE = Architecture(
    name="gfx1250",
    elf_machine_flag=0x49,
    lanes=32,
    max_lds_bytes=327_680,
    max_workgroup_items=1024,
    max_cluster=16,
    rows=ROWS,
    counters=COUNTERS,
    parse=parse,
    decode=decode,
    rates=RATES,
)
