"""Anchors: fixed loops that say how fast the processor is at the moment, for `mxgemm compare`.

On a shared or virtual machine a product and a library's product are slowed unequally by what else
the processor does, so that their ratio drifts from minute to minute. A loop of the same kind as the
product (the multiplication that it spends its time in, the reading of the bytes that it reads)
drifts with it, and their ratio is steadier. An anchor shares no code with what is measured, so that
it hides no change; whoever changes a loop or its length changes what `plan` says, and rows of
different plans are not compared over it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from mxgemm import settings
from mxgemm.bench.cases import ANCHOR, Case
from mxgemm.bench.errors import Unavailable
from mxgemm.bench.operands import Operands
from mxgemm.bench.variants import Variant, Work
from mxgemm.devices import DeviceSpec
from mxgemm.formats import MXFP4
from mxgemm.runtime import native_cpu

MULTIPLY_ITERATIONS = 200_000
"""About half a millisecond: eight to twelve vectors are multiplied in each."""


class Anchor(Variant):
    """A loop of the compiled module on the CPU."""

    backend = "anchor"

    def __init__(self, name: str, computes: str, work: Callable[[Case], Work]) -> None:
        self.name = name
        self.computes = computes
        self._work = work

    def stages(self, case: Case) -> tuple[str, ...]:
        return (ANCHOR,)

    def work(self, case: Case, operands: Operands, stage: str, device: DeviceSpec) -> Work:
        if device.kind != "cpu" or device.emulated:
            raise Unavailable(f"{self.name}: runs on cpu, got {device}")
        try:
            return self._work(case)
        except ImportError as error:
            raise Unavailable(
                f"{self.name}: needs the compiled module mxgemm._native_cpu, got {error}"
            ) from error


def _multiply(case: Case) -> Work:
    del case  # registers only
    loop, kernels = native_cpu.module().multiply_loop, native_cpu.kernels(settings.CPU_ISA.read())
    threads = torch.get_num_threads()
    return Work(
        make=lambda: lambda: loop(kernels, MULTIPLY_ITERATIONS, threads),
        bytes_moved=0,
        plan=f"{kernels.isa}, {MULTIPLY_ITERATIONS} times",
    )


def _read(case: Case) -> Work:
    loop, kernels = native_cpu.module().read_loop, native_cpu.kernels(settings.CPU_ISA.read())
    packed = case.n * case.k // 2
    size_bytes = case.m * case.k * torch.bfloat16.itemsize if case.is_quantize else packed
    threads = torch.get_num_threads()

    def make() -> Callable[[], object]:
        buffer = torch.ones(size_bytes, dtype=torch.uint8)
        return lambda: loop(kernels, buffer.data_ptr(), size_bytes, threads)

    return Work(make=make, bytes_moved=size_bytes, plan=f"{kernels.isa}, {size_bytes} bytes")


ANCHORS: dict[str, Variant] = {
    anchor.name: anchor
    for anchor in (
        Anchor("multiply_loop", "integer products of registers", _multiply),
        Anchor("read_loop", f"reads the {MXFP4.name} weight, or the quantizer's source", _read),
    )
}
"""Anchors by name; a further one is one entry."""
