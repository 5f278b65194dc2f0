"""Suites: what they expand to, and what they refuse."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mxgemm.bench import cases, variants
from mxgemm.bench.errors import SuiteError
from mxgemm.bench.shapes import MODEL_LAYERS, pass_shape

pytestmark = pytest.mark.host
SUITES = sorted((Path(__file__).parents[2] / "benchmarks" / "suites").glob("*.toml"))
SQUARE = {"kind": "square", "sizes": [64]}


def parse(*tables, **settings):
    return cases.parse({"suite": settings, "cases": list(tables)}, "made_up")


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_shipped_suite_is_valid_and_names_known_variants(path):
    suite = cases.load(path)
    known = {backend.name for backend in variants.dispatch.BACKENDS}
    for name in (*suite.variants, suite.baseline):
        backend = name.partition("/")[0]
        if backend in known | set(PEERS_AND_QUANTIZERS):
            assert variants.get(name).name == name


PEERS_AND_QUANTIZERS = (
    *("torch_fp32", "torch_bf16", "dequantize_matmul", "quantize", "torch_copy"),
    *("multiply_loop", "read_loop"),
)


def test_shipped_suites_are_all_there():
    assert {path.stem for path in SUITES} == {"smoke", "cpu", "h200", "full", "gfx1250"}


def test_cpu_suite_has_no_case_above_50_gflop():
    path = next(path for path in SUITES if path.stem == "cpu")
    suite = cases.load(path)
    assert max(case.flops for case in suite.cases) <= 50e9
    assert suite.time_limit_seconds <= 600


@pytest.mark.parametrize(
    ("pass_name", "expected"),
    [("fprop", (7, 96, 64)), ("dgrad", (7, 64, 96)), ("wgrad", (96, 64, 7))],
)
def test_pass_contracts_over_its_own_axis(pass_name, expected):
    assert pass_shape(pass_name, 7, 96, 64) == expected


def test_models_expand_to_every_layer_pass_and_token_count():
    suite = parse({"kind": "models", "models": ["llama3.1-8b/tp1"], "tokens": [1024, 2048]})
    assert len(suite.cases) == 4 * 3 * 2
    assert {case.pass_name for case in suite.cases} == {"fprop", "dgrad", "wgrad"}
    assert len(MODEL_LAYERS) == 6


def test_distributions_and_cache_hold_per_table():
    suite = parse({**SQUARE, "distributions": ["positive", "student_t"], "cache": "warm"}, seed=3)
    assert [(c.distribution, c.cache, c.seed) for c in suite.cases] == [
        ("positive", "warm", 3),
        ("student_t", "warm", 3),
    ]


def test_cases_above_max_gflop_are_left_out_and_counted():
    suite = parse({"kind": "square", "sizes": [64, 2048]}, max_gflop=1.0)
    assert ([case.m for case in suite.cases], suite.left_out) == ([64], 1)


@pytest.mark.parametrize(
    ("tables", "settings", "message"),
    [
        ([], {}, "needs at least one case, got none"),
        ([SQUARE], {"max_gflop": 1e-9}, "got none, 1 are above max_gflop"),
        ([{"kind": "square", "sizes": [33]}], {}, "K must be a multiple of 32"),
        ([{"kind": "square", "sizes": [0]}], {}, "sizes must be from 1 to"),
        ([{"kind": "models", "models": ["qwen2.5-72b/tp8"], "tokens": [64]}], {}, "k3696"),
        ([{"kind": "models", "models": ["gpt-9"], "tokens": [64]}], {}, "gpt-9"),
        ([{"kind": "round"}], {}, "kind must be one of"),
        ([{**SQUARE, "side": 3}], {}, "unknown key 'side'"),
        ([SQUARE], {"colour": "red"}, "unknown key 'colour'"),
        ([{**SQUARE, "distributions": ["cauchy"]}], {}, "distribution must be one of"),
        ([SQUARE, SQUARE], {}, "every case may stand once"),
        ([SQUARE], {"variants": []}, "needs at least one variant"),
        ([SQUARE], {"rounds": [5, 3]}, "rounds must be"),
        ([SQUARE], {"visits": 0}, "visits must be a whole number, at least 1"),
        ([SQUARE], {"stages": ["gem"]}, "stages must be among"),
        ([{"kind": "gemm", "m": [1], "n": [32]}], {}, "missing or unknown 'k'"),
        ([{"kind": "gemm", "m": 1, "n": [32], "k": [32]}], {}, "m must be a list of whole"),
        ([{"kind": "gemm", "m": [True], "n": [32], "k": [32]}], {}, "m must be a list of whole"),
        ([{"kind": "square", "sizes": [32.0]}], {}, "sizes must be a list of whole numbers"),
        ([{"kind": "square", "sizes": [2**40]}], {}, "impossible shape"),
        ([{"kind": "gemm", "pass": "quantize", "m": [1], "n": [32], "k": [32]}], {}, "another"),
        ([{"kind": "quantize", "shapes": [32, 32]}], {}, r"shapes must be a list of \[rows, k\]"),
        ([{**SQUARE, "pad": "yes"}], {}, "pad must be true or false"),
        ([{**SQUARE, "distributions": "gaussian"}], {}, "distributions must be a list of texts"),
        ([SQUARE], {"threads": "two"}, "threads must be a whole number"),
        ([SQUARE], {"threads": -1}, "threads must be a whole number"),
        ([SQUARE], {"rounds": [1, 2, 3]}, "rounds must be"),
        ([SQUARE], {"rounds": 3}, "rounds must be"),
        ([SQUARE], {"variants": "reference"}, "variants must be a list of texts"),
        ([SQUARE], {"baseline": 3}, "baseline must be a text"),
        ([SQUARE], {"sample_seconds": float("inf")}, "sample_seconds must be a finite number"),
        ([SQUARE], {"warm_up_seconds": float("nan")}, "warm_up_seconds must be a finite number"),
        ([SQUARE], {"time_limit_seconds": -1}, "time_limit_seconds must be a number, at least 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_suite_refuses(tables, settings, message):
    with pytest.raises(SuiteError, match=message):
        parse(*tables, **settings)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"suite": 3, "cases": [SQUARE]}, r"\[suite\] must be a table"),
        ({"cases": 3}, r"\[\[cases\]\] must be tables"),
        ({"cases": [1]}, r"\[\[cases\]\] must be tables"),
        ({}, "needs at least one case"),
    ],
)
def test_document_that_is_no_suite(document, message):
    with pytest.raises(SuiteError, match=message):
        cases.parse(document, "made_up")


def test_settings_are_the_fields_of_a_suite():
    given = {field.name for field in dataclasses.fields(cases.Suite)}
    assert set(cases.SETTINGS) == given - {"name", "cases", "left_out"}


def test_padded_contraction_is_allowed_when_asked_for():
    assert parse({"kind": "square", "sizes": [33], "pad": True}).cases[0].k == 33


def test_file_that_is_missing_or_no_toml(tmp_path):
    with pytest.raises(SuiteError, match="cannot be read: No such file"):
        cases.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[suite")
    with pytest.raises(SuiteError, match="is not TOML"):
        cases.load(tmp_path / "bad.toml")
