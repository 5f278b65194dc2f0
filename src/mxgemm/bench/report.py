"""`mxgemm report`: one HTML page with tables and figures that can be mailed: nothing is fetched."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from html import escape
from operator import attrgetter
from pathlib import Path
from string import Template

from rich.console import Console
from rich.markup import escape as escape_markup

from mxgemm import atomic_write
from mxgemm.bench import figures, tables
from mxgemm.bench.results import MODELLED, TIMED, Row
from mxgemm.errors import MXError

EXIT_OK, EXIT_ERROR = 0, 2

PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>$title</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 84rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; font-size: 13px; margin: 1rem 0; width: 100%; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: left;
         vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.modelled td { font-style: italic; } tr.bad td { font-weight: bold; }
tr.group td { font-weight: bold; background: #f2f2f2; }
figure { margin: 1.5rem 0; } figure svg { max-width: 100%; height: auto; }
.scroll { overflow-x: auto; }
</style></head><body>
<h1>$title</h1>
<p>$lead</p>
$body
</body></html>
""")


def page(rows: Sequence[Row], title: str) -> str:
    """Return the whole page."""
    drawn, reasons = figures.draw_all(rows)
    sections = [
        _section("Where it was measured", _machines(rows)),
        _section("What each variant computes", _computes(rows)),
        _section("Geometric-mean speed-ups, with least and most", _speedups(rows)),
        *(
            _section(
                name.replace("_", " ").capitalize(), f"<figure>{figures.svg(drawn[name])}</figure>"
            )
            for name in drawn
        ),
        _section("Not timed", _not_timed(rows)),
        _section("All rows", _all_rows(rows)),
    ]
    figures.close_all()
    if reasons:
        sections.insert(-2, f"<p>Not drawn: {escape('; '.join(reasons))}.</p>")
    timed = sum(row.status == TIMED for row in rows)
    modelled = sum(row.status == MODELLED for row in rows)
    lead = (
        f"{timed} timed rows"
        + (f", {modelled} modelled ones, in italics, of emulated devices" if modelled else "")
        + ". A speed-up is the baseline's time over the variant's in the same rounds; above 1 is "
        "faster. Each result was compared with the exact product, element by element, before it "
        "was timed, where an oracle is given."
    )
    return PAGE.substitute(title=escape(title), lead=lead, body="\n".join(sections))


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{content}" if content else ""


def _table(header: Sequence[str], lines: Iterable[tuple[str, Sequence[str]]], numbers: int) -> str:
    """Return a table; its last `numbers` columns are numbers. A line is (class, cells); one cell
    alone spans the table.
    """
    first_number = len(header) - numbers

    def cells(tag: str, values: Sequence[str]) -> str:
        if len(values) < len(header):
            return f"<{tag} colspan={len(header)}>{escape(values[0])}</{tag}>"
        return "".join(
            f"<{tag}{' class=number' if i >= first_number else ''}>{escape(value)}</{tag}>"
            for i, value in enumerate(values)
        )

    body = "\n".join(f'<tr class="{kind}">{cells("td", values)}</tr>' for kind, values in lines)
    if not body:
        return ""
    head = f"<thead><tr>{cells('th', header)}</tr></thead>"
    return f'<div class="scroll"><table>{head}<tbody>\n{body}\n</tbody></table></div>'


def _machines(rows: Sequence[Row]) -> str:
    found: dict[str, tuple[str, ...]] = {}
    for row in rows:
        machine, roofs = row.machine, row.roofs
        peaks = ", ".join(f"{name} {value:,.4g}" for name, value in roofs.get("tflops", {}).items())
        bandwidth = max(roofs.get("gbps", {"": 0.0}).values())
        versions = ", ".join(f"{name} {value}" for name, value in row.versions.items())
        threads = str(machine.get("threads", ""))
        name = str(machine.get("name", "unknown"))
        found[row.run] = (row.device, name, threads, versions, f"{bandwidth:,.4g}", peaks)
    header = ("device", "name", "threads", "versions", "GB/s", "TFLOP/s")
    return _table(header, (("", cells) for cells in found.values()), 0)


def _computes(rows: Sequence[Row]) -> str:
    """List in what numerics each variant works, since peers solve problems of their own."""
    found = sorted({(row.who, row.computes, row.backend) for row in rows})
    return _table(("variant", "computes", "backend"), (("", cells) for cells in found), 0)


def _speedups(rows: Sequence[Row]) -> str:
    header, lines = tables.by_pass(rows)
    return _table(header, (("", cells) for cells in lines), len(header) - 2)


def _not_timed(rows: Sequence[Row]) -> str:
    """Group rows without a time by who and why."""
    silent = [row for row in rows if not row.has_time]
    key = attrgetter("variant", "stage", "status", "reason")
    lines = []
    for (variant, stage, status, reason), group in itertools.groupby(sorted(silent, key=key), key):
        kind = "bad" if status in ("wrong", "failed") else ""
        lines.append((kind, (variant, stage, status, reason, str(len(list(group))))))
    return _table(("variant", "stage", "status", "reason", "rows"), lines, 1)


def _all_rows(rows: Sequence[Row]) -> str:
    """List the rows with a time, case by case."""
    lines: list[tuple[str, Sequence[str]]] = []
    timed = [row for row in rows if row.median_ms is not None]
    for (device, case), group in itertools.groupby(timed, lambda row: (row.device, row.case)):
        lines.append(("group", (f"{case} on {device}",)))
        lines += [("modelled" if r.status == MODELLED else "", _cells(r)) for r in group]
    header = ("variant", "stage", "how", "ms (20 % to 80 %)", "rate", "of the roof", "speed-up")
    return _table((*header, "error / bound"), lines, 5)


def _cells(row: Row) -> tuple[str, ...]:
    """Return what is said of one row."""
    share = f"{row.roof_share:.0%} {row.bound_by}" if row.roof_share is not None else ""
    speedup = f"{row.speedup:.3g}" if row.speedup is not None else ""
    oracle = f"{row.oracle['worst']:.2g}" if row.oracle else ""
    how = ", ".join(part for part in (row.layout, row.plan) if part)
    return (
        row.who,
        row.stage,
        how,
        tables.milliseconds(row),
        tables.rate(row),
        share,
        speedup,
        oracle,
    )


EXAMPLES = """\
examples:
  mxgemm report rows.jsonl -o report.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument("--json", action="store_true", help="print the page's path as JSON")
    parser.add_argument("rows", type=Path, nargs="+", help="rows files")
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), help="HTML file")
    parser.add_argument("--title", default="MXFP4 GEMM measurements", help="heading of the page")


def run(args: argparse.Namespace) -> int:
    """Write the page; 0, or 2 on an error."""
    console = Console(stderr=True)
    try:
        rows = figures.read_all(args.rows, console)
        text = page(rows, args.title)
        with atomic_write.output_file(args.output, force=True) as path:
            path.write_text(text, encoding="utf-8")
    except (MXError, OSError) as error:
        reason = escape_markup(figures.failure(args.output, error))
        console.print(f"[bold]mxgemm report:[/] {reason}", soft_wrap=True)
        return EXIT_ERROR
    if args.json:
        sys.stdout.write(json.dumps({"report": str(args.output), "rows": len(rows)}) + "\n")
    console.print(f"{escape_markup(str(args.output))}: {len(text) // 1024} KiB, self-contained")
    return EXIT_OK
