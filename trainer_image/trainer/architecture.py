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
from trainer.norms import replace_norms
from trainer.short_attention import FUSED
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
    config._attn_implementation = FUSED
    return config


def family_of(config: PretrainedConfig) -> Family:
    return FAMILIES[config.model_type]


def empty_model(config: PretrainedConfig, dtype: torch.dtype, *, float64_norms: bool) -> PreTrainedModel:
    """The whole model on the meta device. `float64_norms`: its norms compute in float64, see `norms.py`."""
    family = family_of(config)
    with torch.device("meta"):
        whole = AutoModelForCausalLM.from_config(config, attn_implementation=config._attn_implementation)
        if float64_norms or dtype == torch.float32:
            replace_norms(whole, centred=family.centred_norms)
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
