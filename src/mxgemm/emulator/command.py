"""`mxgemm emulate`: run one kernel of a code object or an assembly file in the emulator."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxgemm.emulator.arguments import ArgumentValue
from mxgemm.emulator.faults import EmulatorError, ExecutionError, ExecutionHazard
from mxgemm.emulator.machine import Machine
from mxgemm.emulator.model import Estimate, estimate
from mxgemm.emulator.result import LaunchResult
from mxgemm.errors import BackendUnavailable, Hazard

_FIRST_REGION, _REGION_STEP = 0x10_0000_0000, 0x10_0000_0000
_ARGUMENT_HELP = """one value per kernel argument: an integer or a float by value; @BYTES for a
pointer to that much zeroed memory; @FILE for a pointer to a copy of a file (.npy: its array)"""


@dataclass(frozen=True, slots=True)
class _Arguments:
    values: list[ArgumentValue]
    buffers: dict[int, NDArray[Any]]  # by argument number


EXAMPLES = """\
examples:
  mxgemm emulate kernel.s --args @in.npy @65536 128 --grid 2,2 --dump 1 out.bin
  mxgemm emulate kernel.hsaco --args @4096 @4096 16 --timing random --seed 3
  mxgemm emulate kernel.s --args @65536 @65536 --workgroup 0 --model --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mxgemm emulate` to `parser`."""
    parser.epilog = EXAMPLES
    parser.add_argument("kernel", type=Path, help="code object, or assembly text (.s)")
    parser.add_argument("--args", nargs="*", default=[], metavar="VALUE", help=_ARGUMENT_HELP)
    parser.add_argument("--name", help="the kernel, where the file holds several")
    parser.add_argument("--grid", type=_extent, default=(1, 1, 1), help="workgroups, X[,Y[,Z]]")
    parser.add_argument("--block", type=_extent, help="work-items, where the metadata does not say")
    parser.add_argument(
        "--cluster", type=_extent, default=(1, 1, 1), help="workgroups of a cluster"
    )
    parser.add_argument(
        "--workgroup", type=_workgroup, action="append", help="run only this one; may be repeated"
    )
    parser.add_argument("--lds", type=int, default=0, metavar="BYTES", help="dynamic LDS")
    parser.add_argument("--timing", choices=("early", "late", "random"), default="late")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-instructions", type=int, default=200_000_000)
    parser.add_argument("--architecture", default="gfx1250")
    dump = "write the memory of a pointer argument (number from 0) after the run"
    names = ("ARGUMENT", "FILE")
    parser.add_argument("--dump", nargs=2, action="append", default=[], metavar=names, help=dump)
    parser.add_argument(
        "--model", action="store_true", help="estimate cycles; needs a run of one workgroup"
    )
    parser.add_argument(
        "--sharing", type=float, default=1.0, help="workgroups that use each HBM byte, for --model"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status: 0, 1 for a hazard or another fault of the kernel,
    2 for bad input.
    """
    try:
        result, prediction = _run(options)
    except (ExecutionHazard, ExecutionError) as fault:
        _write_fault(fault, as_json=options.json)
        return 1
    except (EmulatorError, BackendUnavailable, OSError, ValueError) as error:
        sys.stderr.write(f"mxgemm emulate: {error}\n")
        return 2
    _write_result(result, prediction, as_json=options.json)
    return 0


def _run(options: argparse.Namespace) -> tuple[LaunchResult, Estimate | None]:
    data = options.kernel.read_bytes()
    machine = Machine(options.architecture)
    kernel = machine.load(data if data[:4] == b"\x7fELF" else data.decode())
    if options.name:
        kernel = machine.kernels.get(options.name, kernel)
    arguments = _read_arguments(machine, options.args)
    result = machine.launch(
        options.grid,
        options.block,
        arguments.values,
        options.lds,
        kernel=options.name or kernel,
        cluster=options.cluster,
        workgroups=options.workgroup,
        timing=options.timing,
        seed=options.seed,
        max_instructions=options.max_instructions,
        trace=options.model,
    )
    for number, path in options.dump:
        if int(number) not in arguments.buffers:
            raise ValueError(f"--dump {number}: argument {number} is no pointer")
        Path(path).write_bytes(arguments.buffers[int(number)].tobytes())
    if not options.model:
        return result, None
    return result, estimate(
        kernel, result, architecture=options.architecture, sharing=options.sharing
    )


def _read_arguments(machine: Machine, texts: list[str]) -> _Arguments:
    values: list[ArgumentValue] = []
    buffers: dict[int, NDArray[Any]] = {}
    for number, text in enumerate(texts):
        if not text.startswith("@"):
            values.append(_number(text))
            continue
        buffers[number] = _buffer(text[1:])
        values.append(
            machine.memory.map(_FIRST_REGION + number * _REGION_STEP, buffer=buffers[number])
        )
    return _Arguments(values, buffers)


def _buffer(text: str) -> NDArray[Any]:
    if text.isdecimal():
        return np.zeros(int(text), np.uint8)
    if text.endswith(".npy"):
        return np.ascontiguousarray(np.load(text)).copy()
    return np.fromfile(text, np.uint8)


def _number(text: str) -> int | float:
    try:
        return int(text, 0)
    except ValueError:
        return float(text)


def _extent(text: str) -> tuple[int, int, int]:
    numbers = [int(part) for part in text.split(",")]
    padded = [*numbers, 1, 1][:3]
    return (padded[0], padded[1], padded[2])


def _workgroup(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _write_fault(fault: ExecutionHazard | ExecutionError, *, as_json: bool) -> None:
    if not as_json:
        kind = "hazard" if isinstance(fault, Hazard) else "error"
        sys.stdout.write(f"{kind} {type(fault).__name__}: {fault}\n")
        return
    fields = {
        name: getattr(fault, name)
        for name in ("pc", "instruction", "wave", "workgroup", "resource", "missing")
    }
    _write_json(
        {"fault": type(fault).__name__, "hazard": isinstance(fault, Hazard), "message": str(fault)}
        | fields
    )


def _write_result(result: LaunchResult, prediction: Estimate | None, *, as_json: bool) -> None:
    counters = {
        name: value for name, value in asdict(result.counters).items() if name != "executed"
    }
    if as_json:
        answer: dict[str, Any] = {"fault": None, "counters": counters}
        if prediction:
            answer["model"] = asdict(prediction) | {"dominant": prediction.dominant}
        _write_json(answer)
        return
    lines = ["no hazard", *(f"  {name} = {value:,}" for name, value in counters.items())]
    lines += prediction.lines() if prediction else []
    sys.stdout.write("\n".join(lines) + "\n")


def _write_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
