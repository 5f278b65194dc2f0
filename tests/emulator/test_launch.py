"""Loading and launching: what is refused and how, hooks, traces, seeds and threads."""

import subprocess
import sys

import numpy as np
import pytest

from gfx1250_programs import NAME, assemble, assembly, needs_llvm
from mxgemm.emulator import (
    AccessError,
    DecodeError,
    EventKind,
    InstructionLimit,
    LaunchError,
    LoadError,
    Machine,
)
from mxgemm.errors import BackendUnavailable, Hazard, MXError

pytestmark = pytest.mark.emulated


def loaded(lines="s_nop 0", **options) -> Machine:
    machine = Machine()
    machine.load(assembly(lines, **options))
    return machine


# ------------------------------------------------------------------------------------------ loading


def test_other_architectures_are_refused():
    with pytest.raises(LoadError, match=r"must be one of \['gfx1250'\]"):
        Machine("gfx942")
    with pytest.raises(LoadError, match="must be for gfx1250, got gfx950"):
        Machine().load(assembly("s_nop 0").replace("unknown-gfx1250", "unknown-gfx950"))


@needs_llvm
def test_damaged_code_objects_are_refused(tmp_path):
    code = assemble(assembly("s_nop 0", arguments=[8]), tmp_path)
    other_machine = bytearray(code)
    other_machine[48] = 0x4C
    with pytest.raises(LoadError, match="must be for gfx1250"):
        Machine().load(bytes(other_machine))
    with pytest.raises(LoadError, match="magic number"):
        Machine().load(b"")
    with pytest.raises(LoadError, match="magic number"):
        Machine().load(b"#!/bin/sh" + bytes(100))
    for size in range(64, len(code), 101):
        with pytest.raises(LoadError):
            Machine().load(code[:size])


@needs_llvm
def test_no_damage_of_a_code_object_gives_an_untyped_error(tmp_path):
    code = assemble(assembly("s_nop 0", arguments=[8, 4]), tmp_path)
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(code)
        for at in rng.integers(0, len(code), 4):
            damaged[at] = rng.integers(0, 256)
        try:
            Machine().load(bytes(damaged))
        except LoadError:
            continue


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda t: t[: t.index("\t.amdgpu_metadata")], "no .amdgpu_metadata"),
        (lambda t: t.replace(".amdhsa_kernel", ".amdhsa_kern"), "no .amdhsa_kernel"),
        (lambda t: t.replace(f"{NAME}:\n", "other:\n"), "no function of that name"),
        (
            lambda t: t.replace(".wavefront_size: 32", ".wavefront_size: 64"),
            "must have 32 lanes on gfx1250, got 64",
        ),
        (
            lambda t: t.replace("user_sgpr_count 2", "user_sgpr_count 8"),
            "only user registers that are set up",
        ),
        (
            lambda t: t.replace("value_kind: by_value", "value_kind: hidden_block_count_x"),
            "hidden argument",
        ),
        (
            lambda t: t.replace("amdhsa.kernels:\n", "amdhsa.kernels: []\nother:\n"),
            "names no kernel",
        ),
        (
            lambda t: t.replace(".vgpr_count:     1024", ".vgpr_count:     2").replace(
                "s_nop 0", "v_mov_b32 v2, 0"
            ),
            "uses v2",
        ),
    ],
)
def test_texts_that_are_not_a_whole_kernel_are_refused(damage, match):
    with pytest.raises(LoadError, match=match):
        Machine().load(damage(assembly("s_nop 0", arguments=[4])))


@pytest.mark.parametrize(
    "line",
    [
        "v_frobnicate_b32 v1, v2",
        "v_mov_b32 v1",
        "v_mov_b32 v1, v2 dst_sel:BYTE_0",
        "s_branch .LBB9_9",
        "v_mov_b32 v1, v300",
        "v_mov_b32 v1, banana",
    ],
)
def test_unknown_instructions_are_refused_with_their_text(line):
    with pytest.raises(DecodeError) as caught:
        Machine().load(assembly(["s_nop 0", line]))
    assert f"instruction 1 `{line}`" in str(caught.value)


@needs_llvm
def test_unknown_machine_code_is_refused_with_its_place(tmp_path):
    code = assemble(assembly(["s_nop 0", "v_sin_f32 v1, v2"]), tmp_path)
    with pytest.raises(
        DecodeError, match=r"decode at 0x[0-9a-f]+: the instruction 7e026b02 .* is not known"
    ):
        Machine().load(code)


def test_several_kernels_are_chosen_by_name():
    machine = loaded()
    machine.load(assembly("s_nop 1").replace(NAME, "second"))
    with pytest.raises(LaunchError, match=r"must be one of \['program', 'second'\]"):
        machine.launch((1,))
    machine.launch((1,), kernel="second")


# ---------------------------------------------------------------------------------------- launching


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"grid": (0, 1, 1)},
            "grid must be one to three integers of at least 1, got \\(0, 1, 1\\)",
        ),
        ({"grid": ()}, "grid must be"),
        ({"grid": (1, 65_536)}, "at most \\(2147483647, 65535, 65535\\) .*, got \\(1, 65536, 1\\)"),
        ({"grid": (1, 1, 65_536)}, "at most .* got \\(1, 1, 65536\\)"),
        ({"grid": (1 << 31,)}, "at most .* got \\(2147483648, 1, 1\\)"),
        ({"grid": ("x",)}, "grid must be one to three integers, got"),
        ({"block": (64,)}, "block must be \\(32, 1, 1\\), got \\(64, 1, 1\\)"),
        ({"args": []}, "2 arguments are needed, got 0"),
        ({"args": [1, 2, 3]}, "2 arguments are needed, got 3"),
        ({"args": [1.5, 2]}, "argument 0 is an address, got 1.5"),
        ({"args": [1, "x"]}, "argument 1 is 4 bytes by value, got 'x'"),
        ({"args": [1, 1 << 32]}, "argument 1 is 4 bytes by value"),
        ({"args": [1, -(1 << 31) - 1]}, "argument 1 is 4 bytes by value"),
        ({"args": [1, b"abc"]}, "argument 1 is 4 bytes by value"),
        ({"args": [1, True]}, "argument 1 is 4 bytes by value, got True"),
        ({"lds_bytes": 327_681}, "LDS must be 0..327680 bytes, got 327681"),
        ({"cluster": (2,)}, "grid must be a multiple of cluster \\(2, 1, 1\\)"),
        ({"grid": (32,), "cluster": (32,)}, "at most 16 workgroups in a cluster"),
        ({"timing": "soon"}, "timing must be one of"),
        ({"workgroups": [(5, 0, 0)]}, "inside the grid"),
    ],
)
def test_launches_that_do_not_fit_are_refused(options, match):
    machine = loaded(arguments=[8, 4])
    with pytest.raises(LaunchError, match=match):
        machine.launch(**({"grid": (1,), "args": [0, 0]} | options))


def test_block_is_needed_where_the_metadata_does_not_fix_it():
    machine = loaded(block=None)
    with pytest.raises(LaunchError, match="block is needed"):
        machine.launch((1,))
    with pytest.raises(LaunchError, match="at most 1024 work-items"):
        machine.launch((1,), block=(1025,))
    assert machine.launch((1,), block=(64,)).counters.instructions == 4


def test_arguments_arrive_as_the_metadata_lays_them_out():
    machine = loaded(
        "s_load_b64 s[4:5], s[0:1], 0x0\ns_load_b32 s6, s[0:1], 0x8\ns_load_b32 s7, s[0:1], 0xc\n"
        "s_load_b64 s[8:9], s[0:1], 0x10\n"
        "s_wait_kmcnt 0x0",
        arguments=[8, 4, 4, 8],
    )
    seen = []
    machine.hook("end", lambda wave: seen.extend(wave.scalar(n) for n in range(4, 10)))
    machine.launch((1,), args=[0x1_2345_6789, -2, 1.5, 0x6867666564636261])
    assert seen[:4] == [0x23456789, 1, 0xFFFFFFFE, 0x3FC00000]
    assert np.array(seen[4:], np.uint32).tobytes() == b"abcdefgh"


def test_kernel_that_never_ends_is_stopped():
    machine = loaded(".LBB0_1:\ns_branch .LBB0_1")
    with pytest.raises(InstructionLimit, match="1000 instructions executed") as caught:
        machine.launch((1,), max_instructions=1000)
    assert caught.value.pc == 0
    assert isinstance(caught.value, MXError)


def test_running_off_the_end_is_an_error():
    text = assembly("s_nop 0").replace("\ts_endpgm\n", "")
    machine = Machine()
    machine.load(text)
    with pytest.raises(AccessError, match="ran past the last instruction"):
        machine.launch((1,))


def test_memory_regions():
    machine = Machine()
    region = machine.memory.map(0x1000, 256)
    machine.memory.write(region.base + 16, np.arange(4, dtype=np.uint32))
    machine.memory.write(region, b"ab")
    assert machine.memory.read(region)[:20].tolist() == [97, 98, *[0] * 18]
    assert machine.memory.read(0x1014, 4).view(np.uint32) == 1
    for call, match in [
        (lambda: machine.memory.map(0x10F0, 32), "must not overlap"),
        (lambda: machine.memory.map(0xFF0, 32), "must not overlap"),
        (lambda: machine.memory.map(0x2000, 0), "size must be positive"),
        (lambda: machine.memory.map(0x2000), "give a size or a buffer"),
        (
            lambda: machine.memory.map(0x2000, 5, buffer=np.zeros(4)),
            "size must be the buffer's, 32 bytes, got 5",
        ),
        (lambda: machine.memory.map(0x2000, buffer=np.zeros((4, 4))[:, ::2]), "C-contiguous"),
        (lambda: machine.memory.read(0x10F0, 32), "not inside a mapped region"),
        (lambda: machine.memory.unmap(0x3000), "no region starts at 0x3000"),
        (lambda: machine.memory.read(0x1000), "give a size"),
    ]:
        with pytest.raises(ValueError, match=match):
            call()
    machine.memory.unmap(region)
    machine.memory.map(0x10F0, 32)


# ----------------------------------------------------------------------------------- hooks, traces,
# seeds, threads

WAVES = """
	v_lshlrev_b32 v1, 2, v0
	ds_store_b32 v1, v0
	s_wait_dscnt 0x0
	s_barrier_signal -1
	s_barrier_wait -1
	ds_load_b32 v2, v1
	s_wait_dscnt 0x0
"""


def test_hooks_see_every_event_and_may_be_removed():
    machine = loaded(WAVES, block=64)
    counts = dict.fromkeys(("start", "end", "instruction", "barrier"), 0)
    for event in counts:
        machine.hook(event, lambda *_, event=event: counts.__setitem__(event, counts[event] + 1))
    machine.launch((3,), lds_bytes=256)
    assert counts == {"start": 6, "end": 6, "instruction": 8 * 6 + blocked(counts), "barrier": 12}
    for event in counts:
        machine.hook(event, None)
    machine.launch((3,), lds_bytes=256)
    assert counts["start"] == 6
    with pytest.raises(ValueError, match="event must be one of"):
        machine.hook("sunrise", print)


def blocked(counts) -> int:
    """Return how often a wave looked at the barrier before it had completed."""
    return counts["instruction"] - 48


def test_error_in_a_hook_reaches_the_caller():
    machine = loaded()
    machine.hook("start", lambda wave: wave.vector(5000))
    with pytest.raises(IndexError, match="no such vector register"):
        machine.launch((1,))


def test_trace_orders_issues_retirements_and_barriers():
    machine = loaded(WAVES, block=64)
    result = machine.launch((2,), lds_bytes=256, trace=True, timing="late")
    trace = result.trace
    assert set(trace.workgroup) == {0, 1}
    assert set(trace.wave) == {0, 1}
    issues = trace.kind == EventKind.ISSUE
    assert issues.sum() == result.counters.instructions == 2 * 2 * 8
    for group in (0, 1):
        for wave in (0, 1):
            mine = (trace.workgroup == group) & (trace.wave == wave)
            assert trace.pc[mine & issues].tolist() == list(range(8))
            retired = mine & (trace.kind == EventKind.RETIRE)
            assert trace.pc[retired].tolist() == [1, 5]
            assert (trace.tick[retired] > trace.issue_tick[retired]).all()
            assert (
                (mine & (trace.kind == EventKind.SIGNAL)).sum()
                == (mine & (trace.kind == EventKind.END)).sum()
                == 1
            )
    assert machine.launch((1,), lds_bytes=256).trace is None


def order_of_waves(seed: int, threads: int | None = None, timing="late") -> list[int]:
    machine = loaded(WAVES, block=128)
    trace = machine.launch(
        (4,), lds_bytes=512, trace=True, seed=seed, threads=threads, timing=timing
    ).trace
    order = np.lexsort((np.arange(len(trace)), trace.workgroup))
    return np.stack([trace.workgroup, trace.wave, trace.pc, trace.kind])[:, order].tolist()


def test_same_seed_is_the_same_run_for_any_number_of_threads():
    for timing in ("early", "late", "random"):
        assert (
            order_of_waves(3, 1, timing)
            == order_of_waves(3, 2, timing)
            == order_of_waves(3, 4, timing)
        )
    assert order_of_waves(3) != order_of_waves(4)


def test_first_fault_in_launch_order_is_reported_from_any_thread():
    lines = "s_cmp_lt_u32 ttmp9, 2\ns_cbranch_scc1 .LBB0_1\nv_mov_b32 v1, v9\n.LBB0_1:\ns_nop 0"
    machine = loaded(lines)
    with pytest.raises(Hazard) as caught:
        machine.launch((8,), threads=1)
    assert caught.value.workgroup == (2, 0, 0)
    with pytest.raises(Hazard):
        machine.launch((8,), threads=4)


def test_counters_add_up_over_workgroups():
    machine = loaded(WAVES, block=64)
    one = machine.launch((1,), lds_bytes=256).counters
    many = machine.launch((5, 2), lds_bytes=256).counters
    some = machine.launch((5, 2), lds_bytes=256, workgroups=[(0, 1), (4, 0), (4, 0, 0)]).counters
    for name in ("instructions", "lds_read_bytes", "lds_written_bytes", "lds_cycles", "barriers"):
        assert getattr(many, name) == 10 * getattr(one, name)
        assert getattr(some, name) == 2 * getattr(one, name)
    assert (many.executed == 10 * one.executed).all()
    assert many.lds_high_water == one.lds_high_water == 256


def test_emulator_needs_neither_torch_nor_the_compiled_executor_to_be_imported():
    code = (
        "import sys; sys.modules['mxgemm._emulator'] = None; import mxgemm.emulator as e; assert "
        "'torch' not in sys.modules\n"
        "try: e.Machine()\nexcept Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(
        f"{BackendUnavailable.__name__} emulator: the compiled module mxgemm._emulator"
    )
