"""GemmProblem: a hashable value that refuses impossible sizes and prints what it is."""

import dataclasses

import pytest
import torch

import mxgemm
from mxgemm import DeviceSpec, Epilogue, GemmProblem, Numerics, OperandLayout, OperandSpec, Rotation

CPU = DeviceSpec.of("cpu")


def problem(**changes) -> GemmProblem:
    return GemmProblem(**{"m": 2, "n": 3, "k": 64, "device": CPU, **changes})


@pytest.mark.parametrize(
    "changes", [{"m": -1}, {"n": -1}, {"k": -32}, {"k": 31}, {"k": 48}], ids=str
)
def test_impossible_sizes_are_refused(changes):
    with pytest.raises(ValueError, match="must not be negative and k a multiple of 32"):
        problem(**changes)


@pytest.mark.parametrize("size", ["m", "n", "k"])
def test_zero_is_a_size(size):
    assert problem(**{size: 0}).flops == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.float8_e4m3fn])
def test_other_output_dtypes_are_refused(dtype):
    with pytest.raises(ValueError, match="out_dtype must be one of"):
        problem(out_dtype=dtype)


def test_problems_are_values():
    every = [
        problem(),
        problem(m=4),
        problem(out_dtype=torch.bfloat16),
        problem(epilogue=Epilogue(bias_grad=True)),
        problem(numerics=Numerics.STRICT),
        problem(device=DeviceSpec.parse("sm_90")),
        problem(a=OperandSpec(layout=OperandLayout.of("tile_16x16"))),
        problem(b=OperandSpec(layout=OperandLayout.of("row_major", "rocm_te_swizzled_scales"))),
        problem(b=OperandSpec(layout=OperandLayout.of("row_major", "scale_32x8"))),
        problem(a=OperandSpec(rotation=Rotation(16))),
        problem(b=OperandSpec(prepared_by="someone")),
    ]
    assert len(set(every)) == len(every)
    assert {dataclasses.replace(p) for p in every} == set(every)
    assert len({str(p) for p in every}) == len(every)


def test_flops_counts_multiplications_and_additions():
    assert problem().flops == 2 * 2 * 3 * 64


def test_problem_for_reads_everything_from_the_operands():
    rotation = Rotation(64, 3)
    layout = OperandLayout.of("tile_16x16", "scale_32x8")
    a = mxgemm.quantize(torch.ones(5, 100), rotation=rotation, pad=True)
    b = mxgemm.quantize(torch.ones(7, 100), rotation=rotation, pad=True, layout=layout)
    p = mxgemm.problem_for(a, b)
    assert (p.m, p.n, p.k, p.device, p.out_dtype) == (5, 7, 128, CPU, torch.bfloat16)
    assert (p.a, p.b) == (
        OperandSpec(rotation=rotation),
        OperandSpec(layout=layout, rotation=rotation),
    )
    assert str(p) == (
        "5x7x128 -> bfloat16 on cpu, a mxfp4 row_major+row_major hadamard64/signs=0x3, "
        "b mxfp4 tile_16x16+scale_32x8 hadamard64/signs=0x3"
    )
