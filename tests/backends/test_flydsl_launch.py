"""The launch on a ROCm device, through FlyDSL's real runtime library and a HIP that only writes
down what it is asked for.

Each test runs in a process of its own, because the runtime binds to the HIP that it finds first.
"""

import importlib.util
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("flydsl") is None, reason="needs flydsl"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]

HERE = Path(__file__).parent
PREPARE = """
import contextlib, ctypes, gc, sys, types, torch
from mxgemm.backends.flydsl_gfx1250 import places
from mxgemm.devices import DeviceSpec
from mxgemm.errors import BackendUnavailable
from mxgemm.runtime import flydsl_launch
from mxgemm.runtime.flydsl_compile import CompiledKernel

STREAMS = {0: 0x50, 1: 0x51}

@contextlib.contextmanager
def device(index):
    hip, before = flydsl_launch.library(), ctypes.c_int()
    hip.hipGetDevice(ctypes.byref(before))
    assert hip.hipSetDevice(index) == 0
    yield
    hip.hipSetDevice(before)

torch.cuda.device = device
torch.cuda.current_stream = lambda index: types.SimpleNamespace(cuda_stream=STREAMS[index])

def kernel(code=b"\\x7fELF", symbol="name"):
    arguments, size = ((0, 8), (8, 4), (12, 4)), 16
    return CompiledKernel(code, "", symbol, 128, 4096, arguments, size, {})

def run(index, kernel, values=(1 << 40, -9, 0.5)):
    spec = DeviceSpec("rocm", "gfx1250", index=index)
    places.place_for(spec).run(kernel, (3, 2, 1), values)

def fails(index, kernel):
    try:
        run(index, kernel)
    except BackendUnavailable as error:
        print(error)
    else:
        raise AssertionError("must fail")
"""
ARGUMENTS = struct.pack("<qif", 1 << 40, -9, 0.5).hex()


@dataclass(frozen=True)
class Done:
    """What HIP was asked for, and what the process printed."""

    calls: list[str]
    printed: str
    errors: str


@pytest.fixture(scope="session")
def hip(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hip")
    versions = folder / "versions"
    versions.write_text("hip_4.2 { global: hip*; local: *; };\n")
    name = "libamdhip64.so.7"
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{name}", f"-Wl,--version-script={versions}"]
    source = HERE / "fake_hip.c"
    subprocess.run(["cc", *flags, "-o", folder / name, source], check=True)
    return folder


def python(body: str, folder: Path, hip: Path | None, fail: str = "") -> Done:
    log = folder / "log"
    log.write_text("")
    environment = {**os.environ, "FAKE_HIP_LOG": str(log), "FAKE_HIP_FAIL": fail}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    if hip is not None:
        environment["LD_LIBRARY_PATH"] = str(hip)
    done = subprocess.run(
        [sys.executable, "-c", PREPARE + body],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Done(log.read_text().splitlines(), done.stdout, done.stderr)


def launched(device: int, arguments: str = ARGUMENTS) -> str:
    return (
        f"launch device={device} function={0x2000 + device:#x} grid=3,2,1 block=128,1,1 lds=4096 "
        f"stream={0x50 + device:#x} params=0 arguments={arguments}"
    )


def loaded(device: int, name: str = "name") -> list[str]:
    module = f"{0x1000 + device:#x}"
    return [
        f"load device={device} image=ELF",
        f"function device={device} module={module} name={name}",
    ]


def test_a_launch_loads_once_and_hands_over_arguments_and_stream(hip, tmp_path):
    done = python("k = kernel()\nrun(0, k)\nrun(0, k, (7, 1, -1.0))", tmp_path, hip)
    again = struct.pack("<qif", 7, 1, -1.0).hex()
    assert done.calls == [*loaded(0)[:1], *loaded(0)[1:], launched(0), launched(0, again)]


def test_each_device_has_its_own_module_and_stream(hip, tmp_path):
    done = python("k = kernel()\nrun(1, k)\nrun(0, k)\nrun(1, k)", tmp_path, hip)
    assert done.calls == [
        *loaded(1),
        launched(1),
        *loaded(0),
        launched(0),
        launched(1),
    ]


def test_nothing_of_flydsls_python_is_imported_and_no_variable_of_it_is_set(hip, tmp_path):
    body = """
run(0, kernel())
import os
assert not [name for name in sys.modules if name.split(".")[0] == "flydsl"]
assert not [name for name in os.environ if name.startswith("FLYDSL_")]
"""
    assert len(python(body, tmp_path, hip).calls) == 3


def test_modules_are_unloaded_from_every_device_when_they_are_dropped(hip, tmp_path):
    body = """
k = kernel()
run(0, k)
run(1, k)
places._module.cache_clear()
gc.collect()
"""
    unloads = python(body, tmp_path, hip).calls[6:]
    assert sorted(unloads) == [
        "synchronize device=0",
        "synchronize device=1",
        "unload device=0 module=0x1000",
        "unload device=1 module=0x1001",
    ]
    for device in "01":
        finished = unloads.index(f"synchronize device={device}")
        assert finished < unloads.index(f"unload device={device} module=0x100{device}")


def test_the_end_of_the_process_calls_nothing(hip, tmp_path):
    assert python("run(0, kernel())", tmp_path, hip).calls[-1] == launched(0)


def test_a_module_that_was_unloaded_refuses(hip, tmp_path):
    body = """
module = flydsl_launch.Module(b"\\x7fELF", "name")
extent = flydsl_launch.Extent((1, 1, 1), 32, 0)
module.unload()
module.unload()
try:
    module.launch(0, extent, b"", 0)
except BackendUnavailable as error:
    print(error)
"""
    done = python(body, tmp_path, hip)
    assert done.printed.endswith("cannot load the kernel: the module was unloaded\n")
    assert done.calls == []


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        (
            "hipModuleLoadData=209",
            "cannot load the kernel: HIP error 209 (hipErrorNoBinaryForGpu)",
        ),
        ("hipModuleGetFunction=500", "cannot launch the kernel: HIP error 500 (unknown)"),
        (
            "hipModuleLaunchKernel=1",
            "cannot launch the kernel: HIP error 1 (hipErrorInvalidValue)",
        ),
    ],
)
def test_hips_errors_are_named(hip, tmp_path, fail, message):
    done = python("fails(0, kernel())", tmp_path, hip, fail)
    assert done.printed == f"flydsl_gfx1250: {message}\n"


def test_an_error_is_told_once(hip, tmp_path):
    body = """
import os
fails(0, kernel())
ctypes.CDLL(None).setenv(b"FAKE_HIP_FAIL", b"", 1)
run(0, kernel())
"""
    done = python(body, tmp_path, hip, "hipModuleLaunchKernel=1")
    assert done.calls[-2:] == [launched(0), launched(0)]


def test_without_rocm_nothing_is_loaded_and_the_error_says_what_is_missing(tmp_path):
    body = """
try:
    flydsl_launch.library()
except BackendUnavailable as error:
    print(error)
assert "amdhip" not in open("/proc/self/maps").read()
"""
    done = python(body, tmp_path, None)
    assert "libamdhip64.so.7" in done.printed
    assert done.calls == []


def test_the_emulated_place_never_touches_hip(tmp_path):
    body = """
place = places.place_for(DeviceSpec.parse("gfx1250:emulated"))
assert type(place) is places.EmulatedPlace
assert flydsl_launch.library.cache_info().currsize == 0
assert "fly_jit_runtime" not in open("/proc/self/maps").read()
"""
    python(body, tmp_path, None)
