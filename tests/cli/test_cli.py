"""The command line: exit statuses, one line on failure, pure JSON, help that teaches."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import mxgemm
from hostile_files import HOSTILE_SAFETENSORS, write_all
from mxgemm import checkpoints, cli, dispatch, settings
from mxgemm.backends.base import Rejection, RejectionCode
from mxgemm.backends.reference import Reference
from mxgemm.numerics import e8m0

pytestmark = pytest.mark.host

COMMAND = [sys.executable, "-c", "import sys; from mxgemm.cli import main; sys.exit(main())"]


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


def assert_fails(result: tuple[int, str, str], message: str) -> None:
    status, out, err = result
    assert (status, out) == (1, "")
    assert re.fullmatch(r"mxgemm: [^\n]+\n", err), err
    assert re.search(message, err), err


# --- The frame ---


@pytest.mark.parametrize("command", [command.name for command in cli.COMMANDS])
def test_help_of_every_command_has_examples(run: Any, command: str) -> None:
    status, out, err = run(command, "--help")
    assert (status, err) == (0, "")
    assert f"examples:\n  mxgemm {command}" in out
    assert "--json" in out


def test_help_lists_every_command_and_loads_no_torch() -> None:
    script = (
        "import sys; from mxgemm.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    for command in cli.COMMANDS:
        assert f"    {command.name} " in done.stdout


def test_version(run: Any) -> None:
    assert run("--version") == (0, f"mxgemm {mxgemm.__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("multiply",),
        ("info", "--nothing"),
        ("explain", "--m", "1"),
        ("explain", "--m", "x", "--n", "1", "--k", "32"),
        ("explain", "--m", "1", "--n", "1", "--k", "32", "--layout-a", "scale_9x9"),
        ("explain", "--m", "1", "--n", "1", "--k", "32", "--layout-a", "scale_32x8+row_major"),
        ("quantize", "model.safetensors"),
        ("quantize", "model.safetensors", "-o", "out", "--rule", "odd"),
        ("gemm", "a.npy", "b.npy"),
        ("gemm", "a.npy", "b.npy", "-o", "c.npy", "--out-dtype", "fp8"),
    ],
    ids=" ".join,
)
def test_bad_usage_exits_with_2(run: Any, arguments: tuple[str, ...]) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("usage: mxgemm")
    assert "Traceback" not in err


def test_traceback_is_shown_on_request(run: Any, here: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run("--traceback", "gemm", "none.npy", "b.npy", "-o", "c.npy")


def test_a_closed_pipe_is_no_error(here: Path) -> None:
    with subprocess.Popen([*COMMAND, "info"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
        assert p.stdout is not None
        assert p.stderr is not None
        p.stdout.close()
        assert p.stderr.read() == b""


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_cleans_up(here: Path, stop: signal.Signals) -> None:
    script = (
        "import sys, time\n"
        "from mxgemm import cli\n"
        "from mxgemm.checkpoints import compressed_tensors\n"
        "def hang(tensors, path, metadata):\n"
        "    path.write_bytes(b'half'); print('there', flush=True); time.sleep(600)\n"
        "compressed_tensors.save_file = hang\n"
        "sys.exit(cli.main(['quantize', 'model.safetensors', '-o', 'out']))\n"
    )
    before = sorted(path.name for path in here.iterdir())
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "there\n"
        process.send_signal(stop)
        error = process.stderr.read()
    assert process.returncode == 128 + stop
    assert "Traceback" not in error
    assert sorted(path.name for path in here.iterdir()) == before


def test_a_run_that_is_interrupted_while_torch_loads_says_so_in_one_line(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.importlib, "import_module", interrupted)
    try:
        result = run("info")
    except KeyboardInterrupt:
        pytest.fail("the interruption came through")
    assert result == (130, "", "mxgemm: interrupted; nothing was left half-written\n")


@pytest.mark.parametrize("error", [RuntimeError, OverflowError])
def test_an_error_of_torch_is_one_line(
    run: Any, here: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def no_memory(*args: object, **options: object) -> None:
        raise error("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(mxgemm, "gemm", no_memory)
    assert_fails(run("gemm", "a.npy", "b.npy", "-o", "c.npy"), "can't allocate memory")
    with pytest.raises(error):
        cli.main(["--traceback", "gemm", "a.npy", "b.npy", "-o", "c.npy"])


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(here: Path, closed: str) -> None:
    line = f"exec {shlex.join(COMMAND)} gemm a.npy b.npy -o c.npy {closed}"
    done = subprocess.run(["sh", "-c", line], check=False, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert np.load("c.npy").shape == (5, 7)


def test_names_that_stdout_cannot_encode_are_escaped(here: Path) -> None:
    save_file({"ü.weight": torch.ones(2, 32)}, "model.safetensors")
    done = subprocess.run(
        [*COMMAND, "quantize", "model.safetensors", "-o", "out"],
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\xfc.weight" in done.stdout


# --- info and explain ---


class Refuser(Reference):
    """A backend that no machine can run."""

    name = "refuser"

    def probe(self) -> Rejection | None:
        return Rejection(RejectionCode.IMPORT, "needs the module nowhere, which is missing")


@pytest.fixture
def refuser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "BACKENDS", (Refuser(), *dispatch.BACKENDS))


@pytest.mark.usefixtures("refuser")
def test_info_lists_backends_settings_devices_and_extensions(run: Any, run_json: Any) -> None:
    found = run_json("info")
    assert found["version"] == mxgemm.__version__
    assert {b["name"]: b["status"] for b in found["backends"]}.items() >= {
        "refuser": "IMPORT: needs the module nowhere, which is missing",
        "reference": "ready",
    }.items()
    assert [s["variable"] for s in found["settings"]] == [s.variable for s in settings.SETTINGS]
    assert found["devices"][0]["device"] == "cpu"
    assert {e["name"] for e in found["extensions"]} == {"_native_cpu", "_emulator"}
    status, out, err = run("info")
    assert (status, err) == (0, "")
    for text in ("refuser", "IMPORT: needs the module nowhere", "MXGEMM_BACKEND", "_native_cpu"):
        assert text in out


def test_info_shows_what_a_setting_is_set_to(
    run_json: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MXGEMM_BACKEND", "reference")
    setting = run_json("info")["settings"][0]
    assert (setting["variable"], setting["value"]) == ("MXGEMM_BACKEND", "reference")


PROBLEM = ("--m", "64", "--n", "128", "--k", "256")


@pytest.mark.usefixtures("refuser")
def test_explain_gives_every_verdict_and_the_choice(run: Any, run_json: Any) -> None:
    found = run_json("explain", *PROBLEM, "--bias", "fp32", "--activation", "gelu")
    assert [v["backend"] for v in found["verdicts"]] == [b.name for b in dispatch.BACKENDS]
    verdict = found["verdicts"][0]
    assert (verdict["accepts"], verdict["code"]) == (False, "IMPORT")
    assert verdict["reason"] == "needs the module nowhere, which is missing"
    accepted = [v for v in found["verdicts"] if v["accepts"] and v["automatic"]]
    assert found["chosen"] == accepted[0]["backend"]
    assert "64x128x256 -> bfloat16 on cpu" in found["problem"]
    assert "bias:float32+gelu" in found["problem"]
    status, out, _ = run("explain", *PROBLEM)
    assert status == 0
    assert f"taken: {found['chosen']}" in out


def test_explain_agrees_with_the_library(run_json: Any) -> None:
    found = run_json(
        "explain", *PROBLEM, "--device", "gfx950", "--out-dtype", "fp16", "--numerics", "strict",
        "--layout-a", "tile_16x16+scale_32x8", "--layout-b", "scale_32x8", "--rotation", "16",
    )  # fmt: skip
    layout = mxgemm.OperandLayout.of
    rotation = mxgemm.Rotation(16)
    problem = mxgemm.GemmProblem(
        m=64,
        n=128,
        k=256,
        a=mxgemm.OperandSpec(layout=layout("tile_16x16", "scale_32x8"), rotation=rotation),
        b=mxgemm.OperandSpec(layout=layout("row_major", "scale_32x8"), rotation=rotation),
        device=mxgemm.DeviceSpec("rocm", "gfx950"),
        out_dtype=torch.float16,
        numerics=mxgemm.Numerics.STRICT,
    )
    assert found["problem"] == str(problem)
    expected = [verdict.rejection is None for verdict in mxgemm.explain(problem)]
    assert [verdict["accepts"] for verdict in found["verdicts"]] == expected


def test_explain_heeds_the_backend_setting(run_json: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXGEMM_BACKEND", "reference_fp32")
    assert run_json("explain", *PROBLEM)["chosen"] == "reference_fp32"
    monkeypatch.setattr(dispatch, "BACKENDS", (Emulated(), *dispatch.BACKENDS))
    monkeypatch.setenv("MXGEMM_BACKEND", "emulated_toy")
    assert run_json("explain", *PROBLEM)["chosen"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--k", "33"), "k a multiple of 32, got m=64 n=128 k=33"),
        (("--m", "-1"), "must not be negative"),
        (("--device", "tpu"), "device: must be cpu, cuda"),
        (("--dact", "relu"), "dact relu needs aux_in"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_explain_refuses_what_is_no_problem(
    run: Any, options: tuple[str, ...], message: str
) -> None:
    assert_fails(run("explain", *PROBLEM, *options), message)


@pytest.mark.skipif(torch.cuda.is_available(), reason="DEVICE: needs a machine without GPU")
def test_explain_names_a_device_that_is_missing(run: Any) -> None:
    assert_fails(
        run("explain", *PROBLEM, "--device", "cuda"), "device: cuda needs a GPU of that index"
    )


# --- quantize ---


def test_quantize_prints_the_account(run: Any, here: Path) -> None:
    status, out, err = run("quantize", "model.safetensors", "-o", "out")
    assert (status, err) == (0, "")
    for text in (
        "fc.weight",
        "7x64",
        "SQNR dB",
        "saturated %",
        "zero %",
        "saved",
        "quantized 1, kept 0",
    ):
        assert text in out
    assert (here / "out" / "config.json").is_file()


def test_quantize_gives_the_account_as_json(run_json: Any, here: Path) -> None:
    found = run_json("quantize", "model.safetensors", "-o", "out", "--rule", "ceil")
    report = checkpoints.quantize_file("model.safetensors", "again", rule="ceil")
    assert found["rule"] == "ceil"
    assert found["tensors"] == [
        {
            "name": "fc.weight",
            "shape": [7, 64],
            "dtype": "F32",
            "sqnr_db": report.tensors[0].fidelity.sqnr_db,
            "saturated_percent": 0.0,
            "zero_percent": report.tensors[0].fidelity.zero_percent,
            "bytes_before": 7 * 64 * 4,
            "bytes_after": 7 * 64 * 17 // 32,
            "bytes_saved": 7 * 64 * 4 - 7 * 64 * 17 // 32,
        }
    ]
    assert found["total"]["sqnr_db"] == found["tensors"][0]["sqnr_db"]


def test_quantize_of_an_exact_tensor_is_json_too(run_json: Any, here: Path) -> None:
    save_file({"fc.weight": torch.ones(2, 32)}, "ones.safetensors")
    found = run_json("quantize", "ones.safetensors", "-o", "out")
    assert found["tensors"][0]["sqnr_db"] is None
    assert "all 2 scale bytes are equal" in found["warnings"][0]


def test_quantize_shows_hostile_names_harmlessly(run: Any, here: Path) -> None:
    save_file({"[red]\x1b[2J.weight": torch.randn(2, 32)}, "evil.safetensors")
    status, out, _ = run("quantize", "evil.safetensors", "-o", "out")
    assert status == 0
    assert "\x1b[2J" not in out
    assert r"[red]\x1b[2J.weight" in out


@pytest.mark.parametrize("name", HOSTILE_SAFETENSORS)
def test_quantize_fails_in_one_line_on_hostile_files(run: Any, here: Path, name: str) -> None:
    write_all(here)
    result = run("quantize", f"{name}.safetensors", "-o", "out")
    assert_fails(result, "not a readable safetensors file")
    assert not (here / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.safetensors", "-o", "out"), "got no such file"),
        (("a.npy", "-o", "out"), "not a readable safetensors file"),
        (("model.safetensors", "-o", "full"), "pass --force to replace"),
        (("model.safetensors", "-o", "a.npy"), "must be a folder, got a file"),
        (("model.safetensors", "-o", "."), "pass --force|folder of the source"),
        (("model.safetensors", "-o", "out", "--skip", "*"), "1 named by --skip"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_quantize_fails_in_one_line(
    run: Any, here: Path, arguments: tuple[str, ...], message: str
) -> None:
    (here / "full").mkdir()
    (here / "full" / "notes.txt").write_text("kept")
    before = sorted(path.name for path in here.iterdir())
    assert_fails(run("quantize", *arguments), message)
    assert sorted(path.name for path in here.iterdir()) == before


# --- gemm ---


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


def test_gemm_uses_the_named_backend_and_says_so(run: Any, here: Path) -> None:
    status, out, _ = run("gemm", "a.npy", "b.npy", "-o", "c.npy", "--backend", "reference_fp32")
    assert status == 0
    assert "reference_fp32" in out
    assert np.array_equal(
        np.load("c.npy"), expected(out_dtype=torch.float32, backend="reference_fp32").numpy()
    )


class Emulated(Reference):
    """Takes problems on the emulated device, as the AMD backend does."""

    name = "emulated_toy"

    def check(self, problem: mxgemm.GemmProblem) -> Rejection | None:
        if not problem.device.emulated:
            return Rejection(RejectionCode.DEVICE, "needs the emulator")
        return None

    def automatic(self, problem: mxgemm.GemmProblem) -> bool:
        return True


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


def test_gemm_replaces_a_result_only_with_force(run: Any, here: Path) -> None:
    (here / "c.npy").write_bytes(b"old")
    assert_fails(run("gemm", "a.npy", "b.npy", "-o", "c.npy"), "pass --force to replace it")
    assert (here / "c.npy").read_bytes() == b"old"
    assert run("gemm", "a.npy", "b.npy", "-o", "c.npy", "--force")[0] == 0
    assert np.load("c.npy").shape == (5, 7)


def test_gemm_names_its_result_npy(run: Any, here: Path) -> None:
    assert_fails(run("gemm", "a.npy", "b.npy", "-o", "c.txt"), r"must be a \.npy file, got c\.txt")


def test_progress_is_silent_where_stderr_is_no_terminal(here: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "quantize", "model.safetensors", "-o", "out", "--json"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["output"] == "out"
