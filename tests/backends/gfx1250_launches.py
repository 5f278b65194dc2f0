"""Every kind of shipped gfx1250 kernel, each as the backend itself launches it, to be run again
with another listing.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import conformance
import oracles
from backends.gfx1250_kernels import AITER, LARGE, MEDIUM, PLAIN, SMALL, TILED, WORDS
from mxgemm import emulator
from mxgemm.backends.base import Accumulation
from mxgemm.backends.flydsl_gfx1250 import FlyDSLGfx1250, cost, launch, places
from mxgemm.backends.flydsl_gfx1250.config import TILE_K, TileConfig
from mxgemm.devices import DeviceSpec
from mxgemm.epilogue import IDENTITY, NO_ARGS, Activation, Epilogue, EpilogueArgs
from mxgemm.errors import MXError
from mxgemm.runtime.flydsl_compile import CompiledKernel
from mxgemm.tensor import MXTensor, OperandLayout

BACKEND = FlyDSLGfx1250()
DEVICE = DeviceSpec.parse("gfx1250:emulated")
POISON = 0xFF
"""A byte of NaN in every output dtype."""
ROWS_ARGUMENT, WALK_TILES_ARGUMENT = 16, 21
"""Positions of the GEMM kernel's `m` and `walk_tiles`."""
FORWARD = Epilogue(
    has_alpha=True,
    bias=torch.bfloat16,
    activation=Activation.GELU,
    aux_out=torch.bfloat16,
    c=torch.float32,
    bias_grad=True,
)
BACKWARD = Epilogue(
    has_alpha=True,
    dact=Activation.GELU_TANH,
    aux_in=torch.float16,
    c=torch.float32,
    bias_grad=True,
)


@dataclass(frozen=True)
class Launch:
    """One kernel, its grid and arguments, and what it leaves in those that it writes."""

    kernel: CompiledKernel
    grid: places.Grid
    values: tuple[places.Value, ...]
    written: tuple[torch.Tensor, ...]
    right: tuple[torch.Tensor, ...]

    def without(self, positions: Sequence[int]) -> "Launch":
        """Return the launch with 0 for some arguments; right is what the kernel does."""
        values = tuple(0 if at in positions else v for at, v in enumerate(self.values))
        for storage in self.written:
            storage.fill_(POISON)
        places.EmulatedPlace(places.Emulation()).run(self.kernel, self.grid, values)
        right = tuple(storage.clone() for storage in self.written)
        return replace(self, values=values, right=right)

    def failure(self, code: emulator.Kernel, seed: int) -> str | None:
        """Return what is wrong with `code` in the place of the kernel, None for nothing."""
        return self.outcome(code, seed)[0]

    def counters(self, code: emulator.Kernel, seed: int) -> emulator.Counters:
        """Return what a run that fails in nothing counts."""
        failure, counters = self.outcome(code, seed)
        assert failure is None
        assert counters is not None
        return counters

    def outcome(
        self, code: emulator.Kernel, seed: int, hook: Callable[[Any, int], None] | None = None
    ) -> tuple[str | None, emulator.Counters | None]:
        """Return what is wrong with `code` in the place of the kernel, None for nothing, and what a
        run to the end counts; `hook` sees every instruction.
        """
        machine = emulator.Machine("gfx1250")
        machine.hook("instruction", hook)
        storages = {_bytes(v).data_ptr(): _bytes(v) for v in self.values if _is_tensor(v)}
        for address, storage in storages.items():
            machine.memory.map(address, buffer=storage.numpy())
        for storage in self.written:
            storage.fill_(POISON)
        numbers = [v.data_ptr() if _is_tensor(v) else v or 0 for v in self.values]
        block = (self.kernel.threads, 1, 1)
        try:
            result = machine.launch(
                self.grid, block, numbers, self.kernel.lds_bytes, kernel=code, seed=seed, threads=1
            )
        except (emulator.EmulatorError, MXError) as error:
            return type(error).__name__, None
        finally:
            left = [storage.clone() for storage in self.written]
            for storage, right in zip(self.written, self.right, strict=True):
                storage.copy_(right)
        same = all(torch.equal(*pair) for pair in zip(left, self.right, strict=True))
        return None if same else "wrong values", result.counters


def _is_tensor(value: places.Value) -> bool:
    return isinstance(value, torch.Tensor)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


class Recorder:
    """A place that runs kernels in the emulator and keeps their launches.

    A kernel writes those of its tensors that are not in `inputs` and that no earlier kernel wrote.
    """

    def __init__(self, *inputs: torch.Tensor | None) -> None:
        self.launches: list[Launch] = []
        self._known = {_bytes(tensor).data_ptr() for tensor in inputs if tensor is not None}

    def run(
        self, kernel: CompiledKernel, grid: places.Grid, values: Sequence[places.Value]
    ) -> None:
        storages = {_bytes(v).data_ptr(): _bytes(v) for v in values if _is_tensor(v)}
        written = tuple(s for address, s in storages.items() if address not in self._known)
        self._known |= storages.keys()
        for storage in written:
            storage.fill_(POISON)
        places.EmulatedPlace(places.Emulation()).run(kernel, grid, values)
        right = tuple(storage.clone() for storage in written)
        self.launches.append(Launch(kernel, grid, tuple(values), written, right))


def _epilogue_args(epilogue: Epilogue, m: int, n: int) -> EpilogueArgs:
    generator = torch.Generator().manual_seed(m + n)

    def tensor(dtype: torch.dtype | None, *size: int) -> torch.Tensor | None:
        return None if dtype is None else torch.randn(size, generator=generator).to(dtype)

    return EpilogueArgs(
        alpha=0.37 if epilogue.has_alpha else 1.0,
        beta=0.0 if epilogue.c is None else -1.7,
        bias=tensor(epilogue.bias, n),
        c=tensor(epilogue.c, m, n),
        aux_in=tensor(epilogue.aux_in, m, n),
        aux_out=tensor(epilogue.aux_out, m, n),
        bias_grad=tensor(torch.float32 if epilogue.bias_grad else None, n),
    )


def product(
    m: int,
    n: int,
    k_tiles: int,
    *,
    tile: TileConfig,
    layouts: tuple[OperandLayout, OperandLayout] = (PLAIN, PLAIN),
    out_dtype: torch.dtype = torch.float32,
    epilogue: Epilogue = IDENTITY,
    split_tiles: int | None = None,
    walk_columns: int = 0,
) -> list[Launch]:
    """Return the launches of one product, whose result is checked."""
    plain = oracles.exact_operands(m, n, 128 * k_tiles, Accumulation(), seed=k_tiles)
    a, b = (operand.relayout(layout) for operand, layout in zip(plain, layouts, strict=True))
    args = NO_ARGS if epilogue == IDENTITY else _epilogue_args(epilogue, m, n)
    problem = conformance.problem_of(a, b, DEVICE, out_dtype, epilogue)
    tiles = split_tiles or k_tiles
    choice = cost.Choice(tile, -(-k_tiles // tiles), tiles, walk_columns=walk_columns)
    plan = BACKEND.plan_with(problem, choice)
    out = torch.empty(m, n, dtype=out_dtype)
    inputs = [a.codes, a.scales, b.codes, b.scales, args.bias, args.c, args.aux_in]
    recorder = Recorder(*inputs)
    launch.gemm(recorder, problem, plan.config, (a, b), out, args)
    if epilogue == IDENTITY:
        conformance.check_exact(out, args, a, b, epilogue, args)
    else:
        exact, bound = oracles.expected(a, b, epilogue, args, Accumulation())
        oracles.assert_within(out, exact, bound)
        conformance.check_bias_grad(args, a, b, epilogue, args, None)
    return recorder.launches


def reorder(k_blocks: int) -> list[Launch]:
    """Return the launches that prepare an operand of 300 rows, whose result is checked."""
    operand = oracles.exact_operands(300, 1, 32 * k_blocks, Accumulation(), seed=k_blocks)[0]
    recorder = Recorder(operand.codes, operand.scales)
    packed = launch.reorder(recorder, operand)
    assert _same(packed, operand.relayout(TILED))
    return recorder.launches


def _same(one: MXTensor, other: MXTensor) -> bool:
    return torch.equal(one.codes, other.codes) and torch.equal(one.scales, other.scales)


@dataclass(frozen=True)
class Kind:
    """One kind of shipped kernel.

    Attributes:
        symbol: how the kernel's name begins.
        launches: the launches, by size.
        sizes: sizes that lead through all of its code.
        counts: positions of arguments that say how many parts, tiles or rows there are; a further
            launch for each has none, which the backend does not ask for but the code provides for.
        passes: passes of the K loop in the launch of a size, where the backend launches no kernel
            of this kind without one; None elsewhere.
    """

    symbol: str
    launches: Callable[[int], list[Launch]]
    sizes: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...] = ()
    passes: Callable[[int], int] | None = None

    def all(self) -> list[Launch]:
        """Return this kernel's launches, one a size and those of no parts."""
        found = [
            each
            for size in self.sizes
            for each in self.launches(size)
            if each.kernel.symbol.startswith(self.symbol)
        ]
        assert len(found) == len(self.sizes)
        assert all(each.kernel == found[0].kernel for each in found)
        return [*found, *(found[0].without(positions) for positions in self.counts)]


SIZES = {
    1: (17, 18, 2, 1),
    2: (17, 20, 18, 19, 4, 3, 2, 1),
    4: (17, 20, 21, 24, 8, 5, 4, 1),
}
"""K tiles of problems, by those of a data stage."""


def _gemm(tile: TileConfig, *, sizes: tuple[int, ...] | None = None, **options) -> Kind:
    """One workgroup of a GEMM; a size is the number of K tiles.

    The drain has one path for even and one for odd numbers of stages, each with and without a
    steady state of two passes before it; a last stage of several K tiles is whole or not.
    """
    sizes = sizes or SIZES[tile.stage_tiles]
    make = functools.partial(product, tile.tile_m, tile.tile_n, tile=tile, **options)
    return Kind("mxfp4_gemm", make, sizes)


def _walk(**options) -> Kind:
    """One workgroup that walks over three output tiles; a size is the number of K tiles, even and
    odd, with a last scale group of eight and of two. No rows and no output tiles are more launches.
    """
    make = functools.partial(product, 256, 768, tile=LARGE, walk_columns=1, **options)
    counts = ((ROWS_ARGUMENT, WALK_TILES_ARGUMENT),)
    return Kind("mxfp4_gemm", make, (16, 11, 10), counts, passes=_passes_of_walk)


def _passes_of_walk(k_tiles: int) -> int:
    assert cost.can_walk(k_tiles * TILE_K)
    return (k_tiles - 1) // 2


def _split_sum(out_dtype: torch.dtype, epilogue: Epilogue) -> Kind:
    """Parts of eight K tiles: two, four and five of them, around the four that a pass adds."""
    options = {"tile": SMALL, "out_dtype": out_dtype, "epilogue": epilogue, "split_tiles": 8}
    make = functools.partial(product, 70, 300, **options)
    return Kind("mxfp4_split_sum", make, (9, 32, 37), counts=((9,), (11,)))


def _backward_of_rows(m: int) -> list[Launch]:
    return product(m, 300, 1, tile=SMALL, out_dtype=torch.float16, epilogue=BACKWARD)


KINDS = {
    "large-plain-f32": _gemm(LARGE),
    "large-tiled-bf16": _gemm(LARGE, layouts=(TILED, TILED), out_dtype=torch.bfloat16),
    "medium-words-f16": _gemm(MEDIUM, layouts=(WORDS, AITER), out_dtype=torch.float16),
    "small-plain-bf16": _gemm(SMALL, out_dtype=torch.bfloat16),
    "large-forward-bf16": _gemm(LARGE, out_dtype=torch.bfloat16, epilogue=FORWARD),
    "small-backward-f16": _gemm(SMALL, out_dtype=torch.float16, epilogue=BACKWARD),
    "small-split-f32": _gemm(SMALL, sizes=(47, 44, 41, 29, 28, 25), split_tiles=24),
    "walk-plain-f32": _walk(),
    "walk-tiled-bf16": _walk(layouts=(TILED, TILED), out_dtype=torch.bfloat16),
    "split-sum-forward-bf16": _split_sum(torch.bfloat16, FORWARD),
    "split-sum-backward-f16": _split_sum(torch.float16, BACKWARD),
    "bias-grad-sum": Kind("mxfp4_bias_grad_sum", _backward_of_rows, (70, 256, 326), counts=((3,),)),
    "reorder-codes": Kind("mxfp4_reorder_codes", reorder, (9, 4)),
    "reorder-scales": Kind("mxfp4_reorder_scales", reorder, (9, 4)),
}
"""By name; a GEMM's is tile, operands or epilogue, and output."""
