"""Outputs appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mxgemm.atomic_write import output_file, output_folder
from mxgemm.errors import CheckpointError

pytestmark = pytest.mark.host

OWNED = ("weights*",)
MARKER = "config"


def write_folder(target: Path, *, force: bool = False, **files: str) -> None:
    with output_folder(target, force=force, owned=OWNED, marker=MARKER) as staging:
        for name, text in files.items():
            (staging / name).write_text(text)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_output_file_appears_with_its_content(tmp_path: Path) -> None:
    target = tmp_path / "new" / "c.txt"
    with output_file(target, force=False) as partial:
        partial.write_text("all")
        assert not target.exists()
    assert target.read_text() == "all"
    assert names(target.parent) == ["c.txt"]


def test_output_file_leaves_nothing_after_an_exception(tmp_path: Path) -> None:
    def fail_halfway() -> None:
        with output_file(tmp_path / "c.txt", force=False) as partial:
            partial.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_halfway()
    assert names(tmp_path) == []


def test_output_file_keeps_an_existing_file_without_force(tmp_path: Path) -> None:
    target = tmp_path / "c.txt"
    target.write_text("old")
    with (
        pytest.raises(CheckpointError, match=r"got an existing file; pass --force"),
        output_file(target, force=False),
    ):
        pass
    assert target.read_text() == "old"
    with output_file(target, force=True) as partial:
        partial.write_text("new")
    assert target.read_text() == "new"


def test_output_file_refuses_a_folder_even_with_force(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="got a folder"), output_file(tmp_path, force=True):
        pass


def test_output_file_refuses_what_is_no_regular_file_even_with_force(tmp_path: Path) -> None:
    link = tmp_path / "c.txt"
    link.symlink_to(os.devnull)
    with (
        pytest.raises(CheckpointError, match="must be a regular file, got a device"),
        output_file(link, force=True),
    ):
        pass
    os.mkfifo(tmp_path / "pipe")
    with (
        pytest.raises(CheckpointError, match="must be a regular file"),
        output_file(tmp_path / "pipe", force=False),
    ):
        pass
    assert names(tmp_path) == ["c.txt", "pipe"]


def test_output_folder_is_made_whole(tmp_path: Path) -> None:
    write_folder(tmp_path / "deep" / "out", weights="w", config="c")
    assert contents(tmp_path / "deep" / "out") == {"weights": "w", "config": "c"}
    assert names(tmp_path / "deep") == ["out"]


def test_output_folder_takes_an_empty_folder_but_no_full_one(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    write_folder(target, weights="w", config="c")
    with pytest.raises(CheckpointError, match=r"got a folder with files; pass --force"):
        write_folder(target, weights="new", config="new")
    assert contents(target) == {"weights": "w", "config": "c"}


def test_output_folder_fills_the_folder_where_the_caller_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = tmp_path.stat()
    write_folder(Path(), weights="w", config="c")
    assert names(Path()) == ["config", "weights"]
    assert (tmp_path.stat().st_ino, tmp_path.stat().st_mode) == (before.st_ino, before.st_mode)


def test_output_folder_with_force_replaces_what_it_owns_and_keeps_the_rest(tmp_path: Path) -> None:
    target = tmp_path / "out"
    write_folder(target, weights="w", weights2="w", config="c", tokenizer="t")
    write_folder(target, force=True, weights="new", config="new")
    assert contents(target) == {"weights": "new", "config": "new", "tokenizer": "t"}


@pytest.mark.parametrize("failing", range(2))
def test_output_folder_replaced_in_part_has_no_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    target = tmp_path / "out"
    write_folder(target, weights="w", config="c")
    moves = 0
    replace = Path.replace

    def fail_at(self: Path, to: Path) -> Path:
        nonlocal moves
        moves += 1
        if moves > failing:
            raise OSError("disk gone")
        return replace(self, to)

    monkeypatch.setattr(Path, "replace", fail_at)
    with pytest.raises(OSError, match="disk gone"):
        write_folder(target, force=True, weights="new", config="new")
    assert MARKER not in contents(target)


def test_output_folder_refuses_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(CheckpointError, match="must be a folder, got a file"):
        write_folder(tmp_path / "out", force=True, config="c")
