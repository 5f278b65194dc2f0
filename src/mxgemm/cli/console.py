"""What every command prints with: tables for people, pure JSON for programs, progress on stderr."""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

PIPED_WIDTH = 200
"""Columns when stdout is no terminal, so that tables in files and pipes are not cut to 80."""

Advance = Callable[[str, int, int], None]
"""Told what is being worked on, how much is done, and how much there is."""


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument(
        "--json", action="store_true", help="print the result as JSON on stdout, nothing else"
    )


def stdout() -> Console:
    """Return the console for results, wide enough when it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)


def print_json(payload: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout, and nothing else."""
    sys.stdout.write(json_text(payload))


def json_text(payload: Mapping[str, Any]) -> str:
    """Return a JSON object as text; numbers that JSON lacks (NaN, Inf) become null."""
    return json.dumps(_plain(payload), indent=2, allow_nan=False) + "\n"


def show(
    out: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    """Print a titled table and an empty line; a column whose name starts with ">" is aligned to
    the right.

    Cells are shown as they are: markup and control characters in them have no effect.
    """
    made = Table(show_edge=False)
    for column in columns:
        right = column.startswith(">")
        made.add_column(
            column.removeprefix(">"), justify="right" if right else "left", overflow="fold"
        )
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    out.print(Text(title, style="bold"))
    out.print(made)
    out.print()


def printable(value: object) -> str:
    """Return text without control characters: names in files may hold anything."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in str(value))


def decibels(value: float) -> str:
    """Return an SQNR as text."""
    return "exact" if math.isinf(value) else f"{value:.2f}"


def size(count: int) -> str:
    """Return a number of bytes as text."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


@contextmanager
def progress(title: str) -> Iterator[Advance]:
    """Yield a function that moves a bar on stderr; it does nothing where stderr is no terminal."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(title, total=None, what="")

        def advance(what: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, what=printable(what))

        yield advance


@contextmanager
def activity(what: str) -> Iterator[None]:
    """Show on stderr for how long `what` has been going on, and the last that mxgemm's log said of
    it; nothing where stderr is no terminal.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    line = Progress(
        SpinnerColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        console=console,
        transient=True,
        expand=True,
    )
    with line:
        task = line.add_task(what)
        with _log_shown_by(lambda text: line.update(task, description=printable(text))):
            yield


@contextmanager
def _log_shown_by(show: Callable[[str], object]) -> Iterator[None]:
    """Call `show` with every message of mxgemm's log, down to those for debugging."""
    logger, handler = logging.getLogger("mxgemm"), _Shown(show)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Shown(logging.Handler):
    def __init__(self, show: Callable[[str], object]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(record.getMessage())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
