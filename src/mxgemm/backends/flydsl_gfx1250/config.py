"""What a gfx1250 kernel is compiled for: tile, operand forms, output and epilogue, and the LDS map
that follows from them.

Owns every size and byte offset of the kernel and says which combinations are valid. Knows neither
FlyDSL nor a device, so that plans can be made and tested anywhere.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import StrEnum

import torch

from mxgemm.backends.base import Rejection, RejectionCode
from mxgemm.epilogue import IDENTITY, Epilogue
from mxgemm.tensor import OperandLayout

WAVE_LANES = 32
"""gfx1250 runs wave32 only (CDNA5 ISA guide, "Wave32")."""
WMMA_ROWS = 16
"""Rows of either operand of V_WMMA_SCALE_F32_16X16X128_F8F6F4."""
TILE_K = 128
"""Contraction of that instruction: a K tile."""
BLOCK = 32
"""Elements that share a scale (OCP MX v1.0)."""
CHUNK_BYTES = BLOCK // 2
"""One block's codes: the unit in which lanes read LDS (DS_LOAD_B128)."""
ROW_BYTES = TILE_K // 2
"""One row's codes of a K tile."""
WORD_BYTES = TILE_K // BLOCK
"""One row's scales of a K tile: four bytes, the scale operand of one WMMA."""
PAIR_TILES = 2
"""K tiles whose scales a lane reads at once."""
PAIR_BYTES = PAIR_TILES * WORD_BYTES
BANK_LINE_BYTES = 256
"""64 LDS banks of 4 bytes (CDNA5 ISA guide, "Local data share")."""
LDS_LIMIT_BYTES = 327_680
"""LDS of one gfx1250 workgroup processor."""
SCALE_GROUP = 8
"""K tiles whose scales one scale stage holds: with four waves, one refill in eight iterations is
one copy a wave.
"""
SCALE_STAGES = 2
STAGE_TILES = (1, 2, 4)
"""K tiles that a data stage may hold: whole scale groups are whole pairs of stages."""
COPY_WAVES = 4
"""Waves that copy; each issues one TDM transfer an iteration, so that one wait count is right for
all.
"""
STORE_BYTES = 147_456
"""LDS that the epilogue may use, 144 KiB."""
DEPARTURE_ROWS = 32
"""Rows of a wave's output that leave at once during a walk: with 128 rows in LDS, all have left
after eight data stages.
"""
WALK_STAGES = 10
"""Data stages of an output tile from which on a workgroup can walk: departures have ended, scale
groups are two or more."""

REDUCE_THREADS = 256
"""Lanes of a workgroup of the small kernels."""
SLICE_ROWS = 64
"""Rows that one lane of `split_sum` walks over, and one slice of its bias gradient."""


class CodesForm(StrEnum):
    """How an operand's codes lie in global memory, and with that in LDS; named as their layout.

    ROW_MAJOR: plain rows. The TDM leaves 16 bytes free after each row of a stage, so that 16 rows
        fall on different banks.
    TILE_16X16: 16 rows by 16 bytes lie together. A K tile of 16 rows is contiguous in global
        memory, dense in LDS, and 16 rows of one chunk fill the banks once.
    """

    ROW_MAJOR = "row_major"
    TILE_16X16 = "tile_16x16"

    @property
    def group_rows(self) -> int:
        """Rows that one row of a TDM transfer holds."""
        return WMMA_ROWS if self is CodesForm.TILE_16X16 else 1

    @property
    def row_pad_bytes(self) -> int:
        """Bytes that the TDM leaves free after each row."""
        return CHUNK_BYTES if self is CodesForm.ROW_MAJOR else 0

    def pitch_bytes(self, stage_tiles: int) -> int:
        """LDS bytes of one row in a data stage of so many K tiles."""
        return stage_tiles * ROW_BYTES + self.row_pad_bytes


class ScalesForm(StrEnum):
    """How an operand's scales lie in global memory, and with that in LDS; named as their layout.

    ROW_MAJOR: plain rows. A scale stage holds 32 bytes of each row and 8 free ones after them, so
        that 32 rows' pairs of K tiles fill the banks once.
    K_MAJOR: one K tile's dwords of all rows lie together. A stage holds eight times the tile's
    rows.
    TILE_32X4: one K tile's dwords of 32 rows lie together. A stage holds eight of them per 32 rows.
    """

    ROW_MAJOR = "row_major"
    K_MAJOR = "scale_k_major"
    TILE_32X4 = "scale_32x4"

    def stage_bytes(self, rows: int) -> int:
        """LDS bytes of one stage for `rows` rows."""
        return rows * (SCALE_GROUP * WORD_BYTES + self.row_pad_bytes)

    @property
    def row_pad_bytes(self) -> int:
        """Bytes that the TDM leaves free after each row of a stage."""
        return PAIR_BYTES if self is ScalesForm.ROW_MAJOR else 0


@dataclass(frozen=True, slots=True)
class OperandForm:
    """Both forms of one operand."""

    codes: CodesForm = CodesForm.ROW_MAJOR
    scales: ScalesForm = ScalesForm.ROW_MAJOR

    @classmethod
    def of(cls, layout: OperandLayout) -> OperandForm | None:
        """Return the form that reads operands of `layout`, None where there is none."""
        try:
            return cls(CodesForm(layout.codes.name), ScalesForm(layout.scales.name))
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.codes}+{self.scales}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TileConfig:
    """Sizes of one workgroup's work: `tile_m` x `tile_n` outputs by `waves_m` x `waves_n` waves,
    `num_stages` data stages of `stage_tiles` K tiles each.

    Waits, barriers and copies come once a stage, so that a tile of few matrix instructions wants
    more of them in one.
    """

    tile_m: int = 256
    tile_n: int = 256
    waves_m: int = 2
    waves_n: int = 2
    num_stages: int = 3
    stage_tiles: int = 1

    @property
    def num_waves(self) -> int:
        """Waves of a workgroup."""
        return self.waves_m * self.waves_n

    @property
    def num_threads(self) -> int:
        """Lanes of a workgroup."""
        return self.num_waves * WAVE_LANES

    @property
    def wave_m(self) -> int:
        """Output rows of one wave."""
        return self.tile_m // self.waves_m

    @property
    def wave_n(self) -> int:
        """Output columns of one wave."""
        return self.tile_n // self.waves_n

    @property
    def fragments_m(self) -> int:
        """Fragments of 16 rows of A in a wave."""
        return self.wave_m // WMMA_ROWS

    @property
    def fragments_n(self) -> int:
        """Fragments of 16 rows of B in a wave."""
        return self.wave_n // WMMA_ROWS

    @property
    def wmmas(self) -> int:
        """Matrix instructions of a wave in one K tile."""
        return self.fragments_m * self.fragments_n

    @property
    def group_stages(self) -> int:
        """Data stages whose scales one scale stage holds."""
        return SCALE_GROUP // self.stage_tiles

    def validate(self) -> Rejection | None:
        """Return why no kernel can be made of these sizes, or None. Which of those that can are
        shipped is for `cost.CANDIDATES` to say.
        """
        wanted = None
        if min(astuple(self)) < 1:
            wanted = "sizes of 1 or more"
        elif self.num_waves != COPY_WAVES:
            wanted = f"{COPY_WAVES} waves, which share the copies, got {self.num_waves}"
        elif self.tile_m % (2 * WMMA_ROWS * self.waves_m) or self.tile_n % (
            2 * WMMA_ROWS * self.waves_n
        ):
            wanted = (
                f"wave tiles of whole 32-row pairs of fragments, got {self.wave_m}x{self.wave_n}"
            )
        elif self.wave_n < 2 * WAVE_LANES:
            wanted = f"waves of {2 * WAVE_LANES} columns or more, two a lane, got {self.wave_n}"
        elif self.num_stages < 3:
            wanted = f"3 data stages or more: read, awaited, in flight; got {self.num_stages}"
        elif self.stage_tiles not in STAGE_TILES:
            wanted = f"{STAGE_TILES} K tiles a stage, got {self.stage_tiles}"
        elif max(self.tile_m, self.tile_n) > 256:
            wanted = f"tiles up to 256, the accumulators' limit, got {self.tile_m}x{self.tile_n}"
        if wanted is None:
            return None
        return Rejection(RejectionCode.SHAPE, f"tile {self}: needs {wanted}")

    def __str__(self) -> str:
        waves = f"{self.waves_m}x{self.waves_n}w"
        return f"{self.tile_m}x{self.tile_n}x{TILE_K * self.stage_tiles}/{waves}/{self.num_stages}s"


def is_direct(epilogue: Epilogue) -> bool:
    """Return whether an epilogue is at most a factor alpha."""
    return epilogue in (IDENTITY, Epilogue(has_alpha=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec:
    """Everything that a GEMM kernel is specialized for; equal specs are one code object.

    Attributes:
        tile: sizes.
        a, b: operand forms.
        out_dtype: dtype of the output, float32 for a split's partial products.
        epilogue: what happens on the way out, the identity for a split.
        walks: whether a workgroup walks over several output tiles.
    """

    tile: TileConfig = TileConfig()
    a: OperandForm = OperandForm()
    b: OperandForm = OperandForm()
    out_dtype: torch.dtype = torch.float32
    epilogue: Epilogue = IDENTITY
    walks: bool = False

    # LDS of the K loop: 2 x (scales of A | scales of B), num_stages x (codes of A | codes of B).
    # The data stages stand last, so that the highest byte in use is the same for every K.

    @property
    def b_scales_offset(self) -> int:
        """Where the scales of B begin in a scale stage; those of A begin at 0."""
        return self.a.scales.stage_bytes(self.tile.tile_m)

    @property
    def scale_stage_bytes(self) -> int:
        """One scale stage: A, then B."""
        return self.b_scales_offset + self.b.scales.stage_bytes(self.tile.tile_n)

    @property
    def stages_offset(self) -> int:
        """Where the first data stage begins."""
        return SCALE_STAGES * self.scale_stage_bytes

    @property
    def a_stage_bytes(self) -> int:
        """Codes of A in one data stage."""
        return self.tile.tile_m * self.a.codes.pitch_bytes(self.tile.stage_tiles)

    @property
    def stage_bytes(self) -> int:
        """One data stage: A, then B."""
        b_pitch = self.b.codes.pitch_bytes(self.tile.stage_tiles)
        return self.a_stage_bytes + self.tile.tile_n * b_pitch

    @property
    def loop_bytes(self) -> int:
        """LDS of the K loop; independent of K."""
        return self.stages_offset + self.tile.num_stages * self.stage_bytes

    # LDS of the epilogue: each wave has its own piece, so that its passes need no barrier. It lies
    # over that of the K loop, but behind it in a walk, where the next tile's loop has begun.

    @property
    def is_direct(self) -> bool:
        """Whether fragments go to the output without a second look."""
        return is_direct(self.epilogue)

    def io_pitch_bytes(self, dtype: torch.dtype) -> int:
        """LDS bytes between rows of a wave's output piece: 16 bytes more than its columns, against
        bank conflicts.
        """
        return self.tile.wave_n * dtype.itemsize + CHUNK_BYTES

    @property
    def _pass_tensors(self) -> dict[str, torch.dtype]:
        """What a pass holds in LDS, by name; FP32 output takes the place of the values."""
        if self.is_direct:
            return {"out": self.out_dtype}
        epilogue = self.epilogue
        wanted = {
            "values": torch.float32,
            "out": None if self.out_dtype is torch.float32 else self.out_dtype,
            "aux_in": epilogue.aux_in,
            "aux_out": epilogue.aux_out,
            "c": epilogue.c,
        }
        return {name: dtype for name, dtype in wanted.items() if dtype is not None}

    @property
    def _pass_row_bytes(self) -> int:
        return sum(self.io_pitch_bytes(dtype) for dtype in self._pass_tensors.values())

    @property
    def pass_rows(self) -> int:
        """Rows of its piece that a wave brings out at once: half, or less where more tensors must
        fit; all in a walk, if they fit.
        """
        rows = self.tile.wave_m if self.walks else max(self.tile.wave_m // 2, WMMA_ROWS)
        while rows > WMMA_ROWS and self.tile.num_waves * rows * self._pass_row_bytes > STORE_BYTES:
            rows //= 2
        return rows

    @property
    def regions(self) -> dict[str, tuple[int, torch.dtype]]:
        """Byte offset in a wave's piece and dtype of each tensor of a pass, and of one "row"."""
        offset, regions = 0, {}
        for name, dtype in self._pass_tensors.items():
            regions[name] = (offset, dtype)
            offset += self.pass_rows * self.io_pitch_bytes(dtype)
        regions.setdefault("out", (0, torch.float32))
        regions["row"] = (offset, torch.float32)
        return regions

    @property
    def wave_store_bytes(self) -> int:
        """LDS of one wave in the epilogue: its regions, the row only for bias or bias gradient."""
        needs_row = self.epilogue.bias is not None or self.epilogue.bias_grad
        return self.regions["row"][0] + needs_row * self.io_pitch_bytes(torch.float32)

    @property
    def store_offset(self) -> int:
        """Where the epilogue's LDS begins."""
        return self.loop_bytes if self.walks else 0

    @property
    def lds_bytes(self) -> int:
        """Dynamic LDS of a workgroup."""
        store_end = self.store_offset + self.tile.num_waves * self.wave_store_bytes
        return max(self.loop_bytes, store_end)

    def validate(self) -> Rejection | None:
        """Return why no kernel exists for this, or None."""
        rejection = self.tile.validate()
        if rejection is None and self.walks and not (self.is_direct and self.tile == TileConfig()):
            rejection = Rejection(
                RejectionCode.EPILOGUE,
                f"a walk needs the tile {TileConfig()} and at most a factor alpha, got {self}",
            )
        if rejection is None and self.lds_bytes > LDS_LIMIT_BYTES:
            rejection = Rejection(
                RejectionCode.MEMORY,
                f"tile {self.tile}: at most {LDS_LIMIT_BYTES} bytes of LDS, got {self.lds_bytes}",
            )
        return rejection

    def __str__(self) -> str:
        name = f"{self.tile} a:{self.a} b:{self.b}"
        walks = ", walks" if self.walks else ""
        return f"{name} -> {str(self.out_dtype)[6:]} {self.epilogue}{walks}"


@dataclass(frozen=True, slots=True)
class SplitSumSpec:
    """What the kernel that sums a split contraction's parts is specialized for."""

    out_dtype: torch.dtype
    epilogue: Epilogue
