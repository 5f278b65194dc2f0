"""native_cpu on every instruction set, path and thread count: the same exact bits, the declared
bound, and the corners that the conformance suite does not reach.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator

import pytest
import torch

import mxgemm
import oracles
from mxgemm import accuracy, dispatch
from mxgemm.backends.base import Accumulation, GemmPlan, RejectionCode
from mxgemm.backends.native_cpu import NativeConfig, NativeCpu
from mxgemm.epilogue import IDENTITY, NO_ARGS, Activation, Epilogue, EpilogueArgs
from mxgemm.errors import BackendUnavailable
from mxgemm.matmul import problem_for
from mxgemm.runtime import native_cpu as runtime
from mxgemm.tensor import MXTensor

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(
        not runtime.available_isas(), reason=str(NativeCpu().probe() or "the extension is there")
    ),
]

ISAS = runtime.available_isas()
FEW_ROWS, TILE, WIDE, ROW_MAJOR = 1, 2, 3, 4
PATHS = {"few_rows": FEW_ROWS, "tile": TILE, "wide": WIDE, "row_major": ROW_MAJOR}
ACCUMULATION = Accumulation(exact_blocks=True)

SHAPES = (
    (1, 1, 32),
    (1, 300, 1024),
    (3, 17, 96),
    (6, 48, 1056),
    (7, 49, 2080),
    (25, 33, 160),
    (50, 97, 1184),
)

every_isa = pytest.mark.parametrize("isa", ISAS)
every_path = pytest.mark.parametrize("path", PATHS)


@pytest.fixture
def threads() -> Iterator[None]:
    """Restore the number of threads after a test that changes it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def plan_for(
    a: MXTensor,
    b: MXTensor,
    isa: str,
    path: str | None = None,
    *,
    epilogue: Epilogue = IDENTITY,
    dtype: torch.dtype = torch.float32,
) -> GemmPlan:
    plan = NativeCpu().plan(problem_for(a, b, out_dtype=dtype, epilogue=epilogue))
    return dataclasses.replace(plan, config=NativeConfig(isa, PATHS[path] if path else 0))


def compute(
    plan: GemmPlan, a: MXTensor, b: MXTensor, args: EpilogueArgs = NO_ARGS, *, prepare: bool = False
) -> torch.Tensor:
    operand = b
    if prepare:
        operand = plan.prepare_b(b)
        problem = dataclasses.replace(plan.problem, b=operand.spec)
        plan = dataclasses.replace(plan, problem=problem)
    out = torch.full((a.rows, b.rows), torch.nan, dtype=plan.problem.out_dtype)
    return plan.run(a, operand, out, args)


def reference(a: MXTensor, b: MXTensor) -> torch.Tensor:
    return mxgemm.gemm(a, b, out_dtype=torch.float32, backend="reference")


def scaled(rows: int, k: int, seed: int, low: int, high: int) -> MXTensor:
    """Random codes with scale bytes uniform in low..high."""
    generator = torch.Generator().manual_seed(seed)
    return oracles.random_operand(rows, k, generator, scales=(low, high))


def with_scales(x: MXTensor, scales: torch.Tensor) -> MXTensor:
    return dataclasses.replace(x, scales=scales.to(torch.uint8))


@every_isa
@every_path
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_exact_regime_gives_the_same_bits(
    isa: str, path: str, shape: tuple[int, int, int], threads: None
) -> None:
    m, n, k = shape
    a, b = oracles.exact_operands(m, n, k, ACCUMULATION, seed=m + n)
    right = reference(a, b)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        for prepare in (False, True):
            out = compute(plan_for(a, b, isa, path), a, b, prepare=prepare)
            oracles.assert_same_bits(out, right)


@every_isa
@every_path
@pytest.mark.parametrize("spread", [0, 2, 20], ids="spread{}".format)
@pytest.mark.parametrize("shape", [(9, 70, 1056), (61, 130, 3104)], ids=str)
def test_random_regime_stays_within_the_declared_bound(
    isa: str, path: str, spread: int, shape: tuple[int, int, int], threads: None
) -> None:
    m, n, k = shape
    a, b = scaled(m, k, 1, 127 - spread, 127 + spread), scaled(n, k, 2, 127 - spread, 127 + spread)
    product, magnitude = accuracy.exact_product(a, b)
    bound = accuracy.product_bound(magnitude, k, ACCUMULATION)
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(compute(plan_for(a, b, isa, path), a, b))
    oracles.assert_within(results[0], product, bound)
    oracles.assert_same_bits(results[1], results[0])
    oracles.assert_same_bits(results[2], results[0])


@every_isa
@every_path
def test_every_pair_of_scale_bytes_gives_the_once_rounded_fp64_product(isa: str, path: str) -> None:
    """All 255 x 255 finite pairs: exponents far beyond FP32's on both sides, subnormal results."""
    generator = torch.Generator().manual_seed(5)
    bytes_ = torch.arange(255)
    a = oracles.random_operand(255, 64, generator)
    b = oracles.random_operand(255, 64, generator)
    a, b = (with_scales(x, bytes_[:, None].expand(255, 2)) for x in (a, b))
    product, _ = accuracy.exact_product(a, b)
    oracles.assert_same_bits(compute(plan_for(a, b, isa, path), a, b), product.float())


@every_isa
@every_path
def test_extreme_blocks_beside_ordinary_ones_are_summed_in_fp64(isa: str, path: str) -> None:
    """Bytes 0 and 254 in one row: 2^-127 and 2^127 meet their opposites and each other."""
    a, b = scaled(8, 128, 1, 127, 127), scaled(20, 128, 2, 127, 127)
    a.scales[2] = torch.tensor([0, 254, 127, 127])
    b.scales[3] = torch.tensor([254, 0, 127, 127])
    b.scales[4] = torch.tensor([254, 254, 0, 0])
    b.scales[5] = 0
    product, magnitude = accuracy.exact_product(a, b)
    out = compute(plan_for(a, b, isa, path), a, b)
    finite = product.float().isfinite()
    assert not bool(finite.all())
    assert torch.equal(out.isinf(), ~finite)
    oracles.assert_within(
        torch.where(finite, out, 0.0),
        torch.where(finite, product, 0.0),
        torch.where(finite, accuracy.product_bound(magnitude, 128, ACCUMULATION), 0.0),
    )


@every_isa
@every_path
def test_nan_blocks_poison_their_row_and_column_and_nothing_else(isa: str, path: str) -> None:
    a, b = scaled(30, 96, 1, 120, 122), scaled(70, 96, 2, 120, 122)
    right = reference(a, b)
    a.scales[[0, 13, 29], [0, 1, 2]] = 255
    b.scales[[5, 48, 69], [2, 0, 1]] = 255
    right[[0, 13, 29]] = torch.nan
    right[:, [5, 48, 69]] = torch.nan
    for prepare in (False, True):
        out = compute(plan_for(a, b, isa, path), a, b, prepare=prepare)
        oracles.assert_same_bits(out, right)


@every_isa
@every_path
def test_zero_blocks_count_for_nothing_whatever_their_scale(isa: str, path: str) -> None:
    """Zeros of either sign under bytes 0 and 254 neither widen a range nor change a bit."""
    a, b = oracles.exact_operands(20, 50, 2080, ACCUMULATION, seed=9)
    for operand in (a, b):
        operand.codes[::3, :16] = 0x88
        operand.codes[1::3, 32:48] = 0
        operand.scales[::3, 0] = 254
        operand.scales[1::3, 2] = 0
        operand.codes[4] = 0x80
    oracles.assert_same_bits(compute(plan_for(a, b, isa, path), a, b), reference(a, b))


HEAVY_TAILED = ("one_block", "some_blocks", "most_blocks", "channels", "row_and_column")


def heavy_tailed(kind: str, operand: MXTensor, seed: int) -> MXTensor:
    """Scales of which some stand out: of single blocks, of whole K blocks, of one row."""
    generator = torch.Generator().manual_seed(seed)
    scales = operand.scales.clone()
    if kind == "one_block":
        scales[len(scales) // 2, 40] = 140
    elif kind == "channels":
        scales[:, torch.randperm(scales.shape[1], generator=generator)[: scales.shape[1] // 4]] += 6
    elif kind == "row_and_column":
        scales[3] = torch.randint(100, 150, scales[3].shape, generator=generator).byte()
    else:
        share = 0.02 if kind == "some_blocks" else 0.6
        picked = torch.rand(scales.shape, generator=generator) < share
        offsets = torch.randint(-9, 10, scales.shape, generator=generator)
        scales = torch.where(picked, scales.int() + offsets, scales.int())
    return with_scales(operand, scales)


@every_isa
@pytest.mark.parametrize("kind", HEAVY_TAILED)
@pytest.mark.parametrize("k", [2048, 1504], ids="k{}".format)
def test_blocks_out_of_line_stay_within_the_bound(
    isa: str, kind: str, k: int, threads: None
) -> None:
    """Whatever path single blocks of a group take, every element keeps the declared bound and its
    bits for any number of threads and for a prepared B.
    """
    a = heavy_tailed(kind, scaled(29, k, 3, 126, 128), 5)
    b = heavy_tailed(kind, scaled(100, k, 4, 126, 128), 6)
    product, magnitude = accuracy.exact_product(a, b)
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        plan = plan_for(a, b, isa, "tile")
        results += [compute(plan, a, b, prepare=prepare) for prepare in (False, True)]
    bound = accuracy.product_bound(magnitude, k, ACCUMULATION)
    oracles.assert_within(results[0], product, bound)
    for result in results[1:]:
        oracles.assert_same_bits(result, results[0])


@every_isa
@pytest.mark.parametrize("spread", [3, 4, 8, 11], ids="spread{}".format)
def test_scales_beyond_a_window_are_exact_where_sums_are(isa: str, spread: int) -> None:
    """Codes of at most 1/2 leave FP32 room for scales that no window holds, of rows or columns."""
    k, largest = 1024, 0.5
    for wide_a in (True, False):
        generator = torch.Generator().manual_seed(spread)
        ranges = ((127 - spread, 127), (127, 127))
        of_a, of_b = ranges if wide_a else ranges[::-1]
        a = oracles.random_operand(20, k, generator, largest=largest, scales=of_a)
        b = oracles.random_operand(70, k, generator, largest=largest, scales=of_b)
        assert spread <= ACCUMULATION.exact_spread(k, largest)
        oracles.assert_same_bits(compute(plan_for(a, b, isa, "tile"), a, b), reference(a, b))


EPILOGUES = {
    "bias_gelu_aux": {"activation": "gelu", "bias": 1, "aux_out": 1},
    "gelu_tanh_c": {"activation": "gelu_tanh", "c": 1, "beta": 0.5, "alpha": 0.3},
    "dgelu_bias_grad": {"dact": "gelu", "aux_in": 1, "bias_grad": 1},
    "dgelu_tanh_c_bias_grad": {"dact": "gelu_tanh", "aux_in": 1, "bias_grad": 1, "c": 1, "beta": 2},
    "drelu": {"dact": "relu", "aux_in": 1, "alpha": -1.5},
    "relu_bias": {"activation": "relu", "bias": 1},
}


@every_isa
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("m", [5, 50])
def test_epilogues_are_within_the_bound_and_independent_of_threads(
    isa: str, name: str, dtype: torch.dtype, m: int, threads: None
) -> None:
    n, k = 75, 160
    a, b = scaled(m, k, 1, 120, 126), scaled(n, k, 2, 120, 126)
    generator = torch.Generator().manual_seed(3)

    def values(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator).to(dtype)

    spec = dict(EPILOGUES[name])
    tensors = {
        key: values(n) if key == "bias" else values(m, n + 5)[:, :n]
        for key in ("bias", "c", "aux_in", "aux_out")
        if spec.pop(key, None)
    }
    if spec.pop("bias_grad", None):
        tensors["bias_grad"] = torch.full((n,), torch.nan)
    args = EpilogueArgs(alpha=spec.get("alpha", 1.0), beta=spec.get("beta", 0.0), **tensors)
    epilogue = Epilogue(
        has_alpha=args.alpha != 1,
        activation=Activation(spec.get("activation", "none")),
        dact=Activation(spec.get("dact", "none")),
        **{key: dtype for key in ("bias", "c", "aux_in", "aux_out") if key in tensors},
        bias_grad="bias_grad" in tensors,
    )
    plan = plan_for(a, b, isa, epilogue=epilogue, dtype=dtype)
    torch.set_num_threads(1)
    out = compute(plan, a, b, args)
    exact, bound = oracles.expected(a, b, epilogue, args, ACCUMULATION)
    oracles.assert_within(out, exact, bound)
    first = None
    if args.bias_grad is not None:
        first = args.bias_grad.clone()
        limit = bound.sum(0) + Accumulation().gamma(m) * (exact.abs() + bound).sum(0)
        oracles.assert_within(first, exact.sum(0), limit)
    torch.set_num_threads(2)
    oracles.assert_same_bits(compute(plan, a, b, args), out)
    if first is not None and args.bias_grad is not None:
        oracles.assert_same_bits(args.bias_grad, first)


@every_isa
def test_gelu_is_accurate_over_its_whole_range(isa: str) -> None:
    """A product of 1 times alpha puts any z into the epilogue; far tails included."""
    z = torch.cat((torch.linspace(-14, 9, 4001), torch.tensor([0.0, 1e-30, -1e-30, 50.0, -50.0])))
    a, b = mxgemm.quantize(torch.zeros(1, 32)), mxgemm.quantize(torch.zeros(len(z), 32))
    wide = z.double()
    for activation in (Activation.GELU, Activation.GELU_TANH):
        epilogue = Epilogue(bias=torch.float32, activation=activation)
        plan = plan_for(a, b, isa, epilogue=epilogue)
        out = compute(plan, a, b, EpilogueArgs(bias=z))[0].double()
        approximate = "none" if activation is Activation.GELU else "tanh"
        right = torch.nn.functional.gelu(wide, approximate=approximate)
        # torch's own FP64 gelu cancels in the tail; below, compare with its absolute error.
        allowed = right.abs() * 2.0**-23 + wide.abs() * 2.0**-52
        assert bool(((out - right).abs() <= allowed).all()), activation


@every_isa
@every_path
def test_outputs_may_be_strided(isa: str, path: str) -> None:
    a, b = oracles.exact_operands(11, 37, 128, ACCUMULATION, seed=2)
    frame = torch.full((11, 2, 40), torch.nan)
    out = frame[:, 1, :37]
    plan_for(a, b, isa, path).run(a, b, out, NO_ARGS)
    oracles.assert_same_bits(out, reference(a, b))
    assert bool(frame[:, 0].isnan().all())
    assert bool(frame[:, 1, 37:].isnan().all())


@every_isa
def test_addresses_beyond_two_to_the_31(isa: str) -> None:
    """Rows of codes and of D lie 2^30 elements apart; the memory between is never touched."""
    m, stride = 4, 1 << 30
    a, b = oracles.exact_operands(m, 20, 64, ACCUMULATION, seed=4)
    codes = torch.empty(m * stride, dtype=torch.uint8).as_strided((m, 32), (stride, 1))
    codes.copy_(a.codes)
    out = torch.empty(m * stride, dtype=torch.bfloat16).as_strided((m, 20), (stride, 1))
    matrices = [
        (x.data_ptr(), x.stride(0), y.scales.data_ptr(), 2) for x, y in ((codes, a), (b.codes, b))
    ]
    extras = (1.0, 0.0, 0, 0, None, None, None, None, 0, 1, 0)
    runtime.module().gemm(runtime.kernels(isa), m, 20, 2, *matrices, runtime.plane(out), *extras)
    oracles.assert_same_bits(out.contiguous(), reference(a, b).bfloat16())


@every_isa
def test_one_prepared_form_serves_every_number_of_rows(isa: str) -> None:
    _, b = oracles.exact_operands(1, 90, 1056, ACCUMULATION, seed=8)
    prepared = plan_for(b, b, isa).prepare_b(b)
    assert prepared.nbytes < 0.6 * 96 * 1056
    for m in (1, 2, 7, 40, 41, 130):
        a, _ = oracles.exact_operands(m, 1, 1056, ACCUMULATION, seed=m)
        plan = plan_for(a, b, isa)
        plan = dataclasses.replace(plan, problem=dataclasses.replace(plan.problem, b=prepared.spec))
        out = plan.run(a, prepared, torch.full((m, 90), torch.nan), NO_ARGS)
        oracles.assert_same_bits(out, reference(a, b))


def test_an_unknown_instruction_set_is_rejected_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXGEMM_CPU_ISA", "mmx")
    rejection = NativeCpu().probe()
    assert rejection is not None
    assert rejection.code is RejectionCode.SETTING
    assert "got 'mmx'" in rejection.detail
    assert all(isa in rejection.detail for isa in ISAS)


@pytest.mark.parametrize("isa", ["mmx", *(isa for isa in runtime.built_isas() if isa not in ISAS)])
def test_an_instruction_set_that_is_not_there_is_an_error_whoever_is_asked(
    isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other backend and no other quantizer takes over, the message names what is there, and
    plans made before do not hide it; once the setting is mended all is well.
    """
    a, b = mxgemm.quantize(torch.ones(2, 32)), mxgemm.quantize(torch.ones(3, 32))
    names: tuple[str | None, ...] = (None, "native_cpu")
    right = [mxgemm.gemm(a, b, backend=backend) for backend in names]
    monkeypatch.setenv("MXGEMM_CPU_ISA", isa)
    named = f"must be one of {', '.join(ISAS)} on this processor, got '{isa}'"
    for backend in names:
        with pytest.raises(BackendUnavailable, match=named):
            mxgemm.gemm(a, b, backend=backend)
    with pytest.raises(ValueError, match=named):
        mxgemm.quantize(torch.ones(2, 32))
    assert mxgemm.gemm(a, b, backend="reference", out_dtype=torch.float32)[0, 0] == 32
    monkeypatch.delenv("MXGEMM_CPU_ISA")
    for backend, before in zip(names, right, strict=True):
        oracles.assert_same_bits(mxgemm.gemm(a, b, backend=backend), before)


def test_the_override_is_followed_whatever_was_planned_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = oracles.exact_operands(3, 5, 64, ACCUMULATION, seed=1)
    for isa in (*ISAS, *ISAS):
        monkeypatch.setenv("MXGEMM_CPU_ISA", isa)
        plan = mxgemm.plan(problem_for(a, b), backend="native_cpu")
        assert plan.summary.startswith(isa)


def test_without_the_extension_the_backend_rejects_with_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mxgemm._native_cpu", None)
    monkeypatch.delattr(mxgemm, "_native_cpu", raising=False)
    runtime.module.cache_clear()
    runtime.kernels.cache_clear()
    dispatch.cache.clear()
    try:
        rejection = NativeCpu().probe()
        assert rejection is not None
        assert rejection.code is RejectionCode.IMPORT
        a, b = mxgemm.quantize(torch.ones(2, 32)), mxgemm.quantize(torch.ones(3, 32))
        with pytest.raises(BackendUnavailable, match="needs the compiled module"):
            mxgemm.gemm(a, b, backend="native_cpu")
        assert mxgemm.gemm(a, b, out_dtype=torch.float32)[0, 0] == 32
    finally:
        dispatch.cache.clear()
        runtime.kernels.cache_clear()
