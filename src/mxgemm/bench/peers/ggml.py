"""ggml's product of an MXFP4 weight with float32 activations, which it rounds to int8 in each call.

It solves another problem than the MXFP4 x MXFP4 one: activations become Q8_0 (int8 with an FP16
scale for each 32). The oracle is the exact product of those rounded activations, which ggml's own
rounding gives; what the rounding costs shows in the row's error against the unquantized product.
The repacked variant interleaves rows of the weight, once and outside the timed call.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mxgemm.bench.cases import Case
from mxgemm.bench.error_bound import FP32
from mxgemm.bench.errors import Unavailable
from mxgemm.bench.operands import Operands, expected_product
from mxgemm.bench.peers.base import CPU, Peer, require
from mxgemm.bench.variants import Call, Work
from mxgemm.devices import DeviceSpec
from mxgemm.numerics import e2m1
from mxgemm.tensor import MXTensor

PLAIN, REPACKED = "CPU", "CPU_REPACK"
"""ggml's names of the kinds of buffers that hold the weight."""

HALF_BLOCK = 16
Q8_0_SCALE_BYTES = 2


def _variant(buffers: str) -> Callable[[Case, Operands, DeviceSpec], Work]:
    def work(case: Case, operands: Operands, device: DeviceSpec) -> Work:
        require("ggml", "ggml-python")
        x, b = operands.values("a", torch.float32), operands.b
        weight = blocks(b)
        return Work(
            make=lambda: Product(weight, x, buffers).call(),
            bytes_moved=x.nbytes + b.nbytes + case.m * case.n * torch.float32.itemsize,
            plan=f"mul_mat mxfp4 x q8_0, weight in {buffers} buffers",
            layout="17-byte blocks" if buffers == PLAIN else "interleaved outside the call",
            expected=lambda: expected_product(
                rounded(x), operands.values("b", torch.float64), FP32
            ),
        )

    return work


def blocks(tensor: MXTensor) -> torch.Tensor:
    """Return ggml's MXFP4 blocks, uint8 [rows, K/32, 17]: the scale byte, then 16 bytes that hold
    element j in the low nibble and element j + 16 in the high one.
    """
    scales = tensor.canonical_scales()
    codes = e2m1.unpack(tensor.canonical_codes()).view(*scales.shape, tensor.format.block)
    nibbles = codes[..., :HALF_BLOCK] | codes[..., HALF_BLOCK:] << 4
    return torch.cat([scales.unsqueeze(-1), nibbles], dim=-1).contiguous()


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Return float32 `x` [rows, K] as ggml's own code rounds it to Q8_0, float64 [rows, K]."""
    ggml, _ = _library()
    rows, k = x.shape
    row_bytes = ggml.ggml_row_size(ggml.GGML_TYPE_Q8_0, k)
    data = np.zeros((rows, row_bytes), dtype=np.uint8)
    convert = ggml.ggml_get_type_traits_cpu(ggml.GGML_TYPE_Q8_0).contents.from_float
    for row, target in zip(x.contiguous(), data, strict=True):
        source = ctypes.cast(row.data_ptr(), ctypes.POINTER(ctypes.c_float))
        convert(source, target.ctypes.data, k)
    parts = data.reshape(rows, -1, Q8_0_SCALE_BYTES + 2 * HALF_BLOCK)
    scales = parts[..., :Q8_0_SCALE_BYTES].copy().view(np.float16)
    values = parts[..., Q8_0_SCALE_BYTES:].view(np.int8)
    return torch.from_numpy(values.astype(np.float64) * scales).view(rows, k)


class Product:
    """One graph D[M, N] = X[M, K] @ weight.T in memory of its own.

    Raises:
        Unavailable: this processor's ggml has no such kernel, or no such buffers.
    """

    def __init__(self, weight: torch.Tensor, x: torch.Tensor, buffers: str) -> None:
        ggml, backend = _library()
        self.ggml, self.backend = ggml, backend
        self.shape = x.shape[0], weight.shape[0]
        stored, used = self._context(), self._context()
        w = ggml.ggml_new_tensor_2d(stored, ggml.GGML_TYPE_MXFP4, x.shape[1], weight.shape[0])
        allocate = ggml.ggml_backend_alloc_ctx_tensors_from_buft
        self._owns(allocate(stored, _buffer_type(buffers)))
        activations = ggml.ggml_new_tensor_2d(used, ggml.GGML_TYPE_F32, x.shape[1], x.shape[0])
        self.product = ggml.ggml_mul_mat(used, w, activations)
        # Asked before the weight is written: without a kernel the library would end the process.
        device = ggml.ggml_backend_dev_by_name(b"CPU")
        if not ggml.ggml_backend_dev_supports_op(device, self.product):
            raise Unavailable(
                f"ggml has no MXFP4 kernel for weights in {buffers} buffers and "
                f"n={weight.shape[0]} k={x.shape[1]} on this processor"
            )
        self._owns(allocate(used, _buffer_type(PLAIN)))
        for tensor, data in ((w, weight), (activations, x)):
            ggml.ggml_backend_tensor_set(tensor, data.contiguous().data_ptr(), 0, data.nbytes)
        self.graph = ggml.ggml_new_graph(used)
        ggml.ggml_build_forward_expand(self.graph, self.product)

    def call(self) -> Call:
        """Return a call that computes D, float32 [M, N] in the graph's memory, and returns it."""
        ggml = self.ggml
        ggml.ggml_backend_cpu_set_n_threads(self.backend, torch.get_num_threads())
        count = self.shape[0] * self.shape[1]
        memory = (ctypes.c_float * count).from_address(ggml.ggml_get_data(self.product))
        out = torch.from_numpy(np.ctypeslib.as_array(memory)).view(self.shape)
        out.fill_(float("nan"))
        # Bound to self, so that the graph's memory lives as long as the call does.
        return functools.partial(self._compute, out)

    def _compute(self, out: torch.Tensor) -> torch.Tensor:
        status = self.ggml.ggml_backend_graph_compute(self.backend, self.graph)
        if status != self.ggml.GGML_STATUS_SUCCESS:
            raise RuntimeError(f"ggml: graph_compute returned {status}")
        return out

    def _context(self) -> Any:
        ggml = self.ggml
        size = 4 * ggml.ggml_tensor_overhead() + ggml.ggml_graph_overhead()
        context = ggml.ggml_init(ggml.ggml_init_params(size, None, True))  # noqa: FBT003
        weakref.finalize(self, ggml.ggml_free, context)
        return context

    def _owns(self, buffer: Any) -> None:
        if not buffer:
            raise MemoryError("ggml: no memory for the tensors")
        weakref.finalize(self, self.ggml.ggml_backend_buffer_free, buffer)


@functools.cache
def _library() -> tuple[Any, Any]:
    """Return the module, which then logs no line for each tensor, and its CPU backend."""
    ggml = require("ggml", "ggml-python")
    ggml.ggml_log_set(_SILENT, None)
    return ggml, ggml.ggml_backend_cpu_init()


_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)


def _buffer_type(name: str) -> Any:
    """Return the kind of CPU buffers of that name.

    Raises:
        Unavailable: this build of ggml has no such kind.
    """
    ggml, backend = _library()
    if name == PLAIN:
        # The binding of ggml_backend_cpu_buffer_type cuts the pointer to 32 bits.
        return ggml.ggml_backend_get_default_buffer_type(backend)
    registry, device = ggml.ggml_backend_cpu_reg(), ggml.ggml_backend_dev_by_name(b"CPU")
    address = ggml.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
    listed = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)(device)
    found = {}
    for kind in listed:
        if kind is None:
            break
        found[ggml.ggml_backend_buft_name(kind).decode()] = kind
    if name not in found:
        raise Unavailable(f"ggml has no {name} buffers, got {', '.join([PLAIN, *found])}")
    return found[name]


INT8_ACTIVATIONS = "int8 activations, rounded in every call, x mxfp4 weight, fp32 out"
PEERS = (
    Peer("ggml", INT8_ACTIVATIONS, CPU, _variant(PLAIN)),
    Peer("ggml_repacked", INT8_ACTIVATIONS, CPU, _variant(REPACKED)),
)
