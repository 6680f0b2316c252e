"""From the gradients that autograd left to those of the whole global batch, on this rank's own part of each
parameter.

Most of the tensor and shard axes is summed by the modules themselves during the backward pass. What is left is
summed here once a step: the parts that tensor ranks or the two ends of a pipeline have of some parameters, then the
context and the replicate axis for all of them. Called by the step, between the last backward and the update.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from trainer.mesh import Axes
from trainer.parameters import Parameter, local

BUCKET_BYTES = 32 << 20  # bounds the extra memory; larger ones are not faster


@torch.no_grad()
def collect_gradients(parameters: Sequence[Parameter], axes: Axes) -> list[torch.Tensor]:
    """Local gradients of the global batch, one for each parameter; clears the parameters' own."""
    gradients = [_own(parameter) for parameter in parameters]
    partial: dict[dist.ProcessGroup, list[torch.Tensor]] = {}
    for parameter, gradient in zip(parameters, gradients, strict=True):
        for group in parameter.sums:
            partial.setdefault(group, []).append(gradient)
    for group, parts in partial.items():
        _sum(parts, group)
    for axis in ("context", "replicate"):
        whole = axes.group(axis)
        if whole is not None:
            _sum(gradients, whole)
    return gradients


def _own(parameter: Parameter) -> torch.Tensor:
    gradient = parameter.take_gradient()
    return torch.zeros_like(local(parameter.cut)) if gradient is None else gradient


def _sum(tensors: list[torch.Tensor], group: dist.ProcessGroup) -> None:
    """In place, over `group`."""
    for bucket in _buckets(tensors):
        flat = _flatten_dense_tensors(bucket)
        dist.all_reduce(flat, group=group)
        torch._foreach_copy_(bucket, list(_unflatten_dense_tensors(flat, bucket)))


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
