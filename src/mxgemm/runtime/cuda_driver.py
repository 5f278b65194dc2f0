"""Loading and launching machine code through the CUDA driver, and tensor maps for the copy engine.

Works on torch's current context and streams, so that launches take their place in the stream and
are captured by CUDA graphs.
A launch is host work of a few microseconds: what stays the same from call to call, the driver's
description of the launch, memory for its parameters and tensor maps, is kept.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from typing import Any

import torch
from cuda.bindings import driver

from mxgemm.errors import MXError
from mxgemm.runtime import nvrtc
from mxgemm.runtime.nvrtc import Source

MAX_CACHED_MAPS = 256
MAX_CACHED_CONFIGS = 256
TENSOR_MAP_BYTES = 128


class Kernel:
    """A loaded kernel of one device."""

    def __init__(self, handle: Any, threads: int, shared_bytes: int) -> None:
        self._handle = int(handle)
        self._threads = threads
        self._shared_bytes = shared_bytes
        self._configs: dict[tuple[tuple[int, int], int, bool], tuple[int, Any]] = {}

    def launch(
        self, grid: tuple[int, int], stream: int, arguments: list[int], *, overlap: bool = False
    ) -> None:
        """Start the kernel in `stream`.

        Args:
            grid: blocks along x and y.
            stream: the driver's handle, as torch's `cuda_stream`.
            arguments: addresses of the parameters' values, which are read before this returns.
            overlap: programmatic dependent launch: blocks may start while the kernel before in the
                stream still runs, and wait for its end by themselves.
        """
        pointers = (ctypes.c_void_p * len(arguments))(*arguments)
        self.start(grid, stream, ctypes.addressof(pointers), overlap)

    def start(
        self,
        grid: tuple[int, int],
        stream: int,
        pointers: int,
        overlap: bool,  # noqa: FBT001
    ) -> None:
        """As `launch`, with the address of the array of the parameters' addresses."""
        key = (grid, stream, overlap)
        config = self._configs.get(key)
        if config is None:
            if len(self._configs) >= MAX_CACHED_CONFIGS:
                self._configs.clear()
            made = self._config(grid, stream, overlap=overlap)
            config = self._configs[key] = (int(made.getPtr()), made)
        status = _cu_launch_kernel_ex()(config[0], self._handle, pointers, None)
        if status:
            _check((driver.CUresult(status),), "cuLaunchKernelEx")

    def _config(self, grid: tuple[int, int], stream: int, *, overlap: bool) -> Any:
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid[0], grid[1], 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self._threads, 1, 1
        config.sharedMemBytes = self._shared_bytes
        config.hStream = stream
        if overlap:
            config.attrs = [_overlap()]
            config.numAttrs = 1
        return config


class Launch:
    """A kernel and memory for its parameters, which is filled anew for every call.

    Threads may call at once: each takes memory that is idle, or makes more.

    Args:
        kernel: what is launched.
        layout: the parameters as one C struct; a tensor map is a field of 128 bytes.
        offsets: where in it each parameter starts.
    """

    def __init__(
        self, kernel: Kernel, layout: struct.Struct, offsets: Sequence[int] = (0,)
    ) -> None:
        self._start = kernel.start
        self._pack_into = layout.pack_into
        self._size = layout.size
        self._offsets = offsets
        self._idle: list[tuple[Any, int, Any]] = []

    def __call__(
        self,
        grid: tuple[int, int],
        stream: int,
        values: Sequence[Any],
        *,
        overlap: bool = False,
    ) -> None:
        """Start the kernel with the fields of its parameters in `values`; the other arguments are
        those of `Kernel.launch`.
        """
        idle = self._idle
        try:
            memory = idle.pop()
        except IndexError:
            memory = self._new_memory()
        self._pack_into(memory[0], 0, *values)
        self._start(grid, stream, memory[1], overlap)
        idle.append(memory)

    def _new_memory(self) -> tuple[Any, int, Any]:
        """Return memory of the fields, and the array of the parameters' addresses: its address
        and itself.
        """
        buffer = ctypes.create_string_buffer(self._size)
        start = ctypes.addressof(buffer)
        pointers = (ctypes.c_void_p * len(self._offsets))(*(start + at for at in self._offsets))
        return buffer, ctypes.addressof(pointers), pointers


class TensorMaps:
    """Tensor maps of matrices of one shape, one for each of `boxes`, each made once; see
    `tensor_map`.
    """

    def __init__(
        self, dtype: torch.dtype, rows: int, columns: int, *boxes: tuple[int, int]
    ) -> None:
        self._shape = (dtype, rows, columns)
        self._boxes = boxes
        self._maps: dict[tuple[int, int], bytes] = {}

    def at(self, address: int, row_bytes: int) -> bytes:
        """Return the maps of the matrix at `address`, one behind the other, as a field of a
        kernel's parameters.
        """
        key = (address, row_bytes)
        found = self._maps.get(key)
        if found is None:
            if len(self._maps) >= MAX_CACHED_MAPS:
                self._maps.clear()
            made = {box: self._make(address, row_bytes, box) for box in set(self._boxes)}
            found = b"".join(made[box] for box in self._boxes)
            self._maps[key] = found
        return found

    def _make(self, address: int, row_bytes: int, box: tuple[int, int]) -> bytes:
        made = tensor_map(address, *self._shape, row_bytes, box)
        return ctypes.string_at(int(made.getPtr()), TENSOR_MAP_BYTES)


class Packed:
    """Values in the layout of a C struct, made for one launch; keep it until the launch has
    returned.

    Attributes:
        address: where they lie.
    """

    __slots__ = ("_buffer", "address")

    def __init__(self, layout: struct.Struct, *values: float) -> None:
        self._buffer = ctypes.create_string_buffer(layout.pack(*values), layout.size)
        self.address = ctypes.addressof(self._buffer)


def current_stream(device: int) -> int:
    """Return the driver's handle of torch's current stream on a device."""
    return int(torch._C._cuda_getCurrentRawStream(device))


@functools.cache
def multiprocessors(device: int) -> int:
    """Return how many multiprocessors a device has."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@functools.cache
def load(
    source: Source, name: str, *, arch: str, device: int, threads: int, shared_bytes: int = 0
) -> Kernel:
    """Return the kernel `name` of `source` on `device`, compiled when the disk cache does not hold
    it.

    Args:
        source: translation unit.
        name: an extern "C" kernel in it.
        arch: "sm_90a" and the like.
        device: torch's device index.
        threads: of a block.
        shared_bytes: dynamic shared memory of a block.
    """
    library = _library(source, arch)
    handle = _check(driver.cuLibraryGetKernel(library, name.encode()), "cuLibraryGetKernel")
    if shared_bytes:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        status = driver.cuKernelSetAttribute(attribute, shared_bytes, handle, device)
        _check(status, f"{shared_bytes} bytes of shared memory for {name}")
    return Kernel(handle, threads, shared_bytes)


@functools.cache
def _library(source: Source, arch: str) -> Any:
    torch.cuda.init()  # type: ignore[no-untyped-call]
    image = nvrtc.cubin(source, arch)
    return _check(driver.cuLibraryLoadData(image, [], [], 0, [], [], 0), f"loading {source}")


_ELEMENTS = {
    torch.uint8: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    torch.bfloat16: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    torch.float16: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
}


@functools.lru_cache(maxsize=MAX_CACHED_MAPS)
def tensor_map(
    address: int, dtype: torch.dtype, rows: int, columns: int, row_bytes: int, box: tuple[int, int]
) -> Any:
    """Return the map of a matrix in device memory, copied in boxes whose rows of 128 bytes are
    swizzled over 128 bytes.

    A map is a description of addresses: it stays valid whatever the memory holds.

    Args:
        address: of the first element, a multiple of 16.
        dtype: uint8, bfloat16 or float16.
        rows, columns: of the matrix; what a box covers outside reads as zeros and is not written.
        row_bytes: from row to row, a multiple of 16.
        box: rows and columns of a box.

    Returns:
        the driver's object; `getPtr()` is its address.
    """
    return _check(
        driver.cuTensorMapEncodeTiled(
            _ELEMENTS[dtype],
            2,
            address,
            [driver.cuuint64_t(columns), driver.cuuint64_t(rows)],
            [driver.cuuint64_t(row_bytes)],
            [driver.cuuint32_t(box[1]), driver.cuuint32_t(box[0])],
            [driver.cuuint32_t(1), driver.cuuint32_t(1)],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        ),
        f"tensor map of {rows} x {columns} at {address:#x}",
    )


@functools.cache
def _cu_launch_kernel_ex() -> Any:
    """Return the driver's function itself: cuda-bindings' costs microseconds of Python a call."""
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    function.argtypes = [ctypes.c_void_p] * 4
    function.restype = ctypes.c_int
    return function


@functools.cache
def _overlap() -> Any:
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute


def _check(result: tuple[Any, ...], what: str) -> Any:
    status, *values = result
    if status != 0:
        raise MXError(f"CUDA driver: {what} must succeed, got {status.name}")
    return values[0] if values else None
