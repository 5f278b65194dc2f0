"""Rows files: what survives a cut, a full disk and a second run."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from bench.conftest import make_row
from mxgemm.bench import results
from mxgemm.bench.errors import ResultsError
from mxgemm.bench.results import Row, RowWriter

pytestmark = pytest.mark.host
SAMPLES = (1.0, 1.1, 0.9)


@pytest.fixture
def row():
    return make_row("native", SAMPLES)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "rows.jsonl"


@pytest.fixture
def make_writer():
    with contextlib.ExitStack() as stack:
        yield lambda path: stack.enter_context(contextlib.closing(RowWriter(path)))


def test_row_survives_the_file(row, path, make_writer):
    writer = make_writer(path)
    assert writer.open(resume=False) == ()
    writer.append([row, replace(row, variant="other", reason='quotes " and \n lines')])
    found = results.read(path)
    assert found.written[0] == row
    assert found.written[1].reason == 'quotes " and \n lines'
    assert not found.cut_off


def test_existing_file_is_not_overwritten(row, path, make_writer):
    writer = make_writer(path)
    writer.open(resume=False)
    writer.append([row])
    writer.close()
    with pytest.raises(ResultsError, match="must not exist yet"):
        make_writer(path).open(resume=False)
    assert make_writer(path).open(resume=True) == (row,)


def test_second_writer_of_a_file_is_refused_until_the_first_is_done(row, path, make_writer):
    first, second = make_writer(path), make_writer(path)
    first.open(resume=False)
    with pytest.raises(ResultsError, match="must not be written by two runs at once"):
        second.open(resume=True)
    first.append([row])
    first.close()
    assert second.open(resume=True) == (row,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"median_ms": "fast"}, "median_ms must be a float"),
        ({"samples_ms": ["a"]}, "samples_ms must be a tuple"),
        ({"samples_ms": None}, "not iterable"),
        ({"samples_ms": [0.0, 1.0, 1.0]}, "samples_ms of a timed row must be positive"),
        ({"samples_ms": [], "rounds": []}, "samples_ms of a timed row must be positive"),
        ({"status": "failed"}, "samples_ms of a failed row must be none"),
        ({"samples_ms": [float("nan")]}, "NaN is no number"),
        ({"rounds": [2]}, "rounds must be 3 together"),
        ({"m": True}, "m must be a int"),
        ({"machine": [1]}, "machine must be a dict"),
        ({"roofs": {"gbps": {"copy": 1.0}}}, "roofs must have gbps and tflops"),
        ({"roofs": {"gbps": {"copy": 0.0}, "tflops": {"f": 1.0}}}, "roofs must be a dict"),
        ({"oracle": {"best": 1.0}}, "oracle must have worst"),
        ({"colour": 1}, "unexpected keyword argument 'colour'"),
        ({"schema": 2}, "must be a row of schema 1"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_line_that_no_run_wrote_is_refused(row, path, changes, message):
    path.parent.mkdir()
    path.write_text(json.dumps({**json.loads(row.to_json()), **changes}) + "\n")
    with pytest.raises(ResultsError, match=f"line 1 is no row: .*{message}"):
        results.read(path)


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_cut_off_line_is_reported_and_removed_on_resume(row, path, cut, make_writer):
    writer = make_writer(path)
    writer.open(resume=False)
    writer.append([row, replace(row, variant="other")])
    writer.close()
    with path.open("rb+") as file:
        file.truncate(path.stat().st_size - cut)
    found = results.read(path)
    assert (found.written, found.cut_off) == ((row,), True)
    again = make_writer(path)
    assert again.open(resume=True) == (row,)
    again.append([replace(row, variant="third")])
    assert [r.variant for r in results.read(path).written] == ["native", "third"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", "must be a row of schema"),
        ("[1]", "must be a row of schema"),
        ("not json", "line 1 is no row"),
        ('{"schema":1}', "missing"),
    ],
)
def test_line_that_is_no_row_is_an_error(path, row, line, message):
    path.parent.mkdir()
    path.write_text(f"{line}\n{row.to_json()}\n")
    with pytest.raises(ResultsError, match=message):
        results.read(path)


def test_unknown_status_is_an_error(row):
    with pytest.raises(ValueError, match="status must be one of"):
        Row.from_json(row.to_json().replace('"timed"', '"guessed"'))


def test_empty_file_is_an_error(path):
    path.parent.mkdir()
    path.write_text("")
    with pytest.raises(ResultsError, match="needs at least one row, got none"):
        results.read_some(path)


def test_full_device_is_one_clear_line(row, make_writer):
    writer = make_writer(Path("/dev/full"))
    with pytest.raises(ResultsError, match="cannot be written: No space left on device"):
        writer.append([row])


def test_full_disk_keeps_whole_rows_only(row, path, make_writer):
    """A file size limit ends the write in the middle of a row, as a full disk does."""
    writer = make_writer(path)
    writer.open(resume=False)
    writer.append([row])
    whole = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole + whole // 2, hard))
    try:
        with pytest.raises(ResultsError, match="1 rows of this run are kept; make room"):
            writer.append([replace(row, variant="other")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert path.stat().st_size == whole
    assert results.read(path).written == (row,)


def test_folder_that_cannot_be_made_is_an_error(tmp_path, make_writer):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="cannot be written"):
        make_writer(tmp_path / "file" / "rows.jsonl").open(resume=False)


def test_visits_are_merged_and_the_latest_of_one_counts(row):
    rows = [
        replace(row, visit=0),
        make_row("native", (5.0, 5.0), visit=1),
        make_row("native", (3.0, 3.0), visit=1, run="resumed"),
    ]
    (merged,) = results.merged(rows)
    assert merged.samples_ms == (*SAMPLES, 3.0, 3.0)
    assert merged.by_visit() == [SAMPLES, (3.0, 3.0)]
    assert merged.median_ms == 1.1


def test_speedup_pairs_the_same_rounds_and_total_meets_the_product(row):
    base = make_row("torch_bf16", (2.0, 2.2, 9.0))
    rows = results.with_speedups([base, row, replace(row, stage="total")])
    assert [r.speedup for r in rows] == pytest.approx([1.0, 2.0, 2.0])


def test_roof_share_names_the_roof(row):
    assert row.bound_by == "matrix"
    assert row.roof_share == pytest.approx(row.flops / 1e12 / 1e-3)
    narrow = make_row("native", SAMPLES, flops=0)
    assert narrow.bound_by == "bandwidth"


def test_values_that_are_no_numbers_are_not_written(row):
    with pytest.raises(ValueError, match="not JSON compliant"):
        replace(row, speedup=float("nan")).to_json()


def test_flushed_to_disk_after_each_case(row, path, monkeypatch, make_writer):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    writer = make_writer(path)
    writer.open(resume=False)
    writer.append([row])
    writer.append([row])
    assert len(synced) == 2
