"""The compiled quantizer gives the reference's bytes: every rule, rounding, rotation, block shape
and dtype, on every instruction set and number of threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

import mxgemm
from mxgemm.backends.native_cpu import NativeCpu
from mxgemm.numerics.hadamard import Rotation
from mxgemm.quantizers import native_cpu, reference
from mxgemm.quantizers.options import QuantizeOptions
from mxgemm.quantizers.scale_rules import RULES
from mxgemm.runtime import native_cpu as runtime

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(
        not runtime.available_isas(), reason=str(NativeCpu().probe() or "the extension is there")
    ),
]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROTATIONS = (None, Rotation(16), Rotation(32, 0x5A5A1234), Rotation(64, 0x123456789ABCDEF0))
DATA = ("normal", "all_exponents", "special", "grid", "zeros")
SIZES = ((1, 64), (33, 128), (130, 320))


@pytest.fixture(params=runtime.available_isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An instruction set, in force for the test."""
    monkeypatch.setenv("MXGEMM_CPU_ISA", request.param)
    return str(request.param)


@pytest.fixture
def threads() -> Iterator[None]:
    """Restore the number of threads after a test that changes it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def make(kind: str, rows: int, k: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * 1000 + k)
    x = torch.randn(rows, k, generator=generator)
    if kind == "all_exponents":
        x *= torch.exp2(torch.randint(-150, 128, (rows, 1), generator=generator).float())
    elif kind == "special":
        for value in (torch.nan, torch.inf, -torch.inf, 0.0, -0.0):
            x.view(-1)[torch.randint(0, rows * k, (rows * k // 300 + 1,), generator=generator)] = (
                value
            )
    elif kind == "grid":
        # Multiples of 1/8 of a power of two: ties of every kind.
        x = torch.randint(-64, 65, (rows, k), generator=generator) / 8
        x *= torch.exp2(torch.randint(-3, 4, (rows, 1), generator=generator).float())
    elif kind == "zeros":
        x *= torch.randint(0, 2, (rows, k // 32), generator=generator).repeat_interleave(32, 1)
        x[::3] = -0.0
    return x.to(dtype)


def check(x: torch.Tensor, options: QuantizeOptions, k: int | None = None) -> None:
    """Fail unless both halves and the single matrix agree byte for byte with the reference's."""
    rows, columns = x.shape
    multiple = options.contraction_multiple
    stored_k = k or -(-columns // multiple) * multiple
    stored_m = -(-rows // multiple) * multiple
    right = reference.quantize_both(x, stored_k, stored_m, options)
    both = native_cpu.quantize_both(x, stored_k, stored_m, options)
    single = native_cpu.quantize_matrix(x, stored_k, options)
    for name, ours, theirs in (
        ("along_k", both[0], right[0]),
        ("along_m", both[1], right[1]),
        ("single", single, right[0]),
    ):
        for part, mine, wanted in zip(("codes", "scales"), ours, theirs, strict=True):
            bad = (mine != wanted).nonzero()
            if len(bad):
                at = tuple(bad[0].tolist())
                raise AssertionError(
                    f"{len(bad)} bytes of {name} {part} differ, first at {at}: got "
                    f"{mine[at].item():#x}, right {wanted[at].item():#x}"
                )


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_plain_quantization_gives_the_reference_bytes(
    isa: str, kind: str, dtype: torch.dtype, rule: str
) -> None:
    for rows, k in SIZES:
        check(make(kind, rows, k, dtype), QuantizeOptions(rule=rule))


@pytest.mark.parametrize("rotation", ROTATIONS, ids=str)
@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
@pytest.mark.parametrize("rule", RULES)
def test_every_option_gives_the_reference_bytes(
    isa: str, rotation: Rotation | None, rounding: str, rule: str
) -> None:
    seed = 0xFEDCBA9876543210 if rounding == "stochastic" else 0
    factors = itertools.product((False, True), (False, True))
    for i, (block_2d, prescale) in enumerate(factors):
        options = QuantizeOptions(
            rule=rule,
            rounding=rounding,
            rotation=rotation,
            block_2d=block_2d,
            prescale=prescale,
            seed=seed,
        )
        rows, k = SIZES[i % len(SIZES)]
        check(make(DATA[i], rows, k, DTYPES[i % 3]), options)


def test_every_bfloat16_value_gives_the_reference_bytes(isa: str) -> None:
    """All 65536 patterns beside neighbours that choose each scale, NaN and Inf included."""
    values = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = values.view(2048, 32).clone()
    for rule in RULES:
        check(x, QuantizeOptions(rule=rule))
        # The largest of each block two binades up, so that small codes and ties below 1 occur.
        y = torch.where(x.isfinite() & (x.abs() < 2.0**120), x, 0.0)
        y[:, 0] = y.abs().amax(1) * 4
        check(y, QuantizeOptions(rule=rule))


def test_the_number_of_threads_changes_nothing(isa: str, threads: None) -> None:
    x = make("special", 700, 448, torch.bfloat16)
    for options in (QuantizeOptions(), QuantizeOptions(rounding="stochastic", seed=7)):
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            along_k, along_m = native_cpu.quantize_both(x, 448, 704, options)
            results.append((*along_k, *along_m))
        for result in results[1:]:
            assert all(map(torch.equal, result, results[0]))


def test_strided_sources_and_padded_contractions(isa: str) -> None:
    wide = make("normal", 70, 400, torch.bfloat16)
    options = QuantizeOptions()
    check(wide[::2, 3:131], options)
    check(wide.t()[5:69], options, k=96)
    check(wide[:, :100], options, k=128)
    check(wide[:1].expand(40, -1)[:, :64], options)
    check(wide[:33, :77].float(), QuantizeOptions(rotation=Rotation(64, 3)), k=128)


def test_quantize_uses_it_and_says_so_nowhere_else(isa: str) -> None:
    """The entry point gives the same tensor as the reference, layouts and tags included."""
    x = make("normal", 64, 128, torch.bfloat16)
    tensor = mxgemm.quantize(x, rule="rceil")
    codes, scales = reference.quantize_matrix(x, 128, QuantizeOptions(rule="rceil"))
    assert torch.equal(tensor.codes, codes)
    assert torch.equal(tensor.scales, scales)
    assert native_cpu.accepts(x, QuantizeOptions())


def test_large_results_take_the_memory_of_earlier_ones_that_are_gone() -> None:
    """And only of those: what somebody still holds keeps its codes."""
    x = make("normal", 2048, 1024, torch.bfloat16)
    first = mxgemm.quantize(x)
    address, kept = first.codes.data_ptr(), first.codes.clone()
    assert first.codes.numel() >= native_cpu.RECYCLED_BYTES
    second = mxgemm.quantize(-x)
    assert second.codes.data_ptr() != address
    assert torch.equal(first.codes, kept)
    view = first.codes[7:9]
    del first
    other = mxgemm.quantize(-x)
    assert other.codes.data_ptr() != address
    assert torch.equal(view, kept[7:9])
    del view
    third = mxgemm.quantize(x)
    assert third.codes.data_ptr() == address
    assert torch.equal(third.codes, kept)


@pytest.mark.parametrize("shape", [(2048, 2048), (4100, 1056)], ids=str)
def test_results_written_past_the_caches_are_the_same(
    isa: str, shape: tuple[int, int], threads: None
) -> None:
    x = make("special", *shape, torch.bfloat16)
    for count in (1, 2):
        torch.set_num_threads(count)
        check(x, QuantizeOptions())
