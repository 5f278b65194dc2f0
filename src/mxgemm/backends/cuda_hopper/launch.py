"""Host side of the Hopper kernels: their arguments, their workspace, their order in the stream."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import torch

from mxgemm.backends.cuda_hopper import config as cfg
from mxgemm.backends.cuda_hopper.config import FoldedConfig, HopperConfig, PackedConfig
from mxgemm.epilogue import Activation, Epilogue, EpilogueArgs
from mxgemm.problem import GemmProblem
from mxgemm.runtime import cuda_driver
from mxgemm.runtime.cuda_driver import Kernel, TensorMap
from mxgemm.runtime.nvrtc import Source
from mxgemm.tensor import MXTensor

ACTIVATIONS = {
    Activation.NONE: 0,
    Activation.RELU: 1,
    Activation.GELU: 2,
    Activation.GELU_TANH: 3,
}


class _Epilogue(ctypes.Structure):
    """`Epilogue` of epilogue.cuh."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("d", "c", "aux", "bias", "column_sums")),
        *((name, ctypes.c_longlong) for name in ("d_stride", "c_stride", "aux_stride")),
        *((name, ctypes.c_float) for name in ("alpha", "beta")),
        *((name, ctypes.c_int) for name in ("d_dtype", "c_dtype", "aux_dtype", "bias_dtype")),
        *((name, ctypes.c_int) for name in ("activation", "backward", "paired", "m", "n")),
    )


_OPERANDS = (
    *((name, ctypes.c_void_p) for name in ("a_powers", "b_powers", "a_scales", "b_scales")),
    *((name, ctypes.c_longlong) for name in ("a_scales_pitch", "b_scales_pitch")),
)
_SIZES = tuple((name, ctypes.c_int) for name in ("m", "n", "k"))


class _FoldedGemm(ctypes.Structure):
    """`FoldedGemm` of gemm_folded.cu."""

    _fields_ = (("epilogue", _Epilogue), *_OPERANDS, ("tickets", ctypes.c_void_p), *_SIZES)


class _PackedGemm(ctypes.Structure):
    """`PackedGemm` of gemm_packed.cu."""

    _fields_ = (("epilogue", _Epilogue), ("tiles", ctypes.c_void_p), *_OPERANDS, *_SIZES)


class _FoldOperand(ctypes.Structure):
    """`FoldOperand` of fold.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("codes", "scales", "folded", "powers")),
        *((name, ctypes.c_longlong) for name in ("codes_pitch", "scales_pitch")),
        ("rows", ctypes.c_int),
    )


NOTHING_TO_FOLD = _FoldOperand()


@dataclass(frozen=True, slots=True)
class FoldedRows:
    """An operand as gemm_folded.cu reads it.

    Attributes:
        folded: E4M3 bytes as uint8 [rows, k].
        powers: int16 [rows rounded up to 128]; folded * 2^power is the value.
        scales: uint8 [rows, k/32], read for rows that could not be folded.
    """

    folded: torch.Tensor
    powers: torch.Tensor
    scales: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return self.folded.nbytes + self.powers.nbytes + self.scales.nbytes


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight as gemm_packed.cu reads it: see pack.cu.

    Attributes:
        tiles: uint8 [rows/64, k/128, 4352], rows padded to 128 and k to 128.
        powers: int16 [rows rounded up to 128].
        scales: uint8 [rows, k/32], read for rows that could not be folded.
    """

    tiles: torch.Tensor
    powers: torch.Tensor
    scales: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return self.tiles.nbytes + self.powers.nbytes + self.scales.nbytes


@functools.cache
def multiprocessors(device: int) -> int:
    """Return how many multiprocessors a device has."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def fold_kernel(k: int, device: int, *, few_rows: bool) -> tuple[Kernel, int]:
    """Return the fold of rows of length k and the number of warps it gives a row.

    Enough warps to hold the row in registers; all of them when the rows are too few to fill the device.
    """
    chunks = -(-k // (cfg.FOLD_CHUNK * cfg.FOLD_CHUNKS_HELD * 32))
    warps = 8 if few_rows else next((w for w in (1, 2, 4) if w >= chunks), 8)
    source = Source(cfg.HERE / "fold.cu", (("MX_WARPS", warps),))
    kernel = cuda_driver.load(
        source, "fold_rows", arch=cfg.ARCH, device=device, threads=cfg.FOLD_THREADS
    )
    return kernel, warps


def fold(
    operands: list[tuple[MXTensor, torch.Tensor, torch.Tensor]],
    k: int,
    stream: int,
    tickets: torch.Tensor | None = None,
) -> None:
    """Fold one or two operands in one launch.

    Args:
        operands: canonical tensors with where their folded bytes and powers go.
        k: stored contraction.
        stream: driver handle.
        tickets: int32, zeroed for the GEMM that follows.
    """
    device = operands[0][0].codes.device.index
    padded = sum(cfg.round_up(tensor.rows, cfg.POWERS_MULTIPLE) for tensor, _, _ in operands)
    kernel, warps = fold_kernel(k, device, few_rows=padded <= 4 * multiprocessors(device))
    arguments = [
        _FoldOperand(
            tensor.codes.data_ptr(),
            tensor.scales.data_ptr(),
            folded.data_ptr(),
            powers.data_ptr(),
            tensor.codes.stride(0),
            tensor.scales.stride(0),
            tensor.rows,
        )
        for tensor, folded, powers in operands
    ]
    second = arguments[1] if len(arguments) == 2 else NOTHING_TO_FOLD
    rows_per_block = cfg.FOLD_THREADS // 32 // warps
    kernel.launch(
        (padded // rows_per_block, 1),
        stream,
        (
            arguments[0],
            second,
            ctypes.c_int(k),
            ctypes.c_void_p(tickets.data_ptr() if tickets is not None else None),
            ctypes.c_int(tickets.numel() if tickets is not None else 0),
        ),
    )


def fold_one(tensor: MXTensor, k: int, stream: int) -> FoldedRows:
    """Return a canonical tensor folded, in memory of its own."""
    device = tensor.codes.device
    powers = cfg.round_up(tensor.rows, cfg.POWERS_MULTIPLE)
    rows = FoldedRows(
        torch.empty((tensor.rows, k), dtype=torch.uint8, device=device),
        torch.empty(powers, dtype=torch.int16, device=device),
        tensor.scales,
    )
    fold([(tensor, rows.folded, rows.powers)], k, stream)
    return rows


def _pack_kernel(name: str, device: int) -> Kernel:
    return cuda_driver.load(
        Source(cfg.HERE / "pack.cu"), name, arch=cfg.ARCH, device=device, threads=128
    )


def pack(tensor: MXTensor, k: int, stream: int) -> PackedWeight:
    """Return the packed form of a canonical tensor."""
    device = tensor.codes.device
    rows = cfg.round_up(tensor.rows, cfg.POWERS_MULTIPLE)
    groups = -(-k // cfg.TILE_K)
    shape = (rows // cfg.PACKED_TILE_ROWS, groups, cfg.PACKED_TILE_BYTES)
    tiles = torch.empty(shape, dtype=torch.uint8, device=device)
    powers = torch.empty(rows, dtype=torch.int16, device=device)
    _pack_kernel("pack_tiles", device.index).launch(
        (rows // 4, 1),
        stream,
        (
            ctypes.c_void_p(tensor.codes.data_ptr()),
            ctypes.c_void_p(tensor.scales.data_ptr()),
            ctypes.c_void_p(tiles.data_ptr()),
            ctypes.c_void_p(powers.data_ptr()),
            ctypes.c_longlong(tensor.codes.stride(0)),
            ctypes.c_longlong(tensor.scales.stride(0)),
            ctypes.c_int(tensor.rows),
            ctypes.c_int(k),
        ),
    )
    return PackedWeight(tiles, powers, tensor.scales)


def unpack(weight: PackedWeight, folded: torch.Tensor, rows: int, k: int, stream: int) -> None:
    """Write the folded bytes [rows, k] of a packed weight."""
    groups = -(-k // cfg.TILE_K)
    _pack_kernel("unpack_tiles", weight.tiles.device.index).launch(
        (-(-groups // 4), -(-rows // cfg.PACKED_TILE_ROWS)),
        stream,
        (
            ctypes.c_void_p(weight.tiles.data_ptr()),
            ctypes.c_void_p(folded.data_ptr()),
            ctypes.c_int(rows),
            ctypes.c_int(k),
        ),
    )


def gemm_folded(
    config: FoldedConfig,
    a: FoldedRows,
    b: FoldedRows,
    out: torch.Tensor,
    epilogue: _Epilogue,
    k: int,
    stream: int,
    tickets: torch.Tensor | None = None,
) -> None:
    """Multiply two folded operands; with tickets, overlapping the fold just before in the stream."""
    device = out.device.index
    m, n = epilogue.m, epilogue.n
    use_tma = config.plain and _takes_tma(out)
    if config.plain and not use_tma:
        config = FoldedConfig(config.strict, False, config.dtype)
    kernel = cuda_driver.load(
        config.source,
        "gemm_folded",
        arch=cfg.ARCH,
        device=device,
        threads=cfg.FOLDED_THREADS,
        shared_bytes=cfg.FOLDED_SHARED_BYTES,
    )
    box = (cfg.FOLDED_TILE, cfg.TILE_K)
    map_a = cuda_driver.tensor_map(a.folded.data_ptr(), torch.uint8, m, k, k, box)
    map_b = cuda_driver.tensor_map(b.folded.data_ptr(), torch.uint8, n, k, k, box)
    map_d = _output_map(out) if use_tma else map_a
    arguments = _FoldedGemm(
        epilogue,
        a.powers.data_ptr(),
        b.powers.data_ptr(),
        a.scales.data_ptr(),
        b.scales.data_ptr(),
        a.scales.stride(0),
        b.scales.stride(0),
        tickets.data_ptr() if tickets is not None else None,
        m,
        n,
        k,
    )
    tiles = -(-m // cfg.FOLDED_TILE) * -(-n // cfg.FOLDED_TILE)
    grid = min(tiles, multiprocessors(device)) if tickets is None else multiprocessors(device)
    kernel.launch((grid, 1), stream, (map_a, map_b, map_d, arguments), overlap=tickets is not None)


def gemm_packed(
    config: PackedConfig,
    a: FoldedRows,
    b: PackedWeight,
    epilogue: _Epilogue,
    k: int,
    stream: int,
    *,
    overlap: bool,
) -> None:
    """Multiply folded activations with a packed weight; with `overlap`, while the fold just before in the stream runs."""
    device = b.tiles.device.index
    m, n = epilogue.m, epilogue.n
    kernel = cuda_driver.load(
        config.source,
        "gemm_packed",
        arch=cfg.ARCH,
        device=device,
        threads=config.threads,
        shared_bytes=config.shared_bytes,
    )
    map_a = cuda_driver.tensor_map(
        a.folded.data_ptr(), torch.uint8, m, k, k, (config.tokens, cfg.TILE_K)
    )
    arguments = _PackedGemm(
        epilogue,
        b.tiles.data_ptr(),
        a.powers.data_ptr(),
        b.powers.data_ptr(),
        a.scales.data_ptr(),
        b.scales.data_ptr(),
        a.scales.stride(0),
        b.scales.stride(0),
        m,
        n,
        k,
    )
    rows = config.row_groups * cfg.PACKED_TILE_ROWS
    tiles = -(-m // config.tokens) * -(-n // rows)
    grid = min(tiles, multiprocessors(device))
    kernel.launch((grid, 1), stream, (map_a, arguments), overlap=overlap)


def _takes_tma(matrix: torch.Tensor) -> bool:
    """Whether the copy engine can write a 16-bit matrix: rows 16 bytes aligned."""
    return matrix.data_ptr() % 16 == 0 and matrix.stride(0) * matrix.itemsize % 16 == 0


def _output_map(out: torch.Tensor) -> TensorMap:
    rows, columns = out.shape
    return cuda_driver.tensor_map(
        out.data_ptr(), out.dtype, rows, columns, out.stride(0) * out.itemsize, (64, 64)
    )


class Workspace:
    """One allocation that a call's intermediate buffers are cut from."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self._memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self._used = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return the next buffer."""
        size = torch.Size(shape).numel() * dtype.itemsize
        start, self._used = self._used, self._used + cfg.round_up(size, cfg.ALIGNMENT)
        return self._memory[start : start + size].view(dtype).view(shape)

    def take_rows(self, tensor_rows: int, k: int, scales: torch.Tensor) -> FoldedRows:
        """Return room for a folded operand."""
        powers = cfg.round_up(tensor_rows, cfg.POWERS_MULTIPLE)
        folded = self.take((tensor_rows, k), torch.uint8)
        return FoldedRows(folded, self.take((powers,), torch.int16), scales)


def epilogue_argument(
    problem: GemmProblem, out: torch.Tensor, args: EpilogueArgs, column_sums: torch.Tensor | None
) -> _Epilogue:
    """Return the kernels' form of an epilogue and its tensors."""
    described = problem.epilogue
    aux = args.aux_in if described.aux_in is not None else args.aux_out
    backward = described.dact is not Activation.NONE
    matrices = [tensor for tensor in (out, args.c, aux) if tensor is not None]
    vectors = [tensor for tensor in (args.bias,) if tensor is not None]
    return _Epilogue(
        d=out.data_ptr(),
        c=args.c.data_ptr() if args.c is not None else None,
        aux=aux.data_ptr() if aux is not None else None,
        bias=args.bias.data_ptr() if args.bias is not None else None,
        column_sums=column_sums.data_ptr() if column_sums is not None else None,
        d_stride=out.stride(0),
        c_stride=args.c.stride(0) if args.c is not None else 0,
        aux_stride=aux.stride(0) if aux is not None else 0,
        alpha=args.alpha,
        beta=args.beta,
        d_dtype=cfg.DTYPE_CODES[out.dtype],
        c_dtype=cfg.DTYPE_CODES[described.c],
        aux_dtype=cfg.DTYPE_CODES[described.aux_in or described.aux_out],
        bias_dtype=cfg.DTYPE_CODES[described.bias],
        activation=ACTIVATIONS[described.dact if backward else described.activation],
        backward=int(backward),
        paired=int(_paired(matrices, vectors)),
        m=problem.m,
        n=problem.n,
    )


def _paired(matrices: list[torch.Tensor], vectors: list[torch.Tensor]) -> bool:
    """Whether two neighbouring columns, the first one even, can be accessed at once in every tensor."""
    return all(
        tensor.data_ptr() % (2 * tensor.itemsize) == 0 for tensor in matrices + vectors
    ) and all(tensor.stride(0) % 2 == 0 or tensor.shape[0] == 1 for tensor in matrices)


def run(
    problem: GemmProblem,
    config: HopperConfig,
    a: MXTensor | FoldedRows,
    b: MXTensor | FoldedRows | PackedWeight,
    out: torch.Tensor,
    args: EpilogueArgs,
) -> None:
    """Fold what is not prepared, multiply, finish; everything in torch's current stream of `out`'s device."""
    with torch.cuda.device(out.device):
        _run(problem, config, a, b, out, args)


def _run(
    problem: GemmProblem,
    config: HopperConfig,
    a: MXTensor | FoldedRows,
    b: MXTensor | FoldedRows | PackedWeight,
    out: torch.Tensor,
    args: EpilogueArgs,
) -> None:
    k, stream = problem.k, torch.cuda.current_stream().cuda_stream
    workspace = Workspace(cfg.workspace_bytes(problem, config), out.device)
    packed = config.packed if isinstance(b, PackedWeight) else None
    to_fold, left = [], a
    if isinstance(left, MXTensor):
        left = workspace.take_rows(problem.m, k, left.scales)
        to_fold.append((a, left.folded, left.powers))
    right: FoldedRows | PackedWeight
    if isinstance(b, MXTensor):
        right = workspace.take_rows(problem.n, k, b.scales)
        to_fold.append((b, right.folded, right.powers))
    elif isinstance(b, PackedWeight) and packed is None:
        right = FoldedRows(workspace.take((problem.n, k), torch.uint8), b.powers, b.scales)
        unpack(b, right.folded, problem.n, k, stream)
    else:
        right = b
    sum_rows = packed.tokens if packed is not None else cfg.FOLDED_SUM_ROWS
    groups = -(-problem.m // sum_rows)
    sums = None
    if args.bias_grad is not None:
        sums = workspace.take((groups, problem.n), torch.float32)
    epilogue = epilogue_argument(problem, out, args, sums)
    tickets = None
    if to_fold:
        if packed is None:
            tickets = workspace.take((multiprocessors(out.device.index),), torch.int32)
        fold(to_fold, k, stream, tickets)
    if packed is not None:
        assert isinstance(right, PackedWeight)
        gemm_packed(packed, left, right, epilogue, k, stream, overlap=bool(to_fold))
    else:
        assert isinstance(right, FoldedRows)
        gemm_folded(config.folded, left, right, out, epilogue, k, stream, tickets)
    if sums is not None:
        _add_rows(sums, args.bias_grad, stream)


def _add_rows(partial: torch.Tensor, sums: torch.Tensor, stream: int) -> None:
    count, columns = partial.shape
    _pack_kernel("add_rows", partial.device.index).launch(
        (-(-columns // 128), 1),
        stream,
        (
            ctypes.c_void_p(partial.data_ptr()),
            ctypes.c_void_p(sums.data_ptr()),
            ctypes.c_int(count),
            ctypes.c_int(columns),
        ),
    )
