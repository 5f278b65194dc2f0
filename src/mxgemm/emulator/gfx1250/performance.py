"""Rates of gfx1250 (MI455X) for the performance model, each with its source; what is not published
says so.
"""

from __future__ import annotations

from mxgemm.emulator.instruction import Instruction
from mxgemm.emulator.rates import Rate, Rates

_FP4 = 4
_FAST_CYCLES, _SLOW_CYCLES = 4, 8

_PAPER = "AMD CDNA5 white paper"
_ISA = "CDNA5 ISA guide, section on local data share"
_LLVM = "LLVM's scheduling model for gfx1250"


def matrix_cycles(instruction: Instruction) -> int:
    """Return how long a matrix operation keeps its pipe."""
    modifiers = dict(instruction.modifiers)
    small = instruction.operands[0].words == 8
    fp4 = modifiers.get("matrix_a_fmt") == modifiers.get("matrix_b_fmt") == _FP4
    return _FAST_CYCLES if small and fp4 else _SLOW_CYCLES


RATES = Rates(
    table=(
        Rate(
            "matrix_fp4_cycles",
            _FAST_CYCLES,
            "cycles of a SIMD's matrix pipe, 16x16x128 with FP4 x FP4",
            _LLVM,
        ),
        Rate(
            "matrix_other_cycles",
            _SLOW_CYCLES,
            "cycles, 32x16x128 FP4 and every other scaled mix",
            _LLVM,
        ),
        Rate("simds", 4, "SIMDs of a workgroup processor; wave w runs on SIMD w mod 4", _PAPER),
        Rate("issue", 1, "instructions a cycle and SIMD", "assumed"),
        Rate(
            "lds_bytes",
            256,
            "bytes a cycle and workgroup processor: 64 banks of 4 bytes",
            _ISA + "; inferred",
        ),
        Rate("lds_latency", 20, "cycles", _LLVM),
        Rate("memory_latency", 320, "cycles, for tensor copies too", _LLVM),
        Rate(
            "tensor_bytes",
            128,
            "bytes a cycle and workgroup processor from L2",
            "not published; half the LDS rate",
        ),
        Rate("clock", 2.4e9, "Hz", _PAPER),
        Rate("processors", 256, "workgroup processors", _PAPER),
        Rate("hbm_bytes", 23.3e12, "bytes a second", _PAPER),
    ),
    units={
        "v_wmma_": "matrix",
        "ds_": "lds",
        "tensor_": "tensor",
        "global_load": "load",
        "scratch_load": "load",
        "global_store": "store",
        "scratch_store": "store",
        "s_load_": "scalar_load",
    },
    counters={
        "lds": "dscnt",
        "tensor": "tensorcnt",
        "load": "loadcnt",
        "store": "storecnt",
        "scalar_load": "kmcnt",
    },
    matrix_cycles=matrix_cycles,
)
