"""OpenVINO's MatMul with an MXFP4 weight (f4e2m1 elements, f8e8m0 scales) and wide activations.

A model of one node is compiled for each set of buffers, which packs the weight outside the timed
call; the row's plan names the kernel that the compiled graph says it runs. Activations are the
values of the MXFP4 operand, which float32 and bfloat16 hold exactly, so that the product is that of
the MXFP4 operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mxgemm.bench.cases import Case
from mxgemm.bench.error_bound import FP32
from mxgemm.bench.errors import Unavailable
from mxgemm.bench.operands import Operands
from mxgemm.bench.peers.base import CPU, Peer, require
from mxgemm.bench.variants import Work
from mxgemm.devices import DeviceSpec
from mxgemm.tensor import MXTensor

PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16"}
"""OpenVINO's names of the types of activations and output."""


def _variant(dtype: torch.dtype) -> Callable[[Case, Operands, DeviceSpec], Work]:
    def work(case: Case, operands: Operands, device: DeviceSpec) -> Work:
        _need(dtype)
        x, b = operands.values("a", dtype), operands.b
        return Work(
            make=lambda: Product(x.clone(), b.clone()).call,
            bytes_moved=x.nbytes + b.nbytes + case.m * case.n * dtype.itemsize,
            plan=f"{Product(x, b).kernel()}, packed outside the call",
            layout="OpenVINO's own",
            expected=lambda: operands.expected(FP32),
        )

    return work


def _need(dtype: torch.dtype) -> None:
    """Raise Unavailable where OpenVINO is missing or would compute in another type than asked."""
    core = require("openvino", "openvino").Core()
    capabilities = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    wanted = {torch.float32: "FP32", torch.bfloat16: "BF16"}[dtype]
    if wanted not in capabilities:
        raise Unavailable(
            f"needs {wanted} among the CPU plugin's capabilities, got {', '.join(capabilities)}"
        )


class Product:
    """D[M, N] = X[M, K] @ weight.T as a compiled model on memory of its own; X and D have one type.

    OpenVINO's tensors do not keep the memory alive that they are made on, so this does.
    """

    def __init__(self, x: torch.Tensor, weight: MXTensor) -> None:
        self.ov = require("openvino", "openvino")
        self.x, self.weight = x, weight
        self.out = torch.full((x.shape[0], weight.rows), float("nan"), dtype=x.dtype)
        settings = {
            "INFERENCE_PRECISION_HINT": PRECISIONS[x.dtype],
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "NUM_STREAMS": 1,
            # Otherwise the plugin may round activations to int8.
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }
        self.compiled = self.ov.Core().compile_model(self._model(), "CPU", settings)
        self.request = self.compiled.create_infer_request()
        self.request.set_input_tensor(self._shared(x, PRECISIONS[x.dtype]))
        self.request.set_output_tensor(self._shared(self.out, PRECISIONS[x.dtype]))

    def call(self) -> torch.Tensor:
        """Compute and return D."""
        self.request.infer(share_outputs=True)
        return self.out

    def kernel(self) -> str:
        """Return the kernel that runs the product, and the type that the weight is kept in."""
        for node in self.compiled.get_runtime_model().get_ops():
            info = {key: value.astype(str) for key, value in node.get_rt_info().items()}
            if info["layerType"] in ("FullyConnected", "MatMul"):
                return f"{info['primitiveType']}, weight kept as {info['runtimePrecision']}"
        raise Unavailable("OpenVINO's compiled graph holds no product")

    def _model(self) -> Any:
        ov, ops = self.ov, require("openvino.opset13", "openvino")
        weight, wide = self.weight, getattr(self.ov.Type, PRECISIONS[self.x.dtype])
        rows, k, block = weight.rows, weight.stored_k, weight.format.block
        codes = weight.canonical_codes().view(rows, k // block, block // 2)
        scales = weight.canonical_scales().view(rows, k // block, 1)
        elements = ops.constant(self._shared(codes, "f4e2m1", per_byte=2))
        powers = ops.constant(self._shared(scales, "f8e8m0"))
        values = ops.multiply(ops.convert(elements, wide), ops.convert(powers, wide))
        shape = ops.constant(np.array([rows, k], dtype=np.int64))
        x = ops.parameter(list(self.x.shape), wide)
        y = ops.reshape(values, shape, special_zero=False)
        return ov.Model([ops.result(ops.matmul(x, y, transpose_a=False, transpose_b=True))], [x])

    def _shared(self, tensor: torch.Tensor, kind: str, per_byte: int = 1) -> Any:
        """Return an OpenVINO tensor of type `kind` on the memory of `tensor`."""
        *outer, last = tensor.shape
        # NumPy has no bfloat16, so its bits go over.
        data = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
        shape = self.ov.Shape([*outer, last * per_byte])
        return self.ov.Tensor(data.numpy(), shape, getattr(self.ov.Type, kind))


PEERS = (
    Peer("openvino_f32", "fp32 x mxfp4 weight, fp32 out", CPU, _variant(torch.float32)),
    Peer("openvino_bf16", "bf16 x mxfp4 weight, bf16 out", CPU, _variant(torch.bfloat16)),
)
