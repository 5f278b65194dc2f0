"""The command line: exit statuses, one line on failure, pure JSON, help that teaches."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import mxgemm
from command_line import COMMAND, Emulated, Refuser, assert_fails
from hostile_files import HOSTILE_SAFETENSORS, write_all
from mxgemm import checkpoints, cli, dispatch, settings
from mxgemm.runtime import native_cpu

pytestmark = pytest.mark.host

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


ISAS = native_cpu.available_isas()


@pytest.mark.native
@pytest.mark.skipif(not ISAS, reason="IMPORT: needs the compiled module mxgemm._native_cpu")
@pytest.mark.parametrize("override", ["", *ISAS])
def test_info_shows_the_instruction_sets_and_which_one_is_used(
    run: Any, run_json: Any, monkeypatch: pytest.MonkeyPatch, override: str
) -> None:
    monkeypatch.setenv("MXGEMM_CPU_ISA", override)
    sets = run_json("info")["instruction_sets"]
    assert [s["name"] for s in sets] == native_cpu.built_isas()
    assert [s["name"] for s in sets if s["available"]] == ISAS
    (used,) = (s for s in sets if s["used"])
    assert used["name"] == (override or ISAS[0])
    assert ("by MXGEMM_CPU_ISA" in used["status"]) == bool(override)
    _, out, _ = run("info")
    assert "MXGEMM_CPU_ISA chooses another" in out
    assert used["status"][:20] in out


@pytest.mark.native
@pytest.mark.skipif(not ISAS, reason="IMPORT: needs the compiled module mxgemm._native_cpu")
def test_info_says_that_no_instruction_set_is_used_where_the_setting_names_none(
    run_json: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MXGEMM_CPU_ISA", "mmx")
    dispatch.cache.clear()
    try:
        found = run_json("info")
    finally:
        dispatch.cache.clear()
    assert not any(s["used"] for s in found["instruction_sets"])
    (backend,) = (b for b in found["backends"] if b["name"] == "native_cpu")
    assert backend["code"] == "SETTING"
    assert f"must be one of {', '.join(ISAS)} on this processor, got 'mmx'" in backend["status"]


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


def test_progress_is_silent_where_stderr_is_no_terminal(here: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "quantize", "model.safetensors", "-o", "out", "--json"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["output"] == "out"
