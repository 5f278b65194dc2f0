"""MXFP4 GEMM for PyTorch: one checked call, any shape, every epilogue, with stated and tested
numerics.

The public names are loaded when first used, so that `mxgemm.formats` and `mxgemm.emulator` need no
torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mxgemm.backends.base import Accumulation, GemmPlan, PreparedOperand, Rejection
    from mxgemm.devices import DeviceSpec
    from mxgemm.dispatch import explain, plan
    from mxgemm.epilogue import Activation, Epilogue
    from mxgemm.formats import MXFP4
    from mxgemm.matmul import gemm, problem_for
    from mxgemm.numerics.hadamard import Rotation
    from mxgemm.problem import GemmProblem, Numerics, OperandSpec
    from mxgemm.quantizers import dequantize, quantize, quantize_pair
    from mxgemm.tensor import CANONICAL, MXPair, MXTensor, OperandLayout

__version__ = "0.1.0"

_HOME = {
    "Accumulation": "backends.base",
    "Activation": "epilogue",
    "CANONICAL": "tensor",
    "DeviceSpec": "devices",
    "Epilogue": "epilogue",
    "GemmPlan": "backends.base",
    "GemmProblem": "problem",
    "MXFP4": "formats",
    "MXPair": "tensor",
    "MXTensor": "tensor",
    "Numerics": "problem",
    "OperandLayout": "tensor",
    "OperandSpec": "problem",
    "PreparedOperand": "backends.base",
    "Rejection": "backends.base",
    "Rotation": "numerics.hadamard",
    "dequantize": "quantizers",
    "explain": "dispatch",
    "gemm": "matmul",
    "plan": "dispatch",
    "problem_for": "matmul",
    "quantize": "quantizers",
    "quantize_pair": "quantizers",
}

__all__ = [
    "CANONICAL",
    "MXFP4",
    "Accumulation",
    "Activation",
    "DeviceSpec",
    "Epilogue",
    "GemmPlan",
    "GemmProblem",
    "MXPair",
    "MXTensor",
    "Numerics",
    "OperandLayout",
    "OperandSpec",
    "PreparedOperand",
    "Rejection",
    "Rotation",
    "dequantize",
    "explain",
    "gemm",
    "plan",
    "problem_for",
    "quantize",
    "quantize_pair",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mxgemm' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"mxgemm.{_HOME[name]}"), name)
    globals()[name] = value
    return value
