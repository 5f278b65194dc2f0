"""`mxgemm quantize`: a safetensors file to a public MXFP4 checkpoint, with a figure per tensor."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mxgemm.checkpoints import Report, quantize_file
from mxgemm.checkpoints.compressed_tensors import FORMAT
from mxgemm.cli import console
from mxgemm.fidelity import Fidelity
from mxgemm.quantizers.scale_rules import DEFAULT_RULE, RULES

EXAMPLES = f"""\
Writes a folder with model.safetensors and config.json in the form {FORMAT}, which
the compressed-tensors package and vLLM read, and which `mxgemm.checkpoints.load` reads bit for bit.
Every 2-D float32, bfloat16 or float16 tensor with K a multiple of 32 is quantized along K, except
embeddings and output heads; all others are kept as they are. The folder appears whole or not at
all.

  SQNR       signal over error of the weights, in decibels
  saturated  elements beyond 6 times their scale (none under the rules ceil and rceil)
  zero       elements whose code is zero

scale rules: even (default) and floor may saturate a block's largest value, ceil and rceil never do,
search tries three scales per block and keeps the best.

examples:
  mxgemm quantize model.safetensors -o model-mxfp4
  mxgemm quantize model.safetensors -o model-mxfp4 --rule search --force
  mxgemm quantize model.safetensors -o model-mxfp4 --skip '*.layer.0.*' --include '*embeddings*'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument("source", type=Path, help="a safetensors file")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FOLDER", help="the new checkpoint"
    )
    parser.add_argument(
        "--rule", choices=RULES, default=DEFAULT_RULE, help=f"scale rule (default {DEFAULT_RULE})"
    )
    parser.add_argument(
        "--block-2d", action="store_true", help="one scale per 32 x 32 tile, equal for w and w.T"
    )
    parser.add_argument(
        "--include", action="append", default=[], metavar="PATTERN",
        help="quantize matching names that are embeddings or output heads, too",
    )  # fmt: skip
    parser.add_argument(
        "--skip", action="append", default=[], metavar="PATTERN", help="keep matching names"
    )
    parser.add_argument(
        "--force", action="store_true", help="replace the checkpoint that FOLDER already holds"
    )
    console.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Quantize the file and print the account."""
    with console.progress("quantizing") as advance:
        report = quantize_file(
            args.source,
            args.output,
            rule=args.rule,
            block_2d=args.block_2d,
            include=args.include,
            skip=args.skip,
            force=args.force,
            progress=advance,
        )
    if args.json:
        console.print_json(_as_data(report, args.output))
    else:
        _print(report, args.output)
    return 0


def _print(report: Report, folder: Path) -> None:
    out = console.stdout()
    columns = ("tensor", "shape", "dtype", ">SQNR dB", ">saturated %", ">zero %", ">saved")
    rows = [
        (t.name, _shape(t.shape), t.dtype, *_figures(t.fidelity),
         console.size(t.bytes_before - t.bytes_after))
        for t in report.tensors
    ]  # fmt: skip
    pooled = ("all together", "", "", *_figures(report.pooled), console.size(report.bytes_saved))
    console.show(out, f"quantized, rule {report.rule}", columns, [*rows, pooled])
    if report.skipped:
        kept = [(s.name, _shape(s.shape), s.dtype, s.reason) for s in report.skipped]
        console.show(out, "kept as they are", ("tensor", "shape", "dtype", "why"), kept)
    for warning in report.warnings:
        out.print(f"warning: {console.printable(warning)}", style="bold yellow", markup=False)
    out.print(
        f"quantized {len(report.tensors)}, kept {len(report.skipped)}, written to {folder}",
        style="bold",
        markup=False,
    )


def _as_data(report: Report, folder: Path) -> dict[str, Any]:
    return {
        "output": str(folder),
        "format": FORMAT,
        "rule": report.rule,
        "tensors": [
            {
                "name": t.name,
                "shape": list(t.shape),
                "dtype": t.dtype,
                **_measures(t.fidelity),
                "bytes_before": t.bytes_before,
                "bytes_after": t.bytes_after,
                "bytes_saved": t.bytes_before - t.bytes_after,
            }
            for t in report.tensors
        ],
        "skipped": [
            {"name": s.name, "shape": list(s.shape), "dtype": s.dtype, "reason": s.reason}
            for s in report.skipped
        ],
        "total": {**_measures(report.pooled), "bytes_saved": report.bytes_saved},
        "warnings": list(report.warnings),
    }


def _measures(fidelity: Fidelity) -> dict[str, float]:
    return {
        "sqnr_db": fidelity.sqnr_db,
        "saturated_percent": fidelity.saturated_percent,
        "zero_percent": fidelity.zero_percent,
    }


def _figures(fidelity: Fidelity) -> tuple[str, str, str]:
    return (
        console.decibels(fidelity.sqnr_db),
        f"{fidelity.saturated_percent:.2f}",
        f"{fidelity.zero_percent:.2f}",
    )


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
