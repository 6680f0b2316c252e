"""Styles that cut transformers' linear layers and embeddings over the tensor axis.

Parameters are DTensors, so sharding and checkpoints see how they are cut, but each forward works on local
tensors with two explicit communications: a sum in the forward pass after a row cut, and a sum of input
gradients in the backward pass before column cuts that share an input. On small layers the dispatch of
DTensor operations would cost more than the layers themselves. Used by `parallelise.py` through
`parallelize_module`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle


class ColumnCut(ParallelStyle):
    """A linear layer of which each rank computes some of the outputs.

    Its input must pass a `SharedInput`: that of a module around it, or its own with `shared_input`.
    """

    def __init__(self, *, shared_input: bool = False) -> None:
        self._shared_input = shared_input

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        # Outputs come first in a Linear, last in transformers' Conv1D.
        outputs = 0 if isinstance(module, nn.Linear) else module.weight.dim() - 1
        _cut(module, "weight", device_mesh, outputs)
        if module.bias is not None:
            _cut(module, "bias", device_mesh, module.bias.dim() - 1)
        module.forward = functools.partial(_column_forward, module)
        return SharedInput()._apply(module, device_mesh) if self._shared_input else module


class RowCut(ParallelStyle):
    """A linear layer of which each rank sees some of the inputs; the outputs are summed. The bias stays
    whole.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _cut(module, "weight", device_mesh, 1 if isinstance(module, nn.Linear) else 0)
        module.forward = functools.partial(_row_forward, module, device_mesh.get_group())
        return module


class VocabularyCut(ParallelStyle):
    """An embedding of which each rank has some of the rows."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        first_row = -(-module.num_embeddings // device_mesh.size()) * device_mesh.get_local_rank()
        _cut(module, "weight", device_mesh, 0)
        module.forward = functools.partial(_embedding_forward, module, device_mesh.get_group(), first_row)
        return module


class SharedInput(ParallelStyle):
    """Sums up the gradient of the module's input once, for all column cuts inside that read it."""

    def __init__(self, keyword: str | None = None) -> None:
        self._keyword = keyword  # the input's name, or None for the first positional one

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group = device_mesh.get_group()

        def share(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            if self._keyword is None:
                return (_SumGradient.apply(args[0], group), *args[1:]), kwargs
            return args, {**kwargs, self._keyword: _SumGradient.apply(kwargs[self._keyword], group)}

        module.register_forward_pre_hook(share, with_kwargs=True)
        return module


def _cut(module: nn.Module, name: str, mesh: DeviceMesh, dim: int) -> None:
    parameter = module.get_parameter(name)
    cut = distribute_tensor(parameter.detach(), mesh, [Shard(dim)], src_data_rank=None)
    module.register_parameter(name, nn.Parameter(cut))


def _local(parameter: torch.Tensor | None) -> torch.Tensor | None:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _product(module: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """Inputs times this rank's weights, whichever way round and in however many dims they are stored."""
    weight = _local(module.weight)
    return F.linear(inputs, weight) if isinstance(module, nn.Linear) else inputs @ weight.flatten(1)


def _column_forward(module: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    outputs = _product(module, inputs)
    return outputs if module.bias is None else outputs + _local(module.bias).flatten()


def _row_forward(module: nn.Module, group: dist.ProcessGroup, inputs: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = _Sum.apply(_product(module, inputs), group)
    return outputs if module.bias is None else outputs + module.bias


def _embedding_forward(
    module: nn.Embedding, group: dist.ProcessGroup, first_row: int, ids: torch.Tensor
) -> torch.Tensor:
    weight = _local(module.weight)
    rows = ids - first_row
    elsewhere = (rows < 0) | (rows >= weight.shape[0])
    if module.padding_idx is not None:
        # Its row is looked up, and never learns from that.
        weight = torch.where(_is_row(module.padding_idx - first_row, weight), weight.detach(), weight)
    found = F.embedding(rows.masked_fill(elsewhere, 0), weight).masked_fill(elsewhere.unsqueeze(-1), 0.0)
    summed: torch.Tensor = _Sum.apply(found, group)
    scale = getattr(module, "embed_scale", None)
    return summed if scale is None else summed * scale.to(summed.dtype)


def _is_row(row: int, weight: torch.Tensor) -> torch.Tensor:
    return (torch.arange(weight.shape[0], device=weight.device) == row).unsqueeze(-1)


class _Sum(torch.autograd.Function):
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


class _SumGradient(torch.autograd.Function):
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
