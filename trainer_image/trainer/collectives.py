"""Differentiable communication: each operation's gradient travels by its counterpart.

Called by the layers that are cut over tensor ranks, and by attention over context ranks. Everything is a sum in the
precision of its tensors.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class SumForward(torch.autograd.Function):
    """Sum over the group forward, nothing backward."""

    @staticmethod
    def forward(ctx: Any, partial: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        total = partial.contiguous()
        if total is partial:
            ctx.mark_dirty(partial)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class SumBackward(torch.autograd.Function):
    """Nothing forward, sum over the group backward."""

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        # Autograd may still hold the incoming tensor for someone else.
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class Gather(torch.autograd.Function):
    """The parts of all ranks along `dim` forward; the sum of their gradients, scattered, backward."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.dim, ctx.group = dim, group
        return _gathered(part, dim, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _scattered(gradient, ctx.dim, ctx.group), None, None


class Scatter(torch.autograd.Function):
    """This rank's part along `dim` of the sum over all ranks forward; gradients are gathered backward."""

    @staticmethod
    def forward(ctx: Any, partial: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.dim, ctx.group = dim, group
        return _scattered(partial, dim, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _gathered(gradient, ctx.dim, ctx.group), None, None


def _gathered(part: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
    ranks = dist.get_world_size(group)
    parts = part.new_empty((ranks * part.shape[0], *part.shape[1:]))
    dist.all_gather_single(parts, part.contiguous(), group=group)
    return parts.unflatten(0, (ranks, -1)).movedim(0, dim).flatten(dim, dim + 1)


def _scattered(whole: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
    parts = whole.unflatten(dim, (dist.get_world_size(group), -1)).movedim(dim, 0).contiguous()
    own = torch.empty_like(parts[0])
    dist.reduce_scatter_single(own, parts.flatten(0, 1), group=group)
    return own
