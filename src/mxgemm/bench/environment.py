"""What a row was measured on: device, threads, clocks and versions, as plain data."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

import mxgemm
from mxgemm.devices import DeviceSpec

PACKAGES = ("torch", "triton", "numpy", "torchao", "openvino", "ggml-python")
CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
CPU_INFO = Path("/proc/cpuinfo")
FALLBACK_CACHE_BYTES = 32 << 20
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "": 1}


def versions() -> dict[str, str]:
    """Return the versions of what takes part, and the commit where it can be told."""
    found = {"mxgemm": mxgemm.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if commit := _commit():
        found["commit"] = commit
    return found


def machine(device: DeviceSpec) -> dict[str, Any]:
    """Return the device's name and size, and the number of threads that host work uses."""
    info: dict[str, Any] = {
        "device": str(device),
        "kind": device.kind,
        "emulated": device.emulated,
        "threads": torch.get_num_threads(),
        "host": _cpu_name(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "cache_bytes": cache_bytes(device),
    }
    if device.torch_device.type == "cuda":
        properties = torch.cuda.get_device_properties(device.torch_device)
        info["name"] = properties.name
        info["multiprocessors"] = properties.multi_processor_count
        info["memory_bytes"] = properties.total_memory
    else:
        info["name"] = _cpu_name()
    return info


def cache_bytes(device: DeviceSpec) -> int:
    """Return the size of the last-level cache; 32 MiB where the machine does not say."""
    if device.torch_device.type == "cuda":
        properties = torch.cuda.get_device_properties(device.torch_device)
        return int(properties.L2_cache_size)
    sizes = [path.read_text().strip() for path in CPU_CACHES.glob("index*/size")]
    matches = [re.fullmatch(r"(\d+)([KMG]?)", size) for size in sizes]
    found = [int(m[1]) * UNITS[m[2]] for m in matches if m is not None]
    return max(found, default=FALLBACK_CACHE_BYTES)


def clocks(device: DeviceSpec) -> dict[str, float]:
    """Return what the device says of its clock (MHz), power (W) and temperature (C) now."""
    if device.torch_device.type == "cuda":
        return _gpu_clocks(device.index)
    if not CPU_INFO.exists():
        return {}
    megahertz = [float(mhz) for mhz in re.findall(r"cpu MHz\s*:\s*([\d.]+)", CPU_INFO.read_text())]
    return {"clock_mhz": max(megahertz)} if megahertz else {}


def _gpu_clocks(index: int) -> dict[str, float]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    query = "--query-gpu=clocks.sm,power.draw,temperature.gpu"
    command = [tool, query, "--format=csv,noheader,nounits", f"--id={index}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)  # noqa: S603
    values = done.stdout.strip().split(",")
    try:
        return dict(zip(("clock_mhz", "power_w", "celsius"), map(float, values), strict=True))
    except ValueError:
        return {}


def _cpu_name() -> str:
    text = CPU_INFO.read_text() if CPU_INFO.exists() else ""
    fields = dict(re.findall(r"^(model name|cpu family|model)\s*:\s*(.+)$", text, re.MULTILINE))
    if "model name" not in fields:
        return platform.processor() or platform.machine()
    return f"{fields['model name']} (family {fields.get('cpu family')} model {fields.get('model')})"


def _commit() -> str | None:
    """Return the commit of the checkout that the package lies in, "+" appended where changed."""
    git, here = shutil.which("git"), Path(mxgemm.__file__).parent
    if git is None:
        return None
    run = [git, "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=10)  # noqa: S603
    return done.stdout.strip() or None
