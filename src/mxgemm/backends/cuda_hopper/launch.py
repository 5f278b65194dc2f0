"""Host side of the Hopper kernels: their arguments, their workspace, their order in the stream.

Everything that depends on the problem alone is worked out once, by `Launcher`; a call only fills in
addresses.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from dataclasses import dataclass, replace
from typing import Any

import torch

from mxgemm.backends.cuda_hopper import config as cfg
from mxgemm.backends.cuda_hopper.config import (
    DecodedConfig,
    FoldedConfig,
    HopperConfig,
    PackedConfig,
    round_up,
)
from mxgemm.epilogue import Activation, EpilogueArgs
from mxgemm.problem import GemmProblem
from mxgemm.runtime import cuda_driver
from mxgemm.runtime.cuda_driver import Kernel, Packed
from mxgemm.runtime.nvrtc import HOPPER, Source
from mxgemm.tensor import MXTensor

# The structs of the .cu files, field by field in their order; 4x is the padding that C adds.
_EPILOGUE = "5P3q2f9i4x"
FOLDED_GEMM = struct.Struct("@" + _EPILOGUE + "4P2qP3i4x")
PACKED_GEMM = struct.Struct("@" + _EPILOGUE + "5P4i")
FOLD = struct.Struct("@" + 2 * "4P2qi4x" + "P2i")
POINTER, INT, LONG = struct.Struct("@P"), struct.Struct("@i"), struct.Struct("@q")

ACTIVATIONS = {
    Activation.NONE: 0,
    Activation.RELU: 1,
    Activation.GELU: 2,
    Activation.GELU_TANH: 3,
}
NOTHING_TO_FOLD = (0,) * 7
_ABSENT_MAP = ctypes.create_string_buffer(128)
_NO_MAP = ctypes.addressof(_ABSENT_MAP)
"""In the place of a tensor map that the kernel does not read."""


Addresses = tuple[int, int, int, int]
"""Where an operand's values, powers and scales are, and the bytes from row to row of the scales."""


@dataclass(frozen=True)
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

    @functools.cached_property
    def addresses(self) -> Addresses:
        """Of the buffers."""
        return _addresses(self.folded, self.powers, self.scales)


@dataclass(frozen=True)
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

    @functools.cached_property
    def addresses(self) -> Addresses:
        """Of the buffers."""
        return _addresses(self.tiles, self.powers, self.scales)


def _addresses(values: torch.Tensor, powers: torch.Tensor, scales: torch.Tensor) -> Addresses:
    return values.data_ptr(), powers.data_ptr(), scales.data_ptr(), scales.stride(0)


@functools.cache
def multiprocessors(device: int) -> int:
    """Return how many multiprocessors a device has."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@functools.cache
def fold_kernel(device: int, *, few_rows: bool) -> tuple[Kernel, int]:
    """Return the fold and the rows of one of its blocks: a warp a row, or all of a block's when
    rows are few.
    """
    warps = cfg.FOLD_WARPS if few_rows else 1
    source = Source(cfg.HERE / "fold.cu", (("MX_WARPS", warps),))
    threads = 32 * cfg.FOLD_WARPS
    kernel = cuda_driver.load(source, "fold_rows", arch=HOPPER, device=device, threads=threads)
    return kernel, cfg.FOLD_WARPS // warps


def fold(
    operands: list[tuple[MXTensor, int, int]],
    k: int,
    device: int,
    stream: int,
    *,
    pad: bool = True,
    tickets: int = 0,
    num_tickets: int = 0,
) -> None:
    """Fold one or two operands in one launch.

    Args:
        operands: canonical tensors with the addresses of their folded bytes and of their powers.
        k: stored contraction.
        device: index of the device.
        stream: driver handle.
        pad: whether powers past the last row are written; needed where there are two operands.
        tickets: address of int32 [num_tickets], zeroed for the GEMM that follows.
        num_tickets: how many.
    """
    padded = 0
    values: tuple[int, ...] = ()
    for tensor, folded, powers in operands:
        rows, codes, scales = tensor.rows, tensor.codes, tensor.scales
        padded += round_up(rows, cfg.POWERS_MULTIPLE) if pad else rows
        values += (codes.data_ptr(), scales.data_ptr(), folded, powers)
        values += (codes.stride(0), scales.stride(0), rows)
    if len(operands) == 1:
        values += NOTHING_TO_FOLD
    kernel, rows_per_block = fold_kernel(device, few_rows=padded <= cfg.FEW_ROWS)
    arguments = Packed(FOLD, *values, tickets, num_tickets, k)
    grid = (-(-padded // rows_per_block), 1)
    kernel.launch(grid, stream, [arguments.address], overlap=True)


def fold_one(tensor: MXTensor, k: int) -> FoldedRows:
    """Return a canonical tensor folded, in memory of its own."""
    device = tensor.codes.device
    rows = FoldedRows(
        torch.empty((tensor.rows, k), dtype=torch.uint8, device=device),
        torch.empty(round_up(tensor.rows, cfg.POWERS_MULTIPLE), dtype=torch.int16, device=device),
        tensor.scales,
    )
    if tensor.rows and k:
        operand = (tensor, rows.folded.data_ptr(), rows.powers.data_ptr())
        fold([operand], k, device.index, cuda_driver.current_stream(device.index))
    return rows


@functools.cache
def _pack_kernel(name: str, device: int) -> Kernel:
    source = Source(cfg.HERE / "pack.cu")
    return cuda_driver.load(source, name, arch=HOPPER, device=device, threads=128)


def pack(tensor: MXTensor, k: int) -> PackedWeight:
    """Return the packed form of a canonical tensor."""
    device = tensor.codes.device
    rows = round_up(tensor.rows, cfg.POWERS_MULTIPLE)
    groups = -(-k // cfg.TILE_K)
    shape = (rows // cfg.PACKED_TILE_ROWS, groups, cfg.PACKED_TILE_BYTES)
    tiles = torch.empty(shape, dtype=torch.uint8, device=device)
    powers = torch.empty(rows, dtype=torch.int16, device=device)
    if rows and k:
        values = (
            *(Packed(POINTER, t.data_ptr()) for t in (tensor.codes, tensor.scales, tiles, powers)),
            Packed(LONG, tensor.codes.stride(0)),
            Packed(LONG, tensor.scales.stride(0)),
            Packed(INT, tensor.rows),
            Packed(INT, k),
        )
        _pack_kernel("pack_tiles", device.index).launch(
            (rows // 4, 1),
            cuda_driver.current_stream(device.index),
            [value.address for value in values],
        )
    return PackedWeight(tiles, powers, tensor.scales)


def unpack(weight: PackedWeight, folded: int, rows: int, k: int, stream: int) -> None:
    """Write the folded bytes [rows, k] of a packed weight to the address `folded`."""
    values = (
        Packed(POINTER, weight.tiles.data_ptr()),
        Packed(POINTER, folded),
        Packed(INT, rows),
        Packed(INT, k),
    )
    groups = -(-k // cfg.TILE_K)
    grid = (-(-groups // 4), -(-rows // cfg.PACKED_TILE_ROWS))
    device = weight.tiles.device.index
    _pack_kernel("unpack_tiles", device).launch(grid, stream, [value.address for value in values])


def _add_rows(partial: int, sums: torch.Tensor, count: int, stream: int) -> None:
    """Add FP32 partial sums [count, n] at the address `partial` into `sums`."""
    values = (
        Packed(POINTER, partial),
        Packed(POINTER, sums.data_ptr()),
        Packed(INT, count),
        Packed(INT, sums.numel()),
    )
    grid = (-(-sums.numel() // 128), 1)
    _pack_kernel("add_rows", sums.device.index).launch(
        grid, stream, [value.address for value in values]
    )


class Launcher:
    """One problem on one device."""

    def __init__(self, problem: GemmProblem, config: HopperConfig, device: int) -> None:
        self.problem = problem
        self.config = config
        self.device = device
        self.areas = cfg.areas(problem, config)
        self.num_multiprocessors = multiprocessors(device)
        epilogue = problem.epilogue
        self.backward = epilogue.dact is not Activation.NONE
        self.aux_dtype = cfg.DTYPE_CODES[epilogue.aux_in or epilogue.aux_out]
        self.activation = ACTIVATIONS[epilogue.dact if self.backward else epilogue.activation]

    @functools.cached_property
    def folded_kernels(self) -> tuple[Kernel, Kernel]:
        """gemm_folded.cu as configured, and the form of it whose D needs no alignment."""
        config = self.config.folded
        return self._folded(config), self._folded(replace(config, plain=False))

    def _folded(self, config: FoldedConfig) -> Kernel:
        return cuda_driver.load(
            config.source,
            "gemm_folded",
            arch=HOPPER,
            device=self.device,
            threads=cfg.FOLDED_THREADS,
            shared_bytes=cfg.FOLDED_SHARED_BYTES,
        )

    @functools.cached_property
    def packed_kernel(self) -> Kernel:
        """The kernel for packed weights."""
        assert self.config.packed is not None
        return self._decoding(self.config.packed)

    @functools.cached_property
    def canonical_kernel(self) -> Kernel:
        """The kernel for canonical weights."""
        assert self.config.canonical is not None
        return self._decoding(self.config.canonical)

    def _decoding(self, config: PackedConfig | DecodedConfig) -> Kernel:
        return cuda_driver.load(
            config.source,
            config.name,
            arch=HOPPER,
            device=self.device,
            threads=config.threads,
            shared_bytes=config.shared_bytes,
        )

    def run(
        self,
        a: MXTensor | FoldedRows,
        b: MXTensor | FoldedRows | PackedWeight,
        out: torch.Tensor,
        args: EpilogueArgs,
    ) -> None:
        """Fold what is not prepared, multiply, finish; all in torch's current stream, on the
        current device.
        """
        decoder: PackedConfig | DecodedConfig | None = None
        if isinstance(b, PackedWeight):
            decoder = self.config.packed
        elif isinstance(b, MXTensor):
            decoder = self.config.canonical
        start = 0
        if self.areas.nbytes:
            workspace = torch.empty(self.areas.nbytes, dtype=torch.uint8, device=out.device)
            start = workspace.data_ptr()
        stream = cuda_driver.current_stream(self.device)
        sums = start + self.areas.sums if args.bias_grad is not None else 0
        epilogue = self._epilogue(out, args, sums)
        if decoder is not None:
            assert not isinstance(b, FoldedRows)
            self._run_decoded(decoder, a, b, epilogue, out, start, stream)
            sum_rows = decoder.sum_rows
        else:
            self._run_folded(a, b, epilogue, out, start, stream)
            sum_rows = cfg.FOLDED_SUM_ROWS
        if args.bias_grad is not None:
            _add_rows(sums, args.bias_grad, -(-self.problem.m // sum_rows), stream)

    def _run_decoded(
        self,
        config: PackedConfig | DecodedConfig,
        a: MXTensor | FoldedRows,
        b: MXTensor | PackedWeight,
        epilogue: tuple[float, ...],
        out: torch.Tensor,
        start: int,
        stream: int,
    ) -> None:
        """Multiply with a weight that the kernel decodes."""
        areas, m, n, k = self.areas, self.problem.m, self.problem.n, self.problem.k
        left, to_fold = _side(a, start + areas.a_folded, start + areas.a_powers)
        if to_fold:
            fold(to_fold, k, self.device, stream, pad=False)
        box = (config.tokens, cfg.TILE_K)
        map_a = cuda_driver.tensor_map(left[0], torch.uint8, m, k, k, box)
        if isinstance(b, PackedWeight):
            kernel, right = self.packed_kernel, b.addresses
        else:
            kernel = self.canonical_kernel
            right = (b.codes.data_ptr(), 0, b.scales.data_ptr(), 0)
        early = cfg.PACKED_EARLY_STAGES if to_fold else 0
        values = (right[0], left[1], right[1], left[2], right[2], m, n, k, early)
        arguments = Packed(PACKED_GEMM, *epilogue, *values)
        grid = min(-(-m // config.tokens) * -(-n // config.rows), self.num_multiprocessors)
        maps = [map_a]
        if isinstance(config, DecodedConfig):
            map_d = _output_map(out, m, n) if config.plain else None
            if config.plain and map_d is None:
                kernel = self._decoding(replace(config, plain=False))
            maps.append(map_d)
        addresses = [_NO_MAP if each is None else int(each.getPtr()) for each in maps]
        kernel.launch((grid, 1), stream, [*addresses, arguments.address], overlap=True)

    def _run_folded(
        self,
        a: MXTensor | FoldedRows,
        b: MXTensor | FoldedRows | PackedWeight,
        epilogue: tuple[float, ...],
        out: torch.Tensor,
        start: int,
        stream: int,
    ) -> None:
        """Multiply two folded operands; what is folded for it is folded in one launch, that the
        multiplication overlaps.
        """
        areas, problem = self.areas, self.problem
        left, to_fold = _side(a, start + areas.a_folded, start + areas.a_powers)
        if isinstance(b, PackedWeight):
            folded = start + areas.b_folded
            right = (folded, *b.addresses[1:])
            unpack(b, folded, problem.n, problem.k, stream)
        else:
            right, more = _side(b, start + areas.b_folded, start + areas.b_powers)
            to_fold += more
        tickets = start + areas.tickets if to_fold else 0
        if to_fold:
            count = self.num_multiprocessors
            fold(to_fold, problem.k, self.device, stream, tickets=tickets, num_tickets=count)
        self._multiply_folded(left, right, epilogue, out, stream, tickets)

    def _epilogue(self, out: torch.Tensor, args: EpilogueArgs, sums: int) -> tuple[float, ...]:
        """Return the fields of `Epilogue`."""
        problem, epilogue = self.problem, self.problem.epilogue
        aux = args.aux_in if self.backward else args.aux_out
        c, bias = args.c, args.bias
        return (
            out.data_ptr(),
            0 if c is None else c.data_ptr(),
            0 if aux is None else aux.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            sums,
            out.stride(0),
            0 if c is None else c.stride(0),
            0 if aux is None else aux.stride(0),
            args.alpha,
            args.beta,
            cfg.DTYPE_CODES[out.dtype],
            cfg.DTYPE_CODES[epilogue.c],
            self.aux_dtype,
            cfg.DTYPE_CODES[epilogue.bias],
            self.activation,
            self.backward,
            _paired(out) and _paired(c) and _paired(aux) and _paired(bias),
            problem.m,
            problem.n,
        )

    def _multiply_folded(
        self,
        left: Addresses,
        right: Addresses,
        epilogue: tuple[float, ...],
        out: torch.Tensor,
        stream: int,
        tickets: int,
    ) -> None:
        m, n, k = self.problem.m, self.problem.n, self.problem.k
        configured, unaligned = self.folded_kernels
        map_a = cuda_driver.tensor_map(left[0], torch.uint8, m, k, k, cfg.FOLDED_BOX)
        map_b = cuda_driver.tensor_map(right[0], torch.uint8, n, k, k, cfg.FOLDED_BOX)
        map_d, kernel = map_a, configured
        if self.config.folded.plain:
            map_d = _output_map(out, m, n)
            if map_d is None:
                map_d, kernel = map_a, unaligned
        arguments = Packed(
            FOLDED_GEMM,
            *epilogue,
            left[1],
            right[1],
            left[2],
            right[2],
            left[3],
            right[3],
            tickets,
            m,
            n,
            k,
        )
        tiles = -(-m // cfg.FOLDED_TILE) * -(-n // cfg.FOLDED_TILE)
        grid = self.num_multiprocessors if tickets else min(tiles, self.num_multiprocessors)
        addresses = [int(tensor_map.getPtr()) for tensor_map in (map_a, map_b, map_d)]
        kernel.launch((grid, 1), stream, [*addresses, arguments.address], overlap=bool(tickets))


def _side(
    operand: MXTensor | FoldedRows, folded: int, powers: int
) -> tuple[Addresses, list[tuple[MXTensor, int, int]]]:
    """Return where an operand's folded form is, and what must be folded for it to be there."""
    if isinstance(operand, MXTensor):
        scales = operand.scales
        return (folded, powers, scales.data_ptr(), scales.stride(0)), [(operand, folded, powers)]
    return operand.addresses, []


def _output_map(out: torch.Tensor, m: int, n: int) -> Any:
    """Return the map by which a 16-bit D leaves, or None where its rows are not aligned for it."""
    row_bytes = out.stride(0) * 2
    if out.data_ptr() % 16 or row_bytes % 16:
        return None
    return cuda_driver.tensor_map(out.data_ptr(), out.dtype, m, n, row_bytes, cfg.OUTPUT_BOX)


def _paired(tensor: torch.Tensor | None) -> bool:
    """Whether two neighbouring columns, the first one even, can be accessed at once."""
    if tensor is None:
        return True
    even_rows = tensor.dim() == 1 or tensor.shape[0] == 1 or tensor.stride(0) % 2 == 0
    return even_rows and tensor.data_ptr() % (2 * tensor.itemsize) == 0


def run(
    problem: GemmProblem,
    config: HopperConfig,
    a: MXTensor | FoldedRows,
    b: MXTensor | FoldedRows | PackedWeight,
    out: torch.Tensor,
    args: EpilogueArgs,
) -> None:
    """Compute D into `out`, in torch's current stream of its device."""
    device = out.device.index
    launcher = config.launchers.get(device)
    if launcher is None:
        launcher = config.launchers[device] = Launcher(problem, config, device)
    if torch.cuda.current_device() == device:
        launcher.run(a, b, out, args)
    else:
        with torch.cuda.device(device):
            launcher.run(a, b, out, args)
