"""What the compiler makes of the gfx1250 kernels, read from the listing: no spills, a dense loop,
the same instructions in text and code object.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import mxgemm
from backends.gfx1250_kernels import LARGE, SHIPPED, compiled, needs_compiler
from mxgemm.backends.flydsl_gfx1250 import launch, places
from mxgemm.emulator import Machine
from mxgemm.emulator.arguments import pack_arguments
from mxgemm.errors import BackendUnavailable
from mxgemm.runtime import flydsl_compile, import_closure
from mxgemm.runtime.flydsl_compile import CompiledKernel

pytestmark = [pytest.mark.compile, needs_compiler]

OTHERS_PER_WMMA = 3
WMMA = "v_wmma_scale_f32_16x16x128_f8f6f4"
LARGE_KERNELS = [name for name in SHIPPED if SHIPPED[name].tile == LARGE]


def body(kernel: CompiledKernel) -> list[str]:
    """Instructions and labels of the kernel in order, without comments."""
    text = kernel.assembly.split("@function", 1)[1].split(".Lfunc_end0", 1)[0]
    lines = (line.split(";")[0].strip() for line in text.splitlines())
    return [line for line in lines if line and (not line.startswith(".") or line.endswith(":"))]


def steady_loop(kernel: CompiledKernel) -> list[str]:
    """The instructions from a label to the conditional branch that goes back to it; of the inner
    loop where a workgroup walks.
    """
    lines, labels = body(kernel), {}
    loops = []
    for at, line in enumerate(lines):
        if line.endswith(":"):
            labels[line[:-1]] = at
        target = line.split()[-1]
        if line.startswith("s_cbranch") and target in labels:
            inside = [x for x in lines[labels[target] : at + 1] if not x.endswith(":")]
            if any("wmma" in x for x in inside):
                loops.append(inside)
    assert len(loops) in (1, 2)
    return min(loops, key=len)


@pytest.mark.parametrize("name", SHIPPED)
def test_nothing_spills(name):
    kernel = compiled(name)
    assert kernel.resources["vgpr_spill_count"] == 0
    assert kernel.resources["sgpr_spill_count"] == 0
    assert kernel.resources["private_segment_fixed_size"] == 0
    assert "scratch_" not in kernel.assembly


@pytest.mark.parametrize("name", SHIPPED)
def test_steady_state_has_few_instructions_beside_the_matrix_ones(name):
    counts = Counter(line.split()[0] for line in steady_loop(compiled(name)))
    wmmas = counts[WMMA]
    assert (counts.total() - wmmas) / wmmas <= OTHERS_PER_WMMA
    assert counts["v_nop"] <= 1


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
import os, sys, torch
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
flydsl_compile.serve({**request, "folder": folder, "parent": os.getppid()})
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
