"""The whole model as transformers builds it, empty: its config, and the two replacements that cutting needs.

Everything is built on the meta device, so it costs no memory; stages are cut from it (`stage.py`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from trainer.families import FAMILIES, Family
from trainingrun.protocol import families as shapes

# transformers loads a family's modules when a model of it is first built. A rank is a fork of a server that has
# imported this: it must not pay for that at each start.
for _kind in FAMILIES:
    importlib.import_module(f"transformers.models.{_kind}.modeling_{_kind}")


def transformers_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """`spec.model.config` as transformers takes it. No row of the embedding is special unless it is said."""
    values = {"pad_token_id": None, **given}
    values["tie_word_embeddings"] = shapes.tied_embeddings(given)
    if given["model_type"] == "gpt2":
        values["n_inner"] = values.pop("intermediate_size")
    return values


def model_config(given: Mapping[str, Any], vocabulary_size: int) -> PretrainedConfig:
    """The transformers config of the whole model."""
    special = {"bos_token_id": None, "eos_token_id": None}
    values = special | transformers_values(given) | {"vocab_size": vocabulary_size, "use_cache": False}
    config = AutoConfig.for_model(**values)
    config._attn_implementation = "sdpa"
    return config


def family_of(config: PretrainedConfig) -> Family:
    return FAMILIES[config.model_type]


def empty_model(config: PretrainedConfig, dtype: torch.dtype, *, float64_norms: bool) -> PreTrainedModel:
    """The whole model on the meta device.

    transformers' RMS norms compute in float32 at any precision. A rounding in the last digit of float64, as
    any change of the layout brings, then turns now and then into one of float32, and grows: `float64_norms`
    avoids it.
    """
    family = family_of(config)
    with torch.device("meta"):
        whole = AutoModelForCausalLM.from_config(config, attn_implementation=config._attn_implementation)
        if float64_norms:
            _replace_norms(whole, centred=family.centred_norms)
        for layer in layers_of(whole, family):
            for name in family.fused:
                owner, _, attribute = name.rpartition(".")
                conv = layer.get_submodule(name)
                setattr(layer.get_submodule(owner), attribute, FusedColumns(conv))
        whole.to(dtype)
    whole.train()
    return whole


def layers_of(whole: nn.Module, family: Family) -> list[nn.Module]:
    return list(whole.get_submodule(f"{family.root}.{family.layers}").children())


class FusedColumns(nn.Module):
    """transformers' Conv1D of queries, keys and values, with a dim for which of the three it is."""

    def __init__(self, conv: Conv1D) -> None:
        super().__init__()
        inputs, outputs = conv.weight.shape
        self.weight = nn.Parameter(torch.empty(inputs, 3, outputs // 3))
        self.bias = nn.Parameter(torch.empty(3, outputs // 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.weight.flatten(1) + self.bias.flatten()


class CentredRMSNorm(nn.Module):
    """Gemma's norm, in the precision of its input."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self._epsilon = epsilon

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(inputs.square().mean(-1, keepdim=True) + self._epsilon)
        return inputs * scale * (1.0 + self.weight)


def _replace_norms(model: nn.Module, *, centred: bool) -> None:
    for name, module in list(model.named_modules()):
        if not type(module).__name__.endswith("RMSNorm"):
            continue
        size = module.weight.shape[0]
        epsilon = module.eps if centred else module.variance_epsilon
        owner, _, attribute = name.rpartition(".")
        norm = CentredRMSNorm(size, epsilon) if centred else nn.RMSNorm(size, eps=epsilon)
        setattr(model.get_submodule(owner), attribute, norm)
