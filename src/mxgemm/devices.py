"""DeviceSpec: what a problem is to run on, as plain data: kind, architecture, and whether it is
emulated.
"""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass

import torch

ROCM_ARCHES = ("gfx950", "gfx1250")
HOST = torch.device("cpu")
LAST_INDEX = 127
"""torch keeps the index of a device in eight bits."""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device as the backends' checks see it; no hardware is touched to make or to check one.

    Attributes:
        kind: "cpu", "cuda" or "rocm".
        arch: "x86_64" and the like, "sm_90", "gfx950", "gfx1250".
        emulated: the architecture's machine code runs in the emulator, on operands in CPU memory.
        index: which device of its kind.
    """

    kind: str
    arch: str
    emulated: bool = False
    index: int = 0

    @classmethod
    def of(cls, device: torch.device | str) -> DeviceSpec:
        """Return the spec of a real torch device.

        Raises:
            ValueError: a device type that mxgemm does not know, or a GPU that is not there.
        """
        device = torch.device(device)
        if device.type == "cpu":
            return _host()
        if device.type == "cuda":
            count = torch.cuda.device_count()
            if (device.index or 0) >= count:
                raise ValueError(
                    f"device: {device} needs a GPU of that index that torch {torch.__version__} "
                    f"can use, got {count} of them; name an architecture such as sm_90 to plan "
                    f"without one"
                )
            return _gpu(device.index if device.index is not None else torch.cuda.current_device())
        raise ValueError(
            f"device: must be cpu or cuda (ROCm included), got {device.type}; move the tensors"
        )

    @classmethod
    def parse(cls, text: str) -> DeviceSpec:
        """Return the spec that `text` names: "cpu", "cuda", "cuda:1", "sm_90", "gfx950", or
        "gfx1250:emulated".

        Raises:
            ValueError: the text names none.
        """
        name, _, suffix = text.partition(":")
        if name in ROCM_ARCHES and (text == name or suffix == "emulated"):
            return cls("rocm", name, emulated=suffix == "emulated")
        if text.startswith("sm_") and text[3:].isdecimal():
            return cls("cuda", text)
        if text in ("cpu", "cuda"):
            return cls.of(text)
        if name == "cuda" and suffix.isascii() and suffix.isdecimal() and int(suffix) <= LAST_INDEX:
            return cls.of(torch.device("cuda", int(suffix)))
        raise ValueError(
            f"device: must be cpu, cuda[:index], sm_<number>, {' or '.join(ROCM_ARCHES)} with "
            f":emulated or not, got {text!r}"
        )

    @property
    def torch_device(self) -> torch.device:
        """Where the operands live: emulated devices take theirs from CPU memory."""
        if self.kind == "cpu" or self.emulated:
            return HOST
        return _cuda(self.index)

    def __str__(self) -> str:
        if self.kind == "cpu":
            return "cpu"
        return (
            f"{self.arch}:emulated"
            if self.emulated
            else f"{self.arch}" + (f"#{self.index}" if self.index else "")
        )


@functools.cache
def _cuda(index: int) -> torch.device:
    return torch.device("cuda", index)


@functools.cache
def _host() -> DeviceSpec:
    return DeviceSpec("cpu", platform.machine() or "unknown")


@functools.cache
def _gpu(index: int) -> DeviceSpec:
    if torch.version.hip is not None:
        arch = str(torch.cuda.get_device_properties(index).gcnArchName).partition(":")[0]
        return DeviceSpec("rocm", arch, index=index)
    major, minor = torch.cuda.get_device_capability(index)
    return DeviceSpec("cuda", f"sm_{major}{minor}", index=index)
