"""Vector instructions that convert between integers, floats and halves, on edge values."""

import math

import numpy as np
import pytest

from edge_values import EDGES, FLOAT_VALUES, M32, assert_same_floats
from gfx1250_programs import LANES, run_wave

pytestmark = pytest.mark.emulated

ROUNDING = np.concatenate(
    [
        FLOAT_VALUES,
        np.array(
            [
                65504,
                65519.99,
                65520,
                6.1e-5,
                5.96e-8,
                2.98e-8,
                2.9e-8,
                1e-7,
                1.0009765625,
                1.00048828125,
            ],
            np.float32,
        ),
        np.array(
            [0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800001, 0xFFC00000], np.uint32
        ).view(np.float32),
    ]
)


def to_bf16(x: np.float32) -> int:
    bits = int(np.float32(x).view(np.uint32))
    if np.isnan(x):
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF


def test_two_floats_become_packed_halves():
    a = np.resize(ROUNDING, LANES)
    b = a[::-1].copy()
    got = run_wave("v_cvt_pk_bf16_f32 v9, v1, v2", vectors={1: a, 2: b}).vectors[9]
    assert got.tolist() == [to_bf16(x) | to_bf16(y) << 16 for x, y in zip(a, b, strict=True)]
    got = run_wave("v_cvt_pk_f16_f32 v9, v1, v2", vectors={1: a, 2: b}).vectors[9]
    with np.errstate(all="ignore"):
        for half, source in ((got & 0xFFFF, a), (got >> 16, b)):
            values, want = half.astype(np.uint16).view(np.float16), source.astype(np.float16)
            assert (np.isnan(values) == np.isnan(want)).all()
            assert (
                values[~np.isnan(want)].view(np.uint16) == want[~np.isnan(want)].view(np.uint16)
            ).all()


def test_halves_widen_exactly():
    codes = np.arange(1 << 16, dtype=np.uint32).reshape(-1, LANES)[::97]
    for row in codes:
        got = run_wave("v_cvt_f32_f16 v9, v1", vectors={1: row}).vectors[9].view(np.float32)
        assert_same_floats(
            got, row.astype(np.uint16).view(np.float16).astype(np.float32), "v_cvt_f32_f16"
        )
        assert (run_wave("v_cvt_f32_bf16 v9, v1", vectors={1: row}).vectors[9] == row << 16).all()


def test_integers_and_floats_convert_with_saturation():
    edges = np.resize(np.array(EDGES, np.uint32), LANES)

    def run(program, values):
        return run_wave(program, vectors={1: values}).vectors[9]

    assert (run("v_cvt_f32_u32 v9, v1", edges).view(np.float32) == edges.astype(np.float32)).all()
    assert (
        run("v_cvt_f32_i32 v9, v1", edges).view(np.float32)
        == edges.view(np.int32).astype(np.float32)
    ).all()
    assert (run("v_cvt_f32_ubyte0 v9, v1", edges).view(np.float32) == (edges & 0xFF)).all()
    floats = np.resize(
        np.array([0.9, -0.9, 2.5, -2.5, 3e9, 5e9, -5e9, math.inf, -math.inf, math.nan], np.float32),
        LANES,
    )
    want_u = [0, 0, 2, 0, 3000000000, M32, 0, M32, 0, 0]
    want_i = [0, 0, 2, -2, 0x7FFFFFFF, 0x7FFFFFFF, -(1 << 31), 0x7FFFFFFF, -(1 << 31), 0]
    assert run("v_cvt_u32_f32 v9, v1", floats)[:10].tolist() == want_u
    assert run("v_cvt_i32_f32 v9, v1", floats)[:10].view(np.int32).tolist() == want_i


def test_one_float_becomes_a_half_and_leaves_the_other_half():
    a, old = np.resize(ROUNDING, LANES), np.full(LANES, 0xABCD1234, np.uint32)
    got = run_wave("v_cvt_f16_f32 v9.l, v1", vectors={1: a, 9: old}).vectors[9]
    assert (got >> 16 == 0xABCD).all()
    got &= 0xFFFF
    with np.errstate(all="ignore"):
        want = a.astype(np.float16)
    numbers = ~np.isnan(want)
    assert (got[numbers] == want[numbers].view(np.uint16)).all()
    assert np.isnan(got[~numbers].astype(np.uint16).view(np.float16)).all()


def test_half_register_move_leaves_the_other_half():
    a, old = np.full(LANES, 0x99995678, np.uint32), np.full(LANES, 0xABCD1234, np.uint32)
    assert (run_wave("v_mov_b16 v9.l, v1.l", vectors={1: a, 9: old}).vectors[9] == 0xABCD5678).all()
