"""flydsl_gfx1250 in the emulator: every tile and form over sizes on both sides of them, every
timing, bit for bit in the exact regime, with every hazard and race check on.
"""

import dataclasses
import itertools

import pytest
import torch

import cases
import conformance
import mxgemm
import oracles
from backends.gfx1250_kernels import (
    AITER,
    LARGE,
    MEDIUM,
    PLAIN,
    SMALL,
    TILED,
    WORDS,
    needs_compiler,
)
from mxgemm.backends.base import Accumulation
from mxgemm.backends.flydsl_gfx1250 import FlyDSLGfx1250, cost, launch, places
from mxgemm.devices import DeviceSpec
from mxgemm.epilogue import IDENTITY, NO_ARGS, EpilogueArgs
from mxgemm.quantizers import quantize_pair
from mxgemm.tensor import MXTensor

pytestmark = [pytest.mark.emulated, needs_compiler]

BACKEND = FlyDSLGfx1250()
DEVICE = DeviceSpec.parse("gfx1250:emulated")
TIMINGS = ("early", "late", "random")
EDGES = (1, 17, 200, 255, 256, 300, 512)
CONTRACTIONS = (32, 96, 128, 160, 1024, 1152, 2880)
KERNELS = (
    (LARGE, PLAIN, PLAIN, torch.float32),
    (LARGE, TILED, TILED, torch.bfloat16),
    (MEDIUM, WORDS, AITER, torch.float16),
    (SMALL, PLAIN, PLAIN, torch.bfloat16),
    (MEDIUM, PLAIN, PLAIN, torch.bfloat16),
    (MEDIUM, PLAIN, TILED, torch.bfloat16),
    (SMALL, TILED, WORDS, torch.float16),
)
"""Tile, layouts of A and B, output: the ones of `gfx1250_kernels`, and three of smaller tiles whose
scales past K are masked, are not, or are of one operand only.
"""


def whole(tile, k: int) -> cost.Choice:
    """The choice of `tile` with K in one part."""
    return cost.Choice(tile, 1, -(-k // 128), 0.0)


def run(a, b, choice, out_dtype=torch.float32, epilogue="identity", *, timing="late", seed=0):
    """Return D, the epilogue's tensors after the call and before, its description, and results."""
    m, n = a.shape[0], b.shape[0]
    generator = torch.Generator().manual_seed(m + n)
    description, args = cases.make_epilogue(epilogue, m, n, out_dtype, generator)
    problem = conformance.problem_of(a, b, DEVICE, out_dtype, description)
    assert BACKEND.check(problem) is None
    plan = BACKEND.plan_with(problem, choice)
    results = []
    options = places.Emulation(
        timing=timing, seed=seed, observe=lambda kernel, result: results.append((kernel, result))
    )
    with places.emulation(options):
        out, after = conformance.run(plan, a, b, args)
    return out, after, description, args, results


def check(a, b, *, choice, out_dtype, epilogue="identity", timing="late", seed=0):
    out, after, description, args, results = run(
        a, b, choice, out_dtype, epilogue, timing=timing, seed=seed
    )
    conformance.check_exact(out, after, a, b, description, args)
    return results


WALK_SWEEP = cases.pairwise(
    (
        (
            (PLAIN, PLAIN, torch.float32),
            (TILED, TILED, torch.bfloat16),
            (WORDS, AITER, torch.float16),
        ),
        (40, 300),  # M
        (500, 769, 1100),  # N
        (1, 2),  # workgroups along N
        (1280, 1312, 2048, 2880),  # K
        TIMINGS,
    )
)


@pytest.mark.parametrize(
    ("kernel", "m", "n", "columns", "k", "timing"),
    WALK_SWEEP,
    ids=[f"{r[0][0]}-m{r[1]}-n{r[2]}-by{r[3]}-k{r[4]}-{r[5]}" for r in WALK_SWEEP],
)
def test_walks_over_output_tiles_are_exact_in_every_timing(kernel, m, n, columns, k, timing):
    a_layout, b_layout, out_dtype = kernel
    a, b = oracles.exact_operands(m, n, k, Accumulation(), seed=m + n + k)
    a, b = oracles.poison_pads(a.relayout(a_layout)), oracles.poison_pads(b.relayout(b_layout))
    choice = dataclasses.replace(whole(LARGE, k), walk_columns=columns)
    check(a, b, choice=choice, out_dtype=out_dtype, timing=timing, seed=n % 7)


def test_a_walk_applies_alpha_to_every_tile():
    a, b = oracles.exact_operands(40, 800, 1280, Accumulation(), seed=7)
    choice = dataclasses.replace(whole(LARGE, 1280), walk_columns=1)
    check(a, b, choice=choice, out_dtype=torch.bfloat16, epilogue="alpha")


def small_enough(row) -> bool:
    _, m, n, k, _ = row
    return m * n * k <= 1 << 27


SWEEP = [
    row
    for row in cases.pairwise((KERNELS, EDGES, EDGES, CONTRACTIONS, TIMINGS))
    if small_enough(row)
]


@pytest.mark.parametrize(
    ("kernel", "m", "n", "k", "timing"),
    SWEEP,
    ids=[f"{r[0][0].tile_m}-{r[0][1]}-m{r[1]}-n{r[2]}-k{r[3]}-{r[4]}" for r in SWEEP],
)
def test_sizes_around_tiles_are_exact_in_every_timing(kernel, m, n, k, timing):
    tile, a_layout, b_layout, out_dtype = kernel
    a, b = oracles.exact_operands(m, n, k, Accumulation(), seed=m + n + k)
    a, b = oracles.poison_pads(a.relayout(a_layout)), oracles.poison_pads(b.relayout(b_layout))
    check(a, b, choice=whole(tile, k), out_dtype=out_dtype, timing=timing, seed=m % 5)


@pytest.mark.slow
@pytest.mark.parametrize("timing", ["early", "late"])
@pytest.mark.parametrize("k", [96, 1152])
@pytest.mark.parametrize("n", [17, 512])
@pytest.mark.parametrize("m", [200, 512])
@pytest.mark.parametrize("epilogue", ["identity", "bias_relu_aux"])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", [PLAIN, TILED], ids=str)
def test_full_product_of_two_values_of_each_factor_is_exact(
    layout, out_dtype, epilogue, m, n, k, timing
):
    a, b = oracles.exact_operands(m, n, k, Accumulation(), seed=m + n + k)
    a, b = oracles.poison_pads(a.relayout(layout)), oracles.poison_pads(b.relayout(layout))
    check(
        a, b, choice=whole(LARGE, k), out_dtype=out_dtype, epilogue=epilogue, timing=timing, seed=k
    )


@pytest.mark.parametrize(
    ("tile", "epilogue", "out_dtype", "timing"),
    [
        (LARGE, "bias_relu_aux", torch.bfloat16, "random"),
        (LARGE, "drelu_in_place_bias_grad", torch.float32, "late"),
        (SMALL, "alpha", torch.float16, "early"),
    ],
)
def test_fused_epilogues_are_exact(tile, epilogue, out_dtype, timing):
    a, b = oracles.exact_operands(300, 290, 160, Accumulation(), seed=7)
    check(a, b, choice=whole(tile, 160), out_dtype=out_dtype, epilogue=epilogue, timing=timing)


@pytest.mark.parametrize("epilogue", ["everything", "dgelu_tanh_bias_grad"])
def test_rounded_epilogues_stay_within_their_bound(epilogue):
    generator = torch.Generator().manual_seed(3)
    a, b = (oracles.random_operand(rows, 352, generator, scales=(120, 130)) for rows in (70, 300))
    out, after, description, args, _ = run(a, b, whole(SMALL, 352), torch.bfloat16, epilogue)
    exact, bound = oracles.expected(a, b, description, args, Accumulation())
    oracles.assert_within(out, exact, bound)
    conformance.check_bias_grad(after, a, b, description, args, None)


@pytest.mark.parametrize("epilogue", ["identity", "bias_relu_aux", "drelu_in_place_bias_grad"])
def test_split_contraction_is_exact_and_deterministic(epilogue):
    a, b = oracles.exact_operands(40, 300, 4512, Accumulation(), seed=11)
    choice = cost.Choice(SMALL, 3, 16, 0.0)
    results = check(a, b, choice=choice, out_dtype=torch.float32, epilogue=epilogue)
    assert len(results) == (3 if "bias_grad" in epilogue else 2)
    first, second = (
        run(a, b, choice, torch.float32, epilogue, timing=timing, seed=seed)[0]
        for timing, seed in (("early", 1), ("random", 2))
    )
    oracles.assert_same_bits(first, second)


def test_training_runs_all_three_products_from_one_pair_each():
    pairs = [
        quantize_pair(torch.randn(size, generator=torch.Generator().manual_seed(i)))
        for i, size in enumerate(((96, 64), (160, 64), (96, 160)))
    ]
    x, w, dy = pairs
    products = {
        "fprop": (x.along_k, w.along_k),
        "dgrad": (dy.along_k, w.along_m),
        "wgrad": (dy.along_m, x.along_m),
    }
    for a, b in products.values():
        out = run(a, b, whole(SMALL, a.stored_k))[0]
        exact, bound = oracles.expected(a, b, IDENTITY, NO_ARGS, Accumulation())
        oracles.assert_within(out, exact, bound)


def test_prepared_operands_give_the_same_bits():
    a, b = oracles.exact_operands(70, 300, 1120, Accumulation(), seed=5)
    plain = run(a, b, whole(SMALL, 1120))[0]
    problem = conformance.problem_of(a, b, DEVICE)
    prepared = BACKEND.plan(problem).prepare_b(b)
    assert prepared.payload.layout == TILED
    assert torch.equal(prepared.payload.codes, b.relayout(TILED).codes)
    assert torch.equal(prepared.payload.scales, b.relayout(TILED).scales)
    wanted = dataclasses.replace(problem, b=prepared.spec)
    out = torch.full((70, 300), torch.nan)
    plan = BACKEND.plan_with(wanted, whole(SMALL, 1120))
    plan.run(a, prepared, out, EpilogueArgs())
    oracles.assert_same_bits(out, plain)


def test_more_k_tiles_than_an_axis_of_the_grid_takes_are_prepared_right():
    last = 65_536
    generator = torch.Generator().manual_seed(4)
    operand = oracles.random_operand(3, 128 * (last + 1), generator, scales=(120, 130))
    right = operand.relayout(TILED)
    with places.emulation(places.Emulation(workgroups=((last, 0, 0),))):
        packed = launch.reorder(places.place_for(DEVICE), operand)
    unit = slice(256 * last, 256 * (last + 1))
    assert torch.equal(packed.codes.flatten()[unit], right.codes.flatten()[unit])
    assert torch.equal(packed.scales[last], right.scales[last])


class LastSlice:
    """A place that puts known parts where the GEMM would, and sums the last rows of them."""

    def __init__(self, parts: torch.Tensor) -> None:
        self.parts = parts

    def run(self, kernel, grid, values) -> None:
        if kernel.symbol.startswith("mxfp4_gemm"):
            values[0].view(len(self.parts), -1)[:, -1:] = self.parts
        else:
            last = places.Emulation(workgroups=((grid[0] - 1, 0, 0),))
            places.EmulatedPlace(last).run(kernel, grid, values)


def test_more_rows_of_a_split_than_an_axis_of_the_grid_takes_are_summed_right():
    m, k = 65_536 * 64 + 1, 2048
    codes = torch.empty(m, k // 2, dtype=torch.uint8)
    scales = torch.empty(m, k // 32, dtype=torch.uint8)
    a = MXTensor(codes=codes, scales=scales, shape=(m, k), stored_k=k)
    b = oracles.exact_operands(1, 1, k, Accumulation(), seed=1)[1]
    problem = conformance.problem_of(a, b, DEVICE)
    plan = BACKEND.plan_with(problem, cost.Choice(SMALL, 2, 8))
    out = torch.full((m, 1), torch.nan)
    place = LastSlice(torch.tensor([[3.0], [4.0]]))
    launch.gemm(place, problem, plan.config, (a, b), out, EpilogueArgs())
    assert out[-1].item() == 7
    assert bool(out[:-1].isnan().all())


@pytest.mark.parametrize("shape", [(2, 0, 64), (2, 3, 0), (0, 3, 64), (0, 0, 0)], ids=str)
def test_empty_operands_are_prepared_and_multiply_like_plain_ones(shape):
    m, n, k = shape
    a, b = mxgemm.quantize(torch.ones(m, k)), mxgemm.quantize(torch.ones(n, k))
    plan = BACKEND.plan(conformance.problem_of(a, b, DEVICE))
    prepared = plan.prepare_a(a), plan.prepare_b(b)
    for made, plain in zip(prepared, (a, b), strict=True):
        assert made.shape == plain.shape
        assert made.payload.layout == TILED
        assert (made.nbytes == 0) == (plain.codes.numel() == 0)
    options = {"bias": torch.arange(n, dtype=torch.float32), "out_dtype": torch.float32}
    on = {"backend": BACKEND.name, "device": DEVICE}
    expected = options["bias"].repeat(m, 1)  # where there is a product, it is of empty sums
    for left, right in itertools.product((a, prepared[0]), (b, prepared[1])):
        out = mxgemm.gemm(left, right, **options, **on)
        oracles.assert_same_bits(out, expected)


@pytest.mark.parametrize("walk_columns", [0, 1])
@pytest.mark.parametrize(("tile", "layout"), [(LARGE, PLAIN), (LARGE, TILED)])
def test_lds_does_not_grow_with_k_and_has_no_bank_conflict(tile, layout, walk_columns):
    counters = []
    for k in (2048, 16384) if walk_columns else (1024, 16384):
        a, b = (oracles.exact_operands(64, 64, k, Accumulation(), seed=k)[i] for i in (0, 1))
        out_dtype = torch.float32 if layout is PLAIN else torch.bfloat16
        choice = dataclasses.replace(whole(tile, k), walk_columns=walk_columns)
        results = run(a.relayout(layout), b.relayout(layout), choice, out_dtype)[4]
        counters.append(results[0][1].counters)
    assert counters[0].lds_high_water == counters[1].lds_high_water
    limit = 320 if walk_columns else 160 if layout is PLAIN else 144
    assert counters[0].lds_high_water <= limit * 1024
    assert counters[1].lds_conflict_cycles == counters[0].lds_conflict_cycles == 0


def test_nan_scale_poisons_what_it_touches_and_nothing_else():
    a, b = oracles.exact_operands(70, 80, 160, Accumulation(), seed=2)
    clean = run(a, b, whole(SMALL, 160))[0]
    a.scales[33, 4] = 255
    out = run(a, b, whole(SMALL, 160))[0]
    assert bool(out[33].isnan().all())
    keep = torch.arange(70) != 33
    oracles.assert_same_bits(out[keep], clean[keep])


def test_operands_past_two_gigabytes_are_addressed_right():
    rows, k, n, tail = (1 << 20) + 40, 4352, 64, 40
    a, b = oracles.exact_operands(tail, n, k, Accumulation(), seed=9)
    codes = torch.empty(rows, k // 2, dtype=torch.uint8)
    scales = torch.empty(rows, k // 32, dtype=torch.uint8)
    assert codes.nbytes > 1 << 31
    codes[-tail:], scales[-tail:] = a.codes, a.scales
    far = MXTensor(codes=codes, scales=scales, shape=(rows, k), stored_k=k)
    problem = conformance.problem_of(far, b, DEVICE)
    plan = BACKEND.plan_with(problem, whole(SMALL, k))
    out = torch.empty(rows, n)
    last = ((rows - 1) // SMALL.tile_m, 0, 0)
    with places.emulation(places.Emulation(workgroups=(last,))):
        launch.gemm(places.place_for(DEVICE), problem, plan.config, (far, b), out, EpilogueArgs())
    exact, _ = oracles.expected(a, b, IDENTITY, NO_ARGS, Accumulation())
    oracles.assert_same_bits(out[-tail:], exact.float())
