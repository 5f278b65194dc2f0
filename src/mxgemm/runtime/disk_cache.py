"""Files of compiled device code, each built once per machine and content; processes that build the
same one do not disturb each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mxgemm import settings
from mxgemm.atomic_write import output_file
from mxgemm.errors import CheckpointError

_CHECKSUM_BYTES = 32
"""SHA-256, behind the content of every file."""


def digest(parts: list[str]) -> str:
    """Return a short name for the content `parts`, the same on every machine."""
    text = "\0".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def cached(folder: str, name: str, build: Callable[[], bytes]) -> bytes:
    """Return the content of `<cache>/<folder>/<name>`, built and kept when it is not there.

    A cache that cannot be written is no reason to fail: every process then builds the content anew.
    Nor is a damaged file: it is built and written again.

    Args:
        folder: relative folder, for people: the kind and architecture of the code.
        name: file name; must change with everything that the content depends on.
        build: makes the content.
    """
    path = settings.cache_dir() / folder / name
    kept = _read(path)
    if kept is not None:
        return kept
    content = build()
    with suppress(OSError, CheckpointError):
        _write(path, content)
    return content


def _read(path: Path) -> bytes | None:
    """Return a file's content, None if it is not there or not what was written."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    content, checksum = stored[:-_CHECKSUM_BYTES], stored[-_CHECKSUM_BYTES:]
    return content if checksum == _checksum(content) else None


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with output_file(path, force=True) as partial:
        partial.write_bytes(content + _checksum(content))


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
