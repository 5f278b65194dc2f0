"""Builders of no kernel: one that never ends, one that fails."""

import os
import time
from pathlib import Path


def build(note: Path) -> None:
    """Write this process's id to `note`, whole, and sleep."""
    partial = note.with_suffix(".partial")
    partial.write_text(str(os.getpid()))
    partial.replace(note)
    time.sleep(600)


def fail(note: Path) -> None:
    """Raise, and say where."""
    raise RuntimeError(f"no kernel here, in {Path.cwd()}")
