"""AdamW with decoupled weight decay. Elementwise, so any cut gives the same numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from trainer.config import OptimizerConfig
from trainer.optim.groups import decays
from trainer.parameters import Parameter, cut_like, local

MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW:
    def __init__(self, parameters: Sequence[Parameter], config: OptimizerConfig) -> None:
        self._parameters = parameters
        self._locals = [nn.Parameter(local(parameter.cut)) for parameter in parameters]
        groups = []
        for decayed, decay in ((True, config.weight_decay), (False, 0.0)):
            chosen = [own for own, p in zip(self._locals, parameters, strict=True) if decays(p) is decayed]
            groups.append({"params": chosen, "weight_decay": decay})
        self._torch = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.epsilon,
            fused=True,
        )
        for own in self._locals:
            state = {moment: torch.zeros_like(own, requires_grad=False) for moment in MOMENTS}
            self._torch.state[own] = {"step": torch.zeros((), dtype=torch.float32), **state}

    def update(self, gradients: Sequence[torch.Tensor], learning_rate: float) -> None:
        for own, gradient in zip(self._locals, gradients, strict=True):
            own.grad = gradient
        for group in self._torch.param_groups:
            group["lr"] = learning_rate
        self._torch.step()
        self._torch.zero_grad(set_to_none=True)

    @property
    def updates(self) -> int:
        return int(next(iter(self._torch.state.values()))["step"])

    @updates.setter
    def updates(self, count: int) -> None:
        for state in self._torch.state.values():
            state["step"].fill_(float(count))

    def states(self) -> dict[str, torch.Tensor]:
        return {
            f"{parameter.name}.{moment}": cut_like(parameter.cut, self._torch.state[own][moment])
            for parameter, own in zip(self._parameters, self._locals, strict=True)
            for moment in MOMENTS
        }
