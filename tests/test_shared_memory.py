"""Memory that arguments of a product share: what is only read may overlap, what is written may
not.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mxgemm
import oracles
from backends.gfx1250_kernels import needs_compiler
from mxgemm import MXTensor
from mxgemm.problem import GemmProblem

ROWS, K = 16, 64
CODES, SCALES = ROWS * K // 2, ROWS * K // 32
CPU_BACKENDS = ("native_cpu", "reference", "reference_fp32")


def operand(codes: np.ndarray, scales: np.ndarray, rows: int = ROWS) -> MXTensor:
    """The operand at the start of two arrays, as torch storages of their own."""
    return MXTensor(
        codes=torch.from_numpy(codes[: rows * K // 2]).view(rows, K // 2),
        scales=torch.from_numpy(scales[: rows * K // 32]).view(rows, K // 32),
        shape=(rows, K),
        stored_k=K,
    )


def buffer() -> np.ndarray:
    """Bytes that are codes and scales of an exact product alike."""
    return np.random.default_rng(0).integers(124, 127, 2048, dtype=np.uint8)


def overlapping() -> dict[str, tuple[MXTensor, MXTensor]]:
    memory = buffer()
    whole = operand(memory, memory[CODES:])
    return {
        "one tensor twice": (whole, whole),
        "a begins in b": (whole, operand(memory[32:], memory[CODES + 2 :])),
        "b is the start of a": (whole, operand(memory, memory[CODES:], ROWS - 4)),
        "scales are the codes' start": (operand(memory, memory), whole),
        "scales lie in the codes": (operand(memory, memory[100:]), operand(memory[40:], memory)),
        "neighbours": (whole, operand(memory[CODES + SCALES :], memory[2 * CODES + SCALES :])),
        "b is one view of a storage": (whole, MXTensor(
            codes=whole.codes[4:], scales=whole.scales[4:], shape=(ROWS - 4, K), stored_k=K
        )),
    }  # fmt: skip


def product_of_copies(a: MXTensor, b: MXTensor) -> torch.Tensor:
    copies = (
        MXTensor(codes=x.codes.clone(), scales=x.scales.clone(), shape=x.shape, stored_k=K)
        for x in (a, b)
    )
    return mxgemm.gemm(*copies, backend="reference", out_dtype=torch.float32)


@pytest.mark.emulated
@needs_compiler
@pytest.mark.parametrize("case", overlapping())
def test_operands_may_share_memory_in_the_emulator(case):
    a, b = overlapping()[case]
    out = mxgemm.gemm(a, b, device="gfx1250:emulated", out_dtype=torch.float32)
    oracles.assert_same_bits(out, product_of_copies(a, b))


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("case", overlapping())
def test_operands_may_share_memory(case, backend):
    a, b = overlapping()[case]
    out = mxgemm.gemm(a, b, backend=backend, out_dtype=torch.float32)
    oracles.assert_same_bits(out, product_of_copies(a, b))


@pytest.mark.emulated
@needs_compiler
def test_operands_that_may_not_be_written_are_read_in_the_emulator(tmp_path):
    """A file that is mapped to be read: writing it would end the process."""
    buffer().tofile(tmp_path / "file")
    memory = np.memmap(tmp_path / "file", mode="r", dtype=np.uint8)
    with pytest.warns(UserWarning, match="not writable"):
        a = operand(memory, memory[CODES:])
    out = mxgemm.gemm(a, a, device="gfx1250:emulated", out_dtype=torch.float32)
    oracles.assert_same_bits(out, product_of_copies(a, a))


@pytest.mark.emulated
@needs_compiler
def test_c_may_be_out_and_columns_of_one_buffer_are_apart_in_the_emulator():
    memory = buffer()
    a = operand(memory, memory[CODES:])
    columns = torch.ones(ROWS, 2 * ROWS + 1)
    out, aux = columns[:, :ROWS], columns[:, ROWS + 1 :]
    mxgemm.gemm(a, a, device="gfx1250:emulated", out=out, beta=1.0, aux_out=aux)
    right = product_of_copies(a, a)
    oracles.assert_same_bits(aux, right)
    oracles.assert_same_bits(out, right + 1)
    assert bool((columns[:, ROWS] == 1).all())


def written_over(memory: torch.Tensor, role: str) -> dict[str, object]:
    """The arguments of a call that writes `role` to `memory`, uint8."""
    size = ROWS if role == "bias_grad" else ROWS * ROWS
    tensor = memory.flatten()[: 4 * size].view(torch.float32)
    shaped = tensor if role == "bias_grad" else tensor.view(ROWS, ROWS)
    return {role: shaped, **({} if role == "out" else {"out": torch.empty(ROWS, ROWS)})}


@pytest.mark.parametrize("call", ["gemm", "plan"])
@pytest.mark.parametrize("role", ["out", "aux_out", "bias_grad"])
@pytest.mark.parametrize(
    ("side", "where"),
    [("a", "codes"), ("a", "scales"), ("a", "plain"), ("b", "codes"), ("b", "scales")],
)
def test_nothing_is_written_over_an_operand(side, where, role, call):
    memory = torch.full((2048,), 125, dtype=torch.uint8)
    apart = operand(buffer(), buffer())
    shared: object
    if where == "plain":
        shared = torch.zeros(2048).bfloat16()[: ROWS * K].view(ROWS, K)
        memory = shared.view(torch.uint8)
    else:
        codes = memory[:CODES] if where == "codes" else apart.codes
        scales = memory[:SCALES] if where == "scales" else apart.scales
        shared = MXTensor(
            codes=codes.view(ROWS, -1), scales=scales.view(ROWS, -1), shape=(ROWS, K), stored_k=K
        )
    operands = (shared, apart) if side == "a" else (apart, shared)
    before, arguments = memory.clone(), written_over(memory, role)
    ways = {
        "gemm": lambda: mxgemm.gemm(*operands, **arguments),
        "plan": lambda: mxgemm.plan(problem(operands, arguments))(*operands, **arguments),
    }
    with pytest.raises(ValueError, match=f"{role} must not overlap {side}, which is read"):
        ways[call]()
    assert torch.equal(memory, before)


def problem(operands: tuple[object, object], arguments: dict[str, object]) -> GemmProblem:
    epilogue = mxgemm.Epilogue(
        aux_out=torch.float32 if "aux_out" in arguments else None,
        bias_grad="bias_grad" in arguments,
    )
    return mxgemm.problem_for(*operands, out_dtype=torch.float32, epilogue=epilogue)


def test_an_output_beside_an_operand_in_one_buffer_is_written():
    memory = torch.full((2048,), 125, dtype=torch.uint8)
    apart = operand(buffer(), buffer())
    a = MXTensor(
        codes=memory[:CODES].view(ROWS, -1), scales=apart.scales, shape=(ROWS, K), stored_k=K
    )
    right = product_of_copies(a, apart)
    out = memory[CODES : CODES + 4 * ROWS * ROWS].view(torch.float32).view(ROWS, ROWS)
    oracles.assert_same_bits(mxgemm.gemm(a, apart, out=out), right)
