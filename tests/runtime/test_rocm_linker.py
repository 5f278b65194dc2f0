"""The linker of gfx1250 kernels: one that fits is found, one that does not is named, early."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mxgemm import cli, dispatch
from mxgemm.backends.base import RejectionCode
from mxgemm.backends.flydsl_gfx1250 import FlyDSLGfx1250
from mxgemm.runtime import flydsl_compile, rocm_linker

pytestmark = pytest.mark.host

GOOD, OLD = "Debian LLD 19.1.7 (compatible with GNU linkers)", "LLD 18.1.8"
SETTING = "MXGEMM_ROCM_PATH"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Nothing installed but FlyDSL, nothing remembered."""
    monkeypatch.delenv(SETTING, raising=False)
    monkeypatch.setattr(rocm_linker, "USUAL_ROCM", Path("/no/such/rocm"))
    monkeypatch.setattr(flydsl_compile, "installed_version", lambda: "0.5.0")
    monkeypatch.setattr(dispatch.cache, "usable", set())
    monkeypatch.setattr(dispatch.cache, "plans", {})


@pytest.mark.parametrize("form", ["absolute", "relative", "home"])
def test_the_settings_folder_is_resolved_once(linker, monkeypatch, tmp_path, form):
    folder = linker(GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    text = {"absolute": str(folder), "relative": "rocm", "home": "~/rocm"}[form]
    monkeypatch.setenv(SETTING, text)
    found = rocm_linker.find()
    assert found == rocm_linker.Linker(folder / "llvm/bin/ld.lld", GOOD)


def unfit_folder(kind: str, linker, tmp_path: Path) -> str:
    if kind == "missing":
        return str(tmp_path / "nowhere")
    if kind == "a file":
        (tmp_path / "file").write_text("")
        return str(tmp_path / "file")
    if kind == "empty":
        (tmp_path / "empty").mkdir()
        return str(tmp_path / "empty")
    if kind == "no folder inside":
        (tmp_path / "flat").mkdir()
        (tmp_path / "flat/llvm").write_text("")
        return str(tmp_path / "flat")
    if kind == "unreadable":
        return "/unreadable"
    if kind == "nobody's home":
        return "~no_such_user/rocm"
    folder = linker(OLD if kind == "too old" else "GNU ld 2.40")
    program = folder / rocm_linker.IN_ROCM
    if kind == "not executable":
        program.chmod(0o644)
    if kind == "no program":
        program.write_bytes(b"\x7fELF")
    return str(folder)


def not_permitted(path: Path) -> bool:
    raise PermissionError(13, "Permission denied", str(path))


UNFIT = {
    "missing": "nowhere, which is no folder",
    "a file": "file, which is no folder",
    "empty": "empty/llvm/bin/ld.lld, which does not exist",
    "no folder inside": "flat/llvm/bin/ld.lld, which does not exist",
    "unreadable": "/unreadable, which cannot be read: Permission denied",
    "nobody's home": "~no_such_user/rocm, which cannot be resolved",
    "too old": "ld.lld, which is LLD 18.1.8",
    "not lld": "ld.lld, which says 'GNU ld 2.40'",
    "not executable": "ld.lld, which cannot be started: Permission denied",
    "no program": "ld.lld, which cannot be started: Exec format error",
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_setting_that_does_not_fit_is_a_rejection_that_info_shows(
    linker, monkeypatch, tmp_path, capsys, kind
):
    """Another linker on PATH does not replace what the setting names."""
    fitting = linker(GOOD, folder="fitting") / "llvm/bin"
    monkeypatch.setenv("PATH", str(fitting), prepend=os.pathsep)
    monkeypatch.setenv(SETTING, unfit_folder(kind, linker, tmp_path))
    if kind == "unreadable":  # whoever runs the tests
        monkeypatch.setattr(Path, "is_dir", not_permitted)
    rejection = FlyDSLGfx1250().probe()
    assert rejection is not None
    assert rejection.code is RejectionCode.SETTING
    needs = "needs ld.lld 19 or later as llvm/bin/ld.lld in MXGEMM_ROCM_PATH, got "
    assert rejection.detail.startswith(needs)
    assert UNFIT[kind] in rejection.detail

    assert cli.main(["info", "--json"]) == 0
    shown = {b["name"]: b for b in json.loads(capsys.readouterr().out)["backends"]}
    assert shown["flydsl_gfx1250"]["status"] == str(rejection)
    problem = ["--m", "8", "--n", "8", "--k", "32", "--device", "gfx1250:emulated"]
    cli.main(["explain", "--json", *problem])
    assert UNFIT[kind] in capsys.readouterr().out
    with pytest.raises(rocm_linker.NoLinker, match="MXGEMM_ROCM_PATH"):
        flydsl_compile.compile_kernel("no_module:build", None)


def test_where_the_current_folder_is_gone_a_relative_setting_is_a_rejection(monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv(SETTING, "rocm")
    with pytest.raises(rocm_linker.NoLinker, match="rocm, which cannot be resolved"):
        rocm_linker.find()


def on_path(monkeypatch, tmp_path: Path, linker, says: dict[str, str]) -> Path:
    """Put these programs on PATH, and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for at, (name, text) in enumerate(says.items()):
        made = linker(text, folder=str(at)) / rocm_linker.IN_ROCM
        made.rename(folder / name)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_without_the_setting_the_newest_that_fits_is_taken(linker, monkeypatch, tmp_path):
    old = linker(OLD)
    monkeypatch.setattr(rocm_linker, "USUAL_ROCM", old)
    programs = {"ld.lld": "LLD 21.0.0", "ld.lld-19": GOOD, "ld.lld-20": "LLD 20.1.0"}
    folder = on_path(monkeypatch, tmp_path, linker, programs)
    assert rocm_linker.find().path == folder / "ld.lld-20"
    (folder / "ld.lld-20").unlink()
    assert rocm_linker.find().path == folder / "ld.lld-19"
    (folder / "ld.lld-19").unlink()
    assert rocm_linker.find().version == "LLD 21.0.0"
    monkeypatch.setattr(rocm_linker, "USUAL_ROCM", linker(GOOD, folder="opt"))
    assert rocm_linker.find().path == tmp_path / "opt" / rocm_linker.IN_ROCM


def test_without_any_the_rejection_names_what_was_found(linker, monkeypatch, tmp_path):
    on_path(monkeypatch, tmp_path, linker, {})
    rejection = FlyDSLGfx1250().probe()
    assert rejection is not None
    assert rejection.code is RejectionCode.IMPORT
    assert rejection.detail.endswith("Debian's lld-19 or one on PATH, got none")
    monkeypatch.setattr(rocm_linker, "USUAL_ROCM", linker(OLD))
    rejection = FlyDSLGfx1250().probe()
    assert rejection is not None
    assert rejection.detail.endswith("rocm/llvm/bin/ld.lld, which is LLD 18.1.8")


def test_a_linker_that_is_replaced_is_asked_again(linker, monkeypatch):
    folder = linker(OLD)
    monkeypatch.setenv(SETTING, str(folder))
    with pytest.raises(rocm_linker.NoLinker, match=r"18\.1\.8"):
        rocm_linker.find()
    program = folder / rocm_linker.IN_ROCM
    program.write_text(program.read_text().replace(OLD, GOOD))
    assert rocm_linker.find().version == GOOD


MENDED = {
    "not executable": (lambda program: program.chmod(0o644), lambda program: program.chmod(0o755)),
    "says nothing": (
        lambda program: program.write_text("#!/bin/sh\ntest -e $0.so && echo LLD 19.1.7\n"),
        lambda program: Path(f"{program}.so").touch(),
    ),
    "no interpreter": (
        lambda program: program.write_text(f"#!{program}.sh\necho LLD 19.1.7\n"),
        lambda program: Path(f"{program}.sh").symlink_to("/bin/sh"),
    ),
}
"""What an ld.lld lacks: how it is broken, how it is mended without being written."""


@pytest.mark.parametrize("kind", MENDED)
def test_a_linker_that_becomes_fit_is_seen(linker, monkeypatch, kind):
    rocm = linker(GOOD)
    monkeypatch.setenv(SETTING, str(rocm))
    program = rocm / rocm_linker.IN_ROCM
    damage, mend = MENDED[kind]
    damage(program)
    backend = FlyDSLGfx1250()
    rejection = dispatch.probe(backend)
    assert rejection is not None
    assert rejection.code is RejectionCode.SETTING
    mend(program)
    assert dispatch.probe(backend) is None
    assert rocm_linker.find().path == program


def test_a_linker_that_can_no_longer_be_started_is_seen(linker, monkeypatch):
    rocm = linker(GOOD)
    monkeypatch.setenv(SETTING, str(rocm))
    assert rocm_linker.find().version == GOOD
    (rocm / rocm_linker.IN_ROCM).chmod(0o644)
    with pytest.raises(rocm_linker.NoLinker, match="cannot be started: Permission denied"):
        rocm_linker.find()


def test_a_linker_that_fits_is_started_once(linker, monkeypatch, tmp_path):
    rocm = linker(GOOD)
    program = rocm / rocm_linker.IN_ROCM
    program.write_text(program.read_text() + f"echo started >> {tmp_path}/starts\n")
    monkeypatch.setenv(SETTING, str(rocm))
    assert rocm_linker.find() == rocm_linker.find()
    assert (tmp_path / "starts").read_text() == "started\n"


def test_a_linker_that_does_not_end_is_named(linker, monkeypatch):
    rocm = linker(GOOD)
    (rocm / rocm_linker.IN_ROCM).write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setenv(SETTING, str(rocm))
    monkeypatch.setattr(rocm_linker, "TIMEOUT_S", 0.2)
    with pytest.raises(rocm_linker.NoLinker, match=r"ld\.lld, which does not end within 0\.2 s"):
        rocm_linker.find()
