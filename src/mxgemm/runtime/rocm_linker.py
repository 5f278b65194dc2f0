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
            return _fitting_in(settings.folder(setting))
        except (ValueError, _Unfit) as error:
            raise NoLinker(f"{needs}, got {error}") from error
    names = [f"ld.lld-{version}" for version in range(LAST_PACKAGE, FIRST_VERSION - 1, -1)]
    on_path = [Path(found) for name in [*names, "ld.lld"] if (found := shutil.which(name))]
    unfit = []
    for path in (USUAL_ROCM / IN_ROCM, *on_path):
        try:
            return _fitting(path.absolute())
        except _Missing:
            continue
        except _Unfit as error:
            unfit.append(str(error))
    raise NoLinker(
        f"needs ld.lld {FIRST_VERSION} or later, ROCm's ({setting.variable}, {USUAL_ROCM}), "
        f"Debian's lld-{FIRST_VERSION} or one on PATH, got {'; '.join(unfit) or 'none'}"
    )


class _Unfit(Exception):
    """What was found in the place of a linker that fits."""


class _Missing(_Unfit):
    """There is nothing in the place."""


def _fitting_in(rocm: Path) -> Linker:
    try:
        if not rocm.is_dir():
            raise _Unfit(f"{rocm}, which is no folder")
    except OSError as error:
        raise _Unfit(f"{rocm}, which cannot be read: {error.strerror}") from error
    return _fitting(rocm / IN_ROCM)


def _fitting(path: Path) -> Linker:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _Missing(f"{path}, which does not exist") from error
    except OSError as error:
        raise _Unfit(f"{path}, which cannot be read: {error.strerror}") from error
    return _asked(path, found.st_mtime_ns, found.st_ctime_ns)


@functools.lru_cache(maxsize=16)
def _asked(path: Path, modified_ns: int, changed_ns: int) -> Linker:
    """Return the linker at `path`, remembered until it is replaced or its mode changes; one that
    does not fit is asked again each time, since what it lacks may lie elsewhere.
    """
    del modified_ns, changed_ns
    version = _version(path)
    number = re.search(r"\bLLD (\d+)", version)
    if number is None:
        raise _Unfit(f"{path}, which says {version!r}")
    if int(number[1]) < FIRST_VERSION:
        raise _Unfit(f"{path}, which is {version}")
    return Linker(path, version)


def _version(path: Path) -> str:
    """Return the first line of what a program says of its version."""
    try:
        done = subprocess.run(  # noqa: S603  a path that the user or the system names
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise _Unfit(f"{path}, which cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise _Unfit(f"{path}, which does not end within {TIMEOUT_S} s") from error
    lines = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
    return lines[0] if lines else f"nothing, exit status {done.returncode}"
