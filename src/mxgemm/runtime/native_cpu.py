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

BLOCK = 32

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


def plane(tensor: torch.Tensor | None) -> Plane | None:
    """Return what the kernels read of a tensor whose rows are contiguous, None for None."""
    if tensor is None:
        return None
    return tensor.data_ptr(), tensor.stride(0), DTYPES[tensor.dtype]


def weight_only(x: torch.Tensor, weight: Any, *, isa: str = "") -> torch.Tensor:
    """Return x @ W.T in FP32 with `x` in 16 bits or FP32 and W prepared from MXFP4: for decoding
    where activations are not quantized.

    Args:
        x: float32, bfloat16 or float16 [M, K], contiguous along K.
        weight: the payload that native_cpu's `prepare_b` made of W [N, K].
        isa: the instruction set, "" for the best.

    Returns:
        float32 [M, N]; products are summed in FP32 within a block of 32 and then across blocks.

    Raises:
        ValueError: shapes or strides that do not fit.
    """
    rows, k = x.shape
    if k != weight.blocks * BLOCK or (k > 1 and x.stride(1) != 1):
        raise ValueError(
            f"weight_only: x must be [M, {weight.blocks * BLOCK}] and contiguous along K, got "
            f"{tuple(x.shape)} with strides {x.stride()}"
        )
    out = torch.empty((rows, weight.columns), dtype=torch.float32)
    if out.numel():
        module().weight_only(
            kernels(isa),
            rows,
            weight.columns,
            weight.blocks,
            plane(x),
            weight,
            plane(out),
            1.0,
            0.0,
            0,
            None,
            None,
            torch.get_num_threads(),
        )
    return out
