"""What importing mxgemm needs: nothing until it is used, and no compiled part ever."""

import subprocess
import sys

import pytest


def modules_after(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter holds after `statement`."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", ["mxgemm", "mxgemm.formats", "mxgemm.errors", "mxgemm.settings"])
def test_pure_modules_load_neither_torch_nor_numpy(name):
    loaded = modules_after(f"import {name}")
    assert name in loaded
    assert not {"torch", "numpy"} & loaded


def test_the_public_names_load_no_optional_module():
    loaded = modules_after("from mxgemm import gemm, quantize, plan, explain")
    assert "torch" in loaded
    optional = {"triton", "flydsl", "aiter", "matplotlib", "rich", "safetensors"}
    assert not optional & loaded


def test_it_works_without_compiled_parts():
    statement = (
        "sys.modules['mxgemm._native_cpu'] = None; sys.modules['mxgemm._emulator'] = None\n"
        "import torch, mxgemm\n"
        "q = mxgemm.quantize(torch.ones(2, 32))\n"
        "assert mxgemm.gemm(q, q, out_dtype=torch.float32).tolist() == [[32.0] * 2] * 2"
    )
    assert "mxgemm.matmul" in modules_after(statement)
