"""Files of compiled device code, each built once per machine and content; processes that build the
same one do not disturb each other.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from mxgemm import settings


def digest(parts: list[str]) -> str:
    """Return a short name for the content `parts`, the same on every machine."""
    text = "\0".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def cached(folder: str, name: str, build: Callable[[], bytes]) -> bytes:
    """Return the content of `<cache>/<folder>/<name>`, built and kept when it is not there.

    A cache that cannot be written is no reason to fail: every process then builds the content anew.

    Args:
        folder: relative folder, for people: the kind and architecture of the code.
        name: file name; must change with everything that the content depends on.
        build: makes the content.
    """
    path = settings.cache_dir() / folder / name
    try:
        return path.read_bytes()
    except OSError:
        content = build()
    try:
        _write(path, content)
    except OSError:
        return content
    return content


def _write(path: Path, content: bytes) -> None:
    """Write the file under another name first, so that no reader sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(temporary).replace(path)
