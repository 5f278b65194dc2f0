"""`mxgemm gemm`: one product of two matrices in files, in MXFP4."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mxgemm
from mxgemm import fidelity
from mxgemm.atomic_write import check_file_free, output_file
from mxgemm.backends.base import GemmPlan
from mxgemm.cli import console, matrix_files
from mxgemm.cli.problem_arguments import DTYPES
from mxgemm.devices import DeviceSpec
from mxgemm.epilogue import Activation, Epilogue
from mxgemm.numerics import e8m0
from mxgemm.problem import Numerics
from mxgemm.quantizers.scale_rules import DEFAULT_RULE, RULES
from mxgemm.tensor import MXTensor

EXAMPLES = """\
D[M,N] = activation(alpha * A[M,K] @ B[N,K].T + bias[N]). Both operands have K last, as the input
and the weight of a linear layer do. An operand is FILE.npy (float32 or float16) or
FILE.safetensors:TENSOR; it is quantized to MXFP4 along K first, unless the file is a checkpoint
that holds it quantized. The result is rounded to --out-dtype and stored as float32 values in .npy.
NaN and Inf are not hidden: their block of 32 becomes NaN, so does every result it enters, and the
summary says so.

examples:
  mxgemm gemm a.npy b.npy -o d.npy
  mxgemm gemm x.npy out/model.safetensors:fc.weight --bias f.npy --activation gelu -o y.npy
  mxgemm gemm a.npy b.npy --backend reference_fp32 --out-dtype bf16 -o d.npy
  mxgemm gemm a.npy b.npy --emulate -o d.npy       the AMD kernel's machine code, run on the CPU
"""
EMULATED = "gfx1250:emulated"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument("a", help="first operand [M, K]")
    parser.add_argument("b", help="second operand [N, K]")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE.npy", help="the result [M, N]"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing result")
    how = parser.add_argument_group("how")
    how.add_argument("--backend", metavar="NAME", help="use this backend, and no other")
    where = how.add_mutually_exclusive_group()
    where.add_argument("--device", default="cpu", help="cpu or cuda[:index] (default cpu)")
    where.add_argument(
        "--emulate", dest="device", action="store_const", const=EMULATED,
        help=f"run on {EMULATED}, no AMD hardware needed",
    )  # fmt: skip
    how.add_argument(
        "--numerics", choices=[*Numerics], default="default", help="what the sum must keep"
    )
    how.add_argument("--rule", choices=RULES, help=f"scale rule (default {DEFAULT_RULE})")
    how.add_argument(
        "--pad", action="store_true", help="allow K that is no multiple of 32: zeros are added"
    )
    epilogue = parser.add_argument_group("epilogue")
    epilogue.add_argument(
        "--out-dtype", choices=DTYPES, default="fp32", help="dtype it is rounded to (default fp32)"
    )
    epilogue.add_argument("--alpha", type=float, default=1.0, help="factor of the product")
    epilogue.add_argument("--bias", metavar="FILE", help="vector [N], as the operands")
    epilogue.add_argument("--activation", choices=[*Activation], default="none")
    console.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Multiply, store and print a summary."""
    if args.output.suffix != ".npy":
        raise ValueError(f"gemm: the result must be a .npy file, got {args.output}; name it so")
    check_file_free(args.output, force=args.force)
    device = _device(args.device)
    a, b = (_operand(text, side, args, device) for text, side in ((args.a, "a"), (args.b, "b")))
    if args.rule is not None and a.sqnr_db is b.sqnr_db is None:
        raise ValueError(
            f"gemm: --rule is for operands that are quantized here, got {args.rule} and two that "
            f"their files hold quantized; leave it out"
        )
    bias = None if args.bias is None else _bias(args.bias).to(device.torch_device)
    plan = _plan(args, device, a.tensor, b.tensor, bias)
    start = time.perf_counter()
    with console.activity(f"gemm on {plan.backend.name}"):
        result = mxgemm.gemm(
            a.tensor,
            b.tensor,
            alpha=args.alpha,
            bias=bias,
            activation=args.activation,
            out_dtype=DTYPES[args.out_dtype],
            numerics=args.numerics,
            backend=plan.backend.name,
            device=device,
        )
        _wait(device)
    seconds = time.perf_counter() - start
    with output_file(args.output, force=args.force) as partial, partial.open("wb") as file:
        np.save(file, result.float().cpu().numpy(), allow_pickle=False)
    summary = _summary(args, plan, result, seconds, a, b)
    summary["warnings"] = [*a.warnings, *b.warnings, *_warnings(bias, result)]
    if args.json:
        console.print_json(summary)
    else:
        _print(summary)
    return 0


class _Operand:
    """A quantized operand, what it lost where its source is known, and what is odd about it."""

    def __init__(self, tensor: MXTensor, source: torch.Tensor | None, name: str) -> None:
        self.tensor = tensor
        self.sqnr_db = None if source is None else fidelity.measure(source, tensor).sqnr_db
        nan_blocks = int((tensor.canonical_scales() == e8m0.NAN).sum())
        self.warnings = [f"{name}: {nan_blocks} blocks hold NaN or Inf"] if nan_blocks else []


def _operand(text: str, side: str, args: argparse.Namespace, device: DeviceSpec) -> _Operand:
    found = matrix_files.read(text, side).to(device.torch_device)
    if isinstance(found, MXTensor):
        return _Operand(found, None, side)
    if found.dim() != 2:
        raise ValueError(f"gemm: {side} must be a matrix, got shape {tuple(found.shape)}; reshape")
    try:
        return _Operand(mxgemm.quantize(found, rule=_rule(args), pad=args.pad), found, side)
    except ValueError as error:
        # The library's argument is the command's option.
        message = str(error).replace("pad=True", "--pad")
        raise ValueError(f"{side} {text}: {message}") from error


def _device(text: str) -> DeviceSpec:
    """Return the device that `text` names, which must be there: operands are moved to it."""
    device = DeviceSpec.parse(text)
    if device.torch_device.type == "cuda" and device.index >= torch.cuda.device_count():
        raise ValueError(
            f"gemm: {device} needs a GPU that torch {torch.__version__} can use, got "
            f"{torch.cuda.device_count()} of them; --emulate runs gfx1250 without one"
        )
    return device


def _rule(args: argparse.Namespace) -> str:
    return DEFAULT_RULE if args.rule is None else str(args.rule)


def _bias(text: str) -> torch.Tensor:
    found = matrix_files.read(text, "bias")
    if isinstance(found, MXTensor):
        raise TypeError(f"gemm: bias must be high precision, got {found!r}; store it as float32")
    return found


def _wait(device: DeviceSpec) -> None:
    """Return when the device is done, so that the time on the clock is that of the work."""
    if device.torch_device.type == "cuda":
        torch.cuda.synchronize(device.torch_device)


def _plan(
    args: argparse.Namespace,
    device: DeviceSpec,
    a: MXTensor,
    b: MXTensor,
    bias: torch.Tensor | None,
) -> GemmPlan:
    """Return the plan of the call, for the backend's name; `gemm` checks the rest."""
    if a.stored_k != b.stored_k:
        raise ValueError(
            f"gemm: a and b must share the contraction K, got shapes {a.shape} and {b.shape}"
        )
    problem = mxgemm.problem_for(
        a,
        b,
        out_dtype=DTYPES[args.out_dtype],
        numerics=Numerics(args.numerics),
        device=device,
        epilogue=Epilogue(
            has_alpha=args.alpha != 1.0,
            bias=None if bias is None else bias.dtype,
            activation=Activation(args.activation),
        ),
    )
    return mxgemm.plan(problem, backend=args.backend)


def _warnings(bias: torch.Tensor | None, result: torch.Tensor) -> list[str]:
    warnings = []
    for name, tensor in (("bias", bias), ("result", result)):
        if tensor is not None and not bool(tensor.isfinite().all()):
            count = int((~tensor.isfinite()).sum())
            warnings.append(f"{name}: {count} of {tensor.numel()} values are NaN or Inf")
    return warnings


def _summary(
    args: argparse.Namespace,
    plan: GemmPlan,
    result: torch.Tensor,
    seconds: float,
    a: _Operand,
    b: _Operand,
) -> dict[str, Any]:
    return {
        "output": str(args.output),
        "shape": list(result.shape),
        "out_dtype": args.out_dtype,
        "problem": str(plan.problem),
        "backend": plan.backend.name,
        "plan": plan.summary,
        "device": str(plan.problem.device),
        "emulated": plan.problem.device.emulated,
        "rule": None if a.sqnr_db is b.sqnr_db is None else _rule(args),
        "sqnr_db": {"a": a.sqnr_db, "b": b.sqnr_db},
        "seconds": seconds,
    }


def _print(summary: dict[str, Any]) -> None:
    out = console.stdout()
    where = " (emulated)" if summary["emulated"] else ""
    of_emulation = " of this CPU, any compilation included" if summary["emulated"] else ""
    rows = [
        ("result", f"{'x'.join(map(str, summary['shape']))} {summary['out_dtype']}"),
        ("backend", f"{summary['backend']}: {summary['plan']}"),
        ("device", f"{summary['device']}{where}"),
        *(
            (
                f"SQNR of {side}",
                "quantized in its file" if v is None else console.decibels(v) + " dB",
            )
            for side, v in summary["sqnr_db"].items()
        ),
        ("time", f"{1e3 * summary['seconds']:.2f} ms{of_emulation}"),
        ("stored in", summary["output"]),
    ]
    console.show(out, summary["problem"], ("what", "value"), rows)
    for warning in summary["warnings"]:
        out.print(f"warning: {warning}", style="bold yellow", markup=False)
