"""Rows and the files that keep them: one JSON object a line, one line a measurement.

A file is only ever appended to; each case's rows are written and flushed together, so that whatever
ends a run keeps every finished case. The reader tolerates exactly one defect, a last line that was
cut off, and says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mxgemm.bench import spread
from mxgemm.bench.errors import ResultsError

SCHEMA = 1

TIMED = "timed"
MODELLED = "modelled"
REJECTED = "rejected"
TOO_SLOW = "too_slow"
WRONG = "wrong"
FAILED = "failed"
STATUSES = (TIMED, MODELLED, REJECTED, TOO_SLOW, WRONG, FAILED)
"""What became of a row: timed; computed by a model of an emulated device; refused with a reason;
slower than the suite allows; outside its oracle's bound, so not timed; raised an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement, or the reason why there is none.

    Attributes:
        run: identity of the run; rows of one run and case were interleaved with each other.
        time: when the row was written, ISO 8601, UTC.
        suite, case: names; `case` identifies the problem across runs.
        pass_name, name, m, n, k, out_dtype, distribution, seed, cache: see `Case`.
        variant: who, with form or layout.
        backend: the backend that ran, never another than the variant names; "peer" for peers.
        computes: in which numerics.
        stage: gemm, quantize, relayout, prepare, total (quantize, relayout and gemm) or anchor.
        status: one of `STATUSES`.
        reason: why not timed, or what a check found.
        plan, layout: how, in the backend's words; how operands were stored.
        baseline: variant that `speedup` refers to.
        speedup: the baseline's time over the row's, median over the rounds; None without either.
        median_ms, p20_ms, p80_ms: of the samples; for modelled rows all three are the model's.
        samples_ms: one a round, in order; sample i of every row of a run and case is from round i.
        visit: which visit of the case the row is of; in rows as read, the last of them.
        rounds: number of rounds of each visit that `samples_ms` holds: one as written, all as read.
        calls_per_sample, buffers, timer: how they were taken.
        disturbed: samples during which a thread lost its processor to other work.
        flops, bytes_moved: of one call.
        tflops, gbps: at the median.
        roof_share, bound_by: roof's time over the median, and which roof.
        oracle: {"worst": |error| / bound, "relative_error": ...}; empty where nothing was checked.
        source_error: relative error against the product of the unquantized sources.
        machine, clocks, versions, roofs: see `environment` and `roofs`.
    """

    run: str
    time: str
    suite: str
    case: str
    pass_name: str
    name: str
    m: int
    n: int
    k: int
    out_dtype: str
    distribution: str
    seed: int
    cache: str
    variant: str
    backend: str
    computes: str
    stage: str
    status: str
    reason: str = ""
    plan: str = ""
    layout: str = ""
    baseline: str = ""
    speedup: float | None = None
    median_ms: float | None = None
    p20_ms: float | None = None
    p80_ms: float | None = None
    samples_ms: tuple[float, ...] = ()
    visit: int = 0
    rounds: tuple[int, ...] = ()
    calls_per_sample: int = 0
    buffers: int = 0
    timer: str = ""
    disturbed: int = 0
    flops: int = 0
    bytes_moved: int = 0
    tflops: float | None = None
    gbps: float | None = None
    roof_share: float | None = None
    bound_by: str = ""
    oracle: dict[str, float] = field(default_factory=dict)
    source_error: float | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    clocks: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    roofs: dict[str, dict[str, float]] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def key(self) -> tuple[str, str, str]:
        """What the row measures, across runs: case, variant and stage."""
        return self.case, self.variant, self.stage

    @property
    def has_time(self) -> bool:
        """Whether there is a time: measured, or modelled."""
        return self.median_ms is not None

    @property
    def who(self) -> str:
        """The variant's name, marked where a model gave the time."""
        return f"{self.variant} (modelled)" if self.status == MODELLED else self.variant

    @property
    def device(self) -> str:
        """Device as text; "unknown" where the row does not say."""
        return str(self.machine.get("device", "unknown"))

    def by_visit(self) -> list[tuple[float, ...]]:
        """Return the samples of each visit."""
        ends = list(itertools.accumulate(self.rounds))
        return [
            self.samples_ms[end - count : end] for end, count in zip(ends, self.rounds, strict=True)
        ]

    def with_samples(self, samples_ms: tuple[float, ...], rounds: tuple[int, ...]) -> Row:
        """Return the row with these samples and what follows from them alone."""
        median = spread.quantile(samples_ms, 0.5)
        share, bound_by = _roof_share(self, median / 1e3)
        return dataclasses.replace(
            self,
            samples_ms=samples_ms,
            rounds=rounds,
            median_ms=median,
            p20_ms=spread.quantile(samples_ms, 0.2),
            p80_ms=spread.quantile(samples_ms, 0.8),
            tflops=self.flops / median / 1e9 if self.flops else None,
            gbps=self.bytes_moved / median / 1e6,
            roof_share=share,
            bound_by=bound_by,
        )

    def to_json(self) -> str:
        """Return the row as one line without its end."""
        values = dataclasses.asdict(self)
        return json.dumps(values, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Row:
        """Return the row of one line.

        Raises:
            ValueError: not JSON, not a row of this schema, a field that is missing or unknown or of
                the wrong type, or a time without samples.
        """
        values = json.loads(text, parse_constant=_no_number)
        if not isinstance(values, dict) or values.get("schema") != SCHEMA:
            raise ValueError(f"must be a row of schema {SCHEMA}")
        try:
            lists = {name: tuple(values.get(name, ())) for name in ("samples_ms", "rounds")}
            row = cls(**{**values, **lists})
        except TypeError as error:
            raise ValueError(str(error).removeprefix("Row.__init__() ")) from error
        row.check()
        return row

    def check(self) -> None:
        """Raise ValueError for a field that no run can have written."""
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if not FORMS[str(item.type)](value):
                raise ValueError(f"{item.name} must be a {item.type}, got {value!r:.80}")
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {STATUSES}, got {self.status!r}")
        has_samples = self.status in (TIMED, MODELLED)
        if has_samples != bool(self.samples_ms) or min(self.samples_ms, default=1) <= 0:
            raise ValueError(
                f"samples_ms of a {self.status} row must be {'positive' if has_samples else 'none'}"
                f", got {self.samples_ms!r:.80}"
            )
        if self.rounds and sum(self.rounds) != len(self.samples_ms):
            raise ValueError(f"rounds must be {len(self.samples_ms)} together, got {self.rounds}")
        if self.oracle and self.oracle.keys() != {"worst", "relative_error"}:
            raise ValueError(f"oracle must have worst and relative_error, got {self.oracle!r:.80}")
        if self.roofs and not all(self.roofs.get(kind) for kind in ("gbps", "tflops")):
            raise ValueError(f"roofs must have gbps and tflops, got {self.roofs!r:.80}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_dict(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(map(holds, value.values()))


def _is_rates(value: Any) -> bool:
    return _is_dict(value, lambda rate: _is_number(rate) and rate > 0)


FORMS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: type(value) is int,
    "float | None": lambda value: value is None or _is_number(value),
    "tuple[float, ...]": lambda value: all(map(_is_number, value)),
    "tuple[int, ...]": lambda value: all(type(count) is int and count > 0 for count in value),
    "dict[str, float]": lambda value: _is_dict(value, _is_number),
    "dict[str, str]": lambda value: _is_dict(value, lambda x: isinstance(x, str)),
    "dict[str, Any]": lambda value: isinstance(value, dict),
    "dict[str, dict[str, float]]": lambda value: _is_dict(value, _is_rates),
}
"""What a field of each annotation may hold."""


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


@dataclass(frozen=True)
class RowsFile:
    """What a file holds.

    Attributes:
        written: its rows as they were written.
        cut_off: the file ends in a line that was cut off; it is not among the rows.
        intact_bytes: length of the file up to the last whole line.
    """

    written: tuple[Row, ...]
    cut_off: bool
    intact_bytes: int

    @functools.cached_property
    def rows(self) -> tuple[Row, ...]:
        """One row per (case, variant, stage); see `merged`."""
        return merged(self.written)


def read(path: Path) -> RowsFile:
    """Return the rows of a file.

    The visits of a case are merged to one row per variant and stage; see `merged`.

    Raises:
        ResultsError: it cannot be read, holds no row, or a line before the last is no row.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ResultsError(f"rows {path}: cannot be read: {error.strerror}") from error
    lines = data.split(b"\n")
    tail = lines.pop()
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(Row.from_json(line.decode()))
        except (ValueError, TypeError) as error:
            raise ResultsError(f"rows {path}: line {number} is no row: {error}") from error
    return RowsFile(tuple(rows), bool(tail), len(data) - len(tail))


def read_some(path: Path) -> RowsFile:
    """Return the rows of a file that must hold at least one; raises as `read`."""
    found = read(path)
    if not found.written:
        text = "only a line that was cut off" if found.cut_off else "none"
        raise ResultsError(f"rows {path}: needs at least one row, got {text}")
    return found


def merged(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return one row per (case, variant, stage), with the samples of all its visits.

    Visits of one case may come from several runs, where one went on with another's file; a visit
    that was made twice counts the second time.
    """
    visits: dict[tuple[str, str, str], dict[int, Row]] = {}
    for row in rows:
        visits.setdefault(row.key, {})[row.visit] = row
    found = []
    for by_visit in visits.values():
        parts = [by_visit[visit] for visit in sorted(by_visit)]
        timed = [part for part in parts if part.status == TIMED]
        if timed:
            samples = tuple(itertools.chain.from_iterable(part.samples_ms for part in timed))
            rounds = tuple(len(part.samples_ms) for part in timed)
            found.append(timed[-1].with_samples(samples, rounds))
        else:
            found.append(parts[-1])
    return with_speedups(found)


def with_speedups(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the rows with speed-ups over their baseline, from the samples of the same rounds.

    A whole way from the source (`total`) is compared with the baseline's product alone, a modelled
    time with a modelled one only.
    """
    rows = tuple(rows)
    base = {(r.case, r.stage, r.status): r for r in rows if r.variant == r.baseline and r.has_time}

    def finished(row: Row) -> Row:
        reference = base.get((row.case, reference_stage(row.stage), row.status))
        if not row.has_time or reference is None or reference.rounds != row.rounds:
            return row
        ratios = [x / y for x, y in zip(reference.samples_ms, row.samples_ms, strict=True)]
        return dataclasses.replace(row, speedup=spread.quantile(ratios, 0.5))

    return tuple(finished(row) for row in rows)


def reference_stage(stage: str) -> str:
    """Return the baseline's stage that a stage is compared with."""
    return "gemm" if stage == "total" else stage


def _roof_share(row: Row, seconds: float) -> tuple[float | None, str]:
    """Return the roofs' least time for the row over `seconds`, and which roof that is."""
    if not row.roofs or not (row.flops or row.bytes_moved):
        return None, ""
    matrix = row.flops / (max(row.roofs["tflops"].values()) * 1e12)
    memory = row.bytes_moved / (max(row.roofs["gbps"].values()) * 1e9)
    return max(matrix, memory) / seconds, "matrix" if matrix >= memory else "bandwidth"


class RowWriter:
    """Appends rows to a file, each case's together; a failed write leaves whole lines only. From
    `open` to `close` no other writer opens the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0
        self._locked = contextlib.ExitStack()

    def open(self, *, resume: bool) -> tuple[Row, ...]:
        """Make the file ready and return the rows it already holds.

        A file that exists is only appended to with `resume`, which first removes a line that was
        cut off.

        Raises:
            ResultsError: it exists without `resume`, another writer has it, or it cannot be
                written.
        """
        with contextlib.ExitStack() as failing:
            failing.callback(self.close)
            existing = self._opened(resume=resume)
            failing.pop_all()
        return existing

    def _opened(self, *, resume: bool) -> tuple[Row, ...]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self._locked.enter_context(self.path.open("ab"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResultsError(
                f"rows {self.path}: must not be written by two runs at once, got another run that "
                "writes it; wait for it or name another file"
            ) from None
        except OSError as error:
            raise ResultsError(f"rows {self.path}: cannot be written: {error.strerror}") from error
        if not self.path.stat().st_size:
            return ()
        if not resume:
            raise ResultsError(
                f"rows {self.path}: must not exist yet, got {self.path.stat().st_size} bytes; "
                "pass --resume to go on with it, or another file"
            )
        found = read(self.path)
        if found.cut_off:
            os.truncate(self.path, found.intact_bytes)
        return found.written

    def close(self) -> None:
        """Let other writers have the file."""
        self._locked.close()

    def append(self, rows: list[Row]) -> None:
        """Write and flush `rows` to the disk.

        Raises:
            ResultsError: they cannot be written (a full disk); none of them is kept then.
        """
        text = "".join(f"{row.to_json()}\n" for row in rows).encode()
        before = self.path.stat().st_size if self.path.is_file() else None
        try:
            with self.path.open("ab", buffering=0) as file:
                written = file.write(text)
                if written != len(text):
                    written += file.write(text[written:])
                if before is not None:
                    os.fsync(file.fileno())
        except OSError as error:
            if before is not None:
                os.truncate(self.path, before)
            raise ResultsError(
                f"rows {self.path}: cannot be written: {error.strerror}; "
                f"{self.written} rows of this run are kept; make room and pass --resume"
            ) from error
        self.written += len(rows)
