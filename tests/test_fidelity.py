"""Fidelity counts what a quantization lost; every figure here is worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

import mxgemm
from mxgemm import fidelity
from mxgemm.fidelity import Fidelity

pytestmark = pytest.mark.host


def row(*values: float) -> torch.Tensor:
    return torch.tensor([[*values, *[0.0] * (32 - len(values))]])


def test_measure_counts_signal_error_saturated_and_zeros() -> None:
    x = row(6.5, 0.1, 1.0, -2.25)
    measured = fidelity.measure(x, mxgemm.quantize(x, rule="floor"))
    # Scale 1: 6.5 saturates to 6, 0.1 becomes 0, 1 is exact, -2.25 becomes -2.
    assert measured.signal == pytest.approx(42.25 + 0.01 + 1 + 5.0625, rel=1e-6)
    assert measured.error == pytest.approx(0.25 + 0.01 + 0.0625, rel=1e-6)
    assert (measured.saturated, measured.zeros, measured.elements) == (1, 29, 32)
    assert measured.sqnr_db == pytest.approx(10 * math.log10(48.3225 / 0.3225), rel=1e-6)
    assert measured.saturated_percent == 100 / 32


@pytest.mark.parametrize("rule", ["ceil", "rceil"])
def test_rules_that_round_the_scale_up_never_saturate(rule: str) -> None:
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    assert fidelity.measure(x, mxgemm.quantize(x, rule=rule)).saturated == 0
    assert fidelity.measure(x, mxgemm.quantize(x, rule="floor")).saturated > 0


def test_exact_values_have_no_error() -> None:
    x = row(6.0, 0.5)
    assert fidelity.measure(x, mxgemm.quantize(x)).sqnr_db == math.inf
    assert fidelity.measure(torch.zeros(1, 32), mxgemm.quantize(torch.zeros(1, 32))).error == 0


def test_nan_is_not_laundered() -> None:
    x = row(math.nan, 1.0)
    assert math.isnan(fidelity.measure(x, mxgemm.quantize(x)).sqnr_db)


def test_pooling_is_measuring_both_at_once() -> None:
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
    whole = fidelity.measure(x, mxgemm.quantize(x))
    halves = [fidelity.measure(part, mxgemm.quantize(part)) for part in (x[:2], x[2:])]
    pooled = halves[0] + halves[1]
    assert pooled.sqnr_db == pytest.approx(whole.sqnr_db, rel=1e-12)
    assert (pooled.saturated, pooled.zeros) == (whole.saturated, whole.zeros)
    assert Fidelity() + whole == whole


def test_chunks_of_rows_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(2))
    tensor = mxgemm.quantize(x)
    whole = fidelity.measure(x, tensor)
    monkeypatch.setattr(fidelity, "CHUNK_ELEMENTS", 128)
    assert fidelity.measure(x, tensor).error == pytest.approx(whole.error, rel=1e-12)


def test_rotation_prescale_layout_and_padding_are_seen_through() -> None:
    x = torch.randn(32, 40, generator=torch.Generator().manual_seed(3))
    plain = fidelity.measure(x, mxgemm.quantize(x, pad=True))
    assert (plain.elements, plain.signal) == (x.numel(), pytest.approx(float((x * x).sum())))
    layout = mxgemm.OperandLayout.of("tile_16x16", "scale_32x8")
    assert fidelity.measure(x, mxgemm.quantize(x, pad=True, layout=layout)) == plain
    rotated = fidelity.measure(x, mxgemm.quantize(x, pad=True, rotation=mxgemm.Rotation(16)))
    assert rotated.signal == pytest.approx(plain.signal, rel=1e-5)
    assert rotated.sqnr_db == pytest.approx(plain.sqnr_db, abs=2)
    scaled = fidelity.measure(x, mxgemm.quantize(x, pad=True, rule="floor", prescale=True))
    assert scaled.saturated == 0


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"must have the tensor's shape \(1, 32\), got \(2, 32\)"):
        fidelity.measure(torch.ones(2, 32), mxgemm.quantize(torch.ones(1, 32)))
