"""A safetensors file of high-precision weights to a quantized checkpoint, with an account of it.

Tensors are read one at a time from the file; what stays in memory is the quantized result, about an
eighth of FP32 weights. Nothing is written before every tensor has been read and found sound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import torch

from mxgemm import fidelity
from mxgemm.atomic_write import check_folder_free
from mxgemm.checkpoints import compressed_tensors
from mxgemm.checkpoints.safetensors_file import Entry, SafetensorsFile, opened
from mxgemm.errors import CheckpointError
from mxgemm.fidelity import Fidelity
from mxgemm.formats import MXFP4
from mxgemm.quantizers import quantize
from mxgemm.quantizers.scale_rules import DEFAULT_RULE, RULES
from mxgemm.tensor import MXTensor

NOT_MULTIPLIED = ("*embed*", "*wte*", "*wpe*", "*lm_head*")
"""Names left alone unless included: tables that are looked up, and output heads, whose error shows
most."""

DTYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorReport:
    """What became of one quantized tensor.

    Attributes:
        name: its name in the source.
        shape: (rows, K).
        dtype: the source's dtype as safetensors calls it.
        fidelity: how much survived.
        bytes_before, bytes_after: its size in the source and in the checkpoint.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    fidelity: Fidelity
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """A tensor that was kept as it is, and why."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The account of one file.

    Attributes:
        rule: the scale rule.
        tensors: what was quantized.
        skipped: what was kept.
        warnings: what is suspicious.
    """

    rule: str
    tensors: tuple[TensorReport, ...]
    skipped: tuple[Skipped, ...]
    warnings: tuple[str, ...]

    @property
    def pooled(self) -> Fidelity:
        """All quantized tensors as one."""
        return reduce(add, (tensor.fidelity for tensor in self.tensors), Fidelity())

    @property
    def bytes_saved(self) -> int:
        """How much smaller the quantized tensors became."""
        return sum(tensor.bytes_before - tensor.bytes_after for tensor in self.tensors)


def quantize_file(
    source: str | Path,
    folder: str | Path,
    *,
    rule: str = DEFAULT_RULE,
    block_2d: bool = False,
    include: Sequence[str] = (),
    skip: Sequence[str] = (),
    force: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Report:
    """Write the checkpoint of a safetensors file to `folder` and return the account.

    Every 2-D float32, bfloat16 or float16 tensor with K a multiple of 32 is quantized along its
    last axis, except those that `NOT_MULTIPLIED` or `skip` names; all others are kept bit for bit.
    A `config.json` beside the source is carried over.

    Args:
        source: the safetensors file.
        folder: where the checkpoint goes.
        rule: scale rule.
        block_2d: one scale per 32 x 32 tile.
        include: name patterns (`*` and `?`) that lift the exceptions of `NOT_MULTIPLIED`.
        skip: name patterns of further tensors to keep.
        force: replace the checkpoint that `folder` holds.
        progress: called after each tensor with its name, elements done and elements in all.

    Raises:
        CheckpointError: the source is damaged, holds nothing to quantize or values that are not
            finite, `folder` may not be written, or a pattern of `include` or `skip` names nothing.
        ValueError: an unknown rule.
    """
    source, folder = Path(source), Path(folder)
    if rule not in RULES:
        raise ValueError(f"quantize: rule must be one of {RULES}, got {rule!r}")
    check_folder_free(folder, force=force)
    # A link's target must survive as well as the link.
    if folder.resolve() in (source.parent.resolve(), source.resolve().parent):
        raise CheckpointError(
            f"output {folder}: must not be the folder of the source; name another"
        )
    with opened(source) as file:
        reasons = _reasons(file, include, skip)
        config = _source_config(source.parent)
        total = sum(math.prod(entry.shape) for entry in file.entries.values())
        tensors: dict[str, MXTensor | torch.Tensor] = {}
        reports: list[TensorReport] = []
        done = 0
        for name, entry in file.entries.items():
            tensor = file.read(name)
            if reasons[name] is None:
                _check_finite(source, name, tensor)
                tensors[name] = quantize(tensor, rule=rule, block_2d=block_2d)
                reports.append(_report(name, entry, tensor, tensors[name]))
            else:
                tensors[name] = tensor
            done += math.prod(entry.shape)
            if progress is not None:
                progress(name, done, total)
        compressed_tensors.save(tensors, folder, config=config, metadata=file.metadata, force=force)
        skipped = tuple(
            Skipped(name, entry.shape, entry.dtype, reason)
            for name, entry in file.entries.items()
            if (reason := reasons[name]) is not None
        )
    return Report(
        rule=rule, tensors=tuple(reports), skipped=skipped, warnings=tuple(_warnings(tensors))
    )


def _reasons(
    file: SafetensorsFile, include: Sequence[str], skip: Sequence[str]
) -> dict[str, str | None]:
    """Return why each tensor is kept, None for those to quantize."""
    for option, patterns in (("include", include), ("skip", skip)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in file.entries):
                raise CheckpointError(f"{file.path}: --{option} {pattern!r} names no tensor")
    reasons = {name: _reason(name, entry, include, skip) for name, entry in file.entries.items()}
    if None not in reasons.values():
        counts = {reason: list(reasons.values()).count(reason) for reason in reasons.values()}
        listed = ", ".join(f"{count} {reason}" for reason, count in counts.items())
        raise CheckpointError(
            f"{file.path}: must hold a 2-D weight with K a multiple of {MXFP4.block}, got "
            f"{len(reasons)} tensors" + (f": {listed}" if listed else "")
        )
    return reasons


def _reason(name: str, entry: Entry, include: Sequence[str], skip: Sequence[str]) -> str | None:
    if len(entry.shape) != 2:
        return f"{len(entry.shape)}-D, not a matrix"
    if entry.dtype not in DTYPES:
        return f"dtype {entry.dtype}, not one of {', '.join(DTYPES)}"
    if 0 in entry.shape:
        return "empty"
    if entry.shape[1] % MXFP4.block:
        return f"K={entry.shape[1]}, not a multiple of {MXFP4.block}"
    if any(fnmatchcase(name, pattern) for pattern in skip):
        return "named by --skip"
    if any(fnmatchcase(name, pattern) for pattern in include):
        return None
    for pattern in NOT_MULTIPLIED:
        if fnmatchcase(name.lower(), pattern):
            return f"embedding or output head ({pattern}); --include takes it"
    return None


def _report(
    name: str, entry: Entry, source: torch.Tensor, tensor: MXTensor | torch.Tensor
) -> TensorReport:
    assert isinstance(tensor, MXTensor)
    return TensorReport(
        name=name,
        shape=entry.shape,
        dtype=entry.dtype,
        fidelity=fidelity.measure(source, tensor),
        bytes_before=source.nbytes,
        bytes_after=tensor.nbytes,
    )


def _warnings(tensors: dict[str, MXTensor | torch.Tensor]) -> list[str]:
    warnings = []
    for name, tensor in tensors.items():
        if isinstance(tensor, MXTensor):
            warnings += compressed_tensors.scale_warnings(name, tensor)
            if name.rpartition(".")[2] != "weight":
                warnings.append(f"{name}: not called 'weight'; other readers may not look for it")
    return warnings


def _check_finite(source: Path, name: str, tensor: torch.Tensor) -> None:
    finite = tensor.isfinite()
    if not bool(finite.all()):
        row, column = (~finite).nonzero()[0].tolist()
        raise CheckpointError(
            f"{source}: {name!r} must be finite, got {int((~finite).sum())} NaN or Inf, the first "
            f"at [{row}, {column}]; mend it, or keep it with --skip"
        )


def _source_config(folder: Path) -> dict[str, Any]:
    path = folder / compressed_tensors.CONFIG_FILE
    if not path.exists():
        return {}
    config = compressed_tensors.read_json(path)
    if config.get("quantization_config") is not None:
        raise CheckpointError(f"{path}: the model is quantized already; give its original weights")
    return config
