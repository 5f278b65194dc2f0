"""A BERT encoder's forward pass in plain torch, with its linear layers handed in.

Architecture: Devlin et al., BERT (2018), post-normalisation; sentence vectors by the mean over real
tokens, as Sentence-BERT (2019) does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch.nn import functional


class Linears(Protocol):
    """Every linear layer of a model, called by its name."""

    def __call__(self, name: str, x: torch.Tensor, activation: str = "none") -> torch.Tensor:
        """Return activation(x @ weight.T + bias) of the layer `name`, float32 [..., N]."""


class FloatLinears:
    """The layers as they were trained."""

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        self._parameters = parameters

    def __call__(self, name: str, x: torch.Tensor, activation: str = "none") -> torch.Tensor:
        weight, bias = self._parameters[f"{name}.weight"], self._parameters[f"{name}.bias"]
        y = functional.linear(x, weight, bias)
        return functional.gelu(y) if activation == "gelu" else y


def sentence_vectors(
    parameters: Mapping[str, torch.Tensor],
    config: Mapping[str, Any],
    ids: torch.Tensor,
    mask: torch.Tensor,
    linear: Linears,
) -> torch.Tensor:
    """Return unit vectors of meaning, float32 [B, hidden_size].

    The model's pooler takes no part in them; it is run all the same, so that every linear layer is.

    Args:
        parameters: embeddings and layer norms by name.
        config: sizes, as published with the model.
        ids: int64 [B, T], token ids.
        mask: bool [B, T], true for real tokens.
        linear: the linear layers.
    """
    x = _embed(parameters, config, ids)
    for i in range(config["num_hidden_layers"]):
        x = _layer(parameters, config, f"encoder.layer.{i}", x, mask, linear)
    torch.tanh(linear("pooler.dense", x[:, 0]))
    weights = mask[:, :, None].float()
    mean = (x * weights).sum(dim=1) / weights.sum(dim=1)
    return functional.normalize(mean, dim=-1)


def _embed(
    parameters: Mapping[str, torch.Tensor], config: Mapping[str, Any], ids: torch.Tensor
) -> torch.Tensor:
    x = parameters["embeddings.word_embeddings.weight"][ids]
    x = x + parameters["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = x + parameters["embeddings.token_type_embeddings.weight"][0]
    return _norm(parameters, config, "embeddings.LayerNorm", x)


def _layer(
    parameters: Mapping[str, torch.Tensor],
    config: Mapping[str, Any],
    at: str,
    x: torch.Tensor,
    mask: torch.Tensor,
    linear: Linears,
) -> torch.Tensor:
    batch, tokens, hidden = x.shape
    heads = config["num_attention_heads"]
    query, key, value = (
        linear(f"{at}.attention.self.{part}", x).view(batch, tokens, heads, -1).transpose(1, 2)
        for part in ("query", "key", "value")
    )
    context = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask[:, None, None, :]
    )
    context = context.transpose(1, 2).reshape(batch, tokens, hidden)
    x = x + linear(f"{at}.attention.output.dense", context)
    x = _norm(parameters, config, f"{at}.attention.output.LayerNorm", x)
    inner = linear(f"{at}.intermediate.dense", x, activation=config["hidden_act"])
    x = x + linear(f"{at}.output.dense", inner)
    return _norm(parameters, config, f"{at}.output.LayerNorm", x)


def _norm(
    parameters: Mapping[str, torch.Tensor], config: Mapping[str, Any], at: str, x: torch.Tensor
) -> torch.Tensor:
    weight, bias = parameters[f"{at}.weight"], parameters[f"{at}.bias"]
    return functional.layer_norm(x, x.shape[-1:], weight, bias, config["layer_norm_eps"])
