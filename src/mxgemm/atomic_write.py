"""Outputs that appear whole or not at all: everything is written beside its target and renamed.

A run that is killed leaves the target as it was; at worst a hidden `.<name>.partial-*` stays beside
it, which nothing reads. An existing target is never replaced unless `force` says so.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mxgemm.errors import CheckpointError


def check_file_free(target: Path, *, force: bool) -> None:
    """Raise unless `target` may be written: it does not exist, or it is a regular file and `force`
    is set; a device or a pipe would be replaced by the rename.

    Raises:
        CheckpointError: it exists and `force` is not set, or it is no file.
    """
    if target.is_dir():
        raise CheckpointError(f"output {target}: must be a file, got a folder; name a file in it")
    if target.exists() and not target.is_file():
        raise CheckpointError(
            f"output {target}: must be a regular file, got a device, pipe or socket; name a file"
        )
    if target.exists() and not force:
        raise CheckpointError(
            f"output {target}: must not exist yet, got an existing file; pass --force to replace it"
        )


def check_folder_free(target: Path, *, force: bool) -> None:
    """Raise unless `target` may receive files: missing, an empty folder, or any folder with
    `force`.

    Raises:
        CheckpointError: it holds files and `force` is not set, or it is no folder.
    """
    if target.exists() and not target.is_dir():
        raise CheckpointError(f"output {target}: must be a folder, got a file; name another")
    if target.is_dir() and any(target.iterdir()) and not force:
        raise CheckpointError(
            f"output {target}: must be new or empty, got a folder with files; pass --force to "
            f"replace those that this command writes"
        )


@contextmanager
def output_file(target: Path, *, force: bool) -> Iterator[Path]:
    """Yield a path beside `target` that becomes it when the block ends without an exception.

    Raises:
        CheckpointError: as `check_file_free`.
    """
    target = target.resolve()
    check_file_free(target, force=force)
    with _staging(target) as staging:
        partial = staging / target.name
        yield partial
        partial.replace(target)


@contextmanager
def output_folder(
    target: Path, *, force: bool, owned: Sequence[str], marker: str
) -> Iterator[Path]:
    """Yield an empty folder beside `target` that becomes it when the block ends without an
    exception.

    A `target` that exists is filled, not replaced: it may be a mount point or the place where the
    caller stands. Of what it holds (`force`), the files that match `owned` go and the new ones
    come; others stay. The file `marker` goes first and comes last, so that a folder that was left
    in between has none and cannot be taken for a whole one.

    Args:
        target: the folder.
        force: replace what it holds.
        owned: glob patterns of the files that belong to this kind of output.
        marker: name of the one file without which a reader refuses the folder.

    Raises:
        CheckpointError: as `check_folder_free`.
    """
    target = target.resolve()
    check_folder_free(target, force=force)
    with _staging(target) as staging:
        yield staging
        if not target.exists():
            staging.chmod(0o777 & ~current_umask())
            staging.rename(target)
            return
        (target / marker).unlink(missing_ok=True)
        for pattern in owned:
            for stale in target.glob(pattern):
                stale.unlink()
        for path in sorted(staging.iterdir(), key=lambda path: path.name == marker):
            path.replace(target / path.name)


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def current_umask() -> int:
    """Return the mask that new files of this process get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
