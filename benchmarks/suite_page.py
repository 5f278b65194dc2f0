"""Write the page of one suite's rows: machine, command, table, figures and what was not timed.

    python benchmarks/suite_page.py benchmarks/results/ROWS.jsonl -o docs/measurements/PAGE.md

Figures are drawn beside the page under its own name. What the numbers mean is for a person to add;
a text between the two `remarks` comments of a page that exists is kept.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from operator import attrgetter
from pathlib import Path

from mxgemm.bench import figures, results, tables
from mxgemm.bench.errors import BenchError

FIGURES = ("geomean_by_pass", "roofline", "tflops_over_m")
REMARKS = ("<!-- remarks -->", "<!-- end of remarks -->")


def table(header: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *lines))


def computes(rows: list[results.Row]) -> str:
    """Return a table of what each variant computes."""
    found = dict.fromkeys((f"`{row.who}`", row.computes) for row in rows if row.has_time)
    return table(("variant", "computes"), list(found))


def silent(rows: list[results.Row]) -> str:
    """Return a table of the rows without a time, by reason; a reason's numbers are its first."""
    key = attrgetter("variant", "stage", "status")
    rest = sorted((row for row in rows if not row.has_time), key=key)
    lines = []
    for (variant, stage, status), group in itertools.groupby(rest, key):
        members = list(group)
        reason = members[0].reason.replace("|", "/")
        lines.append((f"`{variant}`", stage, status, str(len(members)), reason))
    if not lines:
        return "Every variant was timed on every case that it knows."
    return table(("variant", "stage", "status", "cases", "reason (of the first)"), lines)


def head(rows: list[results.Row], path: Path, page: Path) -> str:
    """Return the paragraphs on when, where, how many and by which commands."""
    row = rows[-1]
    name, threads = (row.machine.get(key, "unknown") for key in ("name", "threads"))
    roofs = row.roofs
    versions = ", ".join(f"{name} {value}" for name, value in row.versions.items())
    cases = len({row.case for row in rows})
    timed = sum(row.status == results.TIMED for row in rows)
    summary = (
        f"{row.time[:10]}, {name}, {threads} threads; {versions}. "
        f"{cases} cases, {len(rows)} rows, {timed} of them timed; every timed result was verified "
        f"within its derived bound first. The rows, and this page from them:"
    )
    commands = (
        f"    mxgemm bench benchmarks/suites/{row.suite}.toml -o {path.as_posix()}\n"
        f"    python benchmarks/suite_page.py {path.as_posix()} -o {page.as_posix()}"
    )
    lines = [summary, "", commands]
    if roofs:
        peaks = ", ".join(f"{name} {value:,.3g}" for name, value in roofs["tflops"].items())
        roof = f"Roofs in the same run: {max(roofs['gbps'].values()):,.3g} GB/s; TFLOP/s: {peaks}."
        lines += ["", roof]
    return "\n".join(lines)


def remarks(page: Path) -> str:
    """Return what a person wrote into a page that exists, with its comments."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    first, last = REMARKS
    inside = text.partition(first)[2].partition(last)[0].strip()
    return f"{first}\n{inside}\n{last}" if inside else f"{first}\n{last}"


def main() -> None:
    """Write the page and its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="Markdown file")
    args = parser.parse_args()
    try:
        rows = list(results.read_some(args.rows).rows)
    except BenchError as error:
        sys.exit(str(error))
    drawn, reasons = figures.draw_all(rows)
    images = []
    for name in FIGURES:
        if name in drawn:
            image = args.output.with_name(f"{args.output.stem}_{name}.png")
            drawn[name].savefig(image, dpi=110)
            images.append(f"![{name.replace('_', ' ')}]({image.name})")
    header, lines = tables.by_pass(rows)
    baseline = ", ".join(sorted({row.baseline for row in rows}))
    legend = (
        f"Geometric-mean speed-up over `{baseline}`, least and most of its cases in brackets; "
        "`gemm` is the product alone, `total` adds quantizing the first operand."
    )
    parts = [
        f"# The suite `{rows[0].suite}`",
        head(rows, args.rows, args.output),
        legend,
        table(header, [(f"`{line[0]}`", *line[1:]) for line in lines]),
        remarks(args.output),
        "What each computes, since peers solve problems of their own:",
        computes(rows),
        "Not timed:",
        silent(rows),
        "\n".join(images),
    ]
    args.output.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"{args.output}: {len(rows)} rows, {len(images)} figures; {'; '.join(reasons)}")


if __name__ == "__main__":
    main()
