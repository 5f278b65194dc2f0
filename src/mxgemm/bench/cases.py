"""What is measured: suites as TOML files, each expanded to a list of cases. No tensor, no device.

A suite has one table `[suite]` of settings and any number of `[[cases]]`, each of one `kind`:

    models    the layers of `mxgemm.bench.shapes`, by `models`, `layers`, `passes` and `tokens`
    square    M = N = K over `sizes`
    gemm      the product of the lists `m`, `n` and `k`, under the name `pass`
    quantize  bfloat16 matrices over `shapes` = [[rows, k], ...]

Every key of `[suite]` that describes a case (out_dtype, distributions, cache) may stand in a
`[[cases]]` table too, and holds there.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mxgemm.bench import distributions
from mxgemm.bench.errors import SuiteError
from mxgemm.bench.shapes import LAYERS, MODEL_LAYERS, PASSES, pass_shape
from mxgemm.formats import MXFP4

KINDS = ("models", "square", "gemm", "quantize")
STAGES = ("gemm", "quantize", "relayout", "prepare", "total")
ANCHOR = "anchor"
"""The stage of a variant that is nothing but a clock (`anchors`); it is timed wherever it is named,
and is no step of a product.
"""

CACHES = ("cold", "warm")
TIMERS = ("auto", "wall", "events", "graph")
OUT_DTYPES = ("float32", "bfloat16", "float16")
QUANTIZE = "quantize"

MAX_SIZE = 2**31 - 1
"""Of M, N and K: what kernels and libraries count in 32 bits."""

TORCH = "torch"
TORCH_BASELINES = ("torch_fp32", "torch_bf16")
"""As a baseline, `TORCH` is that of the two whose matrix roof is higher in the run itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One problem that variants are timed on, interleaved.

    Attributes:
        pass_name: what it is grouped by: fprop, dgrad, wgrad, square, decode, quantize, ...
        name: where the shape comes from.
        m, n, k: sizes of D[M, N] = A[M, K] @ B[N, K].T; for quantize, the matrix is [m, k] and n 0.
        out_dtype: dtype of D.
        distribution: of both operands' sources, one of `distributions.NAMES`.
        cache: "cold" rotates among buffers larger than the last-level cache, "warm" reuses one.
        seed: of the operands.
        pad: K is filled up to whole blocks of 32 with zeros.
    """

    pass_name: str
    name: str
    m: int
    n: int
    k: int
    out_dtype: str = "bfloat16"
    distribution: str = "gaussian"
    cache: str = "cold"
    seed: int = 0
    pad: bool = False

    @property
    def is_quantize(self) -> bool:
        """Whether it times a quantizer instead of a GEMM."""
        return self.pass_name == QUANTIZE

    @property
    def key(self) -> str:
        """The case's identity across runs."""
        size = f"m{self.m}-n{self.n}-k{self.k}"
        return (
            f"{self.pass_name}-{self.name}-{size}-{self.out_dtype}-{self.distribution}-{self.cache}"
        )

    @property
    def flops(self) -> int:
        """2 M N K; 0 for a quantizer."""
        return 2 * self.m * self.n * self.k

    def check(self, where: str) -> None:
        """Raise SuiteError where nothing could compute the case; `where` names its table."""
        sizes = (self.m, self.k) if self.is_quantize else (self.m, self.n, self.k)
        if not 1 <= min(sizes) <= max(sizes) <= MAX_SIZE:
            raise SuiteError(
                f"{where}: impossible shape, sizes must be from 1 to {MAX_SIZE}, got {self.key}; "
                "correct or remove it"
            )
        if self.k % MXFP4.block and not self.pad:
            raise SuiteError(
                f"{where}: impossible shape, contraction K must be a multiple of {MXFP4.block}, "
                f"got {self.key}; remove it or set pad = true"
            )
        for name, value, known in (
            ("out_dtype", self.out_dtype, OUT_DTYPES),
            ("distribution", self.distribution, distributions.NAMES),
            ("cache", self.cache, CACHES),
        ):
            if value not in known:
                raise SuiteError(f"{where}: {name} must be one of {known}, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A suite file as values; the defaults are those of a key that is left out.

    Attributes:
        name: the file's stem.
        title: one line for people.
        cases: what is measured.
        variants: who is measured; see `mxgemm.bench.variants`.
        baseline: variant that speed-ups refer to; "torch" takes torch_bf16 or torch_fp32, whichever
            this machine multiplies faster.
        stages: which of a variant's steps are timed; see `STAGES`.
        device: as `DeviceSpec.parse` takes it.
        threads: CPU threads; 0 leaves the process's number.
        seed: of operands and of the order in rounds.
        timer: "auto" takes the wall clock on CPU and events on CUDA.
        warm_up_seconds: of each variant before it is timed.
        sample_seconds: least time of one sample, reached by calling several times.
        seconds_per_case: what the rounds of one case may take together.
        rounds: least and greatest number of rounds.
        visits: how often the whole list of cases is gone through; each visit has buffers of its own
            and another moment, so that the spread among visits shows what rounds cannot.
        max_call_seconds: a variant whose call takes longer is reported as too slow, and is not
            called any more on cases that would take it longer still.
        max_gflop: cases above it are left out, and counted.
        time_limit_seconds: no case is begun that, taking as long as the longest of the last three,
            would end after it.
    """

    name: str
    title: str = ""
    cases: tuple[Case, ...] = ()
    variants: tuple[str, ...] = ("reference",)
    baseline: str = "reference"
    stages: tuple[str, ...] = ("gemm",)
    device: str = "cpu"
    threads: int = 0
    seed: int = 0
    timer: str = "auto"
    warm_up_seconds: float = 0.1
    sample_seconds: float = 0.01
    seconds_per_case: float = 2.0
    rounds: tuple[int, int] = (5, 30)
    visits: int = 1
    max_call_seconds: float = 1.0
    max_gflop: float = float("inf")
    time_limit_seconds: float = float("inf")
    left_out: int = field(default=0, compare=False)

    def check(self) -> None:
        """Raise SuiteError where a setting is malformed, settings contradict each other or nothing
        is left to measure.
        """
        settings = {key: getattr(self, key) for key in SETTINGS}
        _well_formed(settings, f"suite {self.name}")
        for name, values, known in (
            ("stages", self.stages, STAGES),
            ("timer", (self.timer,), TIMERS),
        ):
            if unknown := sorted(set(values) - set(known)):
                raise SuiteError(f"suite {self.name}: {name} must be among {known}, got {unknown}")
        if not self.cases:
            text = f", {self.left_out} are above max_gflop" if self.left_out else ""
            raise SuiteError(
                f"suite {self.name}: needs at least one case, got none{text}; add a [[cases]] table"
            )
        if not self.variants:
            raise SuiteError(f"suite {self.name}: needs at least one variant, got none")
        keys = [case.key for case in self.cases]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise SuiteError(f"suite {self.name}: every case may stand once, got twice {twice[0]}")


def _is_whole(value: Any, least: int = 0) -> bool:
    return type(value) is int and value >= least


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and value >= 0


def _is_list(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple) and all(map(holds, value))


def _is_rounds(value: Any) -> bool:
    whole = _is_list(value, lambda x: _is_whole(x, 1))
    return whole and len(value) == 2 and value[0] <= value[1]


@dataclass(frozen=True, slots=True)
class _Form:
    """What a value of a suite file must be: in words, and as a test."""

    words: str
    holds: Callable[[Any], bool]


TEXT = _Form("a text", lambda value: isinstance(value, str))
TEXTS = _Form("a list of texts", lambda value: _is_list(value, TEXT.holds))
SIZES = _Form("a list of whole numbers", lambda value: _is_list(value, lambda x: type(x) is int))
SECONDS = _Form(
    "a finite number, at least 0", lambda value: _is_number(value) and math.isfinite(value)
)
LIMIT = _Form("a number, at least 0", _is_number)
COUNT = _Form("a whole number, at least 0", _is_whole)
SETTINGS = {
    "title": TEXT,
    "variants": TEXTS,
    "baseline": TEXT,
    "stages": TEXTS,
    "device": TEXT,
    "threads": COUNT,
    "seed": COUNT,
    "timer": TEXT,
    "warm_up_seconds": SECONDS,
    "sample_seconds": SECONDS,
    "seconds_per_case": SECONDS,
    "rounds": _Form("[least, greatest], whole numbers from 1 on", _is_rounds),
    "visits": _Form("a whole number, at least 1", lambda value: _is_whole(value, 1)),
    "max_call_seconds": SECONDS,
    "max_gflop": LIMIT,
    "time_limit_seconds": LIMIT,
}
"""Keys of `[suite]`, fields of `Suite`."""

CASE_FORMS = {
    "out_dtype": TEXT,
    "cache": TEXT,
    "pad": _Form("true or false", lambda value: isinstance(value, bool)),
    "distributions": TEXTS,
    "kind": TEXT,
    **dict.fromkeys(("models", "layers", "passes"), TEXTS),
    **dict.fromkeys(("pass", "name"), TEXT),
    **dict.fromkeys(("tokens", "sizes", "m", "n", "k"), SIZES),
    "shapes": _Form(
        "a list of [rows, k]",
        lambda value: _is_list(value, lambda x: SIZES.holds(x) and len(x) == 2),
    ),
}
"""Keys of `[[cases]]`."""

CASE_KEYS = ("out_dtype", "cache", "pad")
TABLE_KEYS = {
    "models": {"models", "layers", "passes", "tokens"},
    "square": {"sizes"},
    "gemm": {"pass", "name", "m", "n", "k"},
    "quantize": {"shapes"},
}


def load(path: Path) -> Suite:
    """Return the suite in a TOML file, every case checked.

    Raises:
        SuiteError: no such file, not TOML, an unknown key or kind, an impossible shape, no case.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SuiteError(f"suite {path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SuiteError(f"suite {path}: is not TOML: {error}") from error
    return parse(document, path.stem)


def parse(document: dict[str, Any], name: str) -> Suite:
    """Return the suite that a parsed TOML document describes; raises as `load`."""
    _known(document, {"suite", "cases"}, f"suite {name}")
    settings, tables = document.get("suite", {}), document.get("cases", [])
    if not isinstance(settings, dict):
        raise SuiteError(f"suite {name}: [suite] must be a table, got {settings!r}")
    if not _is_list(tables, lambda table: isinstance(table, dict)):
        raise SuiteError(f"suite {name}: [[cases]] must be tables, got {tables!r}")
    _well_formed(settings, f"suite {name}, [suite]")
    settings = dict(settings)
    shared = {key: settings.pop(key) for key in CASE_KEYS if key in settings}
    distributions_default = settings.pop("distributions", ["gaussian"])
    _known(settings, set(SETTINGS), f"suite {name}, [suite]")
    seed = settings.get("seed", 0)
    cases: list[Case] = []
    for index, table in enumerate(tables):
        where = f"suite {name}, [[cases]] number {index + 1}"
        _well_formed(table, where)
        merged = {**shared, "distributions": distributions_default, **table}
        for case in _expand(merged, where, seed):
            case.check(where)
            cases.append(case)
    limit = settings.get("max_gflop", float("inf"))
    kept = tuple(case for case in cases if case.flops <= limit * 1e9)
    for key in ("variants", "stages", "rounds"):
        if key in settings:
            settings[key] = tuple(settings[key])
    suite = Suite(name=name, cases=kept, left_out=len(cases) - len(kept), **settings)
    suite.check()
    return suite


def _expand(table: dict[str, Any], where: str, seed: int) -> Iterator[Case]:
    kind = table.get("kind")
    if kind not in KINDS:
        raise SuiteError(f"{where}: kind must be one of {KINDS}, got {kind!r}")
    _known(table, {"kind", "distributions", *CASE_KEYS, *TABLE_KEYS[kind]}, f"{where} ({kind})")
    shared = {key: table[key] for key in CASE_KEYS if key in table}
    for distribution in table["distributions"]:
        for pass_name, name, (m, n, k) in _shapes(kind, table, where):
            yield Case(
                pass_name=pass_name,
                name=name,
                m=m,
                n=n,
                k=k,
                distribution=distribution,
                seed=seed,
                **shared,
            )


def _shapes(
    kind: str, table: dict[str, Any], where: str
) -> Iterator[tuple[str, str, tuple[int, int, int]]]:
    """Yield (pass, name, (m, n, k)) of one [[cases]] table."""
    try:
        if kind == "models":
            yield from _model_shapes(table)
        elif kind == "square":
            for size in table["sizes"]:
                yield "square", "square", (size, size, size)
        elif kind == "gemm":
            if table.get("pass") == QUANTIZE:
                raise SuiteError(f"{where} (gemm): pass must not be {QUANTIZE!r}, another kind")
            for n, k, m in itertools.product(table["n"], table["k"], table["m"]):
                yield table.get("pass", "gemm"), table.get("name", "gemm"), (m, n, k)
        else:
            for rows, k in table["shapes"]:
                yield QUANTIZE, "rows", (rows, 0, k)
    except KeyError as error:
        raise SuiteError(f"{where} ({kind}): missing or unknown {error}") from error


def _model_shapes(table: dict[str, Any]) -> Iterator[tuple[str, str, tuple[int, int, int]]]:
    models = table.get("models", list(MODEL_LAYERS))
    layers = table.get("layers", list(LAYERS))
    for model, layer in itertools.product(models, layers):
        n, k = MODEL_LAYERS[model][dict(zip(LAYERS, range(len(LAYERS)), strict=True))[layer]]
        for pass_name in table.get("passes", PASSES):
            for tokens in table["tokens"]:
                name = f"{model}-{layer}"
                yield pass_name, name, pass_shape(pass_name, tokens, n, k)


def _well_formed(table: dict[str, Any], where: str) -> None:
    """Raise SuiteError for a value of the wrong type; unknown keys are `_known`'s."""
    forms = {**SETTINGS, **CASE_FORMS}
    for key, value in table.items():
        if key in forms and not forms[key].holds(value):
            raise SuiteError(f"{where}: {key} must be {forms[key].words}, got {value!r}")


def _known(table: dict[str, Any], allowed: set[str], where: str) -> None:
    if unknown := sorted(set(table) - allowed):
        raise SuiteError(f"{where}: unknown key {unknown[0]!r}; known are {sorted(allowed)}")
