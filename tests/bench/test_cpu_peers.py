"""Other libraries' products on a CPU: each right by its own semantics, or absent and saying so."""

from __future__ import annotations

import importlib.util
import warnings

import numpy as np
import pytest
import torch

from mxgemm import dequantize, devices, quantize
from mxgemm.bench import cases, error_bound, operands, variants
from mxgemm.bench.errors import Unavailable
from mxgemm.bench.peers import ggml, openvino

pytestmark = pytest.mark.host
CPU = devices.DeviceSpec.of("cpu")
MODULES = {
    "torchao": ("torchao", "torchao"),
    "openvino_f32": ("openvino", "openvino"),
    "openvino_bf16": ("openvino", "openvino"),
    "ggml": ("ggml", "ggml-python"),
    "ggml_repacked": ("ggml", "ggml-python"),
}


def case_of(m: int, n: int, k: int, distribution: str = "gaussian") -> cases.Case:
    return cases.Case(pass_name="gemm", name="t", m=m, n=n, k=k, distribution=distribution)


def work_of(name: str, case: cases.Case) -> variants.Work:
    data = operands.Operands(case, torch.device("cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the libraries' own imports
        return variants.get(name).work(case, data, "gemm", CPU)


@pytest.mark.parametrize("name", MODULES)
def test_missing_library_says_what_to_install(name, monkeypatch):
    module, package = MODULES[name]
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda other, *rest: None if other == module else found(other)
    )
    with pytest.raises(Unavailable, match=f"not installed: needs {package}, got none; pip install"):
        work_of(name, case_of(1, 8, 32))


@pytest.mark.parametrize("distribution", ["gaussian", "positive", "student_t", "outlier_channels"])
@pytest.mark.parametrize("name", MODULES)
def test_product_is_within_the_bound_of_what_it_computes(name, distribution):
    pytest.importorskip(MODULES[name][0])
    case = case_of(5, 40, 96, distribution)
    try:
        work = work_of(name, case)
        call, other = work.make(), work.make()
    except Unavailable as error:
        pytest.skip(f"{name}: {error}")
    first = call().clone()
    assert error_bound.verify(first, work.expected()).detail == ""
    # Buffers of one call are its own, and the memory that the library reads stays.
    assert torch.equal(other(), first)
    assert torch.equal(call(), first)


@pytest.mark.parametrize("dtype", openvino.PRECISIONS, ids=openvino.PRECISIONS.values())
def test_openvino_product_in_either_type_of_activations(dtype):
    pytest.importorskip("openvino")
    case = case_of(3, 8, 64)
    data = operands.Operands(case, torch.device("cpu"))
    product = openvino.Product(dequantize(data.a, dtype), data.b)
    result = product.call()
    assert result.dtype == dtype
    assert error_bound.verify(result, data.expected(error_bound.FP32)).detail == ""
    assert "weight kept as" in product.kernel()


def test_ggml_blocks_are_those_of_the_gguf_package():
    gguf = pytest.importorskip("gguf")
    weight = quantize(torch.randn(4, 96, generator=torch.Generator().manual_seed(3)))
    stored = ggml.blocks(weight).view(4, -1).numpy()
    theirs = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType.MXFP4)
    assert np.array_equal(theirs, dequantize(weight, torch.float32).numpy())


def test_ggml_rounds_activations_to_int8_with_a_scale_for_each_32():
    pytest.importorskip("ggml")
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(4))
    got = ggml.rounded(x).view(3, 2, 32)
    step = x.view(3, 2, 32).abs().amax(-1, keepdim=True).double() / 127
    # Half a step of rounding, and the FP16 scale's own half ulp on 127 steps.
    assert bool(((got - x.view(3, 2, 32)).abs() <= step * (0.5 + 127 * 2.0**-11)).all())
    assert not torch.equal(got.float().view(3, 64), x)


def test_ggml_without_a_repacked_kernel_is_refused_before_it_can_abort():
    pytest.importorskip("ggml")
    work = work_of("ggml_repacked", case_of(2, 3, 32))
    with pytest.raises(Unavailable, match="no MXFP4 kernel for weights in CPU_REPACK buffers"):
        work.make()
