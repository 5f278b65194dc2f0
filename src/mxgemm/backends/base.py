"""What a backend is: it says whether it can, how exact it is, how it would, and then does it.

`check` and `plan` are pure: they import nothing heavy and touch no device, so that every
architecture's answers can be tested anywhere. Only `probe` looks at the machine and only `launch`
uses a device.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Literal, NoReturn, TypedDict, Unpack

import torch

from mxgemm import arguments
from mxgemm import epilogue as epilogue_module
from mxgemm.epilogue import Activation, EpilogueArgs
from mxgemm.errors import LayoutMismatch, UnsupportedProblem
from mxgemm.formats import MXFP4
from mxgemm.plain import PlainOperand
from mxgemm.problem import GemmProblem, OperandSpec
from mxgemm.quantizers import Quantization, QuantizeKeywords, quantization
from mxgemm.tensor import CANONICAL, MXTensor

Side = Literal["a", "b"]

BLOCK = MXFP4.block
FP32_UNIT = 2.0**-24
"""Rounding unit of FP32."""


class RejectionCode(StrEnum):
    """Why a backend says no; a shared vocabulary, so that tables and tests can group reasons.

    SETTING: a setting asks for what this machine lacks; then no other backend takes the problem
    unasked.
    """

    SETTING = "SETTING"
    ARCH = "ARCH"
    IMPORT = "IMPORT"
    VERSION = "VERSION"
    DEVICE = "DEVICE"
    FORMAT = "FORMAT"
    LAYOUT = "LAYOUT"
    ROTATION = "ROTATION"
    SHAPE = "SHAPE"
    DTYPE = "DTYPE"
    EPILOGUE = "EPILOGUE"
    NUMERICS = "NUMERICS"
    MEMORY = "MEMORY"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A reason as a value; `detail` says what is required, what was given and, where there is
    one, the way out.
    """

    code: RejectionCode
    detail: str

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Accumulation:
    """How a backend sums products, from which the error bound of its results follows.

    Attributes:
        significand_bits: of the accumulator: 24 for FP32.
        truncates: the accumulator truncates instead of rounding to nearest.
        promote_every: number of k that is summed there before the sum is added to an FP32 one; None
            for never.
        exact_blocks: products inside a block of 32 are summed exactly before the accumulator
            rounds.
    """

    significand_bits: int = 24
    truncates: bool = False
    promote_every: int | None = None
    exact_blocks: bool = False

    def gamma(self, k: int) -> float:
        """Return the factor of (|A| @ |B|.T) that bounds the error of a sum over k before any
        output rounding.

        To first order each addition loses at most one rounding unit of the magnitudes summed so
        far; the terms of second order are covered by 1 / (1 - n u). Products of E2M1 values are
        exact.
        """
        window = min(k, self.promote_every or k)
        additions = -(-window // BLOCK) if self.exact_blocks else window
        unit = 2.0 ** -(self.significand_bits - (1 if self.truncates else 0))
        total = additions * unit + (-(-k // window) if window < k else 0) * FP32_UNIT
        return total / (1 - total) if total < 1 else math.inf

    def exact_spread(self, k: int, largest: float = 6.0) -> int:
        """Return how many binades the two operands' scales may spread together so that any order of
        summation is exact.

        Products are multiples of 1/4 and at most largest^2, so a sum of P of them, of spread s, is
        an integer multiple of the unit below 4 largest^2 P 2^s. It must fit the accumulator between
        promotions and FP32 over all of k. Negative: never.

        Args:
            k: length of the contraction.
            largest: the largest |code value| that occurs.
        """
        window = min(k, self.promote_every or k)
        bits = [(24, k), (self.significand_bits, window)]
        return min(math.floor(p - math.log2(4 * largest**2 * max(terms, 1))) for p, terms in bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedOperand:
    """An operand in its backend's own form, made once by `GemmPlan.prepare_a` or `prepare_b`;
    opaque to everyone else.

    Attributes:
        backend: name of the backend that made it and alone can read it.
        side: "a" or "b".
        shape: logical (rows, k).
        stored_k: the contraction.
        source: the spec of what it was made from.
        prescale: factor that the elements carry.
        payload: the backend's buffers.
        nbytes: their size in bytes.
        device: where they are.
        spec: the spec that a problem with this operand holds.
    """

    backend: str
    side: Side
    shape: tuple[int, int]
    stored_k: int
    source: OperandSpec
    prescale: float
    payload: object
    nbytes: int
    device: torch.device
    spec: OperandSpec = field(init=False)

    buffers: ClassVar[tuple[torch.Tensor, ...]] = ()
    """None that a caller can reach; compare `MXTensor.buffers`."""

    def __post_init__(self) -> None:
        source = self.source
        spec = OperandSpec(source.format, source.layout, source.rotation, self.backend)
        object.__setattr__(self, "spec", spec)

    @classmethod
    def quantized(
        cls, source: Quantization, *, backend: str, side: Side, payload: object, nbytes: int
    ) -> PreparedOperand:
        """Return the prepared form, whose buffers are `payload`, of a matrix that was quantized
        straight to it.
        """
        rows, k = source.matrix.shape
        return cls(
            backend=backend,
            side=side,
            shape=(rows, k),
            stored_k=source.stored_k,
            source=OperandSpec(rotation=source.options.rotation),
            prescale=source.options.prescale_factor,
            payload=payload,
            nbytes=nbytes,
            device=source.matrix.device,
        )

    @classmethod
    def of(
        cls, operand: MXTensor, *, backend: str, side: Side, payload: object, nbytes: int
    ) -> PreparedOperand:
        """Return the prepared form of `operand` whose buffers are `payload`."""
        return cls(
            backend=backend,
            side=side,
            shape=operand.shape,
            stored_k=operand.stored_k,
            source=OperandSpec.of(operand),
            prescale=operand.prescale,
            payload=payload,
            nbytes=nbytes,
            device=operand.device,
        )


Operand = MXTensor | PreparedOperand | PlainOperand


class EpilogueKeywords(TypedDict, total=False):
    """The keywords of a call that say what happens on the way out; see `mxgemm.gemm`."""

    alpha: float
    beta: float
    c: torch.Tensor | None
    bias: torch.Tensor | None
    activation: str | Activation
    aux_out: torch.Tensor | None
    dact: str | Activation
    aux_in: torch.Tensor | None
    bias_grad: torch.Tensor | None


class Backend(ABC):
    """One way to compute the GEMM. Instances hold no state: what a call needs is in the plan.

    Attributes:
        name: what callers and reports call it.
        calls_torch: `launch` calls operators of torch, in which a gradient would be recorded.
        prepared_sides: the sides for which the backend has a form of its own.
    """

    name: ClassVar[str]
    calls_torch: ClassVar[bool] = True
    prepared_sides: ClassVar[frozenset[Side]] = frozenset()

    def automatic(self, problem: GemmProblem) -> bool:
        """Return whether the backend may be taken for `problem` without being named."""
        return True

    @abstractmethod
    def probe(self) -> Rejection | None:
        """Return why this process cannot use the backend (module, version, device), or None. May
        import; asked once.
        """

    @abstractmethod
    def check(self, problem: GemmProblem) -> Rejection | None:
        """Return why the backend cannot do `problem` on a machine that it can run on, or None.
        Pure.
        """

    @abstractmethod
    def accumulation(self, problem: GemmProblem) -> Accumulation:
        """Return how products are summed for `problem`."""

    @abstractmethod
    def plan(self, problem: GemmProblem) -> GemmPlan:
        """Return how `problem`, accepted by `check`, is done. Pure."""

    @abstractmethod
    def launch(
        self, plan: GemmPlan, a: Operand, b: Operand, out: torch.Tensor, args: EpilogueArgs
    ) -> None:
        """Compute D into `out`. Shapes, dtypes, layouts and devices are already as the plan's
        problem says; m, n, k > 0.
        """

    def prepare(self, plan: GemmPlan, operand: MXTensor, side: Side) -> PreparedOperand:
        """Return `operand` in this backend's own form, good for every m of this (n, k); called for
        `prepared_sides` only.
        """
        raise NotImplementedError

    def quantize(self, plan: GemmPlan, source: Quantization, side: Side) -> PreparedOperand:
        """Return what `prepare` makes of the quantized matrix, bit for bit; a backend that gets
        there in one step overrides it. Called for `prepared_sides` only.
        """
        return self.prepare(plan, source.tensor(), side)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmPlan:
    """How one problem is done: the backend, its configuration, and what it needs. Call it to run.

    Attributes:
        backend: who does it.
        problem: what.
        config: the backend's own choice (tile sizes, kernel, split); prints itself.
        workspace_bytes: device memory that a call allocates besides the output.
        summary: one line for people.
    """

    backend: Backend
    problem: GemmProblem
    config: object = None
    workspace_bytes: int = 0
    summary: str = ""

    def prepare_a(self, operand: MXTensor) -> PreparedOperand:
        """Return the first operand in the backend's own form.

        Raises:
            UnsupportedProblem: the backend has no such form.
        """
        self._check_form("prepare_a", "a", operand)
        return self.backend.prepare(self, operand, "a")

    def prepare_b(self, operand: MXTensor) -> PreparedOperand:
        """Return the second operand (a weight) in the backend's own form, good for every m of
        this (n, k).

        Raises:
            UnsupportedProblem: the backend has no such form.
        """
        self._check_form("prepare_b", "b", operand)
        return self.backend.prepare(self, operand, "b")

    def quantize_a(self, x: torch.Tensor, **options: Unpack[QuantizeKeywords]) -> PreparedOperand:
        """Return what `prepare_a` makes of `mxgemm.quantize(x, **options)`, the same bits, without
        the packed tensor in between where the backend can.

        Args:
            x: float32, bfloat16 or float16 [..., K].
            **options: as `mxgemm.quantize`, which has a layout besides.

        Raises:
            UnsupportedProblem: the backend has no form of its own for this side.
            TypeError, ValueError: as `mxgemm.quantize`.
        """
        return self._quantize(x, "a", options)

    def quantize_b(self, x: torch.Tensor, **options: Unpack[QuantizeKeywords]) -> PreparedOperand:
        """Return what `prepare_b` makes of `mxgemm.quantize(x, **options)`; as `quantize_a`."""
        return self._quantize(x, "b", options)

    def _quantize(self, x: torch.Tensor, side: Side, options: QuantizeKeywords) -> PreparedOperand:
        what = f"quantize_{side}"
        self._check_form(what, side, x)
        return self.backend.quantize(self, quantization(x, what, **options), side)

    def _check_form(self, what: str, side: Side, operand: MXTensor | torch.Tensor) -> None:
        """Raise unless the backend has a form of its own for this side."""
        if side not in self.backend.prepared_sides:
            got = repr(operand)
            if isinstance(operand, torch.Tensor):
                got = f"{operand.dtype} {tuple(operand.shape)}"
            raise UnsupportedProblem(
                f"{what} on {self.backend.name}: the backend has no prepared form of this operand, "
                f"got {got}"
            )

    def __call__(
        self,
        a: Operand | torch.Tensor,
        b: Operand,
        *,
        out: torch.Tensor | None = None,
        **epilogue: Unpack[EpilogueKeywords],
    ) -> torch.Tensor:
        """Compute D, checked like `mxgemm.gemm`, which documents the keywords; returns `out`, made
        when None.

        Raises:
            ValueError: the call asks for another epilogue or output dtype than the plan was made
            for. TypeError, LayoutMismatch: as `mxgemm.gemm`.
        """
        problem, a = self.problem, as_operand(a)
        call = arguments.bind(
            (problem.m, problem.n),
            a.device,
            prescale=a.prescale * b.prescale,
            operands=(a.buffers, b.buffers),
            out=out,
            out_dtype=problem.out_dtype if out is None else None,
            **epilogue,
        )
        same = call.epilogue is problem.epilogue or call.epilogue == problem.epilogue
        if not same or call.out_dtype != problem.out_dtype:
            raise ValueError(
                f"plan on {self.backend.name}: made for {problem.out_dtype} and "
                f"{problem.epilogue}, "
                f"got {call.out_dtype} and {call.epilogue}; make a plan for this call"
            )
        return self.run(a, b, call.output(), call.args)

    def run(self, a: Operand, b: Operand, out: torch.Tensor, args: EpilogueArgs) -> torch.Tensor:
        """Compute D into `out` and return it; everything must already be as the problem says.

        No gradient is recorded, whatever the tensors require: codes have none, and a graph through
        the bias alone would be taken for the whole.

        Raises:
            LayoutMismatch: an operand is not what the plan was made for.
        """
        problem = self.problem
        if not (
            self._fits("a", a, problem.m, problem.a) and self._fits("b", b, problem.n, problem.b)
        ):
            self._refuse(a, b)
        if problem.m == 0 or problem.n == 0 or problem.k == 0:
            self._run_empty(out, args)
        elif self.backend.calls_torch:
            with torch.no_grad():
                self.backend.launch(self, a, b, out, args)
        else:
            self.backend.launch(self, a, b, out, args)
        return out

    def _fits(self, side: Side, operand: Operand, rows: int, spec: OperandSpec) -> bool:
        """Return whether the plan was made for `operand`."""
        problem = self.problem
        if (
            operand.shape[0] != rows
            or operand.stored_k != problem.k
            or operand.device != problem.device.torch_device
        ):
            return False
        if isinstance(operand, PreparedOperand):
            return operand.side == side and (operand.spec is spec or operand.spec == spec)
        return spec.describes(operand)

    def _refuse(self, a: Operand, b: Operand) -> NoReturn:
        """Raise LayoutMismatch about the first operand that the plan was not made for."""
        problem = self.problem
        first = not self._fits("a", a, problem.m, problem.a)
        side: Side = "a" if first else "b"
        operand = a if first else b
        if isinstance(operand, PreparedOperand) and operand.side != side:
            raise LayoutMismatch(
                f"plan on {self.backend.name}: {side} must be prepared by prepare_{side}, got an "
                f"operand prepared as {operand.side}; prepare it anew"
            )
        spec, rows = (problem.a, problem.m) if first else (problem.b, problem.n)
        raise LayoutMismatch(
            f"plan on {self.backend.name}: {side} must be {spec} with {rows} rows and stored k "
            f"{problem.k} on {problem.device.torch_device}, got {operand!r}; make a plan for this "
            f"operand"
        )

    @torch.no_grad()
    def _run_empty(self, out: torch.Tensor, args: EpilogueArgs) -> None:
        """Compute a D without elements, or one whose product is empty sums."""
        problem = self.problem
        if problem.m and problem.n:
            product = torch.zeros(problem.m, problem.n, dtype=torch.float32, device=out.device)
            epilogue_module.apply(product, problem.epilogue, args, out)
        elif args.bias_grad is not None:
            args.bias_grad.zero_()


def spec_of(operand: Operand) -> OperandSpec:
    """Return the spec of an operand of either kind."""
    return operand.spec if isinstance(operand, PreparedOperand) else OperandSpec.of(operand)


def as_operand(a: Operand | torch.Tensor) -> Operand:
    """Return `a`, a plain tensor as a PlainOperand."""
    return PlainOperand(a) if isinstance(a, torch.Tensor) else a


def quantized_only(problem: GemmProblem) -> Rejection | None:
    """Return a FORMAT rejection if A is in high precision; for backends that multiply codes."""
    if not problem.a.is_plain:
        return None
    return Rejection(
        RejectionCode.FORMAT,
        f"a must be {MXFP4.name}, got {problem.a}; mxgemm.quantize(x) makes one",
    )


def no_prepared_forms(problem: GemmProblem) -> Rejection | None:
    """Return a LAYOUT rejection if an operand is a prepared form; for backends that have none."""
    for side, spec in (("a", problem.a), ("b", problem.b)):
        if spec.prepared_by is not None:
            return Rejection(
                RejectionCode.LAYOUT,
                f"{side} must be an MXTensor, got a form prepared by {spec.prepared_by}",
            )
    return None


def canonical_only(problem: GemmProblem) -> Rejection | None:
    """Return a LAYOUT rejection unless both operands are canonical MXTensors; for backends that
    read nothing else.
    """
    rejection = quantized_only(problem) or no_prepared_forms(problem)
    if rejection is not None:
        return rejection
    for side, spec in (("a", problem.a), ("b", problem.b)):
        if spec.layout != CANONICAL:
            return Rejection(
                RejectionCode.LAYOUT,
                f"{side} must be {CANONICAL}, got {spec.layout}; pass relayout=True or "
                f"call .relayout()",
            )
    return None
