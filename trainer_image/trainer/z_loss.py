"""The z-loss: the squared logarithm of the softmax's denominator, which keeps logits from drifting away.

Summed like the cross entropy, over the same tokens, so that one division by their number serves both; reported
beside it, never in it. Works on logits that are cut by vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from trainer.losses import IGNORED


def z_loss_sum(
    logits: torch.Tensor, labels: torch.Tensor, *, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Sum of (log sum exp z)^2 over the tokens whose label is not IGNORED; a scalar, the same on all of `group`.

    `logits` `[b, S, V]`, or with `group` this rank's columns of them; `labels` `[b, S]`.
    """
    flat = logits.flatten(0, 1)
    log_z = torch.logsumexp(flat, dim=-1) if group is None else _VocabularyParallelLogZ.apply(flat, group)
    return torch.where(labels.flatten() != IGNORED, log_z.square(), 0.0).sum()


class _VocabularyParallelLogZ(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        highest = logits.amax(dim=-1)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
        total = (logits - highest.unsqueeze(-1)).exp().sum(dim=-1)
        dist.all_reduce(total, group=group)
        log_z = total.log() + highest
        ctx.save_for_backward(logits, log_z)
        return log_z

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, log_z = ctx.saved_tensors
        return (logits - log_z.unsqueeze(-1)).exp() * upstream.unsqueeze(-1), None
