"""Matrices on the command line: `x.npy`, or `model.safetensors:name` for one tensor of a file."""

from __future__ import annotations

import tokenize
from pathlib import Path

import numpy as np
import torch

from mxgemm.checkpoints import load_tensor
from mxgemm.quantizers import INPUT_DTYPES
from mxgemm.tensor import MXTensor

SEPARATOR = ".safetensors:"
NPY_MAGIC = b"\x93NUMPY"
NPY_ERRORS = (ValueError, EOFError, OverflowError, MemoryError, tokenize.TokenError)
"""What numpy raises on damaged headers; it tokenizes those that it cannot evaluate."""


def read(text: str, what: str) -> torch.Tensor | MXTensor:
    """Return the matrix or vector that `text` names; an MXTensor where the file holds it quantized.

    Args:
        text: path of a .npy file, or path of a safetensors file, a colon and a tensor's name.
        what: what it is for, as messages call it.

    Raises:
        ValueError: no such form, or a damaged .npy file.
        TypeError: a dtype other than float32, float16 or (in safetensors) bfloat16.
        CheckpointError, OSError: the file cannot be read, or lacks the tensor.
    """
    if SEPARATOR in text:
        path, _, name = text.partition(SEPARATOR)
        tensor = load_tensor(path + SEPARATOR.removesuffix(":"), name)
    elif text.endswith(".npy"):
        tensor = _read_npy(Path(text), what)
    else:
        raise ValueError(
            f"{what}: must be FILE.npy or FILE.safetensors:TENSOR, got {text!r}; name a tensor"
        )
    if isinstance(tensor, torch.Tensor) and tensor.dtype not in INPUT_DTYPES:
        raise TypeError(
            f"{what} {text}: dtype must be float32, float16 or bfloat16, got "
            f"{str(tensor.dtype)[6:]}; convert it first, x.astype(numpy.float32)"
        )
    return tensor


def _read_npy(path: Path, what: str) -> torch.Tensor:
    with path.open("rb") as file:
        if file.read(len(NPY_MAGIC)) != NPY_MAGIC:
            raise ValueError(f"{what} {path}: not a .npy file; numpy.save writes one")
    try:
        array = np.load(path, allow_pickle=False)
    except NPY_ERRORS as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{what} {path}: not a readable .npy file: {reason}") from error
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise TypeError(
            f"{what} {path}: dtype must be float32 or float16, got {array.dtype}; convert it "
            f"first, x.astype(numpy.float32)"
        )
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
