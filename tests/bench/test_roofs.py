"""Roofs are measured, and no rate that a peer reaches lies far above them."""

from __future__ import annotations

import pytest

from mxgemm.bench import roofs
from mxgemm.bench.timing import WallClock
from mxgemm.devices import DeviceSpec
from mxgemm.runtime import native_cpu

pytestmark = pytest.mark.host


def test_cpu_roofs_are_measured(monkeypatch):
    monkeypatch.setattr(roofs, "CPU_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(roofs, "CPU_SIZES", (64, 128))
    found = roofs.measure(DeviceSpec.of("cpu"), WallClock())
    assert set(found.gbps) == {"copy", "read"}
    registers = {"int8 registers"} if native_cpu.available_isas() else set()
    assert {"float32", "bfloat16", *registers} <= set(found.tflops)
    assert min([*found.gbps.values(), *found.tflops.values()]) > 0


def test_slow_product_is_not_tried_at_a_greater_size(monkeypatch):
    sizes = []

    def products(size, where):
        sizes.append(size)
        return {"float32": lambda: None}

    monkeypatch.setattr(roofs, "CPU_COPY_BYTES", 1 << 10)
    monkeypatch.setattr(roofs, "_products", products)
    monkeypatch.setattr(roofs, "SLOW_SECONDS", -1.0)
    timed = []
    monkeypatch.setattr(roofs, "_best", lambda clock, call: timed.append(call) or 1.0)
    monkeypatch.setattr(roofs, "_registers", lambda clock: {})
    roofs.measure(DeviceSpec.of("cpu"), WallClock())
    assert sizes == [256, 512, 1024]
    assert len(timed) == 2 + 1


def test_product_that_torch_lacks_is_no_roof(monkeypatch):
    def refuse():
        raise RuntimeError("not implemented")

    given = {"float32": lambda: None, "int4": refuse}
    monkeypatch.setattr(roofs, "CPU_COPY_BYTES", 1 << 10)
    monkeypatch.setattr(roofs, "_products", lambda size, where: given)
    found = roofs.measure(DeviceSpec.of("cpu"), WallClock())
    assert set(found.tflops) - {"int8 registers"} == {"float32"}
