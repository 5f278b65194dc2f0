"""What every peer shares: a product of its own, and the devices and libraries that it needs."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType

from mxgemm.bench.cases import Case
from mxgemm.bench.errors import Unavailable
from mxgemm.bench.operands import Operands
from mxgemm.bench.variants import Variant, Work
from mxgemm.devices import DeviceSpec

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
