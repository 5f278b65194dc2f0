"""How things are timed: warm-up by time, cold caches by rotating buffers, interleaved rounds.

All contenders of a case are sampled once in every round, in an order that is shuffled anew, so that
whatever disturbs the machine disturbs them alike; a sample is the mean over enough calls to be
longer than the clock's noise. On CPU the clock is the wall's; on CUDA it is a pair of events around
the calls, or around the replay of a graph of them, which leaves the host's launch time out.
"""

from __future__ import annotations

import math
import random
import resource
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from mxgemm.bench.variants import Call

COLD_FACTOR = 2
"""Rotating buffers are together at least this many times the last-level cache."""

MAX_BUFFERS = 32
MAX_BUFFER_BYTES = 4 << 30
MAX_FILL_SECONDS = 0.25
"""Calling once on each buffer takes at most this long; a slower call streams past any cache."""

SETTLE_SECONDS = 0.05
"""Calls shorter than this are preceded by an untimed one in each sample: the contender before left
thread pools and caches in its own state."""


ATTEMPTS = 6
GRAPH_SECONDS = 5e-4
"""Above it the host launches faster than the device works, so that a graph changes nothing."""


@dataclass(slots=True)
class Contender:
    """Calls that are timed as one row.

    Attributes:
        calls: the same work on buffers of its own each, used in turn.
        estimate: seconds of one call, from the warm-up.
        calls_per_sample: how many calls a sample averages over.
        samples: seconds per call, one entry a round.
        timer: name of the clock that was used.
        disturbed: samples during which the processor went to other work.
    """

    calls: Sequence[Call]
    estimate: float = 0.0
    calls_per_sample: int = 1
    samples: list[float] = field(default_factory=list)
    timer: str = ""
    disturbed: int = 0
    _next: int = 0

    def call(self) -> object:
        """Call on the next buffers."""
        result = self.calls[self._next]()
        self._next = (self._next + 1) % len(self.calls)
        return result


class Clock(ABC):
    """A way to time `calls_per_sample` calls of a contender."""

    name: ClassVar[str]

    @abstractmethod
    def seconds(self, contender: Contender) -> float:
        """Return the mean seconds of one call over one sample."""

    def prepare(self, contender: Contender) -> Clock:
        """Return the clock for this contender, once its calls per sample are known."""
        contender.timer = self.name
        return self


class WallClock(Clock):
    """The host's monotonic clock; for work that is done when the call returns.

    A short sample during which the system took a thread off its processor is taken again, at most
    `ATTEMPTS` times; the least disturbed attempt counts.
    """

    name: ClassVar[str] = "wall"

    def seconds(self, contender: Contender) -> float:
        short = contender.estimate * contender.calls_per_sample < SETTLE_SECONDS
        best = (sys.maxsize, math.inf)
        for _ in range(ATTEMPTS if short else 1):
            if short:
                contender.call()
            switches = _preemptions()
            start = time.perf_counter()
            for _ in range(contender.calls_per_sample):
                contender.call()
            elapsed = time.perf_counter() - start
            best = min(best, (_preemptions() - switches, elapsed))
            if best[0] == 0:
                break
        contender.disturbed += best[0] > 0
        return best[1] / contender.calls_per_sample


class EventClock(Clock):
    """CUDA events before the first and after the last call, launch gaps included."""

    name: ClassVar[str] = "events"

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self.cuda = cuda

    def seconds(self, contender: Contender) -> float:
        if contender.estimate < SETTLE_SECONDS:
            contender.call()
        return self._between(contender, contender.call, contender.calls_per_sample)

    def _between(self, contender: Contender, step: Callable[[], object], steps: int) -> float:
        start = self.cuda.Event(enable_timing=True)
        end = self.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(steps):
            step()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / contender.calls_per_sample


class GraphClock(EventClock):
    """CUDA events around one replay of a graph of the calls, for calls that launching would hide.

    Events alone for calls longer than `GRAPH_SECONDS`, and where capture fails.
    """

    name: ClassVar[str] = "graph"

    def __init__(self, cuda: Any = torch.cuda) -> None:
        super().__init__(cuda)
        self.graph: Any = None

    def prepare(self, contender: Contender) -> Clock:
        """Return a clock that holds the contender's graph, or an EventClock."""
        if contender.estimate > GRAPH_SECONDS:
            return EventClock(self.cuda).prepare(contender)
        clock = GraphClock(self.cuda)
        try:
            self.cuda.synchronize()
            graph = self.cuda.CUDAGraph()
            with self.cuda.graph(graph):
                for _ in range(contender.calls_per_sample):
                    contender.call()
            clock.graph = graph
            graph.replay()
            self.cuda.synchronize()
        except RuntimeError:
            # Work that synchronizes or allocates outside the pool cannot be captured; the row says
            # "events", so that nobody takes its launch gaps for the kernel's time.
            return EventClock(self.cuda).prepare(contender)
        contender.timer = self.name
        return clock

    def seconds(self, contender: Contender) -> float:
        if self.graph is None:
            return super().seconds(contender)
        self.graph.replay()
        return self._between(contender, self.graph.replay, 1)


def _preemptions() -> int:
    """Return how often this process's threads lost their processor to others so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def clock_for(timer: str, device_kind: str) -> Clock:
    """Return the clock that a suite's `timer` means on a kind of device.

    Raises:
        ValueError: events or graphs on a CPU, or the wall clock for asynchronous work.
    """
    if timer == "auto":
        timer = "wall" if device_kind == "cpu" else "events"
    if (timer == "wall") != (device_kind == "cpu"):
        raise ValueError(f"timer: {timer} does not time work on {device_kind}; use auto")
    clocks: dict[str, type[Clock]] = {"wall": WallClock, "events": EventClock, "graph": GraphClock}
    return clocks[timer]()


def num_buffers(cache: str, bytes_moved: int, cache_bytes: int, estimate: float) -> int:
    """Return how many sets of buffers make a working set that the cache does not hold.

    Args:
        cache: "cold" or "warm".
        bytes_moved: by one call.
        cache_bytes: size of the last-level cache.
        estimate: seconds of one call.
    """
    if cache == "warm" or bytes_moved <= 0:
        return 1
    wanted = -(-COLD_FACTOR * cache_bytes // bytes_moved)
    affordable = MAX_BUFFER_BYTES // bytes_moved
    quick = int(MAX_FILL_SECONDS / max(estimate, 1e-9))
    return max(1, min(wanted, affordable, quick, MAX_BUFFERS))


def estimate(contender: Contender, clock: Clock) -> float:
    """Set and return the seconds of one call of a contender that was called before: a first call
    may compile, allocate or fault pages in.
    """
    # Long enough that the clock adds no call of its own.
    contender.estimate = SETTLE_SECONDS
    contender.estimate = clock.seconds(contender)
    return contender.estimate


def warm_up(contender: Contender, seconds: float, clock: Clock) -> None:
    """Call for `seconds`, and at least once on each buffer; the estimate becomes the least seen."""
    stop = time.perf_counter() + seconds
    left = len(contender.calls) - 1
    while left > 0 or time.perf_counter() < stop:
        contender.estimate = min(contender.estimate, clock.seconds(contender))
        left -= 1


def interleave(
    contenders: Sequence[Contender],
    clock: Clock,
    *,
    sample_seconds: float,
    budget_seconds: float,
    rounds: tuple[int, int],
    seed: int,
) -> None:
    """Fill every contender's samples, one a round, in an order shuffled by `seed` in each round.

    Args:
        contenders: warmed up.
        clock: how.
        sample_seconds: least length of a sample.
        budget_seconds: length of all rounds together, within `rounds`.
        rounds: least and greatest number of rounds.
        seed: of the orders.
    """
    for contender in contenders:
        calls = round(sample_seconds / max(contender.estimate, 1e-9))
        contender.calls_per_sample = max(1, calls)
        contender.disturbed = 0
    clocks = [clock.prepare(contender) for contender in contenders]
    order = list(range(len(contenders)))
    shuffler = random.Random(seed)  # noqa: S311 - an order, not a secret
    least, greatest = rounds
    stop = time.perf_counter() + budget_seconds
    for done in range(greatest):
        if done >= least and time.perf_counter() >= stop:
            break
        shuffler.shuffle(order)
        for index in order:
            contenders[index].samples.append(clocks[index].seconds(contenders[index]))
