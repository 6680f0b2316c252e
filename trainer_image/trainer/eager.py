"""Attention written out in matrix products: slow, and free of any fused kernel, to hold the fused ones against.

Registered with transformers under a name of its own, so that it takes the masks that keep documents apart: true
where a query may look, or None for plain causal attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from trainer.short_attention import FUSED

EAGER = "trainer_eager"
ATTENTIONS = {"Sdpa": FUSED, "Eager": EAGER}  # as spec.training.overrides.attention has them


def attend_eagerly(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """`[b, heads, tokens, size]` in, `[b, tokens, heads, size]` out, as transformers' attention functions."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is None:
        attention_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    weights = nn.functional.dropout(weights.to(query.dtype), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register(EAGER, attend_eagerly)
