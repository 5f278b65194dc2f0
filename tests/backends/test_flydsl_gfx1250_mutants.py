"""Every wait and barrier of every kind of kernel is needed: with one removed, a run in the emulator
fails, unless the removed wait is proven to wait for nothing.

The verdict on every mutant is in docs/measurements/gfx1250_mutants.tsv; `PYTHONPATH=src:tests
python tests/backends/test_flydsl_gfx1250_mutants.py [KIND ...]` rewrites it, or those kinds' part.
"""

import functools
import multiprocessing
import re
import sys
from pathlib import Path

import pytest

import emulator_mutants
from backends.gfx1250_kernels import needs_compiler

emulator = pytest.importorskip("mxgemm.emulator")

from backends import gfx1250_launches  # noqa: E402  (needs the emulator)

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


def failure(kind: str, text: str) -> str | None:
    """Return what the first failing run of a listing reports, None if all are right."""
    code = emulator.Machine("gfx1250").load(text)
    runs = ((launch, seed) for seed in SEEDS for launch in launches(kind))
    return next((f for launch, seed in runs if (f := launch.failure(code, seed))), None)


def verdict(kind: str, mutant: emulator_mutants.Mutant) -> str:
    if caught := failure(kind, mutant.text):
        return caught
    original = emulator.Machine("gfx1250").load(launches(kind)[0].kernel.assembly)
    proof = emulator_mutants.why_redundant(original.instructions, mutant)
    return f"redundant: {proof}" if proof else MISSED


def missed(kind: str, found: list[emulator_mutants.Mutant]) -> list[str]:
    return [f"{m.name} {m.line}" for m in found if verdict(kind, m) == MISSED]


@pytest.mark.parametrize("kind", KINDS)
def test_unchanged_kernel_is_right_and_every_wait_has_its_mutant(kind):
    assembly = launches(kind)[0].kernel.assembly
    assert failure(kind, assembly) is None
    waits = re.findall(r"^\ts_(?:wait|barrier)_\w+", assembly, re.MULTILINE)
    assert len(waits) == sum(m.kind != "no-barrier" for m in mutants(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_waits_and_barriers_are_needed(kind):
    assert missed(kind, mutants(kind)[::SAMPLE]) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_wait_and_barrier_is_needed(kind):
    assert missed(kind, mutants(kind)) == []


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
