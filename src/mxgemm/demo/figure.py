"""The demo's figure: SQNR by layer and scale rule, and the sentences' cosines before and after.

Readable without colour: rules differ by marker and line style, cosines are written into their
cells.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mxgemm.demo.sentences import SENTENCES
from mxgemm.demo.study import Study

STYLES = {
    "search": {"marker": "*", "linestyle": "-", "color": "#000000"},
    "even": {"marker": "o", "linestyle": "-", "color": "#0072b2"},
    "floor": {"marker": "v", "linestyle": "--", "color": "#d55e00"},
    "rceil": {"marker": "s", "linestyle": ":", "color": "#009e73"},
    "ceil": {"marker": "^", "linestyle": "-.", "color": "#777777"},
}
"""One look per scale rule; the colours are of Okabe and Ito's set, told apart by colour-blind
readers too."""

SHORT_NAMES = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "attention out",
    "intermediate.dense": "up",
    "output.dense": "down",
    "pooler.dense": "pooler",
}
FORMATS = ("png", "svg")
SIZE_INCHES = (13.0, 12.5)
DPI = 130
DARK_CELL = 0.6
"""Cosine above which a cell is dark enough for white text."""


def draw(study: Study) -> Any:
    """Return the study as a matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "demo: the figure needs matplotlib, which is missing; pip install 'mxgemm[demo]'"
        ) from error
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    figure.suptitle("all-MiniLM-L6-v2 with every linear layer in MXFP4", fontsize=15)
    rows: Any = figure.subfigures(3, 1, height_ratios=(1.0, 1.12, 0.42))
    _draw_sqnr(rows[0].subplots(), study)
    _draw_cosines(rows[1], study)
    _draw_sentences(rows[2], study)
    return figure


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format of the suffix; equal figures give equal files."""
    from matplotlib import rc_context

    no_date = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    with rc_context({"svg.hashsalt": "mxgemm"}):
        figure.savefig(path, dpi=DPI, metadata=no_date)


def _draw_sqnr(axes: Any, study: Study) -> None:
    names = list(study.weights[study.rule])
    for rule, style in STYLES.items():
        figures = [study.weights[rule][name].sqnr_db for name in names]
        label = f"{rule}: {study.pooled(rule).sqnr_db:.2f} dB"
        axes.plot(figures, label=label, markersize=6, linewidth=1.2, **style)
    axes.set_xticks(range(len(names)), [_short(name) for name in names], rotation=90, fontsize=9)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_ylabel("SQNR of the weight (dB)")
    axes.grid(axis="y", color="#dddddd")
    per_layer = len(SHORT_NAMES) - 1
    for start in range(0, len(names) - 1, per_layer):
        axes.axvline(start + per_layer - 0.5, color="#999999", linewidth=0.8)
        axes.annotate(
            f"layer {start // per_layer}",
            (start + (per_layer - 1) / 2, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=10,
        )
    axes.legend(
        title="scale rule and SQNR of all weights together",
        loc="upper center",
        bbox_to_anchor=(0.5, -0.3),
        ncols=len(STYLES),
        frameon=False,
    )


def _draw_cosines(subfigure: Any, study: Study) -> None:
    left, right = subfigure.subplots(1, 2)
    labels = [sentence.label for sentence in SENTENCES]
    image = None
    for axes, title, cosines in (
        (left, "cosine of sentence vectors, FP32", study.cosines_fp32),
        (right, f"cosine of sentence vectors, MXFP4 (rule {study.rule})", study.cosines_mxfp4),
    ):
        image = axes.imshow(cosines.numpy(), vmin=0, vmax=1, cmap="Greys")
        axes.set_title(title, fontsize=12)
        axes.set_xticks(range(len(labels)), labels)
        axes.set_yticks(range(len(labels)), labels)
        for row in range(len(labels)):
            for column in range(len(labels)):
                value = float(cosines[row, column])
                color = "white" if value > DARK_CELL else "black"
                text = f"{value:.2f}"
                axes.text(column, row, text, ha="center", va="center", color=color, fontsize=10)
    subfigure.colorbar(image, ax=[left, right], shrink=0.85)


def _draw_sentences(subfigure: Any, study: Study) -> None:
    lines = [
        f"{sentence.label}  {sentence.text}  [{float(agreement):.3f}]"
        for sentence, agreement in zip(SENTENCES, study.agreement, strict=True)
    ]
    lines.append("In brackets: cosine between the sentence's own FP32 and MXFP4 vectors.")
    subfigure.text(0.02, 0.97, "\n".join(lines), va="top", fontsize=9.5, linespacing=1.5)


def _short(name: str) -> str:
    return next(short for long, short in SHORT_NAMES.items() if name.endswith(long))
