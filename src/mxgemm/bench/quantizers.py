"""Quantizers as variants: the library's own, checked bit for bit, a plain copy and torchao's.

They are timed on quantize cases, and on GEMM cases for the activation, so that quantize and GEMM
stand side by side.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from mxgemm.bench.cases import QUANTIZE, Case
from mxgemm.bench.errors import Unavailable
from mxgemm.bench.operands import Operands
from mxgemm.bench.peers.base import require
from mxgemm.bench.variants import Call, Variant, Work
from mxgemm.devices import DeviceSpec
from mxgemm.formats import MXFP4
from mxgemm.quantizers import QuantizeOptions, quantize, quantize_pair, reference
from mxgemm.tensor import MXPair, MXTensor


class QuantizerVariant(Variant):
    """A function of a bfloat16 matrix [rows, k]."""

    backend = QUANTIZE

    def __init__(self, name: str, computes: str, work: Callable[..., Work]) -> None:
        self.name = name
        self.computes = computes
        self._work = work

    def stages(self, case: Case) -> tuple[str, ...]:
        return (QUANTIZE,)

    def work(self, case: Case, operands: Operands, stage: str, device: DeviceSpec) -> Work:
        if device.emulated:
            raise Unavailable(f"{self.name}: runs on a real device, got {device}")
        return self._work(operands.source_a, pad=case.pad)


def _rowwise(x: torch.Tensor, *, pad: bool) -> Work:
    result = quantize(x, pad=pad)
    return Work(
        make=lambda: _on_copy(x, lambda copy: quantize(copy, pad=pad)),
        bytes_moved=x.nbytes + result.nbytes,
        plan="even, along K",
        check=lambda got: _difference(x, got),
    )


def _pair(x: torch.Tensor, *, pad: bool) -> Work:
    result = quantize_pair(x, pad=pad)
    return Work(
        make=lambda: _on_copy(x, lambda copy: quantize_pair(copy, pad=pad)),
        bytes_moved=x.nbytes + result.along_k.nbytes + result.along_m.nbytes,
        plan="even, along K and along M",
        check=lambda got: _pair_difference(x, got),
    )


def _copy(x: torch.Tensor, *, pad: bool) -> Work:
    del pad  # a copy has no blocks
    return Work(
        make=lambda: _copy_call(x),
        bytes_moved=2 * x.nbytes,
        plan="torch copy_ of bfloat16",
    )


def _torchao(x: torch.Tensor, *, pad: bool) -> Work:
    if pad and x.shape[1] % MXFP4.block:
        raise Unavailable(f"torchao_to_mx: K must be a multiple of {MXFP4.block}, got {x.shape[1]}")
    module = require("torchao.prototype.mx_formats.mx_tensor", "torchao")

    def call(copy: torch.Tensor) -> object:
        return module.MXTensor.to_mx(copy, torch.float4_e2m1fn_x2, MXFP4.block)

    return Work(
        make=lambda: _on_copy(x, call),
        bytes_moved=x.nbytes + x.numel() // 2 + x.numel() // 32,
        plan="torchao MXTensor.to_mx",
    )


def _on_copy(x: torch.Tensor, function: Callable[[torch.Tensor], object]) -> Call:
    copy = x.clone()
    return lambda: function(copy)


def _copy_call(x: torch.Tensor) -> Call:
    source, target = x.clone(), torch.empty_like(x)
    return lambda: target.copy_(source)


def _difference(x: torch.Tensor, got: object) -> str:
    """Return how `got` differs from the reference's bytes, "" when it does not."""
    if not isinstance(got, MXTensor):
        return f"must be an MXTensor, got {type(got).__name__}"
    codes, scales = reference.quantize_matrix(x, got.stored_k, QuantizeOptions())
    for role, want, have in (
        ("codes", codes, got.canonical_codes()),
        ("scales", scales, got.canonical_scales()),
    ):
        if count := int((want != have).sum()):
            return f"{count} bytes of {role} differ from the reference quantizer's"
    return ""


def _pair_difference(x: torch.Tensor, got: object) -> str:
    if not isinstance(got, MXPair):
        return f"must be an MXPair, got {type(got).__name__}"
    return _difference(x, got.along_k) or _difference(x.t(), got.along_m)


QUANTIZERS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        QuantizerVariant("quantize", "bf16 -> mxfp4 along K", _rowwise),
        QuantizerVariant("quantize_pair", "bf16 -> mxfp4 along K and along M", _pair),
        QuantizerVariant("torch_copy", "bf16 -> bf16", _copy),
        QuantizerVariant("torchao_to_mx", "bf16 -> mxfp4 along K", _torchao),
    )
}
"""Quantizers by name; a further one is one entry."""
