"""Which (N, K) the linear layers of well-known models have, and which GEMM each training pass is.

Source of the table: TransformerEngine's micro-benchmark configurations; N and K are those of one
tensor-parallel rank.
"""

from __future__ import annotations

LAYERS = ("qkv", "attn_out", "gate_up", "down")

MODEL_LAYERS: dict[str, tuple[tuple[int, int], ...]] = {
    "llama3.1-8b/tp1": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    "llama3.1-8b/tp8": ((768, 4096), (4096, 512), (3584, 4096), (4096, 1792)),
    "llama3.1-70b/tp8": ((1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584)),
    "llama3.1-405b/tp8": ((2304, 16384), (16384, 2048), (13312, 16384), (16384, 6656)),
    "qwen2.5-7b/tp1": ((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)),
    "qwen2.5-72b/tp8": ((1280, 8192), (8192, 1024), (7392, 8192), (8192, 3696)),
}
"""(N, K) of each of LAYERS by model and tensor parallelism."""

PASSES = ("fprop", "dgrad", "wgrad")


def pass_shape(pass_name: str, tokens: int, n: int, k: int) -> tuple[int, int, int]:
    """Return (M, N, K) of the GEMM D[M, N] = A[M, K] @ B[N, K].T that a pass of a layer does.

    Args:
        pass_name: one of PASSES.
        tokens: rows of the layer's input.
        n, k: output and input features of the layer.

    Raises:
        KeyError: another pass.
    """
    return {"fprop": (tokens, n, k), "dgrad": (tokens, k, n), "wgrad": (n, k, tokens)}[pass_name]
