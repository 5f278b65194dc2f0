"""`mxgemm emulate` and the performance model: counts by hand, overlap in the right direction, exit
statuses.
"""

import argparse
import json

import numpy as np
import pytest

import mxfp4_kernel
from gfx1250_programs import assembly
from mxgemm.emulator import Machine, command
from mxgemm.emulator.model import estimate

pytestmark = pytest.mark.emulated


def invoke(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(w) for w in words]))


ADD = """
	s_load_b128 s[4:7], s[0:1], 0x0
	s_load_b32 s8, s[0:1], 0x10
	s_wait_kmcnt 0x0
	global_load_b32 v1, v0, s[6:7] scale_offset
	s_wait_loadcnt 0x0
	v_add_nc_u32 v1, s8, v1
	global_store_b32 v0, v1, s[4:5] scale_offset
"""


@pytest.fixture
def adder(tmp_path):
    path = tmp_path / "add.s"
    path.write_text(assembly(ADD, arguments=[8, 8, 4]))
    np.save(tmp_path / "in.npy", np.arange(32, dtype=np.uint32))
    return path


def test_kernel_runs_on_files_and_its_output_is_dumped(adder, tmp_path, capsys):
    out = tmp_path / "out.bin"
    status = invoke(
        adder, "--args", "@128", f"@{tmp_path / 'in.npy'}", "-7", "--dump", "0", out, "--json"
    )
    assert status == 0
    assert (np.fromfile(out, np.int32) == np.arange(32) - 7).all()
    answer = json.loads(capsys.readouterr().out)
    assert answer["fault"] is None
    assert answer["counters"]["instructions"] == 8
    assert answer["counters"]["global_written_bytes"] == 128


def test_hazard_is_told_and_gives_status_1(adder, tmp_path, capsys):
    adder.write_text(adder.read_text().replace("s_wait_loadcnt 0x0", "s_nop 0"))
    words = (adder, "--args", "@128", f"@{tmp_path / 'in.npy'}", "7")
    assert invoke(*words) == 1
    assert "hazard MissingWait: pc 5 `v_add_nc_u32 v1, s8, v1`" in capsys.readouterr().out
    assert invoke(*words, "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["fault"], answer["hazard"], answer["missing"]) == (
        "MissingWait",
        True,
        "s_wait_loadcnt 0",
    )


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--args", "1"], "3 arguments are needed, got 1"),
        (["--args", "@128", "@missing.npy", "7"], "missing.npy"),
        (["--args", "@128", "@128", "x"], "could not convert"),
        (["--args", "@128", "@128", "7", "--dump", "2", "out.bin"], "argument 2 is no pointer"),
        (["--args", "@128", "@128", "7", "--grid", "0"], "grid must be"),
        (["--args", "@128", "@128", "7", "--name", "other"], "kernel must be one of"),
        (["--architecture", "gfx9"], "must be one of"),
    ],
)
def test_bad_input_gives_status_2(adder, words, match, capsys):
    assert invoke(adder, *words) == 2
    assert match in capsys.readouterr().err


def test_model_needs_a_run_of_one_workgroup(adder, capsys):
    adder.write_text(adder.read_text().replace("global_store_b32 v0, v1", "global_load_b32 v2, v0"))
    assert invoke(adder, "--args", "@128", "@128", "7", "--grid", "2", "--model") == 2
    assert "run one workgroup" in capsys.readouterr().err


def test_model_is_printed_with_its_assumptions(adder, capsys):
    assert invoke(adder, "--args", "@128", "@128", "7", "--model", "--workgroup", "0") == 0
    out = capsys.readouterr().out
    assert "of the matrix peak" in out
    assert "assumed lds_bytes = 256 bytes a cycle" in out
    assert "(AMD CDNA5 white paper)" in out


# ---------------------------------------------------------------------------------------- the model


def traced(k: int):
    kernel = Machine().load(mxfp4_kernel.PATH.read_text())
    p = mxfp4_kernel.problem(128, 128, k)
    _, result = mxfp4_kernel.run(kernel, p, trace=True)
    return estimate(kernel, result)


def test_model_counts_what_the_problem_needs():
    """128 x 128 x 1024: 64 matrix operations of 4 cycles per K tile of 128, on four SIMDs; every
    operand byte copied once.
    """
    prediction = traced(1024)
    assert prediction.counts["matrix_cycles"] == 64 * 8 * 4
    assert prediction.busy["matrix"] == 64 * 8 * 4 / 4
    assert prediction.counts["tensor_load_bytes"] == 2 * 128 * (512 + 32)
    assert prediction.counts["tensor_store_bytes"] == 128 * 128 * 4
    assert prediction.counts["lds_conflict_cycles"] == 0
    assert prediction.dominant in prediction.busy
    assert prediction.cycles >= max(prediction.busy[name] for name in ("matrix", "issue", "tensor"))
    assert 0 < prediction.matrix_share < 1


def test_longer_contractions_use_more_of_the_matrix_peak():
    short, middle, long = (traced(k) for k in (256, 1024, 4096))
    assert short.matrix_share < middle.matrix_share < long.matrix_share


OVERLAP = """
	{first}
	{matrix}
	{matrix}
	{second}
	s_wait_dscnt 0x0
"""


MATRIX = (
    "v_wmma_scale_f32_16x16x128_f8f6f4 v[2:9], v[10:17], v[18:25], 0, v26, v27 "
    "matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4"
)


def cycles_of(program: str) -> float:
    machine = Machine()
    kernel = machine.load(assembly(program))
    zeros = np.zeros(32, np.uint32)
    machine.hook("start", lambda wave: [wave.set_vector(n, zeros) for n in range(2, 40)])
    return estimate(kernel, machine.launch((1,), lds_bytes=4, trace=True)).cycles


def test_model_overlaps_what_the_program_order_lets_overlap():
    load = "ds_store_b32 v30, v31"
    early, late = (
        cycles_of(OVERLAP.format(matrix=MATRIX, first=load, second="")),
        cycles_of(OVERLAP.format(matrix=MATRIX, first="", second=load)),
    )
    assert early < late


def test_model_needs_a_trace_of_one_workgroup():
    machine = Machine()
    kernel = machine.load(assembly("s_nop 0"))
    for options in ({"trace": False}, {"trace": True, "grid": (2,)}):
        result = machine.launch(**({"grid": (1,)} | options))
        with pytest.raises(ValueError, match="one workgroup"):
            estimate(kernel, result)
