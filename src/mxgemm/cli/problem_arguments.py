"""Command-line words for dtypes, layouts and devices, shared by the commands that take them."""

from __future__ import annotations

import argparse

import torch

from mxgemm import layouts
from mxgemm.errors import LayoutMismatch
from mxgemm.tensor import OperandLayout

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the command line's word for a dtype."""
    return next(name for name, value in DTYPES.items() if value == dtype)


def operand_layout(text: str) -> OperandLayout:
    """Return the layout that "codes+scales" names, or one name alone where the other is row_major.

    Raises:
        argparse.ArgumentTypeError: an unknown name, or one in the wrong place.
    """
    names = text.split("+")
    try:
        found = [layouts.get(name) for name in names]
        if len(found) == 1:
            scales_only = "codes" not in found[0].holds
            return OperandLayout(scales=found[0]) if scales_only else OperandLayout(codes=found[0])
        if len(found) == 2:
            return OperandLayout(*found)
    except (ValueError, LayoutMismatch) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    raise argparse.ArgumentTypeError(
        f"layout: must be CODES+SCALES, got {text!r}; one of {', '.join(sorted(layouts.REGISTRY))}"
    )
