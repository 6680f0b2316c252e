"""Lion: the sign of an interpolated momentum, with decoupled weight decay. Elementwise, so any cut gives the same
numbers.

    u = sign(b1 m + (1 - b1) g);  p <- p - lr (u + wd p);  m <- b2 m + (1 - b2) g
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainer.config import OptimizerConfig
from trainer.optim.groups import decays
from trainer.parameters import Parameter, cut_like, local


class Lion:
    def __init__(self, parameters: Sequence[Parameter], config: OptimizerConfig) -> None:
        self.updates = 0
        self._parameters = parameters
        self._betas = config.betas
        self._decays = [config.weight_decay if decays(parameter) else 0.0 for parameter in parameters]
        self._locals = [local(parameter.cut) for parameter in parameters]
        self._momenta = [torch.zeros_like(own) for own in self._locals]

    def update(self, gradients: Sequence[torch.Tensor], learning_rate: float) -> None:
        first, second = self._betas
        for own, momentum, gradient, decay in zip(
            self._locals, self._momenta, gradients, self._decays, strict=True
        ):
            direction = torch.lerp(momentum, gradient, 1.0 - first).sign_()
            own.mul_(1.0 - learning_rate * decay).add_(direction, alpha=-learning_rate)
            momentum.lerp_(gradient, 1.0 - second)
        self.updates += 1

    def states(self) -> dict[str, torch.Tensor]:
        return {
            f"{parameter.name}.momentum": cut_like(parameter.cut, momentum)
            for parameter, momentum in zip(self._parameters, self._momenta, strict=True)
        }
