"""Kernels compiled before, loaded and launched on ROCm devices by FlyDSL's own runtime library.

The library lies in the flydsl package and serves programs that FlyDSL compiled ahead of time: a C
interface that keeps one loaded module a device. It is opened by its path: nothing of FlyDSL's
Python is imported, nothing is compiled, no environment variable is read. It needs HIP's
`libamdhip64.so.7`, which PyTorch for ROCm has loaded already; without it nothing here calls HIP.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import weakref
from dataclasses import dataclass
from pathlib import Path

from mxgemm.errors import BackendUnavailable

LIBRARY = "_mlir/_mlir_libs/libfly_jit_runtime.so"
"""In the flydsl package."""
BUFFER_POINTER, BUFFER_SIZE, END = (ctypes.c_void_p(i) for i in (1, 2, 3))
"""HIP_LAUNCH_PARAM_*: how a launch takes a packed argument buffer (HIP API, "Module
management")."""
NOT_FROM_HIP = {-1: "the module was unloaded", -2: "the module is not loaded on this device"}
"""The runtime's own error codes; every other one is a hipError_t."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What a launch spans: workgroups along each axis, lanes of a workgroup, its dynamic LDS."""

    grid: tuple[int, int, int]
    threads: int
    lds_bytes: int


class Module:
    """One kernel of a code object, loaded on every device that it is launched on.

    It is unloaded, after the device has finished, when nothing refers to it any more; not at the
    end of the process, when the driver frees all.
    """

    def __init__(self, code_object: bytes, symbol: str) -> None:
        self._library = library()
        # The runtime keeps the addresses of all three.
        self._code = ctypes.create_string_buffer(code_object, len(code_object))
        self._symbol = ctypes.create_string_buffer(symbol.encode())
        self._slot = ctypes.c_void_p()
        _check(self._library, "load", self._library.flydslAotModuleInit(self._slot, self._code))
        unload = self._library.flydslAotModuleUnload
        self._finalizer = weakref.finalize(self, _unload, unload, self._slot, self._code)
        self._finalizer.atexit = False

    def launch(self, device: int, extent: Extent, arguments: bytes, stream: int) -> None:
        """Queue the kernel on `stream` of `device`, which must be HIP's current device.

        Raises:
            BackendUnavailable: the runtime or HIP refuses; the text has HIP's name of the error.
        """
        _check(self._library, "load", self._library.flydslAotModuleLoad(self._slot, device))
        self._library.flydslRuntimeTakeError()  # one that an earlier user of the thread left
        buffer = ctypes.create_string_buffer(arguments, len(arguments))
        size = ctypes.c_size_t(len(arguments))
        extra = (ctypes.c_void_p * 5)(
            BUFFER_POINTER,
            ctypes.addressof(buffer),
            BUFFER_SIZE,
            ctypes.addressof(size),
            END,
        )
        self._library.flydslAotModuleLaunchKernel(
            self._slot,
            self._symbol,
            *extent.grid,
            *(extent.threads, 1, 1),
            extent.lds_bytes,
            stream,
            None,
            extra,
            0,
        )
        _check(self._library, "launch", self._library.flydslRuntimeTakeError())

    def unload(self) -> None:
        """Wait for the devices that it is loaded on and unload it there; later launches raise."""
        self._finalizer()


def _unload(unload: ctypes._FuncPointer, slot: ctypes.c_void_p, code: object) -> None:
    del code  # kept until here
    unload(slot)


@functools.cache
def library() -> ctypes.CDLL:
    """Return FlyDSL's runtime; raises `BackendUnavailable` where it or HIP is missing."""
    found = importlib.util.find_spec("flydsl")
    folders = (found.submodule_search_locations if found else None) or []
    paths = [path for folder in folders if (path := Path(folder) / LIBRARY).exists()]
    if not paths:
        raise BackendUnavailable("flydsl_gfx1250: needs flydsl's runtime library, got none")
    try:
        opened = ctypes.CDLL(str(paths[0]))
        return _declared(opened)
    except (OSError, AttributeError) as error:
        raise BackendUnavailable(
            f"flydsl_gfx1250: FlyDSL's runtime must load, with libamdhip64.so.7 of ROCm 7; {error}"
        ) from error


def _declared(opened: ctypes.CDLL) -> ctypes.CDLL:
    slot, text, size = ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p, ctypes.c_ssize_t
    status, pointer = ctypes.c_int32, ctypes.c_void_p
    signatures = {
        "flydslAotModuleInit": (status, [slot, pointer]),
        "flydslAotModuleLoad": (status, [slot, status]),
        "flydslAotModuleLaunchKernel": (
            None,
            [slot, pointer, *[size] * 6, status, pointer, pointer, pointer, ctypes.c_size_t],
        ),
        "flydslAotModuleUnload": (status, [slot]),
        "flydslRuntimeTakeError": (status, []),
        "hipGetErrorName": (text, [status]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(opened, name)
        function.restype, function.argtypes = result, arguments
    return opened


def _check(opened: ctypes.CDLL, what: str, status: int) -> None:
    if status == 0:
        return
    if status in NOT_FROM_HIP:
        reason = NOT_FROM_HIP[status]
    else:
        name = opened.hipGetErrorName(status)
        reason = f"HIP error {status} ({name.decode() if name else 'unknown'})"
    raise BackendUnavailable(f"flydsl_gfx1250: cannot {what} the kernel: {reason}")
