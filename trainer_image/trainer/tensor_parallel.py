"""Styles that cut transformers' linear layers and embeddings over the tensor axis.

Parameters are DTensors, so sharding and checkpoints see how they are cut, but each forward works on local
tensors with two explicit communications: a sum in the forward pass after a row cut, and a sum of input
gradients in the backward pass before column cuts that share an input. On small layers the dispatch of
DTensor operations would cost more than the layers themselves. Used by `parallelise.py` through
`parallelize_module`.

With `sequence`, what lies between a row cut and the next column cuts is spread over the tensor ranks by tokens: the
sum leaves each rank its own tokens, and these are gathered again before the column cuts. The same bytes travel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from trainer.collectives import Gather, Scatter, SumBackward, SumForward

_TOKENS = 1  # the dim of tokens in hidden states


class ColumnCut(ParallelStyle):
    """A linear layer of which each rank computes some of the outputs.

    Its input must pass a `SharedInput`: that of a module around it, or its own when one is given.
    """

    def __init__(self, shared_input: SharedInput | None = None) -> None:
        self._shared_input = shared_input

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        # Outputs come first in a Linear, last in transformers' Conv1D.
        outputs = 0 if isinstance(module, nn.Linear) else module.weight.dim() - 1
        _cut(module, "weight", device_mesh, outputs)
        if module.bias is not None:
            _cut(module, "bias", device_mesh, module.bias.dim() - 1)
        module.forward = functools.partial(_column_forward, module)
        return self._shared_input._apply(module, device_mesh) if self._shared_input else module


class RowCut(ParallelStyle):
    """A linear layer of which each rank sees some of the inputs; the outputs are summed. The bias stays
    whole.
    """

    def __init__(self, *, sequence: bool = False) -> None:
        self._sequence = sequence

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _cut(module, "weight", device_mesh, 1 if isinstance(module, nn.Linear) else 0)
        add_up = _adder(device_mesh.get_group(), sequence=self._sequence)
        module.forward = functools.partial(_row_forward, module, add_up)
        return module


class VocabularyCut(ParallelStyle):
    """An embedding of which each rank has some of the rows."""

    def __init__(self, *, sequence: bool = False) -> None:
        self._sequence = sequence

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        first_row = -(-module.num_embeddings // device_mesh.size()) * device_mesh.get_local_rank()
        _cut(module, "weight", device_mesh, 0)
        add_up = _adder(device_mesh.get_group(), sequence=self._sequence)
        module.forward = functools.partial(_embedding_forward, module, add_up, first_row)
        return module


class SharedInput(ParallelStyle):
    """Sums up the gradient of the module's input once, for all column cuts inside that read it."""

    def __init__(self, keyword: str | None = None, *, sequence: bool = False) -> None:
        self._keyword = keyword  # the input's name, or None for the first positional one
        self._sequence = sequence

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group = device_mesh.get_group()

        def shared(whole: torch.Tensor) -> torch.Tensor:
            passed: torch.Tensor = (
                Gather.apply(whole, _TOKENS, group) if self._sequence else SumBackward.apply(whole, group)
            )
            return passed

        def share(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            if self._keyword is None:
                return (shared(args[0]), *args[1:]), kwargs
            return args, {**kwargs, self._keyword: shared(kwargs[self._keyword])}

        module.register_forward_pre_hook(share, with_kwargs=True)
        return module


def _adder(group: dist.ProcessGroup, *, sequence: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """The sum over the group: whole on each rank, or its own tokens of it."""

    def add_up(partial: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = (
            Scatter.apply(partial, _TOKENS, group) if sequence else SumForward.apply(partial, group)
        )
        return total

    return add_up


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


def _row_forward(
    module: nn.Module, add_up: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor
) -> torch.Tensor:
    outputs = add_up(_product(module, inputs))
    return outputs if module.bias is None else outputs + module.bias


def _embedding_forward(
    module: nn.Embedding, add_up: Callable[[torch.Tensor], torch.Tensor], first_row: int, ids: torch.Tensor
) -> torch.Tensor:
    weight = _local(module.weight)
    rows = ids - first_row
    elsewhere = (rows < 0) | (rows >= weight.shape[0])
    if module.padding_idx is not None:
        # Its row is looked up, and never learns from that.
        weight = torch.where(_is_row(module.padding_idx - first_row, weight), weight.detach(), weight)
    found = F.embedding(rows.masked_fill(elsewhere, 0), weight).masked_fill(elsewhere.unsqueeze(-1), 0.0)
    summed = add_up(found)
    scale = getattr(module, "embed_scale", None)
    return summed if scale is None else summed * scale.to(summed.dtype)


def _is_row(row: int, weight: torch.Tensor) -> torch.Tensor:
    return (torch.arange(weight.shape[0], device=weight.device) == row).unsqueeze(-1)
