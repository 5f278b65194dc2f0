"""Reports D36 to D41, D44, D46, D59, D60, D64, D66 and D68: epilogues, accumulation, rotations,
copies, gates, and tests that can fail.
"""

import copy
import pickle

import pytest
import torch

import mxgemm
import oracles
from mxgemm import DeviceSpec, Epilogue, GemmProblem, Rotation, dispatch
from mxgemm.epilogue import IDENTITY, NO_ARGS, Activation, EpilogueArgs
from mxgemm.errors import UnsupportedProblem
from mxgemm.numerics.hadamard import rotate
from mxgemm.quantizers import QuantizeOptions

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def exact(a: mxgemm.MXTensor, b: mxgemm.MXTensor) -> torch.Tensor:
    left, right = (mxgemm.dequantize(q, torch.float64) for q in (a, b))
    return left @ right.t()


def grid(*shape: int, seed: int) -> torch.Tensor:
    """Return numbers that MXFP4 holds exactly: E2M1 values with 6 in every block of 32."""
    values = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6])
    generator = torch.Generator().manual_seed(seed)
    x = values[torch.randint(0, 8, shape, generator=generator)]
    x = x * (1 - 2 * torch.randint(0, 2, shape, generator=generator))
    x[:, ::32], x[::32] = 6.0, 6.0
    return x


def test_d36_float32_output_takes_a_bias(runner, gaussian):
    bias = torch.arange(32.0)
    a, b = runner.exact_operands(4, 32, 64)
    out = runner.gemm(a, b, bias=bias, out_dtype=torch.float32)
    oracles.assert_same_bits(out, (exact(a, b) + bias).float())


@pytest.mark.parametrize("n", [96, 1000])
def test_d37_alpha_holds_in_every_column_when_beta_is_not_zero(runner, n):
    a, b = runner.exact_operands(40, n, 128)
    out = runner.gemm(a, b, alpha=0.5, beta=1.0, c=torch.ones(40, n))
    oracles.assert_same_bits(out, (0.5 * exact(a, b) + 1).float())


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
def test_d38_support_can_be_asked_beforehand_and_is_true(runner, dtype, activation, with_bias):
    a, b = runner.exact_operands(8, 48, 96)
    bias = torch.arange(48.0) / 8 if with_bias else None
    epilogue = Epilogue(bias=torch.float32 if with_bias else None, activation=activation)
    problem = mxgemm.problem_for(
        a, b, out_dtype=dtype, epilogue=epilogue, device=runner.target.spec()
    )
    verdicts = {v.backend.name: v for v in mxgemm.explain(problem)}
    rejection = verdicts[runner.target.backend.name].rejection
    if rejection is not None:
        with pytest.raises(UnsupportedProblem, match=rejection.code):
            mxgemm.plan(problem, backend=runner.target.backend.name)
        return
    out = runner.gemm(a, b, out_dtype=dtype, bias=bias, activation=activation)
    args = EpilogueArgs(bias=bias)
    right, bound = oracles.expected(a, b, epilogue, args, runner.accumulation(a, b))
    oracles.assert_within(out, right, bound)
    assert out.dtype == dtype


def test_d39_every_microbatch_reaches_the_main_gradient(runner):
    main_grad = torch.zeros(96, 64)
    expected = torch.zeros(96, 64, dtype=torch.float64)
    for batch in range(4):
        x, dy = grid(32, 64, seed=batch), grid(32, 96, seed=100 + batch)
        a = mxgemm.quantize_pair(dy, rule="rceil").along_m
        b = mxgemm.quantize_pair(x, rule="rceil").along_m
        assert torch.equal(mxgemm.dequantize(a), dy.t())
        main_grad = runner.gemm(a, b, out=main_grad, beta=1.0)
        expected += dy.t().double() @ x.double()
    oracles.assert_same_bits(main_grad, expected.float())


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
def test_d40_accumulation_into_out_for_any_shape_and_dtype(runner, dtype):
    a, b = runner.exact_operands(144, 176, 64)
    out = runner.gemm(a, b, beta=1.0, out=torch.full((144, 176), 3.0, dtype=dtype))
    oracles.assert_same_bits(out, oracles.once_rounded(exact(a, b) + 3, dtype))
    with pytest.raises(ValueError, match="beta=1 needs c, or out to accumulate into"):
        mxgemm.gemm(a, b, beta=1.0)


@pytest.mark.parametrize("size", [16, 64])
def test_d41_rotations_of_both_operands_cancel_in_all_three_products(size):
    generator = torch.Generator().manual_seed(size)
    x, w, dy = (
        torch.randint(-8, 9, shape, generator=generator).float()
        for shape in ((128, 64), (192, 64), (128, 192))
    )
    products = {"fprop": (x, w), "dgrad": (dy, w.t()), "wgrad": (dy.t(), x.t())}
    for name, (a, b) in products.items():
        rotation = Rotation.random(size, generator)
        rotated = rotate(a, rotation).double() @ rotate(b, rotation).double().t()
        assert torch.equal(rotated, a.double() @ b.double().t()), name


@pytest.mark.parametrize("size", [16, 32, 64])
def test_d41_rotated_products_are_as_near_as_the_format_allows(runner, gaussian, size):
    x, w = gaussian(64, 256, seed=1), gaussian(96, 256, seed=2)
    rotation = Rotation.random(size, torch.Generator().manual_seed(size))
    out = runner.gemm(mxgemm.quantize(x, rotation=rotation), mxgemm.quantize(w, rotation=rotation))
    right = x.double() @ w.double().t()
    assert 0.14 < (out - right).norm() / right.norm() < 0.18
    with pytest.raises(ValueError, match="same rotation"):
        mxgemm.gemm(mxgemm.quantize(x, rotation=rotation), mxgemm.quantize(w))


@pytest.mark.parametrize("tail", [float("nan"), 1e30])
def test_d44_rows_behind_the_tokens_do_not_reach_the_weight_gradient(runner, gaussian, tail):
    buffers = {"x": torch.full((256, 64), tail), "dy": torch.full((256, 96), tail)}
    for seed, buffer in enumerate(buffers.values()):
        buffer[:200] = gaussian(200, buffer.shape[1], seed=seed)
    from_views = [mxgemm.quantize_pair(t[:200]).along_m for t in buffers.values()]
    alone = [mxgemm.quantize_pair(t[:200].clone()).along_m for t in buffers.values()]
    grad = runner.gemm(from_views[1], from_views[0])
    oracles.assert_same_bits(grad, runner.gemm(alone[1], alone[0]))
    assert not bool(grad.isnan().any())


COPYABLE = {
    "rotation": Rotation(64, 5),
    "options": QuantizeOptions(rule="ceil", rotation=Rotation(16)),
    "epilogue": Epilogue(bias=torch.bfloat16, activation=Activation.GELU),
    "device": DeviceSpec.parse("gfx1250:emulated"),
    "problem": GemmProblem(m=1, n=2, k=32, device=DeviceSpec.parse("sm_90")),
    "layout": mxgemm.OperandLayout.of("tile_16x16", "rocm_te_swizzled_scales"),
}


@pytest.mark.parametrize("name", COPYABLE)
def test_d46_descriptions_copy_and_pickle(name):
    value = COPYABLE[name]
    for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert other == value
        assert hash(other) == hash(value)


def test_d46_a_copied_operand_gives_the_same_result(runner):
    a, b = runner.exact_operands(8, 16, 64)
    expected = runner.gemm(a, b)
    for other in (copy.copy(b), copy.deepcopy(b), pickle.loads(pickle.dumps(b)), b.clone()):
        oracles.assert_same_bits(runner.gemm(a, other), expected)


EVERY_DEVICE = ("cpu", "sm_80", "sm_90", "sm_100", "gfx950", "gfx1250", "gfx1250:emulated")


@pytest.mark.parametrize("device", EVERY_DEVICE)
@pytest.mark.parametrize("backend", dispatch.BACKENDS, ids=lambda b: b.name)
def test_d59_every_gate_answers_on_every_device(backend, device):
    spec = DeviceSpec.parse(device)
    for k in (32, 96, 256, 16384):
        for dtype in DTYPES:
            for epilogue in (IDENTITY, Epilogue(bias=dtype, activation=Activation.GELU)):
                problem = GemmProblem(
                    m=5, n=7, k=k, device=spec, out_dtype=dtype, epilogue=epilogue
                )
                rejection = backend.check(problem)
                if rejection is None:
                    assert backend.plan(problem).summary
                else:
                    assert rejection.detail
    assert backend.probe() is None or backend.probe().detail


@pytest.mark.parametrize(
    "arch", [DeviceSpec("rocm", "gfx942"), DeviceSpec("cuda", "sm_80")], ids=str
)
def test_d60_a_device_without_a_backend_raises_before_any_launch(monkeypatch, arch):
    def launch(*args):
        pytest.fail("launched")

    for backend in dispatch.BACKENDS:
        monkeypatch.setattr(type(backend), "launch", launch)
    with pytest.raises(UnsupportedProblem) as caught:
        mxgemm.plan(GemmProblem(m=16, n=16, k=64, device=arch))
    for backend in dispatch.BACKENDS:
        assert backend.name in str(caught.value)


def test_d64_the_plan_says_what_runs():
    a, b = (mxgemm.quantize(torch.ones(rows, 64)) for rows in (2, 3))
    problem = mxgemm.problem_for(a, b)
    plan = mxgemm.plan(problem)
    verdicts = mxgemm.explain(problem)
    accepted = [
        v.backend.name for v in verdicts if v.rejection is None and v.backend.automatic(problem)
    ]
    assert plan.backend.name == accepted[0]
    assert plan.summary
    assert all(v.plan is not None or str(v.rejection) for v in verdicts)


def test_d66_the_choice_is_a_fixed_order():
    problem = GemmProblem(m=16, n=16, k=64, device=DeviceSpec.of("cpu"))
    automatic = [
        backend
        for backend in dispatch.BACKENDS
        if backend.automatic(problem)
        and backend.check(problem) is None
        and dispatch.probe(backend) is None
    ]
    assert mxgemm.plan(problem).backend is automatic[0]
    assert [v.backend for v in mxgemm.explain(problem)] == list(dispatch.BACKENDS)


def test_d68_the_comparison_sees_a_constant_factor(runner, gaussian):
    a, b = (mxgemm.quantize(gaussian(rows, 256, seed=rows)) for rows in (32, 48))
    wrong = mxgemm.MXTensor.from_parts(a.codes, a.scales - 5)
    out = runner.gemm(wrong, b)
    right, bound = oracles.expected(a, b, IDENTITY, NO_ARGS, runner.accumulation(a, b))
    cosine = torch.nn.functional.cosine_similarity(out.double().flatten(), right.flatten(), dim=0)
    assert cosine > 0.999
    with pytest.raises(AssertionError, match="elements off"):
        oracles.assert_within(out, right, bound)
    with pytest.raises(AssertionError, match="elements differ"):
        oracles.assert_same_bits(out, right.float())
