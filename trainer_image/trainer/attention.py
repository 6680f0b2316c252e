"""Where a token may look, and attention over a sequence whose tokens are spread over ranks.

Attention never crosses a document, nor a sliding window. Along the context axis each rank has a run of
neighbouring tokens: it gathers the keys and values of all of them, and its own queries look at these through the
mask. The gradients of keys and values are summed back to the rank that owns them. Nothing is approximated.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import AttentionInterface, PretrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from trainer.collectives import Gather

OVER_CONTEXT = "trainer_context"  # the name under which transformers' layers find `attend_over_context`


def window_of(config: PretrainedConfig, layer: int) -> int | None:
    """How many tokens back, itself included, a token of this layer sees; None for all of them."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and kinds[layer] != "sliding_attention":
        return None
    return getattr(config, "sliding_window", None)


def attention_mask(
    document_ids: torch.Tensor, window: int | None, *, rows: slice = slice(None)
) -> torch.Tensor | None:
    """Where the queries of `rows` may look: `[b, 1, queries, S]` bool, causal within each document and window.

    None when that is plain causal attention of all rows to all, which is faster without a mask. A part of the
    rows always gets its mask: without one, attention would take its first query for the first token.
    """
    length = document_ids.shape[1]
    limited = window is not None and window < length
    if rows == slice(None) and not limited and bool((document_ids == document_ids[:, :1]).all()):
        return None
    position = torch.arange(length, device=document_ids.device)
    back = position[rows, None] - position[None, :]
    seen = back >= 0
    if limited:
        seen &= back < window
    same = document_ids[:, rows, None] == document_ids[:, None, :]
    return (same & seen).unsqueeze(1)


def attend_over_context(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    context_group: dist.ProcessGroup,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers' attention functions; `[b, heads, tokens, size]`, with this rank's tokens."""
    whole: torch.Tensor = Gather.apply(torch.stack((key, value)), 3, context_group)
    return sdpa_attention_forward(module, query, whole[0], whole[1], attention_mask, **options)


AttentionInterface.register(OVER_CONTEXT, attend_over_context)
