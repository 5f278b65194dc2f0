"""What every peer shares: a product of its own, the devices it exists for, its exact operands."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType

import torch

from mxgemm.bench.cases import Case
from mxgemm.bench.operands import Operands
from mxgemm.bench.variants import Unavailable, Variant, Work
from mxgemm.devices import DeviceSpec
from mxgemm.quantizers import dequantize
from mxgemm.tensor import MXTensor

EXTRA = "bench-peers"
"""The extra of this package that installs every peer which PyPI has."""

CPU, CUDA = ("cpu",), ("cuda",)


class Peer(Variant):
    """A product that is not this library's, on the device kinds it exists for."""

    backend = "peer"

    def __init__(
        self,
        name: str,
        computes: str,
        kinds: tuple[str, ...],
        work: Callable[[Case, Operands, DeviceSpec], Work],
    ) -> None:
        self.name = name
        self.computes = computes
        self.kinds = kinds
        self._work = work

    def stages(self, case: Case) -> tuple[str, ...]:
        return () if case.is_quantize else ("gemm",)

    def work(self, case: Case, operands: Operands, stage: str, device: DeviceSpec) -> Work:
        if device.kind not in self.kinds or device.emulated:
            raise Unavailable(f"{self.name}: runs on {' or '.join(self.kinds)}, got {device}")
        return self._work(case, operands, device)


def require(module: str, package: str) -> ModuleType:
    """Return an optional module.

    Args:
        module: what is imported.
        package: the distribution on PyPI that has it.

    Raises:
        Unavailable: it is not installed.
    """
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise Unavailable(
            f"not installed: needs {package}, got none; pip install {package} or 'mxgemm[{EXTRA}]'"
        )
    return importlib.import_module(module)


def dequantize_exactly(tensor: MXTensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the values [rows, K] in `dtype`.

    Raises:
        Unavailable: `dtype` does not hold them, because a scale is beyond its exponents.
    """
    values = dequantize(tensor, dtype)
    if not torch.equal(values.double(), dequantize(tensor, torch.float64)):
        raise Unavailable(f"{str(dtype)[6:]} does not hold these MXFP4 values exactly")
    return values
