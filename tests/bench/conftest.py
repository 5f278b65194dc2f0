"""Rows made up from known distributions, and suites that cost nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from mxgemm.bench.cases import ANCHOR
from mxgemm.bench.results import TIMED, Row, with_speedups

CASES = tuple((m, 256, 1024 * (1 + m % 3)) for m in (1, 2, 4, 8, 16))
ROOFS = {"gbps": {"copy": 100.0}, "tflops": {"float32": 1.0}}


def make_row(variant: str, samples_ms, **changes) -> Row:
    """Return a timed row of a made-up case."""
    samples = tuple(samples_ms)
    rounds = changes.pop("rounds", (len(samples),))
    fields = {
        "run": "run",
        "time": "2026-01-01T00:00:00+00:00",
        "suite": "suite",
        "case": "fprop-m8",
        "pass_name": "fprop",
        "name": "made-up",
        "m": 8,
        "n": 256,
        "k": 1024,
        "out_dtype": "bfloat16",
        "distribution": "gaussian",
        "seed": 0,
        "cache": "cold",
        "variant": variant,
        "backend": variant,
        "computes": "mxfp4 x mxfp4",
        "stage": "gemm",
        "status": TIMED,
        "baseline": "torch_bf16",
        "flops": 2 * 8 * 256 * 1024,
        "bytes_moved": 300_000,
        "machine": {"device": "cpu", "kind": "cpu", "name": "a processor", "threads": 2},
        "roofs": ROOFS,
        "source_error": 0.16,
        "oracle": {"worst": 0.2, "relative_error": 1e-3},
    }
    return Row(**{**fields, **changes}).with_samples(samples, rounds)


@pytest.fixture
def make_run() -> Callable[..., list[Row]]:
    """Return a function that makes a run: drift of a round, own noise, heavy tails, and visits
    that shift a row (`between`), all rows of a variant (`common`), or all but the baseline, with an
    anchor among them (`state`).
    """

    def run(
        seed: int,
        slowdown: dict[str, float] | None = None,
        *,
        noise: float = 0.03,
        between: float = 0.0,
        common: float = 0.0,
        state: float = 0.0,
        rounds: int = 30,
        visits: int = 1,
    ) -> list[Row]:
        rng = random.Random(seed)
        rows: list[Row] = []
        times = {"torch_bf16": 2.0, "native": 0.8, "native/prepared": 0.7}
        if state:
            times["anchor"] = 0.1
        shared = [{name: rng.gauss(0, common) for name in times} for _ in range(visits)]
        for shifts in shared:
            busy = rng.gauss(0, state)
            shifts.update({name: shifts[name] + busy for name in times if name != "torch_bf16"})
        for index, (m, n, k) in enumerate(CASES):
            samples: dict[str, list[float]] = {name: [] for name in times}
            for visit in range(visits):
                shifts = {name: shared[visit][name] + rng.gauss(0, between) for name in times}
                for _ in range(rounds):
                    drift = rng.gauss(0, 3 * noise)
                    for name, base in times.items():
                        spike = rng.random() < 0.05
                        own = rng.gauss(0, noise) + shifts[name] + (0.7 if spike else 0)
                        factor = (slowdown or {}).get(name, 1.0)
                        samples[name].append(base * factor * math.exp(drift + own))
            rows += [
                make_row(
                    name,
                    values,
                    rounds=(rounds,) * visits,
                    case=f"case{index}",
                    pass_name="decode" if index % 2 else "fprop",
                    stage=ANCHOR if name == "anchor" else "gemm",
                    m=m,
                    n=n,
                    k=k,
                )
                for name, values in samples.items()
            ]
        return list(with_speedups(rows))

    return run
