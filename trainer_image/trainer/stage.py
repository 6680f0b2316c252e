"""One pipeline stage, cut from a transformers LlamaForCausalLM, with the names of its parameters kept.

The modules are transformers' own, so numerics are those of the model a user would train with it. A stage is
built on the meta device: whoever parallelises it gives storage to what this rank keeps. Attention never
crosses a document. The stage knows nothing of ranks or groups.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from trainer.config import ModelConfig

DTYPES = {"FP32": torch.float32, "FP64": torch.float64}


def llama_config(model: ModelConfig, vocabulary_size: int) -> LlamaConfig:
    """The transformers config of the whole model."""
    values = {**model.transformers_config, "vocab_size": vocabulary_size, "use_cache": False}
    values.pop("model_type")
    config = LlamaConfig(**values)
    config._attn_implementation = "sdpa"
    return config


class Stage(nn.Module):
    """Layers `first_layer`..`last_layer` (exclusive), with the embedding at the start or the head at the end.

    Forward takes token ids `[b, S]` (first stage) or hidden states `[b, S, hidden]`, and gives hidden
    states or logits `[b, S, vocabulary]` (last stage).
    """

    def __init__(self, whole: LlamaForCausalLM, first_layer: int, last_layer: int) -> None:
        super().__init__()
        self.config = whole.config
        self.is_first = first_layer == 0
        self.is_last = last_layer == whole.config.num_hidden_layers
        self.model = nn.Module()
        if self.is_first:
            self.model.embed_tokens = whole.model.embed_tokens
        self.model.layers = nn.ModuleDict(
            {str(i): whole.model.layers[i] for i in range(first_layer, last_layer)}
        )
        if self.is_last:
            self.model.norm = whole.model.norm
            self.lm_head = whole.lm_head
        # Not a part of the whole model's state, and needed by each stage: computed, never restored.
        with torch.device("cpu"):
            self.model.rotary_emb = LlamaRotaryEmbedding(whole.config)

    @property
    def layers(self) -> list[nn.Module]:
        return list(self.model.layers.values())

    def forward(
        self, inputs: torch.Tensor, position_ids: torch.Tensor, document_ids: torch.Tensor
    ) -> torch.Tensor:
        hidden = self.model.embed_tokens(inputs) if self.is_first else inputs
        mask = document_mask(document_ids)
        positions = self.model.rotary_emb(hidden, position_ids=position_ids)
        for layer in self.model.layers.values():
            hidden = layer(
                hidden, attention_mask=mask, position_embeddings=positions, position_ids=position_ids
            )
        return self.lm_head(self.model.norm(hidden)) if self.is_last else hidden


def document_mask(document_ids: torch.Tensor) -> torch.Tensor | None:
    """Where attention may look: `[b, 1, S, S]` bool, causal within each document.

    None when each row is one document: plain causal attention says the same, and is faster.
    """
    if bool((document_ids == document_ids[:, :1]).all()):
        return None
    same = document_ids[:, :, None] == document_ids[:, None, :]
    return same.tril_().unsqueeze(1)


def build_stage(
    config: LlamaConfig, index: int, stages: int, dtype: torch.dtype, *, float64_norms: bool
) -> Stage:
    """Stage `index` of `stages`, on the meta device.

    transformers' RMS norm computes in float32 at any precision. A rounding in the last digit of float64, as
    any change of the layout brings, then turns now and then into one of float32, and grows: `float64_norms`
    avoids it.
    """
    with torch.device("meta"):
        whole = LlamaForCausalLM(config)
        if float64_norms:
            _replace_norms(whole)
        whole.to(dtype)
    per_stage = config.num_hidden_layers // stages
    return Stage(whole, index * per_stage, (index + 1) * per_stage)


def _replace_norms(model: nn.Module) -> None:
    for name, module in list(model.named_modules()):
        if isinstance(module, LlamaRMSNorm):
            owner, _, attribute = name.rpartition(".")
            norm = nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon)
            setattr(model.get_submodule(owner), attribute, norm)
