"""The oracle of benchmarks: it passes what may be, and fails what may not."""

from __future__ import annotations

import math

import pytest
import torch

import mxgemm
from mxgemm.backends.base import Accumulation
from mxgemm.bench import error_bound
from mxgemm.bench.error_bound import FP32, FP64, Expected, verify
from mxgemm.bench.operands import exact_product

pytestmark = pytest.mark.host


@pytest.fixture
def operands():
    generator = torch.Generator().manual_seed(0)
    a = mxgemm.quantize(torch.randn(24, 256, generator=generator))
    b = mxgemm.quantize(torch.randn(40, 256, generator=generator))
    return a, b


def expected(a, b, accumulation=FP32):
    values = (mxgemm.dequantize(x, torch.float64) for x in (a, b))
    return Expected(*exact_product(*values), a.stored_k, accumulation)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["reference", "reference_fp32"])
def test_reference_backends_pass(operands, backend, dtype):
    a, b = operands
    out = mxgemm.gemm(a, b, out_dtype=dtype, backend=backend)
    verdict = verify(out, expected(a, b))
    assert verdict.passed, verdict.detail
    assert verdict.worst <= 1


@pytest.mark.parametrize(
    ("dtype", "ulps"), [(torch.float32, 64), (torch.bfloat16, 2)], ids=["float32", "bfloat16"]
)
def test_more_than_the_sum_may_lose_fails(operands, dtype, ulps):
    a, b = operands
    out = mxgemm.gemm(a, b, out_dtype=dtype, backend="reference")
    row, column = divmod(int(out.abs().argmax()), out.shape[1])
    out[row, column] *= 1 + ulps * torch.finfo(dtype).eps
    verdict = verify(out, expected(a, b, Accumulation(exact_blocks=True)))
    assert not verdict.passed
    assert f"D[{row}, {column}]" in verdict.detail


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_element_that_is_not_finite_fails(operands, value):
    a, b = operands
    out = mxgemm.gemm(a, b, out_dtype=torch.float32)
    out[3, 5] = value
    verdict = verify(out, expected(a, b))
    assert not verdict.passed
    assert verdict.worst == math.inf


def test_every_chunk_is_looked_at(operands, monkeypatch):
    monkeypatch.setattr(error_bound, "CHUNK_ELEMENTS", 80)
    a, b = operands
    out = mxgemm.gemm(a, b, out_dtype=torch.float32)
    assert verify(out, expected(a, b)).passed
    out[23, 39] += 1
    assert "D[23, 39]" in verify(out, expected(a, b)).detail


def test_shape_must_fit(operands):
    a, b = operands
    assert "shape must be" in verify(torch.zeros(3, 3), expected(a, b)).detail


def test_integers_must_be_exact():
    x, y = torch.randint(-12, 13, (5, 64)), torch.randint(-12, 13, (6, 64))
    product, magnitude = exact_product(x, y)
    wanted = Expected(product, magnitude, 64, FP64)
    out = product.to(torch.int32)
    assert verify(out, wanted).passed
    out[0, 0] += 1
    assert not verify(out, wanted).passed


def test_zero_product_must_be_zero():
    zeros = torch.zeros(2, 2, dtype=torch.float64)
    wanted = Expected(zeros, zeros, 32, FP32)
    assert verify(torch.zeros(2, 2), wanted).passed
    assert not verify(torch.full((2, 2), 1e-30), wanted).passed
