"""A kernel's own description: what it is called, which arguments it takes and which resources it
needs.

Read from the AMDGPU metadata (msgpack in a code object's note, YAML in assembly text) and from the
kernel descriptor (64 bytes, or `.amdhsa_` directives). Source: LLVM "User Guide for AMDGPU
Backend", sections on code object metadata V5 and on the kernel descriptor.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mxgemm.emulator.faults import LoadError

DESCRIPTOR_BYTES = 64


@dataclass(frozen=True, slots=True)
class Argument:
    """One kernel argument: `size` bytes at `offset` of the kernarg segment."""

    offset: int
    size: int
    kind: str

    @property
    def is_pointer(self) -> bool:
        """Whether the argument is an address."""
        return self.kind == "global_buffer"


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What the hardware is told about a kernel, from its descriptor."""

    group_segment_bytes: int
    private_segment_bytes: int
    kernarg_bytes: int
    entry_offset: int
    user_sgprs: int
    kernarg_pointer: bool
    workitem_id_dimensions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelInfo:
    """A kernel's metadata and descriptor."""

    name: str
    arguments: tuple[Argument, ...]
    kernarg_bytes: int
    vector_registers: int
    group_segment_bytes: int
    private_segment_bytes: int
    workitem_id_dimensions: int
    required_block: tuple[int, int, int] | None
    max_block_items: int
    wavefront_size: int


def read_descriptor(data: bytes) -> Descriptor:
    """Return the fields of a 64-byte kernel descriptor."""
    group, private, kernarg = struct.unpack_from("<III", data, 0)
    (entry,) = struct.unpack_from("<q", data, 16)
    resources, properties = (
        struct.unpack_from("<I", data, 52)[0],
        struct.unpack_from("<H", data, 56)[0],
    )
    return Descriptor(
        group_segment_bytes=group,
        private_segment_bytes=private,
        kernarg_bytes=kernarg,
        entry_offset=entry,
        user_sgprs=resources >> 1 & 31,
        kernarg_pointer=bool(properties >> 3 & 1),
        workitem_id_dimensions=(resources >> 11 & 3) + 1,
    )


def descriptor_from_directives(directives: Mapping[str, int]) -> Descriptor:
    """Return the descriptor that `.amdhsa_` directives ask for, by name without prefix."""

    def value(name: str, default: int = 0) -> int:
        return directives.get(name, default)

    return Descriptor(
        group_segment_bytes=value("group_segment_fixed_size"),
        private_segment_bytes=value("private_segment_fixed_size"),
        kernarg_bytes=value("kernarg_size"),
        entry_offset=0,
        user_sgprs=value("user_sgpr_count", 2),
        kernarg_pointer=bool(value("user_sgpr_kernarg_segment_ptr")),
        workitem_id_dimensions=value("system_vgpr_workitem_id") + 1,
    )


def kernel_info(metadata: Mapping[str, Any], descriptor: Descriptor) -> KernelInfo:
    """Return what one entry of `amdhsa.kernels` and its descriptor say together.

    Raises `LoadError` where they ask for initial registers that the emulator does not set up.
    """
    name = str(metadata.get(".name", "?"))
    # A kernel without arguments may have no user registers at all.
    if descriptor.user_sgprs not in (0, 2) or (
        descriptor.kernarg_bytes and not descriptor.kernarg_pointer
    ):
        raise LoadError(
            f"load of {name}: the only user registers that are set up are the kernarg address, "
            f"got {descriptor.user_sgprs} registers; compile without preloaded arguments"
        )
    block = metadata.get(".reqd_workgroup_size")
    return KernelInfo(
        name=name,
        arguments=tuple(_arguments(metadata, name)),
        kernarg_bytes=descriptor.kernarg_bytes,
        vector_registers=int(metadata[".vgpr_count"]),
        group_segment_bytes=descriptor.group_segment_bytes,
        private_segment_bytes=descriptor.private_segment_bytes,
        workitem_id_dimensions=descriptor.workitem_id_dimensions,
        required_block=(int(block[0]), int(block[1]), int(block[2])) if block else None,
        max_block_items=int(metadata.get(".max_flat_workgroup_size", 1024)),
        wavefront_size=int(metadata.get(".wavefront_size", 0)),
    )


def _arguments(metadata: Mapping[str, Any], name: str) -> list[Argument]:
    found = []
    for entry in metadata.get(".args", []):
        argument = Argument(int(entry[".offset"]), int(entry[".size"]), str(entry[".value_kind"]))
        if argument.kind.startswith("hidden_"):
            raise LoadError(
                f"load of {name}: hidden argument {argument.kind} is not supplied by the emulator"
            )
        found.append(argument)
    return found


def read_msgpack(data: bytes) -> Any:
    """Return the value that `data` encodes in msgpack: maps, arrays, strings, integers, booleans
    and nil.
    """
    value, end = _msgpack(data, 0)
    if end > len(data):
        raise LoadError("load: the metadata note is truncated")
    return value


def _msgpack(data: bytes, at: int) -> tuple[Any, int]:
    tag = data[at]
    at += 1
    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 256, at
    if tag < 0x90:
        return _msgpack_map(data, at, tag & 15)
    if tag < 0xA0:
        return _msgpack_array(data, at, tag & 15)
    if tag < 0xC0:
        return data[at : at + (tag & 31)].decode(), at + (tag & 31)
    if tag in _MSGPACK_SIMPLE:
        return _MSGPACK_SIMPLE[tag], at
    if tag not in _MSGPACK_SIZED:
        raise LoadError(f"load: the metadata note uses the msgpack type 0x{tag:02x}")
    code, kind = _MSGPACK_SIZED[tag]
    number = struct.unpack_from(code, data, at)[0]
    at += struct.calcsize(code)
    if kind == "integer":
        return number, at
    if kind == "string":
        return data[at : at + number].decode(), at + number
    return _msgpack_map(data, at, number) if kind == "map" else _msgpack_array(data, at, number)


_MSGPACK_SIMPLE = {0xC0: None, 0xC2: False, 0xC3: True}
_MSGPACK_SIZED = {
    0xCC: (">B", "integer"), 0xCD: (">H", "integer"), 0xCE: (">I", "integer"),
    0xCF: (">Q", "integer"), 0xD0: (">b", "integer"), 0xD1: (">h", "integer"),
    0xD2: (">i", "integer"), 0xD3: (">q", "integer"), 0xD9: (">B", "string"),
    0xDA: (">H", "string"), 0xDB: (">I", "string"), 0xDC: (">H", "array"),
    0xDD: (">I", "array"), 0xDE: (">H", "map"), 0xDF: (">I", "map"),
}  # fmt: skip


def _msgpack_map(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    result = {}
    for _ in range(count):
        key, at = _msgpack(data, at)
        result[key], at = _msgpack(data, at)
    return result, at


def _msgpack_array(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    result = []
    for _ in range(count):
        value, at = _msgpack(data, at)
        result.append(value)
    return result, at


def read_yaml(text: str) -> Any:
    """Return the value of the YAML subset that LLVM prints as metadata: nested maps and lists of
    scalars, by indentation.
    """
    lines = [
        (len(line) - len(line.lstrip()), line.strip())
        for line in text.splitlines()
        if line.strip() not in {"", "---", "..."}
    ]
    value, end = _yaml(lines, 0, lines[0][0]) if lines else ({}, 0)
    if end != len(lines):
        raise LoadError(f"load: the metadata line `{lines[end][1]}` is not understood")
    return value


def _yaml(lines: list[tuple[int, str]], at: int, indent: int) -> tuple[Any, int]:
    return (
        _yaml_list(lines, at, indent)
        if lines[at][1].startswith("- ")
        else _yaml_map(lines, at, indent)
    )


def _yaml_list(lines: list[tuple[int, str]], at: int, indent: int) -> tuple[list[Any], int]:
    result = []
    while at < len(lines) and lines[at][0] == indent and lines[at][1].startswith("- "):
        content = lines[at][1][2:].strip()
        if _is_key(content):
            inner = indent + 2
            lines[at] = (inner, content)
            value, at = _yaml_map(lines, at, inner)
        else:
            value, at = _yaml_scalar(content), at + 1
        result.append(value)
    return result, at


def _yaml_map(lines: list[tuple[int, str]], at: int, indent: int) -> tuple[dict[str, Any], int]:
    result: dict[str, Any] = {}
    while at < len(lines) and lines[at][0] == indent and _is_key(lines[at][1]):
        key, _, rest = lines[at][1].partition(":")
        at += 1
        if rest.strip():
            result[key] = _yaml_scalar(rest.strip())
        elif at < len(lines) and (
            lines[at][0] > indent or (lines[at][0] == indent and lines[at][1].startswith("- "))
        ):
            result[key], at = _yaml(lines, at, lines[at][0])
        else:
            result[key] = None
    return result, at


def _is_key(text: str) -> bool:
    return ":" in text and (text.endswith(":") or ": " in text)


def _yaml_scalar(text: str) -> Any:
    if text in {"true", "false"}:
        return text == "true"
    if text == "[]":
        return []
    try:
        return int(text, 0)
    except ValueError:
        return text.strip("'\"")
