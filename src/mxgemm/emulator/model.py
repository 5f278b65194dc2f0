"""A performance model: what one executed workgroup asks of each resource, and how far its own order
lets that overlap.

The counts are facts of the run; the rates are assumptions, listed with their sources in
`Estimate.rates`. Each wave's executed
instructions are replayed in order against the resources: one issue slot a cycle and SIMD, a matrix
pipe a SIMD, one LDS pipe, one path for tensor copies. Waits and barriers hold a wave until what it
waited for is done. One workgroup has the processor to itself. It is a model: caches, clocks, power
and other workgroups are not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mxgemm.emulator.architecture import find
from mxgemm.emulator.instruction import Instruction
from mxgemm.emulator.machine import Kernel
from mxgemm.emulator.rates import Rate, Rates
from mxgemm.emulator.result import Counters, EventKind, LaunchResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The model's answer for one workgroup.

    cycles: from the first issue to the last completion. busy: cycles that each resource needs if
    nothing else held it up: the lower bounds. dominant: the largest of them. matrix_share:
    matrix-pipe cycles over cycles, the share of the SIMDs' peak.
    """

    cycles: float
    busy: dict[str, float]
    counts: dict[str, int]
    matrix_share: float
    rates: tuple[Rate, ...]

    @property
    def dominant(self) -> str:
        """The resource with the largest lower bound."""
        return max(self.busy, key=lambda name: self.busy[name])

    def lines(self) -> list[str]:
        """Return the estimate as text, rates and their sources included."""
        share = f"{self.matrix_share:.1%} of the matrix peak"
        shown = [f"model: {self.cycles:,.0f} cycles for one workgroup, {share}"]
        shown += [f"  {name:<8} {busy:>12,.0f} cycles at least" for name, busy in self.busy.items()]
        shown.append(f"  bound by {self.dominant}")
        shown += [f"  {name} = {count:,}" for name, count in self.counts.items()]
        shown += [f"  assumed {r.name} = {r.value:g} {r.unit} ({r.source})" for r in self.rates]
        return shown


@dataclass(slots=True)
class _Wave:
    stream: Sequence[int]
    at: int = 0
    ready: float = 0.0
    done: dict[str, list[float]] = field(
        default_factory=dict
    )  # counter -> completion times in issue order
    arrivals: int = 0  # barrier phases
    waits: int = 0


def estimate(
    kernel: Kernel, result: LaunchResult, *, architecture: str = "gfx1250", sharing: float = 1.0
) -> Estimate:
    """Return the model's estimate for the workgroup that `result` ran.

    sharing: how many workgroups use each byte that comes from HBM, through the caches; what the
    grid makes of it, which one workgroup does not show. Raises `ValueError` unless the launch
    traced exactly one workgroup.
    """
    trace = result.trace
    if trace is None or set(np.unique(trace.workgroup)) != {0}:
        raise ValueError("estimate: the launch must have trace=True and run one workgroup")
    issued = trace.kind == EventKind.ISSUE
    streams = [
        trace.pc[issued & (trace.wave == w)].tolist() for w in range(int(trace.wave.max()) + 1)
    ]
    rates = find(architecture).rates
    replay = _Replay(kernel.instructions, streams, result.counters, rates)
    cycles = replay.run()
    busy = replay.bounds(sharing)
    return Estimate(
        cycles=cycles,
        busy=busy,
        counts=_counts(result.counters, replay),
        matrix_share=replay.matrix_total / (cycles * rates["simds"]) if cycles else 0.0,
        rates=rates.table,
    )


def _counts(counters: Counters, replay: _Replay) -> dict[str, int]:
    return {
        "matrix_cycles": int(replay.matrix_total),
        "instructions": counters.instructions,
        "lds_bytes": counters.lds_read_bytes + counters.lds_written_bytes,
        "lds_cycles": counters.lds_cycles,
        "lds_conflict_cycles": counters.lds_conflict_cycles,
        "tensor_load_bytes": counters.tensor_load_bytes,
        "tensor_store_bytes": counters.tensor_store_bytes,
        "global_bytes": counters.global_read_bytes + counters.global_written_bytes,
    }


class _Replay:
    def __init__(
        self,
        code: Sequence[Instruction],
        streams: list[list[int]],
        counters: Counters,
        rates: Rates,
    ) -> None:
        self.code, self.rates, self.counters = code, rates, counters
        self.unit = [rates.unit(i) for i in code]
        self.waves = [_Wave(stream) for stream in streams]
        self.simds = int(rates["simds"])
        self.free = {"lds": 0.0, "tensor": 0.0, "load": 0.0, "store": 0.0, "scalar_load": 0.0}
        self.slot = [0.0] * self.simds
        self.pipe = [0.0] * self.simds
        self.matrix = [0.0] * self.simds
        self.arrived: list[list[float]] = []  # per barrier phase, the waves' arrival times
        count = {
            unit: sum(
                int(n) for n, u in zip(counters.executed, self.unit, strict=True) if u == unit
            )
            or 1
            for unit in ("lds", "tensor")
        }
        # An instruction's share: the counters are sums.
        self.lds_cycles_each = counters.lds_cycles / count["lds"]
        moved = counters.tensor_load_bytes + counters.tensor_store_bytes
        self.tensor_cycles_each = moved / count["tensor"] / rates["tensor_bytes"]

    @property
    def matrix_total(self) -> float:
        return sum(self.matrix)

    def run(self) -> float:
        """Issue the earliest ready instruction until every wave has ended; return the last
        completion.
        """
        last = 0.0
        while live := [
            w for w in range(len(self.waves)) if self.waves[w].at < len(self.waves[w].stream)
        ]:
            start, wave = min((self.start(w), w) for w in live)
            last = max(last, self.issue(wave, start))
        return last

    def start(self, index: int) -> float:
        """Return when a wave's next instruction can issue; infinity while it waits for another
        wave.
        """
        wave = self.waves[index]
        instruction = self.code[wave.stream[wave.at]]
        simd = index % self.simds
        start = max(wave.ready, self.slot[simd])
        if self.unit[wave.stream[wave.at]] == "matrix":
            start = max(start, self.pipe[simd])
        if instruction.name.startswith("s_wait_"):
            start = max(start, self.waited(wave, instruction))
        if instruction.name == "s_barrier_wait":
            phase = self.arrived[wave.waits] if wave.waits < len(self.arrived) else []
            start = max(start, *phase) if len(phase) == len(self.waves) else float("inf")
        return start

    def waited(self, wave: _Wave, instruction: Instruction) -> float:
        times = wave.done.get(instruction.name.removeprefix("s_wait_"), [])
        left = instruction.operands[0].value if instruction.operands else 0
        waited = times[: max(0, len(times) - left)]
        return max(waited, default=0.0)

    def issue(self, index: int, start: float) -> float:
        if start == float("inf"):
            raise ValueError(
                "estimate: the traced waves wait for one another; the trace is not of a whole "
                "workgroup"
            )
        wave = self.waves[index]
        pc = wave.stream[wave.at]
        instruction, unit, simd = self.code[pc], self.unit[pc], index % self.simds
        wave.at += 1
        wave.ready = self.slot[simd] = start + 1 / self.rates["issue"]
        end = wave.ready
        if unit == "matrix":
            cycles = self.rates.matrix_cycles(instruction)
            self.pipe[simd] = end = start + cycles
            self.matrix[simd] += cycles
        elif unit is not None:
            end = self.occupy(wave, unit, start)
        if instruction.name == "s_barrier_signal":
            while len(self.arrived) <= wave.arrivals:
                self.arrived.append([])
            self.arrived[wave.arrivals].append(start)
            wave.arrivals += 1
        elif instruction.name == "s_barrier_wait":
            wave.waits += 1
        return end

    def occupy(self, wave: _Wave, unit: str, start: float) -> float:
        cycles = {"lds": self.lds_cycles_each, "tensor": self.tensor_cycles_each}.get(unit, 1.0)
        begin = max(start, self.free[unit])
        self.free[unit] = begin + cycles
        latency = self.rates["lds_latency" if unit in {"lds", "scalar_load"} else "memory_latency"]
        end = begin + cycles + latency
        wave.done.setdefault(self.rates.counters[unit], []).append(end)
        return end

    def bounds(self, sharing: float) -> dict[str, float]:
        """Return the least cycles that each resource needs for the whole workgroup."""
        counters, rates = self.counters, self.rates
        tensor = counters.tensor_load_bytes + counters.tensor_store_bytes
        memory = tensor + counters.global_read_bytes + counters.global_written_bytes
        issued = [0] * self.simds
        for index, wave in enumerate(self.waves):
            issued[index % self.simds] += len(wave.stream)
        hbm_share = rates["hbm_bytes"] / rates["clock"] / rates["processors"]
        return {
            "matrix": max(self.matrix),
            "issue": max(issued) / rates["issue"],
            "lds": counters.lds_cycles + tensor / rates["lds_bytes"],
            "tensor": tensor / rates["tensor_bytes"],
            "hbm": memory / sharing / hbm_share,
        }
