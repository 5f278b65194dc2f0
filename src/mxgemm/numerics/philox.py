"""Philox4x32-10: random words as a pure function of (seed, stream, element index).

A counter-based generator makes stochastic rounding reproducible on every device and for every
tiling: each element has its own 32-bit word, whichever kernel rounds it. Source: Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import torch

MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
MASK = 0xFFFFFFFF
WORDS = 4
"""Words that one counter value gives."""


def _multiply(a: int, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the high and low 32 bits of a*b; int64 wraps modulo 2^64, which keeps both halves
    right.
    """
    product = b * a
    return (product >> 32) & MASK, product & MASK


def words(seed: int, stream: int, start: int, count: int, device: torch.device) -> torch.Tensor:
    """Return the words of elements start..start+count-1 as int64 in 0..2^32-1.

    Element i takes word i % 4 of the counter (i // 4 low, i // 4 high, stream, 0) under the key
    (seed low, seed high).

    Args:
        seed: 64-bit key, 0 <= seed < 2^64.
        stream: 32-bit stream number; streams of one seed are independent.
        start: index of the first element, a multiple of 4.
        count: number of elements, a multiple of 4.
        device: where the words are made.
    """
    assert start % WORDS == 0
    assert count % WORDS == 0
    index = torch.arange(start // WORDS, (start + count) // WORDS, dtype=torch.int64, device=device)
    c0, c1 = index & MASK, index >> 32
    c2, c3 = torch.full_like(index, stream), torch.zeros_like(index)
    k0, k1 = seed & MASK, seed >> 32
    for _ in range(ROUNDS):
        high0, low0 = _multiply(MULTIPLIER_0, c0)
        high1, low1 = _multiply(MULTIPLIER_1, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL_0) & MASK, (k1 + WEYL_1) & MASK
    return torch.stack((c0, c1, c2, c3), dim=-1).flatten()


def seed_from(generator: torch.Generator | None) -> int:
    """Draw a 64-bit seed from `generator` (torch's default one when None), advancing it."""
    device = generator.device if generator is not None else torch.device("cpu")
    halves = torch.randint(0, 1 << 32, (2,), generator=generator, device=device, dtype=torch.int64)
    low, high = halves.tolist()
    return int(high) << 32 | int(low)
