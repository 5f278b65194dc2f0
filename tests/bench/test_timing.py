"""Clocks and rounds; CUDA's are driven by a device of our own, which counts."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from mxgemm.bench import timing
from mxgemm.bench.timing import Contender, EventClock, GraphClock, WallClock, interleave

pytestmark = pytest.mark.host


class FakeCuda:
    """A device whose clock moves by one millisecond a call."""

    def __init__(self, *, capturable=True):
        self.now = 0.0
        self.capturing = False
        self.capturable = capturable

    def work(self):
        if self.capturing and not self.capturable:
            raise RuntimeError("operation not permitted when stream is capturing")
        if self.capturing:
            self.captured += 1
        else:
            self.now += 1.0

    def synchronize(self):
        pass

    def Event(self, *, enable_timing):  # noqa: N802 - torch.cuda's name
        assert enable_timing
        return FakeEvent(self)

    def CUDAGraph(self):  # noqa: N802 - torch.cuda's name
        return self

    def replay(self):
        self.now += 0.5 * self.captured

    @contextlib.contextmanager
    def graph(self, graph):
        assert graph is self
        self.capturing, self.captured = True, 0
        try:
            yield
        finally:
            self.capturing = False


class FakeEvent:
    def __init__(self, cuda):
        self.cuda = cuda

    def record(self):
        self.at = self.cuda.now

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return end.at - self.at


def sampled(clock, contender, rounds=4, estimate=1e-3):
    contender.estimate = estimate
    interleave(
        [contender],
        clock,
        sample_seconds=5e-3,
        budget_seconds=0.0,
        rounds=(rounds, rounds),
        seed=0,
    )


def test_events_time_the_calls_between_them():
    cuda = FakeCuda()
    contender = Contender([cuda.work])
    sampled(EventClock(cuda), contender)
    assert contender.samples == [1e-3] * 4
    assert (contender.timer, contender.calls_per_sample) == ("events", 5)


def test_graph_times_one_replay_of_all_calls():
    cuda = FakeCuda()
    contender = Contender([cuda.work])
    sampled(GraphClock(cuda), contender, estimate=2.5e-4)
    assert contender.samples == [0.5e-3] * 4
    assert (contender.timer, contender.calls_per_sample) == ("graph", 20)


def test_long_calls_need_no_graph():
    cuda = FakeCuda()
    contender = Contender([cuda.work])
    sampled(GraphClock(cuda), contender)
    assert contender.timer == "events"


def test_graph_clock_estimates_before_there_is_a_graph():
    cuda = FakeCuda()
    assert timing.estimate(Contender([cuda.work]), GraphClock(cuda)) == 1e-3


def test_work_that_cannot_be_captured_is_timed_by_events_and_says_so():
    cuda = FakeCuda(capturable=False)
    contender = Contender([cuda.work])
    sampled(GraphClock(cuda), contender, estimate=2.5e-4)
    assert contender.samples == [1e-3] * 4
    assert contender.timer == "events"


@pytest.mark.parametrize(
    ("timer", "kind", "clock"),
    [
        ("auto", "cpu", WallClock),
        ("auto", "cuda", EventClock),
        ("graph", "cuda", GraphClock),
        ("events", "cuda", EventClock),
    ],
)
def test_clock_of_a_device(timer, kind, clock):
    assert type(timing.clock_for(timer, kind)) is clock


@pytest.mark.parametrize(("timer", "kind"), [("wall", "cuda"), ("graph", "cpu")])
def test_clock_that_does_not_fit_is_refused(timer, kind):
    with pytest.raises(ValueError, match="does not time work on"):
        timing.clock_for(timer, kind)


@pytest.mark.parametrize(
    ("cache", "bytes_moved", "estimate", "count"),
    [
        ("warm", 1, 1e-6, 1),
        ("cold", 4 << 20, 1e-4, 16),
        ("cold", 1 << 10, 1e-6, timing.MAX_BUFFERS),
        ("cold", 1 << 30, 1e-3, 1),
        ("cold", 4 << 20, 1.0, 1),
    ],
)
def test_number_of_buffers(cache, bytes_moved, estimate, count):
    assert timing.num_buffers(cache, bytes_moved, 32 << 20, estimate) == count


def test_calls_rotate_among_buffers():
    seen = []
    contender = Contender([lambda i=i: seen.append(i) for i in range(3)])
    for _ in range(7):
        contender.call()
    assert seen == [0, 1, 2, 0, 1, 2, 0]


def test_each_round_calls_everyone_in_a_shuffled_order():
    seen = []

    class Clock(timing.Clock):
        name = "fake"

        def seconds(self, contender):
            contender.call()
            return 1.0

    contenders = [Contender([lambda i=i: seen.append(i)]) for i in range(4)]
    interleave(contenders, Clock(), sample_seconds=0, budget_seconds=0, rounds=(6, 9), seed=1)
    rounds = [tuple(seen[i : i + 4]) for i in range(0, len(seen), 4)]
    assert len(rounds) == 6
    assert all(sorted(order) == [0, 1, 2, 3] for order in rounds)
    assert len(set(rounds)) > 1
    assert all(contender.samples == [1.0] * 6 for contender in contenders)


def test_disturbed_sample_is_taken_again(monkeypatch):
    counts = itertools.chain([0, 1, 1, 1], itertools.repeat(1))
    monkeypatch.setattr(timing, "_preemptions", lambda: next(counts))
    calls = []
    contender = Contender([lambda: calls.append(1)], estimate=1e-6)
    WallClock().seconds(contender)
    assert (len(calls), contender.disturbed) == (4, 0)


def test_sample_that_stays_disturbed_is_counted(monkeypatch):
    monkeypatch.setattr(timing, "_preemptions", itertools.count().__next__)
    contender = Contender([lambda: None], estimate=1e-6)
    WallClock().seconds(contender)
    assert contender.disturbed == 1


def test_warm_up_reaches_every_buffer():
    seen = set()
    contender = Contender([lambda i=i: seen.add(i) for i in range(5)])
    contender.call()
    timing.estimate(contender, WallClock())
    timing.warm_up(contender, 0.0, WallClock())
    assert seen == set(range(5))
