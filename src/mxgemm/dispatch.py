"""Which backend does a problem: the list, the choice, the reasons, and the cache of plans.

The order of `BACKENDS` is the priority. A backend that the caller names is never replaced by
another; without a name the first that accepts is taken, and logged once per problem.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from mxgemm import settings
from mxgemm.backends.base import Backend, GemmPlan, Rejection, RejectionCode
from mxgemm.backends.cuda_hopper import CudaHopper, CudaHopperCublas
from mxgemm.backends.flydsl_gfx1250 import FlyDSLGfx1250
from mxgemm.backends.native_cpu import NativeCpu
from mxgemm.backends.reference import Reference, ReferenceFP32
from mxgemm.backends.triton_dot_scaled import TritonDotScaled
from mxgemm.errors import BackendUnavailable, UnsupportedProblem
from mxgemm.problem import GemmProblem

logger = logging.getLogger("mxgemm")

BACKENDS: tuple[Backend, ...] = (
    CudaHopper(),
    CudaHopperCublas(),
    FlyDSLGfx1250(),
    TritonDotScaled(),
    NativeCpu(),
    Reference(),
    ReferenceFP32(),
)
"""Every backend, fastest first on the devices it accepts."""

UNAVAILABLE = (
    RejectionCode.IMPORT,
    RejectionCode.VERSION,
    RejectionCode.ARCH,
    RejectionCode.SETTING,
)
"""Reasons that lie with this process and not with the problem."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One backend's answer to a problem: the rejection, or the plan."""

    backend: Backend
    rejection: Rejection | None
    plan: GemmPlan | None


class _Cache:
    """The two caches of the process: backends that `probe` found usable, and plans per (problem,
    name); both per text of the settings that these depend on.
    """

    def __init__(self) -> None:
        self.usable: set[tuple[str, tuple[str, ...]]] = set()
        self.plans: dict[tuple[GemmProblem, str | None, tuple[str, ...]], GemmPlan] = {}

    def clear(self) -> None:
        """Forget everything, for tests and after a device has changed."""
        self.usable.clear()
        self.plans.clear()


cache = _Cache()


def by_name(name: str) -> Backend:
    """Return the backend called `name`.

    Raises:
        ValueError: there is none; the message lists those that exist.
    """
    for backend in BACKENDS:
        if backend.name == name:
            return backend
    known = ", ".join(backend.name for backend in BACKENDS)
    raise ValueError(f"backend: must be one of {known}, got {name!r}")


def probe(backend: Backend) -> Rejection | None:
    """Return why this process cannot use `backend`, or None. A backend that can be used is asked
    once for given settings, one that cannot each time: what it lacks may come while we run.
    """
    key = (backend.name, settings.of_plans())
    if key in cache.usable:
        return None
    rejection = backend.probe()
    if rejection is None:
        cache.usable.add(key)
    return rejection


def explain(problem: GemmProblem) -> list[Verdict]:
    """Return every backend's verdict on `problem`, in order of priority; nothing is launched.

    Example:
        >>> import mxgemm
        >>> problem = mxgemm.GemmProblem(m=8, n=16, k=64, device=mxgemm.DeviceSpec.parse("gfx950"))
        >>> {v.backend.name: v for v in mxgemm.explain(problem)}["reference"].plan.summary
        'torch, FP64'
    """
    verdicts = []
    for backend in BACKENDS:
        rejection = _rejection(backend, problem)
        plan = backend.plan(problem) if rejection is None else None
        verdicts.append(Verdict(backend, rejection, plan))
    return verdicts


def plan(problem: GemmProblem, *, backend: str | None = None) -> GemmPlan:
    """Return the plan for `problem` on the backend of that name, or on the first that accepts;
    cached on the problem.

    The setting MXGEMM_BACKEND names one where the argument does not.

    Raises:
        ValueError: an unknown name.
        BackendUnavailable: the named backend cannot run in this process, or a setting asks for
            what this machine lacks.
        UnsupportedProblem: the named backend rejects the problem, or all do; the message holds
        every reason.

    Example:
        >>> import mxgemm
        >>> problem = mxgemm.GemmProblem(m=8, n=16, k=64, device=mxgemm.DeviceSpec.parse("cpu"))
        >>> mxgemm.plan(problem, backend="reference").summary
        'torch, FP64'
    """
    name = backend if backend is not None else settings.BACKEND.read() or None
    key = (problem, name, settings.of_plans())
    found = cache.plans.get(key)
    if found is None:
        found = _select(problem, name)
        cache.plans[key] = found
        logger.info("%s: %s (%s)", problem, found.backend.name, found.summary)
    return found


def accepts(problem: GemmProblem, *, backend: str | None = None) -> bool:
    """Return whether `plan` with these arguments would find a backend."""
    try:
        plan(problem, backend=backend)
    except (BackendUnavailable, UnsupportedProblem):
        return False
    return True


def _rejection(backend: Backend, problem: GemmProblem) -> Rejection | None:
    """Return the reason against `backend`: of the problem first, since that one says more."""
    return _rotations(problem) or backend.check(problem) or probe(backend)


def _rotations(problem: GemmProblem) -> Rejection | None:
    """Return a ROTATION rejection unless the operands' rotations cancel: no backend can mend
    that.
    """
    if problem.a.rotation == problem.b.rotation:
        return None
    return Rejection(
        RejectionCode.ROTATION,
        f"operands must carry the same rotation, else it does not cancel, got {problem.a.rotation} "
        f"and {problem.b.rotation}; quantize both with one Rotation",
    )


def _select(problem: GemmProblem, name: str | None) -> GemmPlan:
    if name is not None:
        backend = by_name(name)
        rejection = _rejection(backend, problem)
        if rejection is None:
            return backend.plan(problem)
        error = BackendUnavailable if rejection.code in UNAVAILABLE else UnsupportedProblem
        raise error(
            f"gemm on {name}: {rejection}, for {problem}; with backend unset another may take it"
        )
    reasons = []
    for backend in BACKENDS:
        if not backend.automatic(problem):
            reasons.append(f"  {backend.name}: only when named")
            continue
        rejection = _rejection(backend, problem)
        if rejection is None:
            return backend.plan(problem)
        if rejection.code is RejectionCode.SETTING:
            raise BackendUnavailable(f"gemm on {backend.name}: {rejection}, for {problem}")
        reasons.append(f"  {backend.name}: {rejection}")
    raise UnsupportedProblem(f"gemm: no backend takes {problem}:\n" + "\n".join(reasons))
