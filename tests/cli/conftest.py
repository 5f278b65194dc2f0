"""A folder with operands, and the command line run in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mxgemm import cli


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder with operands and a model in it."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    np.save("a.npy", generator.standard_normal((5, 64), dtype=np.float32))
    np.save("b.npy", generator.standard_normal((7, 64), dtype=np.float32))
    np.save("bias.npy", generator.standard_normal(7, dtype=np.float32))
    save_file({"fc.weight": torch.from_numpy(np.load("b.npy"))}, "model.safetensors")
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process: (status, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        try:
            status = cli.main(arguments)
        except SystemExit as stop:
            status = int(stop.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def run_json(run: Callable[..., tuple[int, str, str]]) -> Callable[..., Any]:
    def call(*arguments: str) -> Any:
        status, out, err = run(*arguments, "--json")
        assert (status, err) == (0, "")
        return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))

    return call
