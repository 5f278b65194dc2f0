"""Anchors: fixed code that says how fast the processor is at the moment, for `mxgemm compare`.

On a shared or virtual machine a product and a library's product are slowed unequally by what else
the processor does, so that their ratio drifts from minute to minute. What resembles the product
drifts with it, and their ratio is steadier:

    multiply_loop    the multiplication that the product spends its time in, in registers
    read_loop        reads the bytes of the packed weight, or of the quantizer's source
    frozen:<file>    the product of an older build of mxgemm._native_cpu, kept as a file

An anchor never changes with what is measured. A loop says in its plan what it does, and rows of
different plans are not compared over it; a frozen build has the digest of its file for a name.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from pathlib import Path

import torch

from mxgemm import settings
from mxgemm.backends.base import Accumulation
from mxgemm.bench.cases import ANCHOR, Case
from mxgemm.bench.errors import SuiteError, Unavailable
from mxgemm.bench.operands import Operands
from mxgemm.bench.variants import Call, Variant, Work
from mxgemm.devices import DeviceSpec
from mxgemm.formats import MXFP4
from mxgemm.runtime import native_cpu

FROZEN = "frozen:"
DIGEST_DIGITS = 12

MULTIPLY_ITERATIONS = 200_000
"""About half a millisecond: eight to twelve vectors are multiplied in each."""


class Anchor(Variant):
    """Fixed code on the CPU."""

    backend = "anchor"

    def __init__(self, name: str, computes: str, work: Callable[[Case, Operands], Work]) -> None:
        self.name = name
        self.computes = computes
        self._work = work

    def stages(self, case: Case) -> tuple[str, ...]:
        return (ANCHOR,)

    def work(self, case: Case, operands: Operands, stage: str, device: DeviceSpec) -> Work:
        if device.kind != "cpu" or device.emulated:
            raise Unavailable(f"{self.name}: runs on cpu, got {device}")
        try:
            return self._work(case, operands)
        except ImportError as error:
            raise Unavailable(
                f"{self.name}: needs the compiled module mxgemm._native_cpu, got {error}"
            ) from error


def _multiply(case: Case, operands: Operands) -> Work:
    del case, operands  # registers only
    loop, kernels = native_cpu.module().multiply_loop, native_cpu.kernels(settings.CPU_ISA.read())
    threads = torch.get_num_threads()
    return Work(
        make=lambda: lambda: loop(kernels, MULTIPLY_ITERATIONS, threads),
        bytes_moved=0,
        plan=f"{kernels.isa}, {MULTIPLY_ITERATIONS} times",
    )


def _read(case: Case, operands: Operands) -> Work:
    del operands  # bytes of its own
    loop, kernels = native_cpu.module().read_loop, native_cpu.kernels(settings.CPU_ISA.read())
    packed = case.n * case.k // 2
    size_bytes = case.m * case.k * torch.bfloat16.itemsize if case.is_quantize else packed
    threads, asks_ahead = torch.get_num_threads(), False

    def make() -> Call:
        buffer = torch.ones(size_bytes, dtype=torch.uint8)
        return lambda: loop(kernels, buffer.data_ptr(), size_bytes, asks_ahead, threads)

    return Work(make=make, bytes_moved=size_bytes, plan=f"{kernels.isa}, {size_bytes} bytes")


class FrozenBuild(Anchor):
    """The product of another build of mxgemm._native_cpu, called through its C interface beside the
    present one. It is no copy of what is measured but a file, which a change of the code leaves as
    it is.

    Raises:
        SuiteError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:DIGEST_DIGITS]
        except OSError as error:
            raise SuiteError(f"{FROZEN}{path}: cannot be read: {error.strerror}") from error
        super().__init__(f"{FROZEN}{digest}", "mxfp4 x mxfp4, by a build that is kept", self._gemm)
        self.path = path.resolve()

    def stages(self, case: Case) -> tuple[str, ...]:
        return () if case.is_quantize else (ANCHOR,)

    def _gemm(self, case: Case, operands: Operands) -> Work:
        product = self._product()
        isa = settings.CPU_ISA.read().encode()
        sides = [(x.canonical_codes(), x.canonical_scales()) for x in (operands.a, operands.b)]
        blocks, threads = operands.a.stored_k // MXFP4.block, torch.get_num_threads()
        sizes = case.m, case.n, blocks

        def make() -> Call:
            out = torch.empty((case.m, case.n), dtype=torch.bfloat16)
            tensors = [tensor.clone() for side in sides for tensor in side] + [out]
            addresses = [tensor.data_ptr() for tensor in tensors]

            def call() -> torch.Tensor:
                if product(isa, *sizes, *addresses, threads):
                    raise Unavailable(f"{self.name}: must know the instruction set {isa!r}")
                return tensors[-1]

            return call

        return Work(
            make=make,
            bytes_moved=operands.a.nbytes + operands.b.nbytes + 2 * case.m * case.n,
            plan=isa.decode() or "the best instruction set",
            expected=lambda: operands.expected(Accumulation(exact_blocks=True)),
        )

    def _product(self) -> Callable[..., int]:
        """Return the file's product; it is loaded beside the module that Python imported."""
        # Its threads are torch's, once torch's OpenMP runtime is there.
        native_cpu.module()
        size, address = ctypes.c_int64, ctypes.c_void_p
        try:
            product = ctypes.CDLL(str(self.path)).mxgemm_product
        except (OSError, AttributeError) as error:
            raise Unavailable(
                f"{FROZEN}{self.path}: must be a build of mxgemm._native_cpu with a C interface, "
                f"got {error}"
            ) from error
        product.argtypes = [ctypes.c_char_p, *[size] * 3, *[address] * 5, ctypes.c_int]
        return product


LOOPS: dict[str, Variant] = {
    anchor.name: anchor
    for anchor in (
        Anchor("multiply_loop", "integer products of registers", _multiply),
        Anchor("read_loop", f"reads the {MXFP4.name} weight, or the quantizer's source", _read),
    )
}
"""Anchors that need no file; a further one is one entry."""
