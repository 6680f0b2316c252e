"""The pipeline stages of a rank, cut from a transformers model, with the names of their parameters kept.

The modules are transformers' own, so numerics are those of the model a user would train with it. A stage is
built on the meta device: whoever parallelises it gives storage to what this rank keeps. The stage knows of ranks
only the group that its attention gathers from.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from trainer.architecture import empty_model, family_of
from trainer.attention import OVER_CONTEXT, attention_mask, window_of
from trainer.mesh import Axes


class Stage(nn.Module):
    """Layers `first_layer`..`last_layer` (exclusive), with the embedding at the start or the head at the end.

    Forward takes token ids `[b, T]` (first stage) or hidden states `[b, T, hidden]`, and gives hidden
    states or logits `[b, T, vocabulary]` (last stage). T are the tokens of this rank of the context axis, whereas
    `document_ids` `[b, S]` are those of the whole sequence. Where tensor ranks share the tokens of hidden states,
    these have the `tokens` of this rank only, between layers and stages.
    """

    def __init__(
        self,
        whole: PreTrainedModel,
        first_layer: int,
        last_layer: int,
        *,
        context: Context | None = None,
        tokens: slice | None = None,
    ) -> None:
        super().__init__()
        self.config = whole.config
        self.family = family_of(whole.config)
        self.is_first = first_layer == 0
        self.is_last = last_layer == whole.config.num_hidden_layers
        self.compute_dtype = whole.dtype  # of activations, whatever the parameters are kept in
        self._context = context
        self.tokens = tokens
        self._windows = {layer: window_of(whole.config, layer) for layer in range(first_layer, last_layer)}
        source, family = whole.get_submodule(self.family.root), self.family
        body = nn.Module()
        setattr(self, family.root, body)
        if self.is_first:
            for name in (family.embedding, family.positions, family.embedding_dropout):
                if name:
                    setattr(body, name, source.get_submodule(name))
        layers = source.get_submodule(family.layers)
        setattr(body, family.layers, nn.ModuleDict({str(i): layers[i] for i in self._windows}))
        if self.is_last:
            setattr(body, family.norm, source.get_submodule(family.norm))
            self.lm_head = whole.lm_head
        if not family.positions:
            # Not a part of the whole model's state, and needed by each stage: computed, never restored.
            with torch.device("cpu"):
                body.rotary_emb = type(source.rotary_emb)(whole.config)

    @property
    def body(self) -> nn.Module:
        return self.get_submodule(self.family.root)

    @property
    def layers(self) -> list[nn.Module]:
        return list(self.body.get_submodule(self.family.layers).children())

    @property
    def embedding(self) -> nn.Module:
        return self.body.get_submodule(self.family.embedding)

    def forward(
        self, inputs: torch.Tensor, position_ids: torch.Tensor, document_ids: torch.Tensor
    ) -> torch.Tensor:
        hidden = self._embed(inputs, position_ids) if self.is_first else inputs
        options: dict[str, Any] = {"position_ids": position_ids}
        if not self.family.positions:
            options["position_embeddings"] = self.body.rotary_emb(hidden, position_ids=position_ids)
        if self._context is not None:
            options["context_group"] = self._context.group
        rows = slice(None) if self._context is None else self._context.rows
        masks = {w: attention_mask(document_ids, w, rows=rows) for w in set(self._windows.values())}
        for layer, window in zip(self.layers, self._windows.values(), strict=True):
            hidden = layer(hidden, attention_mask=masks[window], **options)
        if not self.is_last:
            return hidden
        logits: torch.Tensor = self.lm_head(self.body.get_submodule(self.family.norm)(hidden))
        return logits

    def _embed(self, ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.embedding(ids)
        if self.family.positions:
            own = position_ids if self.tokens is None else position_ids[:, self.tokens]
            hidden = hidden + self.body.get_submodule(self.family.positions)(own)
        if self.family.embedding_dropout:
            hidden = self.body.get_submodule(self.family.embedding_dropout)(hidden)
        return hidden


class Context:
    """This rank's share of each sequence: `rows` of it, and the ranks that have the rest."""

    def __init__(self, group: dist.ProcessGroup, rows: slice) -> None:
        self.group = group
        self.rows = rows

    @classmethod
    def of(cls, axes: Axes, sequence_length: int) -> Context | None:
        group = axes.group("context")
        if group is None:
            return None
        return cls(group, axes.tokens_of(sequence_length))


def build_stages(
    config: PretrainedConfig,
    axes: Axes,
    dtype: torch.dtype,
    *,
    sequence_length: int,
    float64_norms: bool = False,
) -> list[Stage]:
    """The stages of this rank, on the meta device, in ascending order."""
    context = Context.of(axes, sequence_length)
    if context is not None:
        config._attn_implementation = OVER_CONTEXT
    tokens = axes.hidden_tokens_of(sequence_length)
    per_stage = config.num_hidden_layers // axes.stage_count
    stages = []
    for number in axes.stages:
        # A model of its own for each, as the modules of one are parallelised in place.
        whole = empty_model(config, dtype, float64_norms=float64_norms)
        first, last = number * per_stage, (number + 1) * per_stage
        stages.append(Stage(whole, first, last, context=context, tokens=tokens))
    return stages
