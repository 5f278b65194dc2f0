"""Small gfx1250 programs for tests: assembly with metadata around some instructions, LLVM's tools,
and runs of one wave.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mxgemm.emulator import Checks, LaunchResult, Machine

NAME = "program"
LANES = 32
LLVM_MC, LLVM_OBJDUMP, LINKER = "llvm-mc-22", "llvm-objdump-22", "ld.lld-19"

needs_llvm = pytest.mark.skipif(
    shutil.which(LLVM_MC) is None or shutil.which(LINKER) is None,
    reason=f"needs {LLVM_MC} and {LINKER} (Debian packages llvm-22 and lld-19)",
)


def assembly(
    lines: str | Sequence[str],
    *,
    arguments: Sequence[int] = (),
    block: int | None = LANES,
    registers: int = 1024,
    scratch_bytes: int = 0,
    static_lds: int = 0,
) -> str:
    """Return a whole assembly file with one kernel of `lines`; s_endpgm is added.

    arguments: sizes in bytes; 8 stands for a pointer.
    """
    body = lines if isinstance(lines, str) else "\n".join(lines)
    offsets, offset = [], 0
    for size in arguments:
        offset = -(-offset // size) * size
        offsets.append(offset)
        offset += size
    entries = "".join(
        f"      - .offset: {at}\n        .size: {size}\n"
        f"        .value_kind: {'global_buffer' if size == 8 else 'by_value'}\n"
        for at, size in zip(offsets, arguments, strict=True)
    )
    required = (
        f"    .reqd_workgroup_size:\n      - {block}\n      - 1\n      - 1\n" if block else ""
    )
    return f"""	.amdgcn_target "amdgcn-amd-amdhsa-unknown-gfx1250"
	.amdhsa_code_object_version 6
	.text
	.globl	{NAME}
	.p2align	8
	.type	{NAME},@function
{NAME}:
{body}
	s_endpgm
.Lfunc_end0:
	.size	{NAME}, .Lfunc_end0-{NAME}
	.section	.rodata,"a",@progbits
	.p2align	6, 0x0
	.amdhsa_kernel {NAME}
		.amdhsa_group_segment_fixed_size {static_lds}
		.amdhsa_private_segment_fixed_size {scratch_bytes}
		.amdhsa_kernarg_size {offset}
		.amdhsa_user_sgpr_count 2
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_next_free_vgpr {registers}
		.amdhsa_next_free_sgpr 100
	.end_amdhsa_kernel
	.text
	.amdgpu_metadata
---
amdhsa.kernels:
  - .args:{" []" if not arguments else ""}
{entries}    .group_segment_fixed_size: {static_lds}
    .kernarg_segment_align: 8
    .kernarg_segment_size: {offset}
    .max_flat_workgroup_size: 1024
    .name:           {NAME}
    .private_segment_fixed_size: {scratch_bytes}
{required}    .sgpr_count:     100
    .sgpr_spill_count: 0
    .symbol:         {NAME}.kd
    .vgpr_count:     {registers}
    .vgpr_spill_count: 0
    .wavefront_size: 32
amdhsa.target:   amdgcn-amd-amdhsa-unknown-gfx1250
amdhsa.version:
  - 1
  - 2
...
	.end_amdgpu_metadata
"""


def _tool(*command: str, data: bytes) -> bytes:
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    if done.returncode:
        raise AssertionError(done.stderr.decode()[:2000])
    return done.stdout


def assemble(text: str, folder: Path) -> bytes:
    """Return the linked code object that LLVM makes of an assembly file."""
    relocatable, linked = folder / "program.o", folder / "program.elf"
    _tool(
        LLVM_MC,
        "-triple=amdgcn-amd-amdhsa-unknown",
        "-mcpu=gfx1250",
        "-filetype=obj",
        "-o",
        str(relocatable),
        data=text.encode(),
    )
    _tool(LINKER, "-shared", str(relocatable), "-o", str(linked), data=b"")
    return linked.read_bytes()


def encode(lines: Sequence[str]) -> list[bytes | str]:
    """Return LLVM's machine code for every line, or its complaint."""
    done = subprocess.run(
        [
            LLVM_MC,
            "-triple=amdgcn-amd-amdhsa-unknown",
            "-mcpu=gfx1250",
            "-mattr=+real-true16",
            "--show-encoding",
        ],
        input="\n".join(f".ifdef never\n.endif\n{line}" for line in lines).encode(),
        capture_output=True,
        check=False,
    )
    complaints = dict(
        re.findall(r"^<stdin>:(\d+):\d+: error: (.*)$", done.stderr.decode(), re.MULTILINE)
    )
    codes = iter(re.findall(r"encoding: \[([^\]]*)\]", done.stdout.decode()))
    result: list[bytes | str] = []
    for number in range(len(lines)):
        complaint = complaints.get(str(3 * number + 3))
        result.append(complaint or bytes(int(byte, 16) for byte in next(codes).split(",")))
    return result


@dataclass
class State:
    """A wave's registers after a program."""

    vectors: dict[int, np.ndarray]
    scalars: list[int]
    scc: bool
    lds: np.ndarray
    result: LaunchResult

    def vector64(self, register: int) -> np.ndarray:
        """Return a register pair as uint64 [32]."""
        return self.vectors[register].astype(np.uint64) | self.vectors[register + 1].astype(
            np.uint64
        ) << np.uint64(32)

    def scalar64(self, register: int) -> int:
        """Return a scalar pair."""
        return self.scalars[register] | self.scalars[register + 1] << 32


@functools.lru_cache(maxsize=4096)
def _loaded(text: str) -> tuple[Machine, object]:
    machine = Machine("gfx1250")
    return machine, machine.load(text)


def run_wave(
    lines: str | Sequence[str],
    *,
    vectors: Mapping[int, np.ndarray] | None = None,
    scalars: Mapping[int, int] | None = None,
    scc: bool = False,
    lds_bytes: int = 0,
    block: int = LANES,
    prepare: Callable[[Machine], Sequence[object]] | None = None,
    arguments: Sequence[int] = (),
    scratch_bytes: int = 0,
    checks: Checks | None = None,
    **launch: object,
) -> State:
    """Run `lines` in one workgroup from the given register values; return the first wave's last
    state.

    prepare: maps memory and returns the launch's arguments.
    """
    machine, kernel = _loaded(
        assembly(lines, arguments=arguments, block=block, scratch_bytes=scratch_bytes)
    )
    machine = Machine("gfx1250") if prepare else machine
    ends: list[State] = []

    def start(wave) -> None:
        for register, values in (vectors or {}).items():
            wave.set_vector(register, np.ascontiguousarray(values).view(np.uint32))
        for register, value in (scalars or {}).items():
            wave.set_scalar(register, value)
        wave.scc = scc

    def end(wave) -> None:
        if wave.index == 0:
            found = {i: wave.vector(i) for i in range(64)}
            ends.append(
                State(found, [wave.scalar(i) for i in range(128)], wave.scc, wave.lds, None)
            )  # type: ignore[arg-type]

    args = prepare(machine) if prepare else ()
    machine.hook("start", start)
    machine.hook("end", end)
    result = machine.launch(
        (1, 1, 1), args=args, lds_bytes=lds_bytes, kernel=kernel, checks=checks, **launch
    )  # type: ignore[arg-type]
    ends[0].result = result
    return ends[0]
