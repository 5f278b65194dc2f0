"""Global memory of a machine: bounds-checked regions that cost only what is touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Region:
    """`size` bytes of global memory at address `base`; can stand for the address in a launch's
    arguments.
    """

    base: int
    size: int

    def __int__(self) -> int:
        return self.base

    def __index__(self) -> int:
        return self.base


class Memory:
    """Regions of a 64-bit address space; an access that is not wholly inside one is an error.

    Regions are sparse: one of 2^40 bytes may be mapped, and only the pages that are written take
    memory. Fresh regions read as zero.
    """

    def __init__(self, native: Any) -> None:
        self._native = native
        self._kept: dict[int, object] = {}

    def map(
        self, base: int, size: int | None = None, *, buffer: NDArray[Any] | None = None
    ) -> Region:
        """Map `size` bytes at `base` and return the region.

        With `buffer`, a C-contiguous array, the region is that array's own memory: the kernel reads
        and writes it in place, or faults on a write if the array is read-only. Raises `ValueError`
        if regions would overlap.
        """
        if buffer is None:
            if size is None:
                raise ValueError("memory.map: give a size or a buffer")
            self._native.map(base, size)
            return Region(base, size)
        if not buffer.flags.c_contiguous:
            raise ValueError(
                "memory.map: the buffer must be C-contiguous; pass numpy.ascontiguousarray(buffer)"
            )
        if size is not None and size != buffer.nbytes:
            raise ValueError(
                f"memory.map: size must be the buffer's, {buffer.nbytes} bytes, got {size}"
            )
        address = buffer.__array_interface__["data"][0]
        self._native.map_address(base, buffer.nbytes, address, bool(buffer.flags.writeable))
        self._kept[base] = buffer
        return Region(base, buffer.nbytes)

    def unmap(self, region: Region | int) -> None:
        """Forget the region that starts at `region`. Raises `ValueError` if none does."""
        self._native.unmap(int(region))
        self._kept.pop(int(region), None)

    def read(self, address: int | Region, size: int | None = None) -> Bytes:
        """Return a copy of `size` bytes at `address` (of a whole region by default) as uint8."""
        return self._view(address, size).copy()

    def write(self, address: int | Region, data: bytes | NDArray[Any]) -> None:
        """Write `data`'s bytes at `address`. Raises `ValueError` outside a region."""
        source = (
            np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data)
        )
        flat = source.reshape(-1).view(np.uint8)
        self._view(int(address), flat.size)[:] = flat

    def _view(self, address: int | Region, size: int | None) -> Bytes:
        if size is None:
            if not isinstance(address, Region):
                raise ValueError("memory.read: give a size, or a region")
            size = address.size
        view: Bytes = self._native.view(int(address), size)
        return view
