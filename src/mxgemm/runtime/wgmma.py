"""The CUDA header of Hopper's E4M3 warpgroup multiplications: one struct for each accumulator
width, written out by rule.

An accumulator of m64nN has N/2 registers a thread and inline PTX wants each of them named, so the
text is made here rather than kept. Source: PTX ISA, "wgmma.mma_async".
"""

from __future__ import annotations

WIDTHS = (8, 16, 32, 64, 128)
"""Columns N of the accumulators that the kernels use."""

HEADER = """#pragma once
#include "ptx.cuh"

// sum[64 x kColumns] (+)= A[64 x 32] @ B[kColumns x 32].T in E4M3, by one warpgroup. `shared` takes
// A from shared memory, `registers` as 4 words of 4 bytes: rows lane / 4 and lane / 4 + 8, from
// k = 4 (lane % 4) and from 16 more. Without `accumulate` the sum starts anew.
template <int kColumns>
struct Wgmma;
"""


def wgmma_header() -> str:
    """Return the text of wgmma.cuh."""
    return HEADER + "".join(_struct(width) for width in WIDTHS)


def _struct(columns: int) -> str:
    count = columns // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(sum[{i}])' for i in range(count))
    instruction = f"wgmma.mma_async.sync.aligned.m64n{columns}k32.f32.e4m3.e4m3"

    def function(name: str, parameter: str, inputs: str, num_inputs: int) -> str:
        placeholders = [f"%{count + i}" for i in range(num_inputs + 2)]
        *a, b, accumulate = placeholders
        operand = "{" + ", ".join(a) + "}" if num_inputs > 1 else a[0]
        return f"""
  static DEVICE void {name}(float (&sum)[{count}], {parameter}, u64 b, int accumulate) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, {accumulate}, 0;\\n"
                 "{instruction} {{{sums}}}, {operand}, {b}, p, 1, 1;\\n}}"
                 : {outputs} : {inputs}, "l"(b), "r"(accumulate));
  }}"""

    registers = ", ".join(f'"r"(a[{i}])' for i in range(4))
    return (
        f"\ntemplate <>\nstruct Wgmma<{columns}> {{"
        + function("shared", "u64 a", '"l"(a)', 1)
        + function("registers", "const u32 (&a)[4]", registers, 4)
        + "\n};\n"
    )
