"""Files of compiled device code, each built once per machine and content; processes that build the
same one do not disturb each other.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from mxgemm import settings
from mxgemm.runtime.work_folder import NoFolder, work_folder

logger = logging.getLogger("mxgemm")

Parsed = TypeVar("Parsed")

_CHECKSUM_BYTES = 32
"""SHA-256, behind the content of every file."""


def digest(parts: list[str]) -> str:
    """Return a short name for the content `parts`, the same on every machine."""
    text = "\0".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def elf(content: bytes) -> bytes:
    """Return `content`.

    Raises:
        ValueError: it is no ELF file, by its first bytes.
    """
    if not content.startswith(b"\x7fELF"):
        raise ValueError(f"must be an ELF file, starts with {content[:4]!r}")
    return content


def cached(
    folder: str, name: str, build: Callable[[], bytes], parse: Callable[[bytes], Parsed]
) -> Parsed:
    """Return the content of `<cache>/<folder>/<name>`, parsed, built and kept when it is not there.

    A cache that cannot be written is no reason to fail: every process then builds the content anew,
    and says so once. Nor is a file that is damaged or does not parse: it is built and written
    again.

    Args:
        folder: relative folder, for people: the kind and architecture of the code.
        name: file name; must change with everything that the content depends on.
        build: makes the content.
        parse: makes of the content what is returned; ValueError for what `build` cannot have made.
    """
    try:
        path = settings.cache_dir() / folder / name
    except ValueError as error:
        _warn(f"{settings.CACHE_DIR.variable}: needs a folder to write in, got {error}")
        return parse(build())
    kept = _read(path)
    if kept is not None:
        with suppress(ValueError):
            return parse(kept)
    content = build()
    parsed = parse(content)
    try:
        _write(path, content)
    except NoFolder as error:
        _warn(f"{settings.CACHE_DIR.variable}: {error}")
    except OSError as error:
        _warn(
            f"compiled kernel: needs a file, got {path}, which cannot be written: {error.strerror}"
        )
    return parsed


@functools.cache
def _warn(reason: str) -> None:
    logger.warning("%s; every process compiles anew what is not kept", reason)


def _read(path: Path) -> bytes | None:
    """Return a file's content, None if it is not there or not what was written."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    content, checksum = stored[:-_CHECKSUM_BYTES], stored[-_CHECKSUM_BYTES:]
    return content if checksum == _checksum(content) else None


def _write(path: Path, content: bytes) -> None:
    with work_folder(path.parent) as folder:
        partial = folder / path.name
        partial.write_bytes(content + _checksum(content))
        partial.replace(path)


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
