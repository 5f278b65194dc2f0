"""What cuda_hopper refuses, and which kernels in which tiles it plans; without a device."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import mxgemm
from mxgemm.backends.base import Accumulation, RejectionCode
from mxgemm.backends.cuda_hopper import CudaHopper, CudaHopperCublas
from mxgemm.backends.cuda_hopper import config as cfg
from mxgemm.devices import DeviceSpec
from mxgemm.epilogue import Epilogue
from mxgemm.problem import GemmProblem, Numerics, OperandSpec
from mxgemm.tensor import OperandLayout

BACKEND = CudaHopper()
HOPPER = DeviceSpec("cuda", "sm_90")


def problem(m: int = 64, n: int = 96, k: int = 128, **changes: object) -> GemmProblem:
    return GemmProblem(m=m, n=n, k=k, device=HOPPER, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"device": DeviceSpec("cpu", "x86_64")}, RejectionCode.DEVICE),
        ({"device": DeviceSpec("cuda", "sm_100")}, RejectionCode.ARCH),
        ({"device": DeviceSpec("rocm", "gfx950")}, RejectionCode.DEVICE),
        (
            {"a": OperandSpec(layout=OperandLayout.of("row_major", "scale_32x8"))},
            RejectionCode.LAYOUT,
        ),
        ({"b": OperandSpec(prepared_by="native_cpu")}, RejectionCode.LAYOUT),
        ({"b": OperandSpec(rotation=mxgemm.Rotation(16))}, RejectionCode.ROTATION),
    ],
    ids=lambda value: str(value) if isinstance(value, RejectionCode) else "",
)
def test_check_says_why_not(changes: dict[str, object], code: RejectionCode) -> None:
    rejection = BACKEND.check(dataclasses.replace(problem(), **changes))
    assert rejection is not None
    assert rejection.code is code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"out_dtype": torch.float32}, RejectionCode.DTYPE),
        ({"numerics": Numerics.STRICT}, RejectionCode.NUMERICS),
        ({"epilogue": Epilogue(bias=torch.float32)}, RejectionCode.EPILOGUE),
        ({"n": 17}, RejectionCode.SHAPE),
        ({"b": OperandSpec(prepared_by="cuda_hopper")}, RejectionCode.LAYOUT),
    ],
    ids=lambda value: str(value) if isinstance(value, RejectionCode) else "",
)
def test_the_cublas_plan_says_why_not(changes: dict[str, object], code: RejectionCode) -> None:
    asked = dataclasses.replace(problem(out_dtype=torch.bfloat16), **changes)
    rejection = CudaHopperCublas().check(asked)
    assert rejection is not None
    assert rejection.code is code


def test_the_cublas_plan_is_taken_only_when_named() -> None:
    assert not CudaHopperCublas().automatic(problem())


@pytest.mark.parametrize(
    "m", [1, 8, 9, 16, 33, 64, 65, 128, 129, 256, 257, 1024, 1025, 2048, 2049, 4097]
)
@pytest.mark.parametrize("numerics", list(Numerics))
def test_a_plan_needs_no_device_and_fits_the_shared_memory(m: int, numerics: Numerics) -> None:
    plan = BACKEND.plan(problem(m=m, n=8192, k=8192, numerics=numerics))
    largest = cfg.STRICT_PACKED_LARGEST_M if numerics is Numerics.STRICT else cfg.PACKED_LARGEST_M
    assert isinstance(plan.config, cfg.HopperConfig)
    assert plan.config.folded.shared_bytes <= cfg.SHARED_BYTES
    assert (plan.config.packed is None) == (m > largest)
    assert (plan.config.canonical is None) == (m > cfg.CANONICAL_LARGEST_M)
    for decoder in (plan.config.packed, plan.config.canonical):
        assert decoder is None or decoder.shared_bytes <= cfg.SHARED_BYTES
    folded_rows = m if plan.config.canonical is not None else m + 8192
    assert plan.workspace_bytes >= folded_rows * 8192


@pytest.mark.parametrize(
    ("m", "n", "consumers"),
    [(4096, 4096, 2), (2048, 4096, 2), (8192, 8192, 3), (8192, 28672, 3), (1, 128, 2)],
)
def test_tiles_are_as_tall_as_waves_are_few(m: int, n: int, consumers: int) -> None:
    config = BACKEND.plan(problem(m=m, n=n)).config
    assert isinstance(config, cfg.HopperConfig)
    assert config.folded.consumers == consumers
    for plain in (False, True):
        folded = dataclasses.replace(config.folded, plain=plain)
        assert folded.shared_bytes <= cfg.SHARED_BYTES


@pytest.mark.parametrize(
    ("m", "n", "boxes_a", "boxes_b"),
    [
        (8192, 8192, (192, 192), (128, 128)),
        (129, 8192, (128, 1), (128, 128)),
        (204, 8192, (128, 76), (128, 128)),
        (205, 8192, (128, 128), (128, 128)),  # lacks 51 rows, less than two fifths
        (307, 8192, (192, 115), (128, 128)),
        (308, 8192, (192, 192), (128, 128)),
        (8192, 1996, (128, 128), (128, 76)),
        (8192, 1997, (128, 128), (128, 128)),
        (1921, 8192, (128, 1), (128, 128)),
        (4096, 14336, (192, 192), (128, 128)),  # 64 rows of 192, but one of 22 tiles
        (1, 1, (1, 1), (1, 1)),
    ],
)
def test_boxes_end_with_the_rows_where_many_are_missing(
    m: int, n: int, boxes_a: tuple[int, int], boxes_b: tuple[int, int]
) -> None:
    plan = BACKEND.plan(problem(m=m, n=n))
    assert isinstance(plan.config, cfg.HopperConfig)
    folded = plan.config.folded
    assert folded.box_rows(m, folded.tile_m) == boxes_a
    assert folded.box_rows(n, cfg.FOLDED_TILE_N) == boxes_b
    ends = boxes_a[1] < folded.tile_m or boxes_b[1] < cfg.FOLDED_TILE_N
    assert ("boxes end with the rows" in plan.summary) == ends


@pytest.mark.parametrize(
    ("m", "n", "tokens", "cluster"),
    [
        (65, 8192, 128, 1),
        (256, 8192, 256, 1),
        (300, 264, 128, 1),
        (512, 8192, 256, 2),
        (768, 8192, 256, 1),  # a pair's second block would have no rows every other time
        (1024, 8192, 256, 2),
        (200, 4300, 256, 1),
        (200, 8500, 256, 1),
    ],
)
def test_packed_weights_are_decoded_in_the_tiles_that_take_the_least_time(
    m: int, n: int, tokens: int, cluster: int
) -> None:
    config = BACKEND.plan(problem(m=m, n=n)).config
    assert isinstance(config, cfg.HopperConfig)
    assert isinstance(config.packed, cfg.DecodedConfig)
    assert (config.packed.tokens, config.packed.cluster) == (tokens, cluster)
    assert config.packed.shared_bytes <= cfg.SHARED_BYTES
    strict = BACKEND.plan(problem(m=m, n=n, numerics=Numerics.STRICT)).config
    assert isinstance(strict, cfg.HopperConfig)
    assert isinstance(strict.packed, cfg.DecodedConfig)
    assert (strict.packed.tokens, strict.packed.cluster) == (128, 1)


@pytest.mark.parametrize(
    ("m", "cluster", "tiles"), [(256, 1, 3), (257, 1, 6), (257, 2, 6), (700, 1, 9), (700, 2, 12)]
)
def test_clusters_have_whole_numbers_of_tiles(m: int, cluster: int, tiles: int) -> None:
    assert cfg.decoding_tiles(m, 130, 256, cluster) == tiles


@pytest.mark.parametrize(
    ("rows", "whole", "last"), [(1, 1, 1), (255, 255, 255), (256, 256, 256), (600, 256, 88)]
)
def test_no_box_reaches_past_the_rows(rows: int, whole: int, last: int) -> None:
    assert cfg.box_rows(rows, 256) == (whole, last)


def test_prepared_operands_need_no_workspace_of_their_size() -> None:
    prepared = OperandSpec(prepared_by="cuda_hopper")
    plan = BACKEND.plan(problem(m=16, n=8192, k=8192, a=prepared, b=prepared))
    assert plan.workspace_bytes < 4096


def test_accumulation_is_what_the_tensor_core_does() -> None:
    assert BACKEND.accumulation(problem()) == Accumulation(
        significand_bits=14, truncates=True, promote_every=128
    )
    strict = BACKEND.accumulation(problem(numerics=Numerics.STRICT))
    assert strict == Accumulation(exact_blocks=True)
