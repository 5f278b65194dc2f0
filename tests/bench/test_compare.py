"""The noise band: no false alarm, 10 % caught across runs, 5 % caught within one."""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace

import pytest

from bench.conftest import make_row
from mxgemm.bench import compare
from mxgemm.bench.errors import ResultsError

pytestmark = pytest.mark.host
REPEATS = 20


def write(path, rows):
    path.write_text("".join(row.to_json() + "\n" for row in rows))
    return path


def command(*arguments):
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    return compare.run(parser.parse_args([str(argument) for argument in arguments]))


@pytest.mark.parametrize("visits", [1, 3], ids=["one-visit", "three-visits"])
@pytest.mark.parametrize("between", [0.0, 0.02], ids=["steady", "visits-differ-2%"])
def test_same_code_raises_no_alarm_in_20_repeats(make_run, visits, between):
    alarms = [
        compare.across(
            make_run(2 * seed, visits=visits, between=between),
            make_run(2 * seed + 1, visits=visits, between=between),
        ).slower(compare.FAIL_BELOW_ACROSS)
        for seed in range(REPEATS)
    ]
    assert alarms == [[]] * REPEATS


def test_backend_slowed_by_10_percent_is_caught_across_runs(make_run):
    for seed in range(REPEATS):
        base = make_run(2 * seed, visits=2)
        new = make_run(2 * seed + 1, {"native": 1.10}, visits=2)
        slower = compare.across(base, new).slower(compare.FAIL_BELOW_ACROSS)
        assert {change.variant for change in slower} == {"native"}, seed


def test_anchor_cancels_what_slows_all_but_the_baseline(make_run):
    for seed in range(REPEATS):
        base, same = (make_run(3 * seed + i, visits=8, state=0.1) for i in (0, 1))
        slowed = make_run(3 * seed + 2, {"native": 1.10}, visits=8, state=0.1)
        found = compare.across(base, slowed)
        assert {change.against for change in found.changes} == {"anchor"}, seed
        assert {change.variant for change in found.slower(0.97)} == {"native"}, seed
        assert compare.across(base, same).slower(0.97) == [], seed
        over_baseline = compare.across(base, slowed, anchor="torch_bf16")
        assert {change.against for change in over_baseline.changes} == {"torch_bf16"}
        assert over_baseline.slower(0.97) == [], seed


def test_anchor_of_another_plan_is_no_reference(make_run):
    base, new = (make_run(seed, visits=4, state=0.1) for seed in (0, 1))
    new = [replace(row, plan="longer") if row.variant == "anchor" else row for row in new]
    against = {change.against for change in compare.across(base, new).changes}
    assert against == {"torch_bf16"}


def test_choice_among_references_widens_the_bands(make_run):
    runs = [make_run(seed, visits=8, state=0.1) for seed in (0, 1)]
    alone = compare.across(*runs, anchor="anchor")
    assert compare.across(*runs).confidence > alone.confidence


def test_baseline_is_judged_over_an_anchor_that_is_named(make_run):
    runs = [make_run(seed, visits=4, state=0.1) for seed in (0, 1)]
    judged = {change.variant for change in compare.across(*runs).changes}
    named = {change.variant for change in compare.across(*runs, anchor="anchor").changes}
    assert (judged, named - judged) == ({"native", "native/prepared"}, {"torch_bf16"})


def test_anchor_that_is_not_there_is_an_error(make_run):
    with pytest.raises(ResultsError, match="over one reference"):
        compare.across(make_run(0), make_run(1), anchor="nobody")


def test_row_whose_reference_is_in_one_file_alone_is_listed(make_run):
    base, new = make_run(0), make_run(1)
    new = [row for row in new if (row.case, row.variant) != ("case0", "torch_bf16")]
    found = compare.across(base, new)
    assert found.unmatched == ("case0 native gemm", "case0 native/prepared gemm")


def test_slower_machine_is_no_slower_backend(make_run):
    everything = {"torch_bf16": 1.3, "native": 1.3, "native/prepared": 1.3}
    base, new = make_run(0), make_run(1, everything)
    assert compare.across(base, new).slower(compare.FAIL_BELOW_ACROSS) == []
    assert compare.across(base, new, absolute=True).slower(compare.FAIL_BELOW_ACROSS)


def test_variant_slowed_by_5_percent_is_caught_within_a_run(make_run):
    for seed in range(REPEATS):
        equal = make_run(seed, {"native/prepared": 0.8 / 0.7})
        slowed = make_run(seed, {"native/prepared": 1.05 * 0.8 / 0.7})
        names = "native", "native/prepared"
        assert compare.within(equal, *names).slower(1.0) == [], seed
        assert compare.within(slowed, *names).slower(1.0), seed


def test_visits_that_differ_widen_the_band(make_run):
    steady = compare.across(make_run(0, visits=4), make_run(1, visits=4))
    wild = compare.across(make_run(0, visits=4, between=0.1), make_run(1, visits=4, between=0.1))
    assert wild.changes[0].estimate.error > 2 * steady.changes[0].estimate.error


def test_visits_that_shift_a_variants_rows_alike_widen_its_mean(make_run, monkeypatch):
    runs = [make_run(seed, visits=8, common=0.1) for seed in range(2 * REPEATS)]
    pairs = list(zip(runs[::2], runs[1::2], strict=True))
    for old, new in pairs:
        assert compare.across(old, new).slower(compare.FAIL_BELOW_ACROSS) == []

    def errors():
        means = [mean for old, new in pairs for mean in compare.across(old, new).means]
        return statistics.fmean(mean.estimate.error for mean in means if mean.rows == 3)

    clustered = errors()
    # As if the three rows were independent: their mean's error is too small by the root of three.
    monkeypatch.setattr(compare, "ENOUGH_VISITS", 99)
    assert clustered > 1.5 * errors()


def test_rows_that_are_wilder_than_others_have_wider_bands(make_run):
    calm, wild = make_run(0, visits=6, between=0.01), make_run(0, visits=6, between=0.2)
    mixed = [w if w.pass_name == "decode" else c for c, w in zip(calm, wild, strict=True)]
    found = compare.within(mixed, "native", "native/prepared")
    errors = {change.pass_name: change.estimate.error for change in found.changes}
    assert errors["decode"] > 5 * errors["fprop"]


def test_geometric_means_are_by_variant_stage_and_pass(make_run):
    found = compare.across(make_run(0), make_run(1))
    assert {(mean.variant, mean.case, mean.rows) for mean in found.means} == {
        ("native", "fprop", 3),
        ("native", "decode", 2),
        ("native/prepared", "fprop", 3),
        ("native/prepared", "decode", 2),
    }


def test_rows_without_a_partner_are_listed(make_run):
    base = make_run(0)
    found = compare.across(base, [row for row in base if row.case != "case0"])
    assert [name.split()[0] for name in found.unmatched] == ["case0", "case0"]


def test_nothing_in_common_is_an_error(make_run):
    rows = make_run(0)
    other = [replace(row, case=f"other-{row.case}") for row in rows]
    with pytest.raises(ResultsError, match="needs at least one timed row that both files hold"):
        compare.across(rows, other)


def test_within_needs_both_variants(make_run):
    with pytest.raises(ResultsError, match="times both native and nobody"):
        compare.within(make_run(0), "native", "nobody")


def test_command_exit_status(make_run, tmp_path, capsys):
    base = write(tmp_path / "base.jsonl", make_run(0, visits=2))
    same = write(tmp_path / "same.jsonl", make_run(1, visits=2))
    slow = write(tmp_path / "slow.jsonl", make_run(2, {"native": 1.2}, visits=2))
    assert command(base, same) == 0
    assert command(base, slow) == 1
    assert command(base, slow, "--fail-below", "0.5") == 0
    assert command(base) == 2
    assert "needs a second rows file" in capsys.readouterr().err
    assert command(base, tmp_path / "none.jsonl") == 2
    assert "No such file" in capsys.readouterr().err


def test_command_compares_variants_within_a_file(make_run, tmp_path):
    rows = write(tmp_path / "rows.jsonl", make_run(0, {"native/prepared": 1.1 * 0.8 / 0.7}))
    assert command(rows, "--variants", "native", "native/prepared") == 1
    assert command(rows, "--variants", "native/prepared", "native") == 0


def test_command_prints_json(make_run, tmp_path, capsys):
    base = write(tmp_path / "base.jsonl", make_run(0))
    command(base, base, "--json")
    found = json.loads(capsys.readouterr().out)
    assert [row["ratio"] for row in found["rows"]] == [1.0] * 10
    assert not any(row["slower"] for row in found["geometric_means"])


def test_unknown_devices_are_compared_and_named(tmp_path, capsys):
    samples = [1.0, 1.01, 0.99, 1.0]
    old = make_row("native", samples, baseline="", machine={})
    new = replace(old, machine={"device": "sm_999", "name": "a device of tomorrow"})
    paths = [write(tmp_path / f"{i}.jsonl", [row]) for i, row in enumerate((old, new))]
    assert command(*paths) == 0
    assert "the runs differ in device: unknown and sm_999" in capsys.readouterr().err


def test_cut_off_line_is_reported_and_the_rest_compared(make_run, tmp_path, capsys):
    path = write(tmp_path / "rows.jsonl", make_run(0))
    path.write_text(path.read_text()[:-20])
    assert command(path, path) == 0
    assert "the last line was cut off" in capsys.readouterr().err.replace("\n", " ")


def test_modelled_rows_are_never_matched(make_run, tmp_path, capsys):
    measured = make_run(0)
    models = [replace(row, status="modelled") for row in measured]
    with pytest.raises(ResultsError, match="needs at least one timed row that both files hold"):
        compare.across(measured, models)
    with pytest.raises(ResultsError, match="needs at least one timed row"):
        compare.across(models, models)
    renamed = [replace(row, variant="native/modelled") for row in models]
    with pytest.raises(ResultsError, match="times both native and native/modelled"):
        compare.within([*measured, *renamed], "native", "native/modelled")
    path = write(tmp_path / "rows.jsonl", [*measured, *renamed])
    assert command(path, path) == 0
    assert "5 modelled rows are left out" in capsys.readouterr().err.replace("\n", " ")
