"""The cache on disk: content comes back as it was built, and never damaged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from mxgemm.runtime import disk_cache

CONTENT = b"machine code"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MXGEMM_CACHE_DIR", str(tmp_path))
    return tmp_path


def build(built: list[bytes]) -> bytes:
    built.append(CONTENT)
    return CONTENT


def test_content_is_built_once(folder):
    built: list[bytes] = []
    for _ in range(2):
        assert disk_cache.cached("kind", "name", lambda: build(built)) == CONTENT
    assert len(built) == 1


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "longer"])
def test_damaged_file_is_built_and_written_again(folder, damage):
    built: list[bytes] = []
    disk_cache.cached("kind", "name", lambda: build(built))
    path = folder / "kind/name"
    stored = path.read_bytes()
    path.write_bytes(
        {
            "cut": stored[:-3],
            "empty": b"",
            "flipped": bytes([stored[0] ^ 1]) + stored[1:],
            "longer": stored + b"\0",
        }[damage]
    )
    assert disk_cache.cached("kind", "name", lambda: build(built)) == CONTENT
    assert path.read_bytes() == stored
    assert len(built) == 2


def test_folder_that_cannot_be_made_is_no_reason_to_fail(folder, monkeypatch):
    (folder / "file").write_text("not a folder")
    for path in (folder / "file", "/proc/mxgemm"):
        monkeypatch.setenv("MXGEMM_CACHE_DIR", str(path))
        assert disk_cache.cached("kind", "name", lambda: CONTENT) == CONTENT


def test_threads_that_build_the_same_do_not_disturb_each_other(folder):
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            (folder / "kind/name").unlink(missing_ok=True)
            calls = [
                pool.submit(disk_cache.cached, "kind", "name", lambda: CONTENT) for _ in range(8)
            ]
            assert {call.result() for call in calls} == {CONTENT}
