"""`mxgemm explain`: every backend's verdict on a problem, without running anything."""

from __future__ import annotations

import argparse
from typing import Any

from mxgemm import dispatch
from mxgemm.cli import console
from mxgemm.cli.problem_arguments import DTYPES, operand_layout
from mxgemm.devices import DeviceSpec
from mxgemm.dispatch import Verdict
from mxgemm.epilogue import Activation, Epilogue
from mxgemm.errors import BackendUnavailable, UnsupportedProblem
from mxgemm.numerics.hadamard import Rotation
from mxgemm.plain import FORMATS
from mxgemm.problem import GemmProblem, Numerics, OperandSpec
from mxgemm.tensor import CANONICAL

EXAMPLES = """\
The first backend that accepts, and need not be named, is taken. A rejection says what is required
and what was given; sizes and layouts can be checked for a device that this machine lacks.

examples:
  mxgemm explain --m 64 --n 4096 --k 4096
  mxgemm explain --m 64 --n 4096 --k 4096 --bias fp32 --activation gelu --out-dtype bf16
  mxgemm explain --m 128 --n 256 --k 512 --device gfx1250:emulated
  mxgemm explain --m 128 --n 256 --k 512 --device gfx950 --layout-a row_major+scale_32x8
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.epilog = EXAMPLES
    problem = parser.add_argument_group("problem")
    problem.add_argument("--m", type=int, required=True, help="rows of A and of the result")
    problem.add_argument("--n", type=int, required=True, help="rows of B, columns of the result")
    problem.add_argument("--k", type=int, required=True, help="contraction, a multiple of 32")
    problem.add_argument(
        "--out-dtype", choices=DTYPES, default="bf16", help="dtype of the result (default bf16)"
    )
    problem.add_argument(
        "--device",
        default="cpu",
        help="cpu, cuda[:index], sm_90, gfx950, gfx1250 or gfx1250:emulated (default cpu)",
    )
    problem.add_argument(
        "--numerics", choices=[*Numerics], default="default", help="what the sum must keep"
    )
    problem.add_argument(
        "--a",
        choices=("mxfp4", *DTYPES),
        default="mxfp4",
        help="A quantized, or in high precision as it is (default mxfp4)",
    )
    for side in ("a", "b"):
        problem.add_argument(
            f"--layout-{side}",
            type=operand_layout,
            default=CANONICAL,
            metavar="CODES+SCALES",
            help=f"how {side} is stored (default {CANONICAL})",
        )
    problem.add_argument(
        "--rotation", type=int, choices=(16, 32, 64), help="Hadamard that both operands carry"
    )
    epilogue = parser.add_argument_group("epilogue")
    epilogue.add_argument("--alpha", action="store_true", help="a factor other than 1")
    activations = [activation for activation in Activation if activation is not Activation.NONE]
    epilogue.add_argument("--activation", choices=activations, default="none")
    epilogue.add_argument(
        "--dact", choices=activations, default="none", help="multiply by act'(aux): needs --aux-in"
    )
    for option, what in (
        ("bias", "a bias [N] of this dtype"),
        ("aux-out", "write z [M, N] in this dtype"),
        ("aux-in", "the forward's z [M, N], of this dtype"),
        ("c", "add beta * C, C of this dtype"),
    ):
        epilogue.add_argument(f"--{option}", choices=DTYPES, help=what)
    epilogue.add_argument("--bias-grad", action="store_true", help="also sum D over its rows")
    console.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the verdicts and which backend would be taken."""
    problem = _problem(args)
    verdicts = dispatch.explain(problem)
    chosen = _chosen(problem)
    if args.json:
        console.print_json(
            {
                "problem": str(problem),
                "chosen": chosen,
                "verdicts": [_as_data(verdict, problem) for verdict in verdicts],
            }
        )
        return 0
    out = console.stdout()
    rows = [_row(verdict, problem, chosen) for verdict in verdicts]
    console.show(out, str(problem), ("backend", "verdict", "plan or reason"), rows)
    out.print(f"taken: {chosen}" if chosen else "taken: none; the call would raise", style="bold")
    return 0


def _problem(args: argparse.Namespace) -> GemmProblem:
    rotation = Rotation(args.rotation) if args.rotation else None

    def dtype(name: str) -> Any:
        value = getattr(args, name)
        return None if value is None else DTYPES[value]

    return GemmProblem(
        m=args.m,
        n=args.n,
        k=args.k,
        a=_spec_of_a(args, rotation),
        b=OperandSpec(layout=args.layout_b, rotation=rotation),
        device=DeviceSpec.parse(args.device),
        out_dtype=DTYPES[args.out_dtype],
        numerics=Numerics(args.numerics),
        epilogue=Epilogue(
            has_alpha=args.alpha,
            bias=dtype("bias"),
            activation=Activation(args.activation),
            aux_out=dtype("aux_out"),
            dact=Activation(args.dact),
            aux_in=dtype("aux_in"),
            c=dtype("c"),
            bias_grad=args.bias_grad,
        ),
    )


def _spec_of_a(args: argparse.Namespace, rotation: Rotation | None) -> OperandSpec:
    if args.a == "mxfp4":
        return OperandSpec(layout=args.layout_a, rotation=rotation)
    if args.layout_a != CANONICAL:
        raise ValueError(f"explain: --layout-a is for a quantized a, got --a {args.a}")
    return OperandSpec(FORMATS[DTYPES[args.a]])


def _chosen(problem: GemmProblem) -> str | None:
    """Return who would do it, the setting MXGEMM_BACKEND included; None where the call would
    raise.
    """
    try:
        return dispatch.plan(problem).backend.name
    except (BackendUnavailable, UnsupportedProblem):
        return None


def _row(verdict: Verdict, problem: GemmProblem, chosen: str | None) -> tuple[str, str, str]:
    name = verdict.backend.name
    if verdict.rejection is not None:
        return name, "no", str(verdict.rejection)
    assert verdict.plan is not None
    if name == chosen:
        return name, "taken", verdict.plan.summary
    later = "yes" if verdict.backend.automatic(problem) else "when named"
    return name, later, verdict.plan.summary


def _as_data(verdict: Verdict, problem: GemmProblem) -> dict[str, Any]:
    rejection, plan = verdict.rejection, verdict.plan
    return {
        "backend": verdict.backend.name,
        "accepts": rejection is None,
        "automatic": verdict.backend.automatic(problem),
        "code": None if rejection is None else str(rejection.code),
        "reason": None if rejection is None else rejection.detail,
        "plan": None if plan is None else plan.summary,
        "config": None if plan is None or plan.config is None else str(plan.config),
        "workspace_bytes": None if plan is None else plan.workspace_bytes,
    }
