"""Every wait and barrier of every kind of kernel is needed: with one removed, a run in the emulator
fails, unless the removed wait is proven to change nothing. The sizes of a kind lead through all of
its code; a removal that no run comes to is an error.

The verdict on every mutant is in docs/measurements/gfx1250_mutants.tsv; `PYTHONPATH=src:tests
python tests/backends/test_flydsl_gfx1250_mutants.py [KIND ...]` rewrites it, or those kinds' part.
"""

import functools
import multiprocessing
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import emulator_mutants
from backends.gfx1250_kernels import needs_compiler

emulator = pytest.importorskip("mxgemm.emulator")

from backends import gfx1250_footprints as footprints  # noqa: E402  (needs the emulator)
from backends import gfx1250_launches  # noqa: E402

pytestmark = [pytest.mark.emulated, needs_compiler]

REPORT = Path(__file__).parents[2] / "docs/measurements/gfx1250_mutants.tsv"
HEADER = "kernel\tmutant\tpc\tinstruction\tverdict"
SEEDS = range(4)
SAMPLE = 9
"""The default run looks at every ninth."""
MISSED = "missed"
KINDS = gfx1250_launches.KINDS


@functools.cache
def launches(kind: str) -> list[gfx1250_launches.Launch]:
    return KINDS[kind].all()


def mutants(kind: str) -> list[emulator_mutants.Mutant]:
    kernel = launches(kind)[0].kernel
    found = emulator_mutants.mutants(kernel.assembly, kernel.symbol)
    return [mutant for mutant in found if mutant.kind.startswith("no-")]


@functools.cache
def original(kind: str) -> emulator.Kernel:
    return emulator.Machine("gfx1250").load(launches(kind)[0].kernel.assembly)


@functools.cache
def runs(kind: str) -> list[tuple[gfx1250_launches.Launch, int, npt.NDArray[np.bool_]]]:
    """Return every launch with every seed, and which instructions the kernel itself executes."""
    return [
        (launch, seed, launch.counters(original(kind), seed).executed > 0)
        for seed in SEEDS
        for launch in launches(kind)
    ]


def failure(kind: str, mutant: emulator_mutants.Mutant) -> str | None:
    """Return what the first failing run reports, None if all are right.

    Up to the first instruction that is changed a mutant does what the kernel does, so that a run
    that comes to none of them says nothing.
    """
    code = emulator.Machine("gfx1250").load(mutant.text)
    reaching = (run for run in runs(kind) if run[2][list(mutant.changed)].any())
    return next((f for launch, seed, _ in reaching if (f := launch.failure(code, seed))), None)


def never_executed(kind: str) -> npt.NDArray[np.bool_]:
    return ~np.any([executed for _, _, executed in runs(kind)], axis=0)


def _values(kind: str, launch: gfx1250_launches.Launch, pc: int, register: int) -> set[int]:
    """Return what a scalar register holds where an instruction is executed."""
    seen = set()

    def look(wave, at: int) -> None:
        if at == pc:
            seen.add(wave.scalar(register))

    launch.outcome(original(kind), SEEDS[0], look)
    return seen


@functools.cache
def impossible_branches(kind: str) -> frozenset[int]:
    """Return the branches into code that no run executes, each seen to skip a loop without passes,
    in a kernel that is launched for no such loop.

    Such a branch is `s_cmp_lt_i32 X, 1` and `s_cbranch_scc1`; in every launch X is found to be what
    the kind says how often its K loop passes.
    """
    code, never = original(kind).instructions, never_executed(kind)
    into = [
        pc
        for pc in np.flatnonzero(~never).tolist()
        if any(never[at] for at in emulator_mutants.successors(code, pc))
    ]
    passes = KINDS[kind].passes
    for branch in into:
        assert passes is not None, f"{kind}: no size executes what follows pc {branch}"
        counted = emulator_mutants.skipped_passes(code, branch)
        assert counted is not None, f"{kind}: pc {branch} skips no loop"
        for size, launch in zip(KINDS[kind].sizes, launches(kind), strict=False):
            assert _values(kind, launch, *counted) == {passes(size)}
    return frozenset(into)


def verdict(kind: str, mutant: emulator_mutants.Mutant) -> str:
    """Return how a mutant fails, what proves that it changes nothing, or that it is missed.

    Raises AssertionError where no run executes what it changes, unless the kernel cannot either.
    """
    code, skipped = original(kind).instructions, impossible_branches(kind)
    if never_executed(kind)[list(mutant.changed)].any():
        feasible = emulator_mutants.as_nothing(code, skipped)
        reachable = emulator_mutants.reachable(feasible)
        assert not reachable & set(mutant.changed), f"{kind}: no size executes {mutant.name}"
    elif caught := failure(kind, mutant):
        return caught
    proof = emulator_mutants.why_redundant(code, mutant)
    if proof is None and skipped:
        proof = emulator_mutants.why_redundant(emulator_mutants.as_nothing(code, skipped), mutant)
    if proof is None and mutant.kind == "no-barrier-wait":
        apart = footprints.last_copies_are_apart
        proof = apart.__name__ if apart(original(kind), mutant.pc, launches(kind)) else None
    return f"redundant: {proof}" if proof else MISSED


def missed(kind: str, found: list[emulator_mutants.Mutant]) -> list[str]:
    return [f"{m.name} {m.line}" for m in found if verdict(kind, m) == MISSED]


@pytest.mark.parametrize("kind", KINDS)
def test_unchanged_kernel_is_right_and_every_wait_has_its_mutant(kind):
    assembly = launches(kind)[0].kernel.assembly
    assert runs(kind)
    waits = re.findall(r"^\ts_(?:wait|barrier)_\w+", assembly, re.MULTILINE)
    assert len(waits) == sum(m.kind != "no-barrier" for m in mutants(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_lead_through_all_code_that_can_be_executed(kind):
    never = set(np.flatnonzero(never_executed(kind)).tolist())
    feasible = emulator_mutants.as_nothing(original(kind).instructions, impossible_branches(kind))
    assert not never & emulator_mutants.reachable(feasible)


def test_mutant_that_no_size_executes_is_an_error(monkeypatch):
    shipped = "small-plain-bf16"
    odd_numbers_of_stages = replace(KINDS[shipped], sizes=(17, 18, 2, 1))
    monkeypatch.setitem(KINDS, "too few sizes", odd_numbers_of_stages)
    never = never_executed("too few sizes")
    lost = next(mutant for mutant in mutants(shipped) if never[mutant.pc])
    with pytest.raises(AssertionError, match="no size executes"):
        verdict("too few sizes", lost)


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_waits_and_barriers_are_needed(kind):
    assert missed(kind, mutants(kind)[::SAMPLE]) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_wait_and_barrier_is_needed(kind):
    assert missed(kind, mutants(kind)) == []


def test_report_misses_none():
    head, *lines = REPORT.read_text().splitlines()
    assert head == HEADER
    assert {line.split("\t")[0] for line in lines} == set(KINDS)
    assert [line for line in lines if line.endswith(f"\t{MISSED}")] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_report_is_of_the_kernels_as_they_are(kind):
    lines = [line.split("\t") for line in REPORT.read_text().splitlines()[1:]]
    assert [line[1:4] for line in lines if line[0] == kind] == [
        [m.kind, str(m.pc), m.line] for m in mutants(kind)
    ]


def report(kind: str) -> list[str]:
    return ["\t".join((kind, m.kind, str(m.pc), m.line, verdict(kind, m))) for m in mutants(kind)]


def rewrite(kinds: list[str]) -> None:
    """Write the verdicts on the mutants of `kinds`; the other kinds' stay as they are."""
    of_kind: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for line in REPORT.read_text().splitlines()[1:]:
        of_kind.get(line.split("\t")[0], []).append(line)
    with multiprocessing.Pool(2) as pool:
        for kind, lines in zip(kinds, pool.imap(report, kinds), strict=True):
            of_kind[kind] = lines
            everything = [HEADER, *(line for kind in KINDS for line in of_kind[kind])]
            REPORT.write_text("\n".join(everything) + "\n")


if __name__ == "__main__":
    rewrite(sys.argv[1:] or list(KINDS))
