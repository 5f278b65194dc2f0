"""The only reader of the process environment: typed settings with defaults, listed by `mxgemm
info`.

Read when asked for, so that a test or a notebook may change them; nothing here is read at import.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Setting:
    """One environment variable: its name, what it does and its default as text."""

    variable: str
    purpose: str
    default: str

    def read(self) -> str:
        """Return the variable's text, or the default where it is unset or empty."""
        return os.environ.get(self.variable, "") or self.default


BACKEND = Setting(
    "MXGEMM_BACKEND", "backend to use where the call names none; never replaced by another", ""
)
CPU_ISA = Setting(
    "MXGEMM_CPU_ISA", "instruction set of native_cpu: scalar, avx2, avx512_vnni; empty = best", ""
)
CACHE_DIR = Setting("MXGEMM_CACHE_DIR", "folder of compiled device kernels", "~/.cache/mxgemm")
ROCM_PATH = Setting(
    "MXGEMM_ROCM_PATH", "folder whose llvm/bin holds ld.lld for gfx1250 kernels", ""
)
FLYDSL_KERNELS = Setting(
    "MXGEMM_FLYDSL_REPO", "checkout of the FlyDSL repository, for the witness test", ""
)

OF_PLANS = (CPU_ISA, ROCM_PATH)
"""What a backend's answers depend on: they are asked for anew when one of these has changed."""

SETTINGS = (BACKEND, CPU_ISA, CACHE_DIR, ROCM_PATH, FLYDSL_KERNELS)


def of_plans() -> tuple[str, ...]:
    """Return the present text of the settings that backends' answers depend on."""
    return tuple(setting.read() for setting in OF_PLANS)


def folder(setting: Setting) -> Path:
    """Return the absolute path of the folder that a setting names, `~` resolved; it may not exist.

    Raises:
        ValueError: it cannot be resolved: no such user, or no current folder.
    """
    text = setting.read()
    try:
        return Path(text).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise ValueError(f"{text}, which cannot be resolved: {error}") from error


def cache_dir() -> Path:
    """Return the folder of compiled device kernels; it may not exist yet.

    Raises:
        ValueError: as `folder`.
    """
    return folder(CACHE_DIR)


def steer_this_process(prefix: str, **variables: str) -> None:
    """Drop the environment variables that start with `prefix` and set `variables`.

    For a child process that exists to run one foreign tool, and ends with it.
    """
    for name in [name for name in os.environ if name.startswith(prefix)]:
        del os.environ[name]
    os.environ.update(variables)
