"""cuda_hopper beyond the conformance suite: its forms, its windows, its place in streams and
graphs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools

import pytest
import torch

import mxgemm
import oracles
from mxgemm import accuracy, dispatch
from mxgemm.backends.base import Accumulation, GemmPlan, Operand, PreparedOperand
from mxgemm.backends.cuda_hopper import CudaHopper, keep_folded
from mxgemm.backends.cuda_hopper import config as cfg
from mxgemm.devices import DeviceSpec
from mxgemm.epilogue import NO_ARGS, Epilogue, EpilogueArgs
from mxgemm.matmul import problem_for
from mxgemm.problem import GemmProblem, Numerics
from mxgemm.tensor import MXTensor

BACKEND = CudaHopper()
HOPPER = DeviceSpec("cuda", "sm_90")
FORMS = ("canonical", "packed", "folded")


def accumulation(numerics: Numerics = Numerics.DEFAULT) -> Accumulation:
    return BACKEND.accumulation(GemmProblem(m=64, n=96, k=128, device=HOPPER, numerics=numerics))


def needs_hopper() -> None:
    rejection = dispatch.probe(BACKEND)
    if rejection is not None:
        pytest.skip(str(rejection))


def plan_for(a: Operand, b: Operand, **changes: object) -> GemmPlan:
    spec = problem_for(a, b, **changes)  # type: ignore[arg-type]
    assert BACKEND.check(spec) is None
    return BACKEND.plan(spec)


def run(a: Operand, b: Operand, **changes: object) -> torch.Tensor:
    plan = plan_for(a, b, **changes)
    shape = (plan.problem.m, plan.problem.n)
    out = torch.full(shape, torch.nan, dtype=plan.problem.out_dtype, device="cuda")
    return plan.run(a, b, out, NO_ARGS)


PAIRS = [(512, 4270, 672), (600, 2000, 288), (512, 4270, 5408)]
"""Sizes that pairs of blocks decode: some with two tiles a block, some whose second block is partly
or wholly beyond m; the last is deep enough for every loop over the contraction.
"""


@pytest.mark.parametrize("size", PAIRS, ids=str)
def test_sizes_of_pairs_are_decoded_by_pairs(size: tuple[int, int, int]) -> None:
    m, n, k = size
    config = BACKEND.plan(GemmProblem(m=m, n=n, k=k, device=HOPPER)).config
    assert isinstance(config, cfg.HopperConfig)
    assert isinstance(config.packed, cfg.DecodedConfig)
    assert config.packed.cluster == 2


QUANTIZED_SHAPES = [
    (1, 32),
    (5, 2080),
    (130, 4096),
    (300, 8224),
    (40, 16416),
    (9, 32768),
    (3, 33024),
]


def high_precision(rows: int, k: int, kind: str) -> torch.Tensor:
    """Rows that fold; rows that fold without their blocks of zeros or NaN; and wide ones."""
    generator = torch.Generator().manual_seed(rows + k)
    x = torch.randn(rows, k, generator=generator)
    if kind == "wide":
        x = x * torch.exp2(torch.randint(-9, 9, (rows, k // 32), generator=generator).float())[
            ..., None
        ].expand(-1, -1, 32).reshape(rows, k)
    if kind == "special":
        x = x * 2.0**-14
        x[::2, : k // 2] = 0
        x[::3, -1] = torch.nan
        x[rows // 2] = -0.0
    return x


@pytest.mark.cuda
@pytest.mark.parametrize("kind", ["gaussian", "wide", "special"])
@pytest.mark.parametrize("shape", QUANTIZED_SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_quantizing_to_the_folded_form_is_quantizing_then_folding(
    dtype: torch.dtype, shape: tuple[int, int], kind: str
) -> None:
    needs_hopper()
    x = high_precision(*shape, kind).to("cuda", dtype)
    plan = BACKEND.plan(mxgemm.problem_for(*2 * (mxgemm.quantize(x),)))
    options = ({}, {"rule": "floor"}, {"rotation": mxgemm.Rotation(16)}, {"block_2d": True})
    for keywords in options:
        for source in (x, x[:, ::1].t().contiguous().t()):
            expected = plan.prepare_a(mxgemm.quantize(source, **keywords))
            found = plan.quantize_a(source, **keywords)
            for part in ("folded", "powers", "scales"):
                theirs, ours = (getattr(form.payload, part) for form in (expected, found))
                assert torch.equal(ours, theirs), (keywords, part)
            assert (found.spec, found.shape, found.prescale) == (
                expected.spec,
                expected.shape,
                expected.prescale,
            )
            assert found.nbytes == expected.nbytes


@pytest.mark.cuda
def test_an_operand_quantized_for_a_plan_multiplies_like_the_packed_one() -> None:
    needs_hopper()
    x, w = torch.randn(70, 416, device="cuda"), torch.randn(136, 416, device="cuda")
    a, b = mxgemm.quantize(x, prescale=True), mxgemm.quantize(w)
    plan = plan_for(a, b)
    out = mxgemm.gemm(plan.quantize_a(x, prescale=True), plan.quantize_b(w))
    oracles.assert_same_bits(out, mxgemm.gemm(a, b))


def in_form(operand: MXTensor, side: str, form: str) -> Operand:
    if form == "canonical":
        return operand
    if form == "folded":
        return keep_folded(operand, side)  # type: ignore[arg-type]
    return packed_weight(operand)


def packed_weight(operand: MXTensor) -> PreparedOperand:
    return plan_for(operand, operand).prepare_b(operand)


FITTED = (434, 4400, 160)
"""Tall tiles, of which both operands lack more than a half."""

SIZES = [(1, 8, 32), (5, 130, 96), (16, 64, 160), (40, 300, 2080), (64, 200, 544), (100, 257, 416)]
SIZES += [(300, 136, 2112), (520, 1000, 1056), (4100, 72, 288), FITTED]
# Tiles of 256 tokens; in the last two, some blocks have two of them.
SIZES += [(200, 4300, 672), (200, 8500, 288), (600, 4300, 288), *PAIRS]
SIZES += [(1300, 1000, 288), (2048, 264, 160)]  # the most rows for which a weight is decoded
SIZES += [(40, 8584, 352)]  # more tiles of a packed weight than multiprocessors, 3 groups of k each


@pytest.mark.cuda
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("numerics", list(Numerics))
def test_every_form_of_the_operands_gives_the_exact_bits(
    size: tuple[int, int, int], numerics: Numerics
) -> None:
    needs_hopper()
    m, n, k = size
    sums = accumulation(numerics)
    a, b = oracles.exact_operands(m, n, k, sums, seed=m + n)
    exact = accuracy.exact_product(a, b)[0]
    a, b = a.to("cuda"), b.to("cuda")
    for form_a in ("canonical", "folded"):
        for form_b in FORMS:
            operands = in_form(a, "a", form_a), in_form(b, "b", form_b)
            for dtype in (torch.float32, torch.bfloat16):
                out = run(*operands, out_dtype=dtype, numerics=numerics)
                oracles.assert_same_bits(out, oracles.once_rounded(exact, dtype))


@pytest.mark.cuda
@pytest.mark.parametrize("spread", [14, 15, 40, 250])
@pytest.mark.parametrize("size", SIZES[1:], ids=str)
@pytest.mark.parametrize("numerics", list(Numerics))
def test_rows_wider_than_the_window_keep_the_bound(
    size: tuple[int, int, int], spread: int, numerics: Numerics
) -> None:
    """Every row of A holds its largest scale where B is zero, so that what is left of the sum lies
    at the other end of the window.
    """
    needs_hopper()
    m, n, k = size
    generator = torch.Generator().manual_seed(spread)
    a = oracles.random_operand(m, k, generator, scales=(2, 4))
    b = oracles.random_operand(n, k, generator, scales=(120, 124))
    a.scales[:, 0] = 3 + spread
    b.codes[:, :16] = 0
    sums = accumulation(numerics)
    product, magnitude = accuracy.exact_product(a, b)
    bound = accuracy.product_bound(magnitude, a.stored_k, sums)
    for form in FORMS:
        left, right = a.to("cuda"), in_form(b.to("cuda"), "b", form)
        out = run(left, right, out_dtype=torch.float32, numerics=numerics)
        oracles.assert_within(out, product, bound)
    left, right = b.to("cuda"), in_form(a.to("cuda"), "b", "packed")
    out = run(left, right, out_dtype=torch.float32, numerics=numerics)
    oracles.assert_within(out, product.t(), bound.t())


def with_form(plan: GemmPlan, kernel: str, **changes: object) -> GemmPlan:
    """Return `plan` with another form of one of its kernels: "folded", "packed" or "canonical"."""
    assert isinstance(plan.config, cfg.HopperConfig)
    form = dataclasses.replace(getattr(plan.config, kernel), **changes)
    config = dataclasses.replace(plan.config, launchers={}, **{kernel: form})
    return dataclasses.replace(plan, config=config)


@pytest.mark.cuda
@pytest.mark.parametrize("scales", [(120, 134), (100, 140), (1, 254)], ids=str)
@pytest.mark.parametrize("size", [*SIZES[1:], (1000, 700, 2048)], ids=str)
@pytest.mark.parametrize("numerics", list(Numerics))
def test_tall_tiles_and_fitted_boxes_give_the_same_bits(
    size: tuple[int, int, int], scales: tuple[int, int], numerics: Numerics
) -> None:
    """All add the same partial sums in the same order, whatever the data."""
    needs_hopper()
    m, n, k = size
    generator = torch.Generator().manual_seed(m + k)
    a = keep_folded(oracles.random_operand(m, k, generator, scales=scales).to("cuda"), "a")
    b = keep_folded(oracles.random_operand(n, k, generator, scales=scales).to("cuda"), "b")
    bias = torch.randn(n, generator=generator).cuda()
    full = Epilogue(bias=torch.float32, activation="gelu", bias_grad=True)  # type: ignore[arg-type]
    for epilogue in (Epilogue(), full):
        for dtype in (torch.float32, torch.bfloat16):
            plan = plan_for(a, b, out_dtype=dtype, epilogue=epilogue, numerics=numerics)
            results = []
            for consumers, fitted in itertools.product((2, 3), (False, True)):
                out = torch.full((m, n), torch.nan, dtype=dtype, device="cuda")
                grad = torch.empty(n, device="cuda") if epilogue.bias_grad else None
                args = EpilogueArgs(bias=bias if epilogue.bias else None, bias_grad=grad)
                form = with_form(plan, "folded", consumers=consumers, fitted=fitted)
                form.run(a, b, out, args)
                results.append((out, grad))
            (out, grad), *others = results
            for other_out, other_grad in others:
                oracles.assert_same_bits(other_out, out)
                if grad is not None:
                    oracles.assert_same_bits(other_grad, grad)


@pytest.mark.cuda
def test_blocks_of_zeros_do_not_narrow_the_window() -> None:
    """Zero blocks have scale 1; beside values near 2^-60 they must not count."""
    needs_hopper()
    a, b = oracles.exact_operands(32, 64, 256, accumulation(), seed=3)
    a.scales[:] -= 60
    a.codes[:, 16:48] = 0
    a.scales[:, 1:3] = 127
    exact = accuracy.exact_product(a, b)[0]
    left, right = a.to("cuda"), b.to("cuda")
    assert int(keep_folded(left, "a").payload.powers[:32].max()) < 0  # type: ignore[attr-defined]
    for form in FORMS:
        out = run(left, in_form(right, "b", form), out_dtype=torch.float32)
        oracles.assert_same_bits(out, exact.float())


@pytest.mark.cuda
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [(3, 136), (200, 136), PAIRS[1][:2]], ids=str)
def test_a_call_is_captured_by_a_graph_and_replays_on_new_values(
    form: str, size: tuple[int, int]
) -> None:
    needs_hopper()
    m, n = size
    sums = accumulation()
    first = oracles.exact_operands(m, n, 416, sums, seed=1)
    second = oracles.exact_operands(m, n, 416, sums, seed=2)
    a, b = first[0].to("cuda"), in_form(first[1].to("cuda"), "b", form)
    plan = plan_for(a, b)
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    plan.run(a, b, out, NO_ARGS)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(a, b, out, NO_ARGS)
    a.codes.copy_(second[0].codes)
    a.scales.copy_(second[0].scales)
    out.fill_(torch.nan)
    graph.replay()
    exact = accuracy.exact_product(second[0], first[1])[0]
    oracles.assert_same_bits(out, oracles.once_rounded(exact, torch.bfloat16))


@pytest.mark.cuda
@pytest.mark.parametrize(("form", "m", "n"), [("canonical", 700, 900), ("packed", *PAIRS[1][:2])])
def test_calls_in_two_streams_do_not_disturb_each_other(form: str, m: int, n: int) -> None:
    needs_hopper()
    sums = accumulation()
    a, b = oracles.exact_operands(m, n, 1024, sums, seed=4)
    exact = oracles.once_rounded(accuracy.exact_product(a, b)[0], torch.bfloat16)
    a, b = a.to("cuda"), in_form(b.to("cuda"), "b", form)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    outs = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                outs.append(run(a, b))
    torch.cuda.synchronize()
    for out in outs:
        oracles.assert_same_bits(out, exact)


@pytest.mark.cuda
@pytest.mark.parametrize("captured", [False, True], ids=["in a stream", "in a graph"])
@pytest.mark.parametrize("bias_grad", [False, True], ids=["plain", "bias_grad"])
@pytest.mark.parametrize("m", [16, 100, PAIRS[1][0]])
def test_a_call_leaves_alone_what_the_call_before_reads(
    m: int, bias_grad: bool, captured: bool
) -> None:
    """The fold of one starts while the other runs, whose workspace it will write to."""
    needs_hopper()
    generator = torch.Generator().manual_seed(m)
    parts = [mxgemm.quantize(torch.randn(m, 2048, generator=generator)).to("cuda") for _ in "abc"]
    lefts: list[Operand] = [*parts[:2], keep_folded(parts[2], "a")]
    weight = packed_weight(mxgemm.quantize(torch.randn(2000, 2048, generator=generator)).to("cuda"))
    epilogue = Epilogue(bias_grad=bias_grad)
    plans = [plan_for(left, weight, epilogue=epilogue, out_dtype=torch.bfloat16) for left in lefts]

    def results(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        out = torch.full((count, m, 2000), torch.nan, dtype=torch.bfloat16, device="cuda")
        return list(zip(out, torch.zeros(count, 2000, device="cuda"), strict=True))

    def call(number: int, out: torch.Tensor, grad: torch.Tensor) -> None:
        args = EpilogueArgs(bias_grad=grad if bias_grad else None)
        plans[number % 3].run(lefts[number % 3], weight, out, args)

    expected, found = results(3), results(60)
    for number, pair in enumerate(expected):
        call(number, *pair)
        torch.cuda.synchronize()
    assert not any(bool(out.isnan().any()) for out, _ in expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph) if captured else contextlib.nullcontext():
        for number, pair in enumerate(found):
            call(number, *pair)
    if captured:
        graph.replay()
    torch.cuda.synchronize()
    for number, pair in enumerate(found):
        for tensor, right in zip(pair, expected[number % 3], strict=True):
            oracles.assert_same_bits(tensor, right)


@pytest.mark.cuda
@pytest.mark.parametrize("m", [16, 100, PAIRS[1][0]])
def test_a_weight_that_was_just_written_is_read_whole(m: int) -> None:
    """Parts of it are asked for while the kernel before, the fold of A, still runs."""
    needs_hopper()
    generator = torch.Generator().manual_seed(m)
    a = mxgemm.quantize(torch.randn(m, 2048, generator=generator)).to("cuda")
    weights = [mxgemm.quantize(torch.randn(2000, 2048, generator=generator)) for _ in range(2)]
    kept = [packed_weight(weight.to("cuda")) for weight in weights]
    expected = [run(a, weight) for weight in kept]
    live = packed_weight(weights[0].to("cuda"))
    for number in range(20):
        source = kept[number % 2].payload
        for name in ("tiles", "powers", "scales"):
            getattr(live.payload, name).copy_(getattr(source, name))
        oracles.assert_same_bits(run(a, live), expected[number % 2])


@pytest.mark.cuda
def test_rows_that_are_wide_for_one_block_of_a_pair_only() -> None:
    """As by blocks alone, which add the same partial sums in the same order."""
    needs_hopper()
    m, n, k = PAIRS[1]
    generator = torch.Generator().manual_seed(m)
    parts = [
        oracles.random_operand(rows, k, generator, scales=scales)
        for rows, scales in ((256, (120, 127)), (m - 256, (100, 140)))
    ]
    a = MXTensor.from_parts(
        *(torch.cat([getattr(x, name) for x in parts]) for name in ("codes", "scales"))
    ).to("cuda")
    weight = oracles.random_operand(n, k, generator, scales=(120, 127)).to("cuda")
    b = packed_weight(weight)
    plan = plan_for(a, b)
    results = []
    for cluster in (1, 2):
        out = torch.full((m, n), torch.nan, dtype=torch.bfloat16, device="cuda")
        with_form(plan, "packed", cluster=cluster).run(a, b, out, NO_ARGS)
        results.append(out)
    oracles.assert_same_bits(results[1], results[0])
    assert not bool(results[0].isnan().any())


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("form", "m", "n"),
    [
        *(("canonical", m, 192) for m in (3, 70, 200)),
        *(("packed", *size) for size in ((3, 192), (70, 192), (200, 8500), PAIRS[1][:2])),
        *(("folded", *size) for size in ((3, 192), FITTED[:2])),
    ],
)
def test_what_shared_memory_held_before_is_not_multiplied(
    form: str, m: int, n: int, dtype: torch.dtype
) -> None:
    """Boxes end with the operands' rows; behind them lies what an earlier kernel left: NaNs."""
    needs_hopper()
    a, b = oracles.exact_operands(m, n, 672, accumulation(), seed=6)
    exact = oracles.once_rounded(accuracy.exact_product(a, b)[0], dtype)
    a, b = a.to("cuda"), in_form(b.to("cuda"), "b", form)

    def poison(rows: int) -> MXTensor:
        return mxgemm.quantize(torch.full((rows, 672), torch.nan, device="cuda"))

    if form == "folded":  # boxes of both; tiles for every multiprocessor
        left, right = poison(1024), keep_folded(poison(4224), "b")
    else:
        left, right = poison(cfg.round_up(m, 256)), b
    assert run(left, right, out_dtype=dtype).isnan().all()
    oracles.assert_same_bits(run(a, b, out_dtype=dtype), exact)


@pytest.mark.cuda
@pytest.mark.parametrize("scales", [(120, 127), (100, 140)], ids=["narrow", "wide"])
@pytest.mark.parametrize(
    "size", [(100, 300, 288), (200, 4300, 288), (300, 264, 288), (600, 2000, 288)], ids=str
)
def test_powers_past_the_last_row_of_a_decide_nothing(
    size: tuple[int, int, int], scales: tuple[int, int]
) -> None:
    """The fold of a call that decodes its weight leaves there what was in the workspace."""
    needs_hopper()
    m, n, k = size
    generator = torch.Generator().manual_seed(m)
    a = oracles.random_operand(m, k, generator, scales=scales).to("cuda")
    weight = oracles.random_operand(n, k, generator, scales=(120, 127)).to("cuda")
    folded, b = keep_folded(a, "a"), packed_weight(weight)
    expected = run(folded, b)
    for power in (0x4000, 0x7FFF, -0x8000):  # the first marks a wide row
        folded.payload.powers[m:] = power
        oracles.assert_same_bits(run(folded, b), expected)


@pytest.mark.cuda
@pytest.mark.parametrize("form", FORMS)
def test_two_runs_agree_bit_for_bit(form: str) -> None:
    needs_hopper()
    generator = torch.Generator().manual_seed(0)
    a = mxgemm.quantize(torch.randn(257, 4096, generator=generator)).to("cuda")
    b = mxgemm.quantize(torch.randn(520, 4096, generator=generator)).to("cuda")
    epilogue = Epilogue(dact="relu", aux_in=torch.float32, bias_grad=True)  # type: ignore[arg-type]
    aux = torch.randn(257, 520, generator=generator).cuda()
    operand = in_form(b, "b", form)
    plan = plan_for(a, operand, epilogue=epilogue)
    results = []
    for _ in range(3):
        out = torch.empty(257, 520, dtype=torch.bfloat16, device="cuda")
        grad = torch.empty(520, device="cuda")
        plan.run(a, operand, out, EpilogueArgs(aux_in=aux, bias_grad=grad))
        results.append((out, grad))
    for out, grad in results[1:]:
        oracles.assert_same_bits(out, results[0][0])
        oracles.assert_same_bits(grad, results[0][1])


@pytest.mark.cuda
def test_the_cublas_plan_agrees_bit_for_bit_in_the_exact_regime() -> None:
    needs_hopper()
    sums = accumulation()
    a, b = oracles.exact_operands(200, 144, 512, sums, seed=6)
    a, b = a.to("cuda"), b.to("cuda")
    out = mxgemm.gemm(a, b, backend="cuda_hopper_cublas")
    oracles.assert_same_bits(out, mxgemm.gemm(a, b, backend="cuda_hopper"))


@pytest.mark.cuda
def test_the_cublas_plan_refuses_wide_rows() -> None:
    needs_hopper()
    generator = torch.Generator().manual_seed(0)
    a = oracles.random_operand(64, 256, generator, scales=(90, 140)).to("cuda")
    with pytest.raises(mxgemm.errors.UnsupportedProblem, match="wide row"):
        mxgemm.gemm(a, a, backend="cuda_hopper_cublas")


@pytest.mark.cuda
def test_a_misaligned_operand_is_refused_with_the_way_out() -> None:
    needs_hopper()
    memory = torch.zeros(64 * 16 + 8, dtype=torch.uint8, device="cuda")
    codes = memory[8:].view(64, 16)
    scales = torch.full((64, 1), 127, dtype=torch.uint8, device="cuda")
    odd = MXTensor.from_parts(codes, scales)
    with pytest.raises(mxgemm.errors.LayoutMismatch, match="clone"):
        mxgemm.gemm(odd, odd, backend="cuda_hopper")
