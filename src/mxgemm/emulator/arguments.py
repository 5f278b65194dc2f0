"""Kernel arguments: Python values to the bytes of the kernarg segment, checked against the
metadata.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from mxgemm.emulator.faults import LaunchError
from mxgemm.emulator.memory import Region
from mxgemm.emulator.metadata import Argument, KernelInfo

ArgumentValue = int | float | bytes | Region

_POINTER_BYTES = 8
_FLOAT_CODES = {4: "<f", 8: "<d"}


def pack_arguments(info: KernelInfo, values: tuple[ArgumentValue, ...]) -> NDArray[np.uint8]:
    """Return the kernarg segment, uint8 [kernarg_bytes] (at least one byte), for `values` in the
    metadata's order.

    Raises `LaunchError` for a wrong number of values, or one that does not fit its argument.
    """
    if len(values) != len(info.arguments):
        raise LaunchError(
            f"launch of {info.name}: {len(info.arguments)} arguments are needed, got {len(values)}"
        )
    segment = np.zeros(max(1, info.kernarg_bytes), np.uint8)
    for number, (argument, value) in enumerate(zip(info.arguments, values, strict=True)):
        data = _encode(info.name, number, argument, value)
        segment[argument.offset : argument.offset + argument.size] = np.frombuffer(data, np.uint8)
    return segment


def _encode(name: str, number: int, argument: Argument, value: ArgumentValue) -> bytes:
    wanted = "an address" if argument.is_pointer else f"{argument.size} bytes by value"
    problem = f"launch of {name}: argument {number} is {wanted}, got {value!r}"
    if isinstance(value, bool):
        raise LaunchError(problem)
    if argument.is_pointer or isinstance(value, Region):
        if not isinstance(value, int | Region) or argument.size != _POINTER_BYTES:
            raise LaunchError(problem)
        value = int(value)
    if isinstance(value, bytes):
        if len(value) != argument.size:
            raise LaunchError(problem)
        return value
    if isinstance(value, float):
        if argument.size not in _FLOAT_CODES:
            raise LaunchError(problem)
        return struct.pack(_FLOAT_CODES[argument.size], value)
    if not isinstance(value, int | np.integer):
        raise LaunchError(problem)
    bits = 8 * argument.size
    if argument.size > _POINTER_BYTES or not -(1 << (bits - 1)) <= int(value) < 1 << bits:
        raise LaunchError(problem)
    return (int(value) & ((1 << bits) - 1)).to_bytes(argument.size, "little")
