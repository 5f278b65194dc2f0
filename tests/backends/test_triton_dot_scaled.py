"""triton_dot_scaled: what it refuses, that its kernel compiles for every target without one, and
that it multiplies right in Triton's interpreter.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mxgemm.backends.base import RejectionCode
from mxgemm.backends.triton_dot_scaled import TileConfig, TritonDotScaled
from mxgemm.devices import DeviceSpec
from mxgemm.problem import GemmProblem, Numerics

BACKEND = TritonDotScaled()
PROBLEM = GemmProblem(m=64, n=64, k=64, device=DeviceSpec("cuda", "sm_90"))

TARGETS = {
    "sm_90": ("cuda", 90, 32, "wgmma"),
    "sm_100": ("cuda", 100, 32, "tcgen05.mma"),
    "gfx950": ("hip", "gfx950", 64, "v_mfma_scale_f32"),
    "gfx1250": ("hip", "gfx1250", 32, "v_wmma_scale_f32"),
}
POINTERS = ("a_codes", "a_scales", "b_codes", "b_scales")
INTEGERS = ("m", "n", "k", "a_codes_pitch", "a_scales_pitch", "b_codes_pitch", "b_scales_pitch")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"device": DeviceSpec("cpu", "x86_64")}, RejectionCode.DEVICE),
        ({"device": DeviceSpec("cuda", "sm_80")}, RejectionCode.ARCH),
        ({"device": DeviceSpec("rocm", "gfx1250", emulated=True)}, RejectionCode.DEVICE),
        ({"numerics": Numerics.STRICT}, RejectionCode.NUMERICS),
    ],
    ids=lambda value: str(value) if isinstance(value, RejectionCode) else "",
)
def test_check_says_why_not(changes: dict[str, object], code: RejectionCode) -> None:
    rejection = BACKEND.check(dataclasses.replace(PROBLEM, **changes))
    assert rejection is not None
    assert rejection.code is code


def test_it_is_taken_only_when_named() -> None:
    assert BACKEND.check(PROBLEM) is None
    assert not BACKEND.automatic(PROBLEM)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("target", "config"),
    [
        (target, config)
        for target in TARGETS
        for config in (TileConfig(tile_n=256), TileConfig(tile_m=64, num_warps=4))
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.tile_m}x{value.tile_n}",
)
def test_the_kernel_compiles_without_a_device_to_the_targets_own_instruction(
    target: str, config: TileConfig
) -> None:
    triton = pytest.importorskip("triton", reason="IMPORT: needs triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from mxgemm.backends.triton_dot_scaled.kernel import gemm_kernel

    kind, arch, width, instruction = TARGETS[target]
    signature = dict.fromkeys(POINTERS, "*u8") | {"out": "*bf16"}
    signature |= dict.fromkeys(INTEGERS, "i32") | {"out_pitch": "i32", "alpha": "fp32"}
    signature |= dict.fromkeys(config.constants, "constexpr")
    source = ASTSource(fn=gemm_kernel, signature=signature, constexprs=config.constants)
    options = config.options | ({} if kind == "cuda" else {"num_stages": 2})
    compiled = triton.compile(source, target=GPUTarget(kind, arch, width), options=options)
    assembly = compiled.asm["ptx" if kind == "cuda" else "amdgcn"]
    assert instruction in assembly


INTERPRETED_FROM = (3, 9)
"""The first Triton whose interpreter knows dot_scaled on E2M1 operands."""


def test_the_kernel_gives_exact_products_in_tritons_interpreter() -> None:
    triton = pytest.importorskip("triton", reason="IMPORT: needs triton")
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if version < INTERPRETED_FROM:
        pytest.skip(f"VERSION: dot_scaled is interpreted from 3.9 on, got {triton.__version__}")
    program = Path(__file__).parents[1] / "triton_interpreted.py"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
