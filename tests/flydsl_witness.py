"""AMD's own FP8 x MXFP4 GEMM for gfx1250, compiled from a checkout of FlyDSL's repository and run
in the emulator.

The checkout (setting MXGEMM_FLYDSL_REPO) is Apache-2.0 and stays outside this repository. Operand
layouts follow the kernel's
own test: A plain E4M3 rows, B preshuffled in 16 x 16 byte tiles, scales in 32-row groups of four
bytes. `python tests/flydsl_witness.py` rewrites the log in docs/measurements.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mxgemm.emulator import LaunchResult, Machine
from mxgemm.formats import E2M1, E4M3, E8M0, ElementFormat
from mxgemm.settings import FLYDSL_KERNELS, ROCM_PATH

LOG = Path(__file__).parents[1] / "docs/measurements/emulator_witness.md"
LINKERS = ("ld.lld-19", "ld.lld-20", "ld.lld-21", "ld.lld-22", "ld.lld")
PAD_BYTES = 16  # of an LDS row of A
STAGE_ALIGNMENT = 1024

_COMPILE = """
import os, re, sys
import torch
import flydsl.compiler as flyc, flydsl.expr as fx
import flydsl.utils.smem_allocator as allocator
from flydsl.runtime import device
if not hasattr(allocator, "check_smem_capacity"):  # moved since the kernel was written
    allocator.check_smem_capacity = device.check_smem_capacity
sys.path.insert(0, os.environ["WITNESS_REPO"])
from kernels.gemm.gemm_a8w4_mxscale_gfx1250 import launch_gemm_a8w4_mxscale
m, n, k, *config = map(int, sys.argv[2:])
pointer = lambda: flyc.from_c_void_p(fx.Int8, 0, assumed_align=16)
c = torch.zeros(m, n, dtype=torch.bfloat16)
sa, sb = (torch.zeros(r // 32, k, dtype=torch.uint8) for r in (m, n))
tile_m, tile_n, tile_k, m_warp, n_warp, buffers, cluster_m, cluster_n = config
compiled = flyc.compile(
    launch_gemm_a8w4_mxscale, c, pointer(), pointer(), sa, sb, m, fx.Stream(None), n, k, k, n,
    tile_m, tile_n, tile_k, m_warp, n_warp, 0, buffers, cluster_m, cluster_n,
)
escaped = re.search(r'bin = "((?:[^"\\\\]|\\\\.)*)"', compiled._keepalive._ir_text)[1]
code = re.sub(
    rb"\\\\([0-9A-Fa-f]{2}|.)",
    lambda x: bytes([int(x[1], 16)]) if len(x[1]) == 2 else x[1],
    escaped.encode("utf-8"),
)
open(sys.argv[1], "wb").write(code)
"""


@dataclass(frozen=True)
class Case:
    """One problem and one configuration of the kernel."""

    m: int
    n: int
    k: int
    tile_m: int
    tile_n: int
    tile_k: int
    waves_m: int
    waves_n: int
    buffers: int
    cluster_m: int = 1
    cluster_n: int = 1

    def __str__(self) -> str:
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        cluster = (
            f"-cluster{self.cluster_m}x{self.cluster_n}"
            if self.cluster_m * self.cluster_n > 1
            else ""
        )
        waves = f"waves{self.waves_m}x{self.waves_n}"
        return f"m{self.m}-n{self.n}-k{self.k}-tile{tile}-{waves}-buffers{self.buffers}{cluster}"

    @property
    def lds_bytes(self) -> int:
        """The kernel's arena: its stages, or the output tile where that is larger."""
        stage = self.tile_m * (self.tile_k + PAD_BYTES) + self.tile_n * self.tile_k // 2
        stage += (self.tile_m + self.tile_n) // 32 * self.tile_k
        stage = -(-stage // STAGE_ALIGNMENT) * STAGE_ALIGNMENT
        return max(self.buffers * stage, self.tile_m * self.tile_n * 2)


CASES = (
    Case(256, 256, 1024, 256, 256, 256, 2, 4, 2),
    Case(200, 256, 2048, 256, 256, 256, 2, 4, 2),
    Case(256, 512, 1024, 128, 256, 128, 2, 2, 3),
    Case(512, 256, 1024, 128, 128, 128, 2, 2, 3, 2, 2),
)


def compile_case(case: Case) -> bytes:
    """Return the code object of the kernel for `case`, compiled in a child process."""
    with tempfile.TemporaryDirectory() as folder:
        rocm = ROCM_PATH.read()
        if not rocm:
            linked = Path(folder) / "llvm/bin/ld.lld"
            linked.parent.mkdir(parents=True)
            found = [
                p for name in LINKERS for d in os.get_exec_path() if (p := Path(d) / name).exists()
            ]
            linked.symlink_to(found[0])
            rocm = folder
        output = Path(folder) / "kernel.elf"
        environment = os.environ | {
            "ARCH": "gfx1250",
            "FLYDSL_GPU_ARCH": "gfx1250",
            "FLYDSL_RUNTIME_ENABLE_CACHE": "0",
            "ROCM_PATH": rocm,
            "WITNESS_REPO": FLYDSL_KERNELS.read(),
        }
        numbers = [
            case.m,
            case.n,
            case.k,
            case.tile_m,
            case.tile_n,
            case.tile_k,
            case.waves_m,
            case.waves_n,
            case.buffers,
        ]
        numbers += [case.cluster_m, case.cluster_n]
        command = [sys.executable, "-c", _COMPILE, str(output), *map(str, numbers)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AssertionError(done.stderr[-2000:])
        return output.read_bytes()


def round_to_bf16(x: np.ndarray) -> np.ndarray:
    """Return the uint16 BF16 codes nearest to float64 values, ties to even."""
    exponent = np.frexp(x)[1] - 8  # units of 8 significant bits
    return (
        np.ldexp(np.rint(np.ldexp(x, -exponent)), exponent).astype(np.float32).view(np.uint32) >> 16
    ).astype(np.uint16)


def _preshuffled_scales(scales: np.ndarray) -> np.ndarray:
    rows, blocks = scales.shape
    padded = np.zeros((-(-rows // 32) * 32, blocks), np.uint8)
    padded[:rows] = scales
    return np.ascontiguousarray(padded.reshape(-1, 32, blocks // 4, 4).transpose(0, 2, 1, 3))


def _values(codes: np.ndarray, element: ElementFormat, scales: np.ndarray) -> np.ndarray:
    return np.array(element.values)[codes] * np.repeat(np.array(E8M0.values)[scales], 32, 1)


def _layout(rows: int, columns: int) -> bytes:
    """Return the extents and the stride that follow a tensor argument's pointer."""
    return struct.pack("<iiq", rows, columns, columns)


def run_case(
    code: bytes, case: Case, timing: str, seed: int
) -> tuple[np.ndarray, np.ndarray, LaunchResult]:
    """Return BF16 output and float64 product, [m, n] each, and the launch's result."""
    rng = np.random.default_rng(seed)
    m, n, k = case.m, case.n, case.k
    a = (
        rng.integers(0, 126, (m, k), dtype=np.uint8)
        | rng.integers(0, 2, (m, k), dtype=np.uint8) << 7
    )
    b = rng.integers(0, 16, (n, k), dtype=np.uint8)
    scale_a, scale_b = (rng.integers(120, 135, (rows, k // 32), dtype=np.uint8) for rows in (m, n))
    product = _values(a, E4M3, scale_a) @ _values(b, E2M1, scale_b).T
    packed = (b[:, ::2] | b[:, 1::2] << 4).reshape(n // 16, 16, k // 32, 16).transpose(0, 2, 1, 3)
    out = np.full((m, n), 0xFFFF, np.uint16)
    buffers = [
        out,
        a,
        np.ascontiguousarray(packed),
        _preshuffled_scales(scale_a),
        _preshuffled_scales(scale_b),
    ]
    machine = Machine("gfx1250")
    machine.load(code)
    c, pa, pb, psa, psb = (
        machine.memory.map(0x10_0000_0000 * (i + 1), buffer=x) for i, x in enumerate(buffers)
    )
    result = machine.launch(
        (-(-m // case.tile_m), -(-n // case.tile_n)),
        args=[
            c,
            _layout(m, n),
            pa,
            pb,
            psa,
            _layout(-(-m // 32), k),
            psb,
            _layout(n // 32, k),
            m,
            n,
            k,
            k,
            n,
        ],
        lds_bytes=case.lds_bytes,
        timing=timing,  # type: ignore[arg-type]
        seed=seed,
        cluster=(case.cluster_m, case.cluster_n, 1),
    )
    return out, product, result


def errors(out: np.ndarray, product: np.ndarray) -> tuple[float, float]:
    """Return the largest relative error against the product, and the share of outputs that are its
    nearest BF16 value.
    """
    values = (out.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    relative = np.abs(values - product) / np.maximum(
        np.abs(product), np.abs(product).max() * 2.0**-12
    )
    return float(relative.max()), float((out == round_to_bf16(product)).mean())


def revision() -> str:
    """Return the checkout's commit, or what its archive is called."""
    done = subprocess.run(
        ["git", "-C", FLYDSL_KERNELS.read(), "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or os.environ.get("WITNESS_REVISION", "unknown")


def write_log() -> None:
    """Compile and run every case in every timing mode and write the table."""
    import importlib.metadata

    lines = [
        "# AMD's kernel in the emulator",
        "",
        "FlyDSL's `kernels/gemm/gemm_a8w4_mxscale_gfx1250.py` (FP8 E4M3 activations, MXFP4",
        f"weights, BF16 output), repository ROCm/FlyDSL at commit `{revision()}`,",
        f"compiled with FlyDSL {importlib.metadata.version('flydsl')} and run by",
        f"`mxgemm.emulator` on {time.strftime('%d %B %Y', time.gmtime())}. Race detector and",
        'register checks on; no hazard. The reference is the float64 product. "Nearest" is the',
        "share of outputs that are the BF16 value nearest to it; the rest differ by one step,",
        "where FP32 accumulation rounds the other way. Errors are relative to the output, or to",
        "2^-12 of the largest output where that is more.",
        "",
        "| case | timing | seed | largest relative error | nearest | wave instructions |",
        "|---|---|---|---|---|---|",
    ]
    for case in CASES:
        code = compile_case(case)
        for seed, timing in enumerate(("early", "late", "random")):
            out, product, result = run_case(code, case, timing, seed)
            worst, nearest = errors(out, product)
            row = [
                str(case),
                timing,
                str(seed),
                f"{worst:.2e}",
                f"{nearest:.5f}",
                str(result.counters.instructions),
            ]
            lines.append(f"| {' | '.join(row)} |")
    LOG.write_text("\n".join(lines) + "\n")


def has_checkout() -> bool:
    """Return whether the setting names a checkout with the kernel."""
    repository = FLYDSL_KERNELS.read()
    return (
        bool(repository)
        and (Path(repository) / "kernels/gemm/gemm_a8w4_mxscale_gfx1250.py").exists()
    )


if __name__ == "__main__":
    write_log()
