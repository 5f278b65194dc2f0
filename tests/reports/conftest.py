"""Fixtures of the report tests: every backend that runs on real hardware here, by the public
call.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import conformance
import mxgemm
import oracles
from mxgemm import MXTensor
from mxgemm.backends.base import Accumulation
from mxgemm.epilogue import IDENTITY, NO_ARGS
from mxgemm.errors import UnsupportedProblem


@dataclass(frozen=True)
class Runner:
    """A backend behind `mxgemm.gemm`, with what the tests must know of its accuracy."""

    target: conformance.Target

    def gemm(self, a: MXTensor, b: MXTensor, **arguments) -> torch.Tensor:
        """Return the product on the CPU, FP32 unless the arguments say otherwise; skip with the
        backend's own reason where it rejects the problem.
        """
        device = self.target.spec().torch_device
        moved = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in arguments.items()
        }
        if "out" not in moved:
            moved.setdefault("out_dtype", torch.float32)
        try:
            out = mxgemm.gemm(a.to(device), b.to(device), backend=self.target.backend.name, **moved)
        except UnsupportedProblem as reason:
            pytest.skip(str(reason))
        return out.cpu()

    def accumulation(self, a: MXTensor, b: MXTensor) -> Accumulation:
        """Return how the backend sums this product."""
        problem = conformance.problem_of(a, b, self.target.spec())
        return self.target.backend.accumulation(problem)

    def exact_operands(self, m: int, n: int, k: int, seed: int = 0) -> tuple[MXTensor, MXTensor]:
        """Return operands whose product this backend must give bit for bit."""
        a, b = mxgemm.quantize(torch.ones(m, k)), mxgemm.quantize(torch.ones(n, k))
        return oracles.exact_operands(m, n, k, self.accumulation(a, b), seed)

    def check(self, a: MXTensor, b: MXTensor) -> torch.Tensor:
        """Return the FP32 product after comparing it with the exact one within the derived
        bound.
        """
        out = self.gemm(a, b)
        exact, bound = oracles.expected(a, b, IDENTITY, NO_ARGS, self.accumulation(a, b))
        oracles.assert_within(out, exact, bound)
        return out


def real_targets() -> list[object]:
    return [p for p in conformance.runnable() if not p.values[0].emulated]


@pytest.fixture(params=real_targets())
def runner(request: pytest.FixtureRequest) -> Runner:
    return Runner(request.param)


@pytest.fixture
def gaussian() -> Callable[..., torch.Tensor]:
    def make(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)

    return make
