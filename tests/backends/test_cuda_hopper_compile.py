"""That the Hopper kernels compile cleanly, without a GPU: no spills, no serialised wgmma."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch

import mxgemm
from mxgemm.backends.cuda_hopper import config as cfg
from mxgemm.devices import DeviceSpec
from mxgemm.epilogue import Epilogue
from mxgemm.problem import GemmProblem, Numerics
from mxgemm.quantizers import cuda as quantizer
from mxgemm.quantizers.options import QuantizeOptions
from mxgemm.quantizers.scale_rules import ROUNDING_BIAS
from mxgemm.runtime import nvrtc

FOLDED_K = (4096, 8192, 16384, 28672)
"""One for every number of warps that share a row."""


def sources() -> list[nvrtc.Source]:
    """Every translation unit that a plan or the quantizer's usual options ask for."""
    found = [nvrtc.Source(cfg.HERE / "pack.cu")]
    found += [
        cfg.fold_shape(*size).source
        for size in (
            *((rows, 8192) for rows in cfg.SHAPES_OF_FEW_ROWS),
            *((4096, k) for k in FOLDED_K),
        )
    ]
    for numerics in Numerics:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for m in (8, 16, 32, 64, 128, 256, 512, 8192):
                for epilogue in (Epilogue(), Epilogue(bias=dtype)):
                    asked = GemmProblem(
                        m=m,
                        n=8192,
                        k=8192,
                        device=DeviceSpec("cuda", "sm_90"),
                        out_dtype=dtype,
                        epilogue=epilogue,
                        numerics=numerics,
                    )
                    config = cfg.choose(asked)
                    for consumers, fitted in itertools.product((2, 3), (False, True)):
                        folded = dataclasses.replace(
                            config.folded, consumers=consumers, fitted=fitted
                        )
                        found.append(folded.source)
                    found += [c.source for c in (config.packed, config.canonical) if c is not None]
    rotation = mxgemm.Rotation(64, signs=5)
    for dtype in quantizer.INPUT_CODES:
        for options in (
            QuantizeOptions(block_2d=True),
            QuantizeOptions(rule="search"),
            QuantizeOptions(rule="search", block_2d=True),
            QuantizeOptions(rule="search", rounding="stochastic", rotation=rotation, prescale=True),
            QuantizeOptions(rounding="stochastic", rotation=rotation, prescale=True),
            QuantizeOptions(block_2d=True, rotation=mxgemm.Rotation(16)),
        ):
            found.append(quantizer.source(dtype, options, along_k=True, along_m=True))
            found.append(quantizer.source(dtype, options, along_k=True, along_m=False))
        for rule in ROUNDING_BIAS:
            found.append(quantizer.plain_source(dtype, rule))
        found += [cfg.quantize_folded_source(dtype, "even", w) for w in cfg.QUANTIZING_WARPS]
    return list(dict.fromkeys(found))


@pytest.mark.compile
@pytest.mark.parametrize("source", sources(), ids=str)
def test_kernel_compiles_without_spills_or_serialised_wgmma(source: nvrtc.Source) -> None:
    compiled = nvrtc.compile_source(source, nvrtc.HOPPER)
    assert compiled.cubin[:4] == b"\x7fELF"
    assert not compiled.complaints


# The accumulators of a group that is in flight over the loop's back edge are read behind it.
SERIALISED = """
#include "wgmma.cuh"
extern "C" __global__ void __launch_bounds__(128) kernel(float* out, u64 a, u64 b, int count) {
  float even[64], odd[64], total[64];
  for (int i = 0; i < 64; ++i) total[i] = 0.f;
  wgmma_fence();
  Wgmma<128>::shared(even, a, b, 0);
  wgmma_commit();
  for (int i = 0; i < count; ++i) {
    wgmma_fence();
    Wgmma<128>::shared(odd, a + i, b, 0);
    wgmma_commit();
    wgmma_wait<1>();
    for (int j = 0; j < 64; ++j) total[j] += even[j];
    wgmma_fence();
    Wgmma<128>::shared(even, a + 2 * i, b, 0);
    wgmma_commit();
    wgmma_wait<1>();
    for (int j = 0; j < 64; ++j) total[j] += odd[j];
  }
  wgmma_wait<0>();
  for (int j = 0; j < 64; ++j) out[threadIdx.x * 64 + j] = total[j] + even[j];
}
"""
SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) kernel(float* x) {
  float v[80];
#pragma unroll
  for (int i = 0; i < 80; ++i) v[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 80; ++i) x[i * 1024 + threadIdx.x] = v[79 - i] * v[(i * 7) % 80];
}
"""


@pytest.mark.compile
@pytest.mark.parametrize("text", [SERIALISED, SPILLING], ids=["serialised", "spilling"])
def test_the_compile_tier_sees_what_it_is_for(text: str, tmp_path: Path) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text(text)
    assert nvrtc.compile_source(nvrtc.Source(path), nvrtc.HOPPER).complaints


@pytest.mark.compile
def test_a_source_that_does_not_compile_gives_its_log(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text("nonsense")
    with pytest.raises(mxgemm.errors.MXError, match="nonsense"):
        nvrtc.compile_source(nvrtc.Source(path), nvrtc.HOPPER)
