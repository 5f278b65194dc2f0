"""Figures and the report: complete, self-contained, and nothing on top of anything else."""

from __future__ import annotations

import argparse
import errno
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.conftest import make_row
from mxgemm.bench import figures, report
from mxgemm.bench.results import with_speedups

pytestmark = pytest.mark.host


@pytest.fixture(autouse=True)
def closed():
    yield
    figures.close_all()


def run(module, *arguments):
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return module.run(parser.parse_args([str(argument) for argument in arguments]))


def write(path, rows):
    path.write_text("".join(row.to_json() + "\n" for row in rows))
    return path


def oneline(capsys):
    return capsys.readouterr().err.replace("\n", "")


def test_full_disk_leaves_no_half_written_file(make_run, tmp_path, capsys, monkeypatch):
    rows = write(tmp_path / "rows.jsonl", make_run(0))
    page = tmp_path / "report.html"
    page.write_text("the page of before")

    def full(path, text, encoding):
        path.write_bytes(text[:10].encode())
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert run(report, rows, "-o", page) == 2
    assert "cannot be written: No space left on device" in oneline(capsys)
    assert page.read_text() == "the page of before"
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", "report.html"}


@pytest.fixture
def rows(make_run):
    return [replace(row, m=2**i, k=1024) for i, row in enumerate(make_run(0))]


def test_every_figure_is_drawn_as_png_and_svg(make_run, tmp_path):
    path = write(tmp_path / "rows.jsonl", [replace(row, k=1024) for row in make_run(0)])
    assert run(figures, path, "-o", tmp_path / "out") == 0
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {f"{name}.{suffix}" for name in figures.FIGURES for suffix in ("png", "svg")}
    assert all(file.stat().st_size > 1000 for file in (tmp_path / "out").iterdir())


@pytest.mark.parametrize("name", figures.FIGURES)
def test_texts_do_not_overlap(make_run, name):
    figure = figures.FIGURES[name]([replace(row, k=1024) for row in make_run(0)])
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    # A tick outside the view keeps a label, which is not drawn.
    undrawn = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
        for label in (tick.label1, tick.label2)
    }
    texts = [
        text
        for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))
        if text.get_text() and text.get_visible() and text not in undrawn
    ]
    boxes = [(t.get_text(), t.get_window_extent(renderer).padded(-1)) for t in texts]
    inside = [(text, box) for text, box in boxes if box.x1 > 0 and box.width > 0]
    clashes = [
        (one, two)
        for index, (one, first) in enumerate(inside)
        for two, second in inside[index + 1 :]
        if one != two and first.overlaps(second) and min(first.height, second.height) > 0
    ]
    assert clashes == []
    drawn, (width, height) = figure.get_tightbbox(renderer), figure.get_size_inches()
    assert min(drawn.x0, drawn.y0) >= -0.01
    assert (drawn.x1, drawn.y1) <= (width + 0.01, height + 0.01)


def test_variants_differ_without_colour():
    names = [f"variant{i}" for i in range(8)]
    looks = figures.styles(names)
    assert len({style.marker for style in looks.values()}) == 8
    assert len({style.hatch for style in looks.values()}) == 8


def test_what_cannot_be_drawn_is_said(tmp_path, capsys):
    row = make_row("native", [1.0, 1.1], baseline="", roofs={}, source_error=None)
    assert run(figures, write(tmp_path / "rows.jsonl", [row]), "-o", tmp_path) == 2
    error = capsys.readouterr().err
    assert "nothing to draw" in error
    assert "needs timed GEMM rows with measured roofs" in error


def test_devices_never_share_a_figure(make_run):
    here = make_run(0)
    there = [replace(row, machine={"device": "sm_999"}) for row in here]
    drawn, _ = figures.draw_all([*here, *there])
    assert {"cpu-roofline", "sm_999-roofline"} <= set(drawn)


def test_modelled_rows_are_marked_in_every_figure():
    names = {"kernel": [0.5], "kernel/prepared": [0.4]}
    measured = [make_row("peer", [1.0, 1.0], baseline="peer"), make_row("native", [2.0, 2.0])]
    models = [
        make_row(name, samples, status="modelled", baseline="kernel", m=m, case=f"m{m}")
        for name, samples in names.items()
        for m in (8, 16)
    ]
    rows = with_speedups([*measured, *models])
    assert [row.speedup for row in rows if row.variant == "kernel/prepared"] == [1.25, 1.25]
    for name in ("geomean_by_pass", "speedup_over_k", "tflops_over_m"):
        figure = figures.FIGURES[name](rows)
        texts = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
        assert "kernel/prepared (modelled)" in texts
        assert not texts & set(names)


def test_modelled_time_is_not_compared_with_a_measured_one():
    rows = [
        make_row("peer", [1.0], baseline="peer"),
        make_row("kernel", [0.5], status="modelled", baseline="peer"),
    ]
    assert with_speedups(rows)[1].speedup is None


def test_report_is_one_self_contained_page(make_run, tmp_path):
    silent = make_row("other", [1.0], case="x")
    silent = replace(
        silent,
        status="rejected",
        reason="SHAPE: <k> & more",
        median_ms=None,
        samples_ms=(),
        rounds=(),
    )
    rows = [*make_run(0), silent, make_row("kernel", [0.5], case="y", status="modelled")]
    page = tmp_path / "report.html"
    assert run(report, write(tmp_path / "rows.jsonl", rows), "-o", page) == 0
    text = page.read_text()
    assert text.count("<svg") == text.count("<figure>") >= 4
    assert "SHAPE: &lt;k&gt; &amp; more" in text
    assert 'class="modelled"' in text
    assert "kernel (modelled)" in text
    outside = re.findall(r'(?:src|href)="(?!#)([^"]+)"', text)
    assert outside == []


def test_report_says_what_is_wrong_in_one_line(tmp_path, capsys):
    assert run(report, tmp_path / "none.jsonl") == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
    rows = write(tmp_path / "rows.jsonl", with_speedups([make_row("native", [1.0, 1.0])]))
    assert run(report, rows, "-o", rows / "where.html") == 2
    assert f"output {rows / 'where.html'}: cannot be written" in oneline(capsys)
