"""`mxgemm compare`: is the new run slower than the base, or one variant than another, beyond noise?

Across two files a row's quantity is its speed-up over a reference that was interleaved with it, so
that a machine which is slower today cancels: over the baseline or an anchor (`anchors`), whichever
of those that both files hold leaves a variant's rows of a pass the narrowest band. With
`--absolute`, or where a case has no reference, it is the row's own time. Within one file two
variants are compared round by round.

The band of a ratio follows from the rows' own samples (`spread`): their rounds, their visits at
other moments, and across files how unevenly the rows of one variant moved. What a visit finds of
one row it tends to find of its neighbours, so that a geometric mean is judged by how far it differs
from visit to visit, where there are enough of them. All bands of one comparison hold together with
99 %, over any reference. A change counts only where its whole band is below `--fail-below`, of a
single row or of the geometric mean of a variant's rows in a pass.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mxgemm.bench import results, spread
from mxgemm.bench.cases import ANCHOR
from mxgemm.bench.errors import BenchError, ResultsError
from mxgemm.bench.results import MODELLED, TIMED, Row
from mxgemm.bench.spread import Estimate

FAMILY_CONFIDENCE = 0.99
FAIL_BELOW_ACROSS, FAIL_BELOW_WITHIN = 0.97, 1.0
"""Two runs differ by page placement and heat, which no round shows; within one nothing excuses."""

ENOUGH_VISITS = 4
"""From as many visits on, a mean's own spread among them says more than what its rows show."""

ENOUGH_DEGREES = 6
"""Rows of one variant and pass share their spread among visits; with fewer degrees of freedom all
rows of a file do."""

TIME = "time"
"""What a row without a reference is compared by."""

Key = tuple[str, str, str]
"""`Row.key`."""

EXIT_OK, EXIT_SLOWER, EXIT_ERROR = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Change:
    """One matched pair of rows, or one geometric mean of them.

    Attributes:
        case: the case's key, or the pass for a mean.
        pass_name: group of the geometric mean.
        variant, stage: who and what.
        estimate: log of old time over new time, normalised by the reference's.
        against: the reference that it was normalised by, "time" without one.
        rows: number of pairs behind it.
    """

    case: str
    pass_name: str
    variant: str
    stage: str
    estimate: Estimate
    against: str
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """All changes of a comparison, each with the confidence that makes them hold together.

    Attributes:
        changes: of single rows.
        means: geometric means by variant, stage and pass.
        confidence: of each band.
        deviation: by how much rows of one variant moved unevenly between two runs.
        unmatched: keys that only one side has a time for, as text.
    """

    changes: tuple[Change, ...]
    means: tuple[Change, ...]
    confidence: float
    deviation: float
    unmatched: tuple[str, ...]

    def slower(self, threshold: float) -> list[Change]:
        """Return the changes whose whole band lies below `threshold`."""
        return [c for c in (*self.changes, *self.means) if self.band(c)[2] < threshold]

    def band(self, change: Change) -> tuple[float, float, float]:
        """Return (low, ratio, high) of a change."""
        return change.estimate.band(self.confidence)


def across(
    base: Iterable[Row], new: Iterable[Row], *, anchor: str | None = None, absolute: bool = False
) -> Comparison:
    """Return how the rows of two runs compare.

    Args:
        base, new: rows of the two runs.
        anchor: the one variant to normalise by; None for the baseline and every common anchor.
        absolute: compare times, normalised by nothing.

    Raises:
        ResultsError: no row of the one has a partner in the other over one reference.
    """
    olds, news = _timed(base), _timed(new)
    names = () if absolute else _references(olds, news) if anchor is None else (anchor,)
    options: dict[tuple[str, str, str, bool], dict[str, list[_Pair]]] = {}
    # An anchor that was asked for is not replaced by nothing where a row lacks it.
    for name in names if anchor is not None else (*names, TIME):
        old, now = (_measured(rows, name, names) for rows in (olds, news))
        for key in (key for key in old if key in now):
            group = (*key[1:], old[key].pass_name, name == TIME)
            pair = _Pair(key, name, old[key], now[key])
            options.setdefault(group, {}).setdefault(name, []).append(pair)
    groups = [_narrowest(list(pairs.values())) for pairs in options.values()]
    if not groups:
        raise ResultsError(
            "compare: needs at least one timed row that both files hold (case, variant and stage, "
            f"over one reference), got {len(olds)} and {len(news)} rows without a common one; "
            "--absolute compares times"
        )
    changes = [[pair.change() for pair in group] for group in groups]
    every = list(itertools.chain.from_iterable(changes))
    unevenness = spread.deviation([c.estimate.center for c in group] for group in changes)
    further = spread.beyond(unevenness, [c.estimate.error for c in every])
    means = tuple(
        _mean_change(group, spread.widen(_mean_of(pairs), further / math.sqrt(len(pairs))))
        for pairs, group in zip(groups, changes, strict=True)
    )
    widened = tuple(replace(c, estimate=spread.widen(c.estimate, further)) for c in every)
    judged = {key for rows in (olds, news) for key in rows if not _is_reference(key, names)}
    matched = {pair.key for group in groups for pair in group}
    unmatched = tuple(" ".join(key) for key in sorted(judged - matched))
    return _comparison(widened, means, further, unmatched, references=len(names))


def within(rows: Iterable[Row], base: str, new: str) -> Comparison:
    """Return how two variants of one file compare, by the ratios of the same rounds.

    Raises:
        ResultsError: no case holds both.
    """
    timed = _timed(rows)
    pairs = [
        (old, timed[case, new, stage])
        for (case, variant, stage), old in timed.items()
        if variant == base and (case, new, stage) in timed
    ]
    pairs = [(old, now) for old, now in pairs if old.rounds == now.rounds]
    if not pairs:
        raise ResultsError(
            f"compare: needs at least one case that times both {base} and {new}, got none"
        )
    found = _over_visits([(now, _visits(old, now)) for old, now in pairs])
    changes = tuple(
        Change(now.case, now.pass_name, new, now.stage, measured.estimate, base)
        for (_, now), measured in zip(pairs, found, strict=True)
    )
    of = dict(zip(changes, found, strict=True))
    means = tuple(
        _mean_change(group, _mean([of[change] for change in group]))
        for group in _grouped(changes).values()
    )
    return _comparison(changes, means, 0.0, ())


@dataclass(frozen=True, slots=True)
class _Measured:
    """A row's log speed-up over its reference, or minus the logarithm of its time.

    Attributes:
        pass_name: see `Change`.
        visits: one a visit.
        estimate: over all visits.
    """

    pass_name: str
    visits: tuple[Estimate, ...]
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class _Pair:
    """What two runs measured of one row over one reference."""

    key: Key
    against: str
    old: _Measured
    new: _Measured

    def change(self) -> Change:
        """Return the change from the old to the new."""
        case, variant, stage = self.key
        estimate = spread.difference(self.old.estimate, self.new.estimate)
        return Change(case, self.old.pass_name, variant, stage, estimate, self.against)


def _narrowest(options: list[list[_Pair]]) -> list[_Pair]:
    """Return the pairs over the reference that most rows have; of several, that with the narrowest
    band of the mean.
    """

    def width(pairs: list[_Pair]) -> tuple[int, float]:
        low, _, high = _mean_of(pairs).band(FAMILY_CONFIDENCE)
        return -len(pairs), high / low

    return min(options, key=width)


def _mean_of(pairs: list[_Pair]) -> Estimate:
    """Return the mean change of several rows."""
    return spread.difference(_mean([p.old for p in pairs]), _mean([p.new for p in pairs]))


def _timed(rows: Iterable[Row]) -> dict[Key, Row]:
    return {row.key: row for row in rows if row.status == TIMED}


def _references(olds: dict[Key, Row], news: dict[Key, Row]) -> tuple[str, ...]:
    """Return the variants that rows of both runs may be normalised by: their common baselines, and
    the anchors that are the same code in both.
    """
    old, new = ({row.baseline for row in rows.values()} for rows in (olds, news))
    common = [(row, news[key]) for key, row in olds.items() if key in news and row.stage == ANCHOR]
    anchors = {before.variant for before, _ in common}
    changed = {before.variant for before, after in common if before.plan != after.plan}
    return tuple(sorted((old & new | anchors) - changed - {""}))


def _is_reference(key: Key, names: tuple[str, ...]) -> bool:
    """Return whether a row serves the others, and is not judged itself."""
    _, variant, stage = key
    return stage == ANCHOR or (variant in names and results.reference_stage(stage) == stage)


def _reference(rows: dict[Key, Row], row: Row, name: str) -> Row | None:
    """Return the row of `name` that was interleaved with `row`, None without one."""
    for stage in (ANCHOR, results.reference_stage(row.stage)):
        found = rows.get((row.case, name, stage))
        if found is not None and found.rounds == row.rounds:
            return found
    return None


def _measured(rows: dict[Key, Row], name: str, names: tuple[str, ...]) -> dict[Key, _Measured]:
    """Return what is compared of each row over `name`; over TIME, of those that none of `names` is
    a reference of.
    """
    judged = [row for key, row in rows.items() if not _is_reference(key, names)]
    if name == TIME:
        alone = [row for row in judged if not any(_reference(rows, row, n) for n in names)]
        found = [(row, _visits(None, row)) for row in alone]
    else:
        pairs = [(row, _reference(rows, row, name)) for row in judged]
        found = [(row, _visits(base, row)) for row, base in pairs if base is not None]
    measured = _over_visits(found)
    return {row.key: value for (row, _), value in zip(found, measured, strict=True)}


def _visits(base: Row | None, new: Row) -> tuple[Estimate, ...]:
    """Return log(base / new) of each visit; log(1 ms / new) without a base."""
    bases = base.by_visit() if base is not None else [(1.0,) * count for count in new.rounds]
    return tuple(spread.paired(old, now) for old, now in zip(bases, new.by_visit(), strict=True))


def _over_visits(rows: list[tuple[Row, tuple[Estimate, ...]]]) -> list[_Measured]:
    """Return each row's mean over its visits, whose error is at least what visits differ by: those
    of its variant, stage and pass, or those of all rows where they are few.
    """
    groups: dict[tuple[str, str, str], list[list[float]]] = {}
    for row, visits in rows:
        key = (row.variant, row.stage, row.pass_name)
        groups.setdefault(key, []).append([visit.center for visit in visits])
    everything = spread.pooled(itertools.chain.from_iterable(groups.values()))
    found = []
    for row, visits in rows:
        among = spread.pooled(groups[row.variant, row.stage, row.pass_name])
        if among.degrees < ENOUGH_DEGREES:
            among = everything
        estimate = spread.mean(visits)
        error = among.sigma / math.sqrt(len(visits))
        if error > estimate.error:
            estimate = Estimate(estimate.center, error, among.degrees + 1)
        found.append(_Measured(row.pass_name, visits, estimate))
    return found


def _mean(rows: list[_Measured]) -> Estimate:
    """Return the mean of several rows of one run, whose error is at least what it differs by from
    visit to visit, where there are enough.
    """
    estimate = spread.mean([row.estimate for row in rows])
    counts = {len(row.visits) for row in rows}
    if len(counts) > 1 or min(counts) < ENOUGH_VISITS:
        return estimate
    each = [
        statistics.fmean(visit.center for visit in visits)
        for visits in zip(*(row.visits for row in rows), strict=True)
    ]
    error = statistics.stdev(each) / math.sqrt(len(each))
    return Estimate(estimate.center, error, len(each)) if error > estimate.error else estimate


def _mean_change(group: list[Change], estimate: Estimate) -> Change:
    first = group[0]
    return replace(first, case=first.pass_name, estimate=estimate, rows=len(group))


def _comparison(
    changes: tuple[Change, ...],
    means: tuple[Change, ...],
    deviation: float,
    unmatched: tuple[str, ...],
    *,
    references: int = 1,
) -> Comparison:
    """Return the comparison; where the best of several references was taken, each band would have
    had to hold over all of them.
    """
    bands = (len(changes) + len(means)) * max(1, references)
    confidence = spread.each_confidence(FAMILY_CONFIDENCE, bands)
    return Comparison(changes, means, confidence, deviation, unmatched)


def _grouped(changes: Iterable[Change]) -> dict[tuple[str, str, str], list[Change]]:
    groups: dict[tuple[str, str, str], list[Change]] = {}
    for change in changes:
        groups.setdefault((change.variant, change.stage, change.pass_name), []).append(change)
    return groups


EXAMPLES = """\
examples:
  mxgemm compare before.jsonl after.jsonl --fail-below 0.97
  mxgemm compare rows.jsonl --variants native_cpu native_cpu/prepared
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument("base", type=Path, help="rows file")
    parser.add_argument("new", type=Path, nargs="?", help="rows file of the run that is judged")
    parser.add_argument(
        "--variants",
        nargs=2,
        metavar=("BASE", "NEW"),
        help="compare two variants within one rows file instead of two files",
    )
    parser.add_argument(
        "--fail-below",
        type=float,
        metavar="RATIO",
        help="exit with 1 where a ratio's whole noise band is below it "
        "(default: 0.97, with --variants 1)",
    )
    reference = parser.add_mutually_exclusive_group()
    reference.add_argument(
        "--anchor",
        metavar="NAME",
        help="normalise by this variant (default: by the baseline or the anchor, whichever leaves "
        "the narrower band)",
    )
    reference.add_argument("--absolute", action="store_true", help="compare times as they are")
    parser.add_argument("--json", action="store_true", help="print the ratios as JSON")


def run(args: argparse.Namespace) -> int:
    """Compare and print; 0 when nothing is slower, 1 when something is, 2 on an error."""
    console, errors = Console(), Console(stderr=True)
    try:
        base = _load(args.base, errors)
        if (args.new is None) == (args.variants is None):
            raise ResultsError("compare: needs a second rows file or --variants BASE NEW, not both")
        if args.variants is not None:
            comparison = within(base, *args.variants)
        else:
            new = _load(args.new, errors)
            _warn_of_differences(base, new, errors)
            comparison = across(base, new, anchor=args.anchor, absolute=args.absolute)
    except BenchError as error:
        errors.print(f"[bold]mxgemm compare:[/] {escape(str(error))}", soft_wrap=True)
        return EXIT_ERROR
    default = FAIL_BELOW_ACROSS if args.variants is None else FAIL_BELOW_WITHIN
    threshold = default if args.fail_below is None else args.fail_below
    slower = comparison.slower(threshold)
    if args.json:
        sys.stdout.write(json.dumps(as_json(comparison, threshold)) + "\n")
    else:
        _print(comparison, threshold, console)
    return EXIT_SLOWER if slower else EXIT_OK


def _load(path: Path, errors: Console) -> tuple[Row, ...]:
    found = results.read_some(path)
    if found.cut_off:
        errors.print(
            f"{escape(str(path))}: the last line was cut off and is left out", soft_wrap=True
        )
    if modelled := sum(row.status == MODELLED for row in found.rows):
        errors.print(
            f"{escape(str(path))}: {modelled} modelled rows are left out; only measured times are "
            "compared",
            soft_wrap=True,
        )
    return found.rows


def _warn_of_differences(base: Iterable[Row], new: Iterable[Row], errors: Console) -> None:
    """Say where the two runs were not made alike."""
    for what, value in (
        ("device", lambda row: row.device),
        ("host", lambda row: str(row.machine.get("name", "unknown"))),
        ("threads", lambda row: str(row.machine.get("threads", "unknown"))),
        ("torch", lambda row: row.versions.get("torch", "unknown")),
    ):
        sets = [", ".join(sorted({value(row) for row in rows})) for rows in (base, new)]
        if sets[0] != sets[1]:
            text = f"the runs differ in {what}: {escape(sets[0])} and {escape(sets[1])}"
            errors.print(text, soft_wrap=True)


def as_json(comparison: Comparison, threshold: float) -> dict[str, object]:
    """Return the comparison as plain data."""
    slower = comparison.slower(threshold)

    def entry(change: Change) -> dict[str, object]:
        low, ratio, high = comparison.band(change)
        return {
            "case": change.case,
            "variant": change.variant,
            "stage": change.stage,
            "rows": change.rows,
            "against": change.against,
            "low": low,
            "ratio": ratio,
            "high": high,
            "slower": change in slower,
        }

    return {
        "fail_below": threshold,
        "confidence": comparison.confidence,
        "deviation": comparison.deviation,
        "rows": [entry(change) for change in comparison.changes],
        "geometric_means": [entry(change) for change in comparison.means],
        "unmatched": list(comparison.unmatched),
    }


def _print(comparison: Comparison, threshold: float, console: Console) -> None:
    console.print(_table("Ratios, above 1 is faster", comparison.changes, comparison, threshold))
    console.print(_table("Geometric means by pass", comparison.means, comparison, threshold))
    console.print(
        f"Bands hold together with {FAMILY_CONFIDENCE:.0%}; rows of one variant moved unevenly by "
        f"{comparison.deviation:.2%} beyond their own spread."
    )
    if comparison.unmatched:
        console.print(f"{len(comparison.unmatched)} rows without a partner:")
        for name in comparison.unmatched:
            console.print(f"  {escape(name)}", soft_wrap=True)
    slower = comparison.slower(threshold)
    verdict = f"{len(slower)} slower than {threshold:g}" if slower else f"none below {threshold:g}"
    console.print(f"Verdict: {verdict}.")


def _table(
    title: str, changes: tuple[Change, ...], comparison: Comparison, threshold: float
) -> Table:
    table = Table(title=title)
    for name in ("case", "variant", "stage", "against"):
        table.add_column(name, overflow="fold")
    for name in ("rows", "ratio", "band", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for change in changes:
        low, ratio, high = comparison.band(change)
        verdict = "slower" if high < threshold else "faster" if low > 1 else ""
        numbers = (str(change.rows), f"{ratio:.3f}", f"{low:.3f} to {high:.3f}", verdict)
        table.add_row(
            escape(change.case), escape(change.variant), change.stage, change.against, *numbers
        )
    return table
