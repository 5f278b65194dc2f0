"""A file becomes a checkpoint with a true account of it, or nothing is written."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import mxgemm
from hostile_files import HOSTILE_SAFETENSORS, write_all
from mxgemm import fidelity
from mxgemm.checkpoints import load, quantize_file
from mxgemm.errors import CheckpointError
from mxgemm.tensor import MXTensor

pytestmark = pytest.mark.host


def model() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "embeddings.word.weight": torch.randn(10, 64, generator=generator),
        "layer.fc.weight": torch.randn(48, 64, generator=generator),
        "layer.fc.bias": torch.randn(48, generator=generator),
        "layer.half.weight": torch.randn(16, 96, generator=generator).half(),
        "layer.brain.weight": torch.randn(16, 32, generator=generator).bfloat16(),
        "layer.odd.weight": torch.randn(8, 48, generator=generator),
        "layer.ids.weight": torch.arange(64).view(2, 32),
        "layer.wide.weight": torch.randn(2, 32, generator=generator).double(),
        "layer.empty.weight": torch.ones(0, 32),
        "layer.conv.weight": torch.randn(2, 2, 32, generator=generator),
        "lm_head.weight": torch.randn(8, 32, generator=generator),
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source" / "model.safetensors"
    path.parent.mkdir()
    save_file(model(), path, metadata={"made_by": "test"})
    (path.parent / "config.json").write_text(json.dumps({"hidden_size": 64}))
    return path


def replace(path: Path, **tensors: torch.Tensor) -> None:
    save_file(model() | {name.replace("__", "."): t for name, t in tensors.items()}, path)


def test_the_account_is_true(source: Path, tmp_path: Path) -> None:
    report = quantize_file(source, tmp_path / "out", rule="floor")
    found = load(tmp_path / "out").tensors
    assert [tensor.name for tensor in report.tensors] == [
        name for name, tensor in found.items() if isinstance(tensor, MXTensor)
    ]
    for account in report.tensors:
        w, tensor = model()[account.name], found[account.name]
        assert isinstance(tensor, MXTensor)
        assert torch.equal(tensor.codes, mxgemm.quantize(w, rule="floor").codes)
        assert account.fidelity == fidelity.measure(w, tensor)
        assert account.bytes_before == w.numel() * w.element_size()
        assert account.bytes_after == w.numel() * 17 // 32
    assert report.bytes_saved == sum(t.bytes_before - t.bytes_after for t in report.tensors)
    assert report.pooled.elements == 48 * 64 + 16 * 96 + 16 * 32


def test_what_is_kept_is_kept_bit_for_bit_and_says_why(source: Path, tmp_path: Path) -> None:
    report = quantize_file(source, tmp_path / "out")
    found = load(tmp_path / "out").tensors
    reasons = {skipped.name: skipped.reason for skipped in report.skipped}
    for name in reasons:
        kept = found[name]
        assert isinstance(kept, torch.Tensor)
        assert kept.dtype == model()[name].dtype
        assert torch.equal(kept, model()[name])
    assert reasons == {
        "embeddings.word.weight": "embedding or output head (*embed*); --include takes it",
        "layer.fc.bias": "1-D, not a matrix",
        "layer.odd.weight": "K=48, not a multiple of 32",
        "layer.ids.weight": "dtype I64, not one of F32, F16, BF16",
        "layer.wide.weight": "dtype F64, not one of F32, F16, BF16",
        "layer.empty.weight": "empty",
        "layer.conv.weight": "3-D, not a matrix",
        "lm_head.weight": "embedding or output head (*lm_head*); --include takes it",
    }


def test_configuration_and_metadata_are_carried_over(source: Path, tmp_path: Path) -> None:
    quantize_file(source, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["hidden_size"] == 64
    assert "embeddings.word" in config["quantization_config"]["ignore"]
    assert b'"made_by":"test"' in (tmp_path / "out" / "model.safetensors").read_bytes()[:4096]


def test_include_and_skip_name_tensors(source: Path, tmp_path: Path) -> None:
    report = quantize_file(
        source, tmp_path / "out", include=["embeddings.*"], skip=["*half*", "*brain*"]
    )
    names = {tensor.name for tensor in report.tensors}
    assert names == {"embeddings.word.weight", "layer.fc.weight"}
    with pytest.raises(CheckpointError, match="--skip 'nothing' names no tensor"):
        quantize_file(source, tmp_path / "other", skip=["nothing"])


def test_scales_per_tile_serve_both_directions(source: Path, tmp_path: Path) -> None:
    quantize_file(source, tmp_path / "out", block_2d=True)
    tensor = load(tmp_path / "out").tensors["layer.fc.weight"]
    assert isinstance(tensor, MXTensor)
    transposed = mxgemm.quantize(model()["layer.fc.weight"].t()[:, :32], block_2d=True)
    values = mxgemm.dequantize(tensor)[:32].t()
    assert torch.equal(values, mxgemm.dequantize(transposed))


def test_progress_ends_at_the_total(source: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    quantize_file(source, tmp_path / "out", progress=lambda *step: seen.append(step))
    assert [step[0] for step in seen] == sorted(model())
    assert seen[-1][1] == seen[-1][2] == sum(tensor.numel() for tensor in model().values())


def test_suspicious_tensors_give_warnings(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"dead.weight": torch.zeros(2, 32), "w": torch.eye(64)}, path)
    report = quantize_file(path, tmp_path / "out")
    assert report.warnings == (
        "dead.weight: all 2 scale bytes are equal to 127; were they loaded?",
        "w: not called 'weight'; other readers may not look for it",
    )


# --- What is refused, before anything is written ---


def assert_refused(source: Path, message: str, folder: Path | None = None) -> None:
    folder = folder if folder is not None else source.parent.parent / "out"
    before = sorted(source.parent.parent.iterdir())
    with pytest.raises(CheckpointError, match=message) as caught:
        quantize_file(source, folder)
    assert "\n" not in str(caught.value)
    assert sorted(source.parent.parent.iterdir()) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_refused(source: Path, value: float) -> None:
    w = model()["layer.fc.weight"]
    w[3, 5] = value
    replace(source, layer__fc__weight=w)
    assert_refused(source, r"'layer\.fc\.weight' must be finite, got 1 NaN or Inf, .* at \[3, 5\]")


def test_missing_sources_are_refused(source: Path) -> None:
    assert_refused(source.with_name("none.safetensors"), "got no such file")


def test_a_folder_is_no_source(source: Path) -> None:
    with pytest.raises(CheckpointError, match="got a folder"):
        quantize_file(source.parent, source.parent.parent / "out")


@pytest.mark.parametrize("name", HOSTILE_SAFETENSORS)
def test_hostile_sources_are_refused(source: Path, name: str) -> None:
    write_all(source.parent)
    assert_refused(source.with_name(f"{name}.safetensors"), "not a readable safetensors file")


def test_a_file_without_weights_is_refused(source: Path) -> None:
    save_file({"a": torch.ones(3), "b": torch.ones(2, 33), "c": torch.ones(3)}, source)
    assert_refused(source, r"got 3 tensors: 2 1-D, not a matrix, 1 K=33, not a multiple of 32")
    save_file({}, source)
    assert_refused(source, "got 0 tensors")


def test_names_that_collide_are_refused(source: Path) -> None:
    replace(source, layer__fc__weight_packed=torch.ones(1))
    assert_refused(source, r"two tensors want the name 'layer\.fc\.weight_packed'")


def test_a_quantized_model_is_no_source(source: Path) -> None:
    source.with_name("config.json").write_text(json.dumps({"quantization_config": {}}))
    assert_refused(source, "the model is quantized already")


def test_a_damaged_configuration_is_refused(source: Path) -> None:
    source.with_name("config.json").write_text("{")
    assert_refused(source, "not readable as JSON")


def test_an_existing_output_is_kept_without_force(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    quantize_file(source, out, rule="even")
    before = (out / "model.safetensors").read_bytes()
    assert_refused(source, "pass --force", out)
    assert (out / "model.safetensors").read_bytes() == before
    quantize_file(source, out, rule="ceil", force=True)
    assert (out / "model.safetensors").read_bytes() != before


def test_the_sources_own_folder_is_no_output(source: Path) -> None:
    before = source.read_bytes()
    with pytest.raises(CheckpointError, match="must not be the folder of the source"):
        quantize_file(source, source.parent, force=True)
    assert source.read_bytes() == before


def test_a_source_behind_a_link_is_not_overwritten(source: Path, tmp_path: Path) -> None:
    before = source.read_bytes()
    link = tmp_path / "links" / "model.safetensors"
    link.parent.mkdir()
    link.symlink_to(source)
    with pytest.raises(CheckpointError, match="must not be the folder of the source"):
        quantize_file(link, source.parent, force=True)
    assert source.read_bytes() == before


KILLED_RUN = """
import sys, time
from pathlib import Path
from mxgemm.checkpoints import compressed_tensors, conversion

def hang(*args):
    print("there", flush=True)
    time.sleep(600)

def write_half_and_hang(tensors, path, metadata):
    Path(path).write_bytes(b"half")
    hang()

source, out, stage, force = sys.argv[1:]
if stage == "reading":
    conversion.quantize_file(source, out, progress=hang, force=bool(force))
compressed_tensors.save_file = write_half_and_hang
conversion.quantize_file(source, out, force=bool(force))
"""


@pytest.mark.parametrize("existing", [False, True], ids=["new", "existing"])
@pytest.mark.parametrize("stage", ["reading", "writing"])
def test_a_killed_run_leaves_the_output_as_it_was(
    source: Path, tmp_path: Path, stage: str, existing: bool
) -> None:
    out = tmp_path / "out"
    if existing:
        quantize_file(source, out, rule="ceil")
    before = {path.name: path.read_bytes() for path in out.glob("*")}
    arguments = [str(source), str(out), stage, "force" if existing else ""]
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_RUN, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert {path.name: path.read_bytes() for path in out.glob("*")} == before
    assert out.exists() == existing
    quantize_file(source, out, force=existing)
    assert load(out).warnings == ()
