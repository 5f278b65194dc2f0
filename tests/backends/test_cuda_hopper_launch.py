"""The host side of the Hopper kernels without a GPU: what is launched, in which order and with
which parameters, recorded by kernels that do nothing.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import mxgemm
from mxgemm.backends.base import GemmPlan, Operand, PreparedOperand
from mxgemm.backends.cuda_hopper import CudaHopper, launch
from mxgemm.backends.cuda_hopper import config as cfg
from mxgemm.devices import DeviceSpec
from mxgemm.epilogue import NO_ARGS, Epilogue, EpilogueArgs
from mxgemm.matmul import problem_for
from mxgemm.runtime import cuda_driver
from mxgemm.runtime.cuda_driver import Launch
from mxgemm.runtime.nvrtc import Source
from mxgemm.tensor import MXTensor

BACKEND = CudaHopper()
MULTIPROCESSORS = 132
STREAM = 0x7E
BFLOAT16 = cfg.DTYPE_CODES[torch.bfloat16]


@dataclass
class Started:
    """One launch: the parameters are kept as the bytes that the driver would have read."""

    kernel: str
    grid: tuple[int, int]
    stream: int
    overlap: bool
    parameters: bytes
    defines: dict[str, object]


@dataclass
class Recorder:
    """Stands in for the driver."""

    started: list[Started] = field(default_factory=list)

    def load(self, source: Source, name: str, **_: object) -> Any:
        return RecordingKernel(self, name, dict(source.defines))

    @property
    def names(self) -> list[str]:
        return [each.kernel for each in self.started]


# Bytes of the parameters, and where each of them starts: two operands and D, see the .cu files.
PARAMETERS = {
    "fold_rows": (launch.FOLD.size, (0,)),
    "gemm_folded": (launch.FOLDED_GEMM.size, (0, 2 * 128, 4 * 128, 5 * 128)),
    "gemm_packed": (launch.PACKED_GEMM.size, (0, 128)),
    "gemm_decoded": (launch.DECODED_GEMM.size, (0, 2 * 128, 3 * 128)),
    "unpack_tiles": (launch.UNPACK.size, (0, 8, 16, 20)),
    "add_rows": (launch.ADD_ROWS.size, (0, 8, 16, 20)),
}


@dataclass
class RecordingKernel:
    recorder: Recorder
    name: str
    defines: dict[str, object]

    def start(self, grid: tuple[int, int], stream: int, pointers: int, overlap: bool) -> None:
        size, offsets = PARAMETERS[self.name]
        first, *others = (ctypes.c_size_t * len(offsets)).from_address(pointers)
        assert (0, *(other - first for other in others)) == offsets
        self.recorder.started.append(
            Started(self.name, grid, stream, overlap, ctypes.string_at(first, size), self.defines)
        )


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A machine with a Hopper GPU whose memory is the host's and whose kernels do nothing."""
    found = Recorder()
    monkeypatch.setattr(cuda_driver, "load", found.load)
    monkeypatch.setattr(cuda_driver, "current_stream", lambda _: STREAM)
    monkeypatch.setattr(cuda_driver, "tensor_map", FakeMap)
    monkeypatch.setattr(launch, "multiprocessors", lambda _: MULTIPROCESSORS)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(DeviceSpec, "torch_device", torch.device("cpu"))
    for cache in (launch.fold_launch, launch._pack_launch):
        monkeypatch.setattr(launch, cache.__name__, cache.__wrapped__)
    return found


class FakeMap:
    """A tensor map that says what it is of: address, rows, columns, bytes from row to row, box."""

    LAYOUT = struct.Struct("@6q80x")

    def __init__(
        self,
        address: int,
        dtype: torch.dtype,
        rows: int,
        columns: int,
        row_bytes: int,
        box: tuple[int, int],
    ) -> None:
        packed = self.LAYOUT.pack(address, rows, columns, row_bytes, *box)
        self._buffer = ctypes.create_string_buffer(packed, len(packed))

    def getPtr(self) -> int:  # noqa: N802
        return ctypes.addressof(self._buffer)


def quantized(rows: int, k: int) -> MXTensor:
    generator = torch.Generator().manual_seed(rows)
    return mxgemm.quantize(torch.randn(rows, k, generator=generator))


def folded(operand: MXTensor, side: str) -> PreparedOperand:
    rows = launch.FoldedRows(
        torch.empty(operand.rows, operand.stored_k, dtype=torch.uint8),
        torch.empty(cfg.round_up(operand.rows, 128), dtype=torch.int16),
        operand.scales,
    )
    return PreparedOperand.of(
        operand,
        backend=BACKEND.name,
        side=side,  # type: ignore[arg-type]
        payload=rows,
        nbytes=rows.nbytes,
    )


def packed(operand: MXTensor) -> PreparedOperand:
    rows = cfg.round_up(operand.rows, 128)
    weight = launch.PackedWeight(
        torch.empty(rows * operand.stored_k, dtype=torch.uint8),
        torch.empty(rows, dtype=torch.int16),
        operand.scales,
    )
    return PreparedOperand.of(
        operand, backend=BACKEND.name, side="b", payload=weight, nbytes=weight.nbytes
    )


def plan_for(a: Operand, b: Operand, **changes: Any) -> GemmPlan:
    return BACKEND.plan(problem_for(a, b, device=DeviceSpec("cuda", "sm_90"), **changes))


def folded_fields(started: Started) -> dict[str, Any]:
    """Return the parameters of gemm_folded by name."""
    names = ("boxes_a", "boxes_b", "map_d", "d", "c", "aux", "bias", "sums")
    names += ("d_stride", "c_stride", "aux_stride", "alpha", "beta", "d_dtype", "c_dtype")
    names += ("aux_dtype", "bias_dtype")
    names += ("activation", "backward", "paired", "epilogue_m", "epilogue_n", "a_powers")
    names += ("b_powers", "a_scales", "b_scales", "a_pitch", "b_pitch", "tickets", "m", "n", "k")
    fields = dict(zip(names, launch.FOLDED_GEMM.unpack(started.parameters), strict=True))
    for side in "ab":
        boxes = fields.pop(f"boxes_{side}")
        fields |= {f"map_{side}": boxes[:128], f"last_{side}": boxes[128:]}
    return fields


def test_folded_operands_are_one_launch_without_workspace(recorder: Recorder) -> None:
    a, b = quantized(300, 160), quantized(520, 160)
    left, right = folded(a, "a"), folded(b, "b")
    assert isinstance(left.payload, launch.FoldedRows)
    out = torch.empty(300, 520, dtype=torch.bfloat16)
    plan = plan_for(left, right)
    assert plan.run(left, right, out, EpilogueArgs(alpha=0.5)) is out
    (started,) = recorder.started
    fields = folded_fields(started)
    assert (started.kernel, started.grid, started.stream) == ("gemm_folded", (15, 1), STREAM)
    assert not started.overlap
    assert fields["tickets"] == 0
    assert FakeMap.LAYOUT.unpack(fields["map_a"]) == (
        left.payload.folded.data_ptr(),
        300,
        160,
        160,
        128,
        128,
    )
    assert FakeMap.LAYOUT.unpack(fields["last_a"])[1:] == (300, 160, 160, 44, 128)
    assert FakeMap.LAYOUT.unpack(fields["map_b"])[1:] == (520, 160, 160, 128, 128)
    assert FakeMap.LAYOUT.unpack(fields["last_b"])[1:] == (520, 160, 160, 8, 128)
    assert started.defines["MX_FITTED"] == 1
    assert FakeMap.LAYOUT.unpack(fields["map_d"]) == (out.data_ptr(), 300, 520, 1040, 16, 64)
    assert (fields["d"], fields["d_stride"], fields["d_dtype"]) == (out.data_ptr(), 520, BFLOAT16)
    assert (fields["alpha"], fields["beta"], fields["paired"]) == (0.5, 0.0, 1)
    assert (fields["m"], fields["n"], fields["k"]) == (300, 520, 160)
    assert (fields["epilogue_m"], fields["epilogue_n"]) == (300, 520)
    assert fields["a_scales"] == a.scales.data_ptr()
    assert (fields["a_pitch"], fields["b_pitch"]) == (5, 5)


def test_packed_operands_are_folded_first_and_the_gemm_overlaps(recorder: Recorder) -> None:
    a, b = quantized(1024, 256), quantized(4096, 256)
    out = torch.empty(1024, 4096, dtype=torch.bfloat16)
    plan_for(a, b).run(a, b, out, NO_ARGS)
    assert recorder.names == ["fold_rows", "gemm_folded"]
    fold, gemm = recorder.started
    assert not fold.overlap
    assert gemm.overlap
    values, fields = launch.FOLD.unpack(fold.parameters), folded_fields(gemm)
    first, second, (tickets, num_tickets, k) = values[:7], values[7:14], values[14:]
    assert first[:2] == (a.codes.data_ptr(), a.scales.data_ptr())
    assert second[:2] == (b.codes.data_ptr(), b.scales.data_ptr())
    assert first[4:] == (128, 8, 1024)
    assert second[4:] == (128, 8, 4096)
    assert (num_tickets, k) == (MULTIPROCESSORS, 256)
    assert gemm.grid == (MULTIPROCESSORS, 1)
    # The GEMM reads what the fold writes.
    assert (fields["a_powers"], fields["b_powers"]) == (first[3], second[3])
    assert fields["tickets"] == tickets
    assert FakeMap.LAYOUT.unpack(fields["map_a"])[0] == first[2]
    assert FakeMap.LAYOUT.unpack(fields["map_b"])[0] == second[2]


def test_few_rows_meet_a_packed_weight_in_place(recorder: Recorder) -> None:
    a, b = quantized(16, 512), quantized(256, 512)
    weight = packed(b)
    out = torch.empty(16, 256, dtype=torch.bfloat16)
    plan_for(a, weight).run(a, weight, out, NO_ARGS)
    assert recorder.names == ["fold_rows", "gemm_packed"]
    assert recorder.started[0].grid == (16, 1)  # a block a row
    assert recorder.started[1].overlap
    left = folded(a, "a")
    plan_for(left, weight).run(left, weight, out, NO_ARGS)
    assert recorder.names[2:] == ["gemm_packed"]
    # Even alone it starts before the kernel ahead of it has ended, and waits before it reads.
    assert recorder.started[2].overlap


@pytest.mark.parametrize(
    ("m", "multiprocessors", "grid"),
    [(256, 132, 132), (512, 132, 132), (512, 131, 130), (768, 131, 131)],
)
def test_a_weight_is_decoded_by_whole_pairs_of_blocks(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, m: int, multiprocessors: int, grid: int
) -> None:
    monkeypatch.setattr(launch, "multiprocessors", lambda _: multiprocessors)
    left, weight = folded(quantized(m, 32), "a"), packed(quantized(8500, 32))
    out = torch.empty(m, 8500, dtype=torch.float32)
    plan_for(left, weight).run(left, weight, out, NO_ARGS)
    (gemm,) = recorder.started
    assert (gemm.kernel, gemm.grid) == ("gemm_decoded", (grid, 1))


@pytest.mark.parametrize("m", [16, 100, 600])
def test_only_after_a_fold_a_weight_is_asked_for_early(recorder: Recorder, m: int) -> None:
    a, weight = quantized(m, 256), packed(quantized(2000, 256))
    out = torch.empty(m, 2000, dtype=torch.bfloat16)
    for left in (folded(a, "a"), a):
        plan_for(left, weight).run(left, weight, out, NO_ARGS)
    alone, fold, gemm = recorder.started
    layout = launch.PACKED_GEMM if m == 16 else launch.DECODED_GEMM
    assert fold.kernel == "fold_rows"
    assert layout.unpack(alone.parameters)[-1] == 0
    assert layout.unpack(gemm.parameters)[-1] > 0


@pytest.mark.parametrize(
    ("m", "whole", "last"), [(9, None, 9), (100, 100, 100), (256, 128, 128), (600, 256, 88)]
)
def test_boxes_of_a_end_with_its_rows(
    recorder: Recorder, m: int, whole: int | None, last: int
) -> None:
    left, weight = folded(quantized(m, 256), "a"), packed(quantized(2000, 256))
    assert isinstance(left.payload, launch.FoldedRows)
    out = torch.empty(m, 2000, dtype=torch.bfloat16)
    plan_for(left, weight).run(left, weight, out, NO_ARGS)
    (gemm,) = recorder.started
    layout = launch.PACKED_GEMM if whole is None else launch.DECODED_GEMM
    maps = layout.unpack(gemm.parameters)[0]
    boxes = [box for box in (whole, last) if box is not None]
    address = left.payload.folded.data_ptr()
    assert list(FakeMap.LAYOUT.iter_unpack(maps)) == [
        (address, m, 256, 256, box, 128) for box in boxes
    ]


def test_many_rows_unpack_the_weight_first(recorder: Recorder) -> None:
    a, b = quantized(2176, 256), quantized(384, 256)
    left, weight = folded(a, "a"), packed(b)
    assert isinstance(weight.payload, launch.PackedWeight)
    out = torch.empty(2176, 384, dtype=torch.bfloat16)
    plan_for(left, weight).run(left, weight, out, NO_ARGS)
    assert recorder.names == ["unpack_tiles", "gemm_folded"]
    unpack = launch.UNPACK.unpack(recorder.started[0].parameters)
    fields = folded_fields(recorder.started[1])
    assert unpack[0] == weight.payload.tiles.data_ptr()
    assert FakeMap.LAYOUT.unpack(fields["map_b"])[0] == unpack[1]
    assert unpack[2:] == (384, 256)


def test_an_epilogue_hands_over_its_tensors(recorder: Recorder) -> None:
    a, b = quantized(200, 64), quantized(72, 64)
    left, right = folded(a, "a"), folded(b, "b")
    epilogue = Epilogue(
        bias=torch.float32,
        activation="gelu",  # type: ignore[arg-type]
        aux_out=torch.float16,
        c=torch.bfloat16,
        bias_grad=True,
    )
    args = EpilogueArgs(
        beta=2.0,
        bias=torch.empty(72),
        aux_out=torch.empty(200, 80, dtype=torch.float16)[:, :72],
        c=torch.empty(200, 72, dtype=torch.bfloat16),
        bias_grad=torch.empty(72),
    )
    out = torch.empty(200, 72)
    plan = plan_for(left, right, epilogue=epilogue, out_dtype=torch.float32)
    plan.run(left, right, out, args)
    assert recorder.names == ["gemm_folded", "add_rows"]
    fields = folded_fields(recorder.started[0])
    sums = launch.ADD_ROWS.unpack(recorder.started[1].parameters)
    assert args.bias is not None
    assert args.aux_out is not None
    assert args.c is not None
    assert (fields["bias"], fields["bias_dtype"]) == (args.bias.data_ptr(), 1)
    assert (fields["aux"], fields["aux_stride"]) == (args.aux_out.data_ptr(), 80)
    assert (fields["aux_dtype"], fields["c_dtype"], fields["d_dtype"]) == (3, 2, 1)
    assert (fields["c"], fields["c_stride"], fields["beta"]) == (args.c.data_ptr(), 72, 2.0)
    assert (fields["activation"], fields["backward"]) == (2, 0)
    assert fields["sums"] == sums[0] != 0
    assert args.bias_grad is not None
    assert sums[1:] == (args.bias_grad.data_ptr(), 4, 72)


@pytest.mark.parametrize("columns", [136, 133], ids=["aligned", "unaligned"])
def test_an_output_that_tma_cannot_write_takes_the_other_kernel(
    recorder: Recorder, columns: int
) -> None:
    left, right = folded(quantized(64, 64), "a"), folded(quantized(128, 64), "b")
    out = torch.empty(64, columns, dtype=torch.bfloat16)[:, :128]
    plan_for(left, right).run(left, right, out, NO_ARGS)
    (started,) = recorder.started
    fields = folded_fields(started)
    assert (fields["map_d"] == bytes(128)) == (columns == 133)
    assert (started.defines["MX_PLAIN_DTYPE"] == 0) == (columns == 133)
    assert started.defines["MX_FITTED"] == 1  # as the boxes of the maps
    assert FakeMap.LAYOUT.unpack(fields["last_a"])[4:] == (64, 128)
    assert fields["paired"] == (columns != 133)


def test_a_call_reads_no_value_of_the_call_before(recorder: Recorder) -> None:
    a, b = folded(quantized(64, 64), "a"), folded(quantized(128, 64), "b")
    plan = plan_for(a, b)
    outs = [torch.empty(64, 128, dtype=torch.bfloat16) for _ in range(3)]
    for alpha, out in enumerate(outs):
        plan.run(a, b, out, EpilogueArgs(alpha=float(alpha)))
    found = [folded_fields(each) for each in recorder.started]
    assert [fields["d"] for fields in found] == [out.data_ptr() for out in outs]
    assert [fields["alpha"] for fields in found] == [0.0, 1.0, 2.0]


class Meeting:
    """A kernel whose launch returns when a second one has begun, and notes what both were given."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=10)
        self.values: list[int] = []

    def start(self, grid: object, stream: int, pointers: int, overlap: bool) -> None:
        self.barrier.wait()
        first = ctypes.c_void_p.from_address(pointers).value
        assert first is not None
        self.values.append(ctypes.c_int.from_address(first).value)
        self.barrier.wait()


def test_two_threads_that_launch_at_once_do_not_share_parameters() -> None:
    kernel = Meeting()
    call = Launch(kernel, struct.Struct("@i"))  # type: ignore[arg-type]

    def run(values: Sequence[int]) -> None:
        for value in values:
            call((1, 1), 0, (value,))

    threads = [threading.Thread(target=run, args=(part,)) for part in ((1, 2), (3, 4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(kernel.values) == [1, 2, 3, 4]
    assert len(call._idle) == 2
