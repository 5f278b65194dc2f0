"""DeviceSpec: parsing, printing, where operands live, and the answers for machines that are not
here.
"""

import types

import pytest
import torch

from mxgemm import DeviceSpec, devices

SPECS = {
    "sm_90": DeviceSpec("cuda", "sm_90"),
    "sm_120": DeviceSpec("cuda", "sm_120"),
    "gfx950": DeviceSpec("rocm", "gfx950"),
    "gfx1250": DeviceSpec("rocm", "gfx1250"),
    "gfx1250:emulated": DeviceSpec("rocm", "gfx1250", emulated=True),
    "gfx950:emulated": DeviceSpec("rocm", "gfx950", emulated=True),
}


@pytest.fixture(autouse=True)
def clean_gpu_cache():
    devices._gpu.cache_clear()
    yield
    devices._gpu.cache_clear()


@pytest.mark.parametrize("text", SPECS)
def test_parse_names_architectures_and_prints_them_back(text):
    spec = DeviceSpec.parse(text)
    assert spec == SPECS[text]
    assert str(spec) == text


def test_cpu_is_this_machines():
    spec = DeviceSpec.parse("cpu")
    assert spec == DeviceSpec.of("cpu") == DeviceSpec.of(torch.device("cpu"))
    assert (spec.kind, str(spec), spec.torch_device) == ("cpu", "cpu", torch.device("cpu"))
    assert spec.arch


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "cpu:0", "cpu:1", "cpu:", "cuda:", "cuda:x", "cuda:-1", "cuda:128",
     "cuda:" + "9" * 30, "cuda:\u0661", "sm_", "sm_90a", "sm_90:1",
     "gfx942", "gfx1250:", "gfx1250:emulated:1", "gfx1250:1", "sm_90:emulated", "meta", "CPU"],
)  # fmt: skip
def test_parse_refuses_what_names_none(text):
    with pytest.raises(ValueError, match=r"device: must be cpu, cuda\[:index\]"):
        DeviceSpec.parse(text)


def test_an_index_may_have_leading_zeros(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="cuda:7 needs a GPU"):
        DeviceSpec.parse("cuda:07")


@pytest.mark.parametrize("kind", ["meta", "mps", "xpu"])
def test_other_device_types_are_refused(kind):
    with pytest.raises(ValueError, match=f"must be cpu or cuda .*got {kind}"):
        DeviceSpec.of(torch.device(kind))


@pytest.mark.parametrize("text", ["cuda", "cuda:0", "cuda:7"])
def test_a_gpu_that_is_not_there_is_an_error_that_says_so(text, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for ask in (DeviceSpec.parse, DeviceSpec.of):
        with pytest.raises(ValueError, match=r"needs a GPU of that index .*got 0 of them"):
            ask(text)


def test_the_index_counts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, index))
    assert DeviceSpec.of("cuda:0") == DeviceSpec("cuda", "sm_90", index=0)
    assert DeviceSpec.of("cuda") == DeviceSpec("cuda", "sm_91", index=1)
    assert DeviceSpec.of("cuda:1").torch_device == torch.device("cuda", 1)
    assert str(DeviceSpec.of("cuda:1")) == "sm_91#1"
    with pytest.raises(ValueError, match="got 2 of them"):
        DeviceSpec.of("cuda:2")


def test_rocm_is_told_from_cuda_by_torch(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.version, "hip", "7.13")
    properties = types.SimpleNamespace(gcnArchName="gfx950:sramecc+:xnack-")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    assert DeviceSpec.of("cuda:0") == DeviceSpec("rocm", "gfx950")


def test_operands_of_emulated_devices_live_in_cpu_memory():
    assert SPECS["gfx1250:emulated"].torch_device == torch.device("cpu")
    assert SPECS["gfx1250"].torch_device == torch.device("cuda", 0)


def test_specs_are_hashable_values():
    assert len({DeviceSpec.parse(text) for text in [*SPECS, *SPECS]}) == len(SPECS)
