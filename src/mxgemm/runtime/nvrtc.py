"""CUDA C++ to machine code in the process, by NVRTC: no CUDA toolkit is needed, and no GPU either.

NVRTC comes with PyTorch's CUDA builds; `cuda-bindings`, which they bring too, finds and calls it.
The sources include nothing but the headers in `runtime/device`, the header written by
`runtime.wgmma`, and headers beside the source.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxgemm.errors import MXError
from mxgemm.runtime import disk_cache
from mxgemm.runtime.wgmma import wgmma_header

HOPPER = "sm_90a"
"""The target of Hopper code: wgmma and setmaxnreg exist in this one only."""

HEADERS = Path(__file__).parent / "device"
SERIALISATION_NOTES = ("C7510", "C7512", "C7514", "C7519", "C7520")
"""What ptxas says when it makes wgmma instructions wait for one another: right and slow."""


@dataclass(frozen=True, slots=True)
class Source:
    """A translation unit.

    Attributes:
        path: the .cu file; headers beside it can be included.
        defines: names and values of macros.
    """

    path: Path
    defines: tuple[tuple[str, int], ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        """Every header that the source may include, by name."""
        found = [*HEADERS.glob("*.cuh"), *self.path.parent.glob("*.cuh")]
        texts = {path.name: path.read_text() for path in sorted(found)}
        return texts | {"wgmma.cuh": wgmma_header()}

    def __str__(self) -> str:
        return " ".join([self.path.name, *(f"{name}={value}" for name, value in self.defines)])


@dataclass(frozen=True, slots=True)
class Compiled:
    """A cubin and what the compiler said about it."""

    cubin: bytes
    log: str

    @property
    def complaints(self) -> list[str]:
        """The lines of the log that tell of spilled registers, stack frames or serialised wgmma."""
        return [
            line.strip()
            for line in self.log.splitlines()
            if re.search(r"[1-9]\d* bytes (stack|spill)", line)
            or any(note in line for note in SERIALISATION_NOTES)
        ]


@functools.cache
def version() -> tuple[int, int]:
    """Return NVRTC's version; ImportError or RuntimeError where there is none."""
    from cuda.bindings import nvrtc

    major, minor = _checked(nvrtc.nvrtcVersion(), "nvrtcVersion")
    return int(major), int(minor)


def compile_source(source: Source, arch: str) -> Compiled:
    """Return `source` compiled for `arch`.

    Args:
        source: what to compile.
        arch: "sm_90a" and the like.

    Raises:
        MXError: the source does not compile; the message holds the compiler's log.
    """
    from cuda.bindings import nvrtc

    headers = source.headers
    texts = [text.encode() for text in headers.values()]
    names = [name.encode() for name in headers]
    program = _checked(
        nvrtc.nvrtcCreateProgram(
            source.path.read_bytes(), source.path.name.encode(), len(texts), texts, names
        ),
        "nvrtcCreateProgram",
    )
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v", "--fmad=false"]
    options += [f"-D{name}={value}" for name, value in source.defines]
    status = nvrtc.nvrtcCompileProgram(
        program, len(options), [option.encode() for option in options]
    )
    log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")
    _checked(nvrtc.nvrtcGetProgramLog(program, log), "nvrtcGetProgramLog")
    text = log.decode(errors="replace").rstrip("\0 ")
    if status[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise MXError(f"NVRTC: {source} must compile for {arch}, got {status[0].name}:\n{text}")
    cubin = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
    _checked(nvrtc.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
    _checked(nvrtc.nvrtcDestroyProgram(program), "nvrtcDestroyProgram")
    return Compiled(cubin, text)


def cubin(source: Source, arch: str) -> bytes:
    """Return the cubin of `source` for `arch`, from the disk cache or compiled now."""
    parts = [source.path.read_text(), *source.headers.values(), str(source), arch, str(version())]
    name = f"{source.path.stem}-{disk_cache.digest(parts)}.cubin"
    return disk_cache.cached(
        f"cuda/{arch}", name, lambda: compile_source(source, arch).cubin, disk_cache.elf
    )


def _checked(result: tuple[Any, ...], call: str) -> Any:
    """Return what an NVRTC call gave besides its status: nothing, one value or a tuple."""
    status, *values = result
    if status != 0:
        raise MXError(f"NVRTC: {call} must succeed, got {status.name}")
    return values[0] if len(values) == 1 else tuple(values)
