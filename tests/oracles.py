"""Where tests get their right answers: operands with known properties, exact results, and readable
comparisons.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mxgemm import accuracy
from mxgemm.backends.base import Accumulation
from mxgemm.epilogue import Epilogue, EpilogueArgs
from mxgemm.formats import E2M1
from mxgemm.layouts.base import Layout, round_up
from mxgemm.numerics import e2m1
from mxgemm.tensor import MXTensor, OperandLayout

BLOCK = 32


@dataclass(frozen=True)
class ExactRegime:
    """Codes and scale spreads whose products sum exactly, in any order, under one accumulation."""

    largest: float
    spread_a: int
    spread_b: int

    @classmethod
    def of(cls, accumulation: Accumulation, k: int, wanted: int = 4) -> ExactRegime:
        """Return the regime with the largest code values that still leaves some spread of the
        scales.
        """
        for largest in (6.0, 4.0, 3.0, 2.0, 1.0, 0.5):
            spread = accumulation.exact_spread(k, largest)
            if spread >= min(wanted, 2) or (largest == 0.5 and spread >= 0):
                spread = min(spread, wanted)
                return cls(largest, spread - spread // 2, spread // 2)
        raise AssertionError(f"no exact regime at K={k} for {accumulation}")


def random_operand(
    rows: int,
    k: int,
    generator: torch.Generator,
    *,
    largest: float = 6.0,
    scales: tuple[int, int] = (127, 127),
    per_row: bool = False,
) -> MXTensor:
    """Return a canonical operand of random codes up to `largest` and scale bytes uniform in the
    closed range `scales`.
    """
    stored_k = round_up(k, BLOCK)
    magnitudes = sum(value <= largest for value in E2M1.values[:8])
    codes = torch.randint(0, magnitudes, (rows, stored_k), generator=generator, dtype=torch.uint8)
    signs = torch.randint(0, 2, (rows, stored_k), generator=generator, dtype=torch.uint8)
    codes |= signs << 3
    codes[:, k:] = 0
    columns = 1 if per_row else stored_k // BLOCK
    low, high = scales
    bytes_ = torch.randint(low, high + 1, (rows, columns), generator=generator, dtype=torch.uint8)
    return MXTensor(
        codes=e2m1.pack(codes),
        scales=bytes_.expand(rows, stored_k // BLOCK).contiguous(),
        shape=(rows, k),
        stored_k=stored_k,
    )


def exact_operands(
    m: int, n: int, k: int, accumulation: Accumulation, seed: int
) -> tuple[MXTensor, MXTensor]:
    """Return operands in the exact regime of `accumulation`."""
    generator = torch.Generator().manual_seed(seed)
    regime = ExactRegime.of(accumulation, round_up(k, BLOCK))
    a = random_operand(m, k, generator, largest=regime.largest, scales=(127 - regime.spread_a, 127))
    b = random_operand(n, k, generator, largest=regime.largest, scales=(127 - regime.spread_b, 127))
    return a, b


def poison_pads(tensor: MXTensor) -> MXTensor:
    """Return the same tensor with every padding byte of both buffers set to 0xFF (a NaN scale)."""
    codes = _poison(tensor.codes, tensor.layout.codes, tensor.rows, tensor.stored_k // 2)
    scales = _poison(tensor.scales, tensor.layout.scales, tensor.rows, tensor.stored_k // BLOCK)
    return MXTensor(
        codes=codes,
        scales=scales,
        shape=tensor.shape,
        stored_k=tensor.stored_k,
        layout=tensor.layout,
    )


def _poison(storage: torch.Tensor, layout: Layout, rows: int, columns: int) -> torch.Tensor:
    used = layout.pack(torch.ones(rows, columns, dtype=torch.uint8, device=storage.device))
    return torch.where(used == 1, storage, 0xFF).to(torch.uint8)


def has_pads(layout: OperandLayout, rows: int, stored_k: int) -> bool:
    """Return whether an operand of this size has padding bytes in `layout`."""
    sizes = ((layout.codes, stored_k // 2), (layout.scales, stored_k // BLOCK))
    return any(each.padded(rows, columns) != (rows, columns) for each, columns in sizes)


def needs_zero_pads(layout: OperandLayout) -> bool:
    """Return whether some consumer of `layout` reads its pads."""
    return layout.codes.requires_zero_pads or layout.scales.requires_zero_pads


def expected(
    a: MXTensor | torch.Tensor,
    b: MXTensor,
    epilogue: Epilogue,
    args: EpilogueArgs,
    accumulation: Accumulation,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return D in FP64 and the bound of its error before output rounding, on the CPU."""
    a, b = a.to("cpu"), b.to("cpu")
    product, magnitude = accuracy.exact_product(a, b)
    error = accuracy.product_bound(magnitude, b.stored_k, accumulation)
    return accuracy.epilogue_bound(product, error, epilogue, args)


def assert_within(out: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> None:
    """Fail with count, first coordinate and both values where `out` is farther from `exact` than
    allowed.
    """
    over = accuracy.excess(out.cpu(), exact, bound)
    bad = (over > 0).nonzero()
    if len(bad):
        at = tuple(bad[0].tolist())
        raise AssertionError(
            f"{len(bad)} of {out.numel()} elements off, first at {at}: got {out[at].item()!r}, "
            f"exact {exact[at].item()!r}, bound {bound[at].item():.3g}"
        )


def assert_same_bits(out: torch.Tensor, right: torch.Tensor) -> None:
    """Fail with count, first coordinate and both values in hex unless the tensors agree bit for
    bit; any NaN equals any other.
    """
    assert out.dtype == right.dtype
    assert out.shape == right.shape
    out, right = out.cpu().contiguous(), right.cpu().contiguous()
    integers = torch.int32 if out.dtype == torch.float32 else torch.int16
    differ = (out.view(integers) != right.view(integers)) & ~(out.isnan() & right.isnan())
    bad = differ.nonzero()
    if len(bad):
        at = tuple(bad[0].tolist())
        bits = [
            t.view(integers)[at].item() & (2 ** (8 * t.element_size()) - 1) for t in (out, right)
        ]
        raise AssertionError(
            f"{len(bad)} of {out.numel()} elements differ, first at {at}: got {out[at].item()!r} "
            f"({bits[0]:#x}), right {right[at].item()!r} ({bits[1]:#x})"
        )


def once_rounded(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return FP64 values rounded to FP32 and then to `dtype`; one rounding where FP32 holds them
    exactly.
    """
    return exact.float().to(dtype)
