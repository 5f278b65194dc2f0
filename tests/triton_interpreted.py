"""Runs triton_dot_scaled's kernel in Triton's interpreter and compares it with exact products; a
program of its own, because Triton reads TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import torch

import oracles
from mxgemm import accuracy
from mxgemm.backends.base import Accumulation
from mxgemm.backends.triton_dot_scaled import TileConfig
from mxgemm.backends.triton_dot_scaled.kernel import gemm_kernel
from mxgemm.tensor import MXTensor

SHAPES = ((1, 1, 32), (5, 9, 96), (40, 70, 320), (33, 130, 256))
CONFIGS = (TileConfig(tile_m=32, tile_n=64, tile_k=64), TileConfig(tile_m=64, num_warps=4))


def product(config: TileConfig, a: MXTensor, b: MXTensor, alpha: float) -> torch.Tensor:
    m, n = a.rows, b.rows
    out = torch.full((m, n), torch.nan)
    tiles = -(-m // config.tile_m) * -(-n // config.tile_n)
    gemm_kernel[(tiles,)](
        *(a.codes, a.scales, b.codes, b.scales, out),
        *(m, n, a.stored_k),
        *(t.stride(0) for t in (a.codes, a.scales, b.codes, b.scales, out)),
        alpha,
        **config.constants,
        **config.options,
    )
    return out


def main() -> None:
    for config in CONFIGS:
        for m, n, k in SHAPES:
            a, b = oracles.exact_operands(m, n, k, Accumulation(), seed=m + n)
            exact = accuracy.exact_product(a, b)[0]
            for alpha in (1.0, -0.5):
                oracles.assert_same_bits(product(config, a, b, alpha), (alpha * exact).float())


if __name__ == "__main__":
    main()
