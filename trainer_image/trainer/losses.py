"""The sum of token losses of a micro-batch, over logits that may be cut by vocabulary.

A sum, never a mean: sums add up over micro-batches and ranks, and the step divides once by the number of
tokens that weigh in the whole global batch. Means of means give short documents too much weight.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

IGNORED = -100
_ELEMENTS_AT_ONCE = 1 << 18


def in_full_precision(logits: torch.Tensor) -> torch.Tensor:
    """Losses are computed in float32 at least: half precision has too few digits for a sum over a vocabulary."""
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def token_loss_sum(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    offset: int = 0,
    consume: bool = False,
) -> torch.Tensor:
    """Sum of cross entropies, a scalar in the dtype of the logits; 0 when every label is ignored.

    `logits` `[b, S, V]`, or with `group` this rank's columns `[b, S, V_local]`, the first of which is
    column `offset` of the whole; `labels` `[b, S]`, already shifted, IGNORED where a token weighs nothing.
    Every rank of `group` gets the same sum. `consume`: nobody looks at the logits again, so their memory is used;
    otherwise that of a copy.
    """
    flat_logits, flat_labels = logits.flatten(0, 1), labels.flatten()
    loss: torch.Tensor
    if group is None:
        loss = _InPlaceLoss.apply(flat_logits if consume else flat_logits.clone(), flat_labels)
    else:
        loss = _VocabularyParallelLoss.apply(flat_logits, flat_labels, group, offset)
    return loss


class _InPlaceLoss(torch.autograd.Function):
    """Cross entropy within the memory of the logits: they become logarithms of probabilities, and these in the backward
    pass the gradient. Some rows at a time, which stay in the processor's cache from one operation to the next.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        own = logits.detach()
        weighs = labels != IGNORED
        column = labels.clamp(min=0).unsqueeze(-1)
        for part in own.split(_rows_at_once(own)):
            torch.log_softmax(part, dim=-1, out=part)
        ctx.save_for_backward(own, column, weighs)
        return torch.where(weighs, own.gather(-1, column).squeeze(-1), 0.0).sum().neg()

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor, None]:
        own, column, weighs = ctx.saved_tensors
        each = (weighs * upstream).unsqueeze(-1)
        rows = _rows_at_once(own)
        for part, weight in zip(own.split(rows), each.split(rows), strict=True):
            part.exp_().mul_(weight)
        return own.scatter_add_(-1, column, -each), None


def _rows_at_once(matrix: torch.Tensor) -> int:
    return max(1, _ELEMENTS_AT_ONCE // matrix.shape[-1])


class _VocabularyParallelLoss(torch.autograd.Function):
    """Cross entropy over columns spread over ranks: two small all-reduces instead of gathering the logits."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, group: dist.ProcessGroup, offset: int
    ) -> torch.Tensor:
        highest = logits.amax(dim=-1)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
        shifted = logits - highest.unsqueeze(-1)
        column = labels - offset
        mine = (column >= 0) & (column < logits.shape[-1])
        column = column.clamp(0, logits.shape[-1] - 1).unsqueeze(-1)
        target = shifted.gather(-1, column).squeeze(-1).masked_fill(~mine, 0.0)
        exponentials = shifted.exp_()
        sums = torch.stack((exponentials.sum(dim=-1), target))
        dist.all_reduce(sums, group=group)
        weighs = labels != IGNORED
        ctx.save_for_backward(exponentials, sums[0], column, mine, weighs)
        return torch.where(weighs, sums[0].log() - sums[1], 0.0).sum()

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        exponentials, total, column, mine, weighs = ctx.saved_tensors
        gradient = exponentials / total.unsqueeze(-1)
        gradient.scatter_add_(-1, column, -mine.to(gradient.dtype).unsqueeze(-1))
        gradient.mul_((weighs.to(gradient.dtype) * upstream).unsqueeze(-1))
        return gradient, None, None, None
