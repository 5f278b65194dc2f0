"""Host side of the Hopper kernels: their arguments, their workspace, their order in the stream.

Everything that depends on the problem alone is worked out once, by `Launcher`; a call only fills in
addresses.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from mxgemm.backends.cuda_hopper import config as cfg
from mxgemm.backends.cuda_hopper.config import (
    DecodedConfig,
    FoldedConfig,
    FoldShape,
    HopperConfig,
    PackedConfig,
    round_up,
)
from mxgemm.epilogue import Activation, EpilogueArgs
from mxgemm.problem import GemmProblem
from mxgemm.runtime import cuda_driver
from mxgemm.runtime.cuda_driver import Launch, TensorMaps, multiprocessors
from mxgemm.runtime.nvrtc import HOPPER, Source
from mxgemm.tensor import MXTensor

# The parameters of the kernels: tensor maps, then a struct of the .cu file, field by field in its
# order; boxes are a RowBoxes of boxes.cuh, two maps; 4x is the padding that C adds.
_MAP, _BOXES = "128s", "256s"
_EPILOGUE = "5P3q2f9i4x"
FOLDED_GEMM = struct.Struct("@" + 2 * _BOXES + _MAP + _EPILOGUE + "4P2qP3i4x")
FOLDED_GEMM_OFFSETS = (0, 256, 512, 640)
_PACKED = _EPILOGUE + "5P4i"
PACKED_GEMM = struct.Struct("@" + _MAP + _PACKED)
PACKED_GEMM_OFFSETS = (0, 128)
DECODED_GEMM = struct.Struct("@" + _BOXES + _MAP + _PACKED)
DECODED_GEMM_OFFSETS = (0, 256, 384)
_NO_MAP = bytes(128)
"""In the place of a tensor map that the kernel does not read."""

FOLD = struct.Struct("@" + 2 * "4P2qi4x" + "P2i")
UNPACK, ADD_ROWS = struct.Struct("@PPii"), struct.Struct("@PPii")
TWO_POINTERS_TWO_INTS = (0, 8, 16, 20)
PACK = struct.Struct("@4P2q2i")
PACK_OFFSETS = (0, 8, 16, 24, 32, 40, 48, 52)

ACTIVATIONS = {
    Activation.NONE: 0,
    Activation.RELU: 1,
    Activation.GELU: 2,
    Activation.GELU_TANH: 3,
}
NOTHING_TO_FOLD = (0,) * 7


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
def fold_launch(device: int, shape: FoldShape) -> Launch:
    """Return the fold in this form."""
    threads = 32 * shape.block_warps
    kernel = cuda_driver.load(
        shape.source, "fold_rows", arch=HOPPER, device=device, threads=threads
    )
    return Launch(kernel, FOLD)


def fold(
    operands: list[tuple[MXTensor, int, int]],
    k: int,
    device: int,
    stream: int,
    *,
    tickets: int = 0,
    num_tickets: int = 0,
    for_decoder: bool = False,
) -> None:
    """Fold one or two operands in one launch.

    Args:
        operands: canonical tensors with the addresses of their folded bytes and of their powers.
        k: stored contraction.
        device: index of the device.
        stream: driver handle.
        tickets: address of int32 [num_tickets], zeroed for the GEMM that follows.
        num_tickets: how many.
        for_decoder: one operand, for a kernel that decodes the other: it wants no powers past the
            last row, and the fold may start while the kernel before still runs.
    """
    (tensor, folded, powers), *more = operands
    rows = tensor.rows
    codes_pitch, scales_pitch = k // 2, k // cfg.BLOCK
    first = (tensor.codes.data_ptr(), tensor.scales.data_ptr(), folded, powers)
    padded = rows if for_decoder else round_up(rows, cfg.POWERS_MULTIPLE)
    second = NOTHING_TO_FOLD
    if more:
        ((other, folded, powers),) = more
        padded += round_up(other.rows, cfg.POWERS_MULTIPLE)
        addresses = (other.codes.data_ptr(), other.scales.data_ptr(), folded, powers)
        second = (*addresses, codes_pitch, scales_pitch, other.rows)
    shape = cfg.fold_shape(padded, k)
    values = (*first, codes_pitch, scales_pitch, rows, *second, tickets, num_tickets, k)
    fold_launch(device, shape)(shape.grid(padded), stream, values, overlap=for_decoder)


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
def _pack_launch(name: str, device: int, layout: struct.Struct, offsets: tuple[int, ...]) -> Launch:
    source = Source(cfg.HERE / "pack.cu")
    kernel = cuda_driver.load(source, name, arch=HOPPER, device=device, threads=128)
    return Launch(kernel, layout, offsets)


def pack(tensor: MXTensor, k: int) -> PackedWeight:
    """Return the packed form of a canonical tensor."""
    device = tensor.codes.device
    rows = round_up(tensor.rows, cfg.POWERS_MULTIPLE)
    groups = -(-k // cfg.TILE_K)
    shape = (rows // cfg.PACKED_TILE_ROWS, groups, cfg.PACKED_TILE_BYTES)
    tiles = torch.empty(shape, dtype=torch.uint8, device=device)
    powers = torch.empty(rows, dtype=torch.int16, device=device)
    if rows and k:
        launch = _pack_launch("pack_tiles", device.index, PACK, PACK_OFFSETS)
        addresses = (t.data_ptr() for t in (tensor.codes, tensor.scales, tiles, powers))
        values = (*addresses, k // 2, k // cfg.BLOCK, tensor.rows, k)
        launch((rows // 4, 1), cuda_driver.current_stream(device.index), values)
    return PackedWeight(tiles, powers, tensor.scales)


def unpack(weight: PackedWeight, folded: int, rows: int, k: int, device: int, stream: int) -> None:
    """Write the folded bytes [rows, k] of a packed weight to the address `folded`."""
    groups = -(-k // cfg.TILE_K)
    grid = (-(-groups // 4), -(-rows // cfg.PACKED_TILE_ROWS))
    launch = _pack_launch("unpack_tiles", device, UNPACK, TWO_POINTERS_TWO_INTS)
    launch(grid, stream, (weight.addresses[0], folded, rows, k))


def _add_rows(partial: int, sums: torch.Tensor, count: int, device: int, stream: int) -> None:
    """Add FP32 partial sums [count, n] at the address `partial` into `sums`."""
    n = sums.numel()
    launch = _pack_launch("add_rows", device, ADD_ROWS, TWO_POINTERS_TWO_INTS)
    launch((-(-n // 128), 1), stream, (partial, sums.data_ptr(), count, n))


def _boxes(rows: int, k: int, *heights: int) -> TensorMaps:
    """Return the tensor maps of a folded operand for boxes of so many rows."""
    return TensorMaps(torch.uint8, rows, k, *((height, cfg.TILE_K) for height in heights))


class Decoding(NamedTuple):
    """A kernel that decodes the weight, the maps of its A and of an aligned D, and its grid."""

    config: PackedConfig | DecodedConfig
    launch: Launch
    boxes_a: TensorMaps
    maps_d: TensorMaps
    grid: tuple[int, int]


class Launcher:
    """One problem on one device."""

    def __init__(self, problem: GemmProblem, config: HopperConfig, device: int) -> None:
        self.problem = problem
        self.config = config
        self.device = device
        self.areas = cfg.areas(problem, config)
        self.num_multiprocessors = multiprocessors(device)
        self._unaligned: dict[DecodedConfig, Launch] = {}
        epilogue, m, n, k = problem.epilogue, problem.m, problem.n, problem.k
        self.backward = epilogue.dact is not Activation.NONE
        self.is_bare = all(t is None for t in (epilogue.c, epilogue.aux_in, epilogue.aux_out))
        self.is_bare = self.is_bare and epilogue.bias is None
        self.codes = (
            cfg.DTYPE_CODES[problem.out_dtype],
            cfg.DTYPE_CODES[epilogue.c],
            cfg.DTYPE_CODES[epilogue.aux_in or epilogue.aux_out],
            cfg.DTYPE_CODES[epilogue.bias],
            ACTIVATIONS[epilogue.dact if self.backward else epilogue.activation],
            self.backward,
        )
        tile_m = config.folded.tile_m
        self.tiles = -(-m // tile_m) * -(-n // cfg.FOLDED_TILE_N)
        self.boxes_a = _boxes(m, k, *config.folded.box_rows(m, tile_m))
        self.boxes_b = _boxes(n, k, *config.folded.box_rows(n, cfg.FOLDED_TILE_N))
        self.maps_d = TensorMaps(problem.out_dtype, m, n, cfg.FOLDED_OUTPUT_BOX)

    @functools.cached_property
    def folded(self) -> tuple[Launch, Launch]:
        """gemm_folded.cu as configured, and the form of it whose D needs no alignment."""
        config = self.config.folded
        return self._folded(config), self._folded(replace(config, plain=False))

    def _folded(self, config: FoldedConfig) -> Launch:
        kernel = cuda_driver.load(
            config.source,
            "gemm_folded",
            arch=HOPPER,
            device=self.device,
            threads=config.threads,
            shared_bytes=config.shared_bytes,
        )
        return Launch(kernel, FOLDED_GEMM, FOLDED_GEMM_OFFSETS)

    @functools.cached_property
    def packed(self) -> Decoding:
        """The kernel for packed weights."""
        assert self.config.packed is not None
        return self._decoding(self.config.packed)

    @functools.cached_property
    def canonical(self) -> Decoding:
        """The kernel for canonical weights."""
        assert self.config.canonical is not None
        return self._decoding(self.config.canonical)

    def _decoding(self, config: PackedConfig | DecodedConfig) -> Decoding:
        m, n, k = self.problem.m, self.problem.n, self.problem.k
        kernel = cuda_driver.load(
            config.source,
            config.name,
            arch=HOPPER,
            device=self.device,
            threads=config.threads,
            shared_bytes=config.shared_bytes,
        )
        if isinstance(config, DecodedConfig):
            launch = Launch(kernel, DECODED_GEMM, DECODED_GEMM_OFFSETS)
            boxes_a = _boxes(m, k, *cfg.box_rows(m, config.tokens))
        else:
            launch = Launch(kernel, PACKED_GEMM, PACKED_GEMM_OFFSETS)
            boxes_a = _boxes(m, k, m)  # all of A's rows are in one tile
        tiles = cfg.decoding_tiles(m, n, config.tokens, config.cluster)
        blocks = self.num_multiprocessors // config.cluster * config.cluster
        return Decoding(
            config,
            launch,
            boxes_a,
            TensorMaps(self.problem.out_dtype, m, n, cfg.DECODED_OUTPUT_BOX),
            (min(tiles, blocks), 1),
        )

    def _for_any_output(self, config: DecodedConfig) -> Launch:
        """Return the form of a decoding kernel whose D needs no alignment."""
        found = self._unaligned.get(config)
        if found is None:
            found = self._decoding(replace(config, plain=False)).launch
            self._unaligned[config] = found
        return found

    def __call__(
        self,
        a: MXTensor | FoldedRows,
        b: MXTensor | FoldedRows | PackedWeight,
        out: torch.Tensor,
        args: EpilogueArgs,
    ) -> None:
        """Compute D into `out`, in torch's current stream of its device."""
        if torch.cuda.current_device() == self.device:
            self._run(a, b, out, args)
        else:
            with torch.cuda.device(self.device):
                self._run(a, b, out, args)

    def _run(
        self,
        a: MXTensor | FoldedRows,
        b: MXTensor | FoldedRows | PackedWeight,
        out: torch.Tensor,
        args: EpilogueArgs,
    ) -> None:
        """Fold what is not prepared, multiply, finish; all in torch's current stream, on the
        current device.
        """
        start = 0
        if self.areas.nbytes:
            workspace = torch.empty(self.areas.nbytes, dtype=torch.uint8, device=out.device)
            start = workspace.data_ptr()
        stream = cuda_driver.current_stream(self.device)
        sums = start + self.areas.sums if args.bias_grad is not None else 0
        epilogue = self._epilogue(out, args, sums)
        if isinstance(b, PackedWeight) and self.config.packed is not None:
            self._run_decoded(self.packed, a, b.addresses, epilogue, start, stream)
            sum_rows = self.config.packed.sum_rows
        elif isinstance(b, MXTensor) and self.config.canonical is not None:
            right = (b.codes.data_ptr(), 0, b.scales.data_ptr(), 0)
            self._run_decoded(self.canonical, a, right, epilogue, start, stream)
            sum_rows = self.config.canonical.sum_rows
        else:
            self._run_folded(a, b, epilogue, start, stream)
            sum_rows = cfg.FOLDED_SUM_ROWS
        if args.bias_grad is not None:
            count = -(-self.problem.m // sum_rows)
            _add_rows(sums, args.bias_grad, count, self.device, stream)

    def _run_decoded(
        self,
        decoding: Decoding,
        a: MXTensor | FoldedRows,
        right: Addresses,
        epilogue: tuple[Any, ...],
        start: int,
        stream: int,
    ) -> None:
        """Multiply with a weight that the kernel decodes, and whose first tiles it asks for while
        the kernel before still runs.
        """
        areas, m, n, k = self.areas, self.problem.m, self.problem.n, self.problem.k
        left, to_fold = _side(a, k, start + areas.a_folded, start + areas.a_powers)
        if to_fold:
            fold(to_fold, k, self.device, stream, for_decoder=True)
        config, launch, boxes_a, maps_d, grid = decoding
        maps: tuple[bytes, ...] = (boxes_a.at(left[0], k),)
        if isinstance(config, DecodedConfig):
            map_d = _NO_MAP
            if config.plain:
                address, row_bytes = epilogue[0], epilogue[5] * 2
                if address % 16 == 0 and row_bytes % 16 == 0:
                    map_d = maps_d.at(address, row_bytes)
                else:
                    launch = self._for_any_output(config)
            maps = (*maps, map_d)
        early = cfg.PACKED_EARLY_STAGES if to_fold else 0
        values = (*maps, *epilogue, right[0], left[1], right[1], left[2], right[2], m, n, k, early)
        launch(grid, stream, values, overlap=True)

    def _run_folded(
        self,
        a: MXTensor | FoldedRows,
        b: MXTensor | FoldedRows | PackedWeight,
        epilogue: tuple[Any, ...],
        start: int,
        stream: int,
    ) -> None:
        """Multiply two folded operands; what is folded for it is folded in one launch, that the
        multiplication overlaps.
        """
        areas, n, k = self.areas, self.problem.n, self.problem.k
        left, to_fold = _side(a, k, start + areas.a_folded, start + areas.a_powers)
        if isinstance(b, PackedWeight):
            folded = start + areas.b_folded
            right = (folded, *b.addresses[1:])
            unpack(b, folded, n, k, self.device, stream)
        else:
            right, more = _side(b, k, start + areas.b_folded, start + areas.b_powers)
            to_fold += more
        tickets = start + areas.tickets if to_fold else 0
        if to_fold:
            count = self.num_multiprocessors
            fold(to_fold, k, self.device, stream, tickets=tickets, num_tickets=count)
        self._multiply_folded(left, right, epilogue, stream, tickets)

    def _epilogue(self, out: torch.Tensor, args: EpilogueArgs, sums: int) -> tuple[Any, ...]:
        """Return the fields of `Epilogue`."""
        m, n = self.problem.m, self.problem.n
        d, d_stride = out.data_ptr(), n if out.is_contiguous() else out.stride(0)
        paired = d % (2 * out.itemsize) == 0 and (d_stride % 2 == 0 or m == 1)
        if self.is_bare:
            parts = (d, 0, 0, 0, sums, d_stride, 0, 0)
        else:
            aux = args.aux_in if self.backward else args.aux_out
            c, bias = args.c, args.bias
            paired = paired and _paired(c) and _paired(aux) and _paired(bias)
            parts = (
                d,
                0 if c is None else c.data_ptr(),
                0 if aux is None else aux.data_ptr(),
                0 if bias is None else bias.data_ptr(),
                sums,
                d_stride,
                0 if c is None else c.stride(0),
                0 if aux is None else aux.stride(0),
            )
        return (*parts, args.alpha, args.beta, *self.codes, paired, m, n)

    def _multiply_folded(
        self,
        left: Addresses,
        right: Addresses,
        epilogue: tuple[Any, ...],
        stream: int,
        tickets: int,
    ) -> None:
        m, n, k = self.problem.m, self.problem.n, self.problem.k
        launch, unaligned = self.folded
        map_d = _NO_MAP
        if self.config.folded.plain:
            address, row_bytes = epilogue[0], epilogue[5] * 2
            if address % 16 == 0 and row_bytes % 16 == 0:
                map_d = self.maps_d.at(address, row_bytes)
            else:
                launch = unaligned
        values = (
            self.boxes_a.at(left[0], k),
            self.boxes_b.at(right[0], k),
            map_d,
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
        count = self.num_multiprocessors
        grid = (count if tickets or self.tiles > count else self.tiles, 1)
        launch(grid, stream, values, overlap=bool(tickets))


def _side(
    operand: MXTensor | FoldedRows, k: int, folded: int, powers: int
) -> tuple[Addresses, list[tuple[MXTensor, int, int]]]:
    """Return where an operand's folded form is, and what must be folded for it to be there."""
    if isinstance(operand, MXTensor):
        scales = operand.scales.data_ptr()
        return (folded, powers, scales, k // cfg.BLOCK), [(operand, folded, powers)]
    return operand.addresses, []


def _paired(tensor: torch.Tensor | None) -> bool:
    """Whether two neighbouring columns, the first one even, can be accessed at once."""
    if tensor is None:
        return True
    even_rows = tensor.dim() == 1 or tensor.shape[0] == 1 or tensor.stride(0) % 2 == 0
    return even_rows and tensor.data_ptr() % (2 * tensor.itemsize) == 0
