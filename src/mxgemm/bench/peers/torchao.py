"""torchao's product of two MXTensors as it runs on any device: both are dequantized to bfloat16 in
torch operations, then multiplied.
"""

from __future__ import annotations

import torch

from mxgemm.bench.cases import Case
from mxgemm.bench.operands import Operands
from mxgemm.bench.peers.base import CPU, CUDA, Peer, require
from mxgemm.bench.peers.torch_products import accumulation_of
from mxgemm.bench.variants import Call, Work
from mxgemm.devices import DeviceSpec
from mxgemm.tensor import MXTensor


def _work(case: Case, operands: Operands, device: DeviceSpec) -> Work:
    module = require("torchao.prototype.mx_formats.mx_tensor", "torchao")
    quantization = require("torchao.quantization.quantize_.common", "torchao")
    emulated = quantization.KernelPreference.EMULATED
    a, b = operands.a, operands.b

    def theirs(tensor: MXTensor) -> torch.Tensor:
        made: torch.Tensor = module.MXTensor(
            tensor.canonical_codes().clone(),
            tensor.canonical_scales().clone().view(torch.float8_e8m0fnu),
            elem_dtype=torch.float4_e2m1fn_x2,
            block_size=tensor.format.block,
            orig_dtype=torch.bfloat16,
            kernel_preference=emulated,
            act_quant_kwargs=None,
            is_swizzled_scales=False,
        )
        return made

    def make() -> Call:
        x, y = theirs(a), theirs(b)
        return lambda: torch.mm(x, y.t())

    return Work(
        make=make,
        bytes_moved=a.nbytes + b.nbytes + case.m * case.n * torch.bfloat16.itemsize,
        plan="MXTensor, emulated: dequantize both in every call, torch.mm bfloat16",
        layout=str(a.layout),
        expected=lambda: operands.expected(accumulation_of(device)),
    )


PEERS = (Peer("torchao", "mxfp4 x mxfp4, dequantized in every call", CPU + CUDA, _work),)
