"""Who is measured: backends in their forms, quantizers and peers, each a `Variant` behind a name.

    <backend>                    canonical operands
    <backend>/prepared           B in the backend's own form, made once
    <backend>/<layout>           both operands in that layout of codes or of scales
    <backend>/<codes>+<scales>   both operands in those two layouts
    <peer>, <anchor>             see `mxgemm.bench.peers`, `.quantizers` and `.anchors`

A variant gives `Work` for one stage of one case, or raises the reason why not. A backend is asked
by name, so that it is never replaced by another.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from mxgemm import dispatch, layouts
from mxgemm.backends.base import GemmPlan, PreparedOperand
from mxgemm.bench.cases import Case
from mxgemm.bench.error_bound import Expected
from mxgemm.bench.errors import SuiteError, Unavailable
from mxgemm.bench.operands import Operands
from mxgemm.devices import DeviceSpec
from mxgemm.epilogue import EpilogueArgs
from mxgemm.formats import MXFP4
from mxgemm.layouts.base import round_up
from mxgemm.problem import GemmProblem, OperandSpec
from mxgemm.quantizers import quantize
from mxgemm.tensor import CANONICAL, MXTensor, OperandLayout

PREPARED = "prepared"

Call = Callable[[], object]
"""One timed execution; a GEMM returns its output."""


@runtime_checkable
class ModelsTime(Protocol):
    """What a backend of an emulated device adds to be benchmarked: a model of its launch.

    Attributes:
        model_ignores: in what launches may differ of which the model knows nothing.
    """

    model_ignores: str

    def modelled_ms(self, plan: GemmPlan) -> float:
        """Return the modelled time of one launch in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one variant does in one stage of a case.

    Attributes:
        make: returns a call with buffers of its own, so that cold timings rotate among several.
        bytes_moved: operands read and output written by one call, each once.
        plan: the backend's summary of how.
        layout: how the operands are stored.
        expected: returns what the output must be; None where `check` decides or nothing can be
            checked.
        check: returns what is wrong with the first call's result, "" for nothing; may be None.
        modelled_ms: time by a model where the device is emulated; then nothing is timed.
        model_ignores: what that model does not look at.
    """

    make: Callable[[], Call]
    bytes_moved: int
    plan: str = ""
    layout: str = ""
    expected: Callable[[], Expected] | None = None
    check: Callable[[object], str] | None = None
    modelled_ms: float | None = None
    model_ignores: str = ""


class Variant(ABC):
    """One contender. `computes` says in what numerics, since peers solve problems of their own."""

    name: str
    backend: str
    computes: str

    @abstractmethod
    def stages(self, case: Case) -> tuple[str, ...]:
        """Return the stages that the variant knows for such a case; empty for none."""

    @abstractmethod
    def work(self, case: Case, operands: Operands, stage: str, device: DeviceSpec) -> Work:
        """Return what is timed.

        Raises:
            Unavailable, UnsupportedProblem, BackendUnavailable: why it cannot be.
        """


class BackendVariant(Variant):
    """A backend of `mxgemm.dispatch` on operands in one form."""

    computes = "mxfp4 x mxfp4"

    def __init__(self, backend: str, form: str = "") -> None:
        self.backend = dispatch.by_name(backend).name
        self.name = f"{backend}/{form}" if form else backend
        self.prepared = form == PREPARED
        self.layout = CANONICAL if self.prepared or not form else operand_layout(form)

    def stages(self, case: Case) -> tuple[str, ...]:
        if case.is_quantize:
            return ()
        extra = ("relayout",) if self.layout != CANONICAL else ()
        return ("gemm", *extra, *(("prepare",) if self.prepared else ()), "total")

    def work(self, case: Case, operands: Operands, stage: str, device: DeviceSpec) -> Work:
        if device.emulated and stage != "gemm":
            raise Unavailable(f"{self.name}: {device} has a model of the gemm alone, got {stage}")
        forms = functools.cache(
            lambda: (operands.a.relayout(self.layout), operands.b.relayout(self.layout))
        )
        a_bytes, b_bytes = (_stored_bytes(self.layout, rows, case.k) for rows in (case.m, case.n))
        if stage == "relayout":
            return Work(
                make=lambda: _relayout_call(operands.a, self.layout),
                bytes_moved=operands.a.nbytes + a_bytes,
                layout=str(self.layout),
            )
        dtype = getattr(torch, case.out_dtype)
        spec = OperandSpec(layout=self.layout)
        problem = GemmProblem(
            m=case.m,
            n=case.n,
            k=round_up(case.k, MXFP4.block),
            a=spec,
            b=spec,
            out_dtype=dtype,
            device=device,
        )
        plan = dispatch.plan(problem, backend=self.backend)
        if stage == "prepare":
            return Work(
                make=lambda: _prepare_call(plan, forms()[1]),
                bytes_moved=b_bytes + plan.prepare_b(forms()[1]).nbytes,
                plan=plan.summary,
                layout=PREPARED,
            )
        weight_bytes = b_bytes
        if self.prepared:
            # A model of time looks at no data: most emulated products are never run.
            weight_bytes = b_bytes if device.emulated else plan.prepare_b(forms()[1]).nbytes
            problem = replace(problem, b=replace(problem.b, prepared_by=self.backend))
            plan = dispatch.plan(problem, backend=self.backend)
        total = stage == "total"
        out_bytes = case.m * case.n * dtype.itemsize
        source_bytes = case.m * case.k * operands.source_a.element_size() if total else 0
        modelled_ms, model_ignores = _model(plan, device)
        return Work(
            make=lambda: self._gemm_call(
                plan, *forms(), dtype, operands.source_a if total else None
            ),
            bytes_moved=a_bytes + weight_bytes + out_bytes + source_bytes,
            plan=plan.summary,
            layout=PREPARED if self.prepared else str(self.layout),
            expected=lambda: operands.expected(plan.backend.accumulation(problem)),
            modelled_ms=modelled_ms,
            model_ignores=model_ignores,
        )

    def _gemm_call(
        self,
        plan: GemmPlan,
        a: MXTensor,
        b: MXTensor,
        dtype: torch.dtype,
        source: torch.Tensor | None,
    ) -> Call:
        """Return a call on copies; with `source`, one that quantizes it first."""
        a = a.clone()
        weight = plan.backend.prepare(plan, b, "b") if self.prepared else b.clone()
        out = torch.full((a.rows, b.rows), float("nan"), dtype=dtype, device=a.device)
        args = EpilogueArgs(alpha=1 / (a.prescale * b.prescale))
        if source is None:
            return lambda: plan.run(a, weight, out, args)
        copy = source.clone()
        pad = a.stored_k != a.k

        def total() -> torch.Tensor:
            quantized = quantize(copy, layout=self.layout, pad=pad)
            return plan.run(quantized, weight, out, args)

        return total


def operand_layout(form: str) -> OperandLayout:
    """Return the layout of both operands that a variant's name asks for.

    Raises:
        SuiteError: no layout of that name.
    """
    first, _, second = form.partition("+")
    try:
        if second:
            return OperandLayout.of(first, second)
        holds = layouts.get(first).holds
    except ValueError as error:
        raise SuiteError(
            f"variant form {form!r}: must be 'prepared' or a layout; {error}"
        ) from None
    return OperandLayout.of(scales=first) if "scales" in holds else OperandLayout.of(codes=first)


def get(name: str) -> Variant:
    """Return the variant that a suite or a command line names.

    Raises:
        SuiteError: neither a peer, a quantizer or an anchor, nor a backend with a known form.
    """
    from mxgemm.bench.anchors import FROZEN, LOOPS, FrozenBuild
    from mxgemm.bench.peers import PEERS
    from mxgemm.bench.quantizers import QUANTIZERS

    if name.startswith(FROZEN):
        return FrozenBuild(Path(name.removeprefix(FROZEN)))
    for registry in (PEERS, QUANTIZERS, LOOPS):
        if name in registry:
            return registry[name]
    backend, _, form = name.partition("/")
    known = [b.name for b in dispatch.BACKENDS]
    if backend not in known:
        raise SuiteError(
            f"variant: must be one of {', '.join([*PEERS, *QUANTIZERS, *LOOPS])}, {FROZEN}<file>, "
            f"or one of the backends {', '.join(known)} with /prepared or /<layout> or without, "
            f"got {name!r}"
        )
    return BackendVariant(backend, form)


def _relayout_call(source: MXTensor, layout: OperandLayout) -> Call:
    source = source.clone()
    return lambda: source.relayout(layout)


def _prepare_call(plan: GemmPlan, b: MXTensor) -> Callable[[], PreparedOperand]:
    b = b.clone()
    return lambda: plan.prepare_b(b)


def _stored_bytes(layout: OperandLayout, rows: int, k: int) -> int:
    """Return the bytes of a quantized matrix's two buffers."""
    blocks = -(-k // MXFP4.block)
    codes = layout.codes.storage_shape(rows, blocks * MXFP4.block // 2)
    return math.prod(codes) + math.prod(layout.scales.storage_shape(rows, blocks))


def _model(plan: GemmPlan, device: DeviceSpec) -> tuple[float | None, str]:
    """Return a model's time of a launch on an emulated device and what the model ignores; None and
    nothing where the device is real.

    Raises:
        Unavailable: the backend runs emulated but has no model of time.
    """
    if not device.emulated:
        return None, ""
    if not isinstance(plan.backend, ModelsTime):
        raise Unavailable(
            f"{plan.backend.name} on {device}: emulated devices give modelled rows only, "
            "got a backend without modelled_ms(plan)"
        )
    return plan.backend.modelled_ms(plan), plan.backend.model_ignores
