"""native_cpu's threads: whose they are, and what happens when a process uses them in odd ways."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

import mxgemm
import oracles
from mxgemm.backends.native_cpu import NativeCpu
from mxgemm.runtime import native_cpu as runtime

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(
        not runtime.available_isas(), reason=str(NativeCpu().probe() or "the extension is there")
    ),
]

FORKS = """
import os, signal, torch, mxgemm
torch.set_num_threads(2)
x = torch.randn(300, 1024, generator=torch.Generator().manual_seed(1))
def work():
    a = mxgemm.quantize(x)
    out = mxgemm.gemm(a, a, backend="native_cpu", out_dtype=torch.float32)
    return out.numpy().tobytes()  # torch's own comparison would wait for its threads
right = work()
child = os.fork()
if child == 0:
    signal.alarm(60)
    os._exit(0 if work() == right else 3)
_, status = os.waitpid(child, 0)
raise SystemExit(os.waitstatus_to_exitcode(status))
"""


@pytest.fixture
def threads() -> Iterator[None]:
    """Restore the number of threads after a test that changes it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_threads_are_those_of_torch() -> None:
    """No second pool beside torch's: the OpenMP runtime that torch loaded runs our tasks."""
    assert "torch" in runtime.module().thread_provider()


def test_a_forked_child_works_on_after_its_parent_used_threads() -> None:
    """libgomp would wait in the child for threads that only the parent has."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr)


@pytest.mark.parametrize("count", [3, 64, 400])
def test_more_threads_than_cores_or_tasks(count: int, threads: None) -> None:
    a, b = (mxgemm.quantize(torch.randn(rows, 256)) for rows in (70, 90))
    torch.set_num_threads(1)
    right = mxgemm.gemm(a, b, backend="native_cpu")
    torch.set_num_threads(count)
    oracles.assert_same_bits(mxgemm.gemm(a, b, backend="native_cpu"), right)
    prepared = mxgemm.plan(mxgemm.problem_for(a, b), backend="native_cpu").prepare_b(b)
    oracles.assert_same_bits(mxgemm.gemm(a, prepared), right)


def test_calls_side_by_side_while_the_number_of_threads_changes(threads: None) -> None:
    """Each call has scratch memory of its own, and the thread count that it began with."""
    pairs = [
        tuple(mxgemm.quantize(torch.randn(rows + i, 512)) for rows in (100, 150)) for i in range(4)
    ]
    right = [mxgemm.gemm(a, b, backend="native_cpu") for a, b in pairs]
    wrong: list[int] = []

    def work(i: int) -> None:
        for step in range(20):
            torch.set_num_threads(1 + (i + step) % 3)
            a, b = pairs[i]
            if not torch.equal(mxgemm.gemm(a, b, backend="native_cpu"), right[i]):
                wrong.append(i)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(pairs))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
