"""The compiled GEMM kernel of the emulator's tests: its problems, and one run of it or of a broken
copy.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mxgemm.emulator import Kernel, LaunchResult, Machine
from mxgemm.formats import E2M1, E8M0

PATH = Path(__file__).parent / "emulator/kernels/mxfp4_gemm_128x128_f32.s"
SYMBOL = "mxfp4_gemm_0"
TILE = 128
LDS_BYTES = 79_872
BASES = [0x10_0000_0000 * (n + 1) for n in range(5)]
WHOLE_K = 1 << 20  # K tiles of one split: more than any K here


@dataclass(frozen=True, eq=False)
class Problem:
    """Operands in the exact regime, packed as the kernel takes them, and the product."""

    m: int
    n: int
    k: int
    operands: tuple[np.ndarray, ...]
    product: np.ndarray


@functools.cache
def problem(m: int, n: int, k: int, seed: int = 0) -> Problem:
    """Return random codes and scales whose products and sums are all exact in FP32."""
    rng = np.random.default_rng(seed)
    values, operands = [], []
    for rows in (m, n):
        codes = rng.integers(0, 16, (rows, k), dtype=np.uint8)
        scales = rng.integers(125, 130, (rows, k // 32), dtype=np.uint8)
        values.append(
            np.array(E2M1.values)[codes] * np.repeat(np.array(E8M0.values)[scales], 32, 1)
        )
        operands += [codes[:, ::2] | codes[:, 1::2] << 4, scales]
    return Problem(m, n, k, tuple(operands), (values[0] @ values[1].T).astype(np.float32))


def run(kernel: Kernel, p: Problem, **launch: object) -> tuple[np.ndarray, LaunchResult]:
    """Return the kernel's output, NaN where nothing was written, and the launch's result."""
    out = np.full((p.m, p.n), np.nan, np.float32)
    machine = Machine("gfx1250")
    regions = [
        machine.memory.map(base, buffer=array)
        for base, array in zip(BASES, (out, *p.operands), strict=True)
    ]
    unused, strides = [0, 0, 0, 0], [p.k // 2, p.k // 32] * 2
    pitches, sizes = [p.n, 0, 0], [p.m, p.n, p.k // 32, WHOLE_K]
    grid = (-(-p.m // TILE), -(-p.n // TILE), 1)
    result = machine.launch(
        grid,
        args=[*regions, *unused, *strides, *pitches, *sizes, 1.0, 0.0],
        lds_bytes=LDS_BYTES,
        kernel=kernel,
        **launch,  # type: ignore[arg-type]
    )
    return out, result
