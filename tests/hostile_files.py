"""Files that are not what their name says, for every reader that must refuse them in one line."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any


def safetensors_bytes(header: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def _tensor(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


HOSTILE_SAFETENSORS = {
    "empty": b"",
    "shorter-than-its-length-field": b"123",
    "header-longer-than-memory": struct.pack("<Q", 2**62),
    "header-longer-than-file": struct.pack("<Q", 1000) + b"{}",
    "header-no-json": struct.pack("<Q", 4) + b"{{{{",
    "data-cut": safetensors_bytes({"w.weight": _tensor(shape=(4,), offsets=(0, 16))}, b"1234"),
    "data-left-over": safetensors_bytes({"w.weight": _tensor()}, b"12345678"),
    "overlap": safetensors_bytes({"a": _tensor(), "b": _tensor()}, b"1234"),
    "size-overflow": safetensors_bytes({"w.weight": _tensor(shape=(2**40, 2**40))}, b"1234"),
    "negative-size": safetensors_bytes({"w.weight": _tensor(shape=(-1,))}, b"1234"),
    "unknown-dtype": safetensors_bytes({"w.weight": _tensor(dtype="F99")}, b"1234"),
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.",
}


def write_all(folder: Path) -> dict[str, Path]:
    """Return every hostile safetensors file, written to `folder`."""
    paths = {}
    for name, content in HOSTILE_SAFETENSORS.items():
        paths[name] = folder / f"{name}.safetensors"
        paths[name].write_bytes(content)
    return paths
