"""`mxgemm bench`: run a suite, with progress, and say what came of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from mxgemm.bench import cases
from mxgemm.bench.cases import Case, Suite
from mxgemm.bench.errors import BenchError
from mxgemm.bench.results import Row, RowWriter, merged
from mxgemm.bench.runner import Outcome, Runner
from mxgemm.bench.runner import Progress as Report
from mxgemm.bench.tables import row_line, summary

EXIT_OK, EXIT_WRONG, EXIT_ERROR, EXIT_INTERRUPTED = 0, 1, 2, 130


EXAMPLES = """\
examples:
  mxgemm bench benchmarks/suites/smoke.toml -o rows.jsonl
  mxgemm bench cpu.toml --backends native_cpu,torch_bf16 --baseline torch_bf16 --threads 1
  mxgemm bench cpu.toml -o rows.jsonl --resume      go on after Ctrl-C or a full disk
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument("--json", action="store_true", help="print what came of it as JSON")
    parser.add_argument("suite", type=Path, help="TOML file that says what is measured")
    parser.add_argument("-o", "--output", type=Path, help="rows file (default: <suite>.jsonl)")
    parser.add_argument("--backends", help="variants to measure, comma-separated, for the suite's")
    parser.add_argument("--baseline", help="variant that speed-ups refer to, for the suite's")
    parser.add_argument("--device", help="cpu, cuda[:index] or an emulated one, for the suite's")
    parser.add_argument("--threads", type=int, help="CPU threads, for the suite's")
    parser.add_argument("--visits", type=int, help="visits of each case, for the suite's")
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="begin no case that would end after it",
    )
    parser.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="verify each result against the exact product before it is timed (default: yes)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with an output file; done cases are kept"
    )


def run(args: argparse.Namespace) -> int:
    """Run the suite; 0 when every result was right, 1 when one was wrong or failed, 2 on an error.

    130 after Ctrl-C. Whatever ends the run, the rows of finished cases are in the file.
    """
    console = Console(stderr=True)
    output: Path = args.output or Path(f"{args.suite.stem}.jsonl")
    writer = RowWriter(output)
    seen: list[Row] = []
    try:
        suite = overridden(cases.load(args.suite), args)
        runner = Runner(suite, check=args.check)
        done = writer.open(resume=args.resume)
        outcome = _watched(runner, writer, done, seen, console)
    except (BenchError, ValueError) as error:
        console.print(f"[bold]mxgemm bench:[/] {escape(str(error))}", soft_wrap=True)
        return EXIT_ERROR
    except KeyboardInterrupt:
        console.print(
            f"mxgemm bench: interrupted; {writer.written} rows are in {escape(str(output))}, "
            "--resume goes on",
            soft_wrap=True,
        )
        return EXIT_INTERRUPTED
    finally:
        writer.close()
    if args.json:
        sys.stdout.write(json.dumps(_as_json(outcome, output, seen)) + "\n")
    console.print(summary(merged(seen)))
    console.print(escape(_closing(outcome, suite, writer, output)), soft_wrap=True)
    return EXIT_WRONG if any(row.status in ("wrong", "failed") for row in seen) else EXIT_OK


def _as_json(outcome: Outcome, output: Path, seen: list[Row]) -> dict[str, object]:
    statuses = Counter(row.status for row in seen)
    return {"output": str(output), **asdict(outcome), "rows": len(seen), "statuses": dict(statuses)}


def overridden(suite: Suite, args: argparse.Namespace) -> Suite:
    """Return the suite with what the command line says instead."""
    changes: dict[str, object] = {}
    if args.backends:
        changes["variants"] = tuple(name.strip() for name in args.backends.split(","))
    for argument, name in (
        ("baseline", "baseline"),
        ("device", "device"),
        ("threads", "threads"),
        ("visits", "visits"),
        ("time_limit", "time_limit_seconds"),
    ):
        value = getattr(args, argument)
        if value is not None:
            changes[name] = value
    changed = replace(suite, **changes)  # type: ignore[arg-type]
    changed.check()
    return changed


def _watched(
    runner: Runner, writer: RowWriter, done: tuple[Row, ...], seen: list[Row], console: Console
) -> Outcome:
    """Run with a progress bar whose end is estimated from the cases done so far."""
    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("ends in"),
        TimeRemainingColumn(),
    )
    total = len(runner.suite.cases) * runner.suite.visits
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(runner.suite.name, total=total)

        def on_case(index: int, case: Case) -> None:
            bar.update(task, completed=index, description=case.key)

        def on_rows(rows: list[Row]) -> None:
            seen.extend(rows)
            for row in rows:
                bar.console.print(row_line(row), soft_wrap=True, highlight=False, markup=False)

        outcome = runner.execute(writer, done, Report(case=on_case, rows=on_rows))
        bar.update(task, completed=total)
    return outcome


def _closing(outcome: Outcome, suite: Suite, writer: RowWriter, output: Path) -> str:
    parts = [f"{outcome.done} cases, {writer.written} rows in {output}"]
    if outcome.resumed:
        parts.append(f"{outcome.resumed} were there already")
    if outcome.not_begun:
        parts.append(f"{outcome.not_begun} not begun within {suite.time_limit_seconds:g} s")
    if suite.left_out:
        parts.append(f"{suite.left_out} left out above {suite.max_gflop:g} GFLOP")
    return "; ".join(parts)
