"""The bench command from its arguments to its exit status."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time

import pytest

from mxgemm import cli
from mxgemm.bench import command, results, roofs

pytestmark = pytest.mark.host

SUITE = """
[suite]
baseline = "torch_fp32"
variants = ["reference"]
threads = 1
seconds_per_case = 0.0
warm_up_seconds = 0.0
sample_seconds = 0.0
rounds = [2, 2]
[[cases]]
kind = "square"
sizes = [32, 64]
"""


@pytest.fixture(autouse=True)
def quick_roofs(monkeypatch):
    given = roofs.Roofs({"copy": 10.0}, {"float32": 0.1})
    monkeypatch.setattr(roofs, "measure", lambda device, clock: given)


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SUITE)
    return path


def run(*arguments):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(argument) for argument in arguments]))


def test_run_writes_rows_and_says_what_came_of_it(suite, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    assert run(suite, "-o", rows) == 0
    assert len(results.read(rows).rows) == 4
    error = capsys.readouterr().err
    assert "2 cases, 4 rows" in error
    assert "Geometric-mean speed-up over torch_fp32" in error


def test_arguments_replace_the_suites(suite, tmp_path):
    rows = tmp_path / "rows.jsonl"
    names = "torch_bf16,reference_fp32"
    assert run(suite, "-o", rows, "--backends", names, "--baseline", "torch_bf16") == 0
    found = results.read(rows).rows
    assert {row.variant for row in found} == set(names.split(","))
    assert {row.baseline for row in found} == {"torch_bf16"}


def test_second_run_needs_resume_and_then_does_nothing(suite, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    assert run(suite, "-o", rows) == 0
    assert run(suite, "-o", rows) == 2
    assert "must not exist yet" in capsys.readouterr().err
    before = rows.read_bytes()
    assert run(suite, "-o", rows, "--resume") == 0
    assert rows.read_bytes() == before
    assert "2 were there already" in capsys.readouterr().err


def test_interrupt_says_what_was_kept(suite, tmp_path, capsys, monkeypatch):
    def interrupt(self, case, visit=0):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.Runner, "run_case", interrupt)
    assert run(suite, "-o", tmp_path / "rows.jsonl") == 130
    assert "interrupted; 0 rows are in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "tpu"], "device: must be cpu, cuda"),
        (["--backends", "nobody"], "variant: must be one of"),
        (["--threads", "-1"], "threads must be a whole number, at least 0"),
        (["--visits", "0"], "visits must be a whole number, at least 1"),
        (["--time-limit", "nan"], "time_limit_seconds must be a number, at least 0"),
        (["--backends", "frozen:nowhere.so"], "frozen:nowhere.so: cannot be read: No such file"),
    ],
)
def test_mistake_is_one_line_and_status_2(suite, tmp_path, capsys, arguments, message):
    assert run(suite, "-o", tmp_path / "rows.jsonl", *arguments) == 2
    assert message in capsys.readouterr().err


def test_full_disk_is_one_line_and_status_2(suite, capsys):
    assert run(suite, "-o", "/dev/full") == 2
    assert "No space left on device" in capsys.readouterr().err


def test_command_line_runs_every_command(suite, tmp_path):
    rows = str(tmp_path / "rows.jsonl")
    assert cli.main(["bench", str(suite), "-o", rows]) == 0
    assert cli.main(["compare", rows, rows]) == 0
    assert cli.main(["report", rows, "-o", str(tmp_path / "r.html")]) == 0
    assert cli.main(["figures", rows, "-o", str(tmp_path / "figures")]) == 0


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=["kill", "interrupt"])
def test_run_that_is_ended_keeps_whole_cases_and_resumes(suite, tmp_path, end):
    suite.write_text(SUITE.replace("[32, 64]", "[32, 64, 96, 128]"))
    rows = tmp_path / "rows.jsonl"
    arguments = ["bench", str(suite), "-o", str(rows), "--visits", "500"]
    child = subprocess.Popen(
        [sys.executable, "-m", "mxgemm", *arguments], stderr=subprocess.DEVNULL
    )
    try:
        while not rows.exists() or len(results.read(rows).written) < 6:
            assert child.poll() is None
            time.sleep(0.05)
        child.send_signal(end)
        assert child.wait() == (130 if end == signal.SIGINT else -end)
    finally:
        child.kill()
    kept = results.read(rows)
    assert not kept.cut_off
    visits = 1 + max(row.visit for row in kept.written)
    assert run(suite, "-o", rows, "--visits", visits, "--resume") == 0
    found = results.read(rows)
    assert found.written[: len(kept.written)] == kept.written
    keys = [(*row.key, row.visit) for row in found.written]
    assert len(keys) == len(set(keys)) == 8 * visits


def test_visits_can_be_made_one_process_at_a_time(suite, tmp_path):
    rows = tmp_path / "rows.jsonl"
    for visits in (1, 2):
        assert run(suite, "-o", rows, "--visits", visits, "--resume") == 0
    assert [row.visit for row in results.read(rows).written] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {len(row.rounds) for row in results.read(rows).rows} == {2}
