"""Opening a safetensors file that may be anything: what its header says, and one kind of error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from mxgemm.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor as the header describes it.

    Attributes:
        dtype: the format's name for it: "F32", "BF16", "U8", "F8_E8M0", ...
        shape: logical shape.
    """

    dtype: str
    shape: tuple[int, ...]


class SafetensorsFile:
    """An open file: its entries, and its tensors one at a time, backed by the file."""

    def __init__(self, path: Path, handle: Any) -> None:
        self.path = path
        self.metadata: dict[str, str] = handle.metadata() or {}
        self.entries = {name: _entry(handle, name) for name in handle.keys()}  # noqa: SIM118
        self._handle = handle

    def read(self, name: str) -> torch.Tensor:
        """Return the tensor called `name`.

        Raises:
            CheckpointError: there is none, or torch has no dtype for it.
        """
        if name not in self.entries:
            raise CheckpointError(
                f"{self.path}: no tensor {name!r}; it holds {_listed(self.entries)}"
            )
        try:
            tensor: torch.Tensor = self._handle.get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{self.path}: tensor {name!r}: {error}") from error
        return tensor


@contextmanager
def opened(path: Path) -> Iterator[SafetensorsFile]:
    """Yield the safetensors file at `path`.

    Raises:
        CheckpointError: it is no file, or not a whole and well-formed safetensors file.
    """
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise CheckpointError(f"{path}: must be a safetensors file, got {found}")
    try:
        handle = safe_open(path, framework="pt")
    except SafetensorError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path}: not a readable safetensors file: {reason}") from error
    with handle:
        yield SafetensorsFile(path, handle)


def _entry(handle: Any, name: str) -> Entry:
    view = handle.get_slice(name)
    return Entry(view.get_dtype(), tuple(view.get_shape()))


def _listed(names: dict[str, Entry], limit: int = 8) -> str:
    shown = ", ".join(repr(name) for name in list(names)[:limit])
    more = len(names) - limit
    return f"{shown} and {more} more" if more > 0 else shown or "none"
