"""Scale rules: exact arithmetic, a whole binade, every 16-bit amax, golden values, brute force."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mxgemm
from exact import power, scale_byte, search_byte
from mxgemm.numerics import e2m1
from mxgemm.quantizers.scale_rules import RULES, scale_bytes

CLOSED = ("floor", "even", "ceil", "rceil")
LARGEST_FLOAT = (2 - 2.0**-23) * 2.0**127

# First value of a block of otherwise zeros: (byte, code) under floor, even, ceil, rceil.
GOLDEN = {
    0.0: ((127, 0), (127, 0), (127, 0), (127, 0)),
    4.0: ((127, 6), (127, 6), (127, 6), (127, 6)),
    6.0: ((127, 7), (127, 7), (128, 5), (127, 7)),
    6.5: ((127, 7), (127, 7), (128, 5), (128, 5)),
    6.99: ((127, 7), (127, 7), (128, 5), (128, 5)),
    7.0: ((127, 7), (128, 6), (128, 6), (128, 6)),
    7.5: ((127, 7), (128, 6), (128, 6), (128, 6)),
    8.0: ((128, 6), (128, 6), (128, 6), (128, 6)),
    3e38: ((252, 7), (253, 6), (253, 6), (253, 6)),
    2.0**-125: ((0, 6), (0, 6), (0, 6), (0, 6)),
    2.0**-126: ((0, 4), (0, 4), (0, 4), (0, 4)),
    2.0**-127: ((0, 2), (0, 2), (0, 2), (0, 2)),
    float("nan"): ((255, 0),) * 4,
    float("inf"): ((255, 0),) * 4,
    float("-inf"): ((255, 0),) * 4,
}


def bytes_of(amax: np.ndarray, rule: str) -> np.ndarray:
    """Return the bytes of blocks of one element each."""
    return scale_bytes(torch.from_numpy(amax)[:, None], rule).numpy()


def formula(amax: np.ndarray, rule: str) -> np.ndarray:
    """Return the bytes of positive amax from logarithms in FP64, which frexp gives exactly."""
    wide = amax.astype(np.float64)
    if rule == "rceil":
        # a / 6 rounds in FP64, but a is a power of two times 6 or off by 2^-24 of it.
        mantissa, exponent = np.frexp(wide / 6)
        log2 = exponent - (mantissa == 0.5) + 2
    else:
        mantissa, exponent = np.frexp(wide)
        up = {"floor": 0, "even": mantissa >= 0.875, "ceil": mantissa > 0.5}[rule]
        log2 = exponent - 1 + up
    return np.maximum(log2 - 2 + 127, 0).astype(np.int32)


@pytest.mark.parametrize("rule", CLOSED)
def test_rule_of_every_float32_in_a_binade(rule):
    first, size = int(np.float32(4).view(np.uint32)), 1 << 20
    for start in range(first, first + (1 << 23), size):
        amax = np.arange(start, start + size, dtype=np.uint32).view(np.float32)
        assert np.array_equal(bytes_of(amax, rule), formula(amax, rule))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("rule", CLOSED)
def test_rule_of_every_positive_16_bit_amax(rule, dtype):
    values = torch.arange(1, 1 << 15, dtype=torch.int32).to(torch.uint16).view(dtype).float()
    amax = values[values.isfinite()].numpy()
    assert np.array_equal(bytes_of(amax, rule), formula(amax, rule))


@pytest.mark.parametrize("rule", CLOSED)
def test_rule_beside_every_threshold_of_every_binade_in_exact_arithmetic(rule):
    mantissas = [0, 1, 0x3FFFFF, 0x400000, 0x400001, 0x5FFFFF, 0x600000, 0x600001, 0x7FFFFF]
    bits = [e << 23 | m for e in range(255) for m in mantissas if e or m]
    amax = np.array(bits, dtype=np.uint32).view(np.float32)
    expected = [scale_byte(Fraction(float(a)), rule) for a in amax]
    assert bytes_of(amax, rule).tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("rule", CLOSED)
def test_rule_of_every_positive_finite_float32(rule):
    for start in range(0, 0x7F800000, 1 << 23):
        amax = np.arange(max(start, 1), start + (1 << 23), dtype=np.uint32).view(np.float32)
        assert np.array_equal(bytes_of(amax, rule), formula(amax, rule)), hex(start)


@pytest.mark.parametrize("column", range(32), ids=lambda c: f"at{c}")
@pytest.mark.parametrize("rule", RULES)
def test_amax_sees_every_column_and_both_signs(rule, column):
    block = torch.full((2, 32), 0.5)
    block[0, column], block[1, column] = 4.0, -4.0
    assert scale_bytes(block, rule).tolist() == [127, 127]


@pytest.mark.parametrize("amax", GOLDEN, ids=[f"{v:g}" for v in GOLDEN])
def test_golden_values(amax):
    for rule, (byte, code) in zip(CLOSED, GOLDEN[amax], strict=True):
        x = torch.zeros(1, 32)
        x[0, 0] = amax
        q = mxgemm.quantize(x, rule=rule)
        assert (int(q.scales[0, 0]), int(q.codes[0, 0] & 0xF)) == (byte, code), rule
        assert not q.codes[0, 1:].any()


@pytest.mark.parametrize("rule", RULES)
def test_largest_float32_gets_a_byte_below_nan(rule):
    (byte,) = bytes_of(np.array([LARGEST_FLOAT], dtype=np.float32), rule).tolist()
    assert byte == {"floor": 252}.get(rule, 253)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("column", [0, 1, 16, 31])
def test_nan_and_inf_anywhere_make_the_block_nan_and_no_other(rule, poison, column):
    blocks = torch.ones(3, 32)
    blocks[1, column] = poison
    clean = scale_bytes(torch.ones(1, 32), rule).item()
    assert scale_bytes(blocks, rule).tolist() == [clean, 255, clean]


@pytest.mark.parametrize("rule", RULES)
def test_zero_blocks_get_scale_one(rule):
    assert scale_bytes(torch.tensor([[0.0] * 32, [-0.0] * 32]), rule).tolist() == [127, 127]


@pytest.mark.parametrize("rule", ["ceil", "rceil"])
def test_rules_that_round_up_never_saturate(rule):
    amax = torch.arange(1, 1 << 15, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).float()
    amax = amax[amax.isfinite()].double()
    byte = torch.from_numpy(bytes_of(amax.float().numpy(), rule))
    assert bool((amax <= 6 * torch.pow(2.0, (byte - 127).double())).all())


@pytest.mark.parametrize(
    ("rule", "share"), [("floor", "(1.5, 2)"), ("even", "(1.5, 1.75)")], ids=["floor", "even"]
)
def test_rules_that_saturate_do_so_for_the_documented_mantissas(rule, share):
    low, high = (float(v) for v in share.strip("()").split(", "))
    mantissa = 1 + np.arange(1 << 12) / (1 << 12)
    amax = (mantissa * 4).astype(np.float32)
    saturates = amax > 6 * 2.0 ** (bytes_of(amax, rule) - 127.0)
    assert np.array_equal(saturates, (mantissa > low) & (mantissa < high))


def random_blocks(count: int, seed: int) -> torch.Tensor:
    """Return blocks of many shapes: Gaussian, heavy-tailed, short grids full of ties, any
    magnitude.
    """
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(count, 32, generator=generator)
    heavy = gaussian**3
    grid = torch.randint(-16, 17, (count, 32), generator=generator) / 4
    sizes = torch.randint(-120, 120, (3 * count, 1), generator=generator).float()
    return torch.cat((gaussian, heavy, grid)) * torch.exp2(sizes)


def test_search_is_its_definition():
    blocks = random_blocks(60, seed=1)
    edges = torch.zeros(6, 32)
    edges[0, 0], edges[1, 0], edges[2, 0] = 2.0**-149, 2.0**-126, LARGEST_FLOAT
    edges[3], edges[4], edges[5] = 2.0**-127, LARGEST_FLOAT, torch.linspace(0, 7.9, 32)
    blocks = torch.cat((blocks, edges))
    assert scale_bytes(blocks, "search").tolist() == [search_byte(b) for b in blocks.tolist()]


def test_search_tries_the_larger_scale_first():
    # Squared errors of one 7.5 and 320 times 0.25: 22.25 under byte 127, and 20.25 under 128 (all
    # 0.25 lost) as well as under 126 (7.5 cut to 3). A tie of the neighbours needs a whole tile.
    tile = torch.zeros(1, 1024)
    tile[0, 0], tile[0, 1:321] = 7.5, 0.25
    assert scale_bytes(tile, "search").tolist() == [128]
    assert search_byte(tile[0].tolist()) == 128


def test_search_finds_the_least_error_of_all_bytes():
    blocks = random_blocks(40, seed=2)
    chosen = scale_bytes(blocks, "search")
    errors = []
    for byte in range(255):
        y = blocks.double() * 2.0 ** (127 - byte)
        grid = torch.tensor([v / 2 for v in (0, 1, 2, 3, 4, 6, 8, 12)], dtype=torch.float64)
        distance = (y.abs()[..., None] - grid).abs().amin(dim=-1)
        # Scaled by each block's own size, so that no error under- or overflows.
        errors.append((distance * 2.0 ** (byte - chosen.double())[:, None]).square().sum(dim=1))
    errors = torch.stack(errors, dim=1)
    mine = errors.gather(1, chosen[:, None].long())[:, 0]
    # FP64 sums of 32 squares: equal minima may differ by 32 roundings.
    assert bool((mine <= errors.amin(dim=1) * (1 + 64 * 2.0**-53)).all())
    assert not torch.equal(chosen, scale_bytes(blocks, "floor"))


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=32, max_size=32)
)
def test_bytes_of_any_finite_block_are_the_definitions(block):
    amax = max(abs(Fraction(v)) for v in block)
    groups = torch.tensor([block])
    for rule in CLOSED:
        assert scale_bytes(groups, rule).item() == scale_byte(amax, rule)
    assert scale_bytes(groups, "search").item() == search_byte(block)


@given(st.integers(-100, 100), st.integers(0, 2**32 - 1), st.sampled_from(RULES))
def test_a_power_of_two_moves_scales_only(exponent, seed, rule):
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(seed))
    q = mxgemm.quantize(x, rule=rule)
    moved = mxgemm.quantize(x * 2.0**exponent, rule=rule)
    assert torch.equal(moved.codes, q.codes)
    assert torch.equal(moved.scales.int(), q.scales.int() + exponent)


def test_largest_scale_decodes_to_infinity_in_float32_and_exactly_in_float64():
    x = torch.zeros(1, 32)
    x[0, 0] = 3e38
    q = mxgemm.quantize(x, rule="ceil")
    assert mxgemm.dequantize(q)[0, 0].item() == float("inf")
    assert Fraction(mxgemm.dequantize(q, torch.float64)[0, 0].item()) == power(128)
    assert e2m1.decode(q.codes & 0xF)[0, 0] == 4
