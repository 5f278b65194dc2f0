"""Random problems for native_cpu: products of every kind compared bit for bit with the exact
result, quantizations with the reference bytes, on every instruction set of this processor.

    python tests/native_cpu_problems.py --count 100000 --log problems.log

A problem is a function of the seed and its number, so that a run may be stopped: with the same log
it goes on where that one ends, unless the kernels have changed. A difference ends the run with the
problem's description and the command that repeats it. Products are in the exact regime: every sum
fits FP32 (or, of scales beyond it, FP64), so that there is one right result, whatever the order.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import hashlib
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import cases
import conformance
import mxgemm
import oracles
from mxgemm import epilogue as epilogues
from mxgemm import settings
from mxgemm.backends.base import Accumulation, Operand
from mxgemm.backends.native_cpu import NativeConfig, NativeCpu
from mxgemm.epilogue import Epilogue, EpilogueArgs
from mxgemm.formats import E2M1
from mxgemm.matmul import problem_for
from mxgemm.numerics.hadamard import Rotation
from mxgemm.quantizers import native_cpu as quantizer
from mxgemm.quantizers import reference
from mxgemm.quantizers.options import QuantizeOptions
from mxgemm.quantizers.scale_rules import RULES
from mxgemm.runtime import native_cpu as runtime
from mxgemm.tensor import MXTensor

ACCUMULATION = Accumulation(exact_blocks=True)
PATHS = (0, 0, 1, 2, 3)
"""Automatic, few rows, tiles, FP64 sums."""
QUANTIZE_EVERY = 8
LOG_EVERY = 500
LARGEST_FINITE_BYTE = 254
THREADS = (1, 1, 1, 1, 2, 3)
E2M1_VALUES = torch.tensor(E2M1.values, dtype=torch.float64)


@dataclass(frozen=True)
class Product:
    """One GEMM: operands, how it ends, and what must come out."""

    a: MXTensor
    b: MXTensor
    epilogue: Epilogue
    args: EpilogueArgs
    right: torch.Tensor
    right_args: EpilogueArgs
    text: str


def make_product(rng: random.Random) -> Product:
    """Return a random problem of the exact regime with its right result."""
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    m, n = (rng.randint(1, rng.choice((3, 10, 50, 90))) for _ in range(2))
    k = 32 * rng.randint(1, rng.choice((2, 6, 20, 70)))
    kind = rng.choice(("exact", "exact", "zeros", "shifted", "nan"))
    a, b = oracles.exact_operands(m, n, k, ACCUMULATION, seed=rng.getrandbits(62))
    if kind == "shifted":
        a, b = shifted(a, rng), shifted(b, rng)
    if kind in ("zeros", "nan"):
        for operand in (a, b):
            blank(operand, rng, poison=kind == "nan")
    out_dtype = rng.choice(cases.OUT_DTYPES)
    names = [name for name in cases.EXACT_EPILOGUES if kind != "shifted" or "grad" not in name]
    name = rng.choice(names)
    epilogue, args = cases.make_epilogue(name, m, n, out_dtype, generator)
    right = torch.empty((m, n), dtype=out_dtype)
    right_args = copied(args)
    epilogues.apply(values(a) @ values(b).t(), epilogue, right_args, right)
    text = f"{m}x{n}x{k} {kind} {name} {out_dtype}"
    return Product(a, b, epilogue, args, right, right_args, text)


def values(x: MXTensor) -> torch.Tensor:
    """Return the values of canonical `x` in FP64, exactly."""
    codes = torch.stack((x.codes & 15, x.codes >> 4), dim=-1).flatten(1).int()
    scales = torch.exp2(x.scales.double() - 127)
    scales[x.scales == 255] = torch.nan
    return E2M1_VALUES[codes] * scales.repeat_interleave(32, dim=1)


def copied(args: EpilogueArgs) -> EpilogueArgs:
    """Return `args` with memory of its own for what a call writes."""
    written = {
        name: tensor.clone()
        for name in ("aux_out", "bias_grad")
        if (tensor := getattr(args, name)) is not None
    }
    return dataclasses.replace(args, **written)


def shifted(x: MXTensor, rng: random.Random) -> MXTensor:
    """Return `x` with a power of two of its own on every row, so that scales leave FP32."""
    room = torch.stack((-x.scales.int().amin(1), LARGEST_FINITE_BYTE - x.scales.int().amax(1)))
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    part = torch.rand(x.rows, generator=generator)
    by = (room[0] + part * (room[1] - room[0] + 1)).floor().int()
    return dataclasses.replace(x, scales=(x.scales.int() + by[:, None]).to(torch.uint8))


def blank(x: MXTensor, rng: random.Random, *, poison: bool) -> None:
    """Turn some blocks into zeros of either sign under any scale, or into NaN."""
    for _ in range(rng.randint(1, 4)):
        row, block = rng.randrange(x.rows), rng.randrange(x.stored_k // 32)
        x.codes[row, 16 * block : 16 * block + 16] = rng.choice((0, 0x88, 0x80, 0x08))
        x.scales[row, block] = 255 if poison else rng.randint(0, LARGEST_FINITE_BYTE)


def check_product(product: Product, isa: str, rng: random.Random) -> None:
    """Compare one instruction set's result, on some path and number of threads, with the exact
    one.
    """
    path, prepare = rng.choice(PATHS), rng.random() < 0.5
    threads = rng.choice(THREADS)
    torch.set_num_threads(threads)
    out_dtype = product.right.dtype
    problem = problem_for(product.a, product.b, out_dtype=out_dtype, epilogue=product.epilogue)
    plan = dataclasses.replace(NativeCpu().plan(problem), config=NativeConfig(isa, path))
    b: Operand = product.b
    if prepare:
        b = plan.prepare_b(product.b)
        plan = dataclasses.replace(plan, problem=dataclasses.replace(problem, b=b.spec))
    try:
        out, after = conformance.run(plan, product.a, b, copied(product.args))
        oracles.assert_same_bits(out, product.right)
        for name in ("aux_out", "bias_grad"):
            ours, right = getattr(after, name), getattr(product.right_args, name)
            if right is not None:
                oracles.assert_same_bits(ours, right)
    except AssertionError as error:
        raise AssertionError(
            f"{isa}, path {path}, {'prepared' if prepare else 'packed in the call'}, {threads} "
            f"threads, {product.text}: {error}"
        ) from error


def check_public_call(product: Product, rng: random.Random) -> None:
    """Compare `mxgemm.gemm` on operands in another layout with the exact product."""
    layout = rng.choice(cases.LAYOUTS)
    a, b = product.a.relayout(layout), product.b.relayout(layout)
    out = mxgemm.gemm(
        a, b, out_dtype=torch.float32, backend="native_cpu", relayout=layout != product.a.layout
    )
    right = mxgemm.gemm(product.a, product.b, out_dtype=torch.float32, backend="reference")
    try:
        oracles.assert_same_bits(out, right)
    except AssertionError as error:
        raise AssertionError(f"gemm() from {layout}, {product.text}: {error}") from error


def check_quantization(isa: str, rng: random.Random) -> None:
    """Compare both halves of a random quantization with the reference's bytes."""
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    rows, k = rng.randint(1, rng.choice((8, 40, 150))), 64 * rng.randint(1, rng.choice((2, 5)))
    dtype = rng.choice(cases.OUT_DTYPES)
    x = torch.randn(rows, k, generator=generator)
    if rng.random() < 0.5:
        x *= torch.exp2(torch.randint(-140, 120, (rows, 1), generator=generator).float())
    if rng.random() < 0.3:
        x = (x * 8).round() / 8
    if rng.random() < 0.2:
        x[rng.randrange(rows), rng.randrange(k)] = rng.choice((torch.nan, torch.inf, 0.0))
    plain = rng.random() < 0.6
    options = QuantizeOptions(rule=rng.choice(RULES))
    if not plain:
        options = dataclasses.replace(
            options,
            rounding=rng.choice(("nearest_even", "stochastic")),
            rotation=rng.choice((None, Rotation(16), Rotation(32, 5), Rotation(64, 77))),
            block_2d=rng.random() < 0.5,
            prescale=rng.random() < 0.5,
            seed=rng.getrandbits(63),
        )
    x = x.to(dtype)
    stored_m = -(-rows // options.contraction_multiple) * options.contraction_multiple
    torch.set_num_threads(rng.choice(THREADS))
    right = reference.quantize_both(x, k, stored_m, options)
    for half, ours, theirs in zip(
        ("along K", "along M"), quantizer.quantize_both(x, k, stored_m, options), right, strict=True
    ):
        for part, mine, wanted in zip(("codes", "scales"), ours, theirs, strict=True):
            differ = int((mine != wanted).sum())
            assert not differ, (
                f"{isa}: {differ} {part} {half} of {rows}x{k} {dtype} differ, {options}"
            )


def check(seed: int, number: int) -> int:
    """Check problem `number` of `seed` on every instruction set; returns the number of comparisons.

    Raises:
        AssertionError: a difference, with its description.
    """
    rng = random.Random(f"{seed}:{number}")
    product = make_product(rng)
    done = 0
    for isa in runtime.available_isas():
        check_product(product, isa, rng)
        done += 1
    if number % QUANTIZE_EVERY == 0:
        check_public_call(product, rng)
        for isa in runtime.available_isas():
            with overridden(isa):
                check_quantization(isa, rng)
        done += 1 + len(runtime.available_isas())
    return done


class overridden:  # noqa: N801
    """The instruction set's setting, for the length of a with statement."""

    def __init__(self, isa: str) -> None:
        self.isa = isa

    def __enter__(self) -> None:
        self.before = settings.CPU_ISA.read()
        settings.steer_this_process(
            settings.CPU_ISA.variable, **{settings.CPU_ISA.variable: self.isa}
        )

    def __exit__(self, *exception: object) -> None:
        settings.steer_this_process(
            settings.CPU_ISA.variable, **{settings.CPU_ISA.variable: self.before}
        )


def kernels_digest() -> str:
    """Return what tells one build of the kernels from another."""
    path = runtime.module().__file__
    assert path is not None
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def resume_at(log: Path, header: str) -> tuple[int, int]:
    """Return the next problem and the comparisons so far, by a log of the same run; a log of
    another is refused.
    """
    if not log.exists():
        log.write_text(header + "\n", encoding="utf-8")
        return 0, 0
    first, *lines = log.read_text(encoding="utf-8").splitlines()
    if first != header:
        raise SystemExit(f"{log}: is of another run: {first}\nthis one: {header}\nname another log")
    if not lines:
        return 0, 0
    words = lines[-1].split()
    return int(words[0]), int(words[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="number of problems")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="one problem, by its number")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--log", type=Path, help="file to go on with")
    options = parser.parse_args()
    isas = ", ".join(runtime.available_isas())
    header = f"seed {options.seed}, kernels {kernels_digest()}, {isas}, torch {torch.__version__}"
    print(header, flush=True)
    if options.only is not None:
        print(
            f"problem {options.only}: {check(options.seed, options.only)} comparisons, no "
            "difference"
        )
        return
    first, comparisons = resume_at(options.log, header) if options.log else (0, 0)
    until = time.monotonic() + options.seconds
    number = first
    while number < options.count and time.monotonic() < until:
        try:
            comparisons += check(options.seed, number)
        except AssertionError as error:
            print(
                f"problem {number}: {error}\nrepeat: python tests/native_cpu_problems.py --seed "
                f"{options.seed} --only {number}"
            )
            sys.exit(1)
        number += 1
        if number % LOG_EVERY == 0 or number == options.count:
            now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
            line = f"{number} problems, {comparisons} comparisons, no difference ({now})"
            print(line, flush=True)
            if options.log:
                with options.log.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main()
