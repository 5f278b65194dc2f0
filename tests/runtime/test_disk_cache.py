"""The cache on disk: content comes back as it was built, and never damaged."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from mxgemm.runtime import disk_cache, nvrtc

CONTENT = b"machine code"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MXGEMM_CACHE_DIR", str(tmp_path))
    disk_cache._warn.cache_clear()
    return tmp_path


def build(built: list[bytes]) -> bytes:
    built.append(CONTENT)
    return CONTENT


def parse(content: bytes) -> str:
    if not content.startswith(b"machine"):
        raise ValueError("no machine code")
    return content.decode()


PARSED = parse(CONTENT)


def test_content_is_built_once(folder):
    built: list[bytes] = []
    for _ in range(2):
        assert disk_cache.cached("kind", "name", lambda: build(built), parse) == PARSED
    assert len(built) == 1


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "longer", "other content"])
def test_damaged_file_is_built_and_written_again(folder, damage):
    built: list[bytes] = []
    disk_cache.cached("kind", "name", lambda: build(built), parse)
    path = folder / "kind/name"
    stored = path.read_bytes()
    path.write_bytes(
        {
            "cut": stored[:-3],
            "empty": b"",
            "flipped": bytes([stored[0] ^ 1]) + stored[1:],
            "longer": stored + b"\0",
            "other content": b"{}" + hashlib.sha256(b"{}").digest(),
        }[damage]
    )
    assert disk_cache.cached("kind", "name", lambda: build(built), parse) == PARSED
    assert path.read_bytes() == stored
    assert len(built) == 2


CONSEQUENCE = "; every process compiles anew what is not kept"


@pytest.mark.parametrize(
    ("setting", "got"),
    [
        ("file", "{folder}/file/kind, which cannot be written: Not a directory"),
        ("/proc/mxgemm", "/proc/mxgemm/kind, which cannot be written: No such file or directory"),
        (
            "~no_such_user",
            "~no_such_user, which cannot be resolved: Could not determine home directory.",
        ),
    ],
)
def test_folder_that_cannot_be_made_is_no_reason_to_fail(folder, monkeypatch, caplog, setting, got):
    (folder / "file").write_text("not a folder")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MXGEMM_CACHE_DIR", setting)
    for _ in range(2):
        assert disk_cache.cached("kind", "name", lambda: CONTENT, parse) == PARSED
    needs = "MXGEMM_CACHE_DIR: needs a folder to write in, got "
    assert caplog.messages == [needs + got.format(folder=folder) + CONSEQUENCE]


def test_a_folder_in_the_place_of_a_file_is_named(folder, caplog):
    path = folder / "kind/name"
    path.mkdir(parents=True)
    assert disk_cache.cached("kind", "name", lambda: CONTENT, parse) == PARSED
    reason = f"compiled kernel: needs a file, got {path}, which cannot be written: Is a directory"
    assert caplog.messages == [reason + CONSEQUENCE]


def test_threads_that_build_the_same_do_not_disturb_each_other(folder):
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            (folder / "kind/name").unlink(missing_ok=True)
            calls = [
                pool.submit(disk_cache.cached, "kind", "name", lambda: CONTENT, parse)
                for _ in range(8)
            ]
            assert {call.result() for call in calls} == {PARSED}


def test_content_that_does_not_parse_is_not_kept(folder):
    with pytest.raises(ValueError, match="no machine code"):
        disk_cache.cached("kind", "name", lambda: b"{}", parse)
    assert not (folder / "kind/name").exists()


def test_a_kept_cubin_that_is_none_is_compiled_again(folder, monkeypatch, tmp_path):
    compiled = nvrtc.Compiled(b"\x7fELF of CUDA", "")
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 0))
    monkeypatch.setattr(nvrtc, "compile_source", lambda source, arch: compiled)
    source = nvrtc.Source(tmp_path / "kernel.cu")
    source.path.write_text("")
    assert nvrtc.cubin(source, nvrtc.HOPPER) == compiled.cubin
    (path,) = folder.rglob("*.cubin")
    kept = path.read_bytes()
    path.write_bytes(b"{}" + hashlib.sha256(b"{}").digest())
    assert nvrtc.cubin(source, nvrtc.HOPPER) == compiled.cubin
    assert path.read_bytes() == kept
