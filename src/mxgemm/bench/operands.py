"""The data of one case: sources, their quantized forms and the exact product, each made once."""

from __future__ import annotations

import functools
import math

import torch

from mxgemm.backends.base import Accumulation, Side
from mxgemm.bench import distributions
from mxgemm.bench.cases import Case
from mxgemm.bench.error_bound import Expected
from mxgemm.bench.errors import Unavailable
from mxgemm.quantizers import dequantize, quantize
from mxgemm.tensor import MXTensor

ACCURACY_ROWS = 256
"""Rows on which the error against the source's product is taken; spread evenly over M."""

KEPT_MATRICES = 4
"""Weights are shared by consecutive cases of one suite, so the latest few are kept."""


class Operands:
    """The operands A [M, K] and B [N, K] of a case on one device.

    Attributes:
        case: whose they are.
        device: where they are.
    """

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        self.device = device
        self._values: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    @property
    def source_a(self) -> torch.Tensor:
        """High-precision A, bfloat16 [M, K]."""
        case = self.case
        return _source(case.distribution, case.m, case.k, 2 * case.seed, self.device)

    @property
    def source_b(self) -> torch.Tensor:
        """High-precision B, bfloat16 [N, K]."""
        case = self.case
        return _source(case.distribution, case.n, case.k, 2 * case.seed + 1, self.device)

    @property
    def a(self) -> MXTensor:
        """A quantized along K, canonical."""
        case = self.case
        return _quantized(
            case.distribution, case.m, case.k, 2 * case.seed, self.device, pad=case.pad
        )

    @property
    def b(self) -> MXTensor:
        """B quantized along K, canonical."""
        case = self.case
        return _quantized(
            case.distribution, case.n, case.k, 2 * case.seed + 1, self.device, pad=case.pad
        )

    def values(self, side: Side, dtype: torch.dtype) -> torch.Tensor:
        """Return the values of `a` or `b` [rows, K] in `dtype`, made once; not to be written to.

        Raises:
            Unavailable: `dtype` does not hold them, because a scale is beyond its exponents.
        """
        key = (side, dtype)
        if key not in self._values:
            if dtype == torch.float64:
                values = dequantize(self.a if side == "a" else self.b, dtype)
            else:
                exact = self.values(side, torch.float64)
                values = exact.to(dtype)
                if not torch.equal(values.double(), exact):
                    raise Unavailable(f"{str(dtype)[6:]} does not hold these MXFP4 values exactly")
            self._values[key] = values
        return self._values[key]

    @functools.cached_property
    def _exact(self) -> tuple[torch.Tensor, torch.Tensor]:
        return exact_product(self.values("a", torch.float64), self.values("b", torch.float64))

    def expected(self, accumulation: Accumulation) -> Expected:
        """Return the exact product of the quantized operands, to be summed as `accumulation`."""
        product, magnitude = self._exact
        return Expected(product, magnitude, self.a.stored_k, accumulation)

    def source_error(self, out: torch.Tensor) -> float:
        """Return ||D - S||_F / ||S||_F over `ACCURACY_ROWS` rows, S the product of the sources."""
        rows, product = self._source_product
        difference = out[rows].to(torch.float64) - product
        norm = float(product.square().sum())
        return math.sqrt(float(difference.square().sum()) / norm) if norm else 0.0

    @functools.cached_property
    def _source_product(self) -> tuple[torch.Tensor, torch.Tensor]:
        count = min(self.case.m, ACCURACY_ROWS)
        rows = torch.linspace(0, self.case.m - 1, count, device=self.device).long()
        return rows, self.source_a[rows].double() @ self.source_b.double().t()


def expected_product(a: torch.Tensor, b: torch.Tensor, accumulation: Accumulation) -> Expected:
    """Return what A @ B.T must be, for A [M, K] and B [N, K] that FP64 holds exactly."""
    product, magnitude = exact_product(a, b)
    return Expected(product, magnitude, a.shape[1], accumulation)


def exact_product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A @ B.T and |A| @ |B|.T in FP64."""
    a, b = a.double(), b.double()
    return a @ b.t(), a.abs() @ b.abs().t()


@functools.lru_cache(maxsize=KEPT_MATRICES)
def _source(name: str, rows: int, k: int, seed: int, device: torch.device) -> torch.Tensor:
    return distributions.sample(name, rows, k, seed, device)


@functools.lru_cache(maxsize=KEPT_MATRICES)
def _quantized(
    name: str, rows: int, k: int, seed: int, device: torch.device, *, pad: bool
) -> MXTensor:
    return quantize(_source(name, rows, k, seed, device), pad=pad)


def forget() -> None:
    """Drop the kept matrices, to free their memory."""
    _source.cache_clear()
    _quantized.cache_clear()
