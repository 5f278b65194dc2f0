"""The two places where a compiled kernel runs: a ROCm device, and the emulator on tensors in CPU
memory.

Both take the same code object and the same values.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch

from mxgemm.arguments import span_bytes
from mxgemm.devices import DeviceSpec
from mxgemm.runtime import flydsl_launch
from mxgemm.runtime.flydsl_compile import CompiledKernel

logger = logging.getLogger("mxgemm")

Value = torch.Tensor | int | float | None
"""A kernel argument: a tensor for a pointer, None for a pointer that is not used, else a number."""
Grid = tuple[int, int, int]


class Place(Protocol):
    """Where kernels run."""

    def run(self, kernel: CompiledKernel, grid: Grid, values: Sequence[Value]) -> None:
        """Run `kernel` over `grid` workgroups, in order with other work on its tensors."""


def place_for(device: DeviceSpec) -> Place:
    """Return where kernels for `device` run."""
    return EmulatedPlace(_EMULATION.get()) if device.emulated else RocmPlace(device.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """How the emulator runs kernels; see `mxgemm.emulator.Machine.launch`.

    Attributes:
        timing: when asynchronous operations complete.
        seed: of the interleaving of waves, and of random timing.
        trace: record events.
        workgroups: run only these ids of every grid; None runs all.
        observe: called with (kernel, LaunchResult) after each launch.
    """

    timing: Literal["early", "late", "random"] = "late"
    seed: int = 0
    trace: bool = False
    workgroups: tuple[Grid, ...] | None = None
    observe: Callable[[CompiledKernel, Any], None] | None = None


DEFAULT_EMULATION = Emulation()

_EMULATION: ContextVar[Emulation] = ContextVar("emulation", default=DEFAULT_EMULATION)


@contextlib.contextmanager
def emulation(options: Emulation) -> Iterator[None]:
    """Use `options` for launches on emulated devices inside the `with` block."""
    token = _EMULATION.set(options)
    try:
        yield
    finally:
        _EMULATION.reset(token)


@dataclass(frozen=True, slots=True)
class EmulatedPlace:
    """`gfx1250:emulated`: tensors are the kernel's memory, at their own addresses.

    They may share it. An access outside the tensors is an error, as is every hazard.
    """

    options: Emulation

    def run(self, kernel: CompiledKernel, grid: Grid, values: Sequence[Value]) -> None:
        """Run `kernel`; raises `Hazard` or another of the emulator's errors."""
        from mxgemm.emulator import Machine

        machine = Machine("gfx1250")
        loaded = machine.load(kernel.code_object)
        for start, end in _extents([v for v in values if isinstance(v, torch.Tensor)]):
            machine.memory.map(start, buffer=_bytes_at(start, end - start))
        logger.debug("emulating %s on %d workgroups", kernel.symbol, math.prod(grid))
        result = machine.launch(
            grid,
            (kernel.threads, 1, 1),
            [_number(value) for value in values],
            kernel.lds_bytes,
            kernel=loaded,
            timing=self.options.timing,
            seed=self.options.seed,
            trace=self.options.trace,
            workgroups=self.options.workgroups,
        )
        if self.options.observe is not None:
            self.options.observe(kernel, result)


def _extents(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Return first and end address of the memory of `tensors`, in order, those that overlap as
    one.
    """
    extents: list[tuple[int, int]] = []
    for tensor in sorted(tensors, key=torch.Tensor.data_ptr):
        start, end = tensor.data_ptr(), tensor.data_ptr() + span_bytes(tensor)
        if extents and start < extents[-1][1]:
            start, end = extents[-1][0], max(extents.pop()[1], end)
        if start < end:
            extents.append((start, end))
    return extents


def _bytes_at(address: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def _number(value: Value) -> int | float:
    if value is None:
        return 0
    return value.data_ptr() if isinstance(value, torch.Tensor) else value


def pack(kernel: CompiledKernel, values: Sequence[Value]) -> bytes:
    """Return the argument buffer of a launch: little endian, at the offsets that the code object
    states.
    """
    buffer = bytearray(kernel.argument_bytes)
    for (offset, size), value in zip(kernel.arguments, values, strict=True):
        number = _number(value)
        if isinstance(number, float):
            struct.pack_into("<f", buffer, offset, number)
        else:
            buffer[offset : offset + size] = number.to_bytes(size, "little", signed=True)
    return bytes(buffer)


@dataclass(frozen=True, slots=True)
class RocmPlace:
    """A ROCm device, on PyTorch's current stream there, through FlyDSL's runtime."""

    index: int

    def run(self, kernel: CompiledKernel, grid: Grid, values: Sequence[Value]) -> None:
        """Queue `kernel`; raises `BackendUnavailable` when the runtime refuses it."""
        module = _module(kernel.code_object, kernel.symbol)
        extent = flydsl_launch.Extent(grid, kernel.threads, kernel.lds_bytes)
        with torch.cuda.device(self.index):
            stream = torch.cuda.current_stream(self.index).cuda_stream
            module.launch(self.index, extent, pack(kernel, values), stream)


@functools.lru_cache(maxsize=256)
def _module(code_object: bytes, symbol: str) -> flydsl_launch.Module:
    return flydsl_launch.Module(code_object, symbol)
