"""The binary container: an AMDGPU ELF to kernels, each with its metadata, descriptor and machine
code.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from mxgemm.emulator.faults import LoadError
from mxgemm.emulator.metadata import (
    DESCRIPTOR_BYTES,
    KernelInfo,
    kernel_info,
    read_descriptor,
    read_msgpack,
)

_MAGIC = b"\x7fELF"
_CLASS_64, _LITTLE_ENDIAN = 2, 1
_MACHINE_AMDGPU = 0xE0
_SYMBOL_TABLES = (2, 11)  # SHT_SYMTAB, SHT_DYNSYM
_NOTE_SECTION, _NOBITS = 7, 8
_NOTE_METADATA = 32
_HEADER_BYTES = 64


@dataclass(frozen=True, slots=True)
class KernelCode:
    """One kernel of a code object: `code` starts at virtual address `address`."""

    info: KernelInfo
    code: bytes
    address: int


@dataclass(frozen=True, slots=True)
class _Section:
    name: int
    type: int
    address: int
    offset: int
    size: int
    link: int
    entry_size: int


class _Elf:
    def __init__(self, data: bytes) -> None:
        if len(data) < _HEADER_BYTES or data[:4] != _MAGIC:
            raise LoadError("load: the bytes must be an ELF file, the magic number is missing")
        if data[4] != _CLASS_64 or data[5] != _LITTLE_ENDIAN:
            raise LoadError("load: the ELF file must be 64 bits, little endian")
        self.data = data
        (self.machine,) = struct.unpack_from("<H", data, 18)
        (offset,) = struct.unpack_from("<Q", data, 40)
        (self.flags,) = struct.unpack_from("<I", data, 48)
        size, count = struct.unpack_from("<HH", data, 58)
        self.sections = [self._section(offset + n * size) for n in range(count)]

    def _section(self, at: int) -> _Section:
        name, kind, _, address, offset, size, link, _, _, entry = struct.unpack_from(
            "<IIQQQQIIQQ", self.read(at, 64)
        )
        return _Section(name, kind, address, offset, size, link, entry)

    def read(self, offset: int, size: int) -> bytes:
        if offset + size > len(self.data):
            raise LoadError(
                f"load: the ELF file is truncated: {offset + size} bytes needed, got "
                f"{len(self.data)}"
            )
        return self.data[offset : offset + size]

    def contents(self, section: _Section) -> bytes:
        return b"" if section.type == _NOBITS else self.read(section.offset, section.size)

    def at_address(self, address: int, size: int) -> bytes:
        for section in self.sections:
            inside = section.address <= address and address + size <= section.address + section.size
            if section.address and inside and section.type != _NOBITS:
                return self.read(section.offset + address - section.address, size)
        raise LoadError(f"load: {size} bytes at address 0x{address:x} are in no section")

    def symbols(self) -> dict[str, tuple[int, int]]:
        """Return address and size by name."""
        found: dict[str, tuple[int, int]] = {}
        for section in self.sections:
            if section.type not in _SYMBOL_TABLES:
                continue
            names, table = self.contents(self.sections[section.link]), self.contents(section)
            for at in range(0, len(table), section.entry_size or 24):
                name, _, _, _, value, size = struct.unpack_from("<IBBHQQ", table, at)
                text = names[name : names.index(b"\0", name)].decode()
                if text:
                    found[text] = (value, size)
        return found

    def metadata(self) -> dict[str, Any]:
        for section in self.sections:
            if section.type != _NOTE_SECTION:
                continue
            notes, at = self.contents(section), 0
            while at + 12 <= len(notes):
                name_size, size, kind = struct.unpack_from("<III", notes, at)
                start = at + 12 + (name_size + 3) // 4 * 4
                if (
                    kind == _NOTE_METADATA
                    and notes[at + 12 : at + 12 + name_size].rstrip(b"\0") == b"AMDGPU"
                ):
                    value: dict[str, Any] = read_msgpack(notes[start : start + size])
                    return value
                at = start + (size + 3) // 4 * 4
        raise LoadError("load: the code object has no AMDGPU metadata note")


def read_code_object(data: bytes, architecture: str, machine_flag: int) -> tuple[KernelCode, ...]:
    """Return the kernels of the code object `data`.

    Raises `LoadError` for anything but a whole AMDGPU ELF file of `architecture` (`machine_flag` in
    its header).
    """
    try:
        elf = _Elf(data)
        if elf.machine != _MACHINE_AMDGPU or elf.flags & 0xFF != machine_flag:
            raise LoadError(
                f"load: the code object must be for {architecture} (machine "
                f"0x{_MACHINE_AMDGPU:x}, flag "
                f"0x{machine_flag:x}), got machine 0x{elf.machine:x}, flag 0x{elf.flags & 0xFF:x}"
            )
        symbols = elf.symbols()
        return tuple(_kernel(elf, symbols, entry) for entry in elf.metadata()["amdhsa.kernels"])
    except (struct.error, IndexError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoadError(f"load: the code object is damaged ({error!r})") from error


def _kernel(elf: _Elf, symbols: dict[str, tuple[int, int]], entry: dict[str, Any]) -> KernelCode:
    name = entry[".name"]
    descriptor_address, _ = symbols[entry[".symbol"]]
    descriptor = read_descriptor(elf.at_address(descriptor_address, DESCRIPTOR_BYTES))
    start = descriptor_address + descriptor.entry_offset
    address, size = symbols[name]
    if address != start:
        raise LoadError(
            f"load of {name}: the descriptor's entry 0x{start:x} is not the function's, "
            f"0x{address:x}"
        )
    return KernelCode(kernel_info(entry, descriptor), elf.at_address(start, size), start)
