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
Kind = pytest.importorskip("mxgemm.emulator.instruction").Kind

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


def registers(instruction) -> set[int]:
    """Vector registers that an instruction names."""
    named = {
        number
        for operand in instruction.operands
        if operand.kind is Kind.VECTOR
        for number in range(operand.index, operand.index + operand.words)
    }
    return named | registers(instruction.second) if instruction.second else named


def later_waits_cover(code, pc: int) -> bool:
    """Return whether a wait for all LDS loads at `pc` can be proven to be made up for by later ones.

    True if, on every path from it, no register that a load before it fills is named, and no barrier
    signalled, before later waits have forced that load; loads arrive in order. Only for a wait that
    no loop contains.
    """
    if any(i.target is not None and i.target <= pc <= at for at, i in enumerate(code)):
        return False
    start = max(n for n in range(pc) if code[n].name == "s_wait_dscnt" or n == 0)
    loads = [registers(i) for i in code[start:pc] if i.name.startswith("ds_load")]
    paths, seen = [(pc + 1, len(loads), 0)], set()
    while paths:
        state = at, left, issued = paths.pop()
        instruction = code[at]
        if instruction.name == "s_wait_dscnt":
            left = min(left, max(0, instruction.operands[0].value - issued))
        if left == 0 or state in seen:
            continue
        seen.add(state)
        waited_for = set().union(*loads[len(loads) - left :])
        if instruction.name == "s_barrier_signal" or registers(instruction) & waited_for:
            return False
        issued += instruction.name.startswith("ds_")
        if instruction.name not in ("s_endpgm", "s_branch"):
            paths.append((at + 1, left, issued))
        if instruction.target is not None:
            paths.append((instruction.target, left, issued))
    return True


def is_proven(code, mutant: emulator_mutants.Mutant) -> bool:
    if mutant.kind == "no-dscnt" and code[mutant.pc].operands[0].value == 0:
        return emulator_mutants.wait_is_redundant(code, mutant.pc) or later_waits_cover(
            code, mutant.pc
        )
    return emulator_mutants.wait_is_redundant(code, mutant.pc)


def test_every_wait_and_barrier_is_needed(run):
    assert all(run(listing(), *each) for each in RUNS)
    code = emulator.Machine("gfx1250").load(listing()).instructions
    mutants = waits()
    assert {mutant.kind for mutant in mutants} == set(WAITS)
    survivors = [m for m in mutants if all(run(m.text, *each) for each in RUNS)]
    assert [f"{m.name} {m.line}" for m in survivors if not is_proven(code, m)] == []
