"""The ld.lld that links gfx1250 code objects: where it is looked for, and what it must be."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from mxgemm import settings
from mxgemm.errors import BackendUnavailable

FIRST_VERSION = 19
"""The first that links code object v6; lld 18 refuses its ABI version."""
LAST_PACKAGE = 24
"""Of Debian's numbered packages that are looked for."""
IN_ROCM = "llvm/bin/ld.lld"
USUAL_ROCM = Path("/opt/rocm")
TIMEOUT_S = 600
"""Far above what any machine takes that is not stuck."""


class NoLinker(BackendUnavailable):
    """No ld.lld fits; the text says what is required and what was found."""


@dataclass(frozen=True, slots=True)
class Linker:
    """A program that fits, by its absolute path, and what it says of its version."""

    path: Path
    version: str


def find() -> Linker:
    """Return the linker in the folder of MXGEMM_ROCM_PATH; where that is unset, the first that fits
    of ROCm's usual one, Debian's, the newest first, and the one on PATH.

    Raises:
        NoLinker: there is none; one that the setting names is never replaced by another.
    """
    setting = settings.ROCM_PATH
    if setting.read():
        needs = f"needs ld.lld {FIRST_VERSION} or later as {IN_ROCM} in {setting.variable}"
        try:
            folder = settings.folder(setting)
            if not folder.is_dir():
                raise _Unfit(f"{folder}, which is no folder")
            return _fitting(folder / IN_ROCM)
        except (ValueError, OSError, _Unfit) as error:
            raise NoLinker(f"{needs}, got {error}") from error
    names = [f"ld.lld-{version}" for version in range(LAST_PACKAGE, FIRST_VERSION - 1, -1)]
    on_path = [Path(found) for name in [*names, "ld.lld"] if (found := shutil.which(name))]
    unfit = []
    for path in (USUAL_ROCM / IN_ROCM, *on_path):
        try:
            return _fitting(path.absolute())
        except FileNotFoundError:
            continue
        except (OSError, _Unfit) as error:
            unfit.append(str(error))
    raise NoLinker(
        f"needs ld.lld {FIRST_VERSION} or later, ROCm's ({setting.variable}, {USUAL_ROCM}), "
        f"Debian's lld-{FIRST_VERSION} or one on PATH, got {'; '.join(unfit) or 'none'}"
    )


class _Unfit(Exception):
    """What was found in the place of a linker that fits."""


def _fitting(path: Path) -> Linker:
    version = _version(path, path.stat().st_mtime_ns)
    number = re.search(r"\bLLD (\d+)", version)
    if number is None:
        raise _Unfit(f"{path}, which says {version!r}")
    if int(number[1]) < FIRST_VERSION:
        raise _Unfit(f"{path}, which is {version}")
    return Linker(path, version)


@functools.lru_cache(maxsize=16)
def _version(path: Path, modified_ns: int) -> str:
    """Return the first line of what a program says of its version, or of why it does not."""
    del modified_ns  # a linker that is replaced is asked again
    try:
        done = subprocess.run(  # noqa: S603  a path that the user or the system names
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
    return lines[0] if lines else f"nothing, exit status {done.returncode}"
