"""Hadamard rotations: the matrix, exact cancellation, signs, inverse, and the order of the FP32
operations.
"""

import numpy as np
import pytest
import torch

from mxgemm.numerics.hadamard import SIZES, Rotation, rotate, rotate_back

SIGNS = {16: 0xA5A51234, 32: 0x80000001, 64: 0xF00DBAADCAFE0123}


def sylvester(size: int) -> np.ndarray:
    """Return the natural-order matrix: entry (i, j) is -1 to the number of common bits."""
    return np.array(
        [[1 - 2 * ((i & j).bit_count() % 2) for j in range(size)] for i in range(size)],
        dtype=np.int64,
    )


def integers(rows: int, columns: int, seed: int, bound: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-bound, bound + 1, (rows, columns), generator=generator).float()


def flipped(x: np.ndarray, rotation: Rotation) -> np.ndarray:
    flips = [-1 if rotation.signs >> (k % rotation.period) & 1 else 1 for k in range(x.shape[1])]
    return x * np.array(flips)


@pytest.mark.parametrize("with_signs", [False, True], ids=["plain", "signs"])
@pytest.mark.parametrize("size", SIZES)
def test_rotation_without_normalisation_is_the_sylvester_matrix(size, with_signs):
    rotation = Rotation(size, SIGNS[size] if with_signs else 0)
    x = integers(5, 192, seed=size)
    blocks = flipped(x.numpy().astype(np.int64), rotation).reshape(5, -1, size)
    expected = (blocks @ sylvester(size)).reshape(5, 192)
    got = rotate(x, rotation, normalise=False).numpy()
    assert np.array_equal(got, expected)
    assert not np.array_equal(got, x.numpy())


def test_size_16_is_transformer_engines_form_on_both_halves_of_a_block():
    x = integers(3, 32, seed=1)
    expected = np.concatenate(
        [x.numpy()[:, :16] @ sylvester(16) / 4, x.numpy()[:, 16:] @ sylvester(16) / 4], axis=1
    )
    assert np.array_equal(rotate(x, Rotation(16)).numpy(), expected)


def test_size_16_signs_are_two_masks_of_16_bits():
    # The low half of the mask flips elements 0..15 of a block and the high half 16..31.
    x = torch.ones(1, 32)
    low_only = rotate(x, Rotation(16, 0x0000FFFF), normalise=False)
    assert low_only[0].tolist() == [-16] + [0] * 15 + [16] + [0] * 15


@pytest.mark.parametrize("with_signs", [False, True], ids=["plain", "signs"])
@pytest.mark.parametrize("size", [16, 64])
def test_rotation_cancels_exactly_in_a_product(size, with_signs):
    rotation = Rotation(size, SIGNS[size] if with_signs else 0)
    a, b = integers(7, 128, seed=2), integers(9, 128, seed=3)
    rotated = rotate(a, rotation).double() @ rotate(b, rotation).double().t()
    assert torch.equal(rotated, a.double() @ b.double().t())
    # One side alone does not.
    assert not torch.equal(rotate(a, rotation).double() @ b.double().t(), rotated)


@pytest.mark.parametrize("with_signs", [False, True], ids=["plain", "signs"])
def test_size_32_cancels_exactly_with_one_final_division(with_signs):
    rotation = Rotation(32, SIGNS[32] if with_signs else 0)
    a, b = integers(7, 128, seed=4), integers(9, 128, seed=5)
    left = rotate(a, rotation, normalise=False).double()
    right = rotate(b, rotation, normalise=False).double()
    assert torch.equal(left @ right.t() / 32, a.double() @ b.double().t())


@pytest.mark.parametrize("size", [16, 64])
def test_rotate_back_inverts_exactly_where_normalisation_is_a_power_of_two(size):
    rotation = Rotation(size, SIGNS[size])
    x = integers(4, 128, seed=6)
    assert torch.equal(rotate_back(rotate(x, rotation), rotation), x)


def test_rotate_back_of_size_32_is_within_its_roundings():
    rotation = Rotation(32, SIGNS[32])
    x = integers(4, 128, seed=7)
    back = rotate_back(rotate(x, rotation), rotation)
    # Two multiplications by FP32(1/sqrt(32)) and ten additions along a path of magnitude at most
    # 32 * 12: each is off by at most half an ulp, 2^-24 of that magnitude.
    assert (back - x).abs().max().item() <= 12 * 32 * 12 * 2.0**-24


@pytest.mark.parametrize("size", SIZES)
def test_butterflies_round_in_the_defined_order(size):
    rng = np.random.default_rng(size)
    x = (rng.standard_normal((3, 128)) * 2.0 ** rng.integers(-20, 20, (3, 128))).astype(np.float32)
    work = x.copy()
    distance = 1
    while distance < size:
        for start in range(0, 128, 2 * distance):
            for k in range(start, start + distance):
                a, b = work[:, k].copy(), work[:, k + distance].copy()
                work[:, k], work[:, k + distance] = a + b, a - b
        distance *= 2
    work *= np.float32({16: 0.25, 32: 0.17677669, 64: 0.125}[size])
    got = rotate(torch.from_numpy(x), Rotation(size)).numpy()
    assert np.array_equal(got.view(np.uint32), work.view(np.uint32))


@pytest.mark.parametrize("size", [0, 8, 24, 128, -16])
def test_rotation_refuses_another_size(size):
    with pytest.raises(ValueError, match="size must be one of"):
        Rotation(size)


@pytest.mark.parametrize(("size", "signs"), [(16, 1 << 32), (32, 1 << 32), (64, 1 << 64), (16, -1)])
def test_rotation_refuses_a_mask_wider_than_its_period(size, signs):
    with pytest.raises(ValueError, match="signs must be a mask"):
        Rotation(size, signs)


def test_random_signs_come_from_the_generator():
    def draw(seed):
        return Rotation.random(64, torch.Generator().manual_seed(seed))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert Rotation.random(16, torch.Generator().manual_seed(0)).signs >> 16 != 0


def test_rotation_prints_what_it_is():
    assert str(Rotation(32)) == "hadamard32"
    assert str(Rotation(16, 0xFF)) == "hadamard16/signs=0xff"
