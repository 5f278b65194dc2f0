"""Philox4x32-10: the published known answers, and the addressing of words."""

import pytest
import torch

from mxgemm.numerics import philox

CPU = torch.device("cpu")
MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)

KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK,) * 4, (MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""Counter, key, result of the Random123 distribution's test vectors for philox4x32 with 10
rounds.
"""


def philox_4x32_10(counter, key) -> tuple[int, int, int, int]:
    """Return the four words in Python integers, as the paper's pseudo code has it."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & MASK, p0 >> 32 ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return c0, c1, c2, c3


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS, ids=["zero", "ones", "pi"])
def test_the_scalar_oracle_gives_the_published_answers(counter, key, answer):
    assert philox_4x32_10(counter, key) == answer


def test_words_give_the_published_answer_of_counter_and_key_zero():
    assert tuple(philox.words(0, 0, 0, 4, CPU).tolist()) == KNOWN_ANSWERS[0][2]


@pytest.mark.parametrize("seed", [0, 1, 0xDEADBEEF, 0x0123456789ABCDEF, 2**64 - 1])
@pytest.mark.parametrize("stream", [0, 1, MASK])
@pytest.mark.parametrize("start", [0, 4, 4096, 2**32 - 8, 2**34 - 8, 2**34, 2**40 + 12])
def test_words_follow_counter_and_key(seed, stream, start):
    count = 16
    expected = []
    for index in range(start // 4, (start + count) // 4):
        counter = (index & MASK, index >> 32, stream, 0)
        expected += philox_4x32_10(counter, (seed & MASK, seed >> 32))
    assert philox.words(seed, stream, start, count, CPU).tolist() == expected


def test_words_do_not_depend_on_how_they_are_cut():
    whole = philox.words(99, 1, 0, 256, CPU)
    pieces = [philox.words(99, 1, at, 32, CPU) for at in range(0, 256, 32)]
    assert torch.equal(torch.cat(pieces), whole)


def test_no_words_for_no_elements():
    assert philox.words(1, 0, 8, 0, CPU).numel() == 0


def test_seed_from_a_generator_is_reproducible_and_advances_it():
    def two_seeds():
        generator = torch.Generator().manual_seed(5)
        return philox.seed_from(generator), philox.seed_from(generator)

    first, second = two_seeds()
    assert (first, second) == two_seeds()
    assert first != second
    assert all(0 <= seed < 2**64 for seed in (first, second))


def test_seeds_use_all_64_bits():
    generator = torch.Generator().manual_seed(0)
    seeds = [philox.seed_from(generator) for _ in range(64)]
    union = intersection = seeds[0]
    for seed in seeds:
        union, intersection = union | seed, intersection & seed
    # A bit that is the same in all 64 fair draws has probability 2^-63.
    assert union == 2**64 - 1
    assert intersection == 0


def test_seed_from_none_uses_torchs_default_generator():
    torch.manual_seed(3)
    first = philox.seed_from(None)
    torch.manual_seed(3)
    assert philox.seed_from(None) == first
    assert philox.seed_from(None) != first
