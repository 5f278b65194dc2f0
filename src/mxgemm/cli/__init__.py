"""The command `mxgemm`: one module per sub-command, found through `COMMANDS`.

A command is a module with `add_arguments(parser)` and `run(args) -> int`; it is imported only when
it is asked for, so that `mxgemm --help` loads no torch. Exit status: 0 done, 1 failed with one line
on stderr, 2 bad usage.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from mxgemm import __version__
from mxgemm.errors import MXError


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command: its name, its line in `mxgemm --help`, and the module that does it."""

    name: str
    summary: str
    module: str


COMMANDS = (
    Command("info", "show devices, backends, settings and extensions", "mxgemm.cli.info"),
    Command("explain", "say which backend takes a problem, and why the others do not",
            "mxgemm.cli.explain"),
    Command("quantize", "turn a safetensors file into an MXFP4 checkpoint",
            "mxgemm.cli.quantize"),
    Command("gemm", "multiply two matrices in MXFP4", "mxgemm.cli.gemm"),
    Command("demo", "run a sentence encoder in MXFP4 and show what it costs in accuracy",
            "mxgemm.cli.demo"),
    Command("bench", "time backends against each other and against torch, each result verified",
            "mxgemm.bench.command"),
    Command("compare", "say whether a run, or a variant, is slower beyond noise",
            "mxgemm.bench.compare"),
    Command("figures", "draw benchmark rows as PNG and SVG", "mxgemm.bench.figures"),
    Command("report", "write benchmark rows as one HTML page", "mxgemm.bench.report"),
    Command("emulate", "run a compiled gfx1250 kernel in the emulator", "mxgemm.emulator.command"),
)  # fmt: skip

EXAMPLES = """\
examples:
  mxgemm info                                       what can this machine run?
  mxgemm explain --m 64 --n 4096 --k 4096           who would do this GEMM?
  mxgemm quantize model.safetensors -o model-mxfp4  weights to a public MXFP4 checkpoint
  mxgemm gemm a.npy b.npy -o d.npy                  one product
  mxgemm demo                                       real weights, real text, a figure

`mxgemm COMMAND --help` explains each with examples. `--json` after a command prints its result as
JSON on stdout and nothing else there.
"""

# RuntimeError is torch's word for many things, a lack of memory among them. A failed assertion of
# our own is not here: it shows its traceback.
USER_ERRORS = (
    MXError, ValueError, TypeError, OSError, ImportError, MemoryError, RuntimeError, OverflowError,
)  # fmt: skip
FAILED, USAGE, INTERRUPTED = 1, 2, 130
TERMINATED = 128 + signal.SIGTERM


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        argv: the arguments after the program's name; those of the process when None.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _prepare_streams()
    show_traceback = False
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        # Within the block, because a command's module loads torch and may be interrupted there.
        args = _parser(arguments).parse_args(arguments)
        show_traceback = args.traceback
        return int(args.run(args))
    except BrokenPipeError:
        # Whoever read our output has left; point stdout elsewhere so that the exit flushes nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except USER_ERRORS as error:
        if show_traceback:
            raise
        sys.stderr.write(f"mxgemm: {_one_line(error)}\n")
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write("mxgemm: interrupted; nothing was left half-written\n")
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, previous)


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mxgemm",
        description="MXFP4 GEMM for PyTorch: quantize, multiply, and see which backend does it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mxgemm {__version__}")
    parser.add_argument(
        "--traceback", action="store_true", help="show where an error came from, for bug reports"
    )
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, title="commands"
    )
    asked = next((word for word in arguments if not word.startswith("-")), None)
    for command in COMMANDS:
        sub = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=command.summary[0].upper() + command.summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if command.name == asked:
            module = importlib.import_module(command.module)
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    return parser


def _prepare_streams() -> None:
    """Let no name or path stop a command that has done its work: a stdout or stderr that the
    caller closed, which Python shows as None, leads nowhere, and stdout escapes what it cannot
    encode.
    """
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - lives as long as we do
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _one_line(error: BaseException) -> str:
    """Return an error's text on one line: an OSError with its file, several lines joined."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    lines = (line.strip() for line in str(error).splitlines())
    return "; ".join(line for line in lines if line).replace(":; ", ": ") or type(error).__name__


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:
    # As an exception, so that staged outputs are removed on the way out.
    raise SystemExit(TERMINATED)


__all__ = ["COMMANDS", "Command", "main"]
