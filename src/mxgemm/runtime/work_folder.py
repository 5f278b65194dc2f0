"""Folders to work in that vanish, those of killed processes included."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = ".mxgemm-work-"


class NoFolder(OSError):
    """Nowhere a folder can be made; the text says where and why."""


@contextmanager
def work_folder(*parents: Path) -> Iterator[Path]:
    """Yield a new folder that only this process uses, in the first of `parents` that takes one. It
    is removed at the end, with what it holds.

    A process that is killed leaves its folder and loses the lock on it: the next one that works in
    the same place removes it.

    Raises:
        NoFolder: none of `parents` can be written.
    """
    folder, lock = _first(parents)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _first(parents: tuple[Path, ...]) -> tuple[Path, int]:
    reasons = []
    for parent in parents:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(parent)
            return _locked(parent)
        except OSError as error:
            reasons.append(f"{parent}, which cannot be written: {error.strerror}")
    raise NoFolder(f"needs a folder to write in, got {'; '.join(reasons) or 'none'}")


def _locked(parent: Path) -> tuple[Path, int]:
    """Return a new folder and the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        # Until it is locked it looks abandoned, and another process may remove it.
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            _lock(lock, wait=True)
            if folder.exists():
                return folder, lock
        except OSError:
            os.close(lock)
            folder.rmdir()
            raise
        os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody works there, it is another user's, or just went
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                _lock(lock, wait=False)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _lock(descriptor: int, *, wait: bool) -> None:
    import fcntl  # not on every system that mxgemm is imported on

    fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
