"""Compilation in a child process: what a kernel's file is named after, and what is left when
something goes wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mxgemm.backends.flydsl_gfx1250.config import KernelSpec
from mxgemm.runtime import flydsl_compile, import_closure, work_folder
from mxgemm.runtime.flydsl_compile import CompilationFailed, CompiledKernel
from mxgemm.runtime.rocm_linker import Linker

pytestmark = [pytest.mark.host, pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")]

HERE = Path(__file__).parent
BUILDERS = "stuck_builder"
KERNEL = "mxgemm.backends.flydsl_gfx1250.kernel"
LINKER = Linker(Path("/ld.lld"), "LLD 19.1.7")
PARENT = f"""
import sys
from pathlib import Path
from mxgemm.runtime import flydsl_compile
flydsl_compile.compile_kernel("{BUILDERS}:build", Path(sys.argv[1]))
"""
PATIENCE_S = 60


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def work_folders(*parents: Path) -> list[Path]:
    return [folder for p in parents for folder in p.rglob(f"{work_folder.PREFIX}*")]


@pytest.fixture
def places(tmp_path, monkeypatch, linker) -> dict[str, Path]:
    """The cache, the folder of temporary files and the note of a stuck child."""
    found = {name: tmp_path / name for name in ("cache", "temporary", "note")}
    found["temporary"].mkdir()
    monkeypatch.setenv("MXGEMM_CACHE_DIR", str(found["cache"]))
    monkeypatch.setenv("TMPDIR", str(found["temporary"]))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path]))
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("MXGEMM_ROCM_PATH", str(linker("LLD 19.1.7")))
    return found


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_process_leaves_no_child_and_no_file_for_long(places, kill):
    command = [sys.executable, "-c", PARENT, str(places["note"])]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as parent:
        until(places["note"].exists)
        child = int(places["note"].read_text())
        assert is_running(child)
        parent.send_signal(kill)
        parent.wait(PATIENCE_S)
    until(lambda: not is_running(child))
    parents = places["cache"], places["temporary"]
    assert len(work_folders(*parents)) == (kill != signal.SIGINT)
    with pytest.raises(CompilationFailed, match="no kernel here"):
        flydsl_compile.compile_kernel(f"{BUILDERS}:fail", places["note"])
    assert not work_folders(*parents)
    assert not list(places["cache"].rglob("*.json"))


IMPORTS_FOR_LONG = """
import sys
from mxgemm.runtime import flydsl_compile
sys.path.insert(0, sys.argv[1])
flydsl_compile.compile_kernel("any:thing", None)
"""


def test_a_child_that_still_imports_ends_with_its_parent(places, tmp_path):
    """mxgemm is one here that takes long to import."""
    package = tmp_path / "slow/mxgemm"
    package.mkdir(parents=True)
    note = str(places["note"])
    text = f"import pathlib, {BUILDERS}\n{BUILDERS}.build(pathlib.Path({note!r}))\n"
    (package / "__init__.py").write_text(text)
    command = [sys.executable, "-c", IMPORTS_FOR_LONG, str(package.parent)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as parent:
        until(places["note"].exists)
        child = int(places["note"].read_text())
        assert is_running(child)
        parent.kill()
        parent.wait(PATIENCE_S)
    until(lambda: not is_running(child))


def test_a_child_whose_parent_has_ended_does_nothing():
    done = subprocess.run(
        [sys.executable, "-c", flydsl_compile._CHILD, str(os.getppid())],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "the parent is gone\n")


def test_a_folder_that_is_worked_in_is_left_alone(tmp_path):
    with work_folder.work_folder(tmp_path) as first:
        with work_folder.work_folder(tmp_path) as second:
            assert first != second
            assert first.is_dir()
        assert not second.exists()
        assert first.is_dir()
    assert not list(tmp_path.iterdir())


def test_a_child_that_takes_too_long_is_ended(places, monkeypatch):
    monkeypatch.setattr(flydsl_compile, "TIMEOUT_S", 5)
    with pytest.raises(CompilationFailed, match="within 5 s"):
        flydsl_compile.compile_kernel(f"{BUILDERS}:build", places["note"])
    assert not is_running(int(places["note"].read_text()))
    assert not work_folders(places["cache"], places["temporary"])


def test_a_child_that_is_killed_or_cannot_start_is_a_typed_error(places, monkeypatch):
    monkeypatch.setattr(flydsl_compile, "_CHILD", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(CompilationFailed, match="status -9"):
        flydsl_compile.compile_kernel(f"{BUILDERS}:build", places["note"])
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(CompilationFailed, match="/no/such/python"):
        flydsl_compile.compile_kernel(f"{BUILDERS}:build", places["note"])


def test_a_compilation_is_announced(places, caplog):
    caplog.set_level("INFO", "mxgemm")
    with pytest.raises(CompilationFailed):
        flydsl_compile.compile_kernel(f"{BUILDERS}:fail", places["note"])
    assert caplog.messages == ["compiling a kernel, fail: 5 to 30 s, the first time only"]


def no_temporary_folder() -> str:
    raise FileNotFoundError("no usable temporary directory")


def test_without_temporary_files_the_child_works_in_the_cache(places, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", no_temporary_folder)
    with pytest.raises(CompilationFailed, match="no kernel here"):
        flydsl_compile.compile_kernel(f"{BUILDERS}:fail", places["note"])
    assert (places["cache"] / flydsl_compile.FOLDER).is_dir()
    monkeypatch.setenv("MXGEMM_CACHE_DIR", "/proc/mxgemm")
    with pytest.raises(CompilationFailed, match=r"folder to write in, got .*/proc/mxgemm"):
        flydsl_compile.compile_kernel(f"{BUILDERS}:fail", places["note"])


def test_modules_in_the_current_folder_are_not_taken_for_the_childs(places, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pickle.py").write_text("raise ImportError('the wrong pickle')")
    with pytest.raises(CompilationFailed, match="no kernel here"):
        flydsl_compile.compile_kernel(f"{BUILDERS}:fail", places["note"])


def test_a_current_folder_that_is_gone_or_relative_paths_do_not_matter(
    places, monkeypatch, tmp_path
):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    failure = f"no kernel here, in {places['temporary']}/{work_folder.PREFIX}"
    with pytest.raises(CompilationFailed, match=re.escape(failure)):
        flydsl_compile.compile_kernel(f"{BUILDERS}:fail", places["note"])
    monkeypatch.chdir(HERE)
    monkeypatch.setattr(sys, "path", ["", *(entry for entry in sys.path if entry != str(HERE))])
    with pytest.raises(CompilationFailed, match=re.escape(failure)):
        flydsl_compile.compile_kernel(f"{BUILDERS}:fail", places["note"])


KERNEL_FILE = {
    "code_object": b"\x7fELF of AMD".hex(),
    "assembly": "s_endpgm",
    "symbol": "kernel",
    "threads": 128,
    "lds_bytes": 4096,
    "arguments": [[0, 8], [8, 4]],
    "argument_bytes": 12,
    "resources": {"vgpr_count": 64},
}
OTHER_CONTENT = {
    "nothing": b"",
    "no text": b"\xff",
    "no object": b"[]",
    "nested": b"[" * 200_000,
    "empty": b"{}",
    **{
        change: json.dumps({**KERNEL_FILE, change.split()[0]: value}).encode()
        for change, value in {
            "another attribute": 1,
            "threads as text": "128",
            "code_object without digits": "xyz",
            "code_object without ELF": "00",
            "arguments of one number": [[0]],
            "arguments of text": [["0", "8"]],
            "arguments without pairs": [0, 8],
            "resources of text": {"vgpr_count": "64"},
        }.items()
    },
}


@pytest.mark.parametrize("content", OTHER_CONTENT)
def test_a_file_with_other_content_is_compiled_and_written_again(places, monkeypatch, content):
    runs = []

    def run_child(*request: object) -> bytes:
        runs.append(request)
        return json.dumps(KERNEL_FILE).encode()

    monkeypatch.setattr(flydsl_compile, "_run_child", run_child)
    builder = f"{BUILDERS}:build"
    made = flydsl_compile.compile_kernel(builder, None)
    assert made == CompiledKernel(
        b"\x7fELF of AMD", "s_endpgm", "kernel", 128, 4096, ((0, 8), (8, 4)), 12, {"vgpr_count": 64}
    )
    (path,) = places["cache"].rglob("*.json")
    kept = path.read_bytes()
    other = OTHER_CONTENT[content]
    path.write_bytes(other + hashlib.sha256(other).digest())
    for _ in range(2):
        assert flydsl_compile.compile_kernel(builder, None) == made
    assert path.read_bytes() == kept
    assert len(runs) == 2


def name(builder: str = f"{KERNEL}:build_gemm", linker: Linker = LINKER) -> str:
    return flydsl_compile.cache_name(builder, KernelSpec(), linker)


@pytest.mark.parametrize("other", ["0.5.0.dev1", "0.5.0+local", "0.5.0+other", "0.5.1"])
def test_a_file_is_named_after_flydsls_whole_version(monkeypatch, other):
    names = set()
    for version in ("0.5.0", other):
        monkeypatch.setattr(flydsl_compile, "installed_version", lambda version=version: version)
        names.add(name())
    assert len(names) == 2
    assert (0, 4, 2) <= flydsl_compile.release(other) < (0, 6, 0)


def test_a_file_is_named_after_the_linkers_version():
    assert name() == name(linker=Linker(Path("/elsewhere/ld.lld"), LINKER.version))
    assert name() != name(linker=Linker(LINKER.path, "LLD 19.1.8"))


@pytest.mark.parametrize("module", ["epilogue", "backends.flydsl_gfx1250.walk", "errors"])
def test_a_file_is_named_after_every_source(monkeypatch, module):
    before, sources = name(), import_closure.sources

    def changed(*modules: str) -> dict[str, bytes]:
        return {**sources(*modules), f"mxgemm.{module}": b"# another"}

    monkeypatch.setattr(import_closure, "sources", changed)
    assert name() != before
