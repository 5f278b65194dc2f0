"""The public form `mxfp4-pack-quantized` of the compressed-tensors family: writer and reader.

A quantized parameter `<module>.weight` [N, K] is stored as two tensors,

    <module>.weight_packed   uint8 [N, K/2]    E2M1 codes, low nibble = even k, -0 kept
    <module>.weight_scale    uint8 [N, K/32]   E8M0 bytes, value 2^(byte - 127)

and `config.json` says so under `quantization_config`. Scales stored as F8_E8M0 and codes stored as
F4 hold the same bytes and are read as well. Nothing else about a tensor is kept: the name of its
scale rule is not, and a rotation or a prescale has no place in the form, so the writer refuses it.

The reader is strict: codes without scales, scales without codes, a sibling that it does not know
and would have to ignore, shapes and dtypes that do not fit are errors. Tensors that are not
quantized pass through as they are.
Source: the compressed-tensors package, its `mxfp4` compressor and quantization config.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from mxgemm.atomic_write import current_umask, output_folder
from mxgemm.checkpoints.safetensors_file import Entry, SafetensorsFile, opened
from mxgemm.errors import CheckpointError
from mxgemm.formats import MXFP4
from mxgemm.numerics import e8m0
from mxgemm.tensor import CANONICAL, CODES_PER_BYTE, MXTensor

logger = logging.getLogger("mxgemm")

FORMAT = "mxfp4-pack-quantized"
METHOD = "compressed-tensors"
CODES, SCALES = "_packed", "_scale"
"""Suffixes of a quantized parameter's two tensors."""

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
OWNED_FILES = (WEIGHTS_FILE, INDEX_FILE, "model-*-of-*.safetensors")
"""What a new checkpoint replaces in a folder that holds an old one, besides its configuration."""

CODE_DTYPES = ("U8", "F4")
SCALE_DTYPES = ("U8", "F8_E8M0")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint.

    Attributes:
        tensors: every parameter under its own name: MXTensor where it is quantized, else the tensor
            as stored.
        config: the content of config.json.
        warnings: what is legal but suspicious: scales that are all equal or all zero, NaN blocks.
    """

    tensors: dict[str, MXTensor | torch.Tensor]
    config: dict[str, Any]
    warnings: tuple[str, ...]


def save(
    tensors: Mapping[str, MXTensor | torch.Tensor],
    folder: str | Path,
    *,
    config: Mapping[str, Any] | None = None,
    metadata: Mapping[str, str] | None = None,
    force: bool = False,
) -> None:
    """Write a folder with `model.safetensors` and `config.json`, whole or not at all.

    Args:
        tensors: parameters by name; an MXTensor is quantized, anything else is kept as it is.
        folder: where; made when missing.
        config: content of config.json to add the quantization to.
        metadata: text pairs for the header of the safetensors file.
        force: replace the checkpoint that `folder` already holds.

    Raises:
        CheckpointError: nothing is quantized, the form cannot hold a tensor (rotation, prescale, K
            that is no whole number of blocks), two tensors want one name, or `folder` holds files
            and `force` is not set.

    Example:
        >>> import tempfile, torch, mxgemm
        >>> from mxgemm.checkpoints import load, save
        >>> with tempfile.TemporaryDirectory() as place:
        ...     save({"fc.weight": mxgemm.quantize(torch.ones(4, 64))}, f"{place}/model")
        ...     load(f"{place}/model").tensors["fc.weight"]
        MXTensor(mxfp4 4x64 on cpu, row_major+row_major)
    """
    if not any(isinstance(tensor, MXTensor) for tensor in tensors.values()):
        raise CheckpointError(f"save {folder}: at least one tensor must be an MXTensor, got none")
    stored: dict[str, torch.Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        for key, part in _stored_parts(name, tensor).items():
            if key in stored:
                raise CheckpointError(f"save {folder}: two tensors want the name {key!r}")
            # Tied parameters are stored twice: a safetensors file knows no aliases.
            pointer = part.untyped_storage().data_ptr()
            stored[key] = part.clone() if pointer in memory else part
            memory.add(pointer)
    plain_matrices = [
        name
        for name, tensor in tensors.items()
        if isinstance(tensor, torch.Tensor) and tensor.dim() == 2
    ]
    full_config = {**(config or {}), "quantization_config": quantization_config(plain_matrices)}
    with output_folder(Path(folder), force=force, owned=OWNED_FILES, marker=CONFIG_FILE) as staging:
        weights = staging / WEIGHTS_FILE
        save_file(stored, weights, metadata={"format": "pt", **(metadata or {})})
        with opened(weights) as file:
            _names(file.entries, Path(folder))
        # safetensors makes its files private; these take the permissions of any new file.
        weights.chmod(0o666 & ~current_umask())
        (staging / CONFIG_FILE).write_text(json.dumps(full_config, indent=2) + "\n")


def quantization_config(plain_matrices: Iterable[str]) -> dict[str, Any]:
    """Return the `quantization_config` of a checkpoint: weights in MXFP4, activations as the
    consumer likes.

    Args:
        plain_matrices: names of the 2-D parameters that are not quantized; modules among them are
            listed to be left alone.
    """
    suffix = ".weight"
    modules = [name.removesuffix(suffix) for name in plain_matrices if name.endswith(suffix)]
    return {
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "float",
                    "symmetric": True,
                    "group_size": MXFP4.block,
                    "strategy": "group",
                    "dynamic": False,
                    "scale_dtype": "torch.uint8",
                },
                "input_activations": None,
                "output_activations": None,
            }
        },
        "quant_method": METHOD,
        "format": FORMAT,
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "ignore": sorted(modules),
    }


def load(path: str | Path) -> Checkpoint:
    """Return the checkpoint at `path`, every tensor in memory; quantized ones bit for bit.

    Args:
        path: the folder, or the safetensors file in it. Files listed by an index are read together.

    Raises:
        CheckpointError: a file is missing or damaged, the configuration is not of this form, or
            names, shapes and dtypes break the form's rules.
    """
    with ExitStack() as stack:
        folder, stored = _open(Path(path), stack)
        config = _read_config(folder)
        names = _names({key: file.entries[key] for key, file in stored.items()}, Path(path))
        tensors = {name: _read(keys, stored) for name, keys in sorted(names.items())}
    warnings = [
        warning
        for name, tensor in tensors.items()
        if isinstance(tensor, MXTensor)
        for warning in scale_warnings(name, tensor)
    ]
    for warning in warnings:
        logger.warning("%s: %s", path, warning)
    return Checkpoint(tensors, config, tuple(warnings))


def load_tensor(path: str | Path, name: str) -> MXTensor | torch.Tensor:
    """Return one tensor of a safetensors file by its own name, quantized or not.

    A file without quantized tensors needs no configuration beside it.

    Raises:
        CheckpointError: as `load`, or the file has no such tensor.
    """
    path = Path(path)
    with opened(path) as file:
        keys: tuple[str, ...] = (name,)
        if name not in file.entries and name + CODES in file.entries:
            _read_config(path.parent)
            keys = _check_parts(name, file.entries, path)
        return _read(keys, dict.fromkeys(keys, file))


def scale_warnings(name: str, tensor: MXTensor) -> list[str]:
    """Return what is suspicious about a tensor's scales: they never differ, or some are NaN."""
    scales = tensor.canonical_scales()
    if not scales.numel():
        return []
    warnings = []
    low, high = int(scales.min()), int(scales.max())
    if low == high and scales.numel() > 1:
        kind = "zero" if low == 0 else f"equal to {low}"
        warnings.append(f"{name}: all {scales.numel()} scale bytes are {kind}; were they loaded?")
    if high == e8m0.NAN:
        count = int((scales == e8m0.NAN).sum())
        warnings.append(f"{name}: {count} of {scales.numel()} blocks are NaN")
    return warnings


def _stored_parts(name: str, tensor: MXTensor | torch.Tensor) -> dict[str, torch.Tensor]:
    if not isinstance(tensor, MXTensor):
        return {name: tensor.detach().cpu().contiguous()}
    for what, value, plain in (
        ("a rotation", tensor.rotation, None),
        ("a prescale", tensor.prescale, 1.0),
        ("padding of K", tensor.stored_k, tensor.k),
    ):
        if value != plain:
            raise CheckpointError(
                f"save {name}: {FORMAT} has no place for {what}, got {value}; quantize without it"
            )
    tensor = tensor.relayout(CANONICAL).to("cpu")
    return {name + CODES: tensor.codes.contiguous(), name + SCALES: tensor.scales.contiguous()}


def _open(path: Path, stack: ExitStack) -> tuple[Path, dict[str, SafetensorsFile]]:
    """Return the checkpoint's folder and which open file holds which stored tensor."""
    if not path.is_dir():
        file = stack.enter_context(opened(path))
        return path.parent, dict.fromkeys(file.entries, file)
    index_path = path / INDEX_FILE
    if not index_path.exists():
        return path, _open(path / WEIGHTS_FILE, stack)[1]
    index = read_json(index_path).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
        raise CheckpointError(f"{index_path}: weight_map must map tensors to file names")
    stored: dict[str, SafetensorsFile] = {}
    for file_name in sorted(set(index.values())):
        if Path(file_name).name != file_name or (path / file_name).is_dir():
            raise CheckpointError(
                f"{index_path}: files must lie in the same folder, got {file_name!r}"
            )
        stored |= _open(path / file_name, stack)[1]
    odd = sorted(set(stored) ^ set(index))
    if odd:
        raise CheckpointError(
            f"{index_path}: must list exactly the tensors of its files, {odd[0]!r} differs"
        )
    return path, stored


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    config = read_json(path)
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        raise CheckpointError(f"{path}: quantization_config is missing; is the model quantized?")
    for key, expected in (("quant_method", METHOD), ("format", FORMAT)):
        if quantization.get(key) != expected:
            raise CheckpointError(
                f"{path}: {key} must be {expected!r}, got {quantization.get(key)!r}"
            )
    groups = quantization.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise CheckpointError(f"{path}: config_groups must describe the weights, got {groups!r}")
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            raise CheckpointError(f"{path}: {name} must describe its weights, got {group!r}")
        required = {"num_bits": 4, "type": "float", "group_size": MXFP4.block, "symmetric": True}
        for key, value in required.items():
            if weights.get(key) != value:
                raise CheckpointError(
                    f"{path}: {name} weights.{key} must be {value!r}, got {weights.get(key)!r}"
                )
    return config


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds.

    Raises:
        CheckpointError: no such file, no JSON, or no object.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; a checkpoint needs it beside its tensors")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: must hold a JSON object, got {type(content).__name__}")
    return content


def _names(entries: Mapping[str, Entry], where: Path) -> dict[str, tuple[str, ...]]:
    """Return each parameter's stored tensors, (codes, scales) or the one it is, after every check
    that headers allow.
    """
    names: dict[str, tuple[str, ...]] = {}
    for key, entry in entries.items():
        base = key.removesuffix(CODES)
        if base != key and entry.dtype in CODE_DTYPES:
            names[base] = _check_parts(base, entries, where)
    quantized = {key for keys in names.values() for key in keys}
    for key in sorted(entries.keys() - quantized):
        _check_not_orphan(key, entries[key], where)
        names[key] = (key,)
    if not quantized:
        raise CheckpointError(f"{where}: must hold quantized tensors (<name>{CODES}), got none")
    return names


def _check_parts(base: str, entries: Mapping[str, Entry], where: Path) -> tuple[str, str]:
    """Return the keys of codes and scales of `base`; raise unless they fit each other and nothing
    stands beside them.
    """
    keys = base + CODES, base + SCALES
    codes, scales = entries[keys[0]], entries.get(keys[1])
    unknown = [base] if base in entries else []
    if base.endswith("weight"):
        unknown += sorted(k for k in entries if k.startswith(base + "_") and k not in keys)
    listed = ", ".join(map(repr, unknown))
    if scales is None:
        found = f"; unexpected {listed} instead" if unknown else ""
        raise CheckpointError(f"{where}: {keys[1]!r} is missing{found}")
    if unknown:
        raise CheckpointError(f"{where}: unexpected {listed} beside {keys[0]!r}")
    if scales.dtype not in SCALE_DTYPES:
        raise CheckpointError(
            f"{where}: {keys[1]!r} must be one of {SCALE_DTYPES}, got {scales.dtype}"
        )
    if len(codes.shape) != 2:
        raise CheckpointError(
            f"{where}: {keys[0]!r} must be a matrix, got shape {list(codes.shape)}"
        )
    rows, k = codes.shape
    k *= 1 if codes.dtype == "F4" else CODES_PER_BYTE
    if k % MXFP4.block or scales.shape != (rows, k // MXFP4.block):
        raise CheckpointError(
            f"{where}: {keys[1]!r} must hold one scale per {MXFP4.block} of the {rows} x {k} "
            f"codes, got shape {list(scales.shape)}"
        )
    return keys


def _check_not_orphan(key: str, entry: Entry, where: Path) -> None:
    if key.endswith("weight" + CODES):
        raise CheckpointError(f"{where}: {key!r} must be one of {CODE_DTYPES}, got {entry.dtype}")
    if key.endswith(SCALES) and (key.endswith("weight" + SCALES) or entry.dtype in SCALE_DTYPES):
        raise CheckpointError(
            f"{where}: {key!r} is unexpected without {key.removesuffix(SCALES) + CODES!r}"
        )


def _read(keys: tuple[str, ...], stored: Mapping[str, SafetensorsFile]) -> MXTensor | torch.Tensor:
    parts = [stored[key].read(key) for key in keys]
    if len(parts) == 1:
        return parts[0]
    return MXTensor.from_parts(parts[0], parts[1])
