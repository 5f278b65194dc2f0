"""torch's own products. Those in float32 and bfloat16 get the dequantized values, which both hold
exactly, so that their product is that of the MXFP4 operands.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from mxgemm.backends.base import Accumulation
from mxgemm.bench.cases import Case
from mxgemm.bench.error_bound import FP32, FP64
from mxgemm.bench.errors import Unavailable
from mxgemm.bench.operands import Operands, expected_product
from mxgemm.bench.peers.base import CPU, CUDA, Peer
from mxgemm.bench.variants import Call, Work
from mxgemm.devices import DeviceSpec
from mxgemm.numerics import e2m1
from mxgemm.quantizers import dequantize
from mxgemm.tensor import MXTensor

TENSOR_CORE_FP32 = Accumulation(truncates=True)
"""NVIDIA's FP32 accumulator of 16-bit operands: addends are aligned and truncated.
Source: Fasi, Higham, Mikaitis, Pranesh, Numerical behavior of NVIDIA tensor cores, 2021."""

HOPPER_FP8 = Accumulation(significand_bits=14, truncates=True)
HOPPER_FP8_PROMOTED = Accumulation(significand_bits=14, truncates=True, promote_every=128)
"""Hopper's fp8 accumulator keeps 14 bits; without fast accumulation cuBLAS promotes every 128 k."""

E4M3_MAX = 448.0


def accumulation_of(device: DeviceSpec) -> Accumulation:
    """Return how torch's 16- and 32-bit products are summed on `device`."""
    return FP32 if device.kind == "cpu" else TENSOR_CORE_FP32


def _mm(dtype: torch.dtype) -> Callable[[Case, Operands, DeviceSpec], Work]:
    def work(case: Case, operands: Operands, device: DeviceSpec) -> Work:
        x, y = operands.values("a", dtype), operands.values("b", dtype)
        out_bytes = case.m * case.n * dtype.itemsize
        # FP32 products on CUDA run in FP32 as long as TF32 is off, which the runner sees to.
        accumulation = FP32 if dtype == torch.float32 else accumulation_of(device)
        return Work(
            make=lambda: _mm_call(x, y),
            bytes_moved=x.nbytes + y.nbytes + out_bytes,
            plan=f"torch.mm {str(dtype)[6:]}",
            layout="row_major",
            expected=lambda: operands.expected(accumulation),
        )

    return work


def _mm_call(x: torch.Tensor, y: torch.Tensor) -> Call:
    x, y = x.clone(), y.clone()
    out = torch.full((x.shape[0], y.shape[0]), float("nan"), dtype=x.dtype, device=x.device)
    return lambda: torch.mm(x, y.t(), out=out)


def _dequantize_matmul(case: Case, operands: Operands, device: DeviceSpec) -> Work:
    a, b = operands.a, operands.b
    return Work(
        make=lambda: _dequantize_matmul_call(a, b),
        bytes_moved=a.nbytes + b.nbytes + case.m * case.n * torch.bfloat16.itemsize,
        plan="dequantize both in torch, torch.mm bfloat16",
        layout=str(a.layout),
        expected=lambda: operands.expected(accumulation_of(device)),
    )


def _dequantize_matmul_call(a: MXTensor, b: MXTensor) -> Call:
    a, b = a.clone(), b.clone()

    def call() -> torch.Tensor:
        return dequantize(a, torch.bfloat16) @ dequantize(b, torch.bfloat16).t()

    return call


def _bf16_prepacked(case: Case, operands: Operands, device: DeviceSpec) -> Work:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        capability = torch.backends.cpu.get_cpu_capability()
        raise Unavailable(
            f"torch_bf16_prepacked: oneDNN's bfloat16 linear needs AVX-512, got {capability}"
        )
    x, y = operands.values("a", torch.bfloat16), operands.values("b", torch.bfloat16)

    def make() -> Call:
        mine = x.clone()
        packed = torch.ops.mkldnn._reorder_linear_weight(y.clone(), case.m)
        return lambda: torch.ops.mkldnn._linear_pointwise(mine, packed, None, "none", [], "")

    return Work(
        make=make,
        bytes_moved=x.nbytes + y.nbytes + case.m * case.n * torch.bfloat16.itemsize,
        plan="oneDNN linear, weight reordered once",
        layout="oneDNN blocked",
        expected=lambda: operands.expected(accumulation_of(device)),
    )


def _int_mm(case: Case, operands: Operands, device: DeviceSpec) -> Work:
    x, y = _doubled_codes(operands.a), _doubled_codes(operands.b)
    return Work(
        make=lambda: _int_mm_call(x, y),
        bytes_moved=x.nbytes + y.nbytes + case.m * case.n * torch.int32.itemsize,
        plan="torch._int_mm",
        layout="row_major",
        expected=lambda: expected_product(x, y, FP64),
    )


def _int_mm_call(x: torch.Tensor, y: torch.Tensor) -> Call:
    x, y = x.clone(), y.clone()
    return lambda: torch._int_mm(x, y.t())


def _doubled_codes(tensor: MXTensor) -> torch.Tensor:
    """Return twice the element values without their scales, int8 [rows, stored_k]."""
    return (2 * e2m1.decode(e2m1.unpack(tensor.canonical_codes()))).to(torch.int8)


def _scaled_mm(
    accumulation: Accumulation, *, fast: bool
) -> Callable[[Case, Operands, DeviceSpec], Work]:
    def work(case: Case, operands: Operands, device: DeviceSpec) -> Work:
        if device.arch != "sm_90":
            raise Unavailable(
                f"torch_scaled_mm_fp8: its accumulation is known on sm_90, got {device}"
            )
        x, x_scale = to_e4m3(operands.source_a)
        y, y_scale = to_e4m3(operands.source_b)
        return Work(
            make=lambda: _scaled_mm_call(x, x_scale, y, y_scale, fast=fast),
            bytes_moved=x.nbytes + y.nbytes + case.m * case.n * torch.bfloat16.itemsize,
            plan=f"torch._scaled_mm, use_fast_accum={fast}",
            layout="row_major",
            expected=lambda: expected_product(
                x.double() * x_scale, y.double() * y_scale, accumulation
            ),
        )

    return work


def to_e4m3(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `x` [rows, K] as float8_e4m3fn with one power-of-two scale, float32 [] : x ~ q * s."""
    largest = x.abs().amax().float().clamp(min=torch.finfo(torch.float32).tiny)
    scale = torch.exp2(torch.ceil(torch.log2(largest / E4M3_MAX)))
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


def _scaled_mm_call(
    x: torch.Tensor, x_scale: torch.Tensor, y: torch.Tensor, y_scale: torch.Tensor, *, fast: bool
) -> Call:
    x, y = x.clone(), y.clone()
    return lambda: torch._scaled_mm(
        x,
        y.t(),
        scale_a=x_scale,
        scale_b=y_scale,
        out_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )


PEERS = (
    Peer("torch_fp32", "fp32 x fp32 of the MXFP4 values", CPU + CUDA, _mm(torch.float32)),
    Peer("torch_bf16", "bf16 x bf16 of the MXFP4 values", CPU + CUDA, _mm(torch.bfloat16)),
    Peer("torch_bf16_prepacked", "bf16 x bf16 of the MXFP4 values", CPU, _bf16_prepacked),
    Peer(
        "dequantize_matmul",
        "mxfp4 x mxfp4, dequantized in every call",
        CPU + CUDA,
        _dequantize_matmul,
    ),
    Peer("torch_int_mm", "int8 x int8 of the elements without scales", CPU + CUDA, _int_mm),
    Peer(
        "torch_scaled_mm_fp8",
        "e4m3 x e4m3, one scale a tensor, promoted sums",
        CUDA,
        _scaled_mm(HOPPER_FP8_PROMOTED, fast=False),
    ),
    Peer(
        "torch_scaled_mm_fp8_fast",
        "e4m3 x e4m3, one scale a tensor, fast accumulation",
        CUDA,
        _scaled_mm(HOPPER_FP8, fast=True),
    ),
)
