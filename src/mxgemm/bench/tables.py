"""Rows as text: a line each while a run goes on, and a table of speed-ups at its end."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from mxgemm.bench import spread
from mxgemm.bench.results import MODELLED, Row


def row_line(row: Row) -> str:
    """Return a row as one line."""
    head = f"{row.case}  {row.variant} [{row.stage}]"
    if row.median_ms is None:
        return f"{head}  {row.status}: {row.reason}"
    parts = [part for part in (milliseconds(row), rate(row)) if part]
    if row.speedup is not None and row.variant != row.baseline:
        parts.append(f"{row.speedup:.3g}x {row.baseline}")
    if row.roof_share is not None:
        parts.append(f"{row.roof_share:.0%} of the {row.bound_by} roof")
    if row.status == MODELLED:
        parts.append("modelled, not measured")
    return f"{head}  {', '.join(parts)}"


def milliseconds(row: Row) -> str:
    """Return the median with its 20 % and 80 % quantiles, in ms."""
    if row.median_ms is None:
        return row.status
    return f"{row.median_ms:.4g} ms ({row.p20_ms:.4g} to {row.p80_ms:.4g})"


def rate(row: Row) -> str:
    """Return the rate of a row with a time, "" where it neither multiplies nor moves anything."""
    if row.tflops:
        return f"{row.tflops:,.3g} TFLOP/s"
    return f"{row.gbps:,.3g} GB/s" if row.gbps else ""


def speedups(rows: Iterable[Row]) -> dict[tuple[str, str, str], list[float]]:
    """Return the speed-ups by (variant, stage, pass), without the baseline's own; modelled ones
    under a name that says so.
    """
    found: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if row.speedup is not None and row.variant != row.baseline:
            found.setdefault((row.who, row.stage, row.pass_name), []).append(row.speedup)
    return found


def by_pass(rows: Iterable[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and the lines of a table of geometric-mean speed-ups, a column a pass; each
    cell with the least and the most of its cases.
    """
    found = speedups(rows)
    passes = list(dict.fromkeys(key[2] for key in found))
    lines = []
    for variant, stage in sorted({key[:2] for key in found}):
        cells = []
        for name in passes:
            values = found.get((variant, stage, name), [])
            few = f" ({min(values):.3g} to {max(values):.3g})" if len(values) > 1 else ""
            cells.append(f"{spread.geometric_mean(values):.3g}{few}" if values else "")
        lines.append((variant, stage, *cells))
    return ("variant", "stage", *passes), lines


def summary(rows: Iterable[Row]) -> Table:
    """Return a table of geometric-mean speed-ups, a line for each variant and stage."""
    rows = list(rows)
    baselines = sorted({row.baseline for row in rows if row.baseline})
    found = speedups(rows)
    passes = list(dict.fromkeys(key[2] for key in found))
    title = f"Geometric-mean speed-up over {', '.join(baselines) or 'nothing'}"
    table = Table(title=title, min_width=len(title))
    for name in ("variant", "stage"):
        table.add_column(name, overflow="fold")
    for name in passes:
        table.add_column(name, justify="right")
    for key in sorted({key[:2] for key in found}):
        values = [found.get((*key, name)) for name in passes]
        table.add_row(*key, *(f"{spread.geometric_mean(v):.3g}" if v else "" for v in values))
    return table
