"""Programs that call themselves ld.lld."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def linker(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes a ROCm folder whose ld.lld says what it is told to."""

    def make(says: str, folder: str = "rocm") -> Path:
        path = tmp_path / folder / "llvm/bin/ld.lld"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\necho '{says}'\n")
        path.chmod(0o755)
        return tmp_path / folder

    return make
