"""From the gradients that autograd left to those of the whole global batch, on this rank's own part of each
parameter.

Tensor and shard axes are summed by the modules themselves during the backward pass; what is left is the
replicate axis, summed here once a step. Called by the step, between the last backward and the update.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from trainer.mesh import Axes
from trainer.parameters import Parameter, local

BUCKET_BYTES = 32 << 20  # bounds the extra memory; larger ones are not faster


@torch.no_grad()
def collect_gradients(parameters: Iterable[Parameter], axes: Axes) -> list[torch.Tensor]:
    """Local gradients, one for each parameter, summed over the replicate axis; clears the parameters' own."""
    gradients = []
    for parameter in parameters:
        gradient = parameter.live.grad
        gradients.append(torch.zeros_like(local(parameter.cut)) if gradient is None else local(gradient))
        parameter.live.grad = None
    group = axes.group("replicate")
    if group is not None:
        for bucket in _buckets(gradients):
            flat = _flatten_dense_tensors(bucket)
            dist.all_reduce(flat, group=group)
            torch._foreach_copy_(bucket, list(_unflatten_dense_tensors(flat, bucket)))
    return gradients


def _buckets(tensors: list[torch.Tensor]) -> Iterable[list[torch.Tensor]]:
    bucket: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        bucket.append(tensor)
        size += tensor.nbytes
        if size >= BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket
