"""E2M1 on tensors: all codes, both nibbles, every width."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from exact import code_value
from mxgemm.numerics import e2m1

ALL_CODES = torch.arange(16, dtype=torch.uint8)


def test_decode_is_exact_in_every_float_dtype():
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        values = e2m1.decode(ALL_CODES, dtype)
        assert values.dtype == dtype
        assert values.double().tolist() == [float(code_value(code)) for code in range(16)]


def test_decode_keeps_the_sign_of_zero():
    assert torch.signbit(e2m1.decode(ALL_CODES)).tolist() == [False] * 8 + [True] * 8


def test_pack_puts_the_even_index_low_for_every_pair():
    low, high = torch.meshgrid(ALL_CODES, ALL_CODES, indexing="ij")
    pairs = torch.stack((low, high), dim=-1).reshape(256, 2)
    packed = e2m1.pack(pairs)
    assert packed.dtype == torch.uint8
    assert packed.flatten().tolist() == [a | b << 4 for a in range(16) for b in range(16)]


def test_unpack_inverts_pack_for_every_byte():
    every_byte = torch.arange(256, dtype=torch.uint8).view(4, 64)
    codes = e2m1.unpack(every_byte)
    assert codes.shape == (4, 128)
    assert int(codes.max()) == 15
    assert torch.equal(e2m1.pack(codes), every_byte)


@given(st.lists(st.integers(0, 15), min_size=0, max_size=40), st.integers(1, 3))
def test_pack_round_trips_any_shape(codes, rows):
    codes = codes[: len(codes) // 2 * 2]
    matrix = torch.tensor(codes, dtype=torch.uint8).repeat(rows, 1)
    assert torch.equal(e2m1.unpack(e2m1.pack(matrix)), matrix)
