"""A builder of a kernel that never ends."""

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
    """Raise."""
    raise RuntimeError("no kernel here")
