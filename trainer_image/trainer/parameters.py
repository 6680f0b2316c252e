"""One parameter of this rank, seen from both sides: how the whole one is cut, and where autograd finds its
part.

The two are the same tensor, except under tensor parallelism alone: there the modules compute on plain local
tensors, because a DTensor in every call costs more than a small layer, and `cut` is a view of them that
knows the whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Parameter:
    name: str  # transformers' name
    cut: torch.Tensor  # a DTensor, or a plain tensor where nothing is cut; shares storage with `live`
    live: nn.Parameter  # the module's; gradients are left here


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's own part of a tensor, sharing its storage."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def as_they_are(module: nn.Module) -> list[Parameter]:
    return [Parameter(name, parameter.detach(), parameter) for name, parameter in module.named_parameters()]


def made_local(module: nn.Module) -> list[Parameter]:
    """Replace each DTensor parameter of `module` by its local part. Tied parameters must be tied again."""
    parameters = []
    for name, parameter in list(module.named_parameters()):
        live = parameter
        if isinstance(parameter, DTensor):
            live = nn.Parameter(parameter.detach().to_local())
            owner, _, attribute = name.rpartition(".")
            module.get_submodule(owner).register_parameter(attribute, live)
        parameters.append(Parameter(name, parameter.detach(), live))
    return parameters
