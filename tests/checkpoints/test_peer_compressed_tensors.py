"""The compressed-tensors package reads what we write, and we read what it writes, bit for bit."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import mxgemm
from mxgemm.checkpoints import load, save
from mxgemm.tensor import MXTensor

with warnings.catch_warnings():
    # The package and what it imports warn about their own dependencies.
    warnings.simplefilter("ignore")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.entrypoints.convert.converters import CompressedTensorsDequantizer
    from compressed_tensors.quantization import QuantizationConfig

pytestmark = pytest.mark.host

FORMAT = "mxfp4-pack-quantized"


def weight() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    scale = torch.exp2(torch.randint(-9, 9, (64, 1), generator=generator).float())
    return torch.randn(64, 128, generator=generator) * scale


def peer_scheme(folder: Path) -> Any:
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    parsed = QuantizationConfig.model_validate(config)
    assert parsed.format == FORMAT
    return parsed.config_groups["group_0"]


@pytest.mark.parametrize("rule", ["floor", "even", "ceil", "rceil", "search"])
def test_the_peer_decompresses_our_tensors_to_our_values(tmp_path: Path, rule: str) -> None:
    quantized = mxgemm.quantize(weight(), rule=rule)
    save({"fc.weight": quantized}, tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    parts = {name.removeprefix("fc."): tensor for name, tensor in stored.items()}
    peer = BaseCompressor.get_value_from_registry(FORMAT)
    found = peer.decompress(parts, peer_scheme(tmp_path / "out"))["weight"]
    # The peer decodes to bfloat16, which holds every one of these values exactly.
    assert torch.equal(found.float(), mxgemm.dequantize(quantized))


def test_the_peer_dequantizes_our_folder(tmp_path: Path) -> None:
    quantized = mxgemm.quantize(weight())
    plain = torch.randn(4, 48)
    save({"fc.weight": quantized, "embed.weight": plain}, tmp_path / "out")
    dequantizer = CompressedTensorsDequantizer(tmp_path / "out", dtype=torch.float32)
    found = dequantizer.validate(load_file(tmp_path / "out" / "model.safetensors"))
    assert found.keys() == {"fc.weight", "embed.weight"}
    assert torch.equal(found["fc.weight"], mxgemm.dequantize(quantized))
    assert torch.equal(found["embed.weight"], plain)


def test_we_read_what_the_peer_compresses(tmp_path: Path) -> None:
    expected = mxgemm.quantize(weight())
    save({"fc.weight": expected}, tmp_path / "ours")
    scheme = peer_scheme(tmp_path / "ours")
    peer = BaseCompressor.get_value_from_registry(FORMAT)
    scales = mxgemm.numerics.e8m0.decode(expected.scales)
    parts = peer.compress({"weight": weight(), "weight_scale": scales}, scheme)
    folder = tmp_path / "theirs"
    folder.mkdir()
    save_file(
        {f"fc.{name}": tensor for name, tensor in parts.items()}, folder / "model.safetensors"
    )
    config = QuantizationConfig(
        config_groups={"group_0": scheme}, format=FORMAT, quantization_status="compressed"
    ).model_dump(mode="json")
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    found = load(folder).tensors["fc.weight"]
    assert isinstance(found, MXTensor)
    assert torch.equal(found.scales, expected.scales)
    assert torch.equal(found.codes, expected.codes)
