"""`mxgemm gemm`: the library's result in a file, and one line for everything else."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mxgemm
from command_line import Emulated, Refuser, assert_fails
from mxgemm import checkpoints, dispatch
from mxgemm.numerics import e8m0

pytestmark = pytest.mark.host


def expected(**options: Any) -> torch.Tensor:
    a, b = (mxgemm.quantize(torch.from_numpy(np.load(f"{name}.npy"))) for name in "ab")
    return mxgemm.gemm(a, b, **options)


@pytest.mark.parametrize("out_dtype", ["fp32", "bf16", "fp16"])
def test_gemm_stores_the_librarys_result_as_fp32(run_json: Any, here: Path, out_dtype: str) -> None:
    summary = run_json(
        "gemm", "a.npy", "b.npy", "-o", "c.npy", "--out-dtype", out_dtype, "--bias", "bias.npy",
        "--activation", "gelu", "--alpha", "0.5",
    )  # fmt: skip
    found = np.load("c.npy")
    assert found.dtype == np.float32
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[out_dtype]
    bias = torch.from_numpy(np.load("bias.npy"))
    reference = expected(out_dtype=dtype, bias=bias, activation="gelu", alpha=0.5)
    assert np.array_equal(found, reference.float().numpy())
    assert (summary["shape"], summary["emulated"]) == ([5, 7], False)
    assert summary["warnings"] == []


def test_gemm_reads_safetensors_plain_and_quantized(run_json: Any, here: Path) -> None:
    checkpoints.quantize_file("model.safetensors", "out")
    plain = run_json("gemm", "a.npy", "model.safetensors:fc.weight", "-o", "plain.npy")
    stored = run_json("gemm", "a.npy", "out/model.safetensors:fc.weight", "-o", "stored.npy")
    assert np.array_equal(np.load("plain.npy"), expected(out_dtype=torch.float32).numpy())
    assert np.array_equal(np.load("plain.npy"), np.load("stored.npy"))
    assert plain["sqnr_db"]["b"] > 15
    assert stored["sqnr_db"]["b"] is None


def test_gemm_refuses_a_rule_that_nothing_would_heed(run: Any, run_json: Any, here: Path) -> None:
    assert run("quantize", "model.safetensors", "-o", "q")[0] == 0
    stored = "q/model.safetensors:fc.weight"
    assert_fails(
        run("gemm", stored, stored, "--rule", "ceil", "-o", "c.npy"), "quantized here, got ceil"
    )
    assert run_json("gemm", stored, stored, "-o", "c.npy")["rule"] is None
    assert run_json("gemm", "a.npy", stored, "--rule", "ceil", "-o", "d.npy")["rule"] == "ceil"
    assert run_json("gemm", "a.npy", stored, "-o", "e.npy")["rule"] == "even"


def test_gemm_uses_the_named_backend_and_says_so(run: Any, here: Path) -> None:
    status, out, _ = run("gemm", "a.npy", "b.npy", "-o", "c.npy", "--backend", "reference_fp32")
    assert status == 0
    assert "reference_fp32" in out
    assert np.array_equal(
        np.load("c.npy"), expected(out_dtype=torch.float32, backend="reference_fp32").numpy()
    )


def test_gemm_on_the_emulated_device_says_emulated(
    run: Any, run_json: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "BACKENDS", (Emulated(),))
    dispatch.cache.clear()
    summary = run_json("gemm", "a.npy", "b.npy", "--emulate", "-o", "c.npy")
    assert summary["emulated"] is True
    assert (summary["device"], summary["backend"]) == ("gfx1250:emulated", "emulated_toy")
    assert np.array_equal(np.load("c.npy"), expected_on_cpu())
    status, out, _ = run("gemm", "a.npy", "b.npy", "--emulate", "-o", "d.npy")
    assert status == 0
    assert "gfx1250:emulated (emulated)" in out
    dispatch.cache.clear()


@pytest.mark.parametrize("device", ["gfx1250", "sm_90"])
def test_gemm_on_a_gpu_that_is_not_there_names_the_way_out(
    run: Any, here: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    result = run("gemm", "a.npy", "b.npy", "--device", device, "-o", "c.npy")
    assert_fails(result, f"{device} needs a GPU")
    assert "--emulate" in result[2]


def expected_on_cpu() -> np.ndarray[Any, Any]:
    a, b = (mxgemm.quantize(torch.from_numpy(np.load(f"{name}.npy"))) for name in "ab")
    return (
        (mxgemm.dequantize(a, torch.float64) @ mxgemm.dequantize(b, torch.float64).T)
        .float()
        .numpy()
    )


def test_gemm_pads_k_on_request(run: Any, run_json: Any, here: Path) -> None:
    np.save("odd.npy", np.ones((2, 40), dtype=np.float32))
    assert_fails(
        run("gemm", "odd.npy", "odd.npy", "-o", "c.npy"),
        r"a odd\.npy: .*K must be a multiple of 32, got 40; pass --pad to",
    )
    run_json("gemm", "odd.npy", "odd.npy", "-o", "c.npy", "--pad")
    assert np.load("c.npy").tolist() == [[40.0, 40.0], [40.0, 40.0]]


@pytest.mark.parametrize(("m", "k"), [(0, 64), (5, 0)])
def test_gemm_of_empty_operands_is_defined(run_json: Any, here: Path, m: int, k: int) -> None:
    np.save("x.npy", np.ones((m, k), dtype=np.float32))
    np.save("y.npy", np.ones((7, k), dtype=np.float32))
    run_json("gemm", "x.npy", "y.npy", "-o", "c.npy")
    found = np.load("c.npy")
    assert found.shape == (m, 7)
    assert not found.any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_gemm_keeps_nan_and_says_so(run: Any, run_json: Any, here: Path, value: float) -> None:
    a = np.load("a.npy")
    a[2, 40] = value
    np.save("bad.npy", a)
    summary = run_json("gemm", "bad.npy", "b.npy", "-o", "c.npy")
    found = np.load("c.npy")
    assert np.isnan(found[2]).all()
    assert np.isfinite(np.delete(found, 2, axis=0)).all()
    assert summary["warnings"] == [
        "a: 1 blocks hold NaN or Inf",
        "result: 7 of 35 values are NaN or Inf",
    ]
    assert int(mxgemm.quantize(torch.from_numpy(a)).scales[2, 1]) == e8m0.NAN
    status, out, _ = run("gemm", "bad.npy", "b.npy", "-o", "d.npy")
    assert status == 0
    assert "warning: a: 1 blocks hold NaN or Inf" in out


def test_gemm_keeps_a_bias_that_is_not_finite_and_says_so(run_json: Any, here: Path) -> None:
    bias = np.load("bias.npy")
    bias[3] = np.inf
    np.save("bad.npy", bias)
    summary = run_json("gemm", "a.npy", "b.npy", "--bias", "bad.npy", "-o", "c.npy")
    assert np.isposinf(np.load("c.npy")[:, 3]).all()
    assert summary["warnings"] == [
        "bias: 1 of 7 values are NaN or Inf",
        "result: 5 of 35 values are NaN or Inf",
    ]


GEMM_FAILURES = {
    "missing": (("none.npy", "b.npy"), r"none\.npy: No such file"),
    "no-form": (("a.txt", "b.npy"), r"a: must be FILE\.npy or FILE\.safetensors:TENSOR"),
    "no-tensor-named": (("model.safetensors", "b.npy"), r"must be FILE\.npy or"),
    "no-such-tensor": (("model.safetensors:x", "b.npy"), r"no tensor 'x'; it holds 'fc\.weight'"),
    "empty-file": (("empty.npy", "b.npy"), r"empty\.npy: not a \.npy file"),
    "text-file": (("text.npy", "b.npy"), r"text\.npy: not a \.npy file"),
    "cut-file": (("cut.npy", "b.npy"), r"cut\.npy: not a readable \.npy file"),
    "cut-header": (("header.npy", "b.npy"), r"header\.npy: not a readable \.npy file"),
    "open-header": (("open.npy", "b.npy"), r"open\.npy: not a readable \.npy file"),
    "endless": (("endless.npy", "b.npy"), r"endless\.npy: not a readable \.npy file"),
    "beyond-memory": (("tera.npy", "b.npy"), r"tera\.npy: not a readable \.npy file"),
    "objects": (("objects.npy", "b.npy"), r"objects\.npy: not a readable \.npy file"),
    "float64": (("double.npy", "b.npy"), r"dtype must be float32.* got float64; convert it first"),
    "integers": (("integers.npy", "b.npy"), r"dtype must be float32 or float16, got int64"),
    "vector": (("bias.npy", "b.npy"), r"a must be a matrix, got shape \(7,\)"),
    "cube": (("cube.npy", "b.npy"), r"a must be a matrix, got shape \(2, 2, 32\)"),
    "other-k": (("a.npy", "wide.npy"), r"must share the contraction K"),
    "bias-shape": (("a.npy", "b.npy", "--bias", "a.npy"), r"bias must have shape \(7,\)"),
    "bias-dtype": (("a.npy", "b.npy", "--bias", "integers.npy"), r"bias integers\.npy: dtype"),
    "alpha": (("a.npy", "b.npy", "--alpha", "nan"), r"alpha must be .*, got nan"),
    "backend": (("a.npy", "b.npy", "--backend", "magic"), r"backend: must be one of .*'magic'"),
}  # fmt: skip


def npy_header(shape: str) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize("case", GEMM_FAILURES)
def test_gemm_fails_in_one_line_and_writes_nothing(run: Any, here: Path, case: str) -> None:
    whole = (here / "a.npy").read_bytes()
    (here / "empty.npy").write_bytes(b"")
    (here / "text.npy").write_text("1 2 3")
    (here / "cut.npy").write_bytes(whole[:-5])
    (here / "header.npy").write_bytes(whole[:40])
    (here / "open.npy").write_bytes(whole.replace(b"(5, 64)", b"((5, 64"))
    for name, rows in (("endless.npy", 10**30), ("tera.npy", 10**15)):
        (here / name).write_bytes(npy_header(f"({rows}, 64)"))
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save("double.npy", np.ones((2, 64)))
    np.save("integers.npy", np.ones((2, 64), dtype=np.int64))
    np.save("cube.npy", np.ones((2, 2, 32), dtype=np.float32))
    np.save("wide.npy", np.ones((2, 96), dtype=np.float32))
    arguments, message = GEMM_FAILURES[case]
    before = sorted(path.name for path in here.iterdir())
    assert_fails(run("gemm", *arguments, "-o", "c.npy"), message)
    assert sorted(path.name for path in here.iterdir()) == before


def test_every_reason_stands_in_the_one_line(
    run: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "BACKENDS", (Refuser(),))
    dispatch.cache.clear()
    result = run("gemm", "a.npy", "b.npy", "-o", "c.npy")
    dispatch.cache.clear()
    assert_fails(result, r"row_major: refuser: IMPORT: needs the module nowhere")


def test_gemm_replaces_a_result_only_with_force(run: Any, here: Path) -> None:
    (here / "c.npy").write_bytes(b"old")
    assert_fails(run("gemm", "a.npy", "b.npy", "-o", "c.npy"), "pass --force to replace it")
    assert (here / "c.npy").read_bytes() == b"old"
    assert run("gemm", "a.npy", "b.npy", "-o", "c.npy", "--force")[0] == 0
    assert np.load("c.npy").shape == (5, 7)


def test_gemm_names_its_result_npy(run: Any, here: Path) -> None:
    assert_fails(run("gemm", "a.npy", "b.npy", "-o", "c.txt"), r"must be a \.npy file, got c\.txt")


class Talker(Emulated):
    """A backend that says what it does."""

    name = "talker"

    def launch(self, *arguments: Any) -> None:
        logging.getLogger("mxgemm").debug("multiplying [bold]by hand")
        super().launch(*arguments)


@pytest.mark.parametrize("terminal", [True, False])
def test_gemm_says_on_a_terminal_what_goes_on(
    run: Any, here: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(dispatch, "BACKENDS", (Talker(),))
    monkeypatch.setattr(dispatch.cache, "plans", {})
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    logger = logging.getLogger("mxgemm")
    before = logger.level, list(logger.handlers)
    status, out, err = run("gemm", "a.npy", "b.npy", "--emulate", "-o", "c.npy", "--json")
    assert status == 0
    assert json.loads(out)["emulated"] is True
    assert ("multiplying [bold]by hand" in err) == terminal
    assert terminal or err == ""
    assert (logger.level, logger.handlers) == before
