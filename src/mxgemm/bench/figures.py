"""`mxgemm figures`: draw what rows say, as PNG and SVG that read without colour.

Each variant has one marker, hatch and line style in every figure, besides its colour; legends stand
below the axes, where nothing can lie under them. The only module that needs matplotlib.
"""

from __future__ import annotations

import argparse
import importlib
import io
import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from mxgemm import atomic_write
from mxgemm.bench import results, spread
from mxgemm.bench.errors import BenchError, ResultsError
from mxgemm.bench.results import MODELLED, TIMED, Row
from mxgemm.errors import MXError

EXIT_OK, EXIT_ERROR = 0, 2
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#7F7F7F")
"""Okabe and Ito's palette, which colour-blind readers tell apart."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
HATCHES = (
    "", "///", "...", "xxx", "\\\\\\", "ooo", "+++", "---", "|||", "OO", "**", "//..", "||--"
)  # fmt: skip
"""Thirteen, which share no factor with the colours."""
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
"""As many as share no factor with the colours, so that the two together repeat late."""
MAX_PANELS = 6
DECIMAL, SHORT_RANGE = 10, 30
MODELLED_ALPHA = 0.45
LABEL_HEIGHT, LABEL_GAP = 0.045, 0.02
"""Of a label beside the axes, as shares of their height and width."""
SLOT = 0.84
"""Share of the width between two sizes of K in which a figure's variants stand."""
LEAST_ERROR_RANGE = 3.0
WIDTH, PANEL_HEIGHT, WIDE_PANEL_HEIGHT = 9.0, 3.4, 2.6
INK: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10,
    "svg.fonttype": "path",
}


class NothingToDraw(BenchError):
    """The rows hold nothing that a figure shows; the text says what it would take."""


@dataclass(frozen=True, slots=True)
class Style:
    """How one variant looks."""

    color: str
    marker: str
    hatch: str
    line: Any


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Return a style for each name, the same for the same set of names."""
    cycles = (COLORS, MARKERS, HATCHES, LINES)
    return {
        name: Style(*(cycle[index % len(cycle)] for cycle in cycles))
        for index, name in enumerate(sorted(set(names)))
    }


def timed_gemms(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that time a product (modelled ones too), or the whole way to it."""
    return [row for row in rows if row.has_time and row.flops and row.stage in ("gemm", "total")]


def label(row: Row) -> str:
    """Return the name under which a row is drawn: its variant, with what sets it apart."""
    return f"{row.who} with quantize" if row.stage == "total" else row.who


def geomean_by_pass(rows: Sequence[Row]) -> Any:
    """Return bars of the geometric-mean speed-up by pass and variant, with the parity line."""
    drawn = _against_baseline(rows)
    if not drawn:
        raise NothingToDraw("geomean_by_pass: needs rows with a speed-up, got none")
    groups: dict[tuple[str, str], list[float]] = {}
    for row in drawn:
        groups.setdefault((row.pass_name, label(row)), []).append(row.speedup or 0.0)
    passes = list(dict.fromkeys(row.pass_name for row in drawn))
    names = sorted({name for _, name in groups})
    models = {label(row) for row in drawn if row.status == MODELLED}
    look = styles(names)
    bars = len(passes) * len(names)
    figure, (axes,) = _axes(1, height=max(2.2, 0.26 * bars + 0.35 * len(passes) + 1.0))
    top = max(spread.geometric_mean(values) for values in groups.values())
    position, ticks = 0.0, []
    for pass_name in passes:
        begin = position
        for name in names:
            values = groups.get((pass_name, name))
            if values is None:
                continue
            mean = spread.geometric_mean(values)
            style = look[name]
            axes.barh(
                position,
                mean,
                0.8,
                color=style.color,
                hatch=style.hatch,
                edgecolor="white",
                alpha=MODELLED_ALPHA if name in models else 1.0,
                label=name,
            )
            axes.text(
                mean + 0.012 * top,
                position,
                f"{mean:.3g}  (n={len(values)})",
                va="center",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
            )
            position += 1.0
        ticks.append((begin + position - 1.0) / 2)
        position += 0.7
    axes.axvline(1.0, color="black", linestyle="--", linewidth=1, label="parity", zorder=0.5)
    axes.set_yticks(ticks, passes)
    axes.set_ylim(position - 0.4, -0.8)
    axes.set_xlim(0, max(1.05, top) * 1.18)
    axes.set_xlabel(f"geometric-mean speed-up over {_baselines(drawn)} (above 1 is faster)")
    return _with_legend(figure, [axes], "Speed-up by pass")


def speedup_over_k(rows: Sequence[Row]) -> Any:
    """Return speed-ups by contraction size, a panel a pass: mean and range at each K."""
    drawn = _against_baseline(rows)
    if not drawn:
        raise NothingToDraw("speedup_over_k: needs rows with a speed-up, got none")
    passes = list(dict.fromkeys(row.pass_name for row in drawn))[:MAX_PANELS]
    look = styles(label(row) for row in drawn)
    figure, panels = _axes(len(passes), columns=1)
    for axes, pass_name in zip(panels, passes, strict=True):
        mine = [row for row in drawn if row.pass_name == pass_name]
        names, sizes = sorted({label(row) for row in mine}), sorted({row.k for row in mine})
        for index, name in enumerate(names):
            # Side by side in the slot of one K, so that variants do not hide each other.
            shift = SLOT * ((index + 0.5) / len(names) - 0.5)
            places = {k: place + shift for place, k in enumerate(sizes)}
            _draw_ranges(axes, [row for row in mine if label(row) == name], look[name], places)
        for place in range(1, len(sizes), 2):
            axes.axvspan(place - 0.5, place + 0.5, color="0.95", zorder=0)
        axes.axhline(1.0, color="black", linestyle="--", linewidth=1, label="parity")
        axes.set_xticks(range(len(sizes)), [f"{k:,}" for k in sizes])
        axes.set_xlim(-0.5, len(sizes) - 0.5)
        axes.set_yscale("log")
        axes.margins(y=0.12)
        _plain_ticks(axes)
        axes.set_title(pass_name, loc="left", fontsize=10)
        axes.set_xlabel("contraction size K")
        axes.set_ylabel(f"speed-up over\n{_baselines(mine)}")
        axes.grid(visible=True, which="major", axis="y", alpha=0.3)
    return _with_legend(
        figure, panels, "Speed-up over the contraction size: geometric mean and range"
    )


def _draw_ranges(axes: Any, rows: list[Row], style: Style, places: dict[int, float]) -> None:
    """Draw one variant: its geometric mean at each K, and a line from its least to its greatest."""
    by_k: dict[int, list[float]] = {}
    for row in rows:
        by_k.setdefault(row.k, []).append(row.speedup or 1.0)
    for k, values in by_k.items():
        axes.plot([places[k]] * 2, [min(values), max(values)], color=style.color, linewidth=1)
    axes.scatter(
        [places[k] for k in by_k],
        [spread.geometric_mean(values) for values in by_k.values()],
        marker=style.marker,
        facecolors="white",
        edgecolors=style.color,
        linewidths=1.2,
        s=24,
        label=label(rows[0]),
        zorder=3,
    )


def roofline(rows: Sequence[Row]) -> Any:
    """Return the rate over the arithmetic intensity, under the roofs measured in the same run."""
    gemms = [row for row in timed_gemms(rows) if row.stage == "gemm"]
    drawn = [row for row in gemms if row.roofs and row.bytes_moved]
    if not drawn:
        raise NothingToDraw("roofline: needs timed GEMM rows with measured roofs, got none")
    gbps = max(max(row.roofs["gbps"].values()) for row in drawn)
    matrix = drawn[-1].roofs["tflops"]
    look = styles(label(row) for row in drawn)
    figure, (axes,) = _axes(1, height=5.0)
    intensities = [row.flops / row.bytes_moved for row in drawn]
    low, high = min(intensities) / 2, max(intensities) * 3
    peak = max(matrix.values())
    steps = [low * (high / low) ** (i / 200) for i in range(201)]
    axes.plot(steps, [min(peak, gbps * x / 1e3) for x in steps], color="black", linewidth=1.5)
    axes.set_title(f"bandwidth roof {gbps:,.4g} GB/s", loc="left", fontsize=9)
    for name, chosen in _by_label(drawn):
        style = look[name]
        axes.scatter(
            [row.flops / row.bytes_moved for row in chosen],
            [row.tflops for row in chosen],
            marker=style.marker,
            facecolors="none",
            edgecolors=style.color,
            linewidths=1.0,
            s=20,
            label=name,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    _peaks(axes, matrix, low, high, peak)
    _plain_ticks(axes)
    axes.set_xlabel("arithmetic intensity, FLOP per byte of operands and output")
    axes.set_ylabel("TFLOP/s")
    axes.grid(visible=True, which="major", alpha=0.3)
    return _with_legend(figure, [axes], f"Roofline, measured on {_device(drawn)}")


def _peaks(axes: Any, matrix: dict[str, float], low: float, high: float, peak: float) -> None:
    """Draw a line for each element type's peak, labelled at the right without overlap."""
    bottom, top = axes.get_ylim()
    line_height = (max(top, peak) / min(bottom, *matrix.values())) ** LABEL_HEIGHT
    above = 0.0
    for name, value in sorted(matrix.items(), key=lambda item: item[1]):
        axes.plot(
            [low, high],
            [value, value],
            color="black",
            linewidth=0.8,
            linestyle="-" if value == peak else ":",
        )
        above = max(value, above * line_height)
        axes.annotate(
            f"{name} {value:,.4g}",
            (high, value),
            (high ** (1 + LABEL_GAP) / low**LABEL_GAP, above),
            fontsize=8,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "linewidth": 0.5},
        )


def tflops_over_m(rows: Sequence[Row]) -> Any:
    """Return the rate over M, a panel for each (N, K) that several M were measured for."""
    found: dict[tuple[int, int], set[int]] = {}
    gemms = timed_gemms(rows)
    for row in gemms:
        found.setdefault((row.n, row.k), set()).add(row.m)
    places = sorted(
        (p for p, sizes in found.items() if len(sizes) > 1), key=lambda p: -len(found[p])
    )[:MAX_PANELS]
    if not places:
        raise NothingToDraw("tflops_over_m: needs an (N, K) with several M, got none")
    drawn = [row for row in gemms if (row.n, row.k) in places]
    look = styles(label(row) for row in drawn)
    figure, panels = _axes(len(places))
    for axes, (n, k) in zip(panels, places, strict=True):
        for name, chosen in _by_label(row for row in drawn if (row.n, row.k) == (n, k)):
            style = look[name]
            by_m: dict[int, list[float]] = {}
            for row in chosen:
                by_m.setdefault(row.m, []).append(row.tflops or 0.0)
            points = sorted((m, statistics.median(values)) for m, values in by_m.items())
            axes.plot(
                [m for m, _ in points],
                [rate for _, rate in points],
                color=style.color,
                marker=style.marker,
                linestyle=style.line,
                markersize=5,
                label=name,
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        _plain_ticks(axes)
        axes.set_title(f"N = {n}, K = {k}", loc="left", fontsize=10)
        axes.set_xlabel("M")
        axes.set_ylabel("TFLOP/s")
        axes.grid(visible=True, which="major", alpha=0.3)
    return _with_legend(figure, panels, f"Rate over M on {_device(drawn)}")


def accuracy_speed(rows: Sequence[Row]) -> Any:
    """Return the relative error against the unquantized product over the speed-up, by variant."""
    drawn = [
        row
        for row in rows
        if row.stage == "gemm" and row.speedup and row.source_error and row.status == TIMED
    ]
    if not drawn:
        raise NothingToDraw("accuracy_speed: needs verified rows with a speed-up, got none")
    kinds = list(dict.fromkeys(row.distribution for row in drawn))[:MAX_PANELS]
    look = styles(label(row) for row in drawn)
    figure, panels = _axes(len(kinds))
    for axes, kind in zip(panels, kinds, strict=True):
        for name, chosen in _by_label(row for row in drawn if row.distribution == kind):
            style = look[name]
            axes.scatter(
                [spread.geometric_mean([row.speedup or 1.0 for row in chosen])],
                [spread.geometric_mean([row.source_error or 1.0 for row in chosen])],
                marker=style.marker,
                facecolors="none",
                edgecolors=style.color,
                linewidths=1.6,
                s=60,
                label=name,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.margins(0.2)
        low, high = axes.get_ylim()
        # Errors that agree to six digits are no spread worth an axis.
        middle, half = math.sqrt(low * high), max(math.sqrt(high / low), LEAST_ERROR_RANGE)
        axes.set_ylim(middle / half, middle * half)
        _plain_ticks(axes)
        axes.axvline(1.0, color="black", linestyle="--", linewidth=1, label="parity")
        axes.set_title(kind, loc="left", fontsize=10)
        axes.set_xlabel(f"speed-up over {_baselines(drawn)}, geometric mean")
        axes.set_ylabel("relative error against\nthe unquantized product")
        axes.grid(visible=True, which="major", alpha=0.3)
    return _with_legend(figure, panels, "Accuracy against speed (right and down is better)")


FIGURES: dict[str, Callable[[Sequence[Row]], Any]] = {
    "geomean_by_pass": geomean_by_pass,
    "speedup_over_k": speedup_over_k,
    "roofline": roofline,
    "tflops_over_m": tflops_over_m,
    "accuracy_speed": accuracy_speed,
}
"""Figures by file name; a further one is one function and one entry."""


def svg(figure: Any) -> str:
    """Return a figure as an SVG element, without the XML declaration, for use inside a page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def by_device(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of each device; rates of different devices never share a figure."""
    devices: dict[str, list[Row]] = {}
    for row in rows:
        devices.setdefault(row.device, []).append(row)
    return devices


def draw_all(rows: Sequence[Row]) -> tuple[dict[str, Any], list[str]]:
    """Return the figures by name, and why the others have nothing to show."""
    drawn, reasons = {}, []
    devices = by_device(rows)
    for device, mine in devices.items():
        prefix = f"{device.replace(':', '_')}-" if len(devices) > 1 else ""
        for name, draw in FIGURES.items():
            try:
                drawn[prefix + name] = draw(mine)
            except NothingToDraw as error:
                reasons.append(f"{device}: {error}")
    return drawn, reasons


def close_all() -> None:
    """Free every figure's memory."""
    _pyplot().close("all")


def _pyplot() -> Any:
    """Return matplotlib's pyplot on a canvas without a window.

    Raises:
        BenchError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise BenchError(
            "figures: need matplotlib, got none; pip install 'mxgemm[figures]'"
        ) from error
    mpl.use("Agg")
    mpl.rcParams.update(INK)
    return importlib.import_module("matplotlib.pyplot")


def _axes(count: int, height: float | None = None, columns: int = 2) -> tuple[Any, list[Any]]:
    """Return a figure and its panels, at most `columns` a row."""
    columns = min(columns, count)
    lines = -(-count // columns)
    panel_height = PANEL_HEIGHT if columns > 1 else WIDE_PANEL_HEIGHT
    size = (WIDTH, height or panel_height * lines + 0.6)
    figure, axes = _pyplot().subplots(
        lines, columns, figsize=size, squeeze=False, layout="constrained"
    )
    flat = list(axes.flat)
    for unused in flat[count:]:
        unused.remove()
    return figure, flat[:count]


def _with_legend(figure: Any, panels: Sequence[Any], title: str) -> Any:
    """Return the figure with a title and one legend for all panels below them."""
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=8,
        handlelength=3,
    )
    return figure


def _plain_ticks(axes: Any) -> None:
    """Write ticks as plain numbers, few enough that they do not touch."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() != "log":
            continue
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        axis.set_minor_formatter(NullFormatter())
        low, high = axis.get_view_interval()
        base = axis.get_transform().base
        # Below one and a half decades, powers of ten alone are too few.
        subs = (1.0, 2.0, 5.0) if base == DECIMAL and high / low < SHORT_RANGE else (1.0,)
        axis.set_major_locator(LogLocator(base=base, subs=subs, numticks=6))


def _against_baseline(rows: Iterable[Row]) -> list[Row]:
    return [row for row in timed_gemms(rows) if row.speedup and row.variant != row.baseline]


def _baselines(rows: Iterable[Row]) -> str:
    return ", ".join(sorted({row.baseline for row in rows}))


def _by_label(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    ordered = sorted(rows, key=label)
    return [(name, list(group)) for name, group in itertools.groupby(ordered, key=label)]


def _device(rows: Sequence[Row]) -> str:
    machine = rows[-1].machine
    threads = f", {machine.get('threads')} threads" if machine.get("kind") == "cpu" else ""
    return f"{machine.get('name', 'an unknown device')}{threads}"


EXAMPLES = """\
examples:
  mxgemm figures rows.jsonl -o figures
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument("--json", action="store_true", help="print the figures' names as JSON")
    parser.add_argument("rows", type=Path, nargs="+", help="rows files")
    parser.add_argument("-o", "--output", type=Path, default=Path("figures"), help="folder")


def run(args: argparse.Namespace) -> int:
    """Draw every figure that the rows allow; 0 when there is one, 2 on an error."""
    console = Console(stderr=True)
    try:
        rows = read_all(args.rows, console)
        drawn, reasons = draw_all(rows)
        if not drawn:
            raise ResultsError(f"figures: nothing to draw; {'; '.join(reasons)}")
        args.output.mkdir(parents=True, exist_ok=True)
        for name, figure in drawn.items():
            for suffix in ("png", "svg"):
                target = args.output / f"{name}.{suffix}"
                with atomic_write.output_file(target, force=True) as path:
                    figure.savefig(path, format=suffix, dpi=150)
        close_all()
    except (MXError, OSError) as error:
        text = escape(failure(args.output, error))
        console.print(f"[bold]mxgemm figures:[/] {text}", soft_wrap=True)
        return EXIT_ERROR
    for reason in reasons:
        console.print(f"left out: {escape(reason)}")
    if args.json:
        sys.stdout.write(json.dumps({"figures": list(drawn), "left_out": reasons}) + "\n")
    console.print(f"{len(drawn)} figures as PNG and SVG in {escape(str(args.output))}")
    return EXIT_OK


def failure(target: Path, error: MXError | OSError) -> str:
    """Return the line that says why an output is not there."""
    if isinstance(error, OSError):
        return f"output {target}: cannot be written: {error.strerror}"
    return str(error)


def read_all(paths: Iterable[Path], console: Console) -> list[Row]:
    """Return the rows of several files; says where a last line was cut off.

    Raises:
        ResultsError: as `results.read_some`.
    """
    rows: list[Row] = []
    for path in paths:
        found = results.read_some(path)
        if found.cut_off:
            console.print(
                f"{escape(str(path))}: the last line was cut off and is left out", soft_wrap=True
            )
        rows += found.rows
    return rows
