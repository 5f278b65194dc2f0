"""flydsl_gfx1250 without a compiler: what it accepts, how it chooses, how it lays LDS out, how it
passes arguments.
"""

import dataclasses
import itertools
import re
import struct

import pytest
import torch

from mxgemm.backends.base import RejectionCode
from mxgemm.backends.flydsl_gfx1250 import FlyDSLGfx1250, cost, launch, places
from mxgemm.backends.flydsl_gfx1250.config import (
    BANK_LINE_BYTES,
    CHUNK_BYTES,
    LDS_LIMIT_BYTES,
    ROW_BYTES,
    WMMA_ROWS,
    CodesForm,
    KernelSpec,
    OperandForm,
    ScalesForm,
    TileConfig,
)
from mxgemm.devices import DeviceSpec
from mxgemm.emulator.gfx1250 import MAX_GRID
from mxgemm.epilogue import Activation, Epilogue, EpilogueArgs
from mxgemm.errors import UnsupportedProblem
from mxgemm.problem import GemmProblem, Numerics, OperandSpec
from mxgemm.runtime.flydsl_compile import CompiledKernel
from mxgemm.tensor import MXTensor, OperandLayout

pytestmark = pytest.mark.host

BACKEND = FlyDSLGfx1250()
EMULATED, REAL = DeviceSpec.parse("gfx1250:emulated"), DeviceSpec.parse("gfx1250")
TILED = OperandForm(CodesForm.TILE_16X16, ScalesForm.K_MAJOR)
KIB = 1024


def problem(**fields: object) -> GemmProblem:
    return GemmProblem(**{"m": 16, "n": 16, "k": 64, "device": EMULATED, **fields})


@pytest.mark.parametrize(
    ("codes", "scales"),
    [
        (codes, scales)
        for codes in ("row_major", "tile_16x16")
        for scales in ("row_major", "scale_k_major", "scale_32x4", "rocm_te_plain_scales")
    ],
)
def test_check_accepts_the_layouts_that_the_kernel_reads(codes, scales):
    spec = OperandSpec(layout=OperandLayout.of(codes, scales))
    assert BACKEND.check(problem(a=spec, b=spec)) is None


@pytest.mark.parametrize(
    ("fields", "code", "match"),
    [
        ({"device": DeviceSpec.parse("gfx950")}, RejectionCode.ARCH, "needs gfx1250, got gfx950"),
        ({"device": REAL, "numerics": Numerics.STRICT}, RejectionCode.NUMERICS, "order of sums"),
        ({"k": 1 << 28}, RejectionCode.SHAPE, "k below"),
        ({"n": 65_535 * 256 + 1}, RejectionCode.SHAPE, "m and n up to"),
        (
            {"b": OperandSpec(layout=OperandLayout.of("row_major", "scale_32x8"))},
            RejectionCode.LAYOUT,
            "relayout",
        ),
        ({"a": OperandSpec(prepared_by="native_cpu")}, RejectionCode.LAYOUT, "native_cpu"),
    ],
)
def test_check_rejects_with_required_and_actual(fields, code, match):
    rejection = BACKEND.check(problem(**fields))
    assert rejection is not None
    assert rejection.code is code
    assert match in rejection.detail


def test_lds_is_within_what_each_form_needs():
    plain = KernelSpec(out_dtype=torch.bfloat16)
    tiled = dataclasses.replace(plain, a=TILED, b=TILED)
    assert plain.loop_bytes == 160 * KIB
    assert tiled.loop_bytes == 128 * KIB
    assert tiled.lds_bytes <= 144 * KIB
    assert plain.lds_bytes <= 160 * KIB


@pytest.mark.parametrize("tile", cost.CANDIDATES, ids=str)
@pytest.mark.parametrize(
    "epilogue",
    [
        Epilogue(),
        Epilogue(c=torch.float32),
        Epilogue(
            has_alpha=True,
            bias=torch.float32,
            activation=Activation.GELU,
            aux_out=torch.float32,
            c=torch.float32,
            bias_grad=True,
        ),
        Epilogue(dact=Activation.RELU, aux_in=torch.float32, c=torch.float16, bias_grad=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_shipped_tiles_are_valid_and_regions_do_not_overlap(tile, epilogue, out_dtype):
    spec = KernelSpec(tile=tile, epilogue=epilogue, out_dtype=out_dtype)
    assert spec.validate() is None
    assert spec.lds_bytes <= LDS_LIMIT_BYTES
    assert tile.wave_m % spec.pass_rows == 0
    ends = {}
    for name, (offset, dtype) in spec.regions.items():
        rows = 1 if name == "row" else spec.pass_rows
        ends[name] = (offset, offset + rows * spec.io_pitch_bytes(dtype))
    shared = {("values", "out"), ("out", "values")} if out_dtype is torch.float32 else set()
    for one, other in itertools.permutations(ends, 2):
        if (one, other) in shared:
            continue
        (first, last), (start, end) = ends[one], ends[other]
        assert last <= start or end <= first, (one, other)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"waves_m": 4, "waves_n": 2}, "4 waves"),
        ({"tile_m": 48, "waves_m": 1, "waves_n": 4}, "32-row pairs"),
        ({"num_stages": 2}, "3 data stages"),
        ({"tile_m": 512}, "up to 256"),
        ({"tile_m": 0}, "sizes of 1 or more"),
        ({"tile_m": -256}, "sizes of 1 or more"),
        ({"waves_m": -2, "waves_n": -2}, "sizes of 1 or more"),
        ({"stage_tiles": 8}, "K tiles a stage"),
        ({"tile_n": 128, "waves_m": 1, "waves_n": 4}, "64 columns"),
    ],
)
def test_impossible_tiles_are_rejected(fields, match):
    rejection = TileConfig(**fields).validate()
    assert rejection is not None
    assert match in rejection.detail


LARGE, MEDIUM, SMALL = cost.CANDIDATES
FUSED = Epilogue(bias=torch.float32)
STRIPED = OperandSpec(layout=OperandLayout.of("row_major", "scale_32x8"))
WALK_NEEDS = "needs 10 or more K tiles for a walk, and not 1 more than a multiple of 8, got "


@pytest.mark.parametrize(
    ("fields", "choice", "message"),
    [
        ({"k": 1152}, cost.Choice(LARGE, 1, 9, walk_columns=1), f"SHAPE: .*{WALK_NEEDS}9, for"),
        ({"k": 2176}, cost.Choice(LARGE, 1, 17, walk_columns=1), f"SHAPE: .*{WALK_NEEDS}17, for"),
        ({"k": 4096}, cost.Choice(LARGE, 1, 32, walk_columns=2), "0 to 1 workgroups .*, got 2"),
        ({"k": 4096}, cost.Choice(LARGE, 1, 32, walk_columns=-1), "0 to 1 workgroups .*, got -1"),
        (
            {"k": 4096},
            cost.Choice(LARGE, 2, 16, walk_columns=1),
            "one part for a walk, got 2 parts of 16 K tiles",
        ),
        (
            {"k": 4096},
            cost.Choice(SMALL, 1, 32, walk_columns=1),
            "EPILOGUE: a walk needs the tile 256x256x128.*got 64x256x512",
        ),
        (
            {"k": 4096, "epilogue": FUSED},
            cost.Choice(LARGE, 1, 32, walk_columns=1),
            "EPILOGUE: a walk needs .* at most a factor alpha, got .*bias",
        ),
        ({"k": 4096}, cost.Choice(SMALL, 0, 32), "K in 1 to 32 parts, got 0"),
        ({"k": 1 << 18}, cost.Choice(SMALL, 64, 32), "K in 1 to 32 parts, got 64"),
        ({"k": 4096}, cost.Choice(SMALL, 1, 31), "cover 32 K tiles.*got 1 parts of 31 K tiles"),
        ({"k": 4096}, cost.Choice(SMALL, 3, 8), "cover 32 K tiles.*got 3 parts of 8 K tiles"),
        ({"k": 4096}, cost.Choice(SMALL, 5, 8), "none of them empty, got 5 parts of 8 K tiles"),
        ({"k": 1280}, cost.Choice(SMALL, 2, 5), "multiple of 8 K tiles, got 2 parts of 5 K tiles"),
        ({}, cost.Choice(SMALL, 1, (1 << 21) + 1), "parts of up to 2097152 K tiles, .*2097153"),
        ({}, cost.Choice(SMALL, 1, 1 << 29), "parts of up to 2097152 K tiles, .* of 536870912 K"),
        ({}, cost.Choice(SMALL, 1, 1 << 31), "parts of up to 2097152 K tiles, .* of 2147483648 K"),
        ({}, cost.Choice(SMALL, "2", 8), r"SHAPE: needs ints as .*, got \('2', 8, 0\)"),
        ({}, cost.Choice(SMALL, 2.0, 8), r"SHAPE: needs ints as .*, got \(2.0, 8, 0\)"),
        ({}, cost.Choice(SMALL, True, 8), r"SHAPE: needs ints as .*, got \(True, 8, 0\)"),
        ({}, cost.Choice(SMALL, 1, None), r"SHAPE: needs ints as .*, got \(1, None, 0\)"),
        ({}, cost.Choice(SMALL, 1, 1, walk_columns=0.0), r"needs ints as .*, got \(1, 1, 0.0\)"),
        ({"device": DeviceSpec.parse("gfx950")}, cost.Choice(SMALL, 1, 1), "ARCH: .*got gfx950"),
        ({"a": STRIPED}, cost.Choice(SMALL, 1, 1), "LAYOUT: a must have .*scale_32x8"),
    ],
)
def test_a_choice_that_no_kernel_does_is_refused_with_required_and_actual(fields, choice, message):
    with pytest.raises(UnsupportedProblem, match=message):
        BACKEND.plan_with(problem(**fields), choice)


SHIPPED = "256x256x128/2x2w/3s, 128x256x256/1x4w/3s, 64x256x512/1x4w/3s"


@pytest.mark.parametrize(
    "tile",
    [
        *(
            TileConfig(**fields)
            for fields in (
                {"tile_m": 0},
                {"tile_m": -256},
                {"tile_m": 512},
                {"tile_m": 256.0},
                {"tile_m": "256"},
                {"tile_m": None},
                {"num_stages": 3.5},
                {"num_stages": 2},
                {"num_stages": 4},
                {"num_stages": 9},
                {"stage_tiles": True},
                {"waves_m": 0},
                {"waves_m": 1, "waves_n": 4},
                {"tile_m": 192},
                {"tile_m": 96},
                {"tile_m": 128, "tile_n": 64, "waves_m": 4, "waves_n": 1},
                {"tile_n": 128},
            )
        ),
        None,
        "256x256x128/2x2w/3s",
    ],
    ids=repr,
)
def test_a_tile_that_does_not_ship_is_refused_with_those_that_do(tile):
    wanted = f"SHAPE: needs one of the tiles {SHIPPED}, got {tile!r}, for"
    with pytest.raises(UnsupportedProblem, match=re.escape(wanted)):
        BACKEND.plan_with(problem(), cost.Choice(tile, 1, 1))


@pytest.mark.parametrize("tile", cost.CANDIDATES, ids=str)
def test_one_part_may_be_as_long_as_the_longest_contraction(tile):
    assert BACKEND.plan_with(problem(), cost.Choice(tile, 1, 1 << 21)).config.splits == 1


def test_what_is_no_choice_is_a_type_error():
    with pytest.raises(TypeError, match=r"choice must be a cost\.Choice, got NoneType"):
        BACKEND.plan_with(problem(), None)


def test_a_kernel_of_too_much_lds_is_rejected():
    rejection = KernelSpec(tile=TileConfig(num_stages=9)).validate()
    assert rejection is not None
    assert rejection.code is RejectionCode.MEMORY
    assert "at most 327680 bytes of LDS, got" in rejection.detail


@pytest.mark.parametrize("k", [32, 1152, 1280, 4096, 4128])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (70, 3000), (8192, 8192)])
def test_every_candidate_is_accepted(m, n, k):
    for choice in cost.candidates(m, n, k):
        assert BACKEND.plan_with(problem(m=m, n=n, k=k), choice).config.tile == choice.tile


@pytest.mark.parametrize("empty", ["m", "n", "k"])
def test_empty_problems_have_plans(empty):
    assert BACKEND.plan(problem(**{empty: 0})).config.splits == 1


class Grids:
    """A place that only writes down how many workgroups it is asked for."""

    def __init__(self) -> None:
        self.asked: list[places.Grid] = []

    def run(self, kernel: object, grid: places.Grid, values: object) -> None:
        self.asked.append(grid)

    def fit(self) -> bool:
        """Return whether the runtime takes them: it counts lanes along an axis in 32 bits."""
        most = min(MAX_GRID[0], 0xFFFF_FFFF // launch.REDUCE_THREADS)
        return all(x <= most and y <= MAX_GRID[1] and z <= MAX_GRID[2] for x, y, z in self.asked)


@pytest.fixture
def grids(monkeypatch) -> Grids:
    monkeypatch.setattr(launch, "load", lambda function, argument: None)
    return Grids()


def operand_of(rows: int, k: int) -> MXTensor:
    """Return an operand without memory."""
    codes, scales = (
        torch.empty(rows, k // bytes_per, dtype=torch.uint8, device="meta") for bytes_per in (2, 32)
    )
    return MXTensor(codes=codes, scales=scales, shape=(rows, k), stored_k=k)


LAST_K = launch.K_LIMIT - 32


@pytest.mark.parametrize(
    ("rows", "k"),
    [(1, 65_536 * 32), (17, 65_536 * 128), (1, LAST_K), (launch.ROWS_LIMIT, 32), (300, LAST_K)],
)
def test_every_operand_that_the_backend_takes_can_be_prepared(grids, rows, k):
    assert BACKEND.check(problem(m=rows, n=rows, k=k)) is None
    packed = launch.reorder(grids, operand_of(rows, k))
    assert packed.layout == launch.TILED
    assert len(grids.asked) == 2
    assert grids.fit(), grids.asked


@pytest.mark.parametrize("tile", cost.CANDIDATES, ids=str)
@pytest.mark.parametrize(
    ("m", "n"),
    [
        (65_536 * 64 + 1, 1),
        (launch.ROWS_LIMIT, 1),
        (1, launch.ROWS_LIMIT),
        (launch.ROWS_LIMIT,) * 2,
    ],
)
def test_every_problem_that_the_backend_takes_can_be_split(grids, m, n, tile):
    wanted = problem(m=m, n=n, k=2048, epilogue=Epilogue(bias_grad=True))
    plan = BACKEND.plan_with(wanted, cost.Choice(tile, 2, 8))
    out, sums = (torch.empty(*size, device="meta") for size in ((m, n), (n,)))
    operands = operand_of(m, 2048), operand_of(n, 2048)
    launch.gemm(grids, wanted, plan.config, operands, out, EpilogueArgs(bias_grad=sums))
    assert len(grids.asked) == 3
    assert grids.fit(), grids.asked


def row_address(form: CodesForm, row: int, chunk: int) -> int:
    """LDS byte of a chunk, from the description of the form."""
    if form is CodesForm.ROW_MAJOR:
        return row * (ROW_BYTES + CHUNK_BYTES) + chunk * CHUNK_BYTES
    return row // WMMA_ROWS * WMMA_ROWS * ROW_BYTES + chunk * 256 + row % WMMA_ROWS * CHUNK_BYTES


@pytest.mark.parametrize("form", CodesForm)
@pytest.mark.parametrize("chunk", range(4))
def test_sixteen_rows_of_a_chunk_fill_the_banks_once(form, chunk):
    slots = [row_address(form, row, chunk) % BANK_LINE_BYTES for row in range(WMMA_ROWS)]
    assert sorted(slots) == list(range(0, BANK_LINE_BYTES, CHUNK_BYTES))


def test_32_rows_of_scale_pairs_fill_the_banks_once():
    pitch = ScalesForm.ROW_MAJOR.stage_bytes(1)
    slots = [row * pitch % BANK_LINE_BYTES for row in range(32)]
    assert sorted(slots) == list(range(0, BANK_LINE_BYTES, 8))


@pytest.mark.parametrize(
    "shape", [(1, 1, 32), (64, 4096, 4096), (300, 200, 1152), (8192, 8192, 8192)]
)
def test_every_candidate_covers_k_once(shape):
    k_tiles = -(-shape[2] // 128)
    for choice in cost.candidates(*shape):
        assert choice.splits >= 1
        assert (
            (choice.splits - 1) * choice.split_tiles < k_tiles <= choice.splits * choice.split_tiles
        )
        assert choice.splits == 1 or choice.split_tiles % 8 == 0


def test_choice_follows_the_problem():
    assert cost.choose(8192, 8192, 8192).tile == TileConfig()
    assert cost.choose(8192, 8192, 8192).splits == 1
    assert cost.choose(16, 4096, 4096).tile.tile_m == 64
    assert cost.choose(16, 4096, 16384).splits > 1


def test_whole_stages_are_counted_of_a_short_contraction():
    small = cost.CANDIDATES[-1]
    one, four, five = (
        cost.clocks(cost.Choice(small, 1, tiles), 16, 256, 128 * tiles) for tiles in (1, 4, 5)
    )
    assert one == four
    assert five == pytest.approx(four + 4 * cost.k_tile_clocks(small))


def test_workgroups_walk_where_tiles_outnumber_processors_and_k_allows_it():
    assert cost.choose(8192, 8192, 8192).walk_columns == 8
    assert cost.choose(4096, 4096, 4096).walk_columns == 0
    assert cost.choose(8192, 8192, 8192, walks=False).walk_columns == 0
    for k in (1152, 2176, 8320):
        assert all(choice.walk_columns == 0 for choice in cost.candidates(8192, 8192, k))
    fused = problem(m=8192, n=8192, k=8192, epilogue=Epilogue(bias=torch.float32))
    assert BACKEND.plan(fused).config.walk_columns == 0


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", [OperandForm(), TILED], ids=str)
def test_a_walk_keeps_its_output_apart_from_the_next_tiles_stages(form, out_dtype):
    spec = KernelSpec(a=form, b=form, out_dtype=out_dtype, walks=True)
    assert spec.validate() is None
    assert spec.store_offset == spec.loop_bytes
    assert spec.lds_bytes == spec.loop_bytes + 4 * spec.wave_store_bytes <= LDS_LIMIT_BYTES
    assert spec.pass_rows == (64 if out_dtype is torch.float32 else 128)


def test_only_the_large_tile_without_an_epilogue_walks():
    fused = Epilogue(bias=torch.float32)
    assert KernelSpec(tile=cost.CANDIDATES[1], walks=True).validate() is not None
    assert KernelSpec(epilogue=fused, walks=True).validate() is not None


def test_modelled_time_is_never_below_the_matrix_pipes_own():
    large = problem(m=8192, n=8192, k=8192, out_dtype=torch.bfloat16)
    peak_ms = 1e3 * 2 * 8192**3 / 40.265e15
    share = peak_ms / BACKEND.modelled_ms(BACKEND.plan(large))
    assert 0.65 < share < 1
    one_each = BACKEND.plan_with(large, cost.choose(8192, 8192, 8192, walks=False))
    assert BACKEND.modelled_ms(one_each) > BACKEND.modelled_ms(BACKEND.plan(large))
    split = problem(m=16, n=4096, k=16384)
    assert BACKEND.modelled_ms(BACKEND.plan(split)) > 1e3 * 4096 * 16384 / 2 / 23.3e12


@pytest.mark.parametrize("size", [256, 8192])
def test_the_model_ignores_what_it_says_and_nothing_else(size):
    sizes = {"m": size, "n": size, "k": size}
    packed = OperandSpec(layout=OperandLayout.of("tile_16x16", "scale_k_major"))
    plain = problem(**sizes)
    choice = cost.choose(size, size, size, walks=False)
    alike = {
        BACKEND.modelled_ms(BACKEND.plan_with(each, choice))
        for each in (plain, problem(**sizes, a=packed, b=packed), problem(**sizes, epilogue=FUSED))
    }
    assert (len(alike) == 1) == (BACKEND.model_ignores == "the operands' layouts and the epilogue")
    other = BACKEND.plan_with(problem(**sizes, out_dtype=torch.bfloat16), choice)
    assert BACKEND.modelled_ms(other) not in alike


def kernel(*sizes: int) -> CompiledKernel:
    offsets, at = [], 0
    for size in sizes:
        at = -(-at // size) * size
        offsets.append((at, size))
        at += size
    return CompiledKernel(b"elf", "", "name", 128, 4096, tuple(offsets), at, {})


def test_arguments_are_packed_at_their_offsets():
    tensor = torch.zeros(4)
    packed = places.pack(kernel(8, 8, 8, 4, 4), [tensor, None, -2, 7, 0.5])
    assert packed == struct.pack("<QQqif", tensor.data_ptr(), 0, -2, 7, 0.5)


def test_workspace_counts_parts_and_slices():
    config = launch.GemmConfig(cost.CANDIDATES[-1], 4, 8)
    split = problem(m=100, n=10, k=4096, epilogue=Epilogue(bias_grad=True))
    assert launch.workspace_bytes(split, config) == 4 * (4 * 100 * 10 + (2 + 1) * 10)
