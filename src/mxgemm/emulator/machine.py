"""The machine: load a kernel, map memory, launch, look at what happened."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mxgemm.emulator.architecture import Architecture, find
from mxgemm.emulator.arguments import ArgumentValue, pack_arguments
from mxgemm.emulator.assembly import read_assembly
from mxgemm.emulator.codeobject import read_code_object
from mxgemm.emulator.faults import FAULTS, LaunchError, LoadError
from mxgemm.emulator.instruction import Instruction
from mxgemm.emulator.lowering import lower, native
from mxgemm.emulator.memory import Memory
from mxgemm.emulator.metadata import KernelInfo
from mxgemm.emulator.result import Counters, LaunchResult, Trace

Timing = Literal["early", "late", "random"]
Event = Literal["start", "end", "instruction", "barrier", "transfer"]

_TIMINGS: tuple[Timing, ...] = ("early", "late", "random")
_EVENTS: tuple[Event, ...] = ("start", "end", "instruction", "barrier", "transfer")
_KERNARG_BASE = 0x7E00_0000_0000
_DEFAULT_MAX_INSTRUCTIONS = 200_000_000


@dataclass(frozen=True, slots=True)
class Checks:
    """Which hazards are looked for: races, and the rules on registers. Both, unless speed alone
    matters.
    """

    races: bool = True
    registers: bool = True
    bank_conflicts: bool = True  # counted, not a hazard


@dataclass(frozen=True, slots=True)
class Kernel:
    """A loaded kernel: its description and its instructions; `program` is the executor's form of
    them.
    """

    info: KernelInfo
    instructions: tuple[Instruction, ...]
    program: Any = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """The kernel's name in its metadata."""
        return self.info.name


class Machine:
    """An AMD GPU's workgroups on the CPU, executing the real ISA.

    Example::

        machine = Machine("gfx1250")
        kernel = machine.load(elf_bytes)
        out = machine.memory.map(0x1000_0000, 4096)
        machine.launch((2, 1, 1), args=[out, 7], lds_bytes=65536)
        machine.memory.read(out)

    Raises `LoadError` for an architecture that is not emulated and `BackendUnavailable` without the
    compiled executor.
    """

    def __init__(self, architecture: str = "gfx1250") -> None:
        self.architecture = find(architecture)
        self._native = native()
        self._native_memory = self._native.Memory()
        self.memory = Memory(self._native_memory)
        self.kernels: dict[str, Kernel] = {}
        self._hooks: dict[str, Callable[..., None]] = {}

    def load(self, code: bytes | str, *, text: str | None = None) -> Kernel:
        """Load a code object (`bytes`) or assembly text (`str`) and return its kernel, the first if
        there are several.

        With both, the two must hold the same instructions. All kernels are in `kernels` afterwards.
        Raises `LoadError`, or `DecodeError` for an instruction that is not known.
        """
        loaded = _load(self.architecture, code)
        if text is not None:
            _compare(loaded, _load(self.architecture, text))
        for kernel in loaded:
            self.kernels[kernel.name] = kernel
        return loaded[0]

    def hook(self, event: Event, function: Callable[..., None] | None) -> None:
        """Call `function` at every `event` of later launches; None removes it. One function an
        event.

        start, end: `function(wave)`; instruction (before it executes), barrier (signal and passed
        wait), transfer (issue of a tensor copy): `function(wave, pc)`. The wave is valid during the
        call: `wave.index`, `.workgroup`, `.pc`, `.scc`, `.vector(i)`, `.set_vector(i, values)`,
        `.scalar(i)`, `.set_scalar(i, value)`, `.lds`. Hooked launches run on one thread.
        """
        if event not in _EVENTS:
            raise ValueError(f"hook: the event must be one of {_EVENTS}, got {event!r}")
        if function is None:
            self._hooks.pop(event, None)
        else:
            self._hooks[event] = function

    def launch(
        self,
        grid: Sequence[int],
        block: Sequence[int] | None = None,
        args: Iterable[ArgumentValue] = (),
        lds_bytes: int = 0,
        *,
        kernel: Kernel | str | None = None,
        cluster: Sequence[int] = (1, 1, 1),
        workgroups: Iterable[Sequence[int]] | None = None,
        timing: Timing = "late",
        seed: int = 0,
        max_instructions: int = _DEFAULT_MAX_INSTRUCTIONS,
        threads: int | None = None,
        trace: bool = False,
        checks: Checks | None = None,
    ) -> LaunchResult:
        """Run a kernel over `grid` workgroups of `block` work-items and return counters, and the
        trace if asked for.

        args: one value per argument of the metadata: an address or `Region` for a pointer, int,
        float or bytes by value.
        lds_bytes: dynamic LDS, after the kernel's static LDS; an access outside both is an
        `AccessError`.
        cluster: workgroups per cluster along each axis; the grid must be a multiple.
        workgroups: run only those workgroup ids (all of a cluster's, if clustered); the grid says
        what ids mean.
        timing: when asynchronous operations move their data: as early or as late as the waits
        allow, or at random.
        seed: of the interleaving of waves and of random timing; the same seed gives the same run,
        for any thread count.
        max_instructions: per cluster, else `InstructionLimit`.
        threads: workgroups run in parallel; all cores by default.
        Raises `LaunchError` for arguments that do not fit, an `ExecutionError` or a `Hazard` from
        the run.
        """
        chosen = self._chosen(kernel)
        info = chosen.info
        settings = self._settings(info, grid, block, lds_bytes, cluster)
        if timing not in _TIMINGS:
            raise LaunchError(
                f"launch of {info.name}: timing must be one of {_TIMINGS}, got {timing!r}"
            )
        clusters = _clusters(settings["grid"], settings["cluster"], workgroups, info.name)
        checks = checks or Checks()
        kernarg = pack_arguments(info, tuple(args))
        self.memory.map(_KERNARG_BASE, buffer=kernarg)
        try:
            raw = self._native.launch(
                chosen.program,
                self._native_memory,
                settings
                | {
                    "kernarg": _KERNARG_BASE,
                    "timing": _TIMINGS.index(timing),
                    "seed": seed,
                    "max_instructions": max_instructions,
                    "detect_races": checks.races,
                    "check_registers": checks.registers,
                    "count_conflicts": checks.bank_conflicts,
                    "trace": trace,
                },
                self._hooks,
                clusters,
                threads or os.cpu_count() or 1,
            )
        finally:
            self.memory.unmap(_KERNARG_BASE)
        _raise_fault(chosen, raw["fault"])
        return LaunchResult(
            Counters(**raw["counters"]), Trace(raw["events"], settings["waves"]) if trace else None
        )

    def _chosen(self, kernel: Kernel | str | None) -> Kernel:
        if isinstance(kernel, Kernel):
            return kernel
        if kernel is None and len(self.kernels) == 1:
            return next(iter(self.kernels.values()))
        if kernel is None or kernel not in self.kernels:
            raise LaunchError(
                f"launch: kernel must be one of {sorted(self.kernels)}, got {kernel!r}"
            )
        return self.kernels[kernel]

    def _settings(
        self,
        info: KernelInfo,
        grid: Sequence[int],
        block: Sequence[int] | None,
        lds_bytes: int,
        cluster: Sequence[int],
    ) -> dict[str, Any]:
        grid3 = _extent("grid", grid, info.name)
        if any(g > most for g, most in zip(grid3, self.architecture.max_grid, strict=True)):
            raise LaunchError(
                f"launch of {info.name}: at most {self.architecture.max_grid} workgroups along the "
                f"axes, got {grid3}"
            )
        cluster3 = _extent("cluster", cluster, info.name)
        if block is None and info.required_block is None:
            raise LaunchError(
                f"launch of {info.name}: block is needed, the metadata does not fix it"
            )
        block3 = _extent(
            "block", block if block is not None else info.required_block or (), info.name
        )
        items = block3[0] * block3[1] * block3[2]
        if info.required_block and block3 != info.required_block:
            raise LaunchError(
                f"launch of {info.name}: block must be {info.required_block}, got {block3}"
            )
        limit = min(info.max_block_items, self.architecture.max_workgroup_items)
        if items > limit:
            raise LaunchError(
                f"launch of {info.name}: at most {limit} work-items in a block, got {items}"
            )
        total_lds = info.group_segment_bytes + lds_bytes
        if lds_bytes < 0 or total_lds > self.architecture.max_lds_bytes:
            raise LaunchError(
                f"launch of {info.name}: LDS must be 0..{self.architecture.max_lds_bytes} bytes, "
                f"got {total_lds}"
            )
        if any(g % c for g, c in zip(grid3, cluster3, strict=True)):
            raise LaunchError(
                f"launch of {info.name}: grid must be a multiple of cluster {cluster3}, got {grid3}"
            )
        if cluster3[0] * cluster3[1] * cluster3[2] > self.architecture.max_cluster:
            raise LaunchError(
                f"launch of {info.name}: at most {self.architecture.max_cluster} workgroups in a "
                f"cluster, got {cluster3}"
            )
        return {
            "grid": grid3,
            "block": block3,
            "cluster": cluster3,
            "lds_bytes": total_lds,
            "scratch_bytes": info.private_segment_bytes,
            "vector_registers": info.vector_registers,
            "workitem_id_dimensions": info.workitem_id_dimensions,
            "waves": -(-items // self.architecture.lanes),
        }


@functools.lru_cache(maxsize=64)
def _load(architecture: Architecture, code: bytes | str) -> tuple[Kernel, ...]:
    """Return the kernels of `code`; decoding takes longer than many a launch, so the last ones are
    kept.
    """
    kernels: tuple[tuple[KernelInfo, tuple[Instruction, ...]], ...]
    if isinstance(code, bytes):
        binary = read_code_object(code, architecture.name, architecture.elf_machine_flag)
        kernels = tuple((k.info, architecture.decode(k.code, k.address)) for k in binary)
    else:
        kernels = tuple(
            (k.info, architecture.parse(k.lines)) for k in read_assembly(code, architecture.name)
        )
    return tuple(_kernel(architecture, info, instructions) for info, instructions in kernels)


def _kernel(
    architecture: Architecture, info: KernelInfo, instructions: tuple[Instruction, ...]
) -> Kernel:
    if info.wavefront_size not in (0, architecture.lanes):
        raise LoadError(
            f"load of {info.name}: waves must have {architecture.lanes} lanes on "
            f"{architecture.name}, "
            f"got {info.wavefront_size}"
        )
    if not instructions:
        raise LoadError(f"load of {info.name}: the kernel has no instructions")
    return Kernel(info, instructions, lower(architecture, info, instructions))


def _extent(what: str, value: Sequence[int], name: str) -> tuple[int, int, int]:
    try:
        items = [int(v) for v in value]
    except (TypeError, ValueError) as error:
        raise LaunchError(
            f"launch of {name}: {what} must be one to three integers, got {value!r}"
        ) from error
    if not 1 <= len(items) <= 3 or min(items) < 1:
        raise LaunchError(
            f"launch of {name}: {what} must be one to three integers of at least 1, got "
            f"{tuple(items)}"
        )
    items += [1] * (3 - len(items))
    return (items[0], items[1], items[2])


def _clusters(
    grid: tuple[int, int, int],
    cluster: tuple[int, int, int],
    workgroups: Iterable[Sequence[int]] | None,
    name: str,
) -> list[tuple[int, int, int]]:
    extent = tuple(g // c for g, c in zip(grid, cluster, strict=True))
    if workgroups is None:
        return [
            (x, y, z) for z in range(extent[2]) for y in range(extent[1]) for x in range(extent[0])
        ]
    chosen: dict[tuple[int, int, int], None] = {}
    for workgroup in workgroups:
        padded = [*workgroup, 0, 0][:3]
        if any(not 0 <= w < g for w, g in zip(padded, grid, strict=True)):
            raise LaunchError(
                f"launch of {name}: workgroup ids must be inside the grid {grid}, got "
                f"{tuple(workgroup)}"
            )
        chosen[padded[0] // cluster[0], padded[1] // cluster[1], padded[2] // cluster[2]] = None
    return list(chosen)


def _compare(binary: Sequence[Kernel], text: Sequence[Kernel]) -> None:
    for one, other in zip(binary, text, strict=True):
        if len(one.instructions) != len(other.instructions):
            raise LoadError(
                f"load of {one.name}: the code object has {len(one.instructions)} instructions, "
                "the text "
                f"{len(other.instructions)}"
            )
        for pc, (a, b) in enumerate(zip(one.instructions, other.instructions, strict=True)):
            if a != b:
                raise LoadError(
                    f"load of {one.name}: instruction {pc} is {a} in the code object, {b} in the "
                    "text"
                )


def _raise_fault(kernel: Kernel, fault: dict[str, Any] | None) -> None:
    if fault is None:
        return
    raise FAULTS[fault["kind"]](
        fault["message"],
        pc=fault["pc"],
        instruction=str(kernel.instructions[fault["pc"]]),
        wave=fault["wave"],
        workgroup=fault["workgroup"],
        resource=fault["resource"],
        missing=fault["missing"],
    )


__all__ = ["Checks", "Event", "Kernel", "Machine", "Timing"]
