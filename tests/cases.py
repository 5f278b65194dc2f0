"""The conformance suite's problems: the factors that vary, and a pairwise-covering list of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mxgemm.epilogue import Activation, Epilogue, EpilogueArgs
from mxgemm.tensor import CANONICAL, OperandLayout

OUT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

SHAPES = (
    (1, 1, 32),
    (1, 64, 64),
    (1, 300, 1024),
    (2, 17, 96),
    (7, 33, 160),
    (16, 16, 128),
    (31, 200, 352),
    (33, 1, 288),
    (48, 96, 256),
    (64, 80, 2880),
    (65, 129, 1152),
    (128, 256, 512),
    (129, 127, 96),
    (200, 255, 320),
    (300, 48, 1824),
)
"""(m, n, k): single rows and columns, odd sizes, sizes on both sides of usual tiles, K tails."""

EXACT_EPILOGUES = (
    "identity",
    "bias",
    "relu",
    "bias_relu_aux",
    "alpha",
    "in_place",
    "separate_c",
    "drelu",
    "drelu_in_place_bias_grad",
)
"""Those whose arithmetic is exact for the small numbers used here, so that results must agree bit
for bit.
"""

ROUNDED_EPILOGUES = ("bias_gelu", "gelu_tanh_aux", "dgelu", "dgelu_tanh_bias_grad", "everything")

LAYOUTS = (
    CANONICAL,
    OperandLayout.of("row_major", "scale_32x8"),
    OperandLayout.of("tile_16x16", "scale_32x8"),
    OperandLayout.of("tile_16x16", "scale_32x4"),
    OperandLayout.of("row_major", "scale_k_major"),
    OperandLayout.of("row_major", "scale_128x4"),
    OperandLayout.of("row_major", "rocm_te_plain_scales"),
)


@dataclass(frozen=True)
class Case:
    """One problem of the suite."""

    shape: tuple[int, int, int]
    out_dtype: torch.dtype
    epilogue: str
    layout: OperandLayout = CANONICAL

    def __str__(self) -> str:
        m, n, k = self.shape
        return f"m{m}-n{n}-k{k}-{str(self.out_dtype)[6:]}-{self.epilogue}-{self.layout}"


def pairwise(factors: Sequence[Sequence[Any]], seed: int = 0) -> list[tuple[Any, ...]]:
    """Return rows in which every pair of values of two factors occurs; greedy, the same list for
    the same seed.
    """
    rng = random.Random(seed)
    sizes = [range(len(f)) for f in factors]
    open_pairs = {
        (i, x, j, y)
        for i, j in itertools.combinations(range(len(factors)), 2)
        for x in sizes[i]
        for y in sizes[j]
    }
    rows = []
    while open_pairs:
        i, x, j, y = min(open_pairs)
        best: tuple[int, ...] = ()
        best_gain = -1
        for _ in range(30):
            row = [rng.choice(size) for size in sizes]
            row[i], row[j] = x, y
            gain = len(open_pairs & _pairs(row))
            if gain > best_gain:
                best, best_gain = tuple(row), gain
        open_pairs -= _pairs(best)
        rows.append(tuple(factor[index] for factor, index in zip(factors, best, strict=True)))
    return rows


def _pairs(row: Iterable[int]) -> set[tuple[int, int, int, int]]:
    return {(i, x, j, y) for (i, x), (j, y) in itertools.combinations(enumerate(row), 2)}


def exact_cases() -> list[Case]:
    """Return the cases of the exact regime."""
    return [Case(*row) for row in pairwise((SHAPES, OUT_DTYPES, EXACT_EPILOGUES, LAYOUTS))]


def random_cases() -> list[Case]:
    """Return the cases of the random regime."""
    epilogues = ROUNDED_EPILOGUES + EXACT_EPILOGUES[:1]
    return [Case(*row) for row in pairwise((SHAPES, OUT_DTYPES, epilogues, LAYOUTS[:1]))]


def make_epilogue(
    name: str, m: int, n: int, out_dtype: torch.dtype, generator: torch.Generator
) -> tuple[Epilogue, EpilogueArgs]:
    """Return the description and the CPU tensors of the epilogue called `name`; C is a tensor of
    its own here.

    Tensors hold multiples of 1/4 up to 8, alpha and beta are powers of two, so that FP32 does them
    exactly beside a product in the exact regime; "everything" alone uses values that round.
    """

    def quarters(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return (torch.randint(-32, 33, size, generator=generator) / 4).to(dtype)

    values: dict[str, Any] = {}
    words = name.split("_")
    if "bias" in words and "grad" not in words:
        values["bias"] = quarters(n, dtype=OUT_DTYPES[n % 3])
    if "aux" in words:
        values["aux_out"] = torch.full((m, n), torch.nan, dtype=OUT_DTYPES[m % 3])
    if name in ("alpha", "in_place"):
        values["alpha"] = 0.5
    if "place" in words or name == "separate_c":
        values["beta"] = 2.0 if name == "separate_c" else 1.0
        values["c"] = quarters(m, n, dtype=torch.float32 if name == "separate_c" else out_dtype)
    if words[0].startswith("d"):
        values["aux_in"] = quarters(m, n, dtype=OUT_DTYPES[(m + n) % 3])
    if name.endswith("bias_grad"):
        values["bias_grad"] = torch.full((n,), torch.nan)
    if name == "everything":
        values = {
            "alpha": 0.37,
            "beta": -1.7,
            "bias": torch.randn(n, generator=generator),
            "aux_out": torch.full((m, n), torch.nan),
            "c": torch.randn(m, n, generator=generator),
            "bias_grad": torch.full((n,), torch.nan),
        }
    args = EpilogueArgs(**values)
    activations = [a for a in ("relu", "gelu_tanh", "gelu") if a in name]
    activation = Activation("gelu" if name == "everything" else (activations or ["none"])[0])
    backward = args.aux_in is not None
    return (
        Epilogue(
            has_alpha=args.alpha != 1.0,
            bias=args.bias.dtype if args.bias is not None else None,
            activation=Activation.NONE if backward else activation,
            aux_out=args.aux_out.dtype if args.aux_out is not None else None,
            dact=activation if backward else Activation.NONE,
            aux_in=args.aux_in.dtype if args.aux_in is not None else None,
            c=args.c.dtype if args.c is not None else None,
            bias_grad=args.bias_grad is not None,
        ),
        args,
    )
