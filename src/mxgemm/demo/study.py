"""What the demo finds out: every weight under every scale rule, and the encoder in MXFP4."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add

import torch
from torch.nn import functional

import mxgemm
from mxgemm import fidelity
from mxgemm.demo import encoder, minilm
from mxgemm.demo.sentences import SENTENCES
from mxgemm.epilogue import Activation, Epilogue
from mxgemm.fidelity import Fidelity, energy
from mxgemm.quantizers.scale_rules import DEFAULT_RULE, RULES
from mxgemm.tensor import MXTensor

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """One linear layer as it ran in MXFP4.

    Attributes:
        name: its module.
        m, n, k: the GEMM: tokens, outputs, inputs.
        weight, activation: how much of both operands survived.
        output_sqnr_db: of its output against FP32 arithmetic on the same input.
        backend: who did the GEMM.
        quantize_seconds, gemm_seconds: time for the input's quantization and for the GEMM.
    """

    name: str
    m: int
    n: int
    k: int
    weight: Fidelity
    activation: Fidelity
    output_sqnr_db: float
    backend: str
    quantize_seconds: float
    gemm_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Everything the demo prints and draws.

    Attributes:
        rule: the scale rule that the encoder ran with.
        weights: rule -> layer -> fidelity of its weight.
        layers: the layers in the order in which they ran.
        cosines_fp32, cosines_mxfp4: [8, 8], cosine of every two sentences.
        agreement: [8], cosine of each sentence's FP32 and MXFP4 vectors.
        seconds_fp32, seconds_mxfp4: time of the two forward passes.
    """

    rule: str
    weights: Mapping[str, Mapping[str, Fidelity]]
    layers: tuple[LayerRun, ...]
    cosines_fp32: torch.Tensor
    cosines_mxfp4: torch.Tensor
    agreement: torch.Tensor
    seconds_fp32: float
    seconds_mxfp4: float

    def pooled(self, rule: str) -> Fidelity:
        """All weights under one rule as one: total signal over total error."""
        return reduce(add, self.weights[rule].values(), Fidelity())


@dataclass
class MXLinears:
    """The layers with both operands in MXFP4, bias and activation in the GEMM's epilogue."""

    parameters: Mapping[str, torch.Tensor]
    weights: Mapping[str, MXTensor]
    rule: str
    backend: str | None = None
    runs: list[LayerRun] = field(default_factory=list)

    def __call__(self, name: str, x: torch.Tensor, activation: str = "none") -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        start = time.perf_counter()
        a, b = mxgemm.quantize(rows, rule=self.rule), self.weights[name]
        quantized = time.perf_counter()
        bias = self.parameters[f"{name}.bias"]
        problem = mxgemm.problem_for(
            a,
            b,
            out_dtype=torch.float32,
            epilogue=Epilogue(bias=bias.dtype, activation=Activation(activation)),
        )
        chosen = mxgemm.plan(problem, backend=self.backend).backend.name
        before = time.perf_counter()
        y = mxgemm.gemm(
            a, b, bias=bias, activation=activation, out_dtype=torch.float32, backend=chosen
        )
        after = time.perf_counter()
        weight = self.parameters[f"{name}.weight"]
        exact = encoder.FloatLinears(self.parameters)(name, rows, activation)
        output = Fidelity(signal=energy(exact), error=energy(exact - y))
        self.runs.append(
            LayerRun(
                name=name,
                m=a.rows,
                n=b.rows,
                k=a.k,
                weight=fidelity.measure(weight, b),
                activation=fidelity.measure(rows, a),
                output_sqnr_db=output.sqnr_db,
                backend=chosen,
                quantize_seconds=quantized - start,
                gemm_seconds=after - before,
            )
        )
        return y.view(*x.shape[:-1], -1)


def run(
    *, rule: str = DEFAULT_RULE, backend: str | None = None, progress: Progress | None = None
) -> Study:
    """Return the study of all-MiniLM-L6-v2 on the demo's sentences.

    Args:
        rule: scale rule of weights and activations in the encoder; the weights' SQNR is taken under
            every rule.
        backend: name of the backend; the first that accepts when None.
        progress: called with what is done next, steps done and steps in all.

    Raises:
        ImportError: the extra `demo` is not installed.
        ValueError, UnsupportedProblem, BackendUnavailable: as `mxgemm.gemm` for the named backend.
    """
    report = progress if progress is not None else _quiet
    model = minilm.load()
    steps = len(RULES) * len(model.linears) + 2
    weights: dict[str, dict[str, Fidelity]] = {}
    quantized: dict[str, MXTensor] = {}
    for i, candidate in enumerate(RULES):
        weights[candidate] = {}
        for j, name in enumerate(model.linears):
            report(f"weights, rule {candidate}", i * len(model.linears) + j, steps)
            weight = model.parameters[f"{name}.weight"]
            tensor = mxgemm.quantize(weight, rule=candidate)
            weights[candidate][name] = fidelity.measure(weight, tensor)
            if candidate == rule:
                quantized[name] = tensor
    ids, mask = model.tokens([sentence.text for sentence in SENTENCES])
    layers = MXLinears(model.parameters, quantized, rule, backend)
    report("encoder in FP32", steps - 2, steps)
    exact, seconds_fp32 = _forward(model, ids, mask, encoder.FloatLinears(model.parameters))
    report("encoder in MXFP4", steps - 1, steps)
    coarse, _ = _forward(model, ids, mask, layers)
    report("done", steps, steps)
    return Study(
        rule=rule,
        weights=weights,
        layers=tuple(layers.runs),
        cosines_fp32=exact @ exact.t(),
        cosines_mxfp4=coarse @ coarse.t(),
        agreement=functional.cosine_similarity(exact, coarse),
        seconds_fp32=seconds_fp32,
        seconds_mxfp4=sum(layer.quantize_seconds + layer.gemm_seconds for layer in layers.runs),
    )


def _forward(
    model: minilm.MiniLM, ids: torch.Tensor, mask: torch.Tensor, linear: encoder.Linears
) -> tuple[torch.Tensor, float]:
    start = time.perf_counter()
    with torch.inference_mode():
        vectors = encoder.sentence_vectors(model.parameters, model.config, ids, mask, linear)
    return vectors, time.perf_counter() - start


def _quiet(what: str, done: int, total: int) -> None:
    """Report nothing."""
