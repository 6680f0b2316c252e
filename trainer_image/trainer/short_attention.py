"""Attention over short sequences on a CPU: a few batched matrix products that keep the weights of all pairs of tokens.

Up to LONGEST_KEPT tokens they take less time than torch's fused kernel, which computes the weights once more in the
backward pass to save their memory. The query heads that share a key head are one matrix, so no key is repeated. Nothing
is approximated. Whatever else is asked for (long sequences, dropout, half precision, compiled layers) is torch's.
Registered with transformers under a name of its own; the planner counts the weights (`memory.py`).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from trainingrun.protocol.attention import LONGEST_KEPT

FUSED = "trainer_fused"  # torch's kernel, or these products where they are faster


def attend(
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
    if dropout or not _short(query, key):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    attended: torch.Tensor = _Attention.apply(query, key, value, attention_mask, scale)
    return attended, None


def _short(query: torch.Tensor, key: torch.Tensor) -> bool:
    return (
        query.shape[2] == key.shape[2] <= LONGEST_KEPT
        and query.device.type == "cpu"
        and query.dtype in (torch.float32, torch.float64)
        and not torch.compiler.is_compiling()
    )


class _Attention(torch.autograd.Function):
    """Within, the rows of a matrix are the tokens of all query heads that share a key head."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
    ) -> torch.Tensor:
        keys, values = key.flatten(0, 1), value.flatten(0, 1)
        queries = _rows(query * scale, keys)
        weights = queries @ keys.mT
        _hide(weights.view(*query.shape[:3], -1), mask)
        weights = torch.softmax(weights, dim=-1)
        attended = torch.empty_like(query.transpose(1, 2), memory_format=torch.contiguous_format)
        attended.transpose(1, 2).copy_((weights @ values).view(query.shape))
        ctx.scale = scale
        ctx.save_for_backward(queries, keys, values, weights, attended)
        return attended

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        queries, keys, values, weights, attended = ctx.saved_tensors
        # What the softmax takes off the gradients of a row: their sum, weighed as the values were.
        common = _rows(torch.linalg.vecdot(upstream, attended).transpose(1, 2).unsqueeze(-1), keys)
        shape = upstream.transpose(1, 2).shape
        given = _rows(upstream.transpose(1, 2), keys)
        of_scores = (given @ values.mT).sub_(common).mul_(weights)
        of_key, of_value = (
            (left.mT @ right).view(shape[0], -1, *keys.shape[1:])
            for left, right in ((of_scores, queries), (weights, given))
        )
        return (of_scores @ keys).mul_(ctx.scale).view(shape), of_key, of_value, None, None


def _rows(tensor: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """`[b, heads, tokens, …]` as one matrix for each of `keys`."""
    return tensor.reshape(keys.shape[0], -1, tensor.shape[-1])


def _hide(scores: torch.Tensor, mask: torch.Tensor | None) -> None:
    """In place, of `[b, heads, queries, keys]`: minus infinity where a query may not look."""
    if mask is None:
        scores += torch.full(scores.shape[-2:], -math.inf, dtype=scores.dtype).triu_(1)
    else:  # it is the same for all heads, and an addition is many times faster than filling in
        scores += torch.zeros(mask.shape, dtype=scores.dtype).masked_fill_(~mask, -math.inf)


AttentionInterface.register(FUSED, attend)
