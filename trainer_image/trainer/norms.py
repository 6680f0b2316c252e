"""Root-mean-square norms that keep one tensor for the backward pass, where transformers' modules keep two.

The same numbers, in the precision of the input: float32 as transformers has them, and float64 throughout. transformers'
own compute in float32 at any precision; a rounding in the last digit of float64, as any change of the layout brings,
then turns now and then into one of float32, and grows. Half precision keeps transformers' modules.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class RMSNorm(nn.Module):
    """`centred`: Gemma's, which scales by 1 + weight."""

    def __init__(self, size: int, epsilon: float, *, centred: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if centred else torch.ones(size))
        self._epsilon = epsilon
        self._centred = centred

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        normalised: torch.Tensor = _Norm.apply(
            inputs, 1.0 + self.weight if self._centred else self.weight, self._epsilon
        )
        return normalised


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        squares = torch.linalg.vecdot(inputs, inputs).unsqueeze(-1)
        scale = squares.div_(inputs.shape[-1]).add_(epsilon).rsqrt_()
        normalised = inputs * scale
        ctx.save_for_backward(normalised, scale, weight)
        return normalised * weight

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        normalised, scale, weight = ctx.saved_tensors
        of_weight = (upstream * normalised).flatten(0, -2).sum(dim=0)
        of_inputs = upstream * weight
        # What lies along the input changes its length only, which the norm takes away.
        along = torch.linalg.vecdot(of_inputs, normalised).div_(-normalised.shape[-1]).unsqueeze(-1)
        return of_inputs.addcmul_(normalised, along).mul_(scale), of_weight, None


def replace_norms(model: nn.Module, *, centred: bool) -> None:
    for name, module in list(model.named_modules()):
        if not type(module).__name__.endswith("RMSNorm"):
            continue
        epsilon = module.eps if centred else module.variance_epsilon
        owner, _, attribute = name.rpartition(".")
        setattr(
            model.get_submodule(owner), attribute, RMSNorm(module.weight.shape[0], epsilon, centred=centred)
        )
