"""Anchors: fixed code beside what is measured, which compare normalises by."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from mxgemm.bench import anchors, cases, results, tables, variants
from mxgemm.bench.cases import ANCHOR, Case
from mxgemm.bench.errors import Unavailable
from mxgemm.bench.operands import Operands
from mxgemm.devices import DeviceSpec
from mxgemm.runtime import native_cpu

pytestmark = pytest.mark.host
CPU = DeviceSpec.parse("cpu")
CASE = Case(pass_name="square", name="square", m=6, n=40, k=96)
QUANTIZE = Case(pass_name=cases.QUANTIZE, name="rows", m=64, n=0, k=96)


@pytest.fixture
def built():
    """Return the compiled module's file."""
    try:
        return Path(native_cpu.module().__file__)
    except ImportError as error:
        pytest.skip(str(error))


def work(name: str, case: Case = CASE, device: DeviceSpec = CPU):
    return variants.get(name).work(case, Operands(case, torch.device("cpu")), ANCHOR, device)


@pytest.mark.parametrize("case", [CASE, QUANTIZE], ids=lambda case: case.pass_name)
@pytest.mark.parametrize("name", anchors.LOOPS)
def test_loop_runs_and_says_what_it_does(built, name, case):
    assert variants.get(name).stages(case) == (ANCHOR,)
    found = work(name, case)
    found.make()()
    sizes = {"square": 40 * 96 // 2, "quantize": 2 * 64 * 96}
    expected = sizes[case.pass_name] if name == "read_loop" else 0
    assert found.bytes_moved == expected
    assert str(expected or anchors.MULTIPLY_ITERATIONS) in found.plan


@pytest.mark.parametrize("device", ["sm_90", "gfx1250:emulated"])
def test_anchor_is_for_the_cpu(device):
    with pytest.raises(Unavailable, match="runs on cpu"):
        work("multiply_loop", device=DeviceSpec.parse(device))


def test_anchor_without_the_compiled_module_says_so(monkeypatch):
    def missing():
        raise ImportError("no such module")

    monkeypatch.setattr(native_cpu, "module", missing)
    with pytest.raises(Unavailable, match=r"needs the compiled module .*, got no such module"):
        work("multiply_loop")


def test_frozen_build_is_named_by_its_content_and_multiplies(built, tmp_path):
    kept, elsewhere = tmp_path / "kept.so", tmp_path / "elsewhere.so"
    for path in (kept, elsewhere):
        shutil.copyfile(built, path)
    names = {variants.get(f"frozen:{path}").name for path in (kept, elsewhere)}
    assert len(names) == 1
    found = work(f"frozen:{kept}")
    expected = found.expected()
    got = found.make()().double()
    # One rounding to bfloat16 of sums that differ from the exact one in FP32's last bits.
    assert ((got - expected.product).abs() <= expected.product.abs() * 2**-8 + 1e-5).all()
    assert variants.get(f"frozen:{kept}").stages(QUANTIZE) == ()
    elsewhere.write_bytes(built.read_bytes() + b"changed")
    assert variants.get(f"frozen:{elsewhere}").name not in names


def test_file_that_is_no_build_is_unavailable(built, tmp_path):
    path = tmp_path / "text.so"
    path.write_text("no library")
    with pytest.raises(Unavailable, match=r"must be a build of mxgemm\._native_cpu"):
        work(f"frozen:{path}")


def test_anchor_rows_have_no_speedup_and_stand_in_no_table(built, tmp_path, monkeypatch):
    from bench.test_runner import execute, suite
    from mxgemm.bench import roofs

    given = roofs.Roofs({"copy": 10.0}, {"float32": 0.1})
    monkeypatch.setattr(roofs, "measure", lambda device, clock: given)
    table = {"kind": "square", "sizes": [32]}
    kept = shutil.copyfile(built, tmp_path / "kept.so")
    names = ["reference", "multiply_loop", "read_loop", f"frozen:{kept}"]
    _, found = execute(tmp_path / "rows.jsonl", suite(table, variants=names))
    rows = {row.variant.partition(":")[0]: row for row in found.rows}
    for name in ("multiply_loop", "read_loop", "frozen"):
        row = rows[name]
        assert (row.status, row.stage, row.speedup) == (results.TIMED, ANCHOR, None), row.reason
        assert row.flops == 0
    assert rows["frozen"].oracle["worst"] <= 1
    assert rows["multiply_loop"].roof_share is None
    assert "/s" not in tables.row_line(rows["multiply_loop"])
    assert {name for name, _, _ in tables.speedups(found.rows)} == {"reference"}
