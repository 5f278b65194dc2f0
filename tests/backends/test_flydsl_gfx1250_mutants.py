"""Every wait and barrier of the main kernel is needed: with one removed, a run in the emulator
fails, unless the removed wait is proven to wait for nothing.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

import emulator_mutants
import oracles
from backends.gfx1250_kernels import SHIPPED, compiled, needs_compiler
from mxgemm import accuracy
from mxgemm.backends.base import Accumulation
from mxgemm.errors import MXError

emulator = pytest.importorskip("mxgemm.emulator")

pytestmark = [pytest.mark.emulated, needs_compiler]

KERNEL = "large-plain-f32"
M = N = 256
RUNS = [(k_tiles, seed) for k_tiles in (17, 18, 2, 1) for seed in range(4)]
"""K tiles and seed: the drain has one path for even and one for odd K, each with and without a
steady state before it.
"""
WAITS = ("no-dscnt", "no-tensorcnt", "no-kmcnt", "no-barrier")


@pytest.fixture(scope="module")
def run() -> Callable[[str, int, int], bool]:
    """Return a function that says whether a listing computes the right product under a seed."""
    problems = {}
    for k_tiles in {k_tiles for k_tiles, _ in RUNS}:
        a, b = oracles.exact_operands(M, N, 128 * k_tiles, Accumulation(), seed=k_tiles)
        problems[k_tiles] = a, b, accuracy.exact_product(a, b)[0].float()
    spec = SHIPPED[KERNEL]

    def correct(text: str, k_tiles: int, seed: int) -> bool:
        a, b, right = problems[k_tiles]
        k = 128 * k_tiles
        out = torch.full((M, N), torch.nan)
        tensors = [out, a.codes, a.scales, b.codes, b.scales]
        machine = emulator.Machine("gfx1250")
        kernel = machine.load(text)
        for tensor in tensors:
            machine.memory.map(tensor.data_ptr(), buffer=tensor.numpy().view(np.uint8).reshape(-1))
        strides = [k // 2, k // 32, k // 2, k // 32, N, 0, 0]
        values = [*[t.data_ptr() for t in tensors], 0, 0, 0, 0, *strides]
        values += [M, N, k // 32, k_tiles, 1.0, 0.0]
        try:
            machine.launch(
                (1, 1, 1),
                (spec.tile.num_threads, 1, 1),
                values,
                spec.lds_bytes,
                kernel=kernel,
                timing="late",
                seed=seed,
            )
        except (emulator.EmulatorError, MXError):
            return False
        return torch.equal(out, right)

    return correct


def listing() -> str:
    return compiled(KERNEL).assembly


def waits() -> list[emulator_mutants.Mutant]:
    found = emulator_mutants.mutants(listing(), compiled(KERNEL).symbol)
    return [mutant for mutant in found if mutant.kind in WAITS]


def test_every_wait_and_barrier_is_needed(run):
    assert all(run(listing(), *each) for each in RUNS)
    code = emulator.Machine("gfx1250").load(listing()).instructions
    mutants = waits()
    assert {mutant.kind for mutant in mutants} == set(WAITS)
    survivors = [m for m in mutants if all(run(m.text, *each) for each in RUNS)]
    unproven = [m for m in survivors if emulator_mutants.why_redundant(code, m) is None]
    assert [f"{m.name} {m.line}" for m in unproven] == []
