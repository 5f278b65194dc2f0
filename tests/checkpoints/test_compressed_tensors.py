"""mxfp4-pack-quantized: what is written is read back bit for bit, anything else is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import mxgemm
from hostile_files import HOSTILE_SAFETENSORS, write_all
from mxgemm import checkpoints
from mxgemm.checkpoints import compressed_tensors, load, load_tensor, save
from mxgemm.errors import CheckpointError
from mxgemm.tensor import MXTensor

pytestmark = pytest.mark.host


def weight(rows: int = 64, k: int = 128, seed: int = 0) -> torch.Tensor:
    """Random weights with a scale of their own for every row, so that swapped scales show."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.exp2(torch.randint(-9, 9, (rows, 1), generator=generator).float())
    return torch.randn(rows, k, generator=generator) * scale


def write_raw(folder: Path, tensors: dict[str, torch.Tensor], **quantization: Any) -> Path:
    """Write a checkpoint by hand, with changes to its quantization_config."""
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = compressed_tensors.quantization_config([]) | quantization
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return folder


def parts(rows: int = 4, k: int = 64) -> dict[str, torch.Tensor]:
    tensor = mxgemm.quantize(weight(rows, k))
    return {"fc.weight_packed": tensor.codes, "fc.weight_scale": tensor.scales}


def assert_same(found: MXTensor | torch.Tensor, expected: MXTensor) -> None:
    assert isinstance(found, MXTensor)
    assert found.shape == expected.shape
    assert torch.equal(found.codes, expected.canonical_codes())
    assert torch.equal(found.scales, expected.canonical_scales())


# --- Round trips ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rule", ["floor", "even", "ceil", "rceil", "search"])
def test_d56_every_written_tensor_is_read_back_bit_for_bit(
    tmp_path: Path, rule: str, dtype: torch.dtype
) -> None:
    expected = mxgemm.quantize(weight().to(dtype), rule=rule)
    bias = torch.randn(64).to(dtype)
    save({"fc.weight": expected, "fc.bias": bias}, tmp_path / "out")
    found = load(tmp_path / "out").tensors
    assert found.keys() == {"fc.weight", "fc.bias"}
    assert_same(found["fc.weight"], expected)
    assert isinstance(found["fc.bias"], torch.Tensor)
    assert torch.equal(found["fc.bias"], bias)
    assert_same(load_tensor(tmp_path / "out" / "model.safetensors", "fc.weight"), expected)


def test_d56_every_format_has_a_writer_and_a_reader() -> None:
    folder = Path(checkpoints.__file__).parent
    formats = [path.stem for path in folder.glob("*.py") if "FORMAT = " in path.read_text()]
    assert formats == ["compressed_tensors"]
    assert callable(compressed_tensors.save)
    assert callable(compressed_tensors.load)


def test_every_code_and_every_finite_scale_survives(tmp_path: Path) -> None:
    codes = torch.arange(16 * 255, dtype=torch.int64).view(255, 16).to(torch.uint8)
    scales = torch.arange(255, dtype=torch.uint8).view(255, 1)
    expected = MXTensor.from_parts(codes, scales)
    save({"w": expected}, tmp_path / "out")
    assert_same(load(tmp_path / "out").tensors["w"], expected)


def test_other_layouts_are_stored_canonically(tmp_path: Path) -> None:
    layout = mxgemm.OperandLayout.of("tile_16x16", "scale_32x8")
    expected = mxgemm.quantize(weight(), layout=layout)
    save({"fc.weight": expected}, tmp_path / "out")
    assert_same(load(tmp_path / "out").tensors["fc.weight"], expected)


def test_the_public_names_dtypes_and_nibble_order(tmp_path: Path) -> None:
    save({"fc.weight": mxgemm.quantize(torch.tensor([[0.5, 6.0, *[0.0] * 30]]))}, tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: (t.dtype, tuple(t.shape)) for name, t in stored.items()} == {
        "fc.weight_packed": (torch.uint8, (1, 16)),
        "fc.weight_scale": (torch.uint8, (1, 1)),
    }
    assert int(stored["fc.weight_packed"][0, 0]) == 0x71
    assert int(stored["fc.weight_scale"]) == 127


def test_tied_and_sliced_parameters_are_stored_each(tmp_path: Path) -> None:
    table = torch.randn(8, 48)
    tied = {"embed.weight": table, "head.weight": table, "first.weight": table[:3]}
    save({"fc.weight": mxgemm.quantize(weight()), **tied}, tmp_path / "out")
    found = load(tmp_path / "out").tensors
    for name, expected in tied.items():
        kept = found[name]
        assert isinstance(kept, torch.Tensor)
        assert torch.equal(kept, expected)


def test_the_source_configuration_is_kept_and_plain_matrices_are_ignored(tmp_path: Path) -> None:
    tensors = {"fc.weight": mxgemm.quantize(weight()), "embed.weight": torch.ones(3, 5)}
    save(tensors, tmp_path / "out", config={"hidden_size": 384})
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["hidden_size"] == 384
    assert config["quantization_config"]["ignore"] == ["embed"]
    assert config["quantization_config"]["format"] == "mxfp4-pack-quantized"


def test_files_of_an_index_are_read_together(tmp_path: Path) -> None:
    folder = write_raw(tmp_path / "out", parts())
    (folder / "model.safetensors").unlink()
    names = {key: f"model-0000{i + 1}-of-00002.safetensors" for i, key in enumerate(parts())}
    for key, name in names.items():
        save_file({key: parts()[key]}, folder / name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    assert_same(load(folder).tensors["fc.weight"], mxgemm.quantize(weight(4, 64)))
    index.write_text(json.dumps({"weight_map": {**names, "lost.weight": names["fc.weight_scale"]}}))
    with pytest.raises(CheckpointError, match=r"exactly the tensors of its files, 'lost\.weight'"):
        load(folder)
    index.write_text(json.dumps({"weight_map": {"fc.weight_packed": "../model.safetensors"}}))
    with pytest.raises(CheckpointError, match="must lie in the same folder"):
        load(folder)


@pytest.mark.parametrize("name", ["", "..", "shards"])
def test_an_index_names_files_and_never_folders(tmp_path: Path, name: str) -> None:
    inner = write_raw(tmp_path / "out", parts())
    (inner / "shards").mkdir()
    for folder, file_name in ((inner, name), (inner.parent, "out")):
        index = json.dumps({"weight_map": {"fc.weight_packed": file_name}})
        (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match="must lie in the same folder"):
        load(inner)


# --- Public bug reports ---


def test_d07_saved_scales_keep_their_exponent(tmp_path: Path) -> None:
    w = weight(64, 128)
    quantized = mxgemm.quantize(w)
    save({"fc.weight": quantized}, tmp_path / "out")
    found = load(tmp_path / "out").tensors["fc.weight"]
    assert isinstance(found, MXTensor)
    values = mxgemm.dequantize(found)
    assert torch.equal(values, mxgemm.dequantize(quantized))
    assert 0.9 <= float(values.abs().mean() / w.abs().mean()) <= 1.1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu])
@pytest.mark.parametrize("codes_dtype", [torch.uint8, torch.float4_e2m1fn_x2])
def test_d53_scale_dtype_variants_load_to_the_same_tensor(
    tmp_path: Path, dtype: torch.dtype, codes_dtype: torch.dtype
) -> None:
    expected = mxgemm.quantize(weight(4, 64))
    stored = {
        "fc.weight_packed": expected.codes.view(codes_dtype),
        "fc.weight_scale": expected.scales.view(dtype),
    }
    found = load(write_raw(tmp_path / "out", stored)).tensors["fc.weight"]
    assert_same(found, expected)
    assert torch.equal(mxgemm.dequantize(found), mxgemm.dequantize(expected))


def test_d54_bytes_below_127_do_not_wrap(tmp_path: Path) -> None:
    ones = torch.full((1, 16), 0x22, dtype=torch.uint8)
    stored = {
        "fc.weight_packed": ones,
        "fc.weight_scale": torch.tensor([[120]], dtype=torch.uint8),
    }
    found = load(write_raw(tmp_path / "out", stored)).tensors["fc.weight"]
    assert isinstance(found, MXTensor)
    assert mxgemm.dequantize(found).unique().tolist() == [0.0078125]


@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        ("fc.weight_scales", r"'fc\.weight_scale' is missing; unexpected 'fc\.weight_scales'"),
        (
            "fc.weight_scale_inv",
            r"'fc\.weight_scale' is missing; unexpected 'fc\.weight_scale_inv'",
        ),
        ("fc2.weight_scale", r"'fc\.weight_scale' is missing"),
    ],
)
def test_d55_renamed_scales_are_an_error(tmp_path: Path, renamed: str, message: str) -> None:
    stored = parts()
    stored[renamed] = stored.pop("fc.weight_scale")
    folder = write_raw(tmp_path / "out", stored)
    with pytest.raises(CheckpointError, match=message):
        load(folder)
    with pytest.raises(CheckpointError, match="missing"):
        load_tensor(folder / "model.safetensors", "fc.weight")


@pytest.mark.parametrize(
    "extra", ["fc.weight", "fc.weight_global_scale", "fc.weight_zero_point", "other.weight_scale"]
)
def test_d55_unexpected_keys_are_an_error(tmp_path: Path, extra: str) -> None:
    stored = parts() | {extra: torch.ones(4, 2, dtype=torch.uint8)}
    with pytest.raises(
        CheckpointError, match=f"{extra}' (beside|is unexpected)|unexpected '{extra}"
    ):
        load(write_raw(tmp_path / "out", stored))


@pytest.mark.parametrize(("byte", "kind"), [(0, "zero"), (127, "equal to 127")])
def test_d55_scales_that_never_differ_give_a_warning(
    tmp_path: Path, byte: int, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    stored = parts()
    stored["fc.weight_scale"] = torch.full((4, 2), byte, dtype=torch.uint8)
    found = load(write_raw(tmp_path / "out", stored))
    assert found.warnings == (f"fc.weight: all 8 scale bytes are {kind}; were they loaded?",)
    assert found.warnings[0] in caplog.text
    assert load(write_raw(tmp_path / "good", parts())).warnings == ()


def test_nan_blocks_give_a_warning(tmp_path: Path) -> None:
    stored = parts()
    stored["fc.weight_scale"][1, 1] = 255
    found = load(write_raw(tmp_path / "out", stored))
    assert found.warnings == ("fc.weight: 1 of 8 blocks are NaN",)
    tensor = found.tensors["fc.weight"]
    assert isinstance(tensor, MXTensor)
    assert int(mxgemm.dequantize(tensor).isnan().sum()) == 32


def test_d58_a_trained_model_is_saved_and_gives_the_same_logits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 32)
    x, target = torch.randn(8, 64), torch.randint(32, (8,))
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.5)
    torch.nn.functional.cross_entropy(linear(x), target).backward()
    optimizer.step()
    quantized = mxgemm.quantize(linear.weight)
    a = mxgemm.quantize(x)
    logits = mxgemm.gemm(a, quantized, bias=linear.bias.detach(), out_dtype=torch.float32)
    save({"weight": quantized, "bias": linear.bias}, tmp_path / "out")
    found = load(tmp_path / "out").tensors
    assert isinstance(found["weight"], MXTensor)
    assert isinstance(found["bias"], torch.Tensor)
    again = mxgemm.gemm(a, found["weight"], bias=found["bias"], out_dtype=torch.float32)
    assert torch.equal(again, logits)


# --- What is refused ---


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"rotation": mxgemm.Rotation(16)}, "a rotation"),
        ({"prescale": True}, "a prescale"),
        ({"pad": True}, "padding of K"),
    ],
)
def test_save_refuses_what_the_form_cannot_hold(
    tmp_path: Path, options: dict[str, Any], what: str
) -> None:
    tensor = mxgemm.quantize(weight(4, 48 if "pad" in options else 64), **options)
    with pytest.raises(CheckpointError, match=f"no place for {what}"):
        save({"fc.weight": tensor}, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"fc.weight": torch.ones(4, 32)}, "at least one tensor must be an MXTensor"),
        (
            {"fc.weight": mxgemm.quantize(torch.ones(4, 32)), "fc.weight_packed": torch.ones(1)},
            "two tensors want the name",
        ),
        (
            {"fc.weight": mxgemm.quantize(torch.ones(4, 32)), "up.weight_scale": torch.ones(1)},
            r"'up\.weight_scale' is unexpected",
        ),
    ],
    ids=["nothing-quantized", "collision", "orphan"],
)
def test_save_refuses_what_could_not_be_read_back(
    tmp_path: Path, tensors: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        save(tensors, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_save_replaces_only_with_force(tmp_path: Path) -> None:
    first, second = mxgemm.quantize(weight(seed=1)), mxgemm.quantize(weight(seed=2))
    save({"fc.weight": first}, tmp_path / "out")
    (tmp_path / "out" / "tokenizer.json").write_text("kept")
    with pytest.raises(CheckpointError, match="pass --force"):
        save({"fc.weight": second}, tmp_path / "out")
    assert_same(load(tmp_path / "out").tensors["fc.weight"], first)
    save({"fc.weight": second}, tmp_path / "out", force=True)
    assert_same(load(tmp_path / "out").tensors["fc.weight"], second)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "kept"


@pytest.mark.parametrize("name", HOSTILE_SAFETENSORS)
def test_load_refuses_a_hostile_file_in_one_line(tmp_path: Path, name: str) -> None:
    folder = write_raw(tmp_path / "out", parts())
    write_all(tmp_path)[name].replace(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="not a readable safetensors file") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_load_refuses_a_cut_file(tmp_path: Path) -> None:
    folder = write_raw(tmp_path / "out", parts())
    path = folder / "model.safetensors"
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "nvfp4-pack-quantized"}, "format must be 'mxfp4-pack-quantized', got 'nvfp4"),
        ({"quant_method": "quark"}, "quant_method must be 'compressed-tensors', got 'quark'"),
        ({"config_groups": {}}, "config_groups must describe the weights"),
        ({"config_groups": {"g": {"weights": None}}}, "g must describe its weights"),
        (
            {"config_groups": {"g": {"weights": {"num_bits": 8}}}},
            r"g weights\.num_bits must be 4, got 8",
        ),
    ],
    ids=["format", "method", "no-groups", "no-weights", "bits"],
)
def test_load_names_a_foreign_configuration(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(write_raw(tmp_path / "out", parts(), **change))


DEEP = (b"[" * 100_000, b'{"a": 1' + b"0" * 5_000 + b"}")
"""JSON that Python's parser gives up on: nested too deep, a number with too many digits."""


@pytest.mark.parametrize("content", [None, b"{", b"[]", b"{}", b"\xff\xfe", *DEEP])
def test_load_refuses_a_missing_or_damaged_configuration(
    tmp_path: Path, content: bytes | None
) -> None:
    folder = write_raw(tmp_path / "out", parts())
    path = folder / "config.json"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json: ") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("packed", "scale", "message"),
    [
        (torch.zeros(4, 32), torch.zeros(4, 2, dtype=torch.uint8), "must be one of .* got F32"),
        (torch.zeros(4, 32, dtype=torch.uint8), torch.ones(4, 2), "must be one of .* got F32"),
        (
            torch.zeros(4, 32, dtype=torch.uint8),
            torch.zeros(4, 1, dtype=torch.uint8),
            r"one scale per 32 of the 4 x 64 codes, got shape \[4, 1\]",
        ),
        (
            torch.zeros(4, 24, dtype=torch.uint8),
            torch.zeros(4, 1, dtype=torch.uint8),
            "one scale per 32 of the 4 x 48 codes",
        ),
        (
            torch.zeros(2, 4, 32, dtype=torch.uint8),
            torch.zeros(2, 4, 2, dtype=torch.uint8),
            "must be a matrix",
        ),
    ],
    ids=["float-codes", "float-scales", "too-few-scales", "odd-k", "3d"],
)
def test_load_refuses_parts_that_do_not_fit(
    tmp_path: Path, packed: torch.Tensor, scale: torch.Tensor, message: str
) -> None:
    stored = {"fc.weight_packed": packed, "fc.weight_scale": scale}
    with pytest.raises(CheckpointError, match=message):
        load(write_raw(tmp_path / "out", stored))


def test_load_refuses_a_checkpoint_without_quantized_tensors(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="must hold quantized tensors"):
        load(write_raw(tmp_path / "out", {"fc.weight": torch.ones(4, 32)}))


def test_load_keeps_ordinary_tensors_whose_names_look_alike(tmp_path: Path) -> None:
    plain = {"logit_scale": torch.ones(1), "head.bias_packed": torch.ones(3)}
    found = load(write_raw(tmp_path / "out", parts() | plain)).tensors
    assert found.keys() == {"fc.weight", *plain}


def test_load_tensor_of_a_plain_file_needs_no_configuration(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2, 32)}, tmp_path / "plain.safetensors")
    found = load_tensor(tmp_path / "plain.safetensors", "w")
    assert isinstance(found, torch.Tensor)
    with pytest.raises(CheckpointError, match="no tensor 'v'; it holds 'w'"):
        load_tensor(tmp_path / "plain.safetensors", "v")
