"""What the machine can do at best, measured in the same run: memory bandwidth and matrix peaks.

The bandwidth roof is the better of a copy (bytes read and written) and a read; the matrix roof is
the best rate that any library product of its kind reaches here, by element type, or integer
products of registers where this library's own multiply faster. They are what a program gets on this
machine now, not what a data sheet says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from mxgemm.bench import timing
from mxgemm.bench.timing import Clock, Contender
from mxgemm.devices import DeviceSpec
from mxgemm.runtime import native_cpu

REPEATS = 5
CPU_COPY_BYTES, CUDA_COPY_BYTES = 256 << 20, 2 << 30
CPU_SIZES, CUDA_SIZES = (256, 512, 1024), (8192,)
LOOP_ITERATIONS = 200_000
SLOW_SECONDS = 0.05
"""A product slower than this is not repeated, and not tried at a greater size."""


@dataclass(frozen=True, slots=True)
class Roofs:
    """Measured rates.

    Attributes:
        gbps: memory bandwidth in 1e9 bytes a second, by method.
        tflops: matrix products in 1e12 operations a second, by element type.
    """

    gbps: dict[str, float]
    tflops: dict[str, float]


def measure(device: DeviceSpec, clock: Clock) -> Roofs:
    """Return the roofs of a real device; takes a second or two."""
    where = device.torch_device
    on_cpu = where.type == "cpu"
    gbps = _bandwidths(clock, CPU_COPY_BYTES if on_cpu else CUDA_COPY_BYTES, where)
    tflops: dict[str, float] = {}
    slow: set[str] = set()
    for size in CPU_SIZES if on_cpu else CUDA_SIZES:
        for name, product in _products(size, where).items():
            if name in slow:
                continue
            try:
                seconds = _best(clock, product)
            except RuntimeError:
                # This torch has no such product on this device, so it is no roof.
                slow.add(name)
                continue
            tflops[name] = max(tflops.get(name, 0.0), 2 * size**3 / seconds / 1e12)
            if seconds > SLOW_SECONDS:
                slow.add(name)
    return Roofs(gbps, tflops | (_registers(clock) if on_cpu else {}))


def _registers(clock: Clock) -> dict[str, float]:
    """Return the rate of the compiled module's integer products in registers, if it is there."""
    try:
        loop, kernels = native_cpu.module().multiply_loop, native_cpu.kernels("")
    except ImportError:
        return {}
    threads = torch.get_num_threads()
    products = loop(kernels, LOOP_ITERATIONS, threads)
    seconds = _best(clock, lambda: loop(kernels, LOOP_ITERATIONS, threads))
    return {"int8 registers": 2 * products / seconds / 1e12}


def _bandwidths(clock: Clock, size_bytes: int, where: torch.device) -> dict[str, float]:
    count = size_bytes // torch.float32.itemsize
    source, target = torch.ones(count, device=where), torch.empty(count, device=where)
    copy = _best(clock, lambda: target.copy_(source))
    read = _best(clock, source.sum)
    return {"copy": 2 * size_bytes / copy / 1e9, "read": size_bytes / read / 1e9}


def _products(size: int, where: torch.device) -> dict[str, Callable[[], object]]:
    generator = torch.Generator(device=where).manual_seed(0)
    x = torch.randn(size, size, generator=generator, device=where)
    half, small = x.bfloat16(), (x * 4).to(torch.int8)
    products: dict[str, Callable[[], object]] = {
        "float32": lambda: x @ x.t(),
        "bfloat16": lambda: half @ half.t(),
        "int8": lambda: torch._int_mm(small, small.t()),
    }
    if where.type == "cuda":
        one = torch.ones((), device=where)
        eighth = x.to(torch.float8_e4m3fn)
        products["float8_e4m3fn"] = lambda: torch._scaled_mm(
            eighth,
            eighth.t(),
            scale_a=one,
            scale_b=one,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
    return products


def _best(clock: Clock, call: Callable[[], object]) -> float:
    """Return the least of a few timings: a roof is the machine undisturbed."""
    contender = Contender([call])
    contender.call()
    best = timing.estimate(contender, clock)
    for _ in range(REPEATS - 1 if best < SLOW_SECONDS else 0):
        best = min(best, clock.seconds(contender))
    return best
