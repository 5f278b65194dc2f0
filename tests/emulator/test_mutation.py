"""A compiled kernel with one wait, barrier, offset or scale operand broken must fail, unless a
proof shows that nothing broke.

The verdict on every mutant is in docs/measurements/emulator_mutants.tsv; `python
tests/emulator/test_mutation.py` rewrites it.
"""

import functools
from pathlib import Path

import pytest

import mxfp4_kernel
from emulator_mutants import Mutant, mutants, why_redundant
from mxgemm.emulator import Kernel, Machine
from mxgemm.errors import MXError

pytestmark = pytest.mark.emulated

REPORT = Path(__file__).parents[2] / "docs/measurements/emulator_mutants.tsv"
HEADER = "kind\tpc\tinstruction\tverdict"
SEEDS = range(4)
CONTRACTIONS = (
    128,
    256,
    2176,
    2304,
)  # one K tile, two, and so many that every buffer is reused, odd and even
ROWS = 120  # less than a tile, so that the copies' bounds matter
REQUIRED = 0.99
SAMPLE = 9  # the default run looks at every ninth
MISSED = "missed"
LIMIT = 200_000


@functools.cache
def original() -> Kernel:
    return Machine().load(mxfp4_kernel.PATH.read_text())


@functools.cache
def all_mutants() -> list[Mutant]:
    return list(mutants(mxfp4_kernel.PATH.read_text(), mxfp4_kernel.SYMBOL))


def failure(kernel: Kernel, seed: int, k: int) -> str | None:
    p = mxfp4_kernel.problem(ROWS, mxfp4_kernel.TILE, k)
    try:
        out, _ = mxfp4_kernel.run(
            kernel, p, timing="late", seed=seed, threads=1, max_instructions=LIMIT
        )
    except MXError as error:
        return type(error).__name__
    return None if (out == p.product).all() else "wrong values"


def verdict(mutant: Mutant) -> str:
    kernel = Machine().load(mutant.text)
    runs = ((seed, k) for seed in SEEDS for k in CONTRACTIONS)
    caught = next((f for seed, k in runs if (f := failure(kernel, seed, k))), None)
    if caught:
        return caught
    proof = why_redundant(original().instructions, mutant)
    return f"redundant: {proof}" if proof else MISSED


def line(mutant: Mutant) -> str:
    return f"{mutant.kind}\t{mutant.pc}\t{mutant.line}\t{verdict(mutant)}"


def test_original_kernel_is_right_for_every_seed_and_size():
    for seed in SEEDS:
        for k in CONTRACTIONS:
            assert failure(original(), seed, k) is None


@pytest.mark.parametrize("mutant", all_mutants()[::SAMPLE], ids=lambda m: m.name)
def test_sampled_mutant_gets_the_reported_verdict(mutant):
    assert line(mutant) in REPORT.read_text().splitlines()


def test_report_covers_every_mutant_and_at_least_99_percent_are_caught():
    head, *lines = REPORT.read_text().splitlines()
    assert head == HEADER
    assert [entry.split("\t")[:3] for entry in lines] == [
        [m.kind, str(m.pc), m.line] for m in all_mutants()
    ]
    missed = sum(entry.endswith(f"\t{MISSED}") for entry in lines)
    redundant = sum("\tredundant: " in entry for entry in lines)
    assert 1 - missed / (len(lines) - redundant) >= REQUIRED


def test_no_proof_of_redundancy_is_given_for_a_mutant_that_is_caught():
    code = original().instructions
    caught = [
        m
        for m, entry in zip(all_mutants(), REPORT.read_text().splitlines()[1:], strict=True)
        if "redundant" not in entry
    ]
    assert [m.name for m in caught if why_redundant(code, m)] == []


@pytest.mark.slow
def test_every_mutant_gets_the_reported_verdict():
    assert "\n".join([HEADER, *map(line, all_mutants())]) + "\n" == REPORT.read_text()


if __name__ == "__main__":
    REPORT.write_text("\n".join([HEADER, *map(line, all_mutants())]) + "\n")
