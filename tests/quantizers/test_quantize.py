"""quantize, quantize_pair and dequantize: every option, both directions, and what is refused."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mxgemm
from exact import GRID, code_value, nearest_code, power, quantize_block, scale_byte
from mxgemm import OperandLayout, Rotation, quantizers
from mxgemm.layouts import Scale32x8, Tile16x16
from mxgemm.numerics import e2m1, philox
from mxgemm.numerics.hadamard import rotate
from mxgemm.quantizers import reference
from mxgemm.quantizers.options import ROUNDINGS
from mxgemm.quantizers.scale_rules import RULES

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
rules = pytest.mark.parametrize("rule", RULES)


@pytest.fixture(autouse=True, params=quantizers.QUANTIZERS, ids=lambda q: q.__name__)
def quantizer(request, monkeypatch):
    """Let each quantizer come first; what it does not accept goes to the reference, which gives
    the same bits.
    """
    order = dict.fromkeys((request.param, reference))
    monkeypatch.setattr(quantizers, "QUANTIZERS", tuple(order))


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def codes_of(q: mxgemm.MXTensor) -> torch.Tensor:
    return e2m1.unpack(q.canonical_codes())


def assert_same(x: mxgemm.MXTensor, y: mxgemm.MXTensor) -> None:
    assert x.shape == y.shape
    assert x.stored_k == y.stored_k
    assert torch.equal(x.codes, y.codes)
    assert torch.equal(x.scales, y.scales)


def expected_by_blocks(x: torch.Tensor, rule: str) -> tuple[list, list]:
    """Return bytes and codes row by row from the exact oracle; K a multiple of 32."""
    scales, codes = [], []
    for row in x.double().tolist():
        parts = [quantize_block(row[at : at + 32], rule) for at in range(0, len(row), 32)]
        scales.append([byte for byte, _ in parts])
        codes.append([code for _, block in parts for code in block])
    return scales, codes


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@rules
def test_quantize_is_the_definition(rule, dtype):
    x = (gaussian(6, 96, seed=1) ** 3).to(dtype)
    q = mxgemm.quantize(x, rule=rule)
    scales, codes = expected_by_blocks(x, rule)
    assert q.scales.tolist() == scales
    assert codes_of(q).tolist() == codes
    assert (q.shape, q.stored_k, q.scale_rule, q.rotation, q.prescale) == (
        (6, 96),
        96,
        rule,
        None,
        1,
    )


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=64, max_size=64),
    st.sampled_from(RULES),
)
def test_quantize_of_any_finite_floats_is_the_definition(values, rule):
    x = torch.tensor([values])
    q = mxgemm.quantize(x, rule=rule)
    scales, codes = expected_by_blocks(x, rule)
    assert (q.scales.tolist(), codes_of(q).tolist()) == (scales, codes)


def test_subnormal_and_tiny_blocks_stay_finite_and_near():
    tiny = torch.tensor(
        [2.0**-149, 3 * 2.0**-149, 1e-40, 2.0**-127, -(2.0**-128), 1e-38, 3e-38, 5e-38]
    )
    x = tiny.repeat(4)[None]
    for rule in RULES:
        q = mxgemm.quantize(x, rule=rule)
        back = mxgemm.dequantize(q, torch.float64)
        # The grid's widest step below amax is 2 scales; byte 0 is the least scale.
        step = 2 * 2.0 ** (int(q.scales.max()) - 127)
        assert bool(((back - x.double()).abs() <= step / 2 + 2.0**-127).all())


@rules
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_poisoned_block_is_nan_in_both_directions_and_its_neighbours_are_clean(rule, poison):
    x = gaussian(64, 96, seed=2)
    clean = mxgemm.quantize_pair(x, rule=rule)
    x[5, 40] = poison
    pair = mxgemm.quantize_pair(x, rule=rule)
    assert pair.along_k.scales[5, 1] == 255
    assert pair.along_m.scales[40, 0] == 255
    for half, before, row, block in (
        (pair.along_k, clean.along_k, 5, 1),
        (pair.along_m, clean.along_m, 40, 0),
    ):
        hit = torch.zeros_like(half.scales, dtype=torch.bool)
        hit[row, block] = True
        assert torch.equal(half.scales[~hit], before.scales[~hit])
        poisoned = codes_of(half).view(half.rows, -1, 32)
        assert not poisoned[hit].any()
        assert torch.equal(poisoned[~hit], codes_of(before).view(half.rows, -1, 32)[~hit])
        assert torch.equal(mxgemm.dequantize(half).isnan().view(half.rows, -1, 32).all(dim=-1), hit)


@rules
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("block_2d", [False, True], ids=["1d", "2d"])
def test_zero_blocks_keep_the_signs_of_zero_in_every_path(rule, rounding, block_2d):
    x = torch.zeros(32, 64)
    x[:, 1::2] = -0.0
    pair = mxgemm.quantize_pair(x, rule=rule, rounding=rounding, block_2d=block_2d)
    assert pair.along_k.scales.unique().tolist() == [127]
    assert pair.along_m.scales.unique().tolist() == [127]
    assert codes_of(pair.along_k)[0].tolist() == [0, 8] * 32
    assert torch.equal(codes_of(pair.along_m), codes_of(pair.along_k).t())


@rules
def test_negatives_that_round_to_zero_keep_their_sign(rule):
    x = torch.full((1, 32), -0.01)
    x[0, 0] = 4.0
    assert codes_of(mxgemm.quantize(x, rule=rule))[0].tolist() == [6] + [8] * 31


@rules
def test_2d_blocks_share_one_scale_per_tile(rule):
    x = gaussian(70, 96, seed=3) * torch.exp2(torch.arange(70.0) % 7)[:, None]
    q = mxgemm.quantize(x, rule=rule, block_2d=True)
    for row in range(0, 70, 32):
        for column in range(0, 96, 32):
            tile = x[row : row + 32, column : column + 32]
            values = tile.double().flatten().tolist()
            byte, codes = quantize_block(values, rule)
            got = q.scales[row : row + 32, column // 32]
            assert got.tolist() == [byte] * len(tile)
            assert codes_of(q)[row : row + 32, column : column + 32].flatten().tolist() == codes


@rules
def test_2d_blocks_give_both_halves_the_same_values(rule):
    pair = mxgemm.quantize_pair(gaussian(64, 96, seed=4), rule=rule, block_2d=True)
    values = mxgemm.dequantize(pair.along_k)
    assert torch.equal(mxgemm.dequantize(pair.along_m), values.t())
    one_d = mxgemm.quantize_pair(gaussian(64, 96, seed=4), rule=rule)
    assert not torch.equal(mxgemm.dequantize(one_d.along_m), mxgemm.dequantize(one_d.along_k).t())


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@rules
def test_2d_poison_takes_the_whole_tile_in_both_directions(rule, poison):
    x = gaussian(64, 96, seed=4)
    clean = mxgemm.quantize_pair(x, rule=rule, block_2d=True)
    x[33, 1] = poison
    pair = mxgemm.quantize_pair(x, rule=rule, block_2d=True)
    for half, before, tile in (
        (pair.along_k, clean.along_k, (slice(32, 64), 0)),
        (pair.along_m, clean.along_m, (slice(0, 32), 1)),
    ):
        hit = torch.zeros_like(half.scales, dtype=torch.bool)
        hit[tile] = True
        assert torch.equal(half.scales == 255, hit)
        assert torch.equal(half.scales[~hit], before.scales[~hit])
        assert not codes_of(half).view(half.rows, -1, 32)[hit].any()


@pytest.mark.parametrize("size", [16, 32, 64])
def test_a_rotation_that_overflows_float32_marks_its_block(size):
    x = torch.zeros(1, 128)
    x[0, :16] = torch.finfo(torch.float32).max
    q = mxgemm.quantize(x, rotation=Rotation(size))
    marked = 2 if size == 64 else 1
    assert q.scales[0].tolist() == [255] * marked + [127] * (4 - marked)


@rules
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_overflowing_blocks_stay_finite_codes(rule, rounding):
    x = torch.full((1, 32), torch.finfo(torch.float32).max)
    x[0, 1::2] *= -1
    q = mxgemm.quantize(x, rule=rule, rounding=rounding)
    byte, codes = quantize_block(x[0].double().tolist(), rule)
    assert q.scales.tolist() == [[byte]]
    if rounding == "nearest_even":
        assert codes_of(q)[0].tolist() == codes
    assert byte in (252, 253)
    assert bool((codes_of(q)[0] % 8 >= 5).all())


@rules
def test_prescale_multiplies_elements_after_the_scale_was_chosen(rule):
    x = gaussian(4, 64, seed=5)
    plain = mxgemm.quantize(x, rule=rule)
    q = mxgemm.quantize(x, rule=rule, prescale=True)
    assert q.prescale == 0.75
    assert torch.equal(q.scales, plain.scales)
    expected = []
    for row, scales in zip(x.tolist(), q.scales.tolist(), strict=True):
        for k, value in enumerate(row):
            # The element is scaled exactly, then rounded to FP32 by the factor 3/4.
            y = torch.tensor(value * 2.0 ** (127 - scales[k // 32])) * torch.tensor(0.75)
            expected.append(nearest_code(Fraction(y.item()), negative=value < 0))
    assert codes_of(q).flatten().tolist() == expected
    assert not torch.equal(q.codes, plain.codes)


def test_prescale_keeps_every_rule_from_saturating():
    worst = torch.full((1, 32), 7.9999995)
    q = mxgemm.quantize(worst, rule="floor", prescale=True)
    assert q.scales.item() == 127
    # 0.75 * 7.9999995 is just under 6: the code is 7 without clipping, and decodes to 8.
    assert mxgemm.dequantize(q, torch.float64)[0, 0].item() == 8.0


@pytest.mark.parametrize("size", [16, 32, 64])
@rules
def test_rotation_comes_before_the_scales_and_is_recorded(rule, size):
    rotation = Rotation.random(size, torch.Generator().manual_seed(size))
    x = gaussian(4, 128, seed=6)
    q = mxgemm.quantize(x, rule=rule, rotation=rotation)
    assert_same(q, mxgemm.quantize(rotate(x, rotation), rule=rule))
    assert q.rotation == rotation


def test_rotation_of_a_pair_goes_along_each_halfs_own_contraction():
    rotation = Rotation(64)
    x = gaussian(40, 128, seed=7)
    pair = mxgemm.quantize_pair(x, rotation=rotation)
    assert pair.along_m.stored_k == 64
    assert_same(pair.along_k, mxgemm.quantize(x, rotation=rotation))
    assert_same(pair.along_m, mxgemm.quantize(x.t(), rotation=rotation, pad=True))


def test_dequantize_undoes_the_rotation_or_leaves_it():
    rotation = Rotation(64, 0x123456789ABCDEF0)
    x = gaussian(8, 128, seed=8)
    q = mxgemm.quantize(x, rotation=rotation)
    rotated = mxgemm.dequantize(q, rotate_to_source=False)
    back = mxgemm.dequantize(q)
    assert torch.equal(rotated, mxgemm.dequantize(mxgemm.quantize(rotate(x, rotation))))
    # The rotation is orthogonal, so quantization noise has the same size on either side.
    noise = (back - x).square().sum().sqrt() / x.square().sum().sqrt()
    assert noise < 0.2
    assert (rotated - x).square().sum() > x.square().sum() / 4


@pytest.mark.parametrize("rows", [0, 1, 31, 33, 64, 100])
def test_pair_fills_the_last_block_along_m_with_zeros(rows):
    x = gaussian(rows, 64, seed=9)
    pair = mxgemm.quantize_pair(x)
    stored = -(-rows // 32) * 32
    assert (pair.along_m.shape, pair.along_m.stored_k) == ((64, rows), stored)
    filled = torch.zeros(64, stored)
    filled[:, :rows] = x.t()
    expected = mxgemm.quantize(filled)
    assert torch.equal(pair.along_m.codes, expected.codes)
    assert torch.equal(pair.along_m.scales, expected.scales)
    assert not codes_of(pair.along_m)[:, rows:].any()


def test_pad_fills_the_last_block_along_k_with_zeros():
    x = gaussian(5, 50, seed=10)
    q = mxgemm.quantize(x, pad=True)
    assert (q.shape, q.stored_k) == ((5, 50), 64)
    filled = torch.zeros(5, 64)
    filled[:, :50] = x
    assert torch.equal(q.codes, mxgemm.quantize(filled).codes)
    assert mxgemm.dequantize(q).shape == (5, 50)


@pytest.mark.parametrize(
    "layout",
    [OperandLayout(Tile16x16(), Scale32x8()), OperandLayout.of("row_major", "scale_k_major")],
    ids=str,
)
def test_layout_is_the_canonical_result_packed(layout):
    x = gaussian(40, 96, seed=11)
    q = mxgemm.quantize(x, layout=layout)
    plain = mxgemm.quantize(x)
    assert q.layout == layout
    assert torch.equal(q.canonical_codes(), plain.codes)
    assert torch.equal(q.canonical_scales(), plain.scales)
    assert torch.equal(mxgemm.dequantize(q), mxgemm.dequantize(plain))
    pair = mxgemm.quantize_pair(x, layout=layout)
    assert pair.along_k.layout == pair.along_m.layout == layout


@pytest.mark.parametrize(
    "shape", [(32,), (2, 3, 32), (1, 1, 2, 64), (0, 32), (2, 0, 32), (4, 0), (0, 0)], ids=str
)
def test_leading_dimensions_are_flattened_to_rows(shape):
    x = gaussian(*shape, seed=12)
    q = mxgemm.quantize(x)
    rows = math.prod(shape[:-1])
    assert q.shape == (rows, shape[-1])
    assert q.codes.shape == (rows, shape[-1] // 2)
    assert q.scales.shape == (rows, shape[-1] // 32)
    assert (q.codes.dtype, q.scales.dtype) == (torch.uint8, torch.uint8)
    if x.numel():
        assert torch.equal(
            mxgemm.dequantize(q), mxgemm.dequantize(mxgemm.quantize(x.reshape(rows, -1)))
        )


def test_chunks_of_rows_do_not_change_the_result(monkeypatch):
    x = gaussian(200, 64, seed=13)
    options = [
        {"rule": "search"},
        {"block_2d": True},
        {"rotation": Rotation(64), "prescale": True},
    ]

    def results():
        draws = torch.Generator().manual_seed(1)
        plain = [mxgemm.quantize(x, **o) for o in options]
        return [*plain, mxgemm.quantize(x, rounding="stochastic", generator=draws)]

    whole = results()
    monkeypatch.setattr(reference, "CHUNK_ELEMENTS", 64 * 32)
    for one, cut in zip(whole, results(), strict=True):
        assert_same(one, cut)


def test_stochastic_rounding_uses_the_word_of_row_and_column_and_stream():
    x = gaussian(40, 64, seed=14)
    generator = torch.Generator().manual_seed(77)
    pair = mxgemm.quantize_pair(x, rule="rceil", rounding="stochastic", generator=generator)
    seed = philox.seed_from(torch.Generator().manual_seed(77))
    for stream, half, source in ((0, pair.along_k, x), (1, pair.along_m, x.t())):
        words = philox.words(seed, stream, 0, half.rows * half.stored_k, x.device)
        words = words.view(half.rows, half.stored_k)
        for row, k in ((0, 0), (0, 31), (3, 7), (half.rows - 1, half.k - 1), (17, 33)):
            k = min(k, half.k - 1)
            value = Fraction(source[row, k].item())
            y = abs(value) / power(int(half.scales[row, k // 32]) - 127)
            low = max(c for c in range(7) if GRID[c] <= y)
            t = (y - GRID[low]) / (GRID[low + 1] - GRID[low])
            up = int(words[row, k]) < t * 2**32
            assert int(codes_of(half)[row, k]) == low + up + 8 * (value < 0), (stream, row, k)


def test_stochastic_rounding_is_reproducible_and_advances():
    x = gaussian(8, 64, seed=15)

    def draw(generator):
        return mxgemm.quantize(x, rounding="stochastic", generator=generator).codes

    generator = torch.Generator().manual_seed(4)
    first, second = draw(generator), draw(generator)
    assert not torch.equal(first, second)
    assert torch.equal(draw(torch.Generator().manual_seed(4)), first)
    torch.manual_seed(4)
    assert not torch.equal(draw(None), draw(None))


def test_a_refused_call_does_not_advance_the_generator():
    generator = torch.Generator().manual_seed(4)
    before = generator.get_state()
    for wrong in ({"rule": "up"}, {"rotation": 16}):
        with pytest.raises((TypeError, ValueError)):
            mxgemm.quantize(torch.ones(1, 32), rounding="stochastic", generator=generator, **wrong)
    with pytest.raises(ValueError, match="multiple of 32"):
        mxgemm.quantize(torch.ones(1, 31), rounding="stochastic", generator=generator)
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize(
    "options",
    [
        {"rule": "ceil"},
        {"rule": "rceil"},
        {"rule": "floor", "prescale": True},
        {"rule": "even", "prescale": True},
    ],
    ids=["ceil", "rceil", "floor-prescale", "even-prescale"],
)
def test_stochastic_rounding_of_whole_blocks_is_unbiased(options):
    draws, failure = 2048, 1e-9
    x = gaussian(2, 32, seed=16)
    generator = torch.Generator().manual_seed(0)
    many = x.repeat(draws, 1)
    q = mxgemm.quantize(many, rounding="stochastic", generator=generator, **options)
    mean = mxgemm.dequantize(q, torch.float64).view(draws, 2, 32).mean(dim=0)
    # Hoeffding: each draw is one of two neighbours, at most 2 scales (8/3 when prescaled) apart.
    step = 2 * torch.exp2(q.scales[:2].double() - 127) / q.prescale
    radius = math.sqrt(math.log(2 * x.numel() / failure) / (2 * draws))
    # The prescaled element was rounded once to FP32, by 2^-24 of at most 6 scales.
    assert bool(((mean - x.double()).abs() <= (radius + 3 * 2.0**-24) * step).all())


def test_stochastic_rounding_without_headroom_is_biased_as_documented():
    q = mxgemm.quantize(torch.full((64, 32), 6.5), rule="floor", rounding="stochastic")
    assert mxgemm.dequantize(q).unique().tolist() == [6.0]


def test_a_view_that_negates_is_quantized_as_what_it_shows():
    x = torch.complex(torch.zeros(4, 64), torch.randn(4, 64)).conj().imag
    assert x.is_neg()
    assert torch.equal(mxgemm.quantize(x).codes, mxgemm.quantize(x.clone()).codes)


def test_quantize_does_not_touch_its_input_or_its_graph():
    x = gaussian(4, 64, seed=17).requires_grad_()
    before = x.detach().clone()
    mxgemm.quantize_pair(x, rotation=Rotation(16, 3), rounding="stochastic", prescale=True)
    assert torch.equal(x.detach(), before)
    assert x.grad is None


def test_dequantize_rounds_once_to_each_dtype():
    q = mxgemm.quantize(gaussian(3, 64, seed=18))
    wide = mxgemm.dequantize(q, torch.float64)
    exact = [
        [float(code_value(c) * power(int(q.scales[r, k // 32]) - 127)) for k, c in enumerate(row)]
        for r, row in enumerate(codes_of(q).tolist())
    ]
    assert wide.tolist() == exact
    for dtype in DTYPES:
        assert torch.equal(mxgemm.dequantize(q, dtype), wide.to(dtype))


REFUSED = {
    "list": ([[1.0] * 32], {}, TypeError, "takes a torch.Tensor, got list"),
    "int": (torch.ones(2, 32, dtype=torch.int32), {}, TypeError, "dtype must be one of"),
    "double": (torch.ones(2, 32).double(), {}, TypeError, "got torch.float64; convert first"),
    "complex": (torch.ones(2, 32, dtype=torch.complex64), {}, TypeError, "dtype must be one of"),
    "fp8": (torch.ones(2, 32).to(torch.float8_e4m3fn), {}, TypeError, "dtype must be one of"),
    "scalar": (torch.tensor(1.0), {}, ValueError, "at least one dimension"),
    "k48": (torch.ones(2, 48), {}, ValueError, "multiple of 32, got 48; pass pad=True"),
    "k32-h64": (
        torch.ones(2, 32), {"rotation": Rotation(64)}, ValueError, "multiple of 64, got 32",
    ),
    "rule": (torch.ones(2, 32), {"rule": "nearest"}, ValueError, "rule must be one of .*'nearest'"),
    "no-rule": (torch.ones(2, 32), {"rule": None}, ValueError, "rule must be one of"),
    "sparse": (torch.ones(2, 32).to_sparse(), {}, TypeError, "dense tensor, got torch.sparse_coo"),
    "prescale": (
        torch.ones(2, 32), {"prescale": 0.5}, TypeError, "prescale must be True or False, got 0.5",
    ),
    "block-2d": (torch.ones(2, 32), {"block_2d": "no"}, TypeError, "block_2d must be True or"),
    "pad": (torch.ones(2, 33), {"pad": 32}, TypeError, "pad must be True or False, got 32"),
    "rounding": (torch.ones(2, 32), {"rounding": "up"}, ValueError, "rounding must be one of"),
    "generator": (
        torch.ones(2, 32), {"generator": torch.Generator()}, ValueError,
        "generator is for rounding='stochastic'",
    ),
    "seed": (
        torch.ones(2, 32), {"generator": 5, "rounding": "stochastic"}, TypeError,
        "generator must be a torch.Generator, got int",
    ),
    "rotation": (torch.ones(2, 32), {"rotation": 16}, TypeError, "rotation must be .*Rotation"),
    "layout": (
        torch.ones(2, 32), {"layout": "scale_32x8"}, TypeError, "layout must be .*OperandLayout",
    ),
}  # fmt: skip


@pytest.mark.parametrize("function", [mxgemm.quantize, mxgemm.quantize_pair])
@pytest.mark.parametrize("case", REFUSED)
def test_wrong_input_is_refused(function, case):
    x, options, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        function(x, **options)


def test_dequantize_refuses_what_is_not_quantized():
    with pytest.raises(TypeError, match="takes an MXTensor, got Tensor"):
        mxgemm.dequantize(torch.ones(2, 32))
    with pytest.raises(TypeError, match="dtype must be one of"):
        mxgemm.dequantize(mxgemm.quantize(torch.ones(2, 32)), torch.int32)


@pytest.mark.parametrize("rule", ["floor", "even", "ceil", "rceil"])
def test_scales_of_every_bfloat16_block_maximum(rule):
    values = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    x = torch.zeros(1 << 16, 32, dtype=torch.bfloat16)
    x[:, 3] = values
    q = mxgemm.quantize(x, rule=rule)
    sample = range(0, 1 << 16, 7)
    for index in sample:
        value = values[index].item()
        expected = scale_byte(abs(Fraction(value)), rule) if math.isfinite(value) else 255
        assert q.scales[index, 0] == expected, hex(index)
