"""Which Hopper kernel does a problem, and in which configuration: plain data, chosen without a
device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mxgemm.problem import GemmProblem, Numerics
from mxgemm.quantizers.cuda import block_defines
from mxgemm.runtime.nvrtc import Source

NUM_MULTIPROCESSORS = 132
"""Of an H100 or H200 SXM; only the choice of a configuration uses it, launches ask the device."""

BLOCK = 32
TILE_K = 128
POWERS_MULTIPLE = 128
"""Row powers are stored for a multiple of this many rows."""

FOLD_WARPS = 8
"""Warps of a block of the fold of many rows, and of the quantizer that folds."""

FOLD_CHUNKS = 8
"""Chunks of 16 codes that a lane of the fold of many rows asks for at once."""

QUANTIZING_WARPS = (1, 2, 4, 8, 16)
"""Warps that quantize_folded.cu may give a row."""

FOLDED_TILE_N = 128
FOLDED_SUM_ROWS = 64
"""Rows of a consumer warpgroup, and of D that one partial sum of a bias gradient covers."""

FOLDED_OUTPUT_BOX = (16, 64)
"""Rows of a warp, and columns that fill a swizzled row of 128 bytes."""

DECODED_OUTPUT_BOX = (64, 64)

FITTED_LARGEST = 16
"""Tiles of an operand up to which boxes may end with its rows."""

TALL_TILE_COST = 0.97
"""Time of a row of a tile of 192 rows, as a part of that of one of 128 (H200, 8192 x 8192 x 8192
and 8192 x 8192 x 28672: 0.95 to 0.98, 2026-11-30)."""

DECODED_TILES = {(128, 1): 0.74, (256, 1): 1.0, (256, 2): 0.96}
"""What a tile takes, by its rows of activations and the blocks that decode its weight together:
decoding is the same for few rows and for many (H200, n = k = 8192, 2026-11-30: A folded 20.2 us for
m = 128, 27.0 for 256; A packed for 512 alone 60.6, in pairs 58.5, for 1024 115 and 110).
"""

PACKED_TILE_ROWS = 64
PACKED_TILE_BYTES = PACKED_TILE_ROWS * TILE_K // 2 + PACKED_TILE_ROWS * TILE_K // BLOCK
SHARED_BYTES = 232448
"""Of a block on Hopper: 227 KiB."""

IN_REGISTERS_LARGEST_M = 64
"""Above, a packed weight is decoded through shared memory instead of in registers."""

PACKED_EARLY_STAGES = 8
"""Stages of weights asked for while the fold of the activations still runs; more of them stand in
the way of the activations when those come (H200, m = 16: 13.6 us with 1, 13.3 with 4, 12.8 with 8;
an earlier form, m = 1: 13.1 with 4, 14.4 with 12; 2026-11-30).
"""

PACKED_LARGEST_M = 2048
"""Above, the weight is unpacked for the folded kernel, instead of decoded for every tile of tokens
(H200, A packed, decoding and unpacking first, us: n = k = 8192 170 and 187 for m = 1536, 232 to 255
and 241 to 245 for 2048, 382 and 342 for 3072; n = k = 4096 61 and 67 for 2048; n = k = 2048 20 and
24 for 2048; 2026-11-30).
"""

STRICT_PACKED_LARGEST_M = 1024
"""The same for strict numerics, for which it was not measured."""

CANONICAL_LARGEST_M = 256
"""The same for a weight that was not prepared, against folding all of it (H200, n = k = 8192:
28.1 us at m = 128; 50.2 at m = 256, where folding all takes 55.1, 2026-11-30).
"""

ALIGNMENT = 256
"""Of every buffer inside the workspace."""

MAX_TICKETS = 256
"""One a multiprocessor; the fold zeroes them with one block."""

DTYPE_CODES = {None: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class FoldedConfig:
    """gemm_folded.cu: both operands E4M3.

    Attributes:
        strict: promote every 32 k instead of every 128.
        plain: D is 16 bits wide and gets alpha * product and nothing else; it leaves by TMA where
        its rows allow.
        dtype: of D.
        consumers: warpgroups that multiply 64 rows of a tile each: 2, with two temporary
            accumulators, or 3, with one.
        fitted: boxes of the last tiles end with the operands' rows, instead of being filled there.
    """

    strict: bool
    plain: bool
    dtype: torch.dtype
    consumers: int
    fitted: bool

    @property
    def tile_m(self) -> int:
        """Rows of a tile."""
        return self.consumers * FOLDED_SUM_ROWS

    @property
    def threads(self) -> int:
        """Of a block: the consumers and the producer's warpgroup."""
        return 128 * (self.consumers + 1)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block; kSharedBytes of the source."""
        stages, chunks = (6, 2) if self.consumers == 2 else (5, 1) if self.plain else (4, 2)
        stage = (self.tile_m + FOLDED_TILE_N) * TILE_K
        out = chunks * FOLDED_SUM_ROWS * 128
        powers = 2 * 2 * (FOLDED_SUM_ROWS + FOLDED_TILE_N)
        return stages * stage + self.consumers * (out + powers) + 2 * stages * 8 + 16

    def box_rows(self, rows: int, tile_rows: int) -> tuple[int, int]:
        """Return the rows of the boxes of whole tiles and of the last one."""
        return box_rows(rows, tile_rows) if self.fitted else (tile_rows, tile_rows)

    @property
    def source(self) -> Source:
        """The translation unit."""
        return Source(
            HERE / "gemm_folded.cu",
            (
                ("MX_CONSUMERS", self.consumers),
                ("MX_FITTED", int(self.fitted)),
                ("MX_STEPS_PER_PROMOTION", 1 if self.strict else 4),
                ("MX_PLAIN_DTYPE", DTYPE_CODES[self.dtype] if self.plain else 0),
            ),
        )


@dataclass(frozen=True, slots=True)
class PackedConfig:
    """gemm_packed.cu: the weight decoded in registers.

    Attributes:
        tokens: rows of A in a tile: 8, 16, 32 or 64.
        split: warpgroups that share the contraction of a tile.
        stages: of the ring of copies.
        strict: promote every 32 k instead of every 128.
    """

    tokens: int
    split: int
    stages: int
    strict: bool = False

    name = "gemm_packed"
    rows = PACKED_TILE_ROWS
    """Rows of the weight in a tile."""
    cluster = 1
    """Blocks that share its decoding."""

    @property
    def source(self) -> Source:
        """The translation unit."""
        return Source(
            HERE / "gemm_packed.cu",
            (
                ("MX_TOKENS", self.tokens),
                ("MX_SPLIT", self.split),
                ("MX_STAGES", self.stages),
                ("MX_STEPS_PER_PROMOTION", 1 if self.strict else 4),
            ),
        )

    @property
    def threads(self) -> int:
        """Of a block: the consumer warpgroups and the producer's."""
        return 128 * (self.split + 1)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block; kSharedBytes of the source."""
        stage = self.tokens * TILE_K + PACKED_TILE_BYTES
        sums = self.split * self.tokens * self.rows * 4
        powers = self.split * 4 * (self.rows + self.tokens)
        return self.stages * stage + sums + powers + 8 * 16 + 16 * self.stages

    @property
    def sum_rows(self) -> int:
        """Rows of D that one partial sum of a bias gradient covers."""
        return self.tokens


@dataclass(frozen=True, slots=True)
class DecodedConfig:
    """gemm_decoded.cu: the weight, packed or canonical, folded through shared memory.

    Attributes:
        tokens: rows of A in a tile: 8, 16, 32, 64, 128 or 256.
        stages: of the ring of folded operands.
        depth: groups of codes that a decoding lane holds or has asked for.
        pieces: of 16 rows of the weight that a warp decodes at a time: 1 or 2.
        cluster: blocks that share the decoding of 64 rows, with `tokens` each: 1 or 2.
        canonical: the weight was not prepared.
        strict, plain, dtype: as of `FoldedConfig`.
    """

    tokens: int
    stages: int
    depth: int
    pieces: int
    cluster: int
    canonical: bool
    strict: bool
    plain: bool
    dtype: torch.dtype

    name = "gemm_decoded"
    rows = PACKED_TILE_ROWS
    """Rows of the weight in a tile."""

    @property
    def source(self) -> Source:
        """The translation unit."""
        return Source(
            HERE / "gemm_decoded.cu",
            (
                ("MX_TOKENS", self.tokens),
                ("MX_STAGES", self.stages),
                ("MX_DEPTH", self.depth),
                ("MX_PIECES", self.pieces),
                ("MX_CLUSTER", self.cluster),
                ("MX_CANONICAL", int(self.canonical)),
                ("MX_STEPS_PER_PROMOTION", 1 if self.strict else 4),
                ("MX_PLAIN_DTYPE", DTYPE_CODES[self.dtype] if self.plain else 0),
            ),
        )

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply, with up to 128 tokens each."""
        return 2 if self.tokens > 128 else 1

    @property
    def threads(self) -> int:
        """Of a block: the consumers and two decoding warpgroups."""
        return 128 * (self.consumers + 2)

    @property
    def sum_rows(self) -> int:
        """Rows of D that one partial sum of a bias gradient covers."""
        return min(self.tokens, 32)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block; kSharedBytes of the source."""
        stages = self.stages * (self.tokens + self.rows) * TILE_K
        out = self.consumers * self.sum_rows * self.rows * 4
        powers = 2 * 2 * (self.rows + self.tokens)
        barriers = 8 * (2 * self.stages + 4)
        return stages + out + powers + 8 * 16 + barriers


@dataclass(frozen=True, slots=True)
class HopperConfig:
    """What a plan holds: a kernel for folded weights, and those for packed and for canonical ones
    where they are worth their while.
    """

    folded: FoldedConfig
    packed: PackedConfig | DecodedConfig | None
    canonical: DecodedConfig | None
    launchers: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)
    """The host side, made at the first call on a device."""

    def __str__(self) -> str:
        promotion = "promoted every 32" if self.folded.strict else "promoted every 128"
        text = f"e4m3 wgmma {promotion}; folded {self.folded.tile_m}x{FOLDED_TILE_N}x{TILE_K}"
        if self.folded.fitted:
            text += ", boxes end with the rows"
        for weight, config in (("packed", self.packed), ("canonical", self.canonical)):
            if config is not None:
                tile = f"{config.rows}x{config.tokens}x{TILE_K}"
                where = "registers" if config.name == "gemm_packed" else "shared memory"
                text += f"; {weight} weight {tile}, decoded in {where}"
                if config.cluster > 1:
                    text += f" by {config.cluster} blocks together"
        return text


def choose(problem: GemmProblem) -> HopperConfig:
    """Return the configuration for a problem that the backend accepts."""
    strict = problem.numerics is Numerics.STRICT
    epilogue = problem.epilogue
    extras = (epilogue.bias, epilogue.aux_out, epilogue.aux_in, epilogue.c)
    bare = str(epilogue.activation) == "none" and not epilogue.bias_grad
    plain = bare and all(extra is None for extra in extras)
    sixteen_bits = problem.out_dtype.itemsize == 2
    consumers = _consumers(problem.m, problem.n)
    fitted = _fits(problem.m, consumers * FOLDED_SUM_ROWS) or _fits(problem.n, FOLDED_TILE_N)
    folded = FoldedConfig(strict, plain and sixteen_bits, problem.out_dtype, consumers, fitted)
    return HopperConfig(folded, _packed(problem, folded), _canonical(problem, folded))


def _fits(rows: int, tile_rows: int) -> bool:
    """Return whether boxes that end with an operand's rows take less time than filled ones: the
    last tile lacks so many rows that filling holds it up, and is one of few.

    H200, n = k = 8192, both folded, boxes filled and boxes that end, us: 45 and 30 for m = 129, 33
    and 30 for 193, 216 and 198 for 1921, which has 16 tiles. m = 300, which lacks 84 rows of 192,
    takes as long as 384 with both, but 1.2 times as long when filled in one process of three;
    where no row is missing, or 52 of 192 (m = 1100), boxes that end take 2 to 3 % longer
    (2026-11-30). More tiles, and columns that are missing, were not measured.
    """
    return rows <= FITTED_LARGEST * tile_rows and 5 * (-rows % tile_rows) >= 2 * tile_rows


def _consumers(m: int, n: int) -> int:
    """Return the consumers whose tiles take the least time: waves times the time of a tile."""

    def time(consumers: int, cost: float) -> float:
        rows = consumers * FOLDED_SUM_ROWS
        return _waves(-(-m // rows) * -(-n // FOLDED_TILE_N)) * rows * cost

    return 3 if time(3, TALL_TILE_COST) < time(2, 1.0) else 2


def _packed(problem: GemmProblem, folded: FoldedConfig) -> PackedConfig | DecodedConfig | None:
    m, strict = problem.m, folded.strict
    if m > (STRICT_PACKED_LARGEST_M if strict else PACKED_LARGEST_M):
        return None
    if m > IN_REGISTERS_LARGEST_M:
        return _decoded(problem, folded, canonical=False)
    tokens = _tokens(m)
    return PackedConfig(tokens, 4, 16 if tokens <= 32 else 12, strict)


def _canonical(problem: GemmProblem, folded: FoldedConfig) -> DecodedConfig | None:
    if problem.m > CANONICAL_LARGEST_M:
        return None
    return _decoded(problem, folded, canonical=True)


def _tokens(m: int) -> int:
    return next((tokens for tokens in (8, 16, 32, 64, 128) if m <= tokens), 256)


def _decoded(problem: GemmProblem, folded: FoldedConfig, *, canonical: bool) -> DecodedConfig:
    """Return the form whose tiles take the least time; they hold all of A's rows where those are
    few.
    """
    tokens, cluster = _tokens(problem.m), 1
    if tokens > 128:
        forms = [(128, 1)] if canonical or folded.strict else list(DECODED_TILES)
        tokens, cluster = min(forms, key=lambda form: _decoding_time(problem, *form))
    stages = 5 if tokens > 128 else 8
    # A pair's block has two pieces of a group, which two warps decode sooner than one. Canonical
    # codes come straight from memory, so that more of them have to be on their way.
    depth, pieces = (2, 2) if canonical else (1, 2) if cluster == 1 else (2, 1)
    plain = folded.plain and tokens >= 64
    return DecodedConfig(
        tokens, stages, depth, pieces, cluster, canonical, folded.strict, plain, folded.dtype
    )


def decoding_tiles(m: int, n: int, tokens: int, cluster: int) -> int:
    """Return the tiles of a kernel that decodes a tile of the weight for so many tokens; the blocks
    of a cluster each have one at a time, if only of padding.
    """
    return -(-m // (tokens * cluster)) * cluster * -(-n // PACKED_TILE_ROWS)


def _decoding_time(problem: GemmProblem, tokens: int, cluster: int) -> float:
    """Waves times the time of a tile."""
    tiles = decoding_tiles(problem.m, problem.n, tokens, cluster)
    return _waves(tiles) * DECODED_TILES[tokens, cluster]


def _waves(tiles: int) -> int:
    return -(-tiles // NUM_MULTIPROCESSORS)


class FoldShape(NamedTuple):
    """How fold.cu shares out its work.

    Attributes:
        warps: that share a row.
        block_warps: of a block.
        chunks: of 16 codes that a lane asks for at once.
    """

    warps: int
    block_warps: int
    chunks: int

    @property
    def source(self) -> Source:
        """The translation unit."""
        names = ("MX_WARPS", "MX_BLOCK_WARPS", "MX_CHUNKS")
        return Source(HERE / "fold.cu", tuple(zip(names, self, strict=True)))

    def grid(self, rows: int) -> tuple[int, int]:
        """Return the blocks that fold so many rows."""
        return -(-rows * self.warps // self.block_warps), 1


SHAPES_OF_FEW_ROWS = {
    128: FoldShape(4, 4, 4),
    512: FoldShape(8, 32, 4),
    1024: FoldShape(4, 16, 4),
    1536: FoldShape(4, 32, 4),
}
"""Up to so many rows; more fill the device in any form.

Blocks that wait for the kernel before gather on the first multiprocessors which it leaves, so that
their size decides how many of those work. With blocks of 4, 8 and 16 warps the fold is 2.0, 2.5 and
2.6 us of a call at 128 rows; 7.2, 3.4 and 3.9 us at 512; 13.6, 5.3 and 2.8 us at 1024. Blocks of
32, one a multiprocessor, take 0.6 us less than those of 8 at 512, and 9 less than those of 16 at
1536, the same at 1152 (H200, k = 8192, 2026-11-30).
"""


def fold_shape(rows: int, k: int) -> FoldShape:
    """Return the form of the fold: for few rows one that was measured at k = 8192, else one that
    asks for all of a row at once, where a block can.
    """
    for largest, shape in SHAPES_OF_FEW_ROWS.items():
        if rows <= largest:
            return shape
    fitting = (warps for warps in (1, 2, 4) if warps * FOLD_CHUNKS * 16 * 32 >= k)
    return FoldShape(next(fitting, FOLD_WARPS), FOLD_WARPS, FOLD_CHUNKS)


def quantizing_warps(dtype: torch.dtype, k: int) -> int | None:
    """Return how many warps of quantize_folded.cu hold a row in their registers, if any number
    does.
    """
    elements = 1024 if dtype is torch.float32 else 2048
    return next((warps for warps in QUANTIZING_WARPS if warps * elements >= k), None)


def quantize_folded_source(dtype: torch.dtype, rule: str, warps: int) -> Source:
    """Return the translation unit of quantize_folded.cu that gives a row this many warps."""
    return Source(HERE / "quantize_folded.cu", (*block_defines(dtype, rule), ("MX_WARPS", warps)))


def box_rows(rows: int, tile_rows: int) -> tuple[int, int]:
    """Return the rows of the box of a tile and of that of the last tile, of which neither reaches
    past an operand's rows: see boxes.cuh.
    """
    return min(rows, tile_rows), (rows - 1) % tile_rows + 1


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple that holds `value`."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Areas:
    """Offsets of a call's intermediate buffers in its one allocation, and its size; in bytes."""

    a_folded: int
    a_powers: int
    b_folded: int
    b_powers: int
    sums: int
    tickets: int
    nbytes: int


def areas(problem: GemmProblem, config: HopperConfig) -> Areas:
    """Return where the intermediate buffers of a call lie; what a prepared operand brings along
    takes no room.

    A packed weight may have to be unpacked, and a smaller configuration may write fewer sums: the
    areas are the largest.
    """
    k = problem.k
    decoder = config.packed if problem.b.prepared_by else config.canonical
    a_rows = 0 if problem.a.prepared_by else problem.m
    b_rows = 0 if decoder is not None else problem.n
    sum_rows = decoder.sum_rows if decoder is not None else FOLDED_SUM_ROWS
    sum_groups = -(-problem.m // min(sum_rows, FOLDED_SUM_ROWS))
    sizes = (
        a_rows * k,
        2 * round_up(a_rows, POWERS_MULTIPLE),
        b_rows * k,
        2 * round_up(b_rows, POWERS_MULTIPLE),
        4 * sum_groups * problem.n if problem.epilogue.bias_grad else 0,
        4 * MAX_TICKETS if a_rows or b_rows else 0,
    )
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + round_up(size, ALIGNMENT))
    return Areas(*offsets)
