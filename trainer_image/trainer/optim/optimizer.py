"""The optimizer of a rank: one update rule over its parameters, and the copies that the modules compute with.

Rules work on local tensors that share the parameters' storage: no tensor subclass is in the way. Called by the step,
once every rank has agreed that there is an update.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from trainer.config import OptimizerConfig
from trainer.optim.adafactor import Adafactor
from trainer.optim.adamw import AdamW
from trainer.optim.adamw8bit import AdamW8bit
from trainer.optim.groups import decays
from trainer.optim.lion import Lion
from trainer.optim.muon import Muon
from trainer.optim.rule import Rule
from trainer.parameters import Parameter

RULES: dict[str, type[Rule]] = {
    "AdamW": AdamW,
    "AdamW8bit": AdamW8bit,
    "Lion": Lion,
    "Muon": Muon,
    "Adafactor": Adafactor,
}


class Optimizer:
    """`parameters` of this rank, each exactly once, in a fixed order."""

    def __init__(self, parameters: Iterable[Parameter], config: OptimizerConfig) -> None:
        self.parameters = list(parameters)
        self._weight_decay = config.weight_decay
        self._rule = RULES[config.name](self.parameters, config)

    @property
    def groups(self) -> list[tuple[float, set[str]]]:
        """(weight decay, names) of each group."""
        decayed = {parameter.name for parameter in self.parameters if decays(parameter)}
        rest = {parameter.name for parameter in self.parameters} - decayed
        return [(decay, names) for decay, names in ((self._weight_decay, decayed), (0.0, rest)) if names]

    @torch.no_grad()
    def update(self, gradients: Sequence[torch.Tensor], *, scale: float, learning_rate: float) -> None:
        """One update by `scale` x `gradients` (local, in the order of the parameters; they are overwritten)."""
        torch._foreach_mul_(list(gradients), scale)
        self._rule.update(gradients, learning_rate)
        self.refresh()

    def refresh(self) -> None:
        """The weights were changed: renew the low-precision copies that the modules compute with."""
        for parameter in self.parameters:
            parameter.refresh()

    @property
    def updates(self) -> int:
        """Updates done so far, for the bias correction; skipped steps do not count."""
        return self._rule.updates

    @updates.setter
    def updates(self, count: int) -> None:
        self._rule.updates = count

    def moments(self) -> dict[str, torch.Tensor]:
        """`<name>.<state>` of every state, sharing storage with the optimizer."""
        return self._rule.states()
