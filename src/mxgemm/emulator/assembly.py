"""The text container: an assembly file to kernels, each with its metadata, descriptor and
instruction lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mxgemm.emulator.faults import LoadError
from mxgemm.emulator.metadata import KernelInfo, descriptor_from_directives, kernel_info, read_yaml

_TARGET = re.compile(r'^\s*\.amdgcn_target\s+"[^"]*?(gfx\w+)', re.MULTILINE)
_METADATA = re.compile(
    r"^\s*\.amdgpu_metadata\n(.*?)^\s*\.end_amdgpu_metadata", re.MULTILINE | re.DOTALL
)
_DESCRIPTOR = r"^\s*\.amdhsa_kernel\s+{name}\s*\n(.*?)^\s*\.end_amdhsa_kernel"
_DIRECTIVE = re.compile(r"^\s*\.amdhsa_(\w+)\s+(\d+)\s*$", re.MULTILINE)
_COMMENT = re.compile(r"\s*(;|//).*$")
_LABEL = re.compile(r"^[.\w$]+:$")


@dataclass(frozen=True, slots=True)
class KernelText:
    """One kernel of an assembly file: its instructions and labels, one a line, without comments and
    directives.
    """

    info: KernelInfo
    lines: tuple[str, ...]


def read_assembly(text: str, architecture: str) -> tuple[KernelText, ...]:
    """Return the kernels of the assembly file `text`, as LLVM prints it.

    Raises `LoadError` without metadata, without a kernel's descriptor or for another architecture.
    """
    target = _TARGET.search(text)
    if target and target[1] != architecture:
        raise LoadError(f"load: the assembly must be for {architecture}, got {target[1]}")
    metadata = _METADATA.search(text)
    if not metadata:
        raise LoadError(
            "load: the assembly has no .amdgpu_metadata; give the compiler's final output, not a "
            "part of it"
        )
    kernels = read_yaml(metadata[1]).get("amdhsa.kernels") or []
    if not kernels:
        raise LoadError("load: the assembly's metadata names no kernel")
    return tuple(_kernel(text, entry) for entry in kernels)


def _kernel(text: str, entry: dict[str, object]) -> KernelText:
    name = str(entry[".name"])
    descriptor = re.search(_DESCRIPTOR.format(name=re.escape(name)), text, re.MULTILINE | re.DOTALL)
    if not descriptor:
        raise LoadError(f"load of {name}: the assembly has no .amdhsa_kernel for it")
    directives = {key: int(value) for key, value in _DIRECTIVE.findall(descriptor[1])}
    return KernelText(
        kernel_info(entry, descriptor_from_directives(directives)), _function(text, name)
    )


def _function(text: str, name: str) -> tuple[str, ...]:
    lines = text.splitlines()
    start = next(
        (n for n, line in enumerate(lines) if line.split(";")[0].strip() == f"{name}:"), None
    )
    if start is None:
        raise LoadError(f"load of {name}: the assembly has no function of that name")
    found = []
    for line in lines[start + 1 :]:
        code = _COMMENT.sub("", line).strip()
        if code.startswith((".Lfunc_end", ".section", ".size", ".amdhsa_kernel")):
            break
        if _LABEL.match(code) or (code and not code.startswith(".")):
            found.append(code)
    return tuple(found)
