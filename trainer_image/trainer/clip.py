"""The global gradient norm, in which each parameter counts once however it is cut.

A rank's contribution is the squared norm of its own part, divided by the number of ranks that hold the same
part; the sum of all contributions over the world is the squared norm. That sum travels in the step's one
small all-reduce, so every rank clips by exactly the same number. Reading placements by mesh axis covers
plain tensors (whole on each rank of their stage), one- and two-dimensional ones and strided shards alike.
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, Replicate

from trainer.mesh import Axes

EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ has it


def holders(parameter: torch.Tensor, axes: Axes) -> int:
    """How many ranks of a pipeline stage hold the same part of `parameter`."""
    count = 1
    for axis in ("replicate", "shard", "context", "tensor"):
        count *= axes.degree(axis)
    if isinstance(parameter, DTensor):
        for dim, placement in enumerate(parameter.placements):
            if not isinstance(placement, Replicate):
                count //= parameter.device_mesh.size(dim)
    return count


def squared_norm_share(gradients: list[torch.Tensor], counts: list[int]) -> float:
    """This rank's contribution to the squared global norm. `counts`: holders of each gradient's parameter."""
    norms = torch.stack(torch._foreach_norm(gradients)).to(torch.float64)
    return float((norms.square() / torch.tensor(counts, dtype=torch.float64)).sum())


def clip_coefficient(norm: float, max_norm: float | None) -> float:
    return 1.0 if max_norm is None else min(1.0, max_norm / (norm + EPSILON))
