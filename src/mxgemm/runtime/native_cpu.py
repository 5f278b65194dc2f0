"""The compiled module mxgemm._native_cpu: loading it, its choice of instruction set, and how
tensors are handed to it.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

import torch

DTYPES = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
"""Numbers of the dtypes that the kernels read and write."""

Plane = tuple[int, int, int]
"""Address, row stride in elements, dtype number."""


@functools.cache
def module() -> ModuleType:
    """Return the extension module; a failure is not remembered.

    Raises:
        ImportError: mxgemm was installed without it.
    """
    # torch comes first, so that its OpenMP runtime is there for the kernels to share.
    return importlib.import_module("mxgemm._native_cpu")


@functools.cache
def kernels(isa: str) -> Any:
    """Return the kernels of instruction set `isa`, "" for the best that the processor has.

    Raises:
        ImportError: mxgemm was installed without the extension.
        ValueError: the processor lacks that instruction set, or there is none of that name.
    """
    return module().kernels(isa)


def built_isas() -> list[str]:
    """Return the instruction sets that the extension has kernels for, best first; none without
    it.
    """
    try:
        return list(module().built_isas())
    except ImportError:
        return []


def available_isas() -> list[str]:
    """Return the instruction sets that can be chosen here, best first; none without the
    extension.
    """
    try:
        return list(module().available_isas())
    except ImportError:
        return []


def description(isa: str) -> str:
    """Return what `kernels(isa)` would give, for people: instruction set and tile."""
    try:
        found = kernels(isa)
    except ImportError:
        return "not built"
    except ValueError as error:
        return str(error)
    return f"{found.isa}, tile {found.tile_name}"


def plain_description(isa: str) -> str:
    """Return what multiplies rows in high precision, for people."""
    try:
        found = kernels(isa)
    except (ImportError, ValueError):
        return description(isa)
    return f"{found.isa}, packed weights by {found.weight_only_name}"


def plane(tensor: torch.Tensor | None) -> Plane | None:
    """Return what the kernels read of a tensor whose rows are contiguous, None for None."""
    if tensor is None:
        return None
    return tensor.data_ptr(), tensor.stride(0), DTYPES[tensor.dtype]
