"""What the compiler makes of the gfx1250 kernels, read from the listing: no spills, a dense loop,
the same instructions in text and code object.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

import mxgemm
from backends import gfx1250_configurations as configurations
from backends.gfx1250_configurations import (
    OTHERS_PER_WMMA,
    REPORT,
    WMMA,
    Made,
    made,
    steady_loop,
)
from backends.gfx1250_kernels import LARGE, SHIPPED, compiled, needs_compiler
from mxgemm.backends.flydsl_gfx1250 import launch, places
from mxgemm.backends.flydsl_gfx1250.config import KernelSpec
from mxgemm.emulator import Machine
from mxgemm.emulator.arguments import pack_arguments
from mxgemm.errors import BackendUnavailable
from mxgemm.runtime import flydsl_compile, import_closure

pytestmark = [pytest.mark.compile, needs_compiler]

LARGE_KERNELS = [name for name in SHIPPED if SHIPPED[name].tile == LARGE]


def assert_good(spec: KernelSpec) -> None:
    """No spill, and few enough instructions beside the matrix ones in the steady loop."""
    found = made(spec)
    assert found.vgpr_spills == found.sgpr_spills == found.scratch_bytes == 0
    assert found.others_per_wmma <= OTHERS_PER_WMMA


@pytest.mark.parametrize("spec", [*SHIPPED.values(), *configurations.representatives()], ids=str)
def test_nothing_spills_and_the_steady_loop_is_dense(spec):
    assert_good(spec)


@pytest.mark.slow
@pytest.mark.parametrize("spec", configurations.configurations(), ids=str)
def test_nothing_spills_and_every_steady_loop_is_dense(spec):
    assert_good(spec)


@pytest.mark.slow
def test_report_is_of_the_kernels_as_they_are():
    _, *lines = REPORT.read_text().splitlines()
    specs = configurations.configurations()[: len(lines)]
    assert lines == [f"{configurations.name(spec)}\t{made(spec)}" for spec in specs]


def test_report_holds_the_representatives_at_least_and_all_are_good():
    head, *lines = REPORT.read_text().splitlines()
    assert head == configurations.HEADER
    rows = [dict(zip(head.split("\t"), line.split("\t"), strict=True)) for line in lines]
    names = [configurations.name(spec) for spec in configurations.configurations()]
    assert [line.rsplit("\t", len(fields(Made)))[0] for line in lines] == names[: len(lines)]
    assert len(lines) >= len(configurations.representatives())
    for row in rows:
        assert row["vgpr_spills"] == row["sgpr_spills"] == row["scratch_bytes"] == "0"
        assert float(row["others_per_wmma"]) <= OTHERS_PER_WMMA


@pytest.mark.parametrize("name", SHIPPED)
def test_steady_state_waits_once_at_most_for_a_hazard(name):
    assert sum(line == "v_nop" for line in steady_loop(compiled(name))) <= 1


@pytest.mark.parametrize("name", SHIPPED)
def test_steady_state_holds_two_stages_and_nothing_twice(name):
    counts = Counter(line.split()[0] for line in steady_loop(compiled(name)))
    tile = SHIPPED[name].tile
    k_tiles = 2 * tile.stage_tiles
    assert counts[WMMA] == k_tiles * tile.wmmas
    assert counts["ds_load_b128"] == 2 * k_tiles * (tile.fragments_m + tile.fragments_n)
    assert counts["tensor_load_to_lds"] == 2
    assert counts["tensor_store_from_lds"] == SHIPPED[name].walks
    assert counts["s_barrier_signal"] == counts["s_barrier_wait"] == 4


@pytest.mark.parametrize("name", LARGE_KERNELS)
def test_lds_bytes_per_k_tile_are_the_minimum_of_a_128_square_wave_tile(name):
    """Every code and every scale of a wave's rows is read from LDS once: (128 + 128) rows, 64 + 4
    bytes.
    """
    loads = Counter(line.split()[0] for line in steady_loop(compiled(name)))
    widths = {"ds_load_b128": 16, "ds_load_b64": 8, "ds_load_b32": 4, "ds_load_2addr_b32": 8}
    widths |= {"ds_load_2addr_stride64_b32": 8, "ds_load_2addr_b64": 16}
    read = sum(loads[name] * width for name, width in widths.items()) * 32
    assert sum(loads[name] for name in loads if name.startswith("ds_")) == sum(
        loads[name] for name in widths
    )
    assert read == 2 * (128 + 128) * (64 + 4)


@pytest.mark.parametrize("name", SHIPPED)
def test_next_copy_is_sent_before_the_matrix_instructions_that_hide_it(name):
    """A copy stands in the first quarter of the matrix instructions of its stage's last K tile, two
    stages before it is waited for.
    """
    tile = SHIPPED[name].tile
    stage = tile.stage_tiles * tile.wmmas
    wmmas, sent = 0, []
    for line in steady_loop(compiled(name)):
        wmmas += "wmma" in line
        if line.startswith("tensor_load"):
            sent.append(wmmas)
    assert [at // stage for at in sent] == [0, 1]
    assert all(at % stage <= stage - tile.wmmas + tile.wmmas // 4 for at in sent)


@pytest.mark.parametrize("name", SHIPPED)
def test_listing_and_code_object_hold_the_same_instructions(name):
    emulator = pytest.importorskip("mxgemm.emulator")
    kernel = compiled(name)
    loaded = emulator.Machine("gfx1250").load(kernel.code_object, text=kernel.assembly)
    assert loaded.name == kernel.symbol
    assert [(a.offset, a.size) for a in loaded.info.arguments] == list(kernel.arguments)


def test_kernels_use_lower_register_halves_only():
    for name in SHIPPED:
        assert not re.search(r"\bv\d+\.h\b", compiled(name).assembly)


def test_callers_environment_stays_as_it_is(monkeypatch, tmp_path):
    """FlyDSL's own settings are made in the child only, and the caller's do not reach it."""
    monkeypatch.setenv("MXGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FLYDSL_COMPILE_OPT_LEVEL", "0")
    before = dict(os.environ)
    launch.load.cache_clear()
    kernel = launch.load("reduce:build_bias_grad_sum", None)
    launch.load.cache_clear()
    assert dict(os.environ) == before
    assert kernel.code_object.startswith(b"\x7fELF")
    assert len(list(tmp_path.rglob("*.json"))) == 1


def test_a_kernel_that_does_not_compile_is_a_typed_error(monkeypatch, tmp_path):
    monkeypatch.setenv("MXGEMM_CACHE_DIR", str(tmp_path))
    with pytest.raises(BackendUnavailable, match="no_such_function"):
        flydsl_compile.compile_kernel(
            "mxgemm.backends.flydsl_gfx1250.kernel:no_such_function", None
        )
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("name", SHIPPED)
def test_argument_buffer_is_what_the_code_object_asks_for(name):
    """The launcher's offsets come from the listing, the emulator's from the code object."""
    kernel = compiled(name)
    info = Machine("gfx1250").load(kernel.code_object).info
    numbers = {4: (-1 << 31, 7, (1 << 31) - 1), 8: (-1 << 63, 7, (1 << 63) - 1)}
    for choice in range(3):
        values = [numbers[argument.size][choice] for argument in info.arguments]
        for at, argument in enumerate(info.arguments):
            values[at] = (1 << 47) + at if argument.is_pointer else values[at]
        values[-2:] = 0.37, -1.7  # alpha, beta
        assert places.pack(kernel, values) == bytes(pack_arguments(info, tuple(values)))


EXECUTED = """
import sys, torch
from pathlib import Path
from mxgemm.backends.flydsl_gfx1250.config import SplitSumSpec
from mxgemm.epilogue import Activation, Epilogue
from mxgemm.runtime import flydsl_compile, rocm_linker

folder = Path(sys.argv[1])
linked = folder / "rocm" / rocm_linker.IN_ROCM
linked.parent.mkdir(parents=True)
linked.symlink_to(rocm_linker.find().path)
epilogue = Epilogue(bias=torch.float32, activation=Activation.GELU_TANH, c=torch.float16)
request = {"builder": sys.argv[2], "argument": SplitSumSpec(torch.float32, epilogue)}
files = set()
sys.setprofile(lambda frame, event, argument: files.add(frame.f_code.co_filename))
flydsl_compile.serve({**request, "folder": folder})
sys.setprofile(None)
print(*files, sep="\\n")
"""


def test_every_file_of_ours_that_a_build_executes_is_in_the_kernels_name(tmp_path):
    """But for packages on the way to a module, which are executed and build nothing."""
    builder = "mxgemm.backends.flydsl_gfx1250.reduce:build_split_sum"
    done = subprocess.run(
        [sys.executable, "-c", EXECUTED, tmp_path, builder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    package = Path(mxgemm.__file__).parent
    executed = {
        str(path.relative_to(package).with_suffix("")).replace(os.sep, ".")
        for path in map(Path, done.stdout.splitlines())
        if path.is_relative_to(package) and path.name != "__init__.py"
    }
    named = import_closure.sources(flydsl_compile.__name__, builder.partition(":")[0])
    kernel = {"reduce", "store", "activation", "registers"}
    assert {f"backends.flydsl_gfx1250.{name}" for name in kernel} <= executed
    assert {f"mxgemm.{name}" for name in executed} <= set(named)
    assert "mxgemm.epilogue" in named
